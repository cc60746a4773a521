"""Label attack by a mixture model of a record's noisy messages, given the model's prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.attacks.class_mixture import RecordDirections
from splitvfl.attacks.mixture_fit import (
    LineMessages,
    MixtureFit,
    Vector,
    Whole,
    fit_mixture,
    log_ratios,
    logits,
    step_variances,
    weights,
)
from splitvfl.attacks.readout import ReadoutAttack
from splitvfl.hooks import View, classes_of
from splitvfl.learning.records import RecordTable

# Messages that are kept, at 32 bytes each: 128 MiB.
_MOST_MESSAGES = 1 << 22
_SUMS = ("plain", "ratio", "logit", "weight")
# A new fit waits until so large a share of the messages is new.
_NEWS = 0.05


class MixtureAttack:
    """Score every record by the log odds of its label, given all its messages and its own activations.

    Below a linear top ``w`` a row of the cut gradient is ``(p − y) w / n``. The partner learns the direction of w from
    the messages (:class:`~splitvfl.attacks.readout.ReadoutAttack`), and on it sees x, the projection of n times a
    message, and s, that of its own activation: ``p = sigmoid(α s + β)``, and x is ``κ (p − y)`` and noise. Only noise
    against κ hides a label, however close the class means of the messages are. So it fits κ, α, β and γ, without
    labels, by maximum likelihood of ::

        Π_i Σ_y P(y | s_i) Π_t N(x_it; κ_t (p_it − y), v_t),   p = sigmoid(α_t (s − m) + β)

    over the records i and the messages t of each, which share one label. κ_t and α_t grow with the run, ``κ e^(γ τ)``,
    ``α e^(γ τ)``: below a linear top both are ‖w‖. The noise's variance v_t is fitted for each step. The score is the
    prediction's log odds and ``−Σ_t κ_t (x_it − κ_t (p_it − ½)) / v_t``, in nats, of all that came of the record: an
    attack of the whole run (``cumulative``).

    κ and α are positive, as whatever raises the prediction is minus the gradient: so readout and messages are added
    with the right sign. Messages do not tell which class is the positive one, as the likelihood is the same with the
    labels and all signs exchanged; the judge grants that bit. The direction's sign is kept from step to step.

    It is fitted anew (:func:`~splitvfl.attacks.mixture_fit.fit_mixture`) after every epoch, that is when a record comes
    again, if 5 % of the messages are new. Where the fit fails, ``fit.failure`` and ``note`` say why. The score is then
    by the last fit that did not; before there is one, it is the plain sum of the messages, each in units of its batch.
    The latest four million messages or so are kept (128 MiB), in whole epochs and at least one; of each record, 40
    bytes and its id.

    It is not the best attack everywhere: at a top with hidden layers messages are on no line, and where the other
    party's columns decide, p is no function of s. Behind a label defense it reads the answers: for labels add the
    readout (:class:`~splitvfl.attacks.combined.CombinedAttack`). Where one record in fifty is positive and training has
    just begun, the slope is fitted badly, and the plain sum with the readout reads better (one run each, made-up
    columns: .74 for .86 after 8 epochs, .97 for .98 after 20).

    Of k classes it is another model: a record's mean direction over the run, in the k − 1 dimensions that classes span,
    is of a mixture of k normal clusters (:mod:`splitvfl.attacks.class_mixture`). It uses no prediction. Which cluster
    is which class messages do not tell: the judge grants the names. Nothing is scored before the first epoch is over.

    Source: this project's. For its steps of expectation and maximisation: Dempster, Laird and Rubin, JRSS B 39 (1977).
    """

    name: ClassVar[str] = "mixture"
    explanation: ClassVar[str] = (
        "Fits, without a label, how far one label shifts a message below a linear top, and what the model predicts of "
        "a record from the partner's own activation; then weighs all that came of the record. Noise that hides the "
        "mean messages of the classes from each other may hide none of that."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "activation"})
    cumulative: ClassVar[bool] = True
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass"})
    clusters: ClassVar[bool] = True
    not_for: ClassVar[Mapping[str, str]] = {
        "regression": "its likelihood is of classes, and not of numbers; readout and combined read numbers",
    }

    def __init__(self) -> None:
        self._line = ReadoutAttack()
        columns = dict.fromkeys(_SUMS, np.float64)
        self._records = RecordTable(**columns, epoch=np.int64)
        self._epochs: list[list[LineMessages]] = [[]]
        self._finished = 0
        self._step = 0
        self._new = 0
        self._fit: MixtureFit | None = None
        self._usable: MixtureFit | None = None
        self._many: RecordDirections | None = None

    @property
    def fit(self) -> MixtureFit | None:
        """The last fit, failed ones included; ``None`` before the first epoch was over."""
        return self._fit

    @property
    def note(self) -> str:
        """Remark beside its figures where the fit failed, with what was done instead; else empty."""
        if self._many is not None:
            return "" if self._many.fitted else "the mixture was not fitted, as no epoch was over"
        if self._usable is None:
            reason = "no epoch was over" if self._fit is None else self._fit.failure
            return f"the mixture was not fitted ({reason}); the score is the plain sum of the messages"
        if self._fit is not None and self._fit.failure:
            return f"the last fit of the mixture failed ({self._fit.failure}); the score is by an earlier one"
        return ""

    def __call__(self, view: View, /) -> Tensor:
        """Return each record's log odds from all its messages so far, this one included.

        Args:
            view: Its ``gradient`` and ``activation``, each ``(n, width)``, and ``ids`` are read.

        Returns:
            ``(n,)``, float64; of k classes log probabilities of k clusters, ``(n, k)``.

        Raises:
            ArgumentError: If the width differs from that of earlier gradients.
        """
        gradient, classes = view.gradient, classes_of(view)
        if classes != 2:
            assert classes is not None, "numbers are refused"
            self._many = self._many or RecordDirections(classes)
            found = self._many.see(view.ids.cpu().numpy(), gradient.double().cpu().numpy())
            return torch.from_numpy(found).to(gradient.device)
        activation = self._line(view).cpu().numpy()
        direction = self._line.direction
        shift = np.zeros(activation.size)
        if direction is not None:
            shift = (gradient.double() @ direction.to(gradient.device)).cpu().numpy() * activation.size
        slots = self._records.slots(view.ids.cpu().numpy())
        self._take(slots, shift, activation, came=gradient.any(dim=1).cpu().numpy())
        return torch.from_numpy(self._scores(slots)).to(gradient.device)

    def _take(self, slots: Whole, shift: Vector, activation: Vector, *, came: npt.NDArray[np.bool_]) -> None:
        if (self._records["epoch"][slots] == self._finished + 1).any():
            self._finish()
        self._records["epoch"][slots] = self._finished + 1
        # A row of zeros is none of a record: a dummy's, or of a step that sent nothing.
        message = LineMessages(slots[came], np.full(int(came.sum()), self._step), shift[came], activation[came])
        self._step += 1
        if message.record.size:
            self._epochs[-1].append(message)
            self._new += message.record.size
            self._add(message, None if self._usable is None else step_variances(message, self._usable))

    def _add(self, messages: LineMessages, variances: Vector | None) -> None:
        """Add messages to what is known of their records; with variances, under the mixture too."""
        _, step = np.unique(messages.step, return_inverse=True)
        square = np.bincount(step, messages.shift**2) / np.bincount(step)
        added = {"plain": -messages.shift / np.sqrt(square)[step]}
        if self._usable is not None and variances is not None:
            weight = weights(messages, self._usable)
            added["ratio"] = log_ratios(messages, self._usable, variances)
            added["weight"], added["logit"] = weight, weight * logits(messages, self._usable)
        for column, values in added.items():
            np.add.at(self._records[column], messages.record, values)

    def _scores(self, slots: Whole) -> Vector:
        if self._usable is None:
            plain: Vector = self._records["plain"][slots]
            return plain
        weight = self._records["weight"][slots]
        prior = self._records["logit"][slots] / np.where(weight > 0.0, weight, 1.0)
        scores: Vector = prior + self._records["ratio"][slots]
        return scores

    def _finish(self) -> None:
        """End an epoch, and fit what has come so far."""
        self._finished += 1
        if self._epochs[-1]:
            self._epochs[-1] = [_joined(self._epochs[-1])]
        kept = [epoch for epoch in self._epochs if epoch]
        while len(kept) > 1 and sum(part.record.size for epoch in kept for part in epoch) > _MOST_MESSAGES:
            kept = kept[1:]
        self._epochs = [*kept, []]
        if kept and self._new >= _NEWS * sum(part.record.size for epoch in kept for part in epoch):
            self._new = 0
            self._fit_to(_joined([part for epoch in kept for part in epoch]))

    def _fit_to(self, messages: LineMessages) -> None:
        self._fit, variances = fit_mixture(messages, start=self._usable)
        if self._fit.failure:
            return
        self._usable = self._fit
        for column in _SUMS:
            self._records[column][:] = 0.0
        self._add(messages, variances)

    def state_dict(self) -> dict[str, Any]:
        """Return the line, the messages that are kept, the records' sums and the last fit."""
        return {
            "line": self._line.state_dict(),
            "records": self._records.state_dict(),
            "epochs": [[tuple(map(torch.from_numpy, part)) for part in epoch] for epoch in self._epochs],
            "finished": self._finished,
            "step": self._step,
            "new": self._new,
            "fit": None if self._fit is None else asdict(self._fit),
            "usable": None if self._usable is None else asdict(self._usable),
            "many": None if self._many is None else self._many.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._line.load_state_dict(state["line"])
        self._records.load_state_dict(state["records"])
        self._epochs = [
            [LineMessages(*(field.numpy() for field in part)) for part in epoch] for epoch in state["epochs"]
        ]
        self._finished, self._step, self._new = state["finished"], state["step"], state["new"]
        many = state.get("many")
        if many is not None:
            self._many = RecordDirections(many["classes"])
            self._many.load_state_dict(many)
        self._fit, self._usable = (
            None if state[name] is None else MixtureFit(**state[name]) for name in ("fit", "usable")
        )


def _joined(parts: Sequence[LineMessages]) -> LineMessages:
    return LineMessages(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))
