"""What defenses claim of the rows they return, how a chain is judged by it, and what is stopped while it runs."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.claims import (
    ROW_CLAIMS,
    Claim,
    Gaussian,
    NoPromise,
    PerRecord,
    RowNorm,
    broken,
    claims_of,
    is_per_record,
    row_bound,
)
from splitvfl.cut.chain import DefenseChain
from splitvfl.defenses import ClipGradient, CoefficientNoise, GaussianIR, Isotropic, SumKL, TopK
from splitvfl.defenses.row_norms import row_norms
from splitvfl.errors import ArgumentError, HookError, PrivacyError
from splitvfl.hooks import Secrets
from tests.builders import generator

INF = math.inf


class Louder:
    """Multiplies by a factor; ``claims`` is what a test wants it to claim."""

    crossing = "activation"

    def __init__(self, clip: float = 1.0, factor: float = 100.0, claims: Any = ()) -> None:
        self.clip = self.bound = clip
        self.factor, self.stated = factor, claims

    def claims(self) -> Any:
        return self.stated

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message * self.factor


class Silent:
    """As above, and states nothing: all it has is an argument called ``clip``."""

    crossing = "activation"

    def __init__(self, clip: float) -> None:
        self.clip = self.bound = clip

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message * 100


class Clip:
    crossing = "activation"

    def __init__(self, bound: float = 1.0) -> None:
        self.limit = bound

    def claims(self) -> tuple[Claim, ...]:
        return (RowNorm(self.limit),)

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message * (self.limit / row_norms(message).clamp(min=self.limit))[:, None]


class Noise:
    """Adds noise to rows that it clips, shows them as told, and returns a multiple."""

    crossing = "activation"

    def __init__(self, sigma: float, *, show: int = 1, clip: float = 1.0, factor: float = 1.0) -> None:
        self.sigma, self.show, self.clip, self.factor = sigma, show, clip, factor

    def claims(self) -> tuple[Claim, ...]:
        return (Gaussian(self.sigma, bound=1.0),)

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        rows = Clip(self.clip)(message, secrets)
        for _ in range(self.show):
            secrets.before_noise(rows)
        # In place: what was shown must not change with it.
        rows.add_(self.sigma * torch.randn(rows.shape, generator=secrets.generator, dtype=rows.dtype))
        return rows * self.factor


def chain_of(*defenses: Any, crossing: Any = "activation") -> DefenseChain:
    chain = DefenseChain(crossing, "lab")
    for number, defense in enumerate(defenses):
        chain.attach(defense, noise_seed_for_experiments=number)
    return chain


def rows(count: int = 6, width: int = 4, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows of norms from about .1 to 100."""
    normal = torch.randn(count, width, generator=generator("claims", count, width), dtype=dtype)
    return normal * torch.logspace(-1, 2, count, dtype=dtype)[:, None]


def send(chain: DefenseChain, message: Tensor | None = None) -> Tensor:
    return chain.apply(rows() if message is None else message, step=3, ids=None, labels=None)


# --- what is claimed


@pytest.mark.parametrize(
    ("defense", "claims", "per_record"),
    [
        (GaussianIR(clip=2.0, sigma=0.5), (Gaussian(0.5, bound=2.0),), True),
        (CoefficientNoise(sigma=1.0, clip=4.0), (PerRecord(),), True),
        (ClipGradient(bound=0.1), (RowNorm(0.1),), False),
        (ClipGradient(quantile=0.5), (), False),
        (Isotropic(sigma=2.0), (Gaussian(2.0),), False),
        (Isotropic(ratio=2.0), (), False),
        (SumKL(ratio=1.0), (), False),
    ],
)
def test_what_comes_with_the_package_claims(defense: Any, claims: tuple[Claim, ...], per_record: bool) -> None:
    assert tuple(claim for claim in claims_of(defense) if isinstance(claim, ROW_CLAIMS)) == claims
    assert is_per_record(claims_of(defense)) == per_record


def test_an_attribute_is_short_for_one_claim() -> None:
    class Own(Clip):
        per_record_guarantee = True

    assert claims_of(Own(2.0)) == (RowNorm(2.0), PerRecord())
    silent = Silent(1.0)
    assert claims_of(silent) == ()
    silent.per_record_guarantee = True  # type: ignore[attr-defined]
    assert claims_of(silent) == (PerRecord(),)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, INF, True, "1", None])
