"""Each record's prediction and its cut gradient under every label: against steps that were taken with another label."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from splitvfl import SplitModel
from splitvfl.app.trainer import Trainer
from splitvfl.cut.layer import CutLayer
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.defenses import Isotropic
from splitvfl.errors import ArgumentError, HookError, PrivacyError
from splitvfl.hooks import Secrets, View
from splitvfl.learning.label_gradients import LabelGradients, LabelGradientSource
from splitvfl.learning.tasks import Binary, Multiclass, Regression, Task
from splitvfl.party.party import ActiveParty, PassiveParty

ROWS, WIDTH = 12, 4


class Curious:
    """Sends what came, and keeps what it could have been."""

    crossing: ClassVar[str] = "gradient"
    needs_label_gradients: ClassVar[bool] = True

    def __init__(self) -> None:
        self.found: list[LabelGradients] = []
        self.clean: list[Tensor] = []

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        self.found.append(secrets.label_gradients)
        self.clean.append(message.clone())
        return message.clone()


def deep_top(outputs: int, inputs: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs))


def linear_top(outputs: int, inputs: int = WIDTH) -> nn.Module:
    return nn.Linear(inputs, outputs)


TOPS = [pytest.param(linear_top, id="linear"), pytest.param(deep_top, id="deep")]
Top = Callable[[int], nn.Module]


def rows_with(model: SplitModel, columns: Tensor, labels: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the clean cut gradient of a whole step with these labels."""
    watched: list[Tensor] = []

    class Look:
        crossing: ClassVar[str] = "gradient"

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            watched.append(message.clone())
            return message.clone()

    with model.cut.defend(Look()):
        loss(model(columns, labels=labels), labels).backward()
    return watched[-1]


def curious_step(
    model: SplitModel, columns: Tensor, labels: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[LabelGradients, Tensor]:
    curious = Curious()
    with model.cut.defend(curious):
        loss(model(columns, labels=labels), labels).backward()
    return curious.found[-1], curious.clean[-1]


def bce(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs.squeeze(1), labels.to(outputs.dtype))


def one_changed(labels: Tensor, row: int, value: float) -> Tensor:
    changed = labels.clone()
    changed[row] = value
    return changed


@pytest.mark.parametrize("top", TOPS)
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_a_row_under_a_label_is_that_of_a_step_with_that_label(top: Top, classes: int) -> None:
    torch.manual_seed(classes)
    model = SplitModel(nn.Linear(3, WIDTH), top(1 if classes == 2 else classes)).double()
    columns, labels = torch.randn(ROWS, 3, dtype=torch.float64), torch.randint(0, classes, (ROWS,))
    loss = bce if classes == 2 else functional.cross_entropy

    found, clean = curious_step(model, columns, labels, loss)

    assert found.values == tuple(range(classes))
    assert found.classes == classes
    torch.testing.assert_close(found.rows, clean, rtol=1e-10, atol=1e-15)
    norms = torch.zeros(ROWS, dtype=torch.float64)
    for row in range(ROWS):
        # Brute force: this record's label alone is changed, and the step is taken again.
        under = torch.stack([rows_with(model, columns, one_changed(labels, row, v), loss)[row] for v in range(classes)])
        for value in range(classes):
            torch.testing.assert_close(found.under(value)[row], under[value], rtol=1e-9, atol=1e-15)
        norms[row] = max((a - b).norm() for a in under for b in under)
    torch.testing.assert_close(found.change(), norms, rtol=1e-9, atol=0.0)


def test_predictions_are_probabilities_of_the_classes() -> None:
    torch.manual_seed(0)
    columns = torch.randn(ROWS, 3)
    for classes, loss in ((2, bce), (4, functional.cross_entropy)):
        model = SplitModel(nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1 if classes == 2 else classes))
        labels = torch.randint(0, classes, (ROWS,))
        found, _ = curious_step(model, columns, labels, loss)
        outputs = model(columns).detach()
        assert torch.equal(found.outputs, outputs)
        assert torch.equal(found.targets, labels)
        expected = outputs.double().softmax(1) if classes > 2 else outputs.double().sigmoid()
        torch.testing.assert_close(found.predictions[:, -expected.shape[1] :], expected)
        torch.testing.assert_close(found.predictions.sum(dim=1), torch.ones(ROWS, dtype=torch.float64))


