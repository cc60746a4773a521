"""Lists in groups: each name in one of them, where its threat model or its guarantee puts it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import pytest

from splitvfl.config.overview import overview
from splitvfl.config.registry import PluginKind, describe

FIRST, RUN, MESSAGE, NONE, BROKEN = (
    "Recommended",
    "From the papers: guarantee for the whole run",
    "From the papers: guarantee for each message",
    "From the papers: no formal guarantee",
    "Known to be broken, for comparison only",
)


def heading_of(kind: str, name: str) -> str:
    (found,) = [group.heading for group in overview(kind) for row in group.rows if row.name == name]
    return found


@pytest.mark.parametrize("kind", [*get_args(PluginKind), "data"])
def test_each_name_is_in_exactly_one_group(kind: str) -> None:
    groups = overview(kind)

    assert sorted(row.name for group in groups for row in group.rows) == [name for name, _ in describe(kind)]
    assert len({group.heading for group in groups}) == len(groups)
    assert all(group.rows for group in groups)
    assert (groups[0].heading != "") == (kind in ("attacks", "defenses"))


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("norm", "Attacks on labels, by a passive party without known labels"),
        ("direction", "Attacks on labels, by a passive party with known labels"),
        ("model-completion", "Attacks on labels, by a passive party with known labels"),
        ("least-squares", "Attacks on features, by the active party with known weights"),
        ("procrustes", "Attacks on features, by the active party with known weights and records"),
        ("score-inversion", "Attacks on features, by the active party with known weights and records"),
        ("ridge", "Attacks on features, by the active party with known records"),
        ("weight-estimation", "Attacks on features, by the active party with known records"),
        ("unsplit", "Attacks on features, by the active party without known weights or records"),
        ("zero", "Attacks on features, by the active party without known weights or records"),
        ("loss-threshold", "Attacks on membership, by the active party without known records"),
        ("calibrated-loss", "Attacks on membership, by the active party with known records"),
    ],
)
def test_an_attack_is_where_its_threat_model_is(name: str, heading: str) -> None:
    assert heading_of("attacks", name) == heading


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("asymmetric-response", FIRST),
        ("randomised-response", f"{RUN}; acts on labels"),
        ("record-gaussian", f"{MESSAGE}; acts on cut gradients"),
        ("sumkl", BROKEN),
        ("isotropic", BROKEN),
        ("top-k", f"{NONE}; acts on cut gradients"),
        ("gaussian-ir", f"{NONE}; acts on activations"),
        ("rounding", f"{NONE}; acts on scores"),
    ],
)
def test_a_defense_is_where_its_guarantee_is(name: str, heading: str) -> None:
    assert heading_of("defenses", name) == heading


def test_what_is_recommended_comes_first_and_what_is_broken_last() -> None:
    defenses = overview("defenses")
    strength = [group.heading.partition(";")[0] for group in defenses]
    rows = [row for group in defenses for row in group.rows]

    assert list(dict.fromkeys(strength)) == [FIRST, RUN, MESSAGE, NONE, BROKEN]
    assert strength == sorted(strength, key=[FIRST, RUN, MESSAGE, NONE, BROKEN].index)
    assert [row.name for row in rows[:2]] == ["asymmetric-response", "memoised-response"]
    assert all(row.text.startswith("Broken by ") for row in defenses[-1].rows)
    targets = [group.heading.split()[2].rstrip(",") for group in overview("attacks")]
    assert list(dict.fromkeys(targets)) == ["labels", "features", "membership"]
    assert targets == sorted(targets, key=["labels", "features", "membership"].index)


def test_what_cannot_be_imported_is_listed_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    info = tmp_path / "crashpack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crashpack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[splitvfl.defenses]\ncrash = crashpack_code:Clip\nplain-clip = crashpack_code:Plain\n"
    )
    (tmp_path / "crashpack_code.py").write_text(
        'class Plain:\n    """Say nothing."""\n\n'
        "    def __call__(self, gradient, secrets, /):\n        return gradient\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    assert heading_of("defenses", "crash") == "Cannot be used"
    assert heading_of("defenses", "plain-clip") == "Guarantee not stated; acts on cut gradients"
    assert overview("defenses")[-1].heading == "Cannot be used"
    assert "cannot be imported" in overview("defenses")[-1].rows[0].text
