"""The cut: hooks at the place where the gradient crosses, in anybody's autograd graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from splitvfl.attacks import DirectionAttack, NormAttack, ResidueSolvingAttack
from splitvfl.cut.layer import CutLayer
from splitvfl.cut.split_model import SplitModel, observe
from splitvfl.cut.views import is_linear
from splitvfl.data.columns import Columns
from splitvfl.defenses import GaussianIR, GaussianTargets, Isotropic, MaxNorm, MemoisedResponse, Rounding
from splitvfl.errors import ArgumentError, HookError, PrivacyError
from splitvfl.hooks import Secrets, View
from splitvfl.models import WideDeepBottom, WideDeepTop


class Remember:
    """A defense that changes nothing and keeps what it was given."""

    def __init__(self, crossing: str = "gradient") -> None:
        self.crossing = crossing
        self.messages: list[Tensor] = []
        self.labels: list[Tensor | None] = []
        self.ids: list[Tensor | None] = []

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        self.messages.append(message.clone())
        self.labels.append(secrets._labels)
        self.ids.append(secrets._ids)
        return message.clone()


class Look:
    """An attack that scores zero and keeps what it saw."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def __call__(self, view: View, /) -> Tensor:
        self.views.append(view)
        return torch.zeros(view.ids.shape[0])


class Vandal:
    """An attack that breaks the rule to look only."""

    name = "vandal"
    calls = 0

    def __call__(self, view: View, /) -> Tensor:
        self.calls += 1
        view.gradient.zero_()
        return torch.zeros(view.ids.shape[0])


class NeedLabels:
    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        return message * secrets.labels.unsqueeze(1)


def two_layers(seed: int = 0, *, inputs: int = 5) -> tuple[nn.Module, nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, 4), nn.ReLU()), nn.Linear(4, 1)


def batch(rows: int = 12, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Columns, labels of both classes, and ids that are no row numbers."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.arange(rows) % 3 == 0).float()
    return torch.randn(rows, 5, generator=generator), labels, 100 * seed + 3 * torch.arange(rows) - 50


def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels)


def gradients(*modules: nn.Module) -> list[Tensor]:
    return [
        parameter.grad.clone() for module in modules for parameter in module.parameters() if parameter.grad is not None
    ]


def backward(model: nn.Module, *columns: Tensor, labels: Tensor, **more: Any) -> list[Tensor]:
    model.zero_grad()
    loss_of(model(*columns, labels=labels, **more), labels).backward()
    return gradients(model)


def arriving(module: nn.Module) -> list[Tensor]:
    """Return a list that will hold every gradient that reaches the module's output."""
    found: list[Tensor] = []

    def on_forward(_: nn.Module, __: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: found.append(gradient.clone()))

    module.register_forward_hook(on_forward)
    return found


def test_without_hooks_it_is_the_unsplit_model_to_the_bit() -> None:
    bottom, top = two_layers()
    columns, labels, ids = batch()
    whole = nn.Sequential(bottom, top)
    loss_of(whole(columns), labels).backward()
    expected = gradients(whole)
    got = backward(SplitModel(bottom, top), columns, labels=labels, ids=ids)
    assert len(got) == 4
    assert all(torch.equal(left, right) for left, right in zip(got, expected, strict=True))


def test_with_identity_hooks_it_is_the_unsplit_model_to_the_bit() -> None:
    bottom, top = two_layers()
    columns, labels, ids = batch()
    whole = nn.Sequential(bottom, top)
    loss_of(whole(columns), labels).backward()
    expected = gradients(whole)
    model = SplitModel(bottom, top)
    gradient, activation, look = Remember(), Remember("activation"), Look()
    with model.cut.defend(gradient), model.cut.defend(activation), model.cut.watch(look):
        got = backward(model, columns, labels=labels, ids=ids)
    assert [len(hook.messages) for hook in (gradient, activation)] == [1, 1]
    assert len(look.views) == 1
    assert all(torch.equal(left, right) for left, right in zip(got, expected, strict=True))


