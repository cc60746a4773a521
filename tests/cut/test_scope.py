"""Defenses of several workers: together on a whole message, or each on its own rows with noise of its own."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.attacks import NormAttack
from splitvfl.claims import RowNorm
from splitvfl.cut.chain import DefenseChain
from splitvfl.cut.layer import CutLayer
from splitvfl.cut.views import ViewSource
from splitvfl.defenses import ClipGradient, GaussianIR, Isotropic, MaxNorm, MemoisedResponse, Purification
from splitvfl.errors import HookError, PrivacyError, TeamError
from splitvfl.hooks import Secrets, scope_of
from splitvfl.learning.label_gradients import LabelGradientSource, mean_cross_entropy
from splitvfl.learning.randomness import derive_seed
from tests.builders import generator, record_ids, seeded
from tests.team.threads import Table, Threads, in_threads

ROWS = 60
IDS = record_ids(ROWS)
LABELS = (torch.arange(ROWS) % 3 == 0).float()
# What each of two workers has of a message; of another division the second one has nothing.
UNEVEN, ONE_HAS_NONE = (23, 37), (60, 0)
SEED = 5


def message(step: int = 0, *, rows: int = ROWS, width: int = 3) -> Tensor:
    signs = 1.0 - 2.0 * (torch.arange(rows) % 3 == 0).float()
    return 0.4 * torch.randn(rows, width, generator=generator("message", step)) + signs[:, None]


def chain_of(*defenses: Any, crossing: Any = "gradient", seed: int | None = SEED, team: Any = None) -> DefenseChain:
    chain = DefenseChain(crossing, "bank")
    for number, defense in enumerate(defenses):
        chain.attach(defense, noise_seed_for_experiments=None if seed is None else seed + number)
    if team is not None:
        chain.team = team
    return chain


def parts_of(tensor: Tensor, sizes: tuple[int, int] = UNEVEN) -> tuple[Tensor, ...]:
    return tensor.split(list(sizes))


# --- what a defense says of itself


class Row:
    scope = "row"

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message.clone()


class Mixing(Row):
    """Says nothing of its own call, which is no longer about single rows."""

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message - message.mean(dim=0)


class Kept(Row):
    """Changes something else."""

    name = "kept"


class Wrapping:
    """Hands out whatever it wraps has."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message.flip(0)


class Unknown(Row):
    scope = "column"


class OfLabels(Row):
    needs_label_gradients = True


class OwnMap(Purification):
    def purified(self, shares: Tensor) -> Tensor:
        return shares / shares.sum()


def test_a_defense_acts_on_batches_unless_it_says_rows_of_its_own_call() -> None:
    assert [
        scope_of(hook) for hook in (Row(), Kept(), Mixing(), Wrapping(Row()), lambda message, secrets: message)
    ] == [
        "row",
        "row",
        "batch",
        "batch",
        "batch",
    ]
    assert scope_of(ClipGradient(bound=1.0)) == scope_of(Isotropic(sigma=1.0)) == "row"
    assert scope_of(ClipGradient(quantile=0.5)) == scope_of(Isotropic(ratio=1.0)) == "batch"
    assert scope_of(Purification(temperature=2.0)) == "row"
    assert scope_of(OwnMap(temperature=2.0)) == "batch"


@pytest.mark.parametrize(
    ("hook", "complaint"),
    [(Unknown(), "'batch' or 'row', got 'column'"), (OfLabels(), "needs gradients under every label")],
)
def test_what_it_cannot_mean_is_refused_where_it_is_attached(hook: Any, complaint: str) -> None:
    with pytest.raises(HookError, match=complaint):
        chain_of(hook)


def test_a_chain_acts_on_rows_if_every_defense_does() -> None:
    assert chain_of().scope == chain_of(ClipGradient(bound=1.0), Isotropic(sigma=1.0)).scope == "row"
    assert chain_of(ClipGradient(bound=1.0), MaxNorm()).scope == "batch"


