"""Before the first step a run says what decides labels and the goal: guarantees, shapes, or a protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from splitvfl.app.checking import check_experiment, check_party
from splitvfl.app.goal_before import said_of_goal
from splitvfl.claims import guarantee_of, promises_of_labels, tightest
from splitvfl.claims.asking import claims_of
from splitvfl.config.sections import HookConfig, parse_config
from splitvfl.exchange.split import Split
from splitvfl.privacy.accounting import MessagesPerUse, PrivacyBudget
from splitvfl.privacy.composition import PrivacyLoss
from tests.app.test_solving import NETWORKED, TEXT
from tests.builders import ACTIVE, linear_trainer, small_trainer

# What the file says, in which task, and what else has to be said for the goal of 0.55.
SETTINGS: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "asymmetric-response", "detection_error": 0.4}, "binary", "use detection_error 0.45"),
    ({"name": "abstaining-response", "detection_error": 0.4}, "binary", "use detection_error 0.48"),
    ({"name": "memoised-response", "epsilon": 1.5}, "binary", "use epsilon 0.2"),
    ({"name": "memoised-response", "flip": 0.2}, "binary", "use flip 0.45"),
    ({"name": "randomised-response", "epsilon": 2.0, "classes": 3}, "multiclass", "use epsilon 0.22"),
    ({"name": "gaussian-targets", "mu": 0.8}, "binary", "use mu 0.17"),
    ({"name": "gaussian-targets", "sigma": 1.0}, "binary", "use sigma 5.7"),
]


def said(defense: HookConfig, *, goal: float, task: str = "binary") -> list[str]:
    made = defense.made("defenses", Path())
    active = small_trainer(("lab",), task=task, defenses=[made]).active
    active.plan_run(epochs=3)
    found = [(defense, defense.found("defenses", Path()))]
    return said_of_goal(active, Split(), goal=goal, epochs=3, account=None, solvable=(), defenses=found)


@pytest.mark.parametrize(("settings", "task", "remedy"), SETTINGS, ids=[row[2] for row in SETTINGS])
def test_a_goal_below_the_guarantee_is_said_with_the_setting_that_meets_it(
    settings: dict[str, Any], task: str, remedy: str
) -> None:
    (line,) = said(HookConfig(**settings), goal=0.55, task=task)
    assert line.startswith(f"{settings['name']}(")
    assert line.endswith(f"for the whole run, and the goal is 0.55: {remedy}.")

    _, key, value = remedy.split()
    better = HookConfig(**{**settings, key: float(value)})
    found = tightest(
        *(guarantee_of(claim, "") for claim in promises_of_labels(claims_of(better.made("defenses", Path()))))
    )
    assert found is not None
    assert 0.53 < found.auc <= 0.55 + 1e-9
    assert said(better, goal=0.55, task=task) == []


def test_releases_of_residues_are_added_up() -> None:
    defense = HookConfig(name="laplace-residue", epsilon=1.0)
    trainer = linear_trainer(exchange=Split(own_part="sent"), defenses=[defense.made("defenses", Path())], audit=False)
    found = [(defense, defense.found("defenses", Path()))]
    (line,) = said_of_goal(
        trainer.active, trainer.exchange, goal=0.6, epochs=10, account=None, solvable=(), defenses=found
    )
    # Ten releases of ε/2 each: 10 · ε/2 = ln(0.6 / 0.4) at ε = 0.0811.
    assert line.endswith("use epsilon 0.081.")


def test_no_setting_is_named_where_none_meets_the_goal() -> None:
    (line,) = said(HookConfig(name="asymmetric-response", detection_error=0.4), goal=0.5001)
    assert line.endswith("no setting of it that was tried meets the goal.")


def test_calculated_noise_that_guarantees_too_little_is_said() -> None:
    stream = MessagesPerUse(ACTIVE, ("lab",), {"label": PrivacyLoss(mu=2.0)}, steps_per_epoch=3)
    account = PrivacyBudget([stream], steps=9, delta=1e-5, relation="label")
    active = small_trainer(("lab",)).active
    (line,) = said_of_goal(active, Split(), goal=0.6, epochs=3, account=account, solvable=(), defenses=())
    assert line.startswith("Calculated noise guarantees an AUC of at most 0.99 for the whole run, and the goal is 0.6")
    assert line.endswith(": use a smaller epsilon.")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            (),
            "Labels are above the goal of 0.6 before step 1: batch of 8 records ≤ 10 features: ",
        ),
        (("train.batch_size=all",), "Excess leakage of labels cannot be measured in this protocol: oracle sends sums"),
        (("defenses=[{name: asymmetric-response, detection_error: 0.4}]", "train.batch_size=all"), ""),
        (
            ("defenses=[{name: asymmetric-response, detection_error: 0.4}]", "goal=0.55"),
            "asymmetric-response(detection_error=0.4) guarantees an AUC of at most 0.60 for the whole run, and the "
            "goal is 0.55: use detection_error 0.45.",
        ),
        (("exchange=split", "attacks=[norm]"), ""),
        (("exchange=one-way", "attacks=[]", "model={name: mlp, bottom: [4]}"), ""),
    ],
)
def test_check_says_it(changes: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    config = parse_config(TEXT, source="x.yaml", overrides=[*changes, "audit=false"])
    lines: list[str] = []
    assert check_experiment(config, tmp_path / "run", tell=lines.append) == []
    found = [line for line in lines if " the goal " in line]
    assert [line for line in found if line.startswith(expected)] == found
    assert bool(found) == bool(expected)


def test_the_label_owner_of_a_networked_run_is_told_too(tmp_path: Path) -> None:
    text = NETWORKED.replace("COLUMNS", '["* error"]').replace("exchange: residue", "exchange: split")
    lines: list[str] = []
    changes = ["defenses=[{name: asymmetric-response, detection_error: 0.4}]", "goal=0.55"]
    config = parse_config(text, source=tmp_path / "run.yaml", overrides=changes)
    assert check_party(config, "clinic", tmp_path / "run", connect_s=None, tell=lines.append) == []
    assert any(line.endswith("and the goal is 0.55: use detection_error 0.45.") for line in lines)
    lines.clear()
    assert check_party(config, "lab", tmp_path / "run", connect_s=None, tell=lines.append) == []
    assert not [line for line in lines if "the goal" in line]