def test_several_bottoms_and_active_columns_are_concatenated_in_order() -> None:
    (first, _), (second, _) = two_layers(1), two_layers(2, inputs=3)
    top = nn.Linear(4 + 4 + 2, 1)
    generator = torch.Generator().manual_seed(4)
    one, two, own = (torch.randn(6, width, generator=generator) for width in (5, 3, 2))
    model = SplitModel({"telecom": first, "a shop": second}, top)
    output = model(one, two, active=own)
    assert torch.equal(output, top(torch.cat([first(one), second(two), own], dim=1)))
    assert list(model.cuts) == ["telecom", "a shop"]
    assert [cut.party for cut in model.cuts.values()] == ["telecom", "a shop"]
    output.sum().backward()
    got = gradients(first, second, top)
    for module in (first, second, top):
        module.zero_grad()
    top(torch.cat([first(one), second(two), own], dim=1)).sum().backward()
    assert all(torch.equal(left, right) for left, right in zip(got, gradients(first, second, top), strict=True))


def test_cut_raises_where_there_are_several() -> None:
    (first, top), (second, _) = two_layers(1), two_layers(2)
    model = SplitModel({"telecom": first, "shop": second}, top)
    with pytest.raises(ArgumentError, match=r"2 cuts.*shop.*telecom"):
        _ = model.cut
    with pytest.raises(ArgumentError, match="2 cuts"):
        model.defend(Isotropic())


def test_wrong_inputs_are_refused() -> None:
    bottom, top = two_layers()
    columns, labels, ids = batch()
    model = SplitModel(bottom, top)
    with pytest.raises(ArgumentError, match="expected 1 inputs"):
        model(columns, columns)
    with pytest.raises(ArgumentError, match="expected 1 inputs"):
        model()
    with pytest.raises(ArgumentError, match="expected 12 labels"):
        model(columns, labels=labels[:-1])
    with pytest.raises(ArgumentError, match="expected 12 ids"):
        model(columns, ids=ids[:-1])
    with pytest.raises(ArgumentError, match="at least one bottom"):
        SplitModel({}, top)


def test_a_top_with_separate_active_gets_the_columns_apart() -> None:
    codes = torch.tensor([[0, 1], [2, 0], [1, 1]])
    columns = Columns(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), codes)
    bottom = WideDeepBottom(2, (3, 2), widths=(4,))
    top = WideDeepTop(4, 2, (3, 2))
    model = SplitModel(bottom, top)
    assert torch.equal(model(columns, active=columns), top(bottom(columns), columns))
    bare = WideDeepTop(4, 0, ())
    assert torch.equal(SplitModel(bottom, bare)(columns), bare(bottom(columns), None))
    with pytest.raises(ArgumentError, match="separate_active"):
        SplitModel(bottom, nn.Linear(6, 1))(columns, active=columns)


def test_labels_and_ids_travel_with_each_forward() -> None:
    """Two forwards before one backward: each gradient meets the labels and ids of its own forward."""
    model = SplitModel(*two_layers())
    defense, look = Remember(), Look()
    model.cut.defend(defense)
    model.cut.watch(look)
    first, second = batch(12, seed=1), batch(9, seed=2)
    losses = [loss_of(model(columns, labels=labels, ids=ids), labels) for columns, labels, ids in (first, second)]
    sum(losses, torch.zeros(())).backward()
    seen = {labels.shape[0]: (labels, ids) for labels, ids in zip(defense.labels, defense.ids, strict=True)}
    for _, labels, ids in (first, second):
        assert torch.equal(seen[labels.shape[0]][0], labels)
        assert torch.equal(seen[labels.shape[0]][1], ids)
    assert {(view.step, view.ids.shape[0]) for view in look.views} == {(0, 12), (1, 9)}
    assert all(view.gradient.shape[0] == view.ids.shape[0] for view in look.views)


def test_noise_at_a_cut_does_not_depend_on_the_other_cuts() -> None:
    """Autograd visits cuts in reverse; with one generator per hook per cut that changes nothing."""

    def sent(defended: tuple[str, ...]) -> dict[str, Tensor]:
        (first, _), (second, _) = two_layers(1), two_layers(2)
        model = SplitModel({"telecom": first, "shop": second}, nn.Linear(8, 1, bias=False))
        nn.init.ones_(model.top.weight)
        looks = {name: Look() for name in model.cuts}
        for seed, (name, cut) in enumerate(model.cuts.items()):
            cut.watch(looks[name])
            if name in defended:
                cut.defend(Isotropic(sigma=1.0), noise_seed_for_experiments=seed)
        columns, labels, ids = batch()
        backward(model, columns, columns, labels=labels, ids=ids)
        return {name: look.views[0].gradient.clone() for name, look in looks.items()}

    both = sent(("telecom", "shop"))
    assert torch.equal(both["telecom"], sent(("telecom",))["telecom"])
    assert torch.equal(both["shop"], sent(("shop",))["shop"])
    assert not torch.equal(both["shop"], both["telecom"])


