"""No attack can reach labels or another party's columns from what it is given; planted ones are found."""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from splitvfl.app.trainer import Trainer
from splitvfl.attacks import DirectionAttack
from splitvfl.cut.split_model import SplitModel
from splitvfl.defenses import MemoisedResponse
from splitvfl.hooks import Secrets, View
from splitvfl.leakage import after_training
from splitvfl.models import Linear
from tests.builders import (
    ACTIVE,
    WIDTH,
    active_party,
    generator,
    linear_trainer,
    passive_party,
    small_trainer,
    take_step,
)
from tests.walking import reachable, reveals

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("few_rounds")

ROWS = 24  # two to the power of 24 patterns: none of them turns up by chance


class Spy:
    """Walks all that its view leads to, while the step is still under way."""

    def __init__(
        self,
        needs: set[str],
        secrets_of: Callable[[View], dict[str, Tensor]],
        target: str = "labels",
        when: str = "every-step",
    ) -> None:
        self.needs = frozenset(needs)
        self.target = target
        self.when = when
        self.found: list[str] = []
        self.objects = 0
        self._secrets_of = secrets_of

    def __deepcopy__(self, _: Any) -> Spy:
        return self  # the trainer's copies report here

    def __call__(self, view: View, /) -> Tensor:
        self.objects += len(list(reachable(view)))
        self.found += [name for name, secret in self._secrets_of(view).items() if reveals(view, secret)]
        rows = view.ids.shape[0]
        return torch.zeros(rows) if self.target == "labels" else torch.zeros(rows, 1)


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Columns of two parties, labels and ids, each in memory of its own."""
    random = generator("threat model")
    labels = (torch.rand(ROWS, generator=random) < 0.5).float()
    return (
        torch.randn(ROWS, 5, generator=random),
        torch.randn(ROWS, 3, generator=random),
        labels,
        7 * torch.arange(ROWS),
    )


def run_split_model(spy: Spy, *, attach: Callable[[SplitModel, Spy], Any], linear: bool = False) -> None:
    own, others, labels, ids = batch()
    bottom: nn.Module = Linear(5, WIDTH) if linear else nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, WIDTH))
    model = SplitModel({"telecom": bottom, "shop": nn.Linear(3, WIDTH)}, nn.Linear(2 * WIDTH, 1))
    attach(model, spy)
    outputs = model(own, others, labels=labels, ids=ids)
    functional.binary_cross_entropy_with_logits(outputs[:, 0], model.targets(labels, ids=ids)).backward()
    assert spy.objects > 3


def secrets_of_split_model(_: View) -> dict[str, Tensor]:
    _, others, labels, _ = batch()
    return {"labels": labels, "others": others, "column of others": others[:, 1]}


@pytest.mark.parametrize(
    "needs", [{"gradient"}, {"gradient", "columns", "weights", "known_positives", "known_negatives"}]
)
def test_a_view_at_a_cut_leads_to_no_secret(needs: set[str]) -> None:
    spy = Spy(needs, secrets_of_split_model)
    run_split_model(spy, attach=lambda model, spy: model.cuts["telecom"].watch(spy))
    assert spy.found == []


def test_a_view_at_a_linear_cut_leads_to_no_secret() -> None:
    spy = Spy({"aggregated_gradient", "columns", "weights"}, secrets_of_split_model)
    run_split_model(spy, attach=lambda model, spy: model.cuts["telecom"].watch(spy), linear=True)
    assert spy.found == []


def test_a_view_of_an_observed_layer_leads_to_no_secret() -> None:
    spy = Spy({"gradient", "known_positives"}, secrets_of_split_model)
    run_split_model(spy, attach=lambda model, spy: model.observe(model.bottoms["telecom"][1], spy))
    assert spy.found == []


def test_label_defenses_do_not_open_a_way() -> None:
    def attach(model: SplitModel, spy: Spy) -> None:
        model.defend(MemoisedResponse(flip=0.1))
        model.cuts["telecom"].watch(spy)

    spy = Spy({"gradient", "columns", "weights"}, secrets_of_split_model)
    run_split_model(spy, attach=attach)
    assert spy.found == []


def test_the_spy_finds_its_own_columns_so_it_does_look() -> None:
    spy = Spy({"gradient", "columns"}, lambda _: {"own": batch()[0]})
    run_split_model(spy, attach=lambda model, spy: model.cuts["telecom"].watch(spy))
    assert spy.found == ["own"]


def test_the_spy_finds_labels_that_a_careless_caller_left_in_the_ids_memory() -> None:
    own, others, labels, ids = batch()
    table = torch.stack([ids, labels.long()], dim=1)
    model = SplitModel(nn.Linear(5, WIDTH), nn.Linear(WIDTH, 1))
    spy = Spy({"gradient"}, lambda _: {"labels": labels, "others": others})
    with model.cut.watch(spy):
        outputs = model(own, labels=labels, ids=table[:, 0])
        functional.binary_cross_entropy_with_logits(outputs[:, 0], labels).backward()
    assert spy.found == ["labels"]


def secrets_of_trainer(trainer: Trainer, party: str) -> Callable[[View], dict[str, Tensor]]:
    """All labels, the batch's labels, and the others' columns, all and of the batch."""
    train = trainer.active.data.train
    assert train.labels is not None
    held = {name: other.data.train.columns.numeric for name, other in trainer.passives.items() if name != party}
    held[ACTIVE] = train.columns.numeric

    def secrets(view: View) -> dict[str, Tensor]:
        rows = torch.tensor([train.ids.tolist().index(number) for number in view.ids.tolist()])
        assert train.labels is not None
        found = {"labels": train.labels, "batch labels": train.labels[rows]}
        for name, columns in held.items():
            found |= {
                f"columns of {name}": columns,
                f"batch of {name}": columns[rows],
                f"one of {name}": columns[rows, 0],
            }
        return found

    return secrets


@pytest.mark.parametrize("defenses", [[], [MemoisedResponse(flip=0.2)]], ids=["undefended", "memoised"])
def test_a_view_in_a_passive_partys_seat_leads_to_no_secret(defenses: list[Any]) -> None:
    names = ("telecom", "shop")
    passives = {name: passive_party(name) for name in names}
    active = active_party(2)
    holder: list[Trainer] = []
    everything = {"gradient", "columns", "weights", "known_positives", "known_negatives"}
    spy = Spy(everything, lambda view: secrets_of_trainer(holder[0], view.party)(view))
    trainer = Trainer(active, passives, attacks=[spy], defenses=defenses, batch_size=ROWS)
    holder.append(trainer)
    layer = Spy({"gradient"}, lambda view: secrets_of_trainer(trainer, view.party)(view))
    trainer.observe("shop", "layers.1", layer)
    trainer.fit(1)
    assert min(spy.objects, layer.objects) > 10
    assert spy.found == layer.found == []


def secrets_after_training(trainer: Trainer, party: str) -> dict[str, Tensor]:
    """All labels and the others' columns and weights, as the records of the quiz have them and apart."""
    active = trainer.active
    found: dict[str, Tensor] = {}
    for number, part in enumerate((active.data.train, active.data.test)):
        assert part.labels is not None
        found[f"labels {number}"] = part.labels
        for name, other in {ACTIVE: active, **trainer.passives}.items():
            if name != party:
                records = (other.data.train, other.data.test)[number]
                found |= {f"columns of {name} {number}": records.columns.numeric}
                found |= {f"one of {name} {number}": records.columns.numeric[:, 0]}
    for name, other in {ACTIVE: active, **trainer.passives}.items():
        if name != party:
            found |= {f"{name}'s {weight}": value for weight, value in other.module.named_parameters()}
    return found


