"""Reproduce the figures of *Is Vertical Logistic Regression Privacy-Preserving?*, and write what comes of it.

    python -m scripts.reproduce.vertical_lr_privacy --out DIR [--quick] [--only PART,...] [--page FOLDER]

``DIR/results.json`` holds one row per claim; ``DIR/vertical-lr-privacy.md`` and ``DIR/figures/`` are the page with its
figures, which ``--page`` also writes into another folder. Finished pieces of work are kept in ``DIR/jobs``: a run that
was broken off goes on where it stood.

Source: *Is Vertical Logistic Regression Privacy-Preserving? A Comprehensive Privacy Analysis and Beyond*, figures 2–4.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from scripts.reproduce import vertical_lr_privacy_labels, vertical_lr_privacy_noise, vertical_lr_privacy_stacking
from scripts.reproduce.claims import Claim, markdown_table, shown, write_results
from scripts.reproduce.jobs import Job, run_jobs
from scripts.reproduce.pages import Section, write_page
from scripts.reproduce.study import Settings
from scripts.reproduce.vertical_lr_privacy_study import describe, problems
from splitvfl.errors import SplitVFLError

PARTS: Mapping[str, Callable[[Settings], list[Section]]] = {
    "rates": vertical_lr_privacy_noise.rate_sections,
    "labels": vertical_lr_privacy_labels.sections,
    "noise": vertical_lr_privacy_noise.sections,
    "stacking": vertical_lr_privacy_stacking.sections,
}
PAGE = "vertical-lr-privacy.md"
_TEMPLATE = Path(__file__).with_name("vertical_lr_privacy.md")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that were asked for, write results, page and figures, and return 0 whatever the verdicts."""
    arguments = _parser().parse_args(argv)
    settings = Settings(
        out=arguments.out,
        quick=arguments.quick,
        seeds=2 if arguments.quick else arguments.seeds,
        rows_of_clicks=0,
        # Starting processes takes longer than the quick run's work.
        workers=arguments.workers or (1 if arguments.quick else 2),
    )
    torch.set_num_threads(1)
    try:
        reproduce(settings, parts=arguments.only, page=arguments.page)
    except SplitVFLError as error:
        print(f"vertical_lr_privacy: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.reproduce.vertical_lr_privacy", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results and finished work")
    parser.add_argument("--quick", action="store_true", help="half a minute on bundled data: shows that it works")
    parser.add_argument("--only", type=_parts, default=tuple(PARTS), metavar="PART,…", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=_positive, default=5, help="seeds; the quick run has 2")
    parser.add_argument("--workers", type=_positive, help="processes of one thread each (default: 2, quick: 1)")
    parser.add_argument("--page", type=Path, metavar="FOLDER", help="also write the page and its figures here")
    return parser


def _parts(text: str) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(","))
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(PARTS)}, got {', '.join(unknown)}")
    return chosen


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def reproduce(settings: Settings, *, parts: Sequence[str] = tuple(PARTS), page: Path | None = None) -> list[Section]:
    """Run parts of the reproduction and write what they found.

    Args:
        settings: Scale and places.
        parts: Keys of :data:`PARTS`, in the order of the page.
        page: Folder in which the page and its figures are written besides.

    Returns:
        The sections.

    Raises:
        SplitVFLError: If data cannot be read, or a run fails.
    """
    sections = [section for part in parts for section in PARTS[part](settings)]
    claims: list[Claim] = [claim for section in sections for claim in section.claims]
    write_results(settings.out, claims)
    table = settings_table(settings)
    for folder in [settings.out] if page is None else [settings.out, page]:
        write_page(folder / PAGE, template=_TEMPLATE, sections=sections, settings_table=table)
    settings.say(f"wrote {settings.out / 'results.json'} and {settings.out / PAGE}")
    return sections


def settings_table(settings: Settings) -> str:
    """Return the data sets, what they look like as they are scaled, and how long each is trained on, as a table."""
    chosen = problems(settings)
    jobs = [Job(describe, {"problem": problem.as_settings(), "seed": 0}) for problem in chosen]
    found = run_jobs(jobs, settings.jobs, workers=settings.workers)
    headings = (
        "data",
        "training records",
        "test",
        "larger class (test)",
        "columns A + B",
        "constant ones at B",
        "rank of B's batches",
        "batch",
        "epochs",
        "median row norm",
        "largest row norm",
        "β",
    )
    rows = [
        (
            problem.title,
            f"{result['records']:,}".replace(",", " "),
            f"{result['test']:,}".replace(",", " "),
            shown(result["majority_test"]),
            f"{result['active']} + {result['passive']}",
            str(result["constant"]),
            "–".join(str(end) for end in dict.fromkeys(result["rank"])),
            str(problem.batch_size),
            str(problem.epochs),
            shown(result["typical"], 2),
            shown(result["radius"], 2),
            shown(result["smoothness"]),
        )
        for problem, result in zip(chosen, found, strict=True)
    ]
    return markdown_table(headings, rows)


if __name__ == "__main__":
    sys.exit(main())