def test_hooks_at_one_cut_have_generators_of_their_own() -> None:
    def noise(*defenses: Any) -> list[Tensor]:
        cut = CutLayer()
        look = Look()
        cut.watch(look)
        for number, defense in enumerate(defenses):
            cut.defend(defense, noise_seed_for_experiments=number)
        activation = torch.zeros(4, 3, requires_grad=True)
        (cut(activation, labels=torch.zeros(4)) * 0.0).sum().backward()
        return [view.gradient for view in look.views]

    # The clean gradient is zero, so each sum is the defenses' noise; the second one's is the same on its own.
    (together,), (alone,) = noise(Isotropic(sigma=1.0), Isotropic(sigma=2.0)), noise(Isotropic(sigma=1.0))
    (second,) = noise(Remember(), Isotropic(sigma=2.0))
    torch.testing.assert_close(together, alone + second, rtol=0, atol=1e-6)  # one float32 rounding of values near 5


def test_hooks_fire_in_evaluation_mode_too() -> None:
    model = SplitModel(*two_layers()).eval()
    defense, look = Remember(), Look()
    columns, labels, ids = batch()
    with model.cut.defend(defense), model.cut.watch(look):
        backward(model, columns, labels=labels, ids=ids)
    assert len(defense.messages) == len(look.views) == 1


def test_nothing_fires_without_gradients_and_no_step_is_counted() -> None:
    model = SplitModel(*two_layers())
    defense, look = NeedLabels(), Look()
    model.cut.defend(defense)
    model.cut.watch(look)
    columns, labels, ids = batch()
    with torch.no_grad():
        plain = model.top(model.bottoms["passive"](columns))
        assert torch.equal(model(columns), plain)
    with torch.inference_mode():
        assert torch.equal(model(columns), plain)
    assert look.views == []
    backward(model, columns, labels=labels, ids=ids)
    assert [view.step for view in look.views] == [0]


def test_a_defense_that_lacks_labels_raises_in_backward() -> None:
    model = SplitModel(*two_layers())
    model.cut.defend(NeedLabels())
    columns, labels, _ = batch()
    loss = loss_of(model(columns), labels)
    with pytest.raises(PrivacyError, match=r"needs the labels.*nothing was sent"):
        loss.backward()
    assert gradients(model.bottoms) == []  # not one gradient got past the cut


def test_a_defense_that_lacks_ids_raises_in_backward() -> None:
    class NeedIds:
        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            return message * secrets.ids.unsqueeze(1)

    model = SplitModel(*two_layers())
    model.cut.defend(NeedIds())
    columns, labels, _ = batch()
    loss = loss_of(model(columns, labels=labels), labels)
    with pytest.raises(PrivacyError, match="needs the record ids"):
        loss.backward()


def test_an_attack_without_labels_to_judge_it_raises_in_backward() -> None:
    model = SplitModel(*two_layers())
    model.cut.watch(NormAttack())
    columns, labels, _ = batch()
    loss = loss_of(model(columns), labels)
    with pytest.raises(PrivacyError, match="no labels to judge"):
        loss.backward()


@pytest.mark.parametrize("top", [nn.ReLU(inplace=True), nn.LeakyReLU(inplace=True)])
def test_a_top_that_starts_in_place_raises(top: nn.Module) -> None:
    bottom, last = two_layers()
    model = SplitModel(bottom, nn.Sequential(top, last))
    with pytest.raises(RuntimeError, match="modified inplace"):
        model(batch()[0])


def test_observers_see_exactly_what_the_bottom_receives() -> None:
    model = SplitModel(*two_layers())
    received = arriving(model.bottoms["passive"])
    look = Look()
    model.cut.watch(look)  # attached before the defense, and still after it on the way
    model.cut.defend(Isotropic(sigma=0.5), noise_seed_for_experiments=3)
    model.cut.defend(MaxNorm(), noise_seed_for_experiments=4)
    columns, labels, ids = batch()
    backward(model, columns, labels=labels, ids=ids)
    assert torch.equal(look.views[0].gradient, received[0])