# --- on whole messages


class Centred:
    """Subtracts the mean of all messages so far, and adds noise as large as the longest row: state, batch and noise."""

    crossing = "gradient"

    def __init__(self) -> None:
        self.total, self.calls = 0.0, 0

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        self.total += message.double().mean().item()
        self.calls += 1
        secrets.log("rows", len(message))
        return secrets.add_normal(message - self.total / self.calls, 0.3 * message.norm(dim=1).max().item())

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "calls": self.calls}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.total, self.calls = state["total"], state["calls"]


@pytest.mark.parametrize("sizes", [UNEVEN, ONE_HAS_NONE])
def test_a_whole_message_is_defended_with_the_numbers_of_one_process(sizes: tuple[int, int]) -> None:
    """A chain with one defense that acts on batches is gathered whole, the one that acts on rows included."""
    alone = chain_of(Centred(), Isotropic(sigma=0.1))
    expected = [alone.apply(message(step), step=step, ids=IDS, labels=LABELS) for step in range(3)]
    table = Table(2)

    def worker(rank: int) -> tuple[list[Tensor], Any]:
        chain = chain_of(Centred(), Isotropic(sigma=0.1), team=Threads(rank, table))
        mine = [parts_of(one, sizes)[rank] for one in (IDS, LABELS)]
        sent = [
            chain.apply_together(parts_of(message(step), sizes)[rank], step=step, ids=mine[0], labels=mine[1])
            for step in range(3)
        ]
        return sent, chain.measurements

    found = in_threads(worker, table)
    for step in range(3):
        assert torch.equal(torch.cat([sent[step] for sent, _ in found]), expected[step])
    assert found[0][1] == alone.measurements
    assert found[1][1] == {}


def test_one_memory_answers_for_the_records_of_all_workers() -> None:
    alone = chain_of(MemoisedResponse(flip=0.3), crossing="labels")
    expected = alone.apply(LABELS, step=0, ids=IDS, labels=LABELS)
    table = Table(2)

    def worker(rank: int) -> list[Tensor]:
        chain = chain_of(MemoisedResponse(flip=0.3), crossing="labels", team=Threads(rank, table))
        labels, ids = (parts_of(one)[rank] for one in (LABELS, IDS))
        return [chain.apply_together(labels, step=step, ids=ids, labels=labels) for step in (0, 1)]

    first, second = (torch.cat(one) for one in zip(*in_threads(worker, table), strict=True))
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)
    assert 0 < (expected.sign() != (2 * LABELS - 1)).sum() < ROWS


class TooLong:
    scope = "row"

    def claims(self) -> tuple[RowNorm]:
        return (RowNorm(1.0),)

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message.clone()


class TooLongTogether(TooLong):
    scope = "batch"


@pytest.mark.parametrize("defense", [TooLong, TooLongTogether])
def test_a_part_that_breaks_a_claim_is_not_sent(defense: Any) -> None:
    table = Table(2)
    rows = torch.full((ROWS, 3), 0.1)
    rows[-1] = 9.0  # the second worker's

    def worker(rank: int) -> Tensor | str:
        chain = chain_of(defense(), team=Threads(rank, table))
        try:
            return chain.apply_together(parts_of(rows)[rank], step=0, ids=parts_of(IDS)[rank], labels=None)
        except HookError as error:
            chain.team.refuse(str(error))
            return str(error)
        except TeamError as error:
            return f"told: {error}"

    found = in_threads(worker, table)
    if defense is TooLongTogether:
        assert "returned a row (number 59)" in str(found[0])
        assert str(found[1]).startswith("told")
    else:
        assert "returned a row (number 36)" in str(found[1])


