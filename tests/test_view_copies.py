"""What a hook reads is its own copy: nothing that it does to it reaches a message, a model, a judge or another hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.cut.split_model import SplitModel
from splitvfl.data.columns import Columns
from splitvfl.errors import HookError
from splitvfl.exchange.split import Split
from splitvfl.hooks import Secrets, View, ViewField, call_attack, call_defense
from splitvfl.leakage.judging import Leak
from splitvfl.run.trainer import Trainer
from tests.builders import same, small_trainer, weights
from tests.exchange.logistic import trainer_of, weights_of
from tests.rows import every

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("quick_own_models")

ROWS = 8
FIELDS = sorted(name for name in vars(View) if isinstance(vars(View)[name], ViewField) and name != "bottom")


def scribble_numpy(tensor: Tensor) -> None:
    tensor.numpy()[...] = 7


def scribble_data(tensor: Tensor) -> None:
    tensor.data.fill_(7)


def scribble_storage(tensor: Tensor) -> None:
    tensor.untyped_storage().fill_(7)


def scribble_all_of_the_storage(tensor: Tensor) -> None:
    """Rows of other records would lie here, if the field were a slice of a larger table."""
    reach = tensor.untyped_storage().nbytes() // tensor.element_size()
    torch.as_strided(tensor.data, (reach,), (1,), 0).fill_(7)


def scribble_in_place(tensor: Tensor) -> None:
    tensor.fill_(7)


def scribble_after_set(tensor: Tensor) -> None:
    other = torch.zeros(0, dtype=tensor.dtype)
    other.set_(tensor.untyped_storage(), 0, tensor.shape, tensor.stride())  # type: ignore[call-overload]
    other.fill_(7)


def scribble_after_resize(tensor: Tensor) -> None:
    tensor.data.resize_(tensor.numel() * 4).fill_(7)


def scribble_shared(tensor: Tensor) -> None:
    tensor.share_memory_()
    tensor.data.zero_()


SCRIBBLES = [value for name, value in list(globals().items()) if name.startswith("scribble_")]


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)


class Scribbling:
    """An attack that reads fields, scores by the first, and then writes over what it was given."""

    name = "scribbling"

    def __init__(self, scribble: Callable[[Tensor], None], needs: tuple[str, ...] = ("gradient",)) -> None:
        self._scribble = scribble
        self.needs = needs

    def __call__(self, view: View, /) -> Tensor:
        scores = torch.zeros(view.ids.shape[0])
        for name in ("ids", *self.needs):
            for tensor in tensors_in(getattr(view, name)):
                self._scribble(tensor)
        return scores


def party_table() -> Tensor:
    """A table of which a batch is a slice in the middle: records before and after it lie in the same memory."""
    return torch.arange(1.0, 1.0 + 4 * ROWS * 3).reshape(4 * ROWS, 3)


def field_values(table: Tensor) -> dict[str, Any]:
    batch = table[ROWS : 2 * ROWS]
    return {
        name: {
            "columns": Columns(batch, torch.arange(ROWS)[:, None]),
            "weights": {"weight": batch, "nested": {"deeper": (batch[:, 0], [batch[:, 1]])}},
        }.get(name, batch)
        for name in FIELDS
    }


@pytest.mark.parametrize("scribble", SCRIBBLES, ids=lambda scribble: scribble.__name__)
@every(field=FIELDS)
def test_no_field_leads_to_the_memory_that_it_was_made_from(field: str, scribble: Callable[[Tensor], None]) -> None:
    table, ids = party_table(), torch.arange(100, 100 + 3 * ROWS)
    value = field_values(table)[field]
    before, ids_before = table.clone(), ids.clone()
    view = View(party="lab", step=0, ids=ids[ROWS : 2 * ROWS], **{field: value})
    with suppress(HookError):  # where torch counts the write
        call_attack(Scribbling(scribble, (field,)), view)
    assert torch.equal(table, before)
    assert torch.equal(ids, ids_before)
    assert [part.tolist() for part in tensors_in(value)] == [
        part.tolist() for part in tensors_in(field_values(before)[field])
    ]


def test_a_field_holds_nothing_but_its_own_rows() -> None:
    view = View(party="lab", step=0, ids=torch.arange(ROWS), gradient=party_table()[ROWS : 2 * ROWS])
    assert view.gradient.untyped_storage().nbytes() == ROWS * 3 * 4


def test_fields_made_of_one_tensor_share_no_memory() -> None:
    one = torch.ones(ROWS, 2)
    view = View(party="lab", step=0, ids=torch.arange(ROWS), gradient=one, activation=one, columns=Columns(one, one))
    addresses = [tensor.data_ptr() for tensor in tensors_in([view.gradient, view.activation, view.columns])]
    assert len({*addresses, one.data_ptr()}) == 5


def test_a_field_is_copied_once_and_only_if_it_is_read() -> None:
    made: list[str] = []

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is Tensor.clone:
                made.append("copy")
            return super().__torch_function__(function, types, args, kwargs or {})

    def twice(view: View) -> Tensor:
        assert view.gradient is view.gradient
        return torch.zeros(view.ids.shape[0])

    gradient, activation = (torch.ones(ROWS, 2).as_subclass(Counted) for _ in range(2))
    call_attack(twice, View(party="lab", step=0, ids=torch.arange(ROWS), gradient=gradient, activation=activation))
    assert made == ["copy"]


def test_each_attack_gets_copies_of_its_own_from_one_view() -> None:
    view = View(party="lab", step=0, ids=torch.arange(ROWS), gradient=torch.ones(ROWS, 2))
    call_attack(Scribbling(scribble_numpy), view)
    assert call_attack(lambda seen: seen.gradient[:, 0], view).tolist() == [1.0] * ROWS
    assert view.ids.tolist() == list(range(ROWS))


# --- whole runs ------------------------------------------------------------------------------------------------------

ALL = ("gradient", "activation", "columns", "weights", "known_positives", "known_negatives")


class Norms:
    name, needs = "norms", ("gradient",)

    def __call__(self, view: View, /) -> Tensor:
        return view.gradient.norm(dim=1)


class Known:
    """Which records the judge has granted."""

    name, needs = "known", ("known_positives", "known_negatives")

    def __call__(self, view: View, /) -> Tensor:
        return torch.isin(view.ids, view.known_positives).float() - torch.isin(view.ids, view.known_negatives).float()


def trained(*attacks: Any, defenses: tuple[Any, ...] = ()) -> Trainer:
    trainer = small_trainer(attacks=attacks, defenses=defenses, known_positives=3, known_negatives=3, audit=True)
    trainer.fit(2)
    return trainer


def figures_of(trainer: Trainer) -> dict[str, Any]:
    return {name: repr(found) for name, found in trainer.summaries("telecom").items() if name != "scribbling"}


@pytest.mark.parametrize("scribble", [scribble_numpy, scribble_data, scribble_storage, scribble_after_resize])
def test_an_attack_that_writes_changes_no_weight_and_no_figure_of_the_attacks_after_it(scribble: Any) -> None:
    plain, watched = trained(Norms(), Known()), trained(Scribbling(scribble, ALL), Norms(), Known())
    assert same(weights(plain), weights(watched))
    assert figures_of(plain) == figures_of(watched)


class Centring:
    """Scores by the norm of the centred gradient: as one writes it in numpy, in place."""

    name, needs = "centring", ("gradient",)

    def __call__(self, view: View, /) -> Tensor:
        rows = view.gradient.numpy()
        rows -= rows.mean(axis=0)
        return torch.from_numpy((rows**2).sum(axis=1))


def test_an_attack_that_centres_in_numpy_leaves_the_partners_weights_as_they_are() -> None:
    def lab(*attacks: Any) -> Tensor:
        trainer = trainer_of(Split(), {"lab": 4}, approximation="exact", attacks=attacks)
        trainer.fit(3)
        return weights_of(trainer)["lab"]

    assert torch.equal(lab(), lab(Centring()))


@pytest.mark.parametrize("scribble", [scribble_numpy, scribble_data])
def test_at_a_cut_the_gradient_that_is_sent_is_the_one_that_was_computed(scribble: Any) -> None:
    """The label party's monitor in a networked run is this: attacks at its cut, on what it is about to send."""

    def step(*attacks: Any) -> tuple[list[Tensor], list[float]]:
        torch.manual_seed(0)
        model = SplitModel(nn.Linear(3, 4), nn.Linear(4, 1))
        leaks = [model.cut.watch(attack) for attack in attacks]
        early = [model.observe(model.bottoms["passive"], attack) for attack in attacks]
        labels = torch.tensor([1.0, 0.0] * 4)
        logits = model(party_table()[:ROWS], labels=labels, ids=torch.arange(ROWS))[:, 0]
        nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        return [weight.grad for weight in model.parameters()], [leaks[-1].auc, early[-1].auc]

    plain, figures = step(Norms())
    watched, after = step(Scribbling(scribble), Norms())
    assert all(torch.equal(*pair) for pair in zip(plain, watched, strict=True))
    assert figures == after