def after_training_spy(party: str, *, attach: Callable[[Trainer], Any] = lambda _: None, only: str = "") -> Spy:
    """A spy of one party's view after a run of two parties, with another attack on one of its layers.

    It looks for all secrets, or for one: each takes a walk of its own.
    """
    holder: list[Trainer] = []

    def secrets(view: View) -> dict[str, Tensor]:
        found = secrets_after_training(holder[0], party) if view.party == party else {}
        return {only: found[only]} if found and only else found

    spy = Spy({"bottom", "columns", "known_positives", "known_negatives"}, secrets, when="after-training")
    passives = {name: passive_party(name) for name in ("telecom", "shop")}
    holder.append(Trainer(active_party(2), passives, attacks=[spy], batch_size=ROWS))
    attach(holder[0])
    holder[0].fit(1)
    assert spy.objects > 20
    return spy


@pytest.mark.parametrize("party", ["telecom", "shop"])
def test_a_view_after_training_leads_to_no_secret_though_an_observed_layer_has_a_hook_that_knows(party: str) -> None:
    spy = after_training_spy(
        party, attach=lambda trainer: trainer.observe(party, "layers.1", Spy({"gradient"}, lambda _: {}))
    )
    assert spy.found == []


@pytest.mark.slow(reason="walks through a whole trainer, and what it imports")
def test_the_walker_finds_labels_in_a_bottom_model_that_was_copied_carelessly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_training, "own_copy", copy.deepcopy)
    # Its copy leads to the whole trainer, and what it imports.
    spy = after_training_spy(
        "telecom",
        attach=lambda trainer: trainer.observe("telecom", "layers.1", Spy({"gradient"}, lambda _: {})),
        only="labels 0",
    )
    assert spy.found == ["labels 0"]


