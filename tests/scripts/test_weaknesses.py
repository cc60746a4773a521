"""No locked version, and no lower bound, has a weakness that the dated list names and does not accept."""

from __future__ import annotations

import datetime
import doctest
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import scripts.weaknesses
from scripts.lock import CUDA, DEVELOPMENT, NO_PHE, RUNNING, normal
from scripts.weaknesses import (
    LIST,
    LOWER_BOUNDS,
    KnownWeaknesses,
    Weakness,
    findings,
    lower_bounds,
    main,
    places,
    requirements,
    shipped_names,
    used_names,
    versions,
)

PLANTED = Weakness("numpy", [">=0"], "99", "CVE-0000-0001", "planted", "planted")
# Direct dependencies of what tests, checks and documents, and does not run.
DEVELOPS = ("test", "lint", "docs")


@pytest.fixture(scope="module")
def known() -> KnownWeaknesses:
    return KnownWeaknesses.read(LIST.read_text(encoding="utf-8"))


def test_nothing_that_is_locked_or_allowed_has_a_weakness_that_is_not_accepted(
    checkout: Path, known: KnownWeaknesses
) -> None:
    assert findings(known, versions(checkout)) == []


def test_a_planted_weakness_is_found_in_every_file(checkout: Path, known: KnownWeaknesses) -> None:
    lines = findings(replace(known, weaknesses=(PLANTED,)), versions(checkout))

    assert [line.split(":")[0] for line in lines] == [RUNNING, NO_PHE, DEVELOPMENT, "constraints.txt", LOWER_BOUNDS]
    assert all("CVE-0000-0001: planted; fixed in 99" in line for line in lines)


def test_a_planted_weakness_of_cudas_libraries_is_found(checkout: Path, known: KnownWeaknesses) -> None:
    planted = replace(PLANTED, package="triton")

    (line,) = findings(replace(known, weaknesses=(planted,)), versions(checkout))
    assert line.startswith(f"{CUDA}: triton==")


def test_a_lower_bound_is_found_where_locked_versions_are_safe(checkout: Path, known: KnownWeaknesses) -> None:
    found = versions(checkout)
    lowest = found[LOWER_BOUNDS]["starlette"]
    planted = replace(PLANTED, package="starlette", affected=[f"<={lowest}"])

    (line,) = findings(replace(known, weaknesses=(planted,)), found)
    assert line.startswith(f"{LOWER_BOUNDS}: starlette>={lowest} has")


def test_what_is_accepted_still_needs_to_be(checkout: Path, known: KnownWeaknesses) -> None:
    """Where neither a locked version nor a lower bound is affected any more, the entry no longer says accepted."""
    found = versions(checkout)
    for weakness in known.weaknesses:
        assert not weakness.accepted or places(weakness, found), f"{weakness.id}: drop accepted"


def test_names_that_accepting_rests_on_are_not_used(checkout: Path, known: KnownWeaknesses) -> None:
    used = shipped_names(checkout)
    rests_on = {name for weakness in known.weaknesses if weakness.accepted for name in weakness.unused}

    assert rests_on
    assert not rests_on & used
    # The search finds what is used, whatever it was imported as.
    assert {"torch.load", "pyarrow.parquet", "cryptography.x509.verification", "yaml"} <= used


def test_a_name_is_found_in_every_way_to_import_it() -> None:
    for text in (
        "import torch\ntorch.jit.script(f)",
        "import torch as t\nt.jit.script(f)",
        "from torch import jit\njit.script(f)",
        "from torch.jit import script\nscript(f)",
        "import torch.jit",
    ):
        assert "torch.jit" in used_names([text]), text
    assert "torch.jit" not in used_names(["import torch\ntorch.jitter()", "jit = torch"])


def test_tests_that_accepting_rests_on_are_there(checkout: Path, known: KnownWeaknesses) -> None:
    held = [weakness.held_by for weakness in known.weaknesses if weakness.held_by]

    assert held
    for path, _, name in (one.partition("::") for one in held):
        assert f"\ndef {name}(" in (checkout / path).read_text(encoding="utf-8")


def test_every_entry_is_of_a_locked_package_and_agrees_with_itself(checkout: Path, known: KnownWeaknesses) -> None:
    locked = versions(checkout)[DEVELOPMENT]
    for weakness in known.weaknesses:
        assert weakness.package == normal(weakness.package)
        assert weakness.package in locked, f"{weakness.id} is of {weakness.package}, which is not locked: drop it"
        assert weakness.id
        assert weakness.source
        assert weakness.concern
        assert bool(weakness.fixed) or bool(weakness.accepted), f"{weakness.id}: without a fixed release, say accepted"
        assert not weakness.fixed or not weakness.affects(weakness.fixed), weakness.id
        assert weakness.accepted or not (weakness.unused or weakness.held_by), weakness.id
    assert len({(weakness.package, weakness.id) for weakness in known.weaknesses}) == len(known.weaknesses)
    assert isinstance(known.date, datetime.date)


def test_every_direct_dependency_that_runs_was_looked_up(checkout: Path, known: KnownWeaknesses) -> None:
    listed = {weakness.package for weakness in known.weaknesses}
    develops = {
        normal(Requirement(line).name)
        for extra in DEVELOPS
        for line in scripts.weaknesses.project_of(checkout)["project"]["optional-dependencies"][extra]
    }
    runs = {normal(requirement.name) for requirement in requirements(checkout)} - develops | {"dp-accounting"}

    assert not listed & known.none_found
    assert known.none_found <= runs
    assert runs <= listed | known.none_found, "look these up, and add them to scripts/known_weaknesses.toml"


def test_a_dependency_without_one_lower_bound_is_refused() -> None:
    for line in ("numpy", "numpy<3", "numpy==2"):
        with pytest.raises(SystemExit, match=r"numpy.* needs one lower bound, as in numpy>=1\.0"):
            lower_bounds([Requirement(line)])


def test_the_command_ends_with_1_where_something_is_affected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main() == 0
    assert "none not accepted" in capsys.readouterr().out

    planted = tmp_path / "list.toml"
    planted.write_text(
        'date = 2026-01-01\nnone_found = []\n[[weakness]]\npackage = "numpy"\naffected = [">=0"]\nfixed = "99"\n'
        'id = "CVE-0000-0001"\nsource = "planted"\nconcern = "planted"\n',
        encoding="utf-8",
    )
    monkeypatch.setattr(scripts.weaknesses, "LIST", planted)
    assert main() == 1
    assert "1 known weaknesses, as of 2026-01-01: 5 not accepted" in capsys.readouterr().out


def test_the_examples_of_the_script_print_what_they_say() -> None:
    assert doctest.testmod(scripts.weaknesses).failed == 0
