"""The cut: one object that stands where the gradient crosses.

Forward it is the identity (or applies the passive party's activation defenses); backward it hands the gradient to the
defenses, in order, and then shows what is about to be sent to the attacks. It is the same object in one process, inside
one autograd graph (:mod:`splitvfl.cut.split_model`), and across parties, where the activation arrives as a leaf and its
gradient after the hooks is what is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from splitvfl.claims import claims_of, is_per_record
from splitvfl.cut.chain import KEEP_STATE, DefenseChain, GradientDefenses, OneDraw
from splitvfl.cut.views import GRADIENTS, ViewSource, is_linear
from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.hooks import Attack, Defense, batch_mixing_layer, crossing_of, hook_name
from splitvfl.leakage.auditing import Audit
from splitvfl.leakage.canaries import canaries_of
from splitvfl.leakage.judging import Handle, Leak
from splitvfl.leakage.many_auditing import audit_for
from splitvfl.leakage.message_audit import MessageAudit
from splitvfl.leakage.partner_features import PartnerFeatures
from splitvfl.learning.compiling import leave_untraced, untraced
from splitvfl.learning.label_gradients import Drawn, LabelGradients, LabelGradientSource, Loss
from splitvfl.system.pickling import NotPickled
from splitvfl.team.team import Team

if TYPE_CHECKING:
    from splitvfl.data.coin_labels import Canaries
    from splitvfl.data.columns import Columns, Records


@dataclass(frozen=True, slots=True)
class _CutContext:
    """The data of one forward pass through the cut, kept in its autograd node."""

    step: int
    ids: Tensor | None
    labels: Tensor | None
    responses: Tensor | None
    binary_responses: Tensor | None
    view_source: ViewSource
    answer: Answer | None = None
    source: LabelGradientSource | None = None
    once: OneDraw | None = None


class Answer:
    """The label defenses' answer for one batch of labels: drawn once, for the loss and for later defenses.

    Args:
        labels: What was asked for.
        targets: What was answered.
        responses: What later defenses may see of the labels. Default: what :func:`responses_of` makes of the targets.
        in_loss: Whether the loss is computed with it.
    """

    def __init__(
        self, labels: Tensor, targets: Tensor, responses: Tensor | None = None, *, in_loss: bool = False
    ) -> None:
        self.labels = labels
        self.targets = targets
        self.responses = responses_of(targets) if responses is None else responses
        self.in_forward = False
        self.in_loss = in_loss


class _Cross(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, activation: Tensor, cut: CutLayer, context: _CutContext) -> Tensor:
        ctx.cut, ctx.context = cut, context
        sent = cut.activation.apply(activation, step=context.step, ids=context.ids, labels=None)
        return activation.view_as(activation) if sent is activation else sent

    @staticmethod
    @untraced
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.cut._send(gradient, ctx.context), None, None


class CutLayer(NotPickled, nn.Module):
    """The cut at which one passive party's activation and gradient cross.

    Args:
        party: Name of the passive party.
        active: Name of the active party, the sender of the gradient.

    Attributes:
        activation: Defenses of the activation (the passive party's).
        gradient: Defenses of the gradient (the active party's).
        loss_scale: Factor that a loss scaler put on the loss (``scaler.get_scale()``); it is divided out before
            defenses and attacks, and put back after. The gradient is that of the batch's *mean* loss, 1/batch included.
        shows: View fields that attacks can have here.
        steps: Forward passes with a gradient so far: number of the step that comes next.
        wire: The narrower dtype in which the gradient crosses, to which it is rounded after the defenses; ``None``: its
            own.
    """

    def __init__(self, party: str = "passive", *, active: str = "active") -> None:
        super().__init__()
        leave_untraced(type(self), _Cross)
        self.party = party
        self.activation = DefenseChain("activation", party)
        self.gradient = GradientDefenses(active)
        self.loss_scale = 1.0
        self.wire: torch.dtype | None = None
        self.steps = 0
        self._leaks: list[Leak] = []
        self._audits: list[MessageAudit] = []
        self.shows: frozenset[str] = frozenset({"gradient"})
        self._bottoms: tuple[nn.Module, ...] = ()  # in a tuple, it is no submodule of the cut
        self._tops: tuple[nn.Module, ...] = ()

    @untraced
    def forward(
        self,
        activation: Tensor,
        *,
        labels: Tensor | None = None,
        ids: Tensor | None = None,
        step: int | None = None,
        view_source: ViewSource | None = None,
        answer: Answer | None = None,
        source: LabelGradientSource | None = None,
        once: OneDraw | None = None,
    ) -> Tensor:
        """Return the activation as it arrives at the top model; its gradient will pass the hooks.

        The result is a view of its input, so a top model that starts with an in-place operation raises.

        Args:
            activation: ``(n, width)``.
            labels: ``(n,)``; for the active party's defenses, and for judging. Never shown to an attack.
            ids: Record ids, ``(n,)``, int64. Without them nothing is accumulated per record.
            step: Number of the training step. Default: forward passes with a gradient are counted.
            view_source: What the passive party can show its own attacks.
            answer: What the label defenses answered in place of the labels; later defenses get it too, with 0 for ½. A
                loss has to have asked for it before the gradient is sent.
            source: What gives the gradient under every label, where it is needed; it follows the top's output.
            once: What is drawn once in this step for all cuts, where there are several.

        Raises:
            ArgumentError: If the activation is no matrix, or rows do not match.
        """
        if activation.dim() != 2:
            raise ArgumentError(
                f"expected an activation of {self.party} of shape (n, width), got {tuple(activation.shape)}: end the "
                "bottom with nn.Flatten(), and begin the top with nn.Unflatten where it needs more dimensions"
            )
        rows = activation.shape[0]
        for name, values in (("labels", labels), ("ids", ids)):
            if values is not None and values.shape[:1] != (rows,):
                raise ArgumentError(f"expected {rows} {name}, one per row of the activation, got {tuple(values.shape)}")
        if step is None:
            step = self.steps
            self.steps += int(torch.is_grad_enabled())
        responses = None if answer is None else answer.responses
        shown = labels if responses is None else responses
        binary_responses = labels if responses is None else binary_responses_of(responses)
        context = _CutContext(
            step, ids, labels, shown, binary_responses, view_source or ViewSource(), answer, source, once
        )
        crossed: Tensor = _Cross.apply(activation, self, context)  # type: ignore[no-untyped-call]
        return crossed

    def _send(self, gradient: Tensor, context: _CutContext) -> Tensor:
        if context.answer is not None and not context.answer.in_loss:
            raise PrivacyError(
                "a label defense is attached, but this loss was not computed with its answers, so nothing was sent; "
                "call model(x, labels=y, ids=ids), and use model.targets(y, ids=ids) in place of y in the loss, or "
                "model.loss(output, y, ids=ids); with one and the same tensor y in both places: labels[rows] written "
                "twice makes two, so say y = labels[rows] first"
            )
        if self.loss_scale == 1.0:
            return self._defend_and_show(gradient, context)
        # In float32 or wider: what a loss scaler lifted out of half precision's underflow would fall back into it.
        clean = gradient.to(torch.promote_types(gradient.dtype, torch.float32)) / self.loss_scale
        return (self._defend_and_show(clean, context) * self.loss_scale).to(gradient.dtype)

    def _defend_and_show(self, clean: Tensor, context: _CutContext) -> Tensor:
        known = None if context.source is None else context.source.at(self.party)
        if self.team.size == 1:
            return self._defended_and_shown(clean, context, known)
        if self.gradient.scope == "batch":
            return self._defended_by_worker_0(clean, context, known)
        # What a worker knows of other labels is of the mean over its own rows, in another unit than the message.
        sent = self._defended(clean, context, None)
        if self._leaks or self._audits:
            self._shown_by_worker_0(clean, sent, context, known)
        return sent

    def _defended_by_worker_0(self, part: Tensor, context: _CutContext, known: LabelGradients | None) -> Tensor:
        """Return this worker's part of what is sent: worker 0 has the whole message, defends it and shows it.

        Defenses have the statistics of a whole batch then, one generator and one memory, as in one process.
        """
        parts = self.team.gather(part)
        whole, known = self._of_all_workers(context, known)
        sent: Sequence[Tensor] | None = None
        if parts is not None:
            sent = self._defended_and_shown(torch.cat(parts), whole, known).split([len(one) for one in parts])
        return self.team.scatter(sent, len(part)).to(part)

    def _shown_by_worker_0(
        self, part: Tensor, sent: Tensor, context: _CutContext, known: LabelGradients | None
    ) -> None:
        """Let worker 0 show what all workers send, each of which has defended its part: to look on changes nothing."""
        clean, all_sent = self.team.whole(part), self.team.whole(sent)
        whole, known = self._of_all_workers(context, known)
        if clean is not None and all_sent is not None:
            self._check(known, clean)
            self._show(clean, all_sent, whole, known)
        self.team.collect(b"")  # where that fails at worker 0, nobody sends

    def _of_all_workers(
        self, context: _CutContext, known: LabelGradients | None
    ) -> tuple[_CutContext, LabelGradients | None]:
        """Return, at worker 0, the data of the forward passes of all workers; at the others, nothing of use."""
        assert context.ids is not None, "parties' records have ids"
        held = (context.ids, context.labels, context.responses, context.view_source.activation)
        ids, labels, responses, activation = (None if one is None else self.team.whole(one.detach()) for one in held)
        as_they_are = context.binary_responses is context.responses
        whole = replace(
            context,
            ids=ids,
            labels=labels,
            responses=responses,
            binary_responses=responses if as_they_are or responses is None else binary_responses_of(responses),
            view_source=ViewSource(activation=activation),
        )
        return whole, None if known is None else known.of_all(self.team.whole)

    def _defended_and_shown(self, clean: Tensor, context: _CutContext, known: LabelGradients | None) -> Tensor:
        self._check(known, clean)
        sent = self._defended(clean, context, known)
        if self._leaks or self._audits:
            if known is not None and known.drawn is not None:
                clean = known.rows.to(clean).reshape(clean.shape)  # for the auditor; what came is drawn already
            self._show(clean, sent, context, known)
        return sent

    def _check(self, known: LabelGradients | None, clean: Tensor) -> None:
        if known is not None:
            known.check(clean, party=self.party, mixing=self._mixing())

    def _defended(self, clean: Tensor, context: _CutContext, known: LabelGradients | None) -> Tensor:
        responses = context.binary_responses
        if known is not None and known.drawn is not None:
            responses = known.drawn.responses(context.labels)
        sent = self.gradient.apply(
            clean, step=context.step, ids=context.ids, labels=responses, label_gradients=known, once=context.once
        )
        # Attacks look at what crosses.
        return sent if self.wire is None else sent.to(self.wire).to(sent.dtype)

    def _show(self, clean: Tensor, sent: Tensor, context: _CutContext, known: LabelGradients | None) -> None:
        if context.labels is None:
            raise PrivacyError(
                "an attack is watched, but there are no labels to judge it by; pass model(x, labels=y, ids=ids)"
            )
        rows = sent.shape[0]
        numbers = context.ids if context.ids is not None else torch.arange(rows, device=sent.device)
        for audit in self._audits:
            audit.check(context.labels)
        for audit in self._audits:
            audit.see(
                clean.detach(),
                sent.detach(),
                context.labels,
                context.ids,
                responses=context.responses,
                label_gradients=known,
            )
        for leak in self._leaks:
            view = GRADIENTS.view(
                leak.needs, context.view_source, {"gradient": sent}, party=self.party, step=context.step, ids=numbers
            )
            leak.see(view, context.labels, ids_known=context.ids is not None)

    @property
    def needs_label_gradients(self) -> bool:
        """Whether the auditor, or a defense of the gradient, needs what would be sent under every label.

        Below a top that mixes the records of a batch no record has such a row of its own: the auditor goes without.
        """
        audited = bool(self._audits) and self._mixing() is None
        return audited or self.gradient.needs_label_gradients

    def _mixing(self) -> str | None:
        return next(filter(None, map(batch_mixing_layer, self._tops)), None)

    @property
    def team(self) -> Team:
        """The workers of the active party, each with a part of every message."""
        return self.gradient.team

    @property
    def is_watched(self) -> bool:
        """Whether any defense, attack or audit is attached."""
        return bool(len(self.activation) or len(self.gradient) or self._leaks or self._audits)

    def why_not_pickled(self) -> str:
        """Return why a cut with hooks is not."""
        return (
            f"defenses or attacks are attached to the cut of {self.party}, and {KEEP_STATE}" if self.is_watched else ""
        )

    def show_received(self) -> None:
        """Declare that what passes forward is what came from the party behind this cut, and may be shown for its own.

        What it holds itself is the activation before its defenses; the label party has nothing closer.
        """
        self.shows = frozenset({"gradient", "activation"})

    def show_from(self, bottom: nn.Module) -> None:
        """Declare the model behind this cut, so that ``watch`` and ``defend`` can refuse what does not fit it."""
        self.shows = GRADIENTS.fields(linear=is_linear(bottom))
        self._bottoms = (bottom,)

    def show_top(self, top: nn.Module) -> None:
        """Declare the label party's model, so that ``defend`` can refuse what does not hold below it."""
        self._tops = (top,)

    def defend(self, defense: Defense, *, noise_seed_for_experiments: int | None = None) -> Handle:
        """Attach a defense of the gradient or of the activation, whichever it is made for; order matters.

        Returns:
            A handle: ``with cut.defend(...):`` or ``handle.remove()``.

        Raises:
            ArgumentError: If it defends scores or labels, which do not cross here.
            PrivacyError: If it claims a guarantee per record and a layer of the bottom model mixes records, or if it
                promises nothing below this top model.
        """
        chains = {"activation": self.activation, "gradient": self.gradient}
        crossing = crossing_of(defense)
        if crossing not in chains:
            hint = "; attach it to the model: model.defend(...)" if crossing == "labels" else ""
            raise ArgumentError(f"{hook_name(defense)} defends {crossing}, which do not cross at a cut layer{hint}")
        refuse_batch_mixing(self._bottoms, defense)
        for top in self._tops:
            check_top(top, defense)
        return chains[crossing].attach(defense, noise_seed_for_experiments=noise_seed_for_experiments)

    def watch(
        self,
        attack: Attack,
        *,
        known_positives: int | None = None,
        known_negatives: int | None = None,
        canaries: Canaries | Tensor | None = None,
        classes: int | None = 2,
    ) -> Leak:
        """Let an attack observe exactly what is sent, after all defenses, and judge it.

        Args:
            attack: A label attack.
            known_positives: Positive records that an attack which needs some is assumed to know, and is not judged by.
                Default: every other one that it meets, up to ten.
            known_negatives: Negative records, likewise.
            canaries: Ids of records with coin-toss labels, as :meth:`audit`.
            classes: Number of classes of the labels; ``None`` for numbers. See :class:`~splitvfl.leakage.judging.Leak`.

        Returns:
            The leak, which is also a handle.

        Raises:
            ArgumentError: If the attack needs what cannot be shown here, or acts after training only.
        """
        leak = Leak(
            attack,
            known_positives=known_positives,
            known_negatives=known_negatives,
            remove=lambda: self._leaks.remove(leak),
            canaries=canaries_of(canaries),
            classes=classes,
        )
        missing = sorted(leak.needs - self.shows)
        if missing:
            raise ArgumentError(
                f"attack {leak.name} needs {', '.join(missing)}; this cut shows {', '.join(sorted(self.shows))}"
            )
        self._leaks.append(leak)
        return leak

    @overload
    def audit(
        self, *, canaries: Canaries | Tensor | None = ..., features: Records | Columns | Tensor | None = ...
    ) -> Audit: ...

    @overload
    def audit(
        self,
        *,
        canaries: Canaries | Tensor | None = ...,
        classes: int | None,
        features: Records | Columns | Tensor | None = ...,
    ) -> MessageAudit: ...

    def audit(
        self,
        *,
        canaries: Canaries | Tensor | None = None,
        classes: int | None = 2,
        features: Records | Columns | Tensor | None = None,
    ) -> MessageAudit:
        """Attach the auditor's attack, which knows labels and clean gradients.

        Below a top that mixes the records of a batch (BatchNorm) it does not know what another label would have sent:
        it reads less, and ``total`` is that of the messages alone.

        Args:
            canaries: Ids of the records whose labels are coin tosses, ``(k,)``, int64: the loop has put the tosses in
                the place of their labels, :func:`~splitvfl.leakage.canaries.with_canaries`. They are judged apart,
                ``audit.canaries``, and count in no other figure. Default: there are none.
            classes: Number of classes of the labels; ``None`` for numbers.
            features: The partner's own features, for ``total``: row i of ``Columns``, or of numbers ``(n, d)``, belongs
                to the record with id i; ``Records`` have ids of their own. Default: they are not known, and ``total``
                is that of messages and predictions only.

        Raises:
            ArgumentError: If there are fewer than twenty canaries, or one comes twice; or if features are none of
                these.
        """
        given = canaries_of(canaries)
        own = None if features is None else PartnerFeatures(features)

        def remove() -> None:
            self._audits.remove(audit)

        audit: MessageAudit = audit_for(classes, remove=remove, canaries=given, features=own)
        self._audits.append(audit)
        return audit


class Cuts(dict[str, CutLayer]):
    """The cuts of one label party, by passive party."""

    def label_gradient_source(
        self, loss: Loss, targets: Tensor, *, step: int, ids: Tensor | None, loss_scale: float = 1.0
    ) -> LabelGradientSource | None:
        """Return what computes the gradients of a step under every label, if anyone at a cut needs them.

        Args:
            loss: The loss of the step.
            targets: What it is given, ``(n,)``.
            step: Number of the step.
            ids: Record ids of the batch.
            loss_scale: Factor that a loss scaler put on the loss.

        Raises:
            PrivacyError: If defenses that draw promise different things.
        """
        if not any(cut.needs_label_gradients for cut in self.values()):
            return None
        return LabelGradientSource(loss, targets, draw=self._drawing(step, ids), loss_scale=loss_scale)

    def _drawing(self, step: int, ids: Tensor | None) -> Callable[[LabelGradients], Drawn] | None:
        """Return what draws, for the top model and all cuts, what they learn from in place of the labels."""
        deciding = [cut.gradient for cut in self.values() if cut.gradient.draws_at_output]
        if len({chain.label_claims for chain in deciding}) > 1:
            raise PrivacyError(
                "one draw stands for the labels at all cuts, and the defenses of their gradients promise different "
                "things of the run, so nothing was sent; give every cut the same"
            )
        return partial(deciding[0].draw, step=step, ids=ids) if deciding else None


def responses_of(targets: Tensor) -> Tensor:
    """Return the answers behind loss-corrected targets; all that later defenses may see of the labels.

    Targets of a floating-point dtype stand for 0/1 answers, of which they lie on the side: above or below ½. A target
    of exactly ½ is a record for which nothing was said, and its response is ½. Of targets ``(n, k)`` it is the class
    with the largest number. Whole numbers are classes, and answers as they are.
    """
    if targets.dim() > 1:
        return targets.argmax(dim=1)
    if not targets.is_floating_point():
        return targets
    return torch.where(targets == 0.5, targets, (targets > 0.5).to(targets.dtype))


def binary_responses_of(responses: Tensor) -> Tensor:
    """Return responses as defenses get them that know two classes: 1, and all else, silence (½) included, as 0.

    A record that is silent must not show its label there either; which of the two it gets tells nothing.
    """
    return responses if not responses.is_floating_point() else (responses > 0.5).to(responses.dtype)


def check_top(top: nn.Module, defense: Defense) -> None:
    """Let a defense of the gradient refuse the label party's top model."""
    if crossing_of(defense) == "gradient" and hasattr(defense, "check_top"):
        defense.check_top(top)


def refuse_batch_mixing(modules: Iterable[nn.Module], defense: Defense) -> None:
    """Raise :class:`PrivacyError` if a defense guarantees something per record, and a layer mixes a batch's records."""
    if not is_per_record(claims_of(defense)):
        return
    for layer in filter(None, map(batch_mixing_layer, modules)):
        raise PrivacyError(
            f"{hook_name(defense)} guarantees something per record, but {layer} mixes the records of a batch; "
            "replace it (GroupNorm or LayerNorm keep records apart)"
        )
