"""What the label party's own weights learn from: whether labels move a run through what is sent alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.defenses import Isotropic, LaplaceResidue, MultiplicativeLaplaceResidue
from splitvfl.errors import ArgumentError, ConfigError, PrivacyError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.paillier import InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor
from splitvfl.hooks import Secrets
from splitvfl.learning.losses import Logistic
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.learning.tasks import Binary
from splitvfl.messaging.messages import Message
from splitvfl.models import LinearTop
from splitvfl.party.attaching import attach_defense, promises_of
from splitvfl.party.own_part import OwnPart
from splitvfl.party.party import ActiveParty
from splitvfl.run.trainer import Trainer
from tests.builders import ACTIVE, linear_trainer, party_data, small_trainer
from tests.exchange.logistic import BATCH, trainer_of, weights_of

WIDE = InsecureEncryption(key_bits=512, value_limit=1024.0)
TWO = {"lab": 4, "shop": 2}
EXCHANGES: dict[str, Callable[[OwnPart], Exchange]] = {
    "split": lambda own_part: Split(own_part=own_part),
    "oracle": lambda own_part: Oracle(approximation="taylor", own_part=own_part),
    "residue": lambda own_part: Residue(rows=BATCH, encryption=WIDE, own_part=own_part),
    # Whatever is drawn, it is drawn again: the two runs that are compared use the same records.
    "hybrid": lambda own_part: Hybrid(
        rows=BATCH, encryption=WIDE, epsilon=1.0, share=0.4, own_part=own_part, selection_seed_for_experiments=0
    ),
    "taylor": lambda own_part: Taylor(rows=BATCH, encryption=WIDE, own_part=own_part),
    "coordinator": lambda own_part: Coordinator(rows=BATCH, encryption=WIDE, own_part=own_part),
}


class Unlabelled:
    """Sends of every record what follows from its id, so that no label is in it."""

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        secrets.log("power", 1.0)
        return torch.sin(secrets.ids.double()).unsqueeze(1).to(gradient) / len(gradient)


def trained(name: str, own_part: OwnPart, *, turned: int = 0, defenses: Any = (), **options: Any) -> Trainer:
    """A trainer after an epoch, with so many labels turned round."""
    trainer = trainer_of(EXCHANGES[name](own_part), TWO, defenses=defenses, audit=False, **options)
    labels = trainer.active.data.train.labels
    assert labels is not None
    labels[:turned] = 1 - labels[:turned]
    trainer.fit(1)
    return trainer


# All that encrypt train as the oracle does; the others are of the second tier.
longer = pytest.mark.slow(reason="four runs under encryption")


@pytest.mark.parametrize(
    "name",
    ["split", "oracle", "residue", *(pytest.param(name, marks=longer) for name in ("hybrid", "taylor", "coordinator"))],
)
def test_labels_move_nothing_but_what_is_sent_where_the_label_party_learns_from_that(name: str) -> None:
    for own_part in ("sent", "exact"):
        here, there = (weights_of(trained(name, own_part, turned=t, defenses=(Unlabelled(),))) for t in (0, 9))  # type: ignore[arg-type]
        same = {party for party in here if torch.equal(here[party], there[party])}
        # Learning from exact residues, the label party's weights differ, and the logits of all later steps.
        assert same == ({"lab", "shop", "bank"} if own_part == "sent" else {"lab", "shop"})


@pytest.mark.parametrize("name", EXCHANGES)
def test_without_defenses_it_learns_alike_from_both(name: str) -> None:
    exact, sent = (weights_of(trained(name, own_part)) for own_part in ("exact", "sent"))  # type: ignore[arg-type]

    for party, weight in exact.items():
        # Of float32 sums in another order, five steps.
        assert torch.allclose(weight, sent[party], rtol=0, atol=2e-6), party


@pytest.mark.parametrize("name", ["split", "residue", "taylor", "coordinator"])
def test_what_noise_has_cost_is_logged_at_every_cut(name: str) -> None:
    logged = trained(name, "sent", defenses=(LaplaceResidue(epsilon=1.0),)).active.measurements

    for party in TWO:
        assert logged[f"{party}/laplace-residue/epsilon_spent"] == 0.5, party
    assert logged["lab/laplace-residue/power"] == logged["shop/laplace-residue/power"]


@pytest.mark.parametrize("name", ["split", "oracle", "residue", "hybrid"])
def test_several_passive_parties_get_one_draw_of_laplace_noise(name: str) -> None:
    sent: list[Message] = []

    trained(name, "sent", defenses=(LaplaceResidue(epsilon=1.0),), record=sent.append)

    kind = "residues" if name in ("residue", "hybrid") else "gradient"
    for step in range(3):
        rows = [message.payload for message in sent if message.kind == kind and message.step == step]
        assert len(rows) == 2
        # Under encryption too: equal contents are encrypted once.
        assert torch.equal(rows[0], rows[1])


def test_a_draw_for_each_party_is_nothing_to_learn_from() -> None:
    with pytest.raises(PrivacyError, match="each of them is sent something else"):
        trained("split", "sent", defenses=(Isotropic(ratio=0.1),))


def test_a_top_that_adds_up_no_logits_cannot_learn_from_what_is_sent() -> None:
    with pytest.raises(ConfigError, match="own_part: sent needs a model that adds up logits"):
        small_trainer(exchange=Split(own_part="sent"), audit=False)


def test_softmax_regression_learns_from_what_is_sent() -> None:
    def after(own_part: OwnPart) -> Tensor:
        trainer = linear_trainer(outputs=3, exchange=Split(own_part=own_part), audit=False)
        trainer.fit(1)
        return torch.cat([weight.detach().flatten() for weight in trainer.active.top.parameters()])

    assert torch.allclose(after("exact"), after("sent"), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_intercept_that_does_not_learn_stays_zero(name: str) -> None:
    trainer = trainer_of(EXCHANGES[name]("exact"), TWO, audit=False)
    trainer.active.top.intercept.requires_grad_(False)  # type: ignore[operator, union-attr]
    trainer.fit(1)

    assert trainer.active.top.intercept.tolist() == [0.0]  # type: ignore[operator, union-attr]
    assert not LinearTop(1, intercept=False).intercept.requires_grad


def promised(own_part: OwnPart, **options: Any) -> str:
    trainer = trainer_of(Split(own_part=own_part), TWO, defenses=(LaplaceResidue(epsilon=0.5),), audit=False, **options)
    return " ".join(promises_of(trainer.active, 10, own_part=own_part))


def test_of_a_run_something_is_promised_only_where_labels_move_it_through_what_is_sent() -> None:
    covered = "all messages of the run together are 2.5-differentially private in the label of a record"

    assert covered in promised("sent")
    assert "more often than 0.924" in promised("sent")  # e^2.5 / (1 + e^2.5)
    assert covered not in promised("exact")
    assert "learns its own columns or intercept from exact residues" in promised("exact")
    assert "early stopping is made from labels" in promised("sent", early_stopping=EarlyStopping(patience=2))


def test_a_label_party_with_nothing_to_learn_needs_no_setting() -> None:
    trainer = trainer_of(Split(), TWO, own=0, defenses=(LaplaceResidue(epsilon=0.5),), audit=False)
    trainer.active.top.intercept = nn.Parameter(torch.zeros(1), requires_grad=False)

    assert "all messages of the run together" in " ".join(promises_of(trainer.active, 10))


class Weighted(Logistic):
    """Positives count ten times, so that a label moves a clipped residue by up to 2."""

    name = "weighted"

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets, pos_weight=torch.tensor(10.0))


@pytest.mark.parametrize(
    "defense", [LaplaceResidue(epsilon=1.0), MultiplicativeLaplaceResidue(epsilon=5.0, b1=0.5, b2=1.0)]
)
def test_noise_on_residues_promises_nothing_below_another_loss(defense: Any) -> None:
    data = party_data(ACTIVE, width=2, task="binary")
    active = ActiveParty(data, LinearTop(1, active_inputs=2), task=Binary(Weighted()))
    active.connect("lab")

    with pytest.raises(PrivacyError, match="trains on Weighted"):
        attach_defense(active, defense, number=0, noise_seed=None)


def test_nothing_is_promised_of_a_run_where_one_party_gets_residues_as_they_are() -> None:
    trainer = trainer_of(Split(own_part="sent"), TWO, audit=False)
    trainer.active.cuts["lab"].defend(LaplaceResidue(epsilon=1.0))

    told = promises_of(trainer.active, 3, own_part="sent")[-1]

    assert told.startswith("laplace-residue: of the whole run nothing is promised: shop gets residues without it")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Oracle(own_part="taylor"), "own_part"),
        (lambda: Oracle(approximation="tailor"), "approximation"),
        (lambda: Split(own_part="all"), "own_part"),
        (lambda: Residue(rows=8, approximation="sigmoid"), "approximation"),
        (lambda: Residue(rows=8, own_part="none"), "own_part"),
        (lambda: Hybrid(rows=8, epsilon=1.0, share=0.25, approximation="sigmoid"), "approximation"),
    ],
)
def test_another_word_is_refused_when_an_exchange_is_made(make: Any, named: str) -> None:
    with pytest.raises(ArgumentError, match=f"expected {named} one of .*exact"):
        make()