def test_a_binary_row_lies_on_its_own_line() -> None:
    torch.manual_seed(1)
    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1)).double()
    columns, labels = torch.randn(ROWS, 3, dtype=torch.float64), torch.randint(0, 2, (ROWS,))
    found, clean = curious_step(model, columns, labels, bce)
    assert found.on_a_line
    torch.testing.assert_close(found.direction.norm(dim=1), torch.ones(ROWS, dtype=torch.float64))
    along = (clean * found.direction).sum(dim=1, keepdim=True) * found.direction
    torch.testing.assert_close(along, clean, rtol=1e-9, atol=1e-14)
    # For two classes the change is ‖J‖ / n, whatever the prediction.
    ends = found.under(1.0) - found.under(0.0)
    torch.testing.assert_close(ends.norm(dim=1), found.change())


def test_more_than_two_classes_have_no_single_direction() -> None:
    model = SplitModel(nn.Linear(3, WIDTH), nn.Linear(WIDTH, 3))
    found, _ = curious_step(model, torch.randn(ROWS, 3), torch.randint(0, 3, (ROWS,)), functional.cross_entropy)
    assert not found.on_a_line
    with pytest.raises(ArgumentError, match="2 directions"):
        _ = found.direction


def test_every_cut_gets_its_own_part() -> None:
    torch.manual_seed(2)
    bottoms = {"telecom": nn.Linear(3, 2), "shop": nn.Linear(4, 3)}
    model = SplitModel(bottoms, deep_top(1, inputs=2 + 3 + 1)).double()
    inputs = [torch.randn(ROWS, width, dtype=torch.float64) for width in (3, 4)]
    active, labels = torch.randn(ROWS, 1, dtype=torch.float64), torch.randint(0, 2, (ROWS,))
    curious = {name: Curious() for name in bottoms}
    for name, defense in curious.items():
        model.cuts[name].defend(defense)

    def step(given: Tensor) -> None:
        bce(model(*inputs, active=active, labels=given), given).backward()

    step(labels)
    step(1 - labels)
    for name, width in (("telecom", 2), ("shop", 3)):
        first, second = curious[name].found
        assert first.rows.shape == (ROWS, width)
        # With all labels turned round the batch's rows are those of the other label.
        other = torch.where(labels[:, None] == 1, first.under(0.0), first.under(1.0))
        torch.testing.assert_close(other, curious[name].clean[1], rtol=1e-9, atol=1e-15)
        torch.testing.assert_close(second.change(), first.change())


@pytest.mark.parametrize("classes", [2, 3])
def test_a_worker_without_records_adds_nothing_to_what_all_know(classes: int) -> None:
    """Its part has the form of the others', which could not be put together with it otherwise."""
    torch.manual_seed(0)
    task: Task = Binary() if classes == 2 else Multiclass(classes)
    top, activation = deep_top(task.outputs), torch.randn(ROWS, WIDTH)
    labels = torch.arange(ROWS) % classes if classes > 2 else (torch.arange(ROWS) % 3 == 0).float()

    def known(rows: slice) -> LabelGradients:
        leaf = activation[rows].requires_grad_()
        source = LabelGradientSource(task.loss, labels[rows])
        outputs = source.follow(top(leaf), {"lab": leaf}, classes=classes, values=tuple(map(float, range(classes))))
        outputs.sum().backward()
        found = source.at("lab")
        assert found is not None
        return found

    whole, parts = known(slice(0, ROWS)), [known(slice(0, ROWS)), known(slice(ROWS, ROWS))]
    given: list[list[Tensor]] = [[], []]
    assert parts[1].of_all(given[1].append) is None  # type: ignore[arg-type]
    assert parts[0].of_all(given[0].append) is None  # type: ignore[arg-type]
    laid = iter(zip(*given, strict=True))
    together = parts[0].of_all(lambda own: torch.cat(next(laid)))
    assert together is not None
    for value in range(classes):
        torch.testing.assert_close(together.under(float(value)), whole.under(float(value)))


