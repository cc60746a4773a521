"""The table of what each defense claims in docs/threat-model.md, written from the typed claims of the defenses.

Run ``python -m scripts.claims_table`` after a change of a claim or of its words; a test compares.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from splitvfl.claims import Condition, Told, told
from splitvfl.config.describing import claims_of_example
from splitvfl.config.registry import built_in

PAGE = Path(__file__).resolve().parent.parent / "docs" / "threat-model.md"
BEGIN = "<!-- what defenses claim, written by `python -m scripts.claims_table`: do not edit by hand -->"
END = "<!-- end of what defenses claim -->"


def table() -> str:
    """Return a row for each defense that can be named, behind what several promises rest on, and what none covers."""
    found = [(example, told(claims)) for claims, example in map(claims_of_example, sorted(built_in("defenses")))]
    promising = [said for _, said in found if said.mechanisms]
    common = [line for line in promising[0].not_covered if all(line in said.not_covered for said in promising)]
    counts = Counter(condition for said in promising for condition in said.conditions)
    numbers = {condition: place for place, condition in enumerate((one for one in counts if counts[one] > 1), start=1)}
    head = ["| defense, as its example sets it | claim | rests on | does not cover |", "| --- | --- | --- | --- |"]
    return "\n".join(
        [
            "Several promises rest on the same, to which the table refers by number:",
            "",
            *(f"{place}. {_in_full(condition)}" for condition, place in numbers.items()),
            "",
            "No promise covers:",
            "",
            *(f"- {line}" for line in common),
            "",
            *head,
            *(_row(example, said, numbers, common) for example, said in found),
        ]
    )


def _row(example: str, said: Told, numbers: Mapping[Condition, int], common: Sequence[str]) -> str:
    setting = example.removeprefix("defenses: [").removesuffix("]")
    numbered = ", ".join(str(numbers[condition]) for condition in said.conditions if condition in numbers)
    own = [_in_full(condition) for condition in said.conditions if condition not in numbers]
    cells = [
        f"`{setting}`",
        " ".join(said.promised),
        " ".join(filter(None, [*own, numbered])),
        " ".join(line for line in said.not_covered if line not in common),
    ]
    return f"| {' | '.join(cell or '—' for cell in cells)} |"


def _in_full(condition: Condition) -> str:
    return f"{condition.needed} {condition.checked}"


def filled(page: str) -> str:
    """Return a page with the table between the two marks.

    Raises:
        ValueError: If there are no such marks.
    """
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"expected the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table into the page."""
    parser = argparse.ArgumentParser(prog="python -m scripts.claims_table", description=main.__doc__)
    parser.add_argument("--page", type=Path, default=PAGE, help="which page; default: the threat model")
    page = parser.parse_args(argv).page
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