def test_defenses_run_in_their_order_and_then_the_observers() -> None:
    calls: list[str] = []

    def defense(name: str, factor: float) -> Any:
        def change(message: Tensor, secrets: Secrets) -> Tensor:
            calls.append(name)
            return message * factor + 1.0

        return change

    def attack(anything: View) -> Tensor:
        calls.append("attack")
        assert torch.equal(anything.gradient, torch.full((4, 2), (1.0 * 2.0 + 1.0) * 3.0 + 1.0))
        return torch.zeros(4)

    cut = CutLayer()
    cut.watch(attack)
    cut.defend(defense("first", 2.0))
    cut.defend(defense("second", 3.0))
    cut(torch.zeros(4, 2, requires_grad=True), labels=torch.zeros(4)).sum().backward()
    assert calls == ["first", "second", "attack"]


def test_handles_nest_and_are_gone_after_an_exception() -> None:
    model = SplitModel(*two_layers())
    columns, labels, ids = batch()
    outer, inner, look = Remember(), Remember(), Vandal()
    with model.cut.defend(outer):
        with pytest.raises(HookError, match="changed a tensor"), model.cut.defend(inner), model.cut.watch(look):
            backward(model, columns, labels=labels, ids=ids)
        backward(model, columns, labels=labels, ids=ids)
    backward(model, columns, labels=labels)
    assert [len(outer.messages), len(inner.messages), look.calls] == [2, 1, 1]
    assert len(model.cut.gradient) == 0


def test_a_handle_is_removed_at_most_once_and_takes_only_its_own_hook() -> None:
    cut = CutLayer()
    same = Remember()
    first, second = cut.defend(same), cut.defend(same)
    first.remove()
    first.remove()
    assert len(cut.gradient) == 1
    second.remove()
    assert len(cut.gradient) == 0
    attack = Look()
    kept, removed = cut.watch(attack), cut.watch(attack)
    removed.remove()
    assert cut._leaks == [kept]


def test_an_observer_that_changes_the_gradient_in_place_raises_by_name() -> None:
    model = SplitModel(*two_layers())
    model.cut.watch(Vandal())
    columns, labels, ids = batch()
    loss = loss_of(model(columns, labels=labels, ids=ids), labels)
    with pytest.raises(HookError, match="vandal changed a tensor"):
        loss.backward()


def test_views_hold_detached_tensors_and_copies_of_weights() -> None:
    class Greedy:
        needs = frozenset({"gradient", "columns", "weights", "aggregated_gradient"})

        def __call__(self, view: View, /) -> Tensor:
            assert not any(tensor.requires_grad or tensor.grad_fn is not None for tensor in view.tensors())
            assert set(view.weights) == {"weight", "bias"}
            torch.testing.assert_close(view.aggregated_gradient, view.columns.T @ view.gradient)
            copies.extend(weight.data_ptr() for weight in view.weights.values())
            return torch.zeros(view.ids.shape[0])

    copies: list[int] = []
    bottom = nn.Linear(5, 4)
    model = SplitModel(bottom, nn.Linear(4, 1))
    columns, labels, ids = batch()
    before = {name: weight.detach().clone() for name, weight in bottom.state_dict().items()}
    with model.cut.watch(Greedy()):
        backward(model, columns.requires_grad_(), labels=labels, ids=ids)
    assert not {weight.data_ptr() for weight in bottom.parameters()} & set(copies)
    assert all(torch.equal(before[name], weight) for name, weight in bottom.state_dict().items())


def test_weights_that_an_attack_changes_behind_torchs_back_stay_as_they_were() -> None:
    class Sneaky:
        needs = frozenset({"weights"})

        def __call__(self, view: View, /) -> Tensor:
            for weight in view.weights.values():
                weight.data.numpy()[:] = 7.0
            return torch.zeros(view.ids.shape[0])

    bottom, top = two_layers()
    model = SplitModel(bottom, top)
    before = {name: weight.clone() for name, weight in bottom.state_dict().items()}
    columns, labels, ids = batch()
    with model.cut.watch(Sneaky()):
        backward(model, columns, labels=labels, ids=ids)
    assert all(torch.equal(before[name], weight) for name, weight in bottom.state_dict().items())


def test_watch_refuses_attacks_that_need_what_the_cut_cannot_show() -> None:
    class NeedScores:
        name = "needs-scores"
        needs = frozenset({"gradient", "scores"})

        def __call__(self, view: View, /) -> Tensor:
            return view.scores

    deep = SplitModel(*two_layers())
    with pytest.raises(
        ArgumentError, match="needs-scores needs scores; this cut shows activation, columns, gradient, weights"
    ):
        deep.cut.watch(NeedScores())
    with pytest.raises(ArgumentError, match="aggregated_gradient"):
        deep.cut.watch(ResidueSolvingAttack())
    with pytest.raises(ArgumentError, match=r"needs aggregated_gradient, columns; this cut shows gradient$"):
        CutLayer().watch(ResidueSolvingAttack())
    SplitModel(nn.Linear(5, 1), nn.Identity()).cut.watch(ResidueSolvingAttack())