def test_a_bound_is_positive_and_finite(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="RowNorm: bound must be positive and finite"):
        RowNorm(wrong)
    with pytest.raises(ArgumentError, match="Gaussian: sigma must be positive and finite"):
        Gaussian(wrong)
    if wrong is not None:
        with pytest.raises(ArgumentError, match="Gaussian: bound must be positive and finite"):
            Gaussian(1.0, bound=wrong)


def test_claims_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        RowNorm(1.0).bound = 2.0  # type: ignore[misc]


class _Wider(RowNorm):
    """A claim that could say another bound each time."""


@pytest.mark.parametrize(
    "given",
    [None, RowNorm(1.0), [RowNorm(1.0)], ("row norm 1",), (RowNorm,), (_Wider(1.0),), (RowNorm(1.0), 1.0)],
    ids=["none", "bare", "list", "text", "type", "subclass", "number"],
)
def test_anything_but_claims_is_refused(given: Any) -> None:
    with pytest.raises(
        HookError,
        match=r"Louder: claims\(\) must return a tuple of RowNorm, Gaussian, PerRecord, GaussianDP, PureDP, "
        "DetectionError, NoPromise, got",
    ):
        claims_of(Louder(claims=given))


def test_two_statements_on_the_norm_of_rows_are_refused() -> None:
    with pytest.raises(HookError, match="must say one thing of the norm of rows"):
        claims_of(Louder(claims=(RowNorm(1.0), Gaussian(1.0))))


def test_claims_hold_for_the_call_that_they_were_written_for() -> None:
    class Loud(GaussianIR):
        def __call__(self, activation: Tensor, secrets: Secrets, /) -> Tensor:
            return 100 * super().__call__(activation, secrets)

    class Honest(Loud):
        def claims(self) -> tuple[Any]:
            return ()  # type: ignore[return-value]

    class Renamed(GaussianIR):
        name = "renamed"

    with pytest.raises(HookError, match=r"gaussian-ir: its __call__ replaces that of GaussianIR.*give Loud a claims"):
        claims_of(Loud(clip=1.0, sigma=0.1))
    assert claims_of(Honest(clip=1.0, sigma=0.1)) == ()
    assert claims_of(Renamed(clip=1.0, sigma=0.1))[0] == Gaussian(0.1, bound=1.0)


def test_who_replaces_what_promises_nothing_has_nothing_to_take_back() -> None:
    class Own(TopK):
        def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
            return gradient.clone()

    assert isinstance(claims_of(TopK())[0], NoPromise)
    assert claims_of(Own()) == ()


def test_what_is_wrapped_claims_nothing_for_its_wrapper() -> None:
    class Amplified:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            return 100 * self._inner(message, secrets)  # type: ignore[no-any-return]

    with pytest.raises(HookError, match="claims must be a method of its class"):
        claims_of(Amplified(GaussianIR(clip=1.0, sigma=0.1)))
    given = Silent(1.0)
    given.claims = lambda: (RowNorm(1.0),)  # type: ignore[attr-defined]
    with pytest.raises(HookError, match="claims must be a method of its class"):
        claims_of(given)


# --- a chain, in its order


@pytest.mark.parametrize(
    ("stated", "norm", "why"),
    [
        ([], None, "no defense bounds them"),
        ([("silent", ())], None, "no defense bounds them"),
        ([("clip", (RowNorm(2.0),))], 2.0, "clip bounds them to 2"),
        ([("noise", (Gaussian(1.0, bound=3.0),))], 3.0, "noise bounds them to 3"),
        ([("noise", (Gaussian(1.0),))], None, "no defense bounds them"),
        ([("clip", (RowNorm(2.0),)), ("noise", (Gaussian(1.0),))], 2.0, "clip bounds them to 2"),
        ([("clip", (RowNorm(2.0),)), ("wider", (RowNorm(5.0),))], 5.0, "wider bounds them to 5"),
        ([("clip", (RowNorm(2.0),)), ("loud", ())], None, "loud, which comes after clip, .* voids the one of 2"),
        ([("noise", (Gaussian(1.0, bound=3.0),)), ("loud", ())], None, "loud, which comes after noise, .* one of 3"),
        ([("clip", (RowNorm(2.0),)), ("other", (PerRecord(),))], None, "other, which comes after clip"),
        ([("clip", (RowNorm(2.0),)), ("loud", ()), ("noise", (Gaussian(1.0),))], None, "loud, which comes after clip"),
        ([("loud", ()), ("clip", (PerRecord(), RowNorm(2.0)))], 2.0, "clip bounds them to 2"),
    ],
)
def test_a_chain_is_judged_in_its_order(stated: Any, norm: float | None, why: str) -> None:
    found = row_bound(stated)
    assert found.norm == norm
    assert re.search(why, found.why), found.why