@pytest.mark.parametrize("hook", [Isotropic(ratio=1.0), Isotropic(sigma=1.0)])
def test_a_bound_that_is_agreed_on_is_asked_for_by_every_worker(hook: Any) -> None:
    table = Table(2)

    def worker(rank: int) -> str:
        chain = chain_of(hook, team=Threads(rank, table))
        with pytest.raises(PrivacyError) as caught:
            chain.keep_to(1.0)
        with pytest.raises(PrivacyError):
            chain.apply_together(parts_of(message())[rank], step=0, ids=parts_of(IDS)[rank], labels=None)
        return str(caught.value)

    for said in in_threads(worker, table):
        assert "expected defenses that bound each row" in said


# --- on rows


def test_rows_without_noise_have_the_numbers_of_one_process_and_nothing_is_gathered() -> None:
    expected = chain_of(ClipGradient(bound=0.8)).apply(message(), step=0, ids=IDS, labels=None)
    table = Table(2)

    def worker(rank: int) -> tuple[Tensor, list[str]]:
        team = Threads(rank, table)
        chain = chain_of(ClipGradient(bound=0.8), team=team)
        sent = chain.apply_together(parts_of(message())[rank], step=0, ids=parts_of(IDS)[rank], labels=None)
        return sent, team.done

    found = in_threads(worker, table)
    torch.testing.assert_close(torch.cat([sent for sent, _ in found]), expected, rtol=1e-6, atol=0)
    assert [done for _, done in found] == [[], []]
    assert (expected.norm(dim=1) < message().norm(dim=1)).any()


def test_a_worker_without_rows_has_nothing_to_defend() -> None:
    table = Table(2)

    def worker(rank: int) -> Tensor:
        chain = chain_of(ClipGradient(bound=0.8), Isotropic(sigma=0.1), team=Threads(rank, table))
        mine = parts_of(message(), ONE_HAS_NONE)[rank]
        return chain.apply_together(mine, step=0, ids=parts_of(IDS, ONE_HAS_NONE)[rank], labels=None)

    assert [len(one) for one in in_threads(worker, table)] == [ROWS, 0]


NOISY = {
    "gradient": (lambda: Isotropic(sigma=0.1), "gradient"),
    "activation": (lambda: GaussianIR(clip=100.0, sigma=0.1), "activation"),
}


def noise_of(worker: int, kind: str, seed: int | None, *, steps: int = 2) -> tuple[Tensor, Any]:
    """The noise of a worker over some steps as one row of numbers, and the state that it ends with."""
    make, crossing = NOISY[kind]
    team = Threads(worker, Table(2))
    chain = chain_of(make(), crossing=crossing, seed=seed, team=team)
    rows = message(rows=1000, width=20).double()
    ids = record_ids(1000)
    drawn = [chain.apply_together(rows, step=step, ids=ids, labels=None) - rows for step in range(steps)]
    assert not team.done
    return torch.cat(drawn).reshape(-1), chain.state_dict()


@pytest.mark.parametrize("seed", [SEED, None])
@pytest.mark.parametrize("kind", NOISY)
def test_noise_of_two_workers_has_nothing_in_common_under_one_seed_too(kind: str, seed: int | None) -> None:
    """At no distance, so that no row of any step of one has the noise of a row of the other."""
    (first, state), (second, other) = (noise_of(worker, kind, seed) for worker in (0, 1))
    (label,) = state
    for kept in ("generator", "keystream"):
        assert state[label][kept] is None or repr(state[label][kept]) != repr(other[label][kept]), kept
    assert not torch.equal(state[label]["generator"], other[label]["generator"])

    spectra = [torch.fft.rfft(one - one.mean()) for one in (first, second)]
    count = len(first)
    correlations = torch.fft.irfft(spectra[0] * spectra[1].conj(), n=count) / (count * first.std() * second.std())
    # Each is normal with standard deviation 1 / sqrt(count) nearly; that one of 40 000 is beyond 7: 1e-7.
    assert correlations.abs().max() < 7 / math.sqrt(count)
    # The scale is what it is in one process: standard error 1 / sqrt(2 count).
    for noise in (first, second):
        assert noise.std() == pytest.approx(0.1, rel=7 / math.sqrt(2 * count))