def test_the_feature_attacks_view_leads_to_no_column_of_the_passive_party() -> None:
    holder: list[Trainer] = []

    def secrets(_: View) -> dict[str, Tensor]:
        passive = holder[0].passives["telecom"]
        columns = passive.data.test.columns.numeric
        return {"columns": columns, "activation": passive.bottom(columns).detach()}

    spy = Spy({"scores", "active_logits", "passive_weight"}, secrets, target="features")
    holder.append(linear_trainer(features=1, attacks=[spy]))
    holder[0].fit(1)
    assert holder[0].feature_leaks()["telecom"][0].features == 1
    assert spy.objects > 3
    assert spy.found == []


class Suspicious:
    """A defense that walks what it is given."""

    def __init__(self, crossing: str, secret: Callable[[], Tensor]) -> None:
        self.crossing = crossing
        self.found: list[bool] = []
        self._secret = secret

    def __deepcopy__(self, _: Any) -> Suspicious:
        return self

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        # Its own closure is not what the party handed over.
        kept, self._secret = self._secret, lambda: torch.zeros(0)
        self.found.append(reveals([message, secrets], kept()))
        self._secret = kept
        return message.clone()


def test_an_activation_defense_cannot_reach_labels_and_a_gradient_defense_no_columns() -> None:
    holder: list[Trainer] = []

    def labels() -> Tensor:
        found = holder[0].active.data.train.labels
        assert found is not None
        return found[holder[0].batches.epoch(0)[holder[0].step]]

    def columns() -> Tensor:
        rows = holder[0].batches.epoch(0)[holder[0].step]
        return holder[0].passives["telecom"].data.train.columns.numeric[rows, 0]

    at_passive, at_active = Suspicious("activation", labels), Suspicious("gradient", columns)
    control = Suspicious("gradient", labels)
    holder.append(small_trainer(defenses=[at_passive, at_active, control], batch_size=ROWS))
    for rows in holder[0].batches.epoch(0):
        take_step(holder[0], rows)
    assert at_passive.found == [False, False]
    assert at_active.found == [False, False]
    assert control.found == [True, True]  # the sender of the gradient has the labels


# --- planted secrets -------------------------------------------------------------------------------------------------

LABELS = batch()[2]


def fresh() -> View:
    return View(party="telecom", step=0, ids=7 * torch.arange(ROWS), gradient=torch.zeros(ROWS, WIDTH))


class WithAttribute:
    def __init__(self) -> None:
        self.hidden = LABELS


class WithSlot:
    __slots__ = ("hidden",)

    def __init__(self) -> None:
        self.hidden = LABELS


class WithSlotBelow(WithSlot):
    __slots__ = ("other",)


class WithMethod:
    def __init__(self) -> None:
        self.hidden = LABELS

    def method(self) -> None:
        """Bound to an object that holds labels."""


def with_closure() -> object:
    hidden = LABELS
    return lambda: hidden


def with_nested_closure() -> object:
    inner = with_closure()
    return lambda: inner


def with_default() -> object:
    def function(_: object = LABELS) -> None: ...

    return function


def with_keyword_default() -> object:
    def function(*, _: object = LABELS) -> None: ...

    return function


def with_saved_target() -> Tensor:
    logits = torch.zeros(ROWS, requires_grad=True)
    loss: Tensor = functional.binary_cross_entropy_with_logits(logits, LABELS.clone())
    return loss * 2.0


class KeepsOnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.hidden = LABELS
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class SavesForBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(LABELS.clone())
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def through(function: Any) -> Tensor:
    output: Tensor = function.apply(torch.zeros(ROWS, requires_grad=True))
    return output.sum()


def with_hook() -> Tensor:
    hidden = LABELS
    tensor = torch.zeros(3, requires_grad=True)
    tensor.register_hook(lambda gradient: gradient * hidden.sum())
    return tensor


def with_gradient() -> Tensor:
    tensor = torch.zeros(ROWS, requires_grad=True)
    tensor.grad = LABELS.clone()
    return tensor


def with_module() -> nn.Module:
    module = nn.Linear(2, 1)
    module.register_buffer("hidden", LABELS)
    return nn.Sequential(module)


def behind_a_slice() -> Tensor:
    table = torch.zeros(ROWS, 3)
    table[:, 2] = LABELS
    return table[:, 0].detach()


def in_another_dtype() -> Tensor:
    return LABELS.to(torch.int8)


PLANTED = {
    "itself": lambda: LABELS,
    "attribute": WithAttribute,
    "slot": WithSlot,
    "inherited slot": WithSlotBelow,
    "method": lambda: WithMethod().method,
    "closure": with_closure,
    "nested closure": with_nested_closure,
    "default": with_default,
    "keyword default": with_keyword_default,
    "partial": lambda: functools.partial(print, 1, end=LABELS),
    "list in dict": lambda: {"a": [1, (2, LABELS)]},
    "deque": lambda: deque([LABELS]),
    "set": lambda: {LABELS},
    "grad_fn's saved target": with_saved_target,
    "attribute of a ctx": lambda: through(KeepsOnContext),
    "saved for backward": lambda: through(SavesForBackward),
    "leaf of a graph": lambda: LABELS.clone().requires_grad_() * 2.0 + 1.0,
    "hook of a tensor": with_hook,
    "gradient of a leaf": with_gradient,
    "buffer of a module": with_module,
    "memory behind a slice": behind_a_slice,
    "another dtype": in_another_dtype,
    "another view": lambda: View(party="", step=0, ids=LABELS),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_secret_is_found(plant: Callable[[], object]) -> None:
    assert not reveals(fresh(), LABELS)
    assert reveals(fresh().granting(columns=plant()), LABELS)


def test_a_gradient_that_is_not_detached_would_be_found() -> None:
    """What the rule "tensors in a view are detached" is for: an undetached activation leads to the loss's target."""
    activation = torch.zeros(ROWS, WIDTH, requires_grad=True)
    loss = functional.mse_loss(activation.sum(dim=1), LABELS)
    (gradient,) = torch.autograd.grad(loss, activation, create_graph=True)
    assert reveals(fresh().granting(gradient=gradient), LABELS)
    assert not reveals(fresh().granting(gradient=gradient.detach()), LABELS)


def test_a_view_is_detached_even_where_somebody_differentiates_twice() -> None:
    """With ``create_graph`` the gradient that arrives at the cut knows its history, the loss's target included."""
    own, others, labels, ids = batch()
    bottom = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, WIDTH))
    model = SplitModel({"telecom": bottom, "shop": nn.Linear(3, WIDTH)}, nn.Linear(2 * WIDTH, 1))
    spies = [Spy({"gradient", "columns"}, secrets_of_split_model), Spy({"gradient"}, secrets_of_split_model)]
    model.cuts["telecom"].watch(spies[0])
    # At the bottom's own output, where the sent gradient arrives, and where nothing else would detach it.
    model.observe(bottom, spies[1])
    loss = functional.mse_loss(model(own, others, labels=labels, ids=ids)[:, 0], labels)
    torch.autograd.grad(loss, list(bottom.parameters()), create_graph=True)
    assert min(spy.objects for spy in spies) > 3
    assert [spy.found for spy in spies] == [[], []]


def test_views_have_no_field_for_labels() -> None:
    with pytest.raises(TypeError, match="no field labels"):
        View(party="telecom", step=0, ids=torch.arange(3), labels=LABELS)
    with pytest.raises(AttributeError):
        fresh().labels = LABELS  # type: ignore[attr-defined]
    DirectionAttack()(fresh().granting(known_positives=torch.tensor([7])))
