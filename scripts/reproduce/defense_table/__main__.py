"""Every defense of gradients and labels against every label attack, on one model and one data set.

``python -m scripts.reproduce.defense_table [--quick] --out DIR [--write docs/results/defenses.md]`` trains one small
model per defense and seed on data that come with scikit-learn, lets every attack of the registry and the auditor look
on, and writes ``DIR/results.json``, and the tables as a page. Each run is kept in ``DIR/runs`` when it is done, so that
what was broken off goes on; after a change of the code that a run depends on, it is made anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.reproduce.defense_table import other_labels
from scripts.reproduce.defense_table.page import leak_table, page, price_table
from scripts.reproduce.defense_table.study import (
    CONVERGED_DEFENSES,
    Row,
    Study,
    attacked,
    converged,
    plain,
    planned_defenses,
    promise_of,
    silent,
    summary_of,
    with_canaries,
)
from scripts.reproduce.defense_table.verdicts import all_claims
from scripts.reproduce.shared.claims import write_results, write_whole
from scripts.reproduce.shared.jobs import Cells, Job, run_jobs
from scripts.reproduce.shared.making import Making
from splitvfl.config.sections import parse_defenses
from splitvfl.errors import SplitVFLError
from splitvfl.report.summary import RunSummary

Say = Callable[[str], None]


def study(cells: Cells | Path, *, quick: bool, workers: int, say: Say) -> Study:
    """Train everything and return what was measured.

    Args:
        cells: Where the runs are kept; those that lie there are not done again.
        quick: One epoch and one seed: enough to see that everything works, too few to compare anything.
        workers: Processes.
        say: Called after each run with a line about it.
    """
    plans = [attacked(quick=quick), plain(quick=quick), with_canaries(quick=quick), converged(quick=quick)]
    quiet = silent(quick=quick)
    jobs = [job for plan in (*plans, list(quiet.values())) for runs in plan for job in runs]
    results = dict(zip(map(id, jobs), run_jobs(jobs, cells, workers=workers, say=say), strict=True))

    def summaries(runs: Sequence[Job]) -> list[RunSummary]:
        return [summary_of(results[id(job)]) for job in runs]

    main, further, coins, late = ([summaries(runs) for runs in plan] for plan in plans)
    rows = [
        Row(label, runs, others, tossed, None if hook is None else promise_of(hook))
        for (label, hook), runs, others, tossed in zip(planned_defenses(), main, further, coins, strict=True)
    ]
    hooks = [hooks[0] for hooks in parse_defenses(",".join(CONVERGED_DEFENSES), folder=Path())]
    ends = [
        Row(label, runs, promise=promise_of(hook))
        for label, runs, hook in zip(CONVERGED_DEFENSES, late, hooks, strict=True)
    ]
    tests = {
        name: [result["test_auc"] if "test_auc" in result else _test_auc(result) for result in found]
        for name, found in ((name, [results[id(job)] for job in runs]) for name, runs in quiet.items())
    }
    return Study(rows, tests, ends)


def _test_auc(result: dict[str, object]) -> float:
    found = summary_of(result).test_metric
    assert found is not None
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print the tables, and write results and page; return 0 when the runs themselves worked."""
    parser = argparse.ArgumentParser(prog="python -m scripts.reproduce.defense_table", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one epoch and one seed: the same rows, no comparison")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the runs and of results.json")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also write the page of the documentation here")
    parser.add_argument(
        "--other-labels",
        action="store_true",
        help="of ten classes and of a regression: their section of the page alone",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each (default: %(default)s)")
    parser.add_argument("--keep-stale", action="store_true", help="use runs of older code, and say on the page which")
    arguments = parser.parse_args(argv)
    cells = Cells(arguments.out / "runs", keep_stale=arguments.keep_stale)
    try:
        if arguments.other_labels:
            return _other_labels(arguments, cells)
        found = study(cells, quick=arguments.quick, workers=arguments.workers, say=_say)
    except SplitVFLError as error:
        print(f"defense_table: {error}", file=sys.stderr)
        return 2
    print(price_table(found), leak_table(found.rows), sep="\n\n")
    making = _making(arguments, cells)
    write_results(arguments.out, all_claims(found), making.as_results())
    if arguments.write is not None:
        kept = arguments.write.read_text(encoding="utf-8") if arguments.write.exists() else ""
        _, heading, rest = kept.partition(other_labels.HEADING)
        text = f"{page(found)}\n{making.section().markdown()}\n"
        write_whole(arguments.write, other_labels.in_page(text, heading + rest) if heading else text)
    return 0


def _making(arguments: argparse.Namespace, cells: Cells) -> Making:
    return Making(cells={"": list(cells.used.values())}, missing={}, quick=arguments.quick)


def _other_labels(arguments: argparse.Namespace, cells: Cells) -> int:
    """Train on classes and numbers, and write results and the section."""
    plans = [(labels, other_labels.planned(labels, quick=arguments.quick)) for labels in other_labels.SETS]
    jobs = [job for _, rows in plans for plan in rows for job in plan.jobs]
    done = run_jobs(jobs, cells, workers=arguments.workers, say=_say)
    results = dict(zip(map(id, jobs), done, strict=True))
    found = [(labels, [(plan, [results[id(job)] for job in plan.jobs]) for plan in rows]) for labels, rows in plans]
    making = _making(arguments, cells)
    text = f"{other_labels.section(found).rstrip()}\n\n{making.body()}\n"
    print(text)
    write_results(arguments.out, other_labels.claims(found), making.as_results())
    if arguments.write is not None:
        kept = arguments.write.read_text(encoding="utf-8") if arguments.write.exists() else ""
        write_whole(arguments.write, other_labels.in_page(kept, text))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