@pytest.mark.parametrize(
    "defenses",
    [
        [],
        [Silent(clip=1.0)],
        [Louder(clip=1.0)],
        [Clip(1.0), Silent(clip=1.0)],
        [Clip(1.0), Louder()],
        [GaussianIR(clip=1.0, sigma=0.1), Silent(clip=1.0)],
        [GaussianIR(clip=1.0, sigma=0.1), Louder(claims=(PerRecord(),))],
        [Louder(claims=(RowNorm(1.001),))],
        [GaussianIR(clip=1.001, sigma=0.1)],
    ],
    ids=lambda defenses: "+".join(type(defense).__name__ for defense in defenses) or "none",
)
def test_nothing_is_sent_unless_rows_are_bounded_as_agreed(defenses: list[Any]) -> None:
    chain = chain_of(*defenses)
    with pytest.raises(PrivacyError, match=r"bound each row of the activation of lab to 1: .*nothing was sent"):
        chain.keep_to(1.0)
    with pytest.raises(PrivacyError, match="nothing was sent"):
        send(chain)


def test_a_bound_that_is_lower_than_agreed_will_do() -> None:
    chain = chain_of(GaussianIR(clip=0.9, sigma=0.1))
    chain.keep_to(1.0)
    send(chain)
    chain.keep_to(None)


def test_the_agreed_bound_is_asked_for_before_every_message() -> None:
    chain = chain_of()
    clip = chain.attach(Clip(1.0))
    chain.keep_to(1.0)
    send(chain)
    with chain.attach(Silent(clip=1.0)), pytest.raises(PrivacyError, match="Silent, which comes after Clip"):
        send(chain)
    send(chain)
    clip.remove()
    with pytest.raises(PrivacyError, match="no defense bounds them"):
        send(chain)


# --- while it runs


@pytest.mark.parametrize("crossing", ["activation", "gradient"])
def test_a_row_above_its_bound_is_not_sent(crossing: Any) -> None:
    defense = Louder(factor=1.0, claims=(RowNorm(1.0),))
    defense.crossing = crossing  # type: ignore[misc]
    chain = chain_of(defense, crossing=crossing)
    chain.keep_to(1.0)
    short = torch.full((3, 4), 0.5)
    assert torch.equal(send(chain, short), short)  # norm 1, to the bit
    long = short.clone()
    long[1, 2] = 0.75
    complaint = (
        r"defense Louder at step 3 returned a row \(number 1\) of norm 1\.1456\d*, and claims at most 1; nothing"
    )
    with pytest.raises(HookError, match=complaint):
        send(chain, long)


def test_a_claim_that_changes_is_held_to_its_first_form() -> None:
    clip = Clip(1.0)
    chain = chain_of(clip)
    chain.keep_to(1.0)
    clip.limit = 50.0
    assert claims_of(clip) == (RowNorm(50.0),)
    with pytest.raises(HookError, match="claims at most 1;"):
        send(chain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 128, 5000])
@pytest.mark.parametrize("bound", [1e-30, 0.1, 1.0, 3.3e7, 1e30])
def test_rows_that_are_clipped_as_they_should_be_pass(dtype: torch.dtype, width: int, bound: float) -> None:
    """The bound in units of the last place, which the clip below reaches from both sides."""
    message = (rows(200, width, dtype=torch.float64) * bound).to(dtype)
    for chain in (
        chain_of(ClipGradient(bound=bound), crossing="gradient"),
        chain_of(Clip(bound)),
        chain_of(GaussianIR(clip=bound, sigma=bound / 100)),
        chain_of(ClipGradient(bound=bound), Isotropic(sigma=bound), crossing="gradient"),
    ):
        chain.keep_to(bound)
        send(chain, message)


def test_the_tolerance_is_that_of_rounding_and_no_more() -> None:
    # Of width 4 in float32 it is (4 / 4 + 4) · 2^-23 = 6e-7.
    exact = torch.full((1, 4), 0.5)
    for excess, passes in ((4e-7, True), (1e-6, False)):
        complaint = broken((RowNorm(1.0),), message=exact, shown=[], sent=exact * (1 + excess))
        assert (complaint == "") == passes, complaint


