"""What commands that reproduce a paper share: their options, and the way from parts to results, page and figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from scripts.reproduce.shared.claims import write_results
from scripts.reproduce.shared.folders import writable_folder
from scripts.reproduce.shared.jobs import Cell, OneCell, listed
from scripts.reproduce.shared.making import Making
from scripts.reproduce.shared.one_cell import compared
from scripts.reproduce.shared.overview import write_overview
from scripts.reproduce.shared.pages import Section, write_page
from scripts.reproduce.shared.published_cells import publish, take_over
from scripts.reproduce.shared.settings import Settings, data_folder
from splitvfl.errors import ArgumentError, SplitVFLError

_WHAT = "Run the parts that were asked for, write results, page and figures, and return 0 whatever the verdicts."

_INTERRUPTED = 130


@dataclass(frozen=True)
class Reproduction:
    """A paper's reproduction.

    Attributes:
        name: Name of the script: ``label_leakage``.
        parts: What computes each part of the page, in its order.
        template: The page without its sections.
        page: File name of the page.
        settings_table: Returns the table of data sets and scales.
        quick: What the quick run is, for ``--help``.
        quick_seeds: Seeds of the quick run; ``None``: as many as asked for.
        clicks: Rows of generated clicks, for which there is an option then; 0: none are needed.
        proved: How claims begin that are proved, so that ``--check`` can fail.
        publishes_cells: Whether the cells that a page is made of are written beside it. They must be figures that may
            stand on the page: nothing of a record.
    """

    name: str
    parts: Mapping[str, Callable[[Settings], list[Section]]]
    template: Path
    page: str
    settings_table: Callable[[Settings], str]
    quick: str
    quick_seeds: int | None = None
    clicks: int = 0
    proved: tuple[str, ...] = ()
    publishes_cells: bool = False

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the parts that were asked for, and return 0 whatever the verdicts, 2 if anything prevents it.

        With ``--check`` 1 is returned if what is proved does not reproduce. If one cell alone was asked for, 1 is
        returned if it differs from what was kept. Ctrl-C returns 130, as in a shell.

        Args:
            argv: The command line.
        """
        parser = self._parser()
        arguments = parser.parse_args(argv)
        parts, alone = arguments.only
        if alone and arguments.page is not None:
            parser.error("a page is not made of one cell: leave --page or the cell out")
        quick_seeds = self.quick_seeds if arguments.quick else None
        settings = Settings(
            out=arguments.out,
            quick=arguments.quick,
            seeds=quick_seeds or arguments.seeds,
            rows_of_clicks=arguments.rows_of_clicks if self.clicks else 0,
            # Starting processes takes longer than the quick run's work.
            workers=arguments.workers or (1 if arguments.quick else 2),
            keep_stale=arguments.keep_stale,
            alone=alone,
        )
        torch.set_num_threads(1)
        try:
            for folder in filter(None, (arguments.out, arguments.page)):
                writable_folder(folder)
            if arguments.begin_with is not None:
                take_over(arguments.begin_with, settings.jobs, data=data_folder(), say=settings.say)
            if alone:
                return self._one_cell(settings, *parts)
            sections = self.run(settings, parts=parts, page=arguments.page)
        except SplitVFLError as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"{self.name}: interrupted; what is finished is kept, and the same command goes on", file=sys.stderr)
            return _INTERRUPTED
        return self._checked(sections) if arguments.check else 0

    @property
    def published(self) -> str:
        """Where the cells lie beside the page; empty where they are not published."""
        return f"cells/{Path(self.page).stem}.jsonl.gz" if self.publishes_cells else ""

    def _checked(self, sections: Sequence[Section]) -> int:
        proved = [claim for section in sections for claim in section.claims if claim.claim.startswith(self.proved)]
        failed = [claim for claim in proved if claim.verdict != "reproduces"]
        for claim in failed:
            print(f"{self.name}: does not hold, and is proved: {claim.claim} ({claim.ours:g})", file=sys.stderr)
        if not proved:
            print(f"{self.name}: nothing that is proved was measured", file=sys.stderr)
        return int(bool(failed) or not proved)

    def run(self, settings: Settings, *, parts: Sequence[str], page: Path | None = None) -> list[Section]:
        """Run parts of the reproduction and write what they found.

        Args:
            settings: Scale and places.
            parts: Keys of ``parts``, in the order of the page.
            page: Folder in which the page and its figures are written besides, and the overview of the pages there.

        Returns:
            The sections.

        Raises:
            SplitVFLError: If data cannot be read, or a run fails.
        """
        by_part: dict[str, list[Cell]] = {}
        sections: list[Section] = []
        for part in parts:
            before = set(settings.jobs.used)
            sections += self.parts[part](settings)
            by_part[part] = [cell for name, cell in settings.jobs.used.items() if name not in before]
        before = set(settings.jobs.used)
        table = self.settings_table(settings)
        by_part[""] = [cell for name, cell in settings.jobs.used.items() if name not in before]
        making = Making.of(settings, by_part, [part for part in self.parts if part not in parts], self.published)
        write_results(settings.out, [claim for section in sections for claim in section.claims], making.as_results())
        sections.append(making.section())
        if settings.jobs.unused:
            settings.say(f"{settings.jobs.unused} cells of other settings or versions lie there, and were not used")
        for folder in [settings.out] if page is None else [settings.out, page]:
            write_page(folder / self.page, template=self.template, sections=sections, settings_table=table)
            if self.published:
                publish(settings.jobs, folder / self.published, data=data_folder())
        if page is not None:
            write_overview(page)
        settings.say(f"wrote {settings.out / 'results.json'} and {settings.out / self.page}")
        return sections

    def _one_cell(self, settings: Settings, part: str) -> int:
        """Run one cell of a part again, say what comes of it, and return 1 if it differs from what was kept.

        Raises:
            SplitVFLError: If there is no such cell, or it fails.
        """
        try:
            self.parts[part](settings)
        except OneCell as one:
            return compared(one, settings.say)
        known = list(settings.jobs.used.values())
        raise ArgumentError(f"{part} has no cell {settings.alone!r}; there are: {listed(known) if known else 'none'}")

    def _parser(self) -> argparse.ArgumentParser:
        names = ", ".join(self.parts)
        parser = argparse.ArgumentParser(prog=f"python -m scripts.reproduce.{self.name}", description=_WHAT)
        parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results and work done")
        parser.add_argument("--quick", action="store_true", help=f"{self.quick}: shows that it works")
        parser.add_argument(
            "--only",
            type=self._chosen,
            default=(tuple(self.parts), ""),
            metavar="PART,…",
            help=f"of {names}; PART:CELL: one cell of it alone, again, by its name or label in results.json",
        )
        seeds = "" if self.quick_seeds is None else f"; the quick run has {self.quick_seeds}"
        parser.add_argument("--seeds", type=_positive, default=5, help=f"seeds on the small data sets{seeds}")
        if self.clicks:
            parser.add_argument(
                "--rows-of-clicks", type=_count, default=self.clicks, help="rows of generated clicks; 0: none"
            )
        parser.add_argument("--workers", type=_positive, help="processes of one thread each (default: 2, quick: 1)")
        parser.add_argument(
            "--keep-stale", action="store_true", help="use kept results of older code, and say on the page which"
        )
        if self.publishes_cells:
            parser.add_argument(
                "--begin-with",
                type=Path,
                metavar="FILE",
                help=f"take over published cells: docs/results/{self.published}",
            )
        else:
            parser.set_defaults(begin_with=None)
        parser.add_argument("--check", action="store_true", help="fail (1) if what is proved does not reproduce")
        parser.add_argument("--page", type=Path, metavar="FOLDER", help="also write page, figures and overview here")
        return parser

    def _chosen(self, text: str) -> tuple[tuple[str, ...], str]:
        """Return the parts that are named, and the name of the only cell, which may be empty."""
        text, colon, cell = text.partition(":")
        chosen = tuple(part.strip() for part in text.split(","))
        unknown = [part for part in chosen if part not in self.parts]
        if unknown:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(self.parts)}, got {', '.join(unknown)}")
        if colon and (not cell or len(chosen) > 1):
            raise argparse.ArgumentTypeError(f"expected one part and the name of a cell, got {text}:{cell}")
        return chosen, cell


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)