def test_scores_that_an_attack_keeps_and_changes_later_change_no_figure() -> None:
    """The judge adds up numbers, not tensors: an attack that fills one buffer over and over is judged all the same."""
    labels, random = torch.tensor([0.0, 1.0] * 20), torch.Generator().manual_seed(0)
    drawn = [torch.randn(40, generator=random) for _ in range(5)]
    buffer = torch.zeros(40)

    def run(attack: Callable[[View], Tensor]) -> Leak:
        leak = Leak(attack)
        for step in range(5):
            leak.see(View(party="lab", step=step, ids=torch.arange(40), gradient=drawn[step][:, None]), labels)
        return leak

    fresh, kept = run(lambda view: view.gradient[:, 0]), run(lambda view: buffer.copy_(view.gradient[:, 0]))
    buffer.numpy()[:] = -5
    assert repr(fresh.summary) == repr(kept.summary)


# --- defenses --------------------------------------------------------------------------------------------------------


class ScribblingDefense:
    """Returns the message as it was, and writes over everything that it was handed."""

    name, needs_binary_labels = "scribbling", False

    def __init__(self, scribble: Callable[[Tensor], None], crossing: str = "gradient") -> None:
        self._scribble, self.crossing = scribble, crossing

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        sent = message.clone()
        handed = [message, secrets.ids]
        if self.crossing != "activation":
            handed.append(secrets.labels)
        for tensor in handed:
            self._scribble(tensor)
        return sent


