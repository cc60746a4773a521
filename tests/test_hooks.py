"""What a hook may see, may return, and what happens when it breaks its contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.data.columns import Columns
from splitvfl.errors import ArgumentError, HookError, PrivacyError
from splitvfl.hooks import (
    Secrets,
    View,
    ViewField,
    all_finite,
    batch_mixing_layer,
    call_attack,
    call_defense,
    crossing_of,
    fields_in_words,
    hook_name,
    moment_of,
    needs_of,
    target_of,
)
from tests.rows import every

IDS = torch.tensor([2**41, -5, 7])
FIELDS = sorted(name for name in vars(View) if isinstance(vars(View)[name], ViewField))


def view(**seen: Any) -> View:
    return View(party="telecom", step=4, ids=IDS.clone(), **seen)


def secrets(**known: Any) -> Secrets:
    return Secrets(party="bank", step=4, generator=torch.Generator().manual_seed(0), **known)


class Named:
    """A hook that calls the function it was made with, under a name that errors must carry."""

    name = "the culprit"

    def __init__(self, act: Callable[..., Any], **attributes: Any) -> None:
        self.act = act
        self.__dict__.update(attributes)

    def __call__(self, *arguments: Any) -> Any:
        return self.act(*arguments)


# --- views and secrets


def test_every_field_of_a_view_has_words_and_a_plug_ins_own_its_name() -> None:
    assert len(FIELDS) > 15
    words = fields_in_words(FIELDS)
    assert len(set(words)) == len(FIELDS)
    assert not [text for text in words if "_" in text or text in FIELDS]
    assert fields_in_words(["scores", "charm"]) == ["charm", "published scores"]


def test_a_view_has_no_field_for_labels() -> None:
    assert not [name for name in FIELDS if "label" in name]
    for name in ("labels", "label", "tensors", "fields", "anything"):
        with pytest.raises(TypeError, match=name):
            view(**{name: torch.zeros(3)})


def test_a_view_takes_no_attributes() -> None:
    seen = view(gradient=torch.zeros(3, 2))
    for name in ("labels", "gradient", "activation"):
        with pytest.raises(AttributeError):
            setattr(seen, name, torch.zeros(3))


@every(field=FIELDS)
def test_only_what_was_seen_can_be_read(field: str) -> None:
    value = torch.ones(3, 2)
    assert torch.equal(getattr(view(**{field: value}), field), value)
    with pytest.raises(HookError, match=f"no {field}: it shows nothing.*`needs`"):
        getattr(view(), field)
    other = next(name for name in FIELDS if name != field)
    with pytest.raises(HookError, match=f"it shows {other}"):
        getattr(view(**{other: value}), field)


def test_granting_adds_side_knowledge_to_a_new_view() -> None:
    before = view(gradient=torch.zeros(3, 2))
    granted = before.granting(known_positives=IDS[:1])
    assert before.fields == ("gradient",)
    assert granted.fields == ("gradient", "known_positives")
    assert (granted.party, granted.step) == (before.party, before.step)
    assert torch.equal(granted.ids, before.ids)
    with pytest.raises(TypeError, match="labels"):
        before.granting(labels=torch.zeros(3))


def test_a_views_tensors_are_all_of_them() -> None:
    weights = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}
    columns = Columns(torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.int64))
    seen = view(gradient=torch.zeros(3, 2), weights=weights, columns=columns)
    expected = [seen.ids, seen.gradient, *seen.weights.values(), *seen.columns]
    assert {id(tensor) for tensor in seen.tensors()} == {id(tensor) for tensor in expected}
    assert len(expected) == 6


@pytest.mark.parametrize("what", ["labels", "ids"])
def test_secrets_that_are_not_there_raise(what: str) -> None:
    with pytest.raises(PrivacyError, match=r"nothing was sent.*labels=y, ids=ids"):
        getattr(secrets(), what)
    assert torch.equal(getattr(secrets(**{what: IDS}), what), IDS)


def test_measurements_reach_the_log_if_there_is_one() -> None:
    logged: list[tuple[str, float]] = []
    secrets(log=lambda name, value: logged.append((name, value))).log("power", 2.0)
    secrets().log("power", 3.0)
    assert logged == [("power", 2.0)]


# --- what a hook says about itself


def test_defaults_of_a_hook() -> None:
    class Plain:
        pass

    assert hook_name(Plain()) == "Plain"
    assert needs_of(Plain()) == {"gradient"}
    assert target_of(Plain()) == "labels"
    assert moment_of(Plain()) == "every-step"
    assert crossing_of(Plain()) == "gradient"


def test_attributes_of_a_hook() -> None:
    hook = Named(id, needs=("scores", "weights"), target="features", crossing="scores")
    assert hook_name(hook) == "the culprit"
    assert needs_of(hook) == {"scores", "weights"}
    assert (target_of(hook), crossing_of(hook)) == ("features", "scores")
    assert moment_of(Named(id, when="after-training")) == "after-training"


def test_unknown_targets_moments_and_crossings_are_refused_by_name() -> None:
    with pytest.raises(HookError, match=r"the culprit: when.*'never'"):
        moment_of(Named(id, when="never"))
    with pytest.raises(HookError, match=r"the culprit: target.*'columns'"):
        target_of(Named(id, target="columns"))
    with pytest.raises(HookError, match=r"the culprit: crossing.*'weights'"):
        crossing_of(Named(id, crossing="weights"))


# --- attacks


def attack_with(act: Callable[[View], Any], **attributes: Any) -> Tensor:
    gradient = torch.arange(6.0).reshape(3, 2)
    weights = {"weight": torch.ones(2, 2)}
    columns = Columns(torch.ones(3, 2), torch.zeros(3, 1, dtype=torch.int64))
    return call_attack(Named(act, **attributes), view(gradient=gradient, weights=weights, columns=columns))


def test_attacks_name_their_arguments_freely() -> None:
    def unusual(whatever: View) -> Tensor:
        return whatever.gradient.sum(1)

    assert attack_with(unusual).tolist() == [1.0, 5.0, 9.0]


def test_attacks_leave_records_unscored_with_nan() -> None:
    assert attack_with(lambda _: torch.tensor([torch.nan, 1.0, 2.0])).isnan().tolist() == [True, False, False]


def test_attacks_run_without_gradients() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert not attack_with(lambda seen: seen.gradient @ weight).requires_grad


@pytest.mark.parametrize(
    ("returned", "target", "complaint"),
    [
        (None, "labels", "expected a tensor of 3 scores, got NoneType"),
        ([1.0, 2.0, 3.0], "labels", "expected a tensor of 3 scores, got list"),
        (torch.zeros(3).to_sparse(), "labels", r"expected a dense tensor, got sparse_coo; return it with to_dense\(\)"),
        (torch.zeros(3, 2).to_sparse(), "features", "expected a dense tensor, got sparse_coo"),
        (torch.zeros(3, 2, device="meta"), "features", "a tensor on torch's meta device, which has a shape alone"),
        (torch.zeros(3, 2) * 1j, "features", "expected real numbers, got torch.complex64"),
        (torch.zeros(3, dtype=torch.complex128), "members", "expected real numbers, got torch.complex128"),
        (torch.zeros(2), "labels", r"expected shape \(3,\), got \(2,\)"),
        (torch.zeros(4), "labels", r"expected shape \(3,\), got \(4,\)"),
        (torch.zeros(()), "labels", r"expected shape \(3,\), got \(\)"),
        (torch.zeros(3, 1), "labels", r"expected shape \(3,\), got \(3, 1\)"),
        (torch.zeros(2, 3), "features", r"expected shape \(3, d\), got \(2, 3\)"),
        (torch.tensor([0.0, torch.inf, 0.0]), "labels", "infinite value at step 4"),
        (torch.tensor([torch.nan, -torch.inf, 0.0]), "labels", "infinite value at step 4"),
        (torch.tensor([torch.inf, -torch.inf, 0.0]), "labels", "infinite value at step 4"),
    ],
)
def test_an_attack_that_returns_something_else_raises_by_name(returned: Any, target: str, complaint: str) -> None:
    with pytest.raises(HookError, match=f"attack the culprit.*{complaint}"):
        attack_with(lambda _: returned, target=target)


@pytest.mark.parametrize(
    "touch",
    [
        lambda seen: seen.gradient.mul_(2),
        lambda seen: seen.gradient[0].zero_(),
        lambda seen: seen.ids.add_(1),
        lambda seen: seen.weights["weight"].zero_(),
        lambda seen: seen.columns.numeric.zero_(),
        lambda seen: seen.columns.categorical.add_(1),
    ],
)
def test_an_attack_that_writes_raises_by_name(touch: Callable[[View], Any]) -> None:
    def writes(seen: View) -> Tensor:
        touch(seen)
        return torch.zeros(3)

    with pytest.raises(HookError, match=r"attack the culprit.*in place"):
        attack_with(writes)


def test_feature_attacks_return_rows() -> None:
    assert attack_with(lambda _: torch.zeros(3, 5), target="features").shape == (3, 5)


# --- defenses


def defend_with(act: Callable[..., Any], message: Tensor | None = None) -> Tensor:
    return call_defense(Named(act), torch.ones(3, 2) if message is None else message, secrets())


def test_defenses_name_their_arguments_freely() -> None:
    def unusual(outgoing: Tensor, known: Secrets) -> Tensor:
        return outgoing + known.step

    assert torch.equal(defend_with(unusual), torch.full((3, 2), 5.0))


def test_a_defense_may_return_the_message_that_it_was_given() -> None:
    message = torch.ones(3, 2)
    assert torch.equal(defend_with(lambda sent, _: sent, message), message)


def spoiled(value: float) -> Tensor:
    sent = torch.ones(3, 2)
    sent[2, 1] = value
    return sent


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (None, "expected a tensor, got NoneType"),
        (1.0, "expected a tensor, got float"),
        (torch.ones(3, 2).to_sparse(), "expected a dense tensor, got sparse_coo"),
        (torch.ones(2, 3), r"expected shape \(3, 2\), got \(2, 3\)"),
        (torch.ones(3, 1), r"expected shape \(3, 2\), got \(3, 1\)"),
        (torch.ones(3, 2, dtype=torch.float64), "expected dtype torch.float32, got torch.float64"),
        (torch.ones(3, 2, dtype=torch.int32), "expected dtype torch.float32, got torch.int32"),
        (torch.ones(3, 2, device="meta"), "expected device cpu, got meta"),
        (spoiled(torch.nan), "NaN or infinite values; nothing was sent"),
        (spoiled(torch.inf), "NaN or infinite values; nothing was sent"),
        (spoiled(-torch.inf), "NaN or infinite values; nothing was sent"),
    ],
)
def test_a_defense_that_returns_something_else_raises_by_name(returned: Any, complaint: str) -> None:
    with pytest.raises(HookError, match=f"defense the culprit at step 4.*{complaint}"):
        defend_with(lambda sent, _: returned)


@pytest.mark.parametrize("touch", [Tensor.zero_, lambda sent: sent[1].mul_(2), lambda sent: sent.t().add_(1)])
def test_a_defense_that_writes_raises_by_name(touch: Callable[[Tensor], Tensor]) -> None:
    def writes(sent: Tensor, _: Secrets) -> Tensor:
        touch(sent)
        return sent

    with pytest.raises(HookError, match=r"defense the culprit.*in place"):
        defend_with(writes)


def test_hooks_run_on_tensors_of_inference_mode() -> None:
    """Torch counts no writes to them, so none is noticed; calling must still work."""
    with torch.inference_mode():
        assert torch.equal(defend_with(lambda sent, _: sent + 1), torch.full((3, 2), 2.0))
        assert attack_with(lambda seen: seen.gradient[:, 0]).tolist() == [0.0, 2.0, 4.0]


def test_a_defenses_own_error_comes_out() -> None:
    with pytest.raises(PrivacyError, match="needs the labels"):
        defend_with(lambda sent, known: sent + known.labels[:, None])


# --- small ones


def test_finite_is_told_from_infinite_even_where_the_sum_overflows() -> None:
    largest = torch.finfo(torch.float32).max
    assert all_finite(torch.full((4,), largest))
    assert all_finite(torch.zeros(0))
    assert all_finite(torch.full((4,), 2**62))
    assert not all_finite(torch.tensor([largest, largest, torch.inf]))
    assert not all_finite(torch.tensor([torch.inf, -torch.inf]))
    assert not all_finite(torch.tensor([1.0, torch.nan]))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.SyncBatchNorm(2)])
def test_batch_mixing_layers_are_found_by_name(layer: nn.Module) -> None:
    name = type(layer).__name__
    assert batch_mixing_layer(nn.Sequential(nn.Linear(2, 2), nn.Sequential(layer))) == f"1.0 ({name})"
    assert batch_mixing_layer(layer) == f"the model ({name})"
    assert batch_mixing_layer(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Dropout())) is None


# --- noise through secrets


def own_secrets(seed: int = 0) -> Secrets:
    return Secrets(party="bank", step=0, generator=torch.Generator().manual_seed(seed))


def test_noise_of_a_users_own_shape_is_rounded_as_the_message_is() -> None:
    message, axis = torch.ones(5000, 3), torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    own = own_secrets()

    sent = own.rounded(message + 0.5 * own.normal(5000, 1) * axis, scale=0.5, like=message)

    assert sent.dtype == torch.float32
    assert torch.equal(sent[:, 1], message[:, 1])
    # 5000 draws: five standard errors of a standard deviation are 5 %.
    assert (sent - message).norm(dim=1).square().mean().sqrt().item() == pytest.approx(0.5, rel=0.05)


def test_a_sum_that_was_not_made_in_float64_is_refused() -> None:
    message = torch.zeros(4, 2)
    with pytest.raises(ArgumentError, match=r"expected a sum in float64 of shape \(4, 2\), got torch.float32"):
        own_secrets().rounded(message + torch.randn(4, 2), scale=1.0, like=message)
    with pytest.raises(ArgumentError, match=r"of shape \(4, 2\), got torch.float64 of shape \(4, 1\)"):
        own_secrets().rounded(own_secrets().normal(4, 1), scale=1.0, like=message)


def test_coins_are_tossed_with_the_probability_that_is_named() -> None:
    lied = own_secrets().uniform(100_000) < 0.2
    assert lied.double().mean().item() == pytest.approx(0.2, abs=6 * (0.16 / 100_000) ** 0.5)


class Clumsy:
    """A user's hook with a mistake in it."""

    target = "labels"

    def __init__(self, mistake: Exception) -> None:
        self.mistake = mistake

    def __call__(self, seen: Any, known: Any = None, /) -> Tensor:
        raise self.mistake