@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_numbers_that_are_none_are_above_every_bound(value: float) -> None:
    spoiled = torch.zeros(3, 2)
    spoiled[2, 1] = value
    assert "(number 2)" in broken((RowNorm(1.0),), message=spoiled, shown=[], sent=spoiled)
    claim = (Gaussian(1.0, bound=1.0),)
    assert "would add noise to a row (number 2)" in broken(claim, message=spoiled, shown=[spoiled], sent=spoiled)
    assert "(number 2)" in broken((Gaussian(1.0),), message=torch.zeros(3, 2), shown=[], sent=spoiled)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_messages_without_numbers_pass(shape: tuple[int, int]) -> None:
    empty = torch.zeros(shape)
    for claim in (RowNorm(1.0), Gaussian(1.0)):
        assert send(chain_of(Louder(factor=1.0, claims=(claim,))), empty).shape == shape
    assert broken((Gaussian(1.0, bound=1.0),), message=empty, shown=[empty], sent=empty) == ""


def test_norms_neither_vanish_nor_overflow() -> None:
    for unit in (1e-200, 1e200):
        message = torch.tensor([[3.0, 4.0]], dtype=torch.float64) * unit
        assert broken((RowNorm(5.0 * unit),), message=message, shown=[], sent=message) == ""
        assert "of norm 5e" in broken((RowNorm(4.99 * unit),), message=message, shown=[], sent=message)


def test_rows_before_noise_are_checked_although_nobody_can_see_them_later() -> None:
    send(chain_of(Noise(50.0)))
    # σ = 50 hides the norm 1.5 of a row in what is sent.
    with pytest.raises(
        HookError, match=r"would add noise to a row \(number \d\) of norm 1\.5\d*, and claims at most 1"
    ):
        send(chain_of(Noise(50.0, clip=1.5)))


@pytest.mark.parametrize("times", [0, 2])
def test_who_bounds_rows_before_noise_shows_them_once(times: int) -> None:
    with pytest.raises(HookError, match=rf"expected secrets.before_noise\(rows\) once in a call, got {times} times"):
        send(chain_of(Noise(1.0, show=times)))


def test_what_is_shown_is_what_noise_is_added_to() -> None:
    class Decoy(Noise):
        def claims(self) -> tuple[Claim, ...]:
            return (Gaussian(0.1, bound=1.0),)

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            secrets.before_noise(torch.zeros_like(message))
            return message.clone()

    with pytest.raises(
        HookError, match=r"changed a row \(number \d\) by .* noise of standard deviation 0\.1, .* than 1\.2"
    ):
        send(chain_of(Decoy(0.1)))


@pytest.mark.parametrize("defense", [Noise(0.5, factor=30.0), Louder(factor=100.0, claims=(Gaussian(0.1),))])
def test_noise_of_another_size_than_claimed_is_not_sent(defense: Any) -> None:
    with pytest.raises(HookError, match="changed a row"):
        send(chain_of(defense))


@pytest.mark.parametrize("width", [1, 2, 16, 300])
@pytest.mark.parametrize("sigma", [1e-12, 1e-3, 50.0])
def test_noise_as_claimed_passes(width: int, sigma: float) -> None:
    # A false alarm has probability 2e-22 per row; below rounding nothing is left of the noise, and nothing is judged.
    chain = chain_of(GaussianIR(clip=1.0, sigma=sigma))
    for _ in range(20):
        send(chain, rows(50, width))


def test_rounding_to_half_precision_may_lengthen_a_row_by_what_is_written() -> None:
    # 0.50196 lies just above the middle of two neighbours in bfloat16, 1/2 and 1/2 + 2^-8, and is rounded up.
    message = torch.full((1, 4), 0.50196)
    norm = 2 * 0.50196
    chain = chain_of(Clip(norm))
    chain.keep_to(norm)
    sent = send(chain, message).to(torch.bfloat16).double().norm().item()
    assert norm < sent <= norm * (1 + 1 / 256)


def test_a_broken_claim_is_told_in_the_order_of_the_chain() -> None:
    chain = chain_of(Louder(claims=(RowNorm(1.0),)), Clip(1.0))
    chain.keep_to(1.0)
    with pytest.raises(HookError, match="defense Louder at step 3 returned a row"):
        send(chain)


def test_claims_of_defenses_of_labels_and_scores_are_checked_too() -> None:
    class Same:
        crossing = "labels"

        def claims(self) -> tuple[Claim, ...]:
            return (RowNorm(1.0),)

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            return message.clone()

    chain = chain_of(Same(), crossing="labels")
    send(chain, torch.tensor([0, 1, 1]))
    with pytest.raises(HookError, match=r"row \(number 2\) of norm 2"):
        send(chain, torch.tensor([0, 1, 2]))
