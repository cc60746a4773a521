"""The table of what hooks see, in which seat and when: compared with hooks that were called."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.app.trainer import Trainer
from splitvfl.errors import HookError, PrivacyError
from splitvfl.hooks import At, Held, Secrets, View, ViewField
from splitvfl.models import MLP, Sampled
from splitvfl.party.party import PassiveParty
from tests.builders import WIDTH, active_party, linear_trainer, party_data, small_trainer

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("few_rounds")

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hooks.md"
FIELDS = tuple(name for name in vars(View) if isinstance(vars(View)[name], ViewField))
SECRETS = ("ids", "labels", "label_gradients")


def drawing_trainer(**settings: Any) -> Trainer:
    """A training whose passive party sends draws."""
    bottom = Sampled(MLP(5, [2 * WIDTH], final_activation=False))
    passive = PassiveParty(party_data("telecom", width=5), bottom)
    return Trainer(active_party(), {"telecom": passive}, batch_size=16, **settings)


# Which trainings there are: of two classes and of three, with linear models and with others.
MODELS: dict[str, tuple[Callable[..., Trainer], ...]] = {
    "linear": (
        partial(linear_trainer, outputs=1),
        partial(linear_trainer, outputs=3),
        partial(linear_trainer, outputs=1, features=1),
    ),
    "others": (partial(small_trainer, task="binary"), partial(small_trainer, task="multiclass"), drawing_trainer),
}


class Look:
    """An attack that reads one field, and tells of it."""

    def __init__(self, field: str, found: Callable[[View], set[str]], **attributes: Any) -> None:
        self.name, self.needs, self._field, self._found = f"look-{field}", frozenset({field}), field, found
        self.tasks, self.known_share, self.known_rows = ("binary", "multiclass"), 0.2, 4
        for name, value in attributes.items():
            setattr(self, name, value)

    def __deepcopy__(self, memo: Any) -> Look:
        return self  # what it finds is found once

    def __call__(self, view: View, /) -> Tensor:
        if self._field in view.fields:
            getattr(view, self._field)
            self._found(view).add(self._field)
        columns = {"features": (getattr(self, "width", 3),)}.get(getattr(self, "target", "labels"), ())
        return torch.zeros(len(view.ids), *columns, dtype=torch.float64)


class Pass:
    """A defense that changes nothing, and tells what it could have read."""

    def __init__(self, crossing: str, found: set[str]) -> None:
        self.name, self.crossing, self._found = f"pass-{crossing}", crossing, found
        self.needs_label_gradients = crossing == "gradient"

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        for name in SECRETS:
            try:
                getattr(secrets, name)
            except PrivacyError:
                continue
            self._found.add(name)
        return message


class Add:
    """A penalty of nothing, which tells what it could have read."""

    name = "add"

    def __init__(self, found: set[str]) -> None:
        self._found = found

    def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
        self._found.update(name for name in ("columns", "categories", "ids") if isinstance(getattr(held, name), Tensor))
        if held.leaves and held.distribution.mean.shape == activation.shape:
            self._found.add("distribution")
        return activation.sum() * 0.0


def looked(make: Callable[..., Trainer], width: int) -> dict[tuple[str, str, str], set[str]]:
    """What was read in a training, by moment, seat and kind of hook."""
    found: dict[tuple[str, str, str], set[str]] = {}

    def row(*key: str) -> set[str]:
        return found.setdefault((key[0], key[1], key[2]), set())

    def always(*key: str) -> Callable[[View], set[str]]:
        found = row(*key)
        return lambda view: found

    def by_records(view: View) -> set[str]:
        """Test records are sent in evaluations and predictions."""
        tested = bool(torch.isin(view.ids, trainer.active.data.test.ids).all())
        moment = ("every step of training", "every prediction" if predicting else "every evaluation")[tested]
        return row(moment, "label party", "attack on columns")

    predicting = False
    attacks: list[Any] = []
    for field in FIELDS:
        attacks.append(Look(field, always("every step of training", "passive party", "attack on labels")))
        late = always("after training", "passive party", "attack on labels")
        attacks.append(Look(field, late, when="after-training"))
        seen = always("after training", "label party", "attack on membership")
        attacks.append(Look(field, seen, target="members", known_share=0.1))
        received = {"received_activation", field}
        attacks.append(Look(field, by_records, target="features", needs=frozenset(received), width=width))
        if field == "partner_steps":
            told = always("all steps, once after training", "label party", "attack on columns")
            attacks.append(Look(field, told, target="features", width=width))
        elif field not in ("received_activation", "auxiliary", "earlier_auxiliary"):
            told = always("predictions, once after training", "label party", "attack on columns")
            attacks.append(Look(field, told, target="features", width=width))
            attacks.append(Look(field, told, target="features", needs=frozenset({"whole_model", field}), width=width))
    defenses: list[Any] = [
        Pass("gradient", row("every step of training", "label party", "defense of the gradient")),
        Pass("labels", row("every step of training", "label party", "defense of labels")),
        Pass("scores", row("every prediction", "who computes scores", "defense of scores")),
    ]
    for moment, phase in (
        ("every step of training", "training"),
        ("every evaluation", "evaluation"),
        ("every prediction", "prediction"),
    ):
        own = row(moment, "passive party", "defense of the activation")
        defenses.append(At(Pass("activation", own), phase))  # type: ignore[arg-type]
    trainer = make(attacks=attacks, defenses=defenses)
    trainer.passives["telecom"].penalties.attach(Add(row("every step of training", "passive party", "penalty")))
    trainer.fit(2)
    trainer.feature_leaks()
    predicting = True
    trainer.predict()
    return found


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[tuple[str, str, str], set[str]]]:
    found: dict[str, dict[tuple[str, str, str], set[str]]] = {}
    for kind, makers in MODELS.items():
        found[kind] = {}
        for make in makers:
            width = 5 if kind == "others" else make.keywords.get("features", 3)  # type: ignore[attr-defined]
            for key, fields in looked(make, width).items():
                found[kind].setdefault(key, set()).update(fields)
    return found


def table() -> dict[tuple[str, str, str], list[str]]:
    """The page's rows: what each hook reads, and behind it what it may change."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.*?) \| (.+?) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    found = {(when, seat, kind): [fields, changes] for when, seat, kind, fields, changes in rows[1:]}
    assert len(found) == len(rows) - 1
    return {key: value for key, value in found.items() if not key[0].startswith("---")}


