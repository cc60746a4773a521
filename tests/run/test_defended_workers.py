"""Two parties of two workers each, whose messages are defended, beside the same parties of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.defenses import ClipGradient, GaussianIR, Isotropic, MaxNorm
from splitvfl.exchange.evaluation import EvaluationPlan, active_evaluation, passive_evaluation
from splitvfl.exchange.in_flight import PassiveInFlight
from splitvfl.exchange.receiver_clips import NO_CLIPS
from splitvfl.exchange.split_step import active_step
from splitvfl.hooks import At, Crossing, Held, Scope, Secrets, Weighed, placed
from splitvfl.learning.batches import Batches
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.messaging.conversation import Half, converse
from splitvfl.party.attaching import attach_defense
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.teamwork import check_replicas
from splitvfl.team.team import Team
from tests.builders import ACTIVE, active_party, passive_party, sgd
from tests.team.threads import Table, Threads, in_threads

TRAIN, TEST, BATCH, EPOCHS, VALIDATED = 100, 31, 17, 3, 9
SEED = 11
# So many records of a part are evaluated at a time: all of them, or so few that one worker has more pieces than others.
WHOLE, PIECE = 4096, 5


class Together:
    """Noise as large as the longest row so far, on rows less the mean of their batch: an activation's, of a batch."""

    name = "together"
    crossing: Crossing = "activation"

    def __init__(self) -> None:
        self.longest, self.batches = 0.0, list[int]()

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        self.longest = max(self.longest, message.norm(dim=1).max().item())
        self.batches.append(len(message))
        assert len(secrets.ids) == len(message)
        return secrets.add_normal(message - 0.5 * message.mean(dim=0), 0.05 * self.longest)

    def state_dict(self) -> dict[str, Any]:
        return {"longest": self.longest}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.longest = state["longest"]


class Halved:
    """Half of the activation, row by row and without noise."""

    name = "halved"
    crossing: Crossing = "activation"
    scope: Scope = "row"

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return 0.5 * message


class Length:
    """A penalty that is a mean over records."""

    name = "length"
    needs = frozenset[str]()
    scope: Scope = "row"

    def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
        return activation.square().sum(dim=1).mean()


class Seen:
    """What one process, or one worker, has in the end."""

    def __init__(self, passive: PassiveParty, active: ActiveParty) -> None:
        self.passive, self.active = passive, active
        self.figures: dict[str, float] = {}
        self.told: list[str] = []

    @property
    def weights(self) -> list[Tensor]:
        return [weight.detach() for party in (self.passive, self.active) for weight in party.module.parameters()]


def parties(makers: tuple[Callable[[], Any], ...], *, noise_seed: int | None) -> tuple[PassiveParty, ActiveParty]:
    sizes = {"train": TRAIN, "test": TEST}
    passive, active = passive_party("lab", optimizer=sgd, **sizes), active_party(1, optimizer=sgd, **sizes)
    active.connect("lab")
    for number, make in enumerate(makers):
        if isinstance(penalty := make(), Weighed):
            passive.penalties.attach(penalty)
            continue
        defense, phases = placed(penalty)
        for party in (passive, active):
            attach_defense(party, copy.deepcopy(defense), number=number, noise_seed=noise_seed, phases=phases)
    return passive, active