def test_is_linear_means_one_linear_layer_and_nothing_else() -> None:
    assert is_linear(nn.Linear(2, 1))
    assert is_linear(nn.Sequential(nn.Linear(2, 1)))
    assert not is_linear(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))
    assert not is_linear(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    assert not is_linear(nn.Identity())


@pytest.mark.parametrize("defense", [Rounding(decimals=2), MemoisedResponse(flip=0.1)])
def test_a_cut_refuses_defenses_of_what_does_not_cross_there(defense: Any) -> None:
    with pytest.raises(ArgumentError, match="do not cross"):
        CutLayer().defend(defense)


def test_a_model_takes_label_defenses_and_refuses_score_defenses() -> None:
    model = SplitModel(*two_layers())
    model.defend(MemoisedResponse(flip=0.1))
    assert len(model.labels) == 1
    with pytest.raises(ArgumentError, match="do not cross"):
        model.defend(Rounding(decimals=2))


def test_gradient_defenses_get_the_responses_and_judges_the_labels() -> None:
    model = SplitModel(*two_layers())
    defense, look = Remember(), NormAttack()
    model.defend(MemoisedResponse(flip=0.4), noise_seed_for_experiments=0)
    model.cut.defend(defense)
    columns, labels, ids = batch(60)
    with model.cut.watch(look) as leak:
        outputs = model(columns, labels=labels, ids=ids)
        targets = model.targets(labels, ids=ids)
        loss_of(outputs, targets).backward()
    responses = defense.labels[0]
    assert responses is not None
    assert torch.equal(responses, (targets > 0.5).float())
    assert 5 < (responses != labels).sum() < 40  # 24 expected of 60, five standard deviations of 3.8
    norms = torch.linalg.vector_norm(defense.messages[0], dim=1)
    positive = labels == 1
    expected = (norms[positive, None] > norms[None, ~positive]).double().mean()
    assert leak.auc == pytest.approx(expected.item(), abs=1e-12)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4)])
def test_batch_norm_voids_a_per_record_guarantee(layer: nn.Module) -> None:
    model = SplitModel(nn.Sequential(nn.Linear(5, 4), layer), nn.Linear(4, 1))
    with pytest.raises(PrivacyError, match=r"gaussian-ir.*1 \(.*BatchNorm.*mixes the records"):
        model.defend(GaussianIR(clip=1.0, sigma=1.0))
    assert len(model.cut.activation) == 0
    model.defend(Isotropic())  # claims nothing per record


def test_batch_norm_is_refused_at_the_cut_too() -> None:
    model = SplitModel(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), nn.Linear(4, 1))
    with pytest.raises(PrivacyError, match="mixes the records"):
        model.cut.defend(GaussianIR(clip=1.0, sigma=1.0))


def test_layer_norm_keeps_records_apart() -> None:
    model = SplitModel(nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4)), nn.Linear(4, 1))
    model.defend(GaussianIR(clip=1.0, sigma=1.0))
    assert len(model.cut.activation) == 1


def test_the_gradient_passes_straight_through_activation_defenses() -> None:
    class Tenfold:
        crossing = "activation"

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            assert secrets._labels is None  # the passive party has none
            assert secrets.party == "passive"
            return message * 10.0

    bottom, top = two_layers()
    model = SplitModel(bottom, top)
    columns, labels, ids = batch()
    with model.cut.defend(Tenfold()):
        output = model(columns, labels=labels, ids=ids)
    activation = bottom(columns)
    torch.testing.assert_close(output, top(10.0 * activation), rtol=0, atol=0)
    output.sum().backward()
    expected = torch.autograd.grad(activation, bottom.parameters(), top.weight.expand(12, 4))
    assert all(torch.equal(left, right) for left, right in zip(gradients(bottom), expected, strict=True))