CALLS: dict[str, Callable[[Any], Any]] = {
    "attack": lambda hook: call_attack(hook, view(gradient=torch.zeros(3, 2))),
    "defense": lambda hook: call_defense(hook, torch.zeros(3, 2), secrets()),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_hook_that_raises_is_named_with_what_it_raised_and_where(kind: str) -> None:
    mistake = ZeroDivisionError("float division by zero")

    with pytest.raises(HookError) as raised:
        CALLS[kind](Clumsy(mistake))

    said = str(raised.value)
    assert said.startswith(f"{kind} Clumsy at step 4 raised ZeroDivisionError: float division by zero (test_hooks.py, ")
    assert raised.value.__cause__ is mistake


@pytest.mark.parametrize("kind", CALLS)
@every(mistake=[PrivacyError("no labels"), torch.OutOfMemoryError("no memory")])
def test_an_error_that_says_what_is_wrong_keeps_its_type_and_gets_a_note(kind: str, mistake: Exception) -> None:
    with pytest.raises(type(mistake)) as raised:
        CALLS[kind](Clumsy(mistake))

    assert raised.value is mistake
    assert f"raised in {kind} Clumsy at step 4" in raised.value.__notes__


def test_an_error_without_words_is_named_by_its_type() -> None:
    with pytest.raises(HookError, match=r"defense Clumsy at step 4 raised KeyError \("):
        CALLS["defense"](Clumsy(KeyError()))
