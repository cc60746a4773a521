"""Which tests are of the second tier: `make test` leaves them out, `make test-all` runs them too.

A test is of the second tier if it is marked ``slow``, or if its file is listed here, which marks all of them. The first
tier is to take four minutes on two cores. No mutation of ``tests/mutations.toml`` is left to the second one alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

FIRST_TIER, SECOND_TIER = "not slow", "slow"

TESTS = Path(__file__).resolve().parent

# Patterns of files beside this one, and why these have no quick form.
SLOW_FILES: Mapping[str, str] = {
    "app/test_estimator_checks.py": "a hundred checks, most of which train",
    "audit/test_every_seed.py": "an audit of each true claim in every seed",
    "pages/test_python_page.py": "every example of the page, one after the other",
    "penalties/test_against_ridge.py": "readers behind each penalty, in several seeds",
    "run/test_*faults.py": "runs that are disturbed, of several processes, and undisturbed ones to compare",
    "scripts/test_bench*.py": "benchmarks, with the commands that they time",
    "scripts/test_better_defense*.py": "reproductions",
    "scripts/test_defense_table.py": "reproductions",
    "scripts/test_fate_quality.py": "reproductions",
    "scripts/test_feature_leak.py": "reproductions",
    "scripts/test_hdp_label_protection.py": "reproductions",
    "scripts/test_readers.py": "reproductions",
    "scripts/test_reproduce*.py": "reproductions",
    "scripts/test_resists.py": "reproductions",
    "scripts/test_statements.py": "reproductions",
    "test_three_edits.py": "copies of the tree, and their checks",
}


@cache
def slow_files() -> Mapping[Path, str]:
    """Return the files whose tests are all of the second tier, with the reason."""
    return {file: reason for pattern, reason in SLOW_FILES.items() for file in TESTS.glob(pattern)}


def has_none_of(tier: str, file: Path) -> bool:
    """Return whether a file of tests need not be imported to know that it has none of a tier.

    Args:
        tier: An expression of marks, as ``pytest -m`` takes it: those of other things than tiers leave no file out.
        file: The file.
    """
    if tier == FIRST_TIER:
        return file in slow_files()
    return tier == SECOND_TIER and file not in slow_files() and "mark.slow(" not in file.read_text(encoding="utf-8")
