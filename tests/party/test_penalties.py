"""Penalties where they act: in the gradient of a passive party's bottom, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.app.trainer import Trainer
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError, HookError
from splitvfl.exchange import Oracle, Split
from splitvfl.hooks import Held, Weighed, call_penalty, penalise, scope_of
from splitvfl.learning.optimizers import PerParameter
from splitvfl.messaging.messages import Message
from splitvfl.models import Linear, Sampled
from splitvfl.party.party import PassiveParty
from splitvfl.penalties import AdversarialReconstruction, DistanceCorrelation, MutualInformationBottleneck
from tests.builders import WIDTH, active_party, bottom_model, party_data, sgd, take_step, weights


class Size:
    """Half the mean squared length of an activation's rows."""

    name = "size"

    def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
        return 0.5 * activation.square().sum(dim=1).mean()


class SizeOfSome(Size):
    """The same of five records of a batch."""

    most_records = 5

    def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
        assert len(activation) == len(held.columns) == len(held.categories) == len(held.ids) == 5
        self.ids, self.columns = held.ids, held.columns
        return super().__call__(activation, held)


def trainer_of(*penalties: Any, exchange: Any = None, optimizer: Any = sgd, **settings: Any) -> Trainer:
    bottom = bottom_model("telecom", dropout=settings.pop("dropout", 0.0))
    passive = PassiveParty(party_data("telecom", width=5), bottom, optimizer=optimizer, penalties=penalties)
    settings = {"batch_size": 16, "audit": False, **settings}
    return Trainer(active_party(), {"telecom": passive}, exchange=exchange, **settings)


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_the_bottom_learns_from_the_received_gradient_and_the_weighted_one() -> None:
    """One step of gradient descent beside autograd through loss and penalty at once."""
    sent: list[Message] = []
    trainer = trainer_of(Weighed(Size(), 3.0), record=sent.append)
    rows = torch.arange(16)
    bottom = bottom_model("telecom")
    activation = bottom(trainer.passives["telecom"].data.train.columns.numeric[rows])
    take_step(trainer, rows)
    received = next(message.payload for message in sent if message.kind == "gradient")
    ((activation * received).sum() + 3.0 * 0.5 * activation.square().sum(dim=1).mean()).backward()
    for own, ours in zip(bottom.parameters(), trainer.passives["telecom"].bottom.parameters(), strict=True):
        assert own.grad is not None
        # Sums of sixteen numbers below 1 in float32, times a rate of a half.
        torch.testing.assert_close(ours.detach(), own.detach() - 0.5 * own.grad, rtol=1e-5, atol=1e-6)
    assert trainer.passives["telecom"].penalised == {
        "telecom/size": pytest.approx(0.5 * activation.square().sum(dim=1).mean().item())
    }


def test_one_that_looks_at_some_records_is_given_these_alone_and_asks_nothing_of_the_others() -> None:
    random = torch.Generator().manual_seed(0)
    columns, activation = torch.randn(16, 3, generator=random), torch.randn(16, 2, generator=random)
    penalty, ids = SizeOfSome(), torch.arange(16) * 3
    none = torch.zeros(16, 0, dtype=torch.int64)
    held = Held(party="lab", step=0, ids=ids, columns=columns, categories=none, generator=random)
    received = torch.randn(16, 2)
    before = received.clone()
    found = penalise(penalty, activation, held)
    assert found.places is not None
    assert len(found.places.unique()) == 5
    assert torch.equal(penalty.ids, ids[found.places])
    assert torch.equal(penalty.columns, columns[found.places])
    expected = received.clone()
    for place in found.places.tolist():
        expected[place] += 2.0 * activation[place] / 5
    # Products and one sum of numbers around 1 in float32.
    torch.testing.assert_close(found.added_to(received, 2.0), expected, rtol=0, atol=1e-6)
    assert torch.equal(received, before)
    whole = call_penalty(penalty, activation, held)[1]
    assert (whole.norm(dim=1) > 0).sum() == 5


def test_without_weight_nothing_changes_and_with_it_no_message_of_the_step_does() -> None:
    runs: list[list[Message]] = [[], [], []]
    trainers = [
        trainer_of(*penalties, record=seen.append)
        for penalties, seen in zip(((), (Weighed(Size(), 0.0),), (Size(),)), runs, strict=True)
    ]
    for trainer in trainers:
        trainer.fit(1)
    assert same(weights(trainers[0]), weights(trainers[1]))
    assert not same(weights(trainers[0]), weights(trainers[2]))
    for first, other in zip(runs[0][:2], runs[2][:2], strict=True):
        assert torch.equal(first.payload, other.payload)
    assert [(one.kind, one.payload.shape) for one in runs[0]] == [(one.kind, one.payload.shape) for one in runs[2]]


