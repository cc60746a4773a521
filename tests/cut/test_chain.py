"""Chains of defenses: their order, their generators, their state, and what they hand to each defense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.cut.chain import ActivationDefenses, DefenseChain
from splitvfl.defenses import GaussianIR, Isotropic, MaxNorm, MemoisedResponse, Rounding, SumKL
from splitvfl.errors import ArgumentError, HookError, PrivacyError
from splitvfl.hooks import PHASES, At, Secrets
from splitvfl.learning.randomness import derive_seed
from splitvfl.learning.sampling import standard_normal
from splitvfl.run import checkpoint
from tests.builders import generator, record_ids

IDS = record_ids(12)
LABELS = (torch.arange(12) % 3 == 0).float()


def message(step: int = 0, width: int = 3) -> Tensor:
    return torch.randn(12, width, generator=generator("message", step)) + 2 * LABELS[:, None]


def apply(chain: DefenseChain, sent: Tensor | None = None, *, step: int = 0) -> Tensor:
    return chain.apply(message(step) if sent is None else sent, step=step, ids=IDS, labels=LABELS)


def chain_of(*defenses: Any, seed: int | None = 5, crossing: Any = "gradient") -> DefenseChain:
    chain = DefenseChain(crossing, "bank")
    for number, defense in enumerate(defenses):
        chain.attach(defense, noise_seed_for_experiments=None if seed is None else seed + number)
    return chain


class Affine:
    """``scale * message + shift``; keeps what it was given."""

    def __init__(self, scale: float, shift: float) -> None:
        self.scale, self.shift = scale, shift
        self.got: list[tuple[Tensor, Secrets]] = []

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        self.got.append((message, secrets))
        secrets.log("shift", self.shift)
        return self.scale * message + self.shift


def test_an_empty_chain_sends_the_message_itself() -> None:
    sent = message().to(torch.bfloat16)
    assert apply(DefenseChain("gradient", "bank"), sent) is sent


def test_defenses_run_in_the_order_of_attaching() -> None:
    assert torch.equal(apply(chain_of(Affine(2, 0), Affine(1, 1))), 2 * message() + 1)
    assert torch.equal(apply(chain_of(Affine(1, 1), Affine(2, 0))), 2 * (message() + 1))


def test_each_defense_gets_its_senders_secrets() -> None:
    defense = Affine(1, 0)
    apply(chain_of(defense), step=9)
    [(_, secrets)] = defense.got
    assert (secrets.party, secrets.step) == ("bank", 9)
    assert torch.equal(secrets.ids, IDS)
    assert torch.equal(secrets.labels, LABELS)
    bare = chain_of(SumKL(ratio=1.0))
    with pytest.raises(PrivacyError, match="needs the labels"):
        bare.apply(message(), step=0, ids=IDS, labels=None)


def test_detaching_takes_the_one_that_was_attached() -> None:
    chain, defense = DefenseChain("gradient", "bank"), Affine(2, 0)
    first = chain.attach(defense)
    with chain.attach(Affine(1, 1)):
        with chain.attach(defense):
            assert torch.equal(apply(chain), 2 * (2 * message() + 1))
        with pytest.raises(ZeroDivisionError), chain.attach(defense):
            raise ZeroDivisionError
        assert [type(one) for one in chain] == [Affine, Affine]
        assert torch.equal(apply(chain), 2 * message() + 1)
        first.remove()
        first.remove()
        assert torch.equal(apply(chain), message() + 1)
    assert len(chain) == 0


@pytest.mark.parametrize("defense", [Isotropic(), GaussianIR(clip=1, sigma=1), Rounding(decimals=2)])
@pytest.mark.parametrize("crossing", ["activation", "gradient", "scores", "labels"])
def test_defenses_attach_where_they_belong_only(defense: Any, crossing: Any) -> None:
    chain = DefenseChain(crossing, "bank")
    if getattr(defense, "crossing", "gradient") == crossing:
        chain.attach(defense)
        return
    with pytest.raises(ArgumentError, match=f"{defense.name} defends .*attached to {crossing}"):
        chain.attach(defense)
    assert len(chain) == 0


def test_measurements_are_kept_under_different_names() -> None:
    chain = chain_of(Affine(1, 2), Affine(1, 3), Affine(1, 4))
    apply(chain)
    assert chain.measurements == {"Affine/shift": 2.0, "Affine-2/shift": 3.0, "Affine-3/shift": 4.0}


def test_a_name_that_was_freed_is_given_again_and_no_name_twice() -> None:
    chain = DefenseChain("gradient", "bank")
    handles = [chain.attach(Affine(1, shift)) for shift in (0, 1, 2)]
    handles[1].remove()
    chain.attach(Affine(1, 9))
    assert list(chain.state_dict()) == ["Affine", "Affine-3", "Affine-2"]


def test_a_broken_defense_is_named() -> None:
    with pytest.raises(HookError, match=r"defense Affine at step 3.*NaN"):
        apply(chain_of(MaxNorm(), Affine(float("nan"), 0)), step=3)


# --- generators


def test_a_fixed_seed_gives_the_noise_of_that_seed() -> None:
    noise = standard_normal((12, 3), torch.Generator().manual_seed(5))
    # Sums are rounded to 2^-29 here, and then to float32, which has 2^-23 near 4.
    torch.testing.assert_close(apply(chain_of(Isotropic(sigma=1.0))), (noise + message()).float(), rtol=0, atol=5e-7)
    assert not torch.equal(apply(chain_of(Isotropic(sigma=1.0), seed=6)), apply(chain_of(Isotropic(sigma=1.0))))


def test_noise_for_a_device_without_float64_comes_from_a_generator_on_the_cpu() -> None:
    chain = chain_of(Isotropic(sigma=1.0))
    chain.draw_generators(torch.device("mps"))
    (attached,) = chain._attached
    assert attached.generator(torch.device("mps")).device == torch.device("cpu")
    assert attached.generator(torch.device("mps")) is attached.generator(torch.device("cpu"))


def test_every_message_gets_fresh_noise() -> None:
    chain = chain_of(Isotropic(sigma=1.0))
    assert not torch.equal(apply(chain), apply(chain))


def test_without_a_fixed_seed_noise_is_new_in_every_run_whatever_torch_was_seeded_with() -> None:
    sent = []
    for _ in range(2):
        torch.manual_seed(0)
        sent.append(apply(chain_of(Isotropic(sigma=1.0), seed=None)))
    assert not torch.equal(*sent)


def test_each_defense_draws_from_a_generator_of_its_own() -> None:
    """What the second adds does not depend on how much the first has drawn."""

    class Draws(Affine):
        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            torch.randn(int(self.scale), generator=secrets.generator)
            return message

    few = apply(chain_of(Draws(1, 0), Isotropic(sigma=1.0)))
    assert torch.equal(apply(chain_of(Draws(50, 0), Isotropic(sigma=1.0))), few)


def test_torchs_own_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    apply(chain_of(Isotropic(), MaxNorm()))
    assert torch.equal(torch.get_rng_state(), before)


def test_derived_seeds_differ_by_seed_and_purpose_and_fit_a_generator() -> None:
    purposes: list[tuple[object, ...]] = [(), ("party",), ("party", "bank"), ("party", "shop"), ("gradient", "bank", 0)]
    seeds = {derive_seed(seed, *purpose) for seed in range(20) for purpose in purposes}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(3, "party", "bank") == derive_seed(3, "party", "bank")


# --- half precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_defended_in_float32_and_cast_back_once(dtype: torch.dtype) -> None:
    first, second = Affine(1 / 3, 0), Affine(3, 1e-4)
    narrow = message().to(dtype)
    sent = apply(chain_of(first, second), narrow)
    assert {got.dtype for defense in (first, second) for got, _ in defense.got} == {torch.float32}
    assert sent.dtype == dtype
    assert torch.equal(sent, (3 * (1 / 3 * narrow.float()) + 1e-4).to(dtype))


def test_float64_stays_float64() -> None:
    defense = Affine(1 / 3, 0)
    assert torch.equal(apply(chain_of(defense), message().double()), message().double() * (1 / 3))
    assert defense.got[0][0].dtype == torch.float64


# --- state

CHAINS: dict[str, tuple[Any, list[Any]]] = {
    "stateless": ("gradient", [Isotropic, MaxNorm, lambda: Isotropic(sigma=0.1)]),
    "running statistics": ("gradient", [lambda: SumKL(ratio=1.0)]),
    "memoised": ("labels", [lambda: MemoisedResponse(flip=0.3)]),
}


@pytest.mark.parametrize("rounds", [0, 3])
@pytest.mark.parametrize("kind", CHAINS)
def test_a_chain_goes_on_after_a_restart_as_if_nothing_had_happened(tmp_path: Path, kind: str, rounds: int) -> None:
    crossing, makers = CHAINS[kind]

    def fresh(seed: int) -> DefenseChain:
        return chain_of(*(make() for make in makers), seed=seed, crossing=crossing)

    def run(chain: DefenseChain, step: int) -> Tensor:
        sent = apply(chain, LABELS if crossing == "labels" else message(step), step=step)
        return sent.clone()

    straight = fresh(5)
    for step in range(rounds):
        run(straight, step)
    saved = checkpoint.save(tmp_path, rounds, {"hooks": straight.state_dict()})
    again = fresh(77)
    again.load_state_dict(checkpoint.load(saved)["hooks"])
    # Saved once more before it was used: what was not needed yet must not be lost.
    again_saved = checkpoint.save(tmp_path, rounds + 1, {"hooks": again.state_dict()})
    third = fresh(78)
    third.load_state_dict(checkpoint.load(again_saved)["hooks"])
    for step in range(rounds, rounds + 3):
        expected = run(straight, step)
        assert torch.equal(run(again, step), expected)
        assert torch.equal(run(third, step), expected)
    assert straight.measurements == again.measurements
    assert not torch.equal(run(fresh(77), rounds), run(fresh(5), rounds))


def test_the_state_of_other_defenses_is_refused() -> None:
    state = chain_of(Isotropic(), MaxNorm()).state_dict()
    for other in (chain_of(MaxNorm(), Isotropic()), chain_of(Isotropic()), chain_of()):
        with pytest.raises(ArgumentError, match=r"\['isotropic', .*\]"):
            other.load_state_dict(state)


@pytest.mark.cuda
def test_on_a_gpu_the_generator_is_on_the_gpu_and_its_state_goes_on() -> None:
    straight, again = chain_of(Isotropic(sigma=1.0)), chain_of(Isotropic(sigma=1.0), seed=77)
    assert apply(straight, message().cuda()).is_cuda
    again.load_state_dict(straight.state_dict())
    assert torch.equal(apply(straight, message().cuda()), apply(again, message().cuda()))


# --- the phases of an activation


class Counts:
    """A defense with a state: how often it was called."""

    crossing = "activation"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        self.calls += 1
        return message + torch.randn(message.shape, generator=secrets.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.calls = state["calls"]


def test_an_activations_defense_acts_in_every_phase_as_a_copy_of_its_own() -> None:
    defenses, defense = ActivationDefenses("telecom"), Counts()
    handle = defenses.attach(defense, noise_seed_for_experiments=5)
    assert [next(iter(defenses[phase])) is defense for phase in PHASES] == [True, False, False]

    sent = {phase: apply(defenses[phase]) for phase in PHASES}

    assert torch.equal(sent["training"], apply(chain_of(Counts(), crossing="activation")))
    for phase in ("evaluation", "prediction"):
        assert torch.equal(sent[phase], apply(chain_of(Counts(), crossing="activation", seed=derive_seed(5, phase))))
    apply(defenses["training"])
    assert [one.calls for phase in PHASES for one in defenses[phase]] == [2, 1, 1]
    handle.remove()
    assert [len(defenses[phase]) for phase in PHASES] == [0, 0, 0]


def test_what_one_phase_draws_changes_nothing_of_another() -> None:
    def noise(between: int) -> Tensor:
        defenses = ActivationDefenses("telecom")
        defenses.attach(Counts(), noise_seed_for_experiments=1)
        apply(defenses["training"])
        for _ in range(between):
            apply(defenses["evaluation"])
            apply(defenses["prediction"])
        return apply(defenses["training"])

    assert torch.equal(noise(0), noise(3))


def test_phases_can_be_chosen() -> None:
    defenses = ActivationDefenses("telecom")
    defenses.attach(Counts(), at=("prediction",))
    defenses.attach(GaussianIR(clip=1.0, sigma=1.0), at=("evaluation", "training"))
    found = [[type(one).__name__ for one in defenses[phase]] for phase in PHASES]
    assert found == [["GaussianIR"], ["GaussianIR"], ["Counts"]]


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (("serving",), "expected one or more of training, evaluation, prediction, got 'serving'"),
        (("training", "x"), "got 'x'"),
        ((), "got none"),
    ],
)
def test_phases_that_do_not_exist_are_refused(at: Any, message: str) -> None:
    defenses = ActivationDefenses("telecom")
    with pytest.raises(ArgumentError, match=message):
        defenses.attach(Counts(), at=at)
    with pytest.raises(ArgumentError, match=message):
        At(Counts(), *at)
    assert [len(defenses[phase]) for phase in PHASES] == [0, 0, 0]


def test_phases_are_for_defenses_of_the_activation() -> None:
    with pytest.raises(ArgumentError, match="isotropic defends gradient; phases are for defenses of the activation"):
        At(Isotropic(), "training")
    with pytest.raises(ArgumentError, match="isotropic defends gradient"):
        ActivationDefenses("telecom").attach(Isotropic())


def test_every_phase_goes_on_after_a_restart() -> None:
    def made() -> ActivationDefenses:
        defenses = ActivationDefenses("telecom")
        defenses.attach(Counts())
        return defenses

    before, after = made(), made()
    for phase, rounds in zip(PHASES, (1, 2, 3), strict=True):
        for _ in range(rounds):
            apply(before[phase])
    for name, chain in after.chains().items():
        chain.load_state_dict(before.chains()[name].state_dict())
    for phase in PHASES:
        assert torch.equal(apply(after[phase]), apply(before[phase]))
    assert [one.calls for phase in PHASES for one in after[phase]] == [2, 3, 4]
