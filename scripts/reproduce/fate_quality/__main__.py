"""FATE's quality rule: is a vertical logistic regression as good as scikit-learn's, within one per cent?

``python -m scripts.reproduce.fate_quality [--quick] --out DIR [--write docs/results/fate-quality.md]`` trains on breast
cancer, and on credit default where its file is there, in the clear and under encryption, and writes
``DIR/results.json``. In the clear it takes seconds; under keys of 2048 bits breast cancer takes a minute, and credit
default, of 30,000 records, two thirds of an hour.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from scripts.reproduce.fate_quality.study import (
    AIM,
    TOLERANCE,
    Problem,
    Quality,
    breast_cancer,
    credit_default,
    reference,
    train,
)
from scripts.reproduce.shared.claims import Claim, markdown_table, write_results, write_whole
from splitvfl.data.sets import DATA_SETS
from splitvfl.errors import DataError, SplitVFLError
from splitvfl.exchange import Oracle, Residue, Split
from splitvfl.exchange.base import Approximation, Exchange
from splitvfl.exchange.paillier import Encryption, InsecureEncryption

STEPS = 150
QUICK_STEPS = 12
KEY_BITS = 2048
QUICK_KEY_BITS = 512
QUICK_SAMPLE = 64
"""Records that are trained on under encryption."""


@dataclass(frozen=True)
class Run:
    """One comparison.

    Attributes:
        label: Data and exchange.
        ours: What was trained here.
        theirs: scikit-learn's.
    """

    label: str
    ours: Quality
    theirs: Quality

    def claim(self) -> Claim:
        """Return the largest relative difference, beside the tolerance."""
        apart = self.ours.apart(self.theirs)
        worst = max(apart, key=lambda name: apart[name])
        largest = apart[worst]
        return Claim(
            claim=f"{self.label}: relative difference to scikit-learn of AUC, accuracy, recall, precision and KS",
            published=TOLERANCE,
            ours=largest,
            interval=None,
            seeds=1,
            verdict="reproduces" if largest <= TOLERANCE else "does not",
            why=f"largest: {worst}; AUC {apart['auc']:.6f}; our aim of {AIM} {'met' if largest <= AIM else 'missed'}",
        )


def compared(problems: Sequence[Problem], *, quick: bool, key_bits: int, say: Callable[[str], None]) -> list[Run]:
    """Train everything and return the comparisons."""
    steps = QUICK_STEPS if quick else STEPS
    short = key_bits < KEY_BITS
    encryption = InsecureEncryption(key_bits=key_bits) if short else Encryption(key_bits=key_bits)
    found = []

    def compare(label: str, problem: Problem, exchange: Exchange, *, approximation: Approximation = "exact") -> None:
        label = f"{problem.name}, {label}"
        trained = train(problem, exchange, steps=steps, approximation=approximation)
        found.append(Run(label, trained, reference(problem)))
        say(f"{label}: {max(found[-1].ours.apart(found[-1].theirs).values()):.6f} at most")

    for problem in problems:
        taken = problem.some(QUICK_SAMPLE) if quick else problem
        count = len(taken.labels)
        compare("in the clear (split)", problem, Split())
        under = f"encrypted (residue, keys of {key_bits} bits), {count:,} records"
        compare(under, taken, Residue(rows=count, encryption=encryption))
        # Encryption changes no figure (previous row), so that what the sigmoid's approximation does is seen without.
        compare(
            "Taylor's sigmoid (as taylor computes it)", problem, Oracle(approximation="taylor"), approximation="taylor"
        )
    return found


def table(runs: Sequence[Run]) -> str:
    """Return the comparisons as a Markdown table: ours, and the relative difference to scikit-learn."""
    names = tuple(vars(runs[0].ours))
    rows = [
        (
            run.label,
            *(f"{getattr(run.ours, name):.4f} ({run.ours.apart(run.theirs)[name]:.5f})" for name in names),
            "yes" if max(run.ours.apart(run.theirs).values()) <= TOLERANCE else "no",
        )
        for run in runs
    ]
    return markdown_table(("data, exchange", *names, f"all within {TOLERANCE}"), rows)


def page(runs: Sequence[Run], missing: Mapping[str, str]) -> str:
    """Return the page of the documentation, with what is missing behind the table."""
    template = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    absent = [f"\n\n**Without rows of {title}**: there was no `{name}`." for title, name in missing.items()]
    return template.replace("<!-- table -->", table(runs) + "".join(absent))


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print the table, and write results and page; return 0 when the runs themselves worked."""
    parser = argparse.ArgumentParser(prog="python -m scripts.reproduce.fate_quality", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, short keys: shows that it works")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of results.json")
    parser.add_argument(
        "--key-bits",
        type=int,
        help=f"length of keys (default: {KEY_BITS}, quick: {QUICK_KEY_BITS}); shorter ones are insecure",
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also write the page of the documentation here")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        key_bits = arguments.key_bits or (QUICK_KEY_BITS if arguments.quick else KEY_BITS)
        problems, missing = _problems(say)
        runs = compared(problems, quick=arguments.quick, key_bits=key_bits, say=say)
    except SplitVFLError as error:
        print(f"fate_quality: {error}", file=sys.stderr)
        return 2
    print(table(runs))
    write_results(arguments.out, [run.claim() for run in runs], {"missing": missing})
    if arguments.write is not None:
        write_whole(arguments.write, page(runs, missing))
    return 0


def _problems(say: Callable[[str], None]) -> tuple[list[Problem], dict[str, str]]:
    """Return the problems whose data are there, and by its title the file that is not."""
    try:
        return [breast_cancer(), credit_default()], {}
    except DataError as error:
        say(f"credit default is left out: {error}")
        return [breast_cancer()], {"credit default": DATA_SETS["credit-default"].files[0]}


if __name__ == "__main__":
    sys.exit(main())