def test_worker_0_has_the_noise_of_one_process_under_a_seed() -> None:
    alone = chain_of(Isotropic(sigma=0.1))
    rows = message(rows=1000, width=20).double()
    drawn = alone.apply(rows, step=0, ids=record_ids(1000), labels=None) - rows
    assert torch.equal(noise_of(0, "gradient", SEED, steps=1)[0], drawn.reshape(-1))
    assert not torch.equal(noise_of(1, "gradient", SEED, steps=1)[0], drawn.reshape(-1))
    assert derive_seed(SEED, "worker", 1) != SEED


@pytest.mark.parametrize("seed", [SEED, None])
@pytest.mark.parametrize("drawn_before", [False, True])
def test_every_worker_goes_on_with_its_own_noise(seed: int | None, drawn_before: bool) -> None:
    """From the state that its checkpoint holds, of a run that has drawn nothing yet too."""
    for worker in (0, 1):
        table = Table(2)  # nobody meets at it
        chain = chain_of(Isotropic(sigma=0.1), seed=seed, team=Threads(worker, table))
        if drawn_before:
            chain.apply_together(message(), step=0, ids=IDS, labels=None)
        chain.draw_generators(torch.device("cpu"))
        file = io.BytesIO()
        torch.save(chain.state_dict(), file)
        file.seek(0)
        again = chain_of(Isotropic(sigma=0.1), seed=None if seed is None else 77, team=Threads(worker, table))
        again.load_state_dict(torch.load(file, weights_only=True))
        for step in (1, 2):
            sent = [one.apply_together(message(step), step=step, ids=IDS, labels=None) for one in (chain, again)]
            assert torch.equal(*sent)


# --- at the cut