class Seeds(Size):
    """One that seeds torch for itself, or draws from it and from its own generator."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.drawn: list[float] = []

    def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
        if self.seed is not None:
            torch.manual_seed(self.seed)
        self.drawn += [torch.rand(()).item(), torch.rand((), generator=held.generator).item()]
        return super().__call__(activation, held)


@pytest.mark.parametrize("settings", [{}, {"exchange": Split(in_flight=2)}], ids=["plain", "in flight"])
@pytest.mark.parametrize(
    "make",
    [lambda: DistanceCorrelation(records=8), lambda: AdversarialReconstruction(records=8), lambda: Seeds(1)],
    ids=["distance correlation", "adversarial", "seeds torch"],
)
def test_without_weight_a_bottom_drops_out_what_it_drops_out_without_penalties(
    make: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    """To the bit, in one go and resumed: penalties draw and seed beside the party's own state of torch's generator."""

    def made(*penalties: Any, run: str) -> Trainer:
        return trainer_of(*penalties, dropout=0.3, log_dir=tmp_path / run, **settings)

    none = made(run="none")
    none.fit(3)
    straight = made(Weighed(make(), 0.0), run="straight")
    straight.fit(3)
    assert same(weights(none), weights(straight))
    made(Weighed(make(), 0.0), run="broken").fit(1)
    resumed = made(Weighed(make(), 0.0), run="broken")
    resumed.resume()
    resumed.fit(3)
    assert same(weights(none), weights(resumed))


def test_what_penalties_draw_follows_from_the_partys_seed_and_goes_on_after_a_checkpoint(tmp_path: Path) -> None:
    def drawn(run: str, seed: int, *, stops: int | None = None) -> list[float]:
        first, *others = [Seeds(None) for _ in range(2 if stops else 1)]
        settings = {"dropout": 0.3, "seed": seed, "log_dir": tmp_path / run}
        trainer = trainer_of(first, **settings)
        trainer.fit(stops or 3)
        for other in others:
            trainer = trainer_of(other, **settings)
            trainer.resume()
            trainer.fit(3)
        return first.drawn + [number for other in others for number in other.drawn]

    straight = drawn("straight", 0)
    assert len(set(straight)) == 2 * 3 * 3, "every step draws anew, and two generators are two"
    assert drawn("again", 0) == straight
    assert drawn("broken", 0, stops=1) == straight
    assert not set(drawn("other", 1)) & set(straight)


def test_the_weight_rises_in_a_straight_line() -> None:
    rising = Weighed(Size(), 2.0, warm_up_steps=4)
    assert [rising.at(step) for step in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert Weighed(Size(), 2.0).at(0) == 2.0
    for wrong in ({"weight": -1.0}, {"weight": float("nan")}, {"warm_up_steps": -1}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            Weighed(Size(), **wrong)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain", marks=pytest.mark.slow(reason="three more runs")),
        pytest.param({"dropout": 0.3, "exchange": Split(in_flight=2)}, id="in flight"),
        pytest.param({"autocast": torch.bfloat16, "optimizer": PerParameter(dense=sgd)}, id="autocast"),
        pytest.param({"wire": torch.bfloat16}, id="wire", marks=pytest.mark.slow(reason="three more runs")),
    ],
)
def test_a_resumed_run_is_the_straight_one_to_the_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    def made(folder: Path) -> Trainer:
        own = [Weighed(DistanceCorrelation(records=8), 0.5, warm_up_steps=5), AdversarialReconstruction(records=8)]
        return trainer_of(*own, log_dir=folder, log_every=1, **settings)

    straight = made(tmp_path / "straight")
    straight.fit(4)
    made(tmp_path / "broken").fit(2)
    resumed = made(tmp_path / "broken")
    resumed.resume()
    resumed.fit(4)
    assert same(weights(straight), weights(resumed))
    logs = [(tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in ("straight", "broken")]
    told = [[value for tag, value in json.loads(line).items() if tag.startswith("penalty/")] for line in logs[0]]
    assert logs[0] == logs[1]
    assert len(told) == 12
    assert len(told[-1]) == 2


def test_what_it_is_counts_before_the_weight_under_a_name_of_its_own() -> None:
    trainer = trainer_of(Weighed(Size(), 0.25), Size())
    trainer.fit(1)
    values = trainer.passives["telecom"].penalised
    assert set(values) == {"telecom/size", "telecom/size-2"}
    assert values["telecom/size"] == values["telecom/size-2"]


def test_a_run_with_other_penalties_is_another_run(tmp_path: Path) -> None:
    trainer_of(Size(), log_dir=tmp_path).fit(1)
    with pytest.raises(CheckpointError, match=r"telecom had the penalties size .* and this run has no penalties"):
        trainer_of(log_dir=tmp_path).resume()


def test_evaluations_and_predictions_have_no_penalty() -> None:
    calls: list[int] = []

    class Counted(Size):
        def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
            calls.append(held.step)
            return super().__call__(activation, held)

    trainer = trainer_of(Counted())
    trainer.fit(1)
    trainer.predict()
    assert calls == [0, 1, 2]


class Wrong:
    """A penalty that breaks its contract in some way."""

    name = "wrong"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, activation: Tensor, held: Held, /) -> Any:
        return self.answer(activation, held)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda activation, held: 1.0, "expected one number as a tensor .*, got float"),
        (lambda activation, held: activation.sum(dim=1), r"shape \(\), got torch.float32 of shape \(16,\).*the mean"),
        (lambda activation, held: activation.sum() * torch.nan, "is nan, and nothing was learned from it"),
        (lambda activation, held: activation.detach().sum(), "does not follow from the activation"),
        (lambda activation, held: torch.ones(3, requires_grad=True).sum(), "does not follow from the activation"),
        (lambda activation, held: (activation * 0).sum().sqrt(), "gradient with respect to the activation holds NaN"),
        (lambda activation, held: held.labels, "a penalty has no labels: a passive party holds its columns"),
        (lambda activation, held: 1 / 0, r"raised ZeroDivisionError: division by zero \(test_penalties.py, line \d+\)"),
    ],
)
def test_a_penalty_that_breaks_its_contract_is_named_and_changes_no_weight(answer: Any, complaint: str) -> None:
    trainer = trainer_of(Wrong(answer))
    bottom = [weight.clone() for weight in trainer.passives["telecom"].bottom.parameters()]
    with pytest.raises(HookError, match=rf"penalty wrong at step 0.*{complaint}"):
        take_step(trainer, torch.arange(16))
    assert all(map(torch.equal, bottom, trainer.passives["telecom"].bottom.parameters()))


def test_what_a_penalty_writes_to_reaches_nobody() -> None:
    class Writes(Size):
        def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
            value = super().__call__(activation, held)
            activation.data.zero_()
            held.columns.zero_()
            held.ids.zero_()
            return value

    trainers = trainer_of(Writes()), trainer_of(Size())
    for trainer in trainers:
        trainer.fit(1)
    # The gradient of a square is that of what was written; of the bottom's own graph and columns nothing is.
    assert torch.isfinite(torch.cat([one.flatten() for one in weights(trainers[0]).values()])).all()
    assert same(
        {"columns": trainers[0].passives["telecom"].data.train.columns.numeric},
        {"columns": trainers[1].passives["telecom"].data.train.columns.numeric},
    )


def test_what_cannot_have_penalties_refuses_them_before_training() -> None:
    data = party_data("telecom", width=5)
    with pytest.raises(HookError, match="needs gradient, which its party does not hold"):
        PassiveParty(data, bottom_model("telecom"), penalties=[_needing("gradient")])
    with pytest.raises(ConfigError, match="needs categorical fields, and telecom has none"):
        PassiveParty(data, bottom_model("telecom"), penalties=[_needing("categories")])
    with pytest.raises(ConfigError, match="no weight to be trained"):
        PassiveParty(data, nn.Identity(), penalties=[Size()])
    linear = PassiveParty(data, Linear(5, 1, bias=False), penalties=[Size()])
    with pytest.raises(ConfigError, match="penalties of telecom: exchange oracle has no place for penalties"):
        Oracle().check_penalties(linear)


def _needing(what: str) -> Size:
    penalty = Size()
    penalty.needs = frozenset({what})  # type: ignore[attr-defined]
    return penalty


class _Two:
    size, rank = 2, 0


def test_a_party_of_several_workers_has_none() -> None:
    party = PassiveParty(party_data("telecom", width=5), bottom_model("telecom"), penalties=[Size()])
    with pytest.raises(ConfigError, match="of a part it would be another penalty"):
        party.join(_Two())  # type: ignore[arg-type]


def drawing_trainer(weight: float, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    bottom = Sampled(nn.Linear(5, 2 * WIDTH))
    penalty = Weighed(MutualInformationBottleneck(), weight)
    passive = PassiveParty(party_data("telecom", width=5), bottom, optimizer=sgd, penalties=[penalty])
    return Trainer(active_party(), {"telecom": passive}, **{"batch_size": 16, "audit": False, **settings})


def test_a_bottleneck_and_the_received_gradient_go_back_together() -> None:
    """One step of gradient descent beside autograd through the loss of the draw and the divergence at once."""
    sent: list[Message] = []
    trainer = drawing_trainer(0.3, record=sent.append)
    party, rows = trainer.passives["telecom"], torch.arange(16)
    assert isinstance(party.bottom, Sampled)
    before = {name: weight.detach().clone() for name, weight in party.bottom.named_parameters()}
    columns = party.data.train.columns.numeric[rows]
    take_step(trainer, rows)
    activation, received = (
        next(one.payload for one in sent if one.kind == kind) for kind in ("activation", "gradient")
    )
    linear = nn.Linear(5, 2 * WIDTH)
    linear.load_state_dict({name.removeprefix("module."): weight for name, weight in before.items()})
    mean, log_variance = linear(columns).chunk(2, dim=1)
    noise = ((activation - mean) / (log_variance / 2).exp()).detach()
    drawn = mean + (log_variance / 2).exp() * noise
    divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(dim=1).mean()
    ((drawn * received).sum() + 0.3 * divergence).backward()
    for name, weight in linear.named_parameters():
        assert weight.grad is not None
        ours = dict(party.bottom.named_parameters())[f"module.{name}"]
        # Sums of sixteen numbers around 1 in float32, and noise that was computed back.
        torch.testing.assert_close(ours.detach(), before[f"module.{name}"] - 0.5 * weight.grad, rtol=1e-4, atol=1e-5)
    assert party.penalised == {"telecom/mutual-information-bottleneck": pytest.approx(divergence.item(), rel=1e-5)}


def test_with_steps_under_way_each_has_its_own_distribution() -> None:
    """A penalty that compares the activation with what it was drawn from: the noise is a standard normal one."""
    seen: list[Tensor] = []

    class Noise:
        needs = frozenset({"distribution"})

        def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
            mean, log_variance = held.distribution
            seen.append(((activation - mean) / (log_variance / 2).exp()).detach())
            return 0.0 * log_variance.sum()

    torch.manual_seed(0)
    passive = PassiveParty(
        party_data("telecom", width=5), Sampled(nn.Linear(5, 2 * WIDTH)), optimizer=sgd, penalties=[Noise()]
    )
    Trainer(active_party(), {"telecom": passive}, batch_size=16, exchange=Split(in_flight=2), audit=False).fit(2)
    drawn = torch.cat(seen)
    # Of another step's distribution it would be as far off as columns vary; five standard errors.
    assert drawn.var().item() == pytest.approx(1.0, abs=5 * (2 / drawn.numel()) ** 0.5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"exchange": Split(in_flight=2)}, {"autocast": torch.bfloat16}],
    ids=["plain", "in flight", "autocast"],
)
def test_a_run_with_draws_that_goes_on_is_the_straight_one_to_the_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    straight = drawing_trainer(0.1, log_dir=tmp_path / "straight", **settings)
    straight.fit(4)
    drawing_trainer(0.1, log_dir=tmp_path / "broken", **settings).fit(2)
    resumed = drawing_trainer(0.1, log_dir=tmp_path / "broken", **settings)
    resumed.resume()
    resumed.fit(4)
    assert same(weights(straight), weights(resumed))
    assert straight.test == resumed.test


def test_a_bottleneck_of_a_bottom_that_draws_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"that of telecom draws nothing: set model: \{name: mlp, sampled: true\}"):
        trainer_of(MutualInformationBottleneck())


def test_a_sampled_layer_that_is_not_the_last_is_told() -> None:
    passive = PassiveParty(
        party_data("telecom", width=5),
        nn.Sequential(Sampled(nn.Linear(5, 2 * WIDTH)), nn.ReLU()),
        penalties=[MutualInformationBottleneck()],
    )
    with pytest.raises(HookError, match="the activation of telecom is no draw of a sampled layer"):
        Trainer(active_party(), {"telecom": passive}, batch_size=16).fit(1)


def test_of_some_records_and_of_each_row_is_a_contradiction() -> None:
    class Both(SizeOfSome):
        scope = "row"

        def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
            return activation.sum()

    with pytest.raises(HookError, match="scope is 'row', and most_records has it look at some records"):
        scope_of(Both())