def test_regression_has_no_values_and_a_range_is_given() -> None:
    torch.manual_seed(3)

    def squares(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.squeeze(1) - labels) ** 2  # per record

    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1), loss=squares).double()
    columns, labels = torch.randn(ROWS, 3, dtype=torch.float64), torch.rand(ROWS, dtype=torch.float64)
    found, _ = curious_step(model, columns, labels, lambda o, y: functional.mse_loss(o.squeeze(1), y))
    assert found.values is None
    assert found.classes is None
    with pytest.raises(ArgumentError, match="low, high"):
        found.change()
    low, high = (
        rows_with(model, columns, labels.new_full((ROWS,), v), lambda o, y: squares(o, y).mean()) for v in (0.0, 2.0)
    )
    torch.testing.assert_close(found.change([0.0, 2.0]), (high - low).norm(dim=1))


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (lambda o, y: bce(o, y) * ROWS, "a sum"),
        (
            lambda o, y: functional.binary_cross_entropy_with_logits(o[:, 0], y.to(o), pos_weight=torch.tensor(3.0)),
            "weights",
        ),
        (lambda o, y: functional.mse_loss(o[:, 0], y.to(o)), "another loss"),
        (lambda o, y: bce(o, y * 0.9 + 0.05), "smoothed labels"),
    ],
)
def test_a_loop_with_another_loss_is_stopped_by_name(loop: Callable[[Tensor, Tensor], Tensor], name: str) -> None:
    torch.manual_seed(4)
    columns, labels = torch.randn(ROWS, 3), torch.randint(0, 2, (ROWS,))
    for attach in (lambda cut: cut.defend(Curious()), CutLayer.audit):
        model = SplitModel(nn.Linear(3, WIDTH), deep_top(1))
        attach(model.cut)
        with pytest.raises(HookError, match="cut with passive is not that of the loss"):
            loop(model(columns, labels=labels), labels).backward()
        assert all(weight.grad is None for weight in model.bottoms.parameters()), name
        told = SplitModel(nn.Linear(3, WIDTH), deep_top(1), loss=loop)
        attach(told.cut)
        loop(told(columns, labels=labels), labels).backward()


def mixing_top(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(inputs), nn.Linear(inputs, 1))


def test_a_top_that_mixes_records_is_told_of_by_name() -> None:
    columns, labels = torch.randn(ROWS, 3), torch.randint(0, 2, (ROWS,)).float()
    model = SplitModel(nn.Linear(3, WIDTH), mixing_top(WIDTH))
    model.cut.defend(Curious())
    loss = functional.binary_cross_entropy_with_logits(model(columns, labels=labels)[:, 0], labels)
    with pytest.raises(HookError, match=r"0 \(BatchNorm1d\) of the top model mixes the records of a batch"):
        loss.backward()


def test_the_auditor_goes_without_below_a_top_that_mixes_records() -> None:
    columns, labels, ids = torch.randn(ROWS, 3), torch.randint(0, 2, (ROWS,)).float(), torch.arange(ROWS)
    labels[:2] = torch.tensor([0.0, 1.0])
    model = SplitModel(nn.Linear(3, WIDTH), mixing_top(WIDTH))
    audit = model.cut.audit()
    loss = functional.binary_cross_entropy_with_logits(model(columns, labels=labels, ids=ids)[:, 0], labels)
    loss.backward()
    assert audit.total == audit.worst > 0.5

    bank, lab = party_data("bank", columns, labels), party_data("lab", columns, None)
    trainer = Trainer(
        active=ActiveParty(bank, mixing_top(WIDTH + 3)),
        passives={"lab": PassiveParty(lab, nn.Linear(3, WIDTH))},
        batch_size=ROWS,
    )
    trainer.fit(epochs=1)
    assert trainer.worst_leak[0] > 0.5


def test_a_loss_that_cannot_take_outputs_and_labels_as_they_are_is_named() -> None:
    columns, labels = torch.randn(ROWS, 3), torch.randint(0, 2, (ROWS,)).float()
    with pytest.raises(ArgumentError, match=r"expected loss to be a function of .output, labels., got 'bce'"):
        SplitModel(nn.Linear(3, WIDTH), deep_top(1), loss="bce")  # type: ignore[arg-type]
    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1), loss=nn.BCEWithLogitsLoss())  # wants both of one shape
    model.cut.audit()
    loss = functional.binary_cross_entropy_with_logits(model(columns, labels=labels)[:, 0], labels)
    with pytest.raises(HookError, match=rf"outputs \({ROWS}, 1\) and labels \({ROWS},\).*same as input size") as raised:
        loss.backward()
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_penalty_on_the_activation_is_another_loss() -> None:
    torch.manual_seed(5)
    columns, labels = torch.randn(ROWS, 3), torch.randint(0, 2, (ROWS,))
    kept: list[Tensor] = []
    top = deep_top(1)
    top.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    model = SplitModel(nn.Linear(3, WIDTH), top)
    model.cut.audit()
    loss = bce(model(columns, labels=labels), labels) + kept[0].square().mean()
    with pytest.raises(HookError, match="differs by"):
        loss.backward()


