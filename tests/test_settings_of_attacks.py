"""Every argument of an attack is used: two values, two estimates, or an error.

As in ``test_settings_are_used.py`` the arguments come from the constructors: a new one without a row fails here. Views
are those of ``test_contract.py``; what the harness reads of an attack is tried in runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.config.registry import arguments_of, built_in
from splitvfl.errors import SplitVFLError
from splitvfl.hooks import Attack, Auxiliary, View, call_attack, moment_of, target_of
from splitvfl.run.feature_seats import feature_leaks
from splitvfl.run.trainer import Trainer
from tests.builders import linear_trainer, random, small_trainer
from tests.test_contract import ROWS, final_view, ids_of, labels_of, prediction_view, training_view

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("quick_own_models")

Pair = tuple[dict[str, Any], dict[str, Any]]

E1: dict[str, Any] = {"epsilon": 1.0}
M: dict[str, Any] = {"epsilon": 5.0, "b1": 0.5, "b2": 1.0}
FEW: dict[str, Any] = {"steps": 2}
SEARCH: dict[str, Any] = {"most_programs": 2, "most_combinations": 0}
SECRET: dict[str, Any] = {"epsilon": 1.0, "share": 0.3}
NOISE: dict[str, Any] = {"scheme": 1, "power": 0.5}
KNOWN: dict[str, Any] = {"known_rows": 24}
RANDOM: dict[str, Any] = {"start": "random", "steps": 3}
ATTACKS: dict[tuple[str, str], Pair] = {
    ("additive-llr", "epsilon"): (E1, {"epsilon": 2.0}),
    ("additive-llr", "shift"): (E1, {**E1, "shift": 1.0}),
    ("black-box-feature", "case"): ({}, {"case": 2}),
    ("black-box-feature", "mean"): ({"case": "mixed"}, {"case": "mixed", "mean": 0.9}),
    ("component", "of"): ({}, {"of": "activation"}),
    ("discrete-search", "most_combinations"): ({"most_programs": 2}, SEARCH),
    ("discrete-search", "time_limit_s"): (SEARCH, {**SEARCH, "time_limit_s": 0.0}),
    ("discrete-search", "most_programs"): (SEARCH, {**SEARCH, "most_programs": 1}),
    ("discrete-search", "most_candidates"): (SEARCH, {**SEARCH, "most_candidates": 1}),
    ("generative-regression", "steps"): (FEW, {"steps": 3}),
    ("generative-regression", "hidden"): (FEW, {**FEW, "hidden": 3}),
    ("generative-regression", "taught"): (FEW, {**FEW, "taught": 3.0}),
    ("generative-regression", "seed"): (FEW, {**FEW, "seed": 1}),
    ("gradient-classifier", "ridge"): ({}, {"ridge": 0.1}),
    ("gradient-classifier", "memory"): ({}, {"memory": 3}),
    ("gradient-inversion", "start"): (FEW, {**FEW, "start": 0.1}),
    ("gradient-inversion", "loss"): (FEW, {**FEW, "loss": "kl"}),
    ("gradient-inversion", "seed"): (RANDOM, {**RANDOM, "seed": 1}),
    ("gradient-inversion", "steps"): (FEW, {"steps": 3}),
    ("inverse-network", "steps"): ({}, {"steps": 20}),
    ("inverse-network", "seed"): ({}, {"seed": 1}),
    ("label-sum", "every_step"): ({}, {"every_step": True}),
    ("label-sum", "approximation"): ({"every_step": True}, {"every_step": True, "approximation": "taylor"}),
    ("label-sum", "gradient_error"): ({}, {"gradient_error": 10.0}),
    ("label-sum", "fallback"): ({}, {"fallback": True}),
    ("model-completion", "steps"): ({}, {"steps": 2}),
    ("model-completion", "lr"): ({}, {"lr": 0.1}),
    ("model-completion", "l2"): ({}, {"l2": 1.0}),
    ("multiplicative-llr", "epsilon"): (M, {**M, "epsilon": 1.0}),
    ("multiplicative-llr", "b1"): (M, {**M, "b1": 0.25}),
    ("multiplicative-llr", "b2"): (M, {**M, "b2": 2.0}),
    ("multiplicative-llr", "mode"): (M, {**M, "mode": "centred_at_zero"}),
    ("multiplicative-llr", "shift"): (M, {**M, "shift": 1.0}),
    ("noise-subtraction", "scheme"): (NOISE, {**NOISE, "scheme": 2}),
    ("noise-subtraction", "power"): (NOISE, {**NOISE, "power": 1.0}),
    ("noise-subtraction", "direction"): (NOISE, {**NOISE, "direction": (1.0, 0.0, -1.0)}),
    ("procrustes", "shifted"): (KNOWN, {**KNOWN, "shifted": False}),
    ("procrustes", "then"): (KNOWN, {**KNOWN, "then": "half"}),
    ("pseudo-client", "loss"): (FEW, {**FEW, "loss": "adversary"}),
    ("pseudo-client", "hidden"): (FEW, {**FEW, "hidden": 3}),
    ("pseudo-client", "memory"): (FEW, {**FEW, "memory": 3}),
    ("pseudo-client", "steps"): (FEW, {"steps": 3}),
    ("pseudo-client", "seed"): (FEW, {**FEW, "seed": 1}),
    ("random-guess", "seed"): ({}, {"seed": 1}),
    ("residue-solving", "underdetermined"): ({}, {"underdetermined": False}),
    ("score-inversion", "steps"): ({}, {"steps": 1}),
    ("secret-batch-likelihood", "epsilon"): (SECRET, {**SECRET, "epsilon": 3.0}),
    ("secret-batch-likelihood", "share"): (SECRET, {**SECRET, "share": 0.1}),
    ("secret-batch-likelihood", "approximation"): (SECRET, {**SECRET, "approximation": "taylor"}),
    ("secret-batch-likelihood", "flip"): (SECRET, {**SECRET, "flip": 0.2}),
    ("sparse-residues", "least_used"): ({}, {"least_used": 20}),
    ("sparse-residues", "predictions_known"): ({"time_limit": 0.05}, {"time_limit": 0.05, "predictions_known": True}),
    ("stacked-epochs", "approximation"): ({}, {"approximation": "taylor"}),
    ("stacked-epochs", "damping"): ({}, {"damping": 10.0}),
    ("stacked-ridge", "epochs"): ({}, {"epochs": 1}),
    ("stacked-ridge", "memory"): ({}, {"memory": 0}),
    ("suspected-flip", "belief"): ({"belief": 0.5}, {"belief": 0.1}),
    ("suspected-flip", "then"): ({"belief": 0.1}, {"belief": 0.1, "then": "half"}),
    ("unsplit", "rounds"): ({"rounds": 1}, {"rounds": 2}),
    ("unsplit", "steps"): (FEW, {"steps": 3}),
    ("weight-estimation", "then"): (KNOWN, {**KNOWN, "then": "half"}),
    ("white-box-inversion", "steps"): ({}, {"steps": 1}),
}
SHARE: dict[str, Any] = {"known_share": 0.4}
# What shows in a run alone, or is read by what runs the attack.
OF_RUNS: dict[tuple[str, str], Pair] = {
    **{
        (name, "known_share"): ({"known_share": 0.2, **FEW}, {"known_share": 0.4, **FEW})
        for name in (
            "generative-regression",
            "inverse-network",
            "pseudo-client",
            "score-inversion",
            "white-box-inversion",
        )
    },
    **{
        (name, "known_share"): ({"known_share": 0.2}, {"known_share": 0.4})
        for name in ("calibrated-loss", "ridge", "stacked-ridge")
    },
    ("inverse-network", "memory"): (SHARE, {**SHARE, "memory": 0}),
    ("ridge", "memory"): (SHARE, {**SHARE, "memory": 0}),
    ("pseudo-client", "top_weight"): (FEW, {**FEW, "top_weight": 5.0}),
    ("unsplit", "records"): ({**FEW, "rounds": 1}, {**FEW, "rounds": 1, "records": 4}),
    ("white-box-inversion", "records"): ({"known_share": 0.2, **FEW}, {"known_share": 0.2, **FEW, "records": 4}),
    ("procrustes", "known_rows"): ({"known_rows": 8}, {"known_rows": 12}),
    ("weight-estimation", "known_rows"): ({"known_rows": 8}, {"known_rows": 12}),
}
NO_RESULT: dict[tuple[str, str], str] = {
    ("sparse-residues", "time_limit"): "how long it may take: what it finds then depends on the machine",
    ("ridge", "sampled"): "whether it is called with all messages where these are large, which no small run has: "
    "tests/run/test_column_seats.py",
}


def test_every_argument_has_a_row() -> None:
    expected = {(name, one) for name, found in built_in("attacks").items() for one in arguments_of(found)}
    assert {*ATTACKS, *OF_RUNS, *NO_RESULT} == expected


def test_rows_differ_in_their_argument() -> None:
    for (name, argument), (first, second) in {**ATTACKS, **OF_RUNS}.items():
        assert {**first, argument: second[argument]} == second, (name, argument)
        assert first.get(argument, ...) != second[argument], (name, argument)


def linear_view(step: int, *, columns: int = 4, used: int = ROWS) -> View:
    """Logistic regression at weights that are zero in the first step: what a party with one logit holds and gets.

    ``used``: so many records are, and the others count as if they were not there.
    """
    rows = torch.randn(ROWS, columns, generator=random(1), dtype=torch.float64)
    logits = step * rows @ torch.linspace(-1.0, 1.0, columns, dtype=torch.float64)
    residues = (logits.sigmoid() - labels_of().double()) / used * (torch.arange(ROWS) < used)
    return View(
        party="telecom",
        step=step,
        ids=ids_of(),
        columns=rows,
        activation=logits[:, None],
        logits=logits[:, None],
        gradient=residues[:, None],
        aggregated_gradient=(rows.T @ residues)[:, None],
        weights={"weight": torch.zeros(1, columns, dtype=torch.float64)},
    )


def bent_view() -> View:
    """A message of which most records are known, and whose one output no straight line turns round."""
    columns = torch.randn(80, 1, generator=random(3), dtype=torch.float64)
    sent = torch.exp(2.0 * columns)
    known = Auxiliary(sent[:60], columns[:60], torch.arange(60))
    return View(party="bank", step=0, ids=torch.arange(80), received_activation=sent, auxiliary=known)


LINEAR = (
    "additive-llr",
    "label-sum",
    "multiplicative-llr",
    "residue-solving",
    "secret-batch-likelihood",
    "stacked-epochs",
)


def views_of(attack: Attack, name: str) -> list[View]:
    if name == "sparse-residues":
        return [linear_view(step, columns=12, used=3) for step in (1, 2)]
    if name == "inverse-network":
        return [bent_view() for _ in range(6)]
    if name in LINEAR:
        return [linear_view(step) for step in range(3)]
    if moment_of(attack) == "after-training":
        return [final_view(4)]
    if target_of(attack) == "labels":
        return [training_view(4, seed=seed) for seed in range(3)]
    return [prediction_view(1 if name == "black-box-feature" else 6) for _ in range(2)]


def estimates(name: str, options: Mapping[str, Any]) -> list[Any]:
    """What an attack answers to a few views, one after the other, and what it says of itself."""
    attack = built_in("attacks")[name](**options)
    found = [call_attack(attack, view) for view in views_of(attack, name)]
    return [*found, getattr(attack, "note", "")]


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(one.nan_to_num(nan=1e30), other.nan_to_num(nan=1e30))
        if isinstance(one, Tensor) and isinstance(other, Tensor)
        else one == other
        for one, other in zip(left, right, strict=True)
    )


# What a run of some arguments ends with, and another of the same: most rows of an attack have the same first ones.
_ran_twice: dict[str, list[Any]] = {}


def differ(run: Callable[[str, Mapping[str, Any]], list[Any]], name: str, pair: Pair) -> None:
    key = repr((run, name, pair[0]))
    if key not in _ran_twice:
        once, again = run(name, pair[0]), run(name, pair[0])
        assert same(once, again), "what differs is to be due to the argument"
        _ran_twice[key] = once
    first = _ran_twice[key]
    try:
        second = run(name, pair[1])
    except SplitVFLError:
        return
    assert not same(first, second)


@pytest.mark.filterwarnings("ignore:.* records had not come to rest after:RuntimeWarning")
@pytest.mark.parametrize(("name", "argument"), ATTACKS)
def test_two_values_of_an_attack_give_two_estimates(name: str, argument: str) -> None:
    differ(estimates, name, ATTACKS[name, argument])


def read_in_a_run(name: str, options: Mapping[str, Any]) -> list[Any]:
    """What an attack answers in a run of two epochs, after it, or on its predictions."""
    made, answers = built_in("attacks")[name], list[Any]()

    def answering(self: Any, view: View, /) -> Tensor:
        answer: Tensor = made.__call__(self, view)
        answers.append(answer)
        return answer

    attack = type(made.__name__, (made,), {"__call__": answering})(**options)
    of_equations = name in ("procrustes", "weight-estimation")
    sizes = {"train": 60, "test": 60}
    trainer: Trainer
    if of_equations:
        trainer = linear_trainer(audit=False)
        trainer.fit(1)
        feature_leaks([attack], trainer.active, trainer.passives, trainer.unavailable)
    else:
        trainer = small_trainer(sizes=sizes, attacks=[attack], audit=False, batch_size=30)
        trainer.fit(1)
    assert answers, "it was called"
    return answers


@pytest.mark.parametrize(("name", "argument"), OF_RUNS)
def test_two_values_of_what_a_run_reads_of_an_attack_give_two_estimates(name: str, argument: str) -> None:
    differ(read_in_a_run, name, OF_RUNS[name, argument])