def train(seen: Seen, team: Team | None, partner: Team | None, *, piece: int) -> None:
    """Some epochs with batches in flight, each followed by an evaluation, of all records or of one worker's."""
    passive, active = seen.passive, seen.active
    rank = None if team is None else team.rank
    batches = Batches(TRAIN, BATCH, seed=2, shards=2, held_out_every=VALIDATED)
    batches = batches if rank is None else batches.of_shard(rank)
    tested = range(TEST) if rank is None else range(rank * TEST // 2, (rank + 1) * TEST // 2)
    plan = EvaluationPlan(
        batches.held_out,
        len(tested),
        rows=piece,
        first=tested.start,
        validates=True,
        most_validation=batches.most_held_out,
        most_test=-(-TEST // 2),
    )
    active.stop_early_by(EarlyStopping(patience=5, validation_every=VALIDATED), batches.held_out)
    for party, own in ((passive, team), (active, partner)):
        if own is not None:
            party.join(own)
    side = PassiveInFlight(passive, ACTIVE, NO_CLIPS, 1)

    def passive_half() -> Half:
        for epoch in range(EPOCHS):
            for place, rows in enumerate(batches.epoch(epoch)):
                passive.share = len(rows) / batches.whole(place)
                yield from side.step(passive.train_batch(rows), epoch * len(batches) + place)
            yield from side.drain()
            yield from passive_evaluation(passive, plan, step=epoch, epoch=epoch + 1, active=ACTIVE)

    def active_half() -> Half:
        for epoch in range(EPOCHS):
            for place, rows in enumerate(batches.epoch(epoch)):
                active.share = len(rows) / batches.whole(place)
                yield from active_step(active, active.train_batch(rows), epoch * len(batches) + place)
            evaluation = yield from active_evaluation(active, plan, step=epoch, epoch=epoch + 1)
            seen.figures |= {f"{epoch}/{name}": value for name, value in evaluation.figures.items()}

    converse({"lab": passive_half(), ACTIVE: active_half()})
    for party in (passive, active):
        check_replicas(party.team, party)
    if isinstance(team, Threads):
        seen.told = team.done


def alone(*makers: Callable[[], Any], piece: int = WHOLE) -> Seen:
    seen = Seen(*parties(makers, noise_seed=SEED))
    train(seen, None, None, piece=piece)
    return seen


def two_workers(*makers: Callable[[], Any], noise_seed: int | None = SEED, piece: int = WHOLE) -> list[Seen]:
    ours, theirs = Table(2), Table(2)

    # Not by threads, who would draw first weights from one generator.
    workers = [Seen(*parties(makers, noise_seed=noise_seed)) for _ in range(2)]

    def worker(rank: int) -> Seen:
        seen = workers[rank]
        train(seen, Threads(rank, ours), Threads(rank, theirs), piece=piece)
        return seen

    return in_threads(worker, ours, theirs)


def largest_difference(left: Seen, right: Seen) -> float:
    return max((one - other).abs().max().item() for one, other in zip(left.weights, right.weights, strict=True))


ROW_WITHOUT_NOISE = (Halved, lambda: ClipGradient(bound=0.01))
DEFENDED = {
    "nothing": (),
    "gradient of a batch": (MaxNorm,),
    "activation of a batch": (Together,),
    "activation of a batch, with rows before it": (lambda: GaussianIR(clip=1.0, sigma=0.05), Together),
    "rows without noise": ROW_WITHOUT_NOISE,
    "both": (Together, MaxNorm, Halved),
    "evaluations": (lambda: At(Together(), "evaluation"),),
    "penalty of rows": (lambda: Weighed(Length(), 0.3, warm_up_steps=4),),
}


@pytest.mark.parametrize(
    "kind",
    [
        *("gradient of a batch", "both", "penalty of rows"),
        *(
            pytest.param(kind, marks=pytest.mark.slow(reason="two more runs"))
            for kind in DEFENDED
            if kind not in ("gradient of a batch", "both", "penalty of rows")
        ),
    ],
)
def test_two_workers_end_with_the_weights_and_figures_of_one_process(kind: str) -> None:
    whole, workers = alone(*DEFENDED[kind]), two_workers(*DEFENDED[kind])
    # Sums of float32 numbers in another order, over 18 steps.
    assert largest_difference(workers[0], whole) < 2e-6
    assert largest_difference(workers[0], workers[1]) == 0
    if kind not in ("nothing", "evaluations"):
        assert largest_difference(whole, alone()) > 1e-3, "the defense changed nothing"
    assert len(whole.figures) == 4 * EPOCHS
    for name, value in whole.figures.items():
        assert workers[0].figures[name] == pytest.approx(value, abs=1e-5), name


def test_a_batch_of_an_evaluation_is_what_all_workers_send_at_a_time() -> None:
    """Of one part; a worker with fewer pieces of it comes without records, of which nothing is sent."""
    whole, workers = alone(Together, piece=PIECE), two_workers(Together, piece=PIECE)
    (in_one,) = {tuple(one.batches) for one in whole.passive.activation["evaluation"]}
    (in_all,) = {tuple(one.batches) for one in workers[0].passive.activation["evaluation"]}
    assert in_one == (5, 5, 1, *6 * (5,), 1) * EPOCHS
    assert in_all == (10, 1, 10, 10, 10, 1) * EPOCHS
    assert [one.batches for one in workers[1].passive.activation["evaluation"]] == [[]]


def test_nothing_is_gathered_where_all_act_on_rows() -> None:
    for maker in ROW_WITHOUT_NOISE, (lambda: GaussianIR(clip=1.0, sigma=0.1), lambda: Isotropic(sigma=0.01)):
        for seen in two_workers(*maker):
            assert set(seen.told) == {"add up", "collect"}
    assert "gather" in two_workers(Together)[0].told


@pytest.mark.parametrize("noise_seed", [SEED, None])
def test_noise_on_rows_is_each_workers_own(noise_seed: int | None) -> None:
    """In every phase, and the replicas stay equal nevertheless."""
    makers = (lambda: GaussianIR(clip=1.0, sigma=0.05), lambda: Isotropic(sigma=0.001))
    first, second = two_workers(*makers, noise_seed=noise_seed)
    assert largest_difference(first, second) == 0
    for one, other in ((first.passive, second.passive), (first.active, second.active)):
        for name, chain in one.chains().items():
            for label, state in chain.state_dict().items():
                theirs = other.chains()[name].state_dict()[label]
                if state["generator"] is not None:
                    assert not torch.equal(state["generator"], theirs["generator"]), (name, label)
                    assert noise_seed is not None or repr(state["keystream"]) != repr(theirs["keystream"])