@pytest.mark.slow(reason="six trainings with every kind of hook")
def test_the_table_says_what_every_hook_can_read(seen: dict[str, dict[tuple[str, str, str], set[str]]]) -> None:
    rows = table()
    assert rows.keys() == seen["linear"].keys() | seen["others"].keys()
    for key, (fields, _) in rows.items():
        said = dict(re.findall(r"`(\w+)`(\*?)", fields))
        others = seen["others"].get(key, set())
        assert set(said) == seen["linear"][key] | others, key
        assert {name for name, star in said.items() if star} == seen["linear"][key] - others, key


def test_attacks_change_nothing_and_a_defense_its_own_message() -> None:
    """The first is held by the contract of every attack; here, that the page says so."""
    for (_, _, kind), (_, changes) in table().items():
        expected = "its own gradient" if kind == "penalty" else kind.removeprefix("defense of ")
        assert changes == ("nothing" if kind.startswith("attack on ") else expected)


def on_the_page(name: str) -> Any:
    """The class of this name in the page's examples."""
    (block,) = (one for one in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL) if name in one)
    found: dict[str, Any] = {}
    exec(block, found)
    return found[name]


def test_the_defense_that_clips_and_adds_noise_keeps_its_claims() -> None:
    defense = on_the_page("ClippedNoise")
    small_trainer(defenses=[defense(bound=0.5, sigma=0.1)]).fit(1)

    class Longer(defense):  # type: ignore[misc]
        def claims(self) -> Any:
            return (replace(super().claims()[0], bound=0.9 * self.bound),)

    with pytest.raises(HookError, match="would add noise to a row"):
        small_trainer(defenses=[Longer(bound=0.5, sigma=0.1)]).fit(1)
