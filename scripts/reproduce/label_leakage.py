"""Regenerate the figures of "Label Leakage and Protection in Two-party Split Learning", and say what reproduces.

``python -m scripts.reproduce.label_leakage [--quick] --out DIR`` writes ``DIR/results.json``,
``DIR/label-leakage.md`` and ``DIR/figures/*.svg``. Finished pieces of work are kept in ``DIR/jobs``, so that a run
which was broken off goes on where it stood.

Source: Li et al., ICLR 2022, arXiv:2102.08504.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from scripts.reproduce import figure_1, figure_2, tradeoff
from scripts.reproduce.claims import markdown_table, write_results
from scripts.reproduce.jobs import Job, run_jobs
from scripts.reproduce.pages import Section, write_page
from scripts.reproduce.study import Settings, describe, problems
from splitvfl.errors import SplitVFLError

PARTS: Mapping[str, Callable[[Settings], list[Section]]] = {
    "figure-1": figure_1.sections,
    "figure-2": figure_2.sections,
    "trade-off": tradeoff.sections,
}
PAGE = "label-leakage.md"
_TEMPLATE = Path(__file__).with_name("label_leakage.md")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that were asked for, write results, page and figures, and return 0 whatever the verdicts."""
    arguments = _parser().parse_args(argv)
    settings = Settings(
        out=arguments.out,
        quick=arguments.quick,
        seeds=arguments.seeds,
        rows_of_clicks=arguments.rows_of_clicks,
        # Starting processes takes longer than the quick run's work.
        workers=arguments.workers or (1 if arguments.quick else 2),
    )
    torch.set_num_threads(1)
    try:
        reproduce(settings, parts=arguments.only, page=arguments.page)
    except SplitVFLError as error:
        print(f"label_leakage: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.reproduce.label_leakage", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results and finished work")
    parser.add_argument("--quick", action="store_true", help="a minute on small generated data: shows that it works")
    parser.add_argument("--only", type=_parts, default=tuple(PARTS), metavar="PART,…", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=_positive, default=5, help="seeds on the small data sets")
    parser.add_argument("--rows-of-clicks", type=int, default=1_000_000, help="rows of generated clicks; 0: none")
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
    write_results(settings.out, [claim for section in sections for claim in section.claims])
    table = settings_table(settings)
    for folder in [settings.out] if page is None else [settings.out, page]:
        write_page(folder / PAGE, template=_TEMPLATE, sections=sections, settings_table=table)
    settings.say(f"wrote {settings.out / 'results.json'} and {settings.out / PAGE}")
    return sections


def settings_table(settings: Settings) -> str:
    """Return the data sets, and at which scale each was run, as a Markdown table."""
    chosen = problems(settings)
    jobs = [Job(describe, {"problem": problem.as_settings(), "seed": problem.seeds[0]}) for problem in chosen]
    found = run_jobs(jobs, settings.jobs, workers=settings.workers)
    rows = [
        (
            problem.title,
            f"{result['records']:,}".replace(",", " "),
            f"{100 * result['positives'] / result['records']:.1f} %",
            str(problem.batch_size),
            str(problem.epochs),
            str(problem.epochs * -(-result["records"] // problem.batch_size)),
            str(len(problem.seeds)),
        )
        for problem, result in zip(chosen, found, strict=True)
    ]
    return markdown_table(("data", "training records", "positives", "batch", "epochs", "steps", "seeds"), rows)


if __name__ == "__main__":
    sys.exit(main())