def defended_gradient(defense: Any, *, scale: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return what an attack saw and what the bottom received, the latter unscaled, of a loss of gradient 1e-3."""
    cut, look = CutLayer(), Look()
    cut.loss_scale = scale
    cut.defend(defense, noise_seed_for_experiments=5)
    cut.watch(look)
    activation = torch.zeros(6, 3, dtype=dtype, requires_grad=True)
    (cut(activation, labels=torch.zeros(6)).float().sum() * 1e-3 * scale).backward()
    assert activation.grad is not None
    assert activation.grad.dtype == dtype
    return look.views[0].gradient, activation.grad.double() / scale


def test_a_loss_scaler_does_not_change_an_absolute_sigma() -> None:
    seen, received = defended_gradient(Isotropic(sigma=0.5), scale=1.0)
    scaled_seen, scaled_received = defended_gradient(Isotropic(sigma=0.5), scale=1024.0)
    # 1024 is a power of two: multiplying and dividing by it is exact.
    assert torch.equal(seen, scaled_seen)
    assert torch.equal(received, scaled_received)
    assert torch.equal(seen.double(), received)


def test_what_a_loss_scaler_lifts_out_of_half_precisions_underflow_stays_lifted() -> None:
    # The gradient 1e-3 / 2**16 = 1.5e-8 is below float16's least number, 6e-8; times the scale it is not.
    memory = Remember()
    cut = CutLayer()
    cut.loss_scale = 2.0**16
    cut.defend(memory)
    activation = torch.zeros(4, 2, dtype=torch.float16, requires_grad=True)
    (cut(activation, labels=torch.zeros(4)).float().sum() * 1e-3).backward()
    assert activation.grad is not None
    torch.testing.assert_close(activation.grad, torch.full((4, 2), 1e-3, dtype=torch.float16), rtol=0, atol=0)
    assert memory.messages[0].dtype == torch.float32
    # float16 rounds 1e-3 by at most 2**-11 of it.
    torch.testing.assert_close(memory.messages[0], torch.full((4, 2), 1e-3 / 2**16), rtol=2**-11, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_defenses_compute_in_float32_and_the_result_is_cast_back(dtype: torch.dtype) -> None:
    memory = Remember()
    cut, look = CutLayer(), Look()
    cut.defend(Isotropic(sigma=0.1), noise_seed_for_experiments=0)
    cut.defend(memory)
    cut.watch(look)
    activation = torch.zeros(4, 2, dtype=dtype, requires_grad=True)
    cut(activation, labels=torch.zeros(4)).sum().backward()
    assert activation.grad is not None
    assert memory.messages[0].dtype == torch.float32
    assert not torch.equal(memory.messages[0], memory.messages[0].to(dtype).float())  # noise was not rounded before
    assert activation.grad.dtype == dtype
    assert look.views[0].gradient.dtype == torch.float32
    assert torch.equal(activation.grad, memory.messages[0].to(dtype))
    assert torch.equal(activation.grad.float(), look.views[0].gradient)  # after rounding


def test_autocast_delivers_bf16_and_defenses_get_float32() -> None:
    model = SplitModel(nn.Linear(5, 4), nn.Linear(4, 1))
    gradient, activation = Remember(), Remember("activation")
    arrived = arriving(model.bottoms["passive"])
    columns, labels, ids = batch()
    with model.cut.defend(gradient), model.cut.defend(activation):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(columns, labels=labels, ids=ids)
        loss_of(outputs.float(), labels).backward()
    assert activation.messages[0].dtype == gradient.messages[0].dtype == torch.float32
    assert [gradient.dtype for gradient in arrived] == [torch.bfloat16]


def test_under_autocast_it_is_the_unsplit_model_to_the_bit() -> None:
    bottom, top = nn.Sequential(nn.Linear(5, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    columns, labels, ids = batch()
    found = []
    for model in (nn.Sequential(bottom, top), SplitModel(bottom, top)):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(columns) if isinstance(model, nn.Sequential) else model(columns, labels=labels, ids=ids)
        loss_of(outputs.float(), labels).backward()
        found.append([outputs, *gradients(bottom, top)])
    assert found[0][0].dtype == torch.bfloat16
    assert all(map(torch.equal, *found))


def test_a_backward_pass_inside_autocast_leaves_defenses_and_attacks_in_float32() -> None:
    products: list[torch.dtype] = []

    class Multiply:
        def __init__(self, crossing: str) -> None:
            self.crossing = crossing

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            products.append((message @ message.T).dtype)
            return message.clone()

    class MultiplyToo:
        needs = frozenset({"gradient", "aggregated_gradient"})

        def __call__(self, view: View, /) -> Tensor:
            products.extend([(view.gradient @ view.gradient.T).dtype, view.aggregated_gradient.dtype])
            return view.gradient[:, 0]

    model = SplitModel(nn.Linear(5, 4), nn.Linear(4, 1))
    model.cut.defend(Multiply("activation"))
    model.cut.defend(Multiply("gradient"))
    model.cut.watch(MultiplyToo())
    columns, labels, ids = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss_of(model(columns, labels=labels, ids=ids).float(), labels).backward()
        assert torch.is_autocast_enabled("cpu")
    assert products == [torch.float32] * 4


def test_defenses_of_every_crossing_run_without_gradients() -> None:
    class NoGradients(Remember):
        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            assert not torch.is_grad_enabled()
            return super().__call__(message, secrets)

    model = SplitModel(*two_layers())
    columns, labels, ids = batch()
    defenses = [NoGradients(crossing) for crossing in ("activation", "gradient", "labels")]
    for defense in defenses:
        model.defend(defense)
    outputs = model(columns, labels=labels, ids=ids)
    loss_of(outputs, model.targets(labels, ids=ids)).backward()
    assert all(defense.messages for defense in defenses)


def test_float64_stays_float64() -> None:
    seen, _ = defended_gradient(Isotropic(sigma=0.5), scale=1.0, dtype=torch.float64)
    assert seen.dtype == torch.float64


def test_the_auditor_knows_the_clean_gradient_and_reads_the_sent_one() -> None:
    model = SplitModel(*two_layers())
    received, memory = arriving(model.bottoms["passive"]), Remember()
    model.cut.defend(memory)
    model.cut.defend(Isotropic(), noise_seed_for_experiments=0)
    columns, labels, ids = batch()
    with model.cut.audit() as audit:
        backward(model, columns, labels=labels, ids=ids)
    clean, positive = memory.messages[0], labels == 1
    gap = clean[positive].mean(dim=0) - clean[~positive].mean(dim=0)
    projections = received[0] @ gap
    expected = (projections[positive, None] > projections[None, ~positive]).double().mean().item()
    assert audit.summaries["auditor-linear"].auc == pytest.approx(expected, abs=1e-12)
    own = received[0][positive].mean(dim=0) - received[0][~positive].mean(dim=0)
    # On the sent batch's own difference of means it would be another number: the test can tell.
    assert ((received[0] @ own)[positive, None] > (received[0] @ own)[None, ~positive]).double().mean() != expected


def test_without_ids_nothing_is_accumulated() -> None:
    model = SplitModel(*two_layers())
    columns, labels, ids = batch()
    with model.cut.watch(NormAttack()) as leak:
        backward(model, columns, labels=labels)
    assert leak.summary.steps == 1
    assert torch.isnan(torch.tensor(leak.accumulated_auc))
    with model.cut.watch(NormAttack()) as leak:
        backward(model, columns, labels=labels, ids=ids)
    assert 0.0 <= leak.accumulated_auc <= 1.0


def test_an_observed_layer_shows_the_gradient_of_its_output() -> None:
    bottom = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))
    model = SplitModel(bottom, nn.Linear(4, 1))
    columns, labels, ids = batch()
    look = Look()
    hidden = arriving(bottom[1])
    with model.observe(bottom[1], look):
        backward(model, columns, labels=labels, ids=ids)
        with torch.no_grad():
            model(columns, labels=labels, ids=ids)
        model(columns).sum().backward()  # without labels there is nobody to judge, and nothing to see
    backward(model, columns, labels=labels, ids=ids)
    assert len(look.views) == 1
    assert torch.equal(look.views[0].gradient, hidden[0])
    assert torch.equal(look.views[0].ids, ids)


def test_observing_a_layer_of_the_top_or_with_other_needs_is_refused() -> None:
    bottom, top = two_layers()
    model = SplitModel(bottom, top)
    with pytest.raises(ArgumentError, match="in none of the bottom models"):
        model.observe(top, NormAttack())
    with pytest.raises(ArgumentError, match="an earlier layer shows its gradient"):
        observe(bottom, ResidueSolvingAttack(), party="passive", passing=lambda: (None, None))
    model.observe(bottom, DirectionAttack()).remove()


def test_an_attack_sees_its_own_partys_activation_if_it_asks() -> None:
    class NeedActivation(Look):
        needs = frozenset({"activation"})

    model = SplitModel(*two_layers())
    columns, labels, ids = batch()
    attack = NeedActivation()
    model.cut.watch(attack)
    backward(model, columns, labels=labels, ids=ids)

    with torch.no_grad():
        assert torch.equal(attack.views[0].activation, model.bottoms["passive"](columns))
    assert not attack.views[0].activation.requires_grad
    assert attack.views[0].fields == ("activation",)


def test_hook_state_is_not_in_the_models_state() -> None:
    model = SplitModel(*two_layers())
    before = set(model.state_dict())
    model.cut.defend(Isotropic())
    model.cut.watch(DirectionAttack())
    assert (
        set(model.state_dict())
        == before
        == {"bottoms.passive.0.weight", "bottoms.passive.0.bias", "top.weight", "top.bias"}
    )


class FlipAtRandom:
    """A label defense without a memory: two draws for one batch would differ."""

    crossing = "labels"

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        flips = torch.rand(labels.shape, generator=secrets.generator) < 0.4
        return torch.where(flips, 1 - labels, labels)


@pytest.mark.parametrize("targets_first", [False, True])
def test_a_label_defense_answers_once_for_the_loss_and_for_later_defenses(targets_first: bool) -> None:
    columns, labels, ids = batch(200)
    model = SplitModel(*two_layers())
    model.defend(FlipAtRandom())
    seen = Remember()
    model.cut.defend(seen)
    for _ in range(3):
        early = model.targets(labels, ids=ids) if targets_first else None
        outputs = model(columns, labels=labels, ids=ids)
        targets = model.targets(labels, ids=ids) if early is None else early
        functional.binary_cross_entropy_with_logits(outputs[:, 0], targets).backward()
        assert seen.labels[-1] is not None
        assert torch.equal(seen.labels[-1], targets)
    assert not torch.equal(seen.labels[0], seen.labels[1])


@pytest.mark.parametrize("pass_labels", [True, False])
def test_a_loss_that_went_round_the_label_defense_is_not_sent(pass_labels: bool) -> None:
    columns, labels, ids = batch(50)
    model = SplitModel(*two_layers())
    model.defend(MemoisedResponse(flip=0.4))

    outputs = model(columns, labels=labels if pass_labels else None, ids=ids)

    with pytest.raises(PrivacyError, match="targets"):
        functional.binary_cross_entropy_with_logits(outputs[:, 0], labels).backward()


def test_rows_that_were_chosen_twice_are_said_to_be_two_tensors() -> None:
    columns, labels, ids = batch(50)
    rows = torch.arange(50)
    model = SplitModel(*two_layers())
    model.defend(MemoisedResponse(flip=0.4))

    outputs = model(columns, labels=labels[rows], ids=ids)
    targets = model.targets(labels[rows], ids=ids)

    with pytest.raises(PrivacyError, match=r"one and the same tensor y in both .*y = labels\[rows\]"):
        functional.binary_cross_entropy_with_logits(outputs[:, 0], targets).backward()


def test_a_label_defense_after_one_whose_answers_it_cannot_take_names_both() -> None:
    _, labels, ids = batch(50)
    model = SplitModel(*two_layers())
    model.defend(GaussianTargets(mu=1.0))
    model.defend(MemoisedResponse(flip=0.4))
    with pytest.raises(HookError, match=r"memoised-response .* gaussian-targets answered .* labels must be 0 or 1"):
        model.targets(labels, ids=ids)


def test_a_label_defense_at_the_cut_is_told_where_it_belongs() -> None:
    model = SplitModel(*two_layers())
    with pytest.raises(ArgumentError, match=r"model\.defend"):
        model.cut.defend(MemoisedResponse(flip=0.4))


def test_the_auditor_names_itself_where_labels_are_not_binary() -> None:
    columns, _, ids = batch(50)
    model = SplitModel(two_layers()[0], nn.Linear(two_layers()[1].in_features, 3))
    model.cut.audit()
    classes = torch.arange(50) % 3
    loss = functional.cross_entropy(model(columns, labels=classes, ids=ids), classes)
    with pytest.raises(HookError, match=r"auditor .* labels 0 and 1, got \[0.0, 1.0, 2.0\].*cut.audit"):
        loss.backward()


def test_an_abandoned_pass_over_the_same_labels_does_not_answer_for_a_later_one() -> None:
    columns, labels, ids = batch(50)
    model = SplitModel(*two_layers())
    model.defend(FlipAtRandom())
    seen = Remember()
    model.cut.defend(seen)

    with torch.no_grad():
        model(columns, labels=labels, ids=ids)
    outputs = model(columns, labels=labels, ids=ids)
    targets = model.targets(labels, ids=ids)
    functional.binary_cross_entropy_with_logits(outputs[:, 0], targets).backward()

    assert seen.labels[0] is not None
    assert torch.equal(seen.labels[0], targets)