def test_no_one_is_stopped_where_nothing_is_needed() -> None:
    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1))
    model.cut.defend(Isotropic(ratio=1.0))
    (model(torch.randn(ROWS, 3), labels=torch.randint(0, 2, (ROWS,))) ** 3).sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


def test_a_loss_of_another_shape_is_told() -> None:
    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1), loss=lambda o, y: o - y)  # (n, n), by broadcasting
    model.cut.audit()
    labels = torch.randint(0, 2, (ROWS,))
    with pytest.raises(ArgumentError, match=rf"a loss per record, \({ROWS},\), or their mean, got \({ROWS}, {ROWS}\)"):
        bce(model(torch.randn(ROWS, 3), labels=labels), labels).backward()


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_loss_scaler_changes_nothing(scale: float) -> None:
    torch.manual_seed(6)
    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1))
    columns, labels = torch.randn(ROWS, 3), torch.randint(0, 2, (ROWS,))
    model.cut.loss_scale = scale
    found, clean = curious_step(model, columns, labels, lambda o, y: bce(o, y) * scale)
    torch.testing.assert_close(found.rows.float(), clean)


def test_under_autocast_rows_are_compared_at_its_precision() -> None:
    torch.manual_seed(7)
    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1))
    columns, labels = torch.randn(ROWS, 3), torch.randint(0, 2, (ROWS,))
    curious = Curious()
    model.cut.defend(curious)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(columns, labels=labels)
    bce(outputs.float(), labels).backward()
    assert len(curious.found) == 1


def test_dropout_of_the_top_is_the_same_under_every_label() -> None:
    torch.manual_seed(8)
    top = nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 1))
    model = SplitModel(nn.Linear(3, WIDTH), top).double()
    columns, labels = torch.randn(ROWS, 3, dtype=torch.float64), torch.randint(0, 2, (ROWS,))
    found, clean = curious_step(model, columns, labels, bce)
    torch.testing.assert_close(found.rows, clean, rtol=1e-9, atol=1e-15)


def test_weights_get_the_gradients_that_they_would_get_anyway() -> None:
    torch.manual_seed(9)
    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1))
    columns, labels = torch.randn(ROWS, 3), torch.randint(0, 2, (ROWS,))
    bce(model(columns, labels=labels), labels).backward()
    plain = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    curious_step(model, columns, labels, bce)
    watched = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert len(plain) == len(watched) == 6
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_what_a_step_computed_goes_with_the_step() -> None:
    """A circle through autograd's graph would be freed by nobody."""
    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1))
    model.cut.audit()
    labels = torch.randint(0, 2, (ROWS,))
    gc.disable()
    try:
        outputs = model(torch.randn(ROWS, 3), labels=labels)
        node = weakref.ref(outputs.grad_fn)
        bce(outputs, labels).backward()
        del outputs
        assert node() is None
        abandoned = model(torch.randn(ROWS, 3), labels=labels)
        node = weakref.ref(abandoned.grad_fn)
        del abandoned
        assert node() is None
    finally:
        gc.enable()


def test_a_defense_that_did_not_say_so_has_none() -> None:
    class Silent(Curious):
        needs_label_gradients = False

    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1))
    model.cut.defend(Silent())
    labels = torch.randint(0, 2, (ROWS,))
    with pytest.raises(PrivacyError, match="needs_label_gradients = True"):
        bce(model(torch.randn(ROWS, 3), labels=labels), labels).backward()


def test_without_labels_nothing_is_sent() -> None:
    model = SplitModel(nn.Linear(3, WIDTH), deep_top(1))
    model.cut.defend(Curious())
    labels = torch.randint(0, 2, (ROWS,))
    with pytest.raises(PrivacyError, match="labels=y"):
        bce(model(torch.randn(ROWS, 3)), labels).backward()


class _Wrong(Curious):
    needs_label_gradients = "yes"  # type: ignore[assignment]


