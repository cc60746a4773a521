"""Parties: what they hold, what they refuse, and randomness that is theirs alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.cut.views import Shown
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.defenses import Isotropic
from splitvfl.errors import ArgumentError, DataError
from splitvfl.learning.optimizers import PerParameter
from splitvfl.learning.tasks import task_for
from splitvfl.party.party import ActiveParty, PartyRandom, PassiveParty
from splitvfl.party.top_model import own_input
from splitvfl.run import checkpoint
from tests.builders import (
    ACTIVE,
    active_party,
    bottom_model,
    labels_of,
    party_data,
    passive_party,
    record_ids,
    top_model,
)

ROWS = torch.tensor([5, 0, 17, 3])


def draws(random: PartyRandom, count: int = 3) -> list[float]:
    with random:
        return torch.rand(count).tolist()


# --- randomness


def test_a_party_draws_what_its_seed_says() -> None:
    assert draws(PartyRandom(8)) == torch.rand(3, generator=torch.Generator().manual_seed(8)).tolist()


def test_turns_do_not_disturb_each_other_nor_the_outside() -> None:
    torch.manual_seed(1)
    outside = torch.rand(4).tolist()
    left, right = draws(PartyRandom(2), 6), draws(PartyRandom(3), 6)
    torch.manual_seed(1)
    first, second = PartyRandom(2), PartyRandom(3)
    mixed: dict[str, list[float]] = {"outside": [], "left": [], "right": []}
    for _ in range(2):
        mixed["outside"] += torch.rand(2).tolist()
        mixed["left"] += draws(first)
        mixed["right"] += draws(second)
    assert mixed == {"outside": outside, "left": left, "right": right}


def test_a_turn_that_fails_gives_the_outside_its_state_back() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="between 0 and 1"), PartyRandom(2):
        torch.nn.functional.dropout(torch.rand(5), p=2.0 + torch.rand(1).item())
    assert torch.equal(torch.get_rng_state(), before)


def test_randomness_goes_on_after_a_restart(tmp_path: Path) -> None:
    straight = PartyRandom(2)
    draws(straight)
    saved = checkpoint.save(tmp_path, 1, {"random": straight.state_dict()})
    expected = draws(straight)
    again = PartyRandom(99)
    again.load_state_dict(checkpoint.load(saved)["random"])
    assert draws(again) == expected
    assert draws(again) == draws(straight) != expected


@pytest.mark.cuda
def test_a_party_has_its_own_cuda_state() -> None:
    random, before = PartyRandom(2), torch.cuda.get_rng_state()
    random.use_cuda()
    with random:
        drawn = torch.rand(3, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(drawn, torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(2)))


def test_prepare_seeds_a_party_and_forgets_what_its_optimiser_knew() -> None:
    party = passive_party("telecom")
    party.prepare(seed=4, device=torch.device("cpu"))
    assert draws(party.random) == draws(PartyRandom(4))
    step(party)
    assert party.weights.optimizer is not None
    assert party.weights.optimizer.state_dict()["state"]
    party.prepare(seed=4, device=torch.device("cpu"))
    assert not party.weights.optimizer.state_dict()["state"]


# --- both kinds


def step(party: PassiveParty) -> None:
    batch = party.train_batch(ROWS)
    activation = party.activate(batch)
    party.weights.clear_gradients()
    party.learn(activation, torch.ones_like(activation), batch, 0)
    party.weights.update()


def test_batches_are_the_records_at_these_positions() -> None:
    party = active_party()
    for batch, part in ((party.train_batch(ROWS), party.data.train), (party.test_batch(ROWS), party.data.test)):
        assert torch.equal(batch.ids, part.ids[ROWS])
        assert torch.equal(batch.columns.numeric, part.columns.numeric[ROWS])
        assert part.labels is not None
        assert torch.equal(batch.labels, part.labels[ROWS])  # type: ignore[arg-type]


def test_clearing_forgets_gradients_and_updating_is_the_optimisers_step() -> None:
    party = passive_party("telecom", optimizer=lambda weights: torch.optim.SGD(weights, lr=0.25))
    before = [weight.detach().clone() for weight in party.module.parameters()]
    step(party)
    gradients = [weight.grad for weight in party.module.parameters()]
    for old, new, gradient in zip(before, party.module.parameters(), gradients, strict=True):
        assert gradient is not None
        assert torch.equal(new, old - 0.25 * gradient)
    party.weights.clear_gradients()
    assert all(weight.grad is None for weight in party.module.parameters())


def test_a_model_without_weights_needs_no_optimiser() -> None:
    party = PassiveParty(party_data("telecom", width=5), nn.Tanh())
    assert party.weights.optimizer is None
    party.weights.clear_gradients()
    party.weights.update()
    again = PassiveParty(party_data("telecom", width=5), nn.Tanh())
    again.load_state_dict(party.state_dict())


def test_frozen_weights_are_kept_from_the_optimiser() -> None:
    bottom = bottom_model("telecom")
    frozen = next(bottom.parameters()).requires_grad_(False)
    party = PassiveParty(party_data("telecom", width=5), bottom, optimizer=lambda w: torch.optim.SGD(w, lr=1.0))
    before = frozen.clone()
    step(party)
    assert torch.equal(frozen, before)


def test_a_party_goes_on_after_a_restart(tmp_path: Path) -> None:
    straight, again = passive_party("telecom", dropout=0.5), passive_party("telecom", dropout=0.5)
    for party, seed in ((straight, 4), (again, 5)):
        party.prepare(seed=seed, device=torch.device("cpu"))
    with straight.random:
        step(straight)
    saved = checkpoint.save(tmp_path, 1, {"party": straight.state_dict()})
    again.load_state_dict(checkpoint.load(saved)["party"])
    for party in (straight, again):
        with party.random:
            step(party)
    for left, right in zip(straight.module.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_partys_state_and_its_hooks_state_are_kept_apart() -> None:
    """Noise can be regenerated from the hooks' state; the party's own state shows nothing of it."""
    party = active_party()
    party.connect("telecom").gradient.attach(Isotropic(), noise_seed_for_experiments=123456789)
    assert "123456789" not in str(party.state_dict())
    assert "123456789" in str(party.hook_state())
    assert set(party.hook_state()["defenses"]) == {"labels", "scores", "gradient/telecom"}
    assert set(passive_party("telecom").hook_state()["defenses"]) == {
        "activation/training",
        "activation/evaluation",
        "activation/prediction",
    }
    other = active_party()
    other.connect("telecom").gradient.attach(Isotropic())
    other.load_hook_state(party.hook_state())
    sent = [
        one.cuts["telecom"].gradient.apply(torch.ones(4, 2), step=0, ids=None, labels=None) for one in (party, other)
    ]
    assert torch.equal(*sent)


# --- passive


@pytest.mark.parametrize(
    ("output", "came"), [(lambda x: x[:, 0], r"\(4,\)"), (lambda x: x[:2], r"\(2, 5\)"), (lambda x: x.sum(), r"\(\)")]
)
def test_a_bottom_must_put_out_one_row_per_record(output: Any, came: str) -> None:
    class Bottom(nn.Module):
        def forward(self, columns: Tensor) -> Tensor:
            result: Tensor = output(columns)
            return result

    party = PassiveParty(party_data("telecom", width=5), Bottom())
    with pytest.raises(ArgumentError, match=rf"bottom model of telecom.*expected \(4, width\), got {came}"):
        party.activate(party.train_batch(ROWS))


def test_observers_see_what_was_received_and_no_labels() -> None:
    party, views = passive_party("telecom"), []

    class Looks:
        needs = frozenset({"gradient", "columns", "weights"})

        def __call__(self, view: Any, /) -> None:
            views.append(view)

    party.observers.append(Looks())
    batch = party.train_batch(ROWS)
    activation, gradient = party.activate(batch), torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    party.learn(activation, gradient, batch, 6)
    [view] = views
    assert (view.party, view.step, view.fields) == ("telecom", 6, ("columns", "gradient", "weights"))
    assert torch.equal(view.gradient, gradient)
    assert torch.equal(view.columns, batch.columns.numeric)
    assert torch.equal(view.ids, batch.ids)
    assert not any(tensor.requires_grad for tensor in view.tensors())


def test_an_exchange_says_by_field_what_was_received() -> None:
    party, views = passive_party("telecom"), []

    class Looks:
        needs = frozenset({"scores", "activation"})

        def __call__(self, view: Any, /) -> None:
            views.append(view)

    party.observers.append(Looks())
    party.shown = Shown(frozenset({"scores"}))
    batch = party.train_batch(ROWS)
    activation = party.activate(batch)
    party.observe(activation, batch, 2, scores=torch.tensor([0.1, 0.2, 0.3, 0.5], dtype=torch.bfloat16))

    [view] = views
    assert view.fields == ("activation", "scores")
    assert torch.equal(view.activation, activation.detach())
    assert (view.scores.dtype, view.scores[3].item()) == (torch.float32, 0.5)  # shown as all that crossed narrowed


def test_learning_is_the_bottoms_backward() -> None:
    party = passive_party("telecom")
    batch, gradient = party.train_batch(ROWS), torch.arange(16.0).reshape(4, 4)
    party.learn(party.activate(batch), gradient, batch, 0)
    expected = torch.autograd.grad(
        (party.bottom(batch.columns.numeric) * gradient).sum(), list(party.bottom.parameters())
    )
    for weight, right in zip(party.bottom.parameters(), expected, strict=True):
        assert weight.grad is not None
        # The sum's backward multiplies the gradient by one: the same operations follow.
        assert torch.equal(weight.grad, right)


# --- active


def data_with(labels: Tensor | None, test: Tensor | None = None) -> PartyData:
    parts = [
        Records(record_ids(len(given)), Columns.of(torch.zeros(len(given), 2)), None if labels is None else given)
        for given in (torch.zeros(4) if labels is None else labels, torch.tensor([0.0, 1.0]) if test is None else test)
    ]
    return PartyData(ACTIVE, ("a", "b"), ("a", "b"), (), *parts)


@pytest.mark.parametrize(
    ("name", "labels", "complaint"),
    [
        ("binary", None, f"the active party {ACTIVE} holds no labels"),
        ("binary", torch.tensor([-1.0, 1.0, 1.0]), "map -1 to 0"),
        ("binary", torch.tensor([1, 2, 1]), "needs labels 0 and 1"),
        ("binary", torch.ones(3), "both classes"),
        ("multiclass", torch.tensor([1, 2, 3]), "labels 0 to 2, got 1 to 3"),
        ("multiclass", torch.tensor([0.0, 1.0, 2.0]), "whole-number"),
        ("multiclass", torch.zeros(3, dtype=torch.int64), "more than one class"),
        ("regression", torch.tensor([0.0, torch.nan]), "finite"),
        ("regression", torch.ones(3), "nothing to learn"),
    ],
)
def test_labels_that_do_not_fit_are_refused_at_once(name: str, labels: Tensor | None, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        ActiveParty(data_with(labels), top_model(), task=task_for(name, 3))


def test_a_party_that_only_predicts_needs_no_labels() -> None:
    data = data_with(None)
    nothing = data.train.rows(torch.zeros(0, dtype=torch.int64))
    without = replace(data, train=nothing, test=replace(data.test, labels=None))

    ActiveParty(without, top_model())
    ActiveParty(replace(data, train=nothing), top_model())
    with pytest.raises(DataError, match="needs labels 0 and 1"):
        ActiveParty(replace(data, train=nothing, test=replace(data.test, labels=torch.tensor([0.0, 2.0]))), top_model())


def test_without_a_task_the_labels_are_binary() -> None:
    assert ActiveParty(data_with(torch.tensor([0.0, 1.0])), top_model()).task.name == "binary"


def test_an_active_party_without_columns_gives_its_top_none() -> None:
    party, bare = active_party(), party_data(ACTIVE, width=0, task="binary")
    assert own_input(bare.train) is None
    assert torch.equal(own_input(party.train_batch(ROWS)), party.data.train.columns.numeric[ROWS])  # type: ignore[arg-type]


def test_without_label_defenses_the_answer_is_the_labels() -> None:
    party = active_party()
    targets, responses = party.answer(party.train_batch(ROWS), 0)
    assert torch.equal(targets, labels_of("train", 48, "binary")[ROWS])
    assert responses is None


def test_label_defenses_change_the_targets_and_later_defenses_see_their_responses() -> None:
    class Half:
        crossing = "labels"

        def __call__(self, labels: Tensor, secrets: Any, /) -> Tensor:
            assert torch.equal(secrets.labels, labels)
            return 1 - labels

    party = active_party()
    party.labels.attach(Half())
    batch = party.train_batch(ROWS)
    targets, responses = party.answer(batch, 0)
    assert batch.labels is not None
    assert torch.equal(targets, 1 - batch.labels)
    assert torch.equal(responses, targets)  # type: ignore[arg-type]


# --- optimisers


@pytest.mark.parametrize("given", [None, "adam", torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)])
def test_what_makes_no_optimiser_is_refused_by_name(given: Any) -> None:
    makes = "as what makes an optimiser out of parameters, such as .*, got "
    data = party_data("lab", width=2)
    with pytest.raises(ArgumentError, match=f"^expected optimizer of {data.name} {makes}"):
        PassiveParty(data, nn.Linear(data.width, 1), optimizer=given)
    own = party_data(ACTIVE, width=2, task="binary")
    with pytest.raises(ArgumentError, match=f"^expected optimizer of {own.name} {makes}"):
        ActiveParty(own, nn.Linear(1, 1), optimizer=given)
    for argument in ("dense", "embeddings"):
        with pytest.raises(ArgumentError, match=f"^expected {argument} {makes}"):
            PerParameter(**{argument: given})
    if given is not None:  # which is the usual one
        with pytest.raises(ArgumentError, match=f"^expected private_optimizer of {own.name} {makes}"):
            ActiveParty(own, nn.Linear(1, 1), private_top=nn.Linear(1, 1), private_optimizer=given)