class Remember(NormAttack):
    """The norm attack, which keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __call__(self, view: Any, /) -> Tensor:
        self.seen.append(view.gradient)
        return super().__call__(view)


def backward(cut: CutLayer, top: nn.Module, rows: slice, *, share: float, steps: int = 3) -> list[Tensor]:
    """The gradients of some steps of a label party that has these rows of every batch."""
    sent = []
    for step in range(steps):
        leaf = message(step)[rows].requires_grad_()
        labels = LABELS[rows]
        source = LabelGradientSource(mean_cross_entropy, labels) if cut.needs_label_gradients else None
        crossed = cut(
            leaf, labels=labels, ids=IDS[rows], step=step, view_source=ViewSource(activation=leaf), source=source
        )
        outputs = top(crossed)
        if source is not None:
            outputs = source.follow(outputs, {cut.party: crossed}, classes=2, values=(0.0, 1.0))
        loss = mean_cross_entropy(outputs, labels) if len(labels) else outputs.sum() * 0.0
        (loss * share).backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        sent.append(leaf.grad)
    return sent


# Made once: threads that draw weights have one generator.
TOP = seeded("top of a scope", lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))


def watched_cut(*defenses: Any, team: Any = None) -> tuple[CutLayer, Any, Any, Remember]:
    cut, attack = CutLayer("lab"), Remember()
    cut.show_received()
    for number, defense in enumerate(defenses):
        cut.defend(defense, noise_seed_for_experiments=SEED + number)
    if team is not None:
        cut.gradient.team = team
    return cut, cut.watch(attack), cut.audit(), attack


@pytest.mark.parametrize("sizes", [UNEVEN, ONE_HAS_NONE])
@pytest.mark.parametrize("makers", [(), (lambda: ClipGradient(bound=0.004),), (MaxNorm,)], ids=["none", "row", "batch"])
def test_attacks_and_the_auditor_have_the_figures_of_one_process(makers: Any, sizes: tuple[int, int]) -> None:
    alone, leak, audit, _ = watched_cut(*(make() for make in makers))
    expected = backward(alone, copy.deepcopy(TOP), slice(0, ROWS), share=1.0)
    table = Table(2)

    def worker(rank: int) -> tuple[list[Tensor], Any, Any]:
        cut, leak, audit, _ = watched_cut(*(make() for make in makers), team=Threads(rank, table))
        rows = slice(0, sizes[0]) if rank == 0 else slice(sizes[0], ROWS)
        return backward(cut, copy.deepcopy(TOP), rows, share=sizes[rank] / ROWS), leak, audit

    found = in_threads(worker, table)
    for step, whole in enumerate(expected):
        torch.testing.assert_close(torch.cat([sent[step] for sent, *_ in found]), whole, rtol=1e-5, atol=1e-8)
    assert found[0][1].auc == pytest.approx(leak.auc, abs=2e-3)
    assert found[0][2].total == pytest.approx(audit.total, abs=2e-3)
    assert found[0][1].summary.steps == leak.summary.steps == 3
    assert found[1][1].summary.steps == 0


def test_to_look_on_changes_nothing_of_what_workers_send() -> None:
    """Noise of rows is each worker's, whether attacks are watched or not: who goes on without them draws the same."""
    table = Table(2)

    def worker(rank: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        rows = slice(0, UNEVEN[0]) if rank == 0 else slice(UNEVEN[0], ROWS)
        watched, _, _, attack = watched_cut(Isotropic(sigma=0.1), team=Threads(rank, table))
        bare = CutLayer("lab")
        bare.defend(Isotropic(sigma=0.1), noise_seed_for_experiments=SEED)
        bare.gradient.team = Threads(rank, Table(2))  # where nobody would come
        sent = [backward(cut, copy.deepcopy(TOP), rows, share=UNEVEN[rank] / ROWS) for cut in (watched, bare)]
        return sent[0], sent[1], attack.seen

    found = in_threads(worker, table)
    for watched, bare, _ in found:
        assert all(torch.equal(left, right) for left, right in zip(watched, bare, strict=True))
    seen = found[0][2]
    assert len(seen) == 3
    for step, one in enumerate(seen):
        assert torch.equal(one, torch.cat([watched[step] for watched, *_ in found]))


class Fails(NormAttack):
    def __call__(self, view: Any, /) -> Tensor:
        raise ZeroDivisionError("a mistake of its author")


def test_where_worker_0_cannot_look_on_nobody_sends() -> None:
    table = Table(2)

    def worker(rank: int) -> str:
        cut, team = CutLayer("lab"), Threads(rank, table)
        cut.defend(ClipGradient(bound=0.004))
        cut.watch(Fails())
        cut.gradient.team = team
        rows = slice(0, UNEVEN[0]) if rank == 0 else slice(UNEVEN[0], ROWS)
        with pytest.raises((HookError, TeamError)) as caught:
            backward(cut, copy.deepcopy(TOP), rows, share=UNEVEN[rank] / ROWS, steps=1)
        team.refuse(str(caught.value))
        return type(caught.value).__name__

    assert in_threads(worker, table) == ["HookError", "TeamError"]


def test_numbers_as_labels_reach_defenses_as_they_are() -> None:
    """Not as classes, which they would be above and below one half."""
    table, numbers, seen = Table(2), torch.linspace(-2.0, 3.0, ROWS), list[Tensor]()

    class Looks:
        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            seen.append(secrets.labels)
            return message.clone()

    def worker(rank: int) -> None:
        cut = CutLayer("lab")
        cut.defend(Looks())
        cut.gradient.team = Threads(rank, table)
        leaf = parts_of(message())[rank].requires_grad_()
        cut(leaf, labels=parts_of(numbers)[rank], ids=parts_of(IDS)[rank], step=0).sum().backward()

    in_threads(worker, table)
    assert len(seen) == 1
    assert torch.equal(seen[0], numbers)