@pytest.mark.parametrize("crossing", ["gradient", "activation", "labels"])
@pytest.mark.parametrize(
    "scribble", [scribble_numpy, pytest.param(scribble_data, marks=pytest.mark.slow(reason="two more runs"))]
)
def test_a_defense_that_writes_into_what_it_was_handed_changes_no_weight_and_no_figure(
    crossing: str, scribble: Any
) -> None:
    plain = trained(Norms(), Known())
    defended = trained(Norms(), Known(), defenses=(ScribblingDefense(scribble, crossing),))
    assert same(weights(plain), weights(defended))
    assert figures_of(plain) == figures_of(defended)  # the auditor's among them, who looks at the clean message


def test_a_label_defense_cannot_write_into_the_callers_labels() -> None:
    model = SplitModel(nn.Linear(3, 4), nn.Linear(4, 1))
    model.defend(ScribblingDefense(scribble_data, "labels"))
    labels, ids = torch.tensor([1.0, 0.0] * 4), torch.arange(ROWS)
    targets = model.targets(labels, ids=ids)
    assert targets.tolist() == labels.tolist() == [1.0, 0.0] * 4
    assert ids.tolist() == list(range(ROWS))


@pytest.mark.parametrize("scribble", SCRIBBLES, ids=lambda scribble: scribble.__name__)
def test_no_message_leads_to_the_senders_memory(scribble: Callable[[Tensor], None]) -> None:
    table = party_table()
    before = table.clone()
    secrets = Secrets(party="lab", step=0, generator=torch.Generator(), ids=torch.arange(ROWS), labels=table[:ROWS, 0])
    with suppress(HookError):
        call_defense(ScribblingDefense(scribble), table[ROWS : 2 * ROWS], secrets)
    assert torch.equal(table, before)
