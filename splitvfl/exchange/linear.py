"""Common code of the exchanges for linear models: checks of the model, and sums of residue times row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from splitvfl.data.columns import Records, columns_of, with_one
from splitvfl.errors import ConfigError, ProtocolError
from splitvfl.exchange.split_step import update
from splitvfl.hooks import all_finite, hook_name, needs_label_gradients
from splitvfl.party.own_part import set_own
from splitvfl.party.party import ActiveParty, LinearStep, PassiveParty

# With Taylor's sigmoid the gradient is a sum times 1 / (4 n).
SCALE = 4.0


def weight_of(party: PassiveParty, exchange: str) -> nn.Parameter:
    """Return the one weight of a passive party's linear bottom, ``(1, d)``.

    Raises:
        ConfigError: If its bottom is anything else than one linear layer with one output and without an intercept, or
            it has categorical columns.
    """
    parameters = list(party.bottom.parameters())
    if not party.is_linear or len(parameters) != 1 or parameters[0].shape[0] != 1:
        raise ConfigError(
            f"exchange {exchange} trains logistic regression: expected the bottom of {party.name} to be one linear "
            "layer with one output and no intercept, on numeric columns; choose model logistic-regression, and encode "
            "categorical columns as numbers"
        )
    return parameters[0]


def check_top(party: ActiveParty, exchange: str, approximation: str | None) -> None:
    """Check that the active party's top adds up logits, and that its task is binary, with the exchange's loss.

    Args:
        party: The active party.
        exchange: Name of the exchange.
        approximation: The sigmoid's in the gradient that the exchange takes from the loss; ``None``: it takes none.

    Raises:
        ConfigError: If it is not so, or a defense of its labels has a loss of its own.
    """
    check_loss(party, exchange)
    if party.task.name != "binary":
        raise ConfigError(
            f"exchange {exchange} trains logistic regression: expected labels 0 and 1 at {party.name}, got a "
            f"{party.task.name} task; take exchange split for it"
        )
    if not hasattr(party.top, "active_logits"):
        raise ConfigError(
            f"exchange {exchange} trains logistic regression: expected a top that adds up logits (LinearTop) at "
            f"{party.name}, got {type(party.top).__name__}; choose model logistic-regression"
        )
    given = getattr(party.task.loss, "approximation", approximation)
    if approximation is not None and given != approximation:
        raise ConfigError(
            f"exchange {exchange}: expected a loss with the {approximation} sigmoid at {party.name}, got one with the "
            f"{given} sigmoid; give ActiveParty(..., task=Binary(logistic_loss({approximation!r}))), or the exchange "
            f"approximation={given!r}"
        )


def check_loss(party: ActiveParty, exchange: str) -> None:
    """Check that the loss is the exchange's own, whose gradient it can compute.

    Raises:
        ConfigError: If a defense of the labels computes another.
    """
    own = party.labels.with_own_loss
    if own is not None:
        raise ConfigError(
            f"exchange {exchange} computes the gradient of its own loss, and {hook_name(own)} at {party.name} brings "
            "another: take exchange split for it, or a label defense that only replaces labels (asymmetric-response or "
            "memoised-response with corrected: targets)"
        )


def check_defenses(party: ActiveParty, exchange: str) -> None:
    """Check that no defense of its coefficients needs what they would be under other labels.

    Raises:
        ConfigError: If one does.
    """
    asking = {hook_name(one) for cut in party.cuts.values() for one in cut.gradient if needs_label_gradients(one)}
    if asking:
        raise ConfigError(
            f"exchange {exchange} sends no gradient for each record in the clear, and {' and '.join(sorted(asking))} "
            "of its gradients needs what each would be under other labels; take exchange split, or a defense of labels "
            "(gaussian-targets, asymmetric-response), or coefficient-noise"
        )


def learn_sum(
    party: PassiveParty, activation: Tensor, gradient: Tensor, batch: Records, step: int, active: str
) -> None:
    """Take a passive party's step with the gradient of its weights, ``(d,)``, in place of one for each record.

    Raises:
        ProtocolError: If it is NaN or infinite: no weight changes then.
    """
    party.weights.clear_gradients()
    party.learn_sum(activation, gradient.unsqueeze(1).to(activation.device), batch, step)
    update(party, step, active)


def tell_of_sums(party: ActiveParty, batch: Records, opened: Mapping[str, Tensor], coefficients: Tensor) -> None:
    """Tell of a step under encryption, of which the active party opens sums of each partner's parts.

    Args:
        party: The active party.
        batch: The records.
        opened: Its columns and one, multiplied with the parts of each partner and summed, ``(d + 1,)``; without those
            whose sums are not opened apart.
        coefficients: What it sent of each record, ``(n,)``: partners add their parts to that.
    """
    if not party.told_of_steps or not opened:
        return
    scale = SCALE * batch.count
    sent = dict.fromkeys(opened, coefficients.cpu() / scale)
    of_all = torch.stack([*opened.values()]).sum(dim=0)
    for told in party.told_of_steps:
        told(LinearStep(batch, with_one(columns_of(batch)).cpu(), opened, of_all, sent, 1 / scale))


@dataclass(frozen=True, slots=True)
class ActiveCoefficients:
    """The active party's part of a record's coefficient ``f = z − 2 y``, where Taylor's sigmoid makes it a sum.

    Attributes:
        logits: Its part of the logits, ``(n,)``, float64.
        labels: −1 and +1, ``(n,)``, float64.
        coefficients: The one less twice the other, ``(n,)``, float64.
        shown: What later defenses get for labels: the answers of the label defenses where there are any.
    """

    logits: Tensor
    labels: Tensor
    coefficients: Tensor
    shown: Tensor | None

    @classmethod
    def of(cls, party: ActiveParty, batch: Records, step: int) -> ActiveCoefficients:
        """Return the part of a batch.

        Raises:
            ConfigError: If a defense of its labels has a loss of its own.
            ProtocolError: If its logits are NaN or infinite.
        """
        check_loss(party, "under encryption")  # a defense may have come since the first step
        with torch.no_grad():
            logits = party.top.active_logits(batch.columns.numeric).squeeze(1).double()  # type: ignore[operator]
        targets, responses = party.answer(batch, step)
        labels = 2 * targets.double() - 1
        if not all_finite(logits):
            raise ProtocolError(f"the logits of {party.name} at step {step} are NaN or infinite")
        return cls(logits, labels, logits - 2 * labels, batch.judged if responses is None else responses)

    def defended(self, party: ActiveParty, batch: Records, step: int) -> Tensor:
        """Return the coefficients that the passive parties are to get, after the defenses of gradients, ``(n,)``.

        All get the same: what is drawn for each of them apart averages out between parties that put it together.
        """
        scale = SCALE * batch.count
        gradient = (self.coefficients / scale).unsqueeze(1)
        chain, *others = (cut.gradient for cut in party.cuts.values())
        defended = chain.apply(gradient, step=step, ids=batch.ids, labels=self.shown)
        for other in others:
            other.measurements.update(chain.measurements)  # what was spent is spent for all
        return (defended.squeeze(1).double() * scale).cpu()

    def learn(self, party: ActiveParty, others: Tensor, batch: Records, step: int, *, own: Tensor) -> None:
        """Take the active party's step.

        Args:
            party: The active party.
            others: Its columns and one, multiplied with the other parties' parts and summed, ``(d + 1,)``.
            batch: The records.
            step: Number of the step.
            own: The coefficients that it learns from: these, or what :meth:`defended` made of them, ``(n,)``.

        Raises:
            ProtocolError: If a gradient is NaN or infinite; no weight changes then.
        """
        party.weights.clear_gradients()
        gradient = (with_one(columns_of(batch)).cpu().T @ own.cpu() + others) / (SCALE * batch.count)
        set_own(party, gradient[:-1], gradient[-1:])
        if not party.weights.has_finite_gradients():
            raise ProtocolError(f"gradients of {party.name} at step {step} are NaN or infinite; no weight was changed")
        party.weights.update()