def test_what_a_defense_says_must_be_a_truth_value() -> None:
    with pytest.raises(HookError, match="needs_label_gradients must be true or false"):
        CutLayer().defend(_Wrong())


def party_data(name: str, columns: Tensor, labels: Tensor | None) -> PartyData:
    ids = torch.arange(len(columns))
    records = Records(ids=ids, columns=Columns.of(columns), labels=labels)
    names = tuple(f"{name} {number}" for number in range(columns.shape[1]))
    return PartyData(name, names, names, (), train=records, test=records)


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        (Binary(), torch.tensor([0.0, 1.0] * 6)),
        (Multiclass(3), torch.tensor([0, 1, 2] * 4)),
        (Regression(), torch.linspace(-1.0, 2.0, 12)),
    ],
    ids=["binary", "multiclass", "regression"],
)
def test_parties_give_the_same_as_a_model_in_one_graph(task: Task, labels: Tensor) -> None:
    torch.manual_seed(10)
    columns, own = torch.randn(ROWS, 3), torch.randn(ROWS, 2)
    bottom, top = nn.Linear(3, WIDTH), deep_top(task.outputs, inputs=WIDTH + 2)
    model = SplitModel(bottom, top, loss=task.loss)
    alone = Curious()
    model.cut.defend(alone)
    task.loss(model(columns, active=own, labels=labels), labels).backward()

    together = Curious()
    trainer = Trainer(
        ActiveParty(party_data("bank", own, labels), top, task=task),
        {"passive": PassiveParty(party_data("passive", columns, None), bottom)},
        defenses=[together],
        batch_size=ROWS,
        audit=False,
    )
    trainer.fit(1)
    assert len(together.found) == 1
    # The batch comes in another order: rows are matched by their outputs.
    by_party, by_model = together.found[0], alone.found[0]
    assert by_party.values == by_model.values == (None if task.classes is None else tuple(range(task.classes)))
    for value in (0.0, 1.0):
        left, right = by_party.under(value), by_model.under(value)
        torch.testing.assert_close(left[left[:, 0].argsort()], right[right[:, 0].argsort()], rtol=1e-4, atol=1e-7)


def test_the_label_party_can_run_attacks_that_need_what_came_from_the_partner() -> None:
    """Over a network it judges the partner's attacks: the activation that they need has come to it."""

    class Keep:
        needs: ClassVar[frozenset[str]] = frozenset({"gradient", "activation"})

        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        def __call__(self, view: View, /) -> Tensor:
            self.seen.append(view.activation)
            return view.gradient[:, 0]

    torch.manual_seed(11)
    columns = torch.randn(ROWS, 3)
    trainer = Trainer(
        ActiveParty(party_data("bank", torch.zeros(ROWS, 0), torch.tensor([0.0, 1.0] * 6)), linear_top(1)),
        {"passive": PassiveParty(party_data("passive", columns, None), nn.Linear(3, WIDTH))},
        attacks=[Keep()],
        batch_size=ROWS,
    )
    here = Keep()
    trainer.active.cuts["passive"].watch(here)
    trainer.fit(2)
    (there,) = trainer.leaks["passive"].values()
    assert len(here.seen) == 2
    for mine, its in zip(here.seen, there.attack.seen, strict=True):  # type: ignore[attr-defined]
        assert torch.equal(mine, its)


class _Deaf(nn.Module):
    """Uses the label party's own columns only."""

    separate_active = True

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(2, 1)

    def forward(self, joined: Tensor, active: Tensor) -> Tensor:
        output: Tensor = self.own(active)
        return output


@pytest.mark.parametrize("top", [nn.Linear(WIDTH + 2, 1), _Deaf()], ids=["frozen bottom", "unused activation"])
def test_where_no_gradient_goes_back_an_audited_loop_goes_on(top: nn.Module) -> None:
    bottom = nn.Linear(3, WIDTH).requires_grad_(isinstance(top, _Deaf))
    model = SplitModel(bottom, top)
    audit = model.cut.audit()
    labels = torch.randint(0, 2, (ROWS,))
    outputs = model(torch.randn(ROWS, 3), active=torch.randn(ROWS, 2), labels=labels, ids=torch.arange(ROWS))
    bce(outputs, labels).backward()
    assert all(weight.grad is not None for weight in top.parameters())
    assert all(weight.grad is None for weight in bottom.parameters())
    assert not audit.worst > 0  # nothing was sent, and nothing is judged
