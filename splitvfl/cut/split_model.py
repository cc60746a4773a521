"""The model that is split at cuts: bottoms and a top in one process, an ordinary module for any training loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from splitvfl.cut.chain import KEEP_STATE, DefenseChain, OneDraw
from splitvfl.cut.known_labels import KnownLabels
from splitvfl.cut.layer import Answer, CutLayer, Cuts, refuse_batch_mixing
from splitvfl.cut.views import ViewSource
from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.hooks import Attack, Defense, View, crossing_of, hook_name, needs_of
from splitvfl.leakage.canaries import canaries_of
from splitvfl.leakage.judging import Handle, Leak
from splitvfl.learning.compiling import leave_untraced, outside_graphs, untraced, untraced_itself
from splitvfl.learning.label_gradients import LabelGradientSource, Loss, mean_cross_entropy
from splitvfl.learning.precision import widened
from splitvfl.system.pickling import NotPickled

if TYPE_CHECKING:
    from splitvfl.data.coin_labels import Canaries


class SplitModel(NotPickled, nn.Module):
    """Bottom models and a top model in one process, joined by cut layers: an ordinary module for any training loop.

    It is copied, saved by ``torch.save`` and sent to other processes as long as no defense or attack is attached; then
    ``state_dict()`` is what to keep.

    The top receives the activations' concatenation in the order of the bottoms, then the active party's own columns
    if there are any. A top with the attribute ``separate_active = True`` is called as ``top(activations, active)``.

    Args:
        bottom: One bottom model, or several by party name.
        top: The active party's model.
        loss: The loss of the training loop, of ``(output, labels)`` as they are: each record's loss, ``(n,)``, or their
            mean. The auditor, and defenses in the unit of a record, compute with it what would be sent under another
            label, and compare what would be sent under the true one with what is: a loop with another loss stops with
            a :class:`HookError`. It gets outputs ``(n, 1)`` and labels ``(n,)`` unless it reshapes them: ``loss=lambda
            output, y: mse_loss(output.squeeze(1), y)``. Default: mean binary cross entropy of logits where the output
            has width 1, and mean cross entropy where it is wider.

    Raises:
        ArgumentError: If there is no bottom model, or the loss is no function.

    >>> model = SplitModel(nn.Linear(3, 2), nn.Linear(2, 1))
    >>> model(torch.zeros(4, 3)).shape
    torch.Size([4, 1])
    """

    def __init__(
        self, bottom: nn.Module | Mapping[str, nn.Module], top: nn.Module, *, loss: Loss | None = None
    ) -> None:
        super().__init__()
        leave_untraced(type(self))
        bottoms = {"passive": bottom} if isinstance(bottom, nn.Module) else dict(bottom)
        if not bottoms:
            raise ArgumentError("expected at least one bottom model")
        if loss is not None and not callable(loss):
            raise ArgumentError(f"expected loss to be a function of (output, labels), got {loss!r}")
        self.bottoms = nn.ModuleDict(bottoms)
        self.top = top
        self._loss = loss
        self.cuts = Cuts({name: CutLayer(name) for name in bottoms})
        self.labels = DefenseChain("labels", "active")
        for name, cut in self.cuts.items():
            cut.show_from(bottoms[name])
            cut.show_top(top)
        self._passing: tuple[Tensor | None, Tensor | None] = (None, None)
        # Answers that one side has asked for, and the other not yet; those of abandoned steps fall out.
        self._answers: deque[Answer] = deque(maxlen=8)
        self._observing: list[Leak] = []
        self._known = KnownLabels()

    @property
    def cut(self) -> CutLayer:
        """The cut layer, where there is only one.

        Raises:
            ArgumentError: If there are several; name one: ``model.cuts[name]``.
        """
        if len(self.cuts) != 1:
            raise ArgumentError(f"this model has {len(self.cuts)} cuts; choose one: cuts[name], {sorted(self.cuts)}")
        return next(iter(self.cuts.values()))

    @property
    def is_watched(self) -> bool:
        """Whether any defense, attack or audit is attached."""
        observed = any(leak.is_attached for leak in self._observing)
        return bool(len(self.labels)) or observed or any(cut.is_watched for cut in self.cuts.values())

    def why_not_pickled(self) -> str:
        """Return why a model with hooks is not, nor one whose loss nobody could find by its name."""
        if self.is_watched:
            return f"defenses or attacks are attached to this model, and {KEEP_STATE}"
        loss: Any = self._loss
        while isinstance(loss, partial):
            loss = loss.func
        if "<" in getattr(loss, "__qualname__", ""):  # a lambda, or a function within another
            return (
                f"the loss of this model is {loss.__qualname__}, which no other process finds by its name: keep "
                "model.state_dict(), or give SplitModel a loss that a module defines"
            )
        return ""

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: no labels of steps that were abandoned."""
        return {
            **vars(self),
            "_answers": deque(maxlen=8),
            "_passing": (None, None),
            "_observing": [],
            "_known": KnownLabels(),
        }

    def rebuilt(self, bottoms: Mapping[str, nn.Module], top: nn.Module) -> SplitModel:
        """Return a model of other halves with the same loss.

        Raises:
            ArgumentError: If defenses or attacks are attached to this one.
        """
        if self.is_watched:
            raise ArgumentError("defenses or attacks are attached to this model; repair it first, and attach them then")
        return SplitModel(bottoms, top, loss=self._loss)

    @untraced_itself
    def forward(
        self, *columns: Any, active: Any = None, labels: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """Return the top's output.

        Args:
            *columns: One argument per bottom, in their order.
            active: The active party's own columns, if it has any.
            labels: ``(n,)``; they reach the defenses and the judges, never an attack.
            ids: Record ids, ``(n,)``, int64: of a record the same in every batch.

        Raises:
            ArgumentError: If the number of inputs, or of rows, or a width does not fit, an activation is no matrix, or
                an id comes with another label than before.
        """
        if len(columns) != len(self.cuts):
            raise ArgumentError(
                f"expected {len(self.cuts)} inputs, one per bottom {list(self.cuts)}, got {len(columns)}"
            )
        crossing = self._begin(labels, ids)
        self._passing = (labels, ids)
        crossed: dict[str, Tensor] = {}
        try:
            for (name, cut), own in zip(self.cuts.items(), columns, strict=True):
                bottom = self.bottoms[name]
                try:
                    activation = call_bottom(bottom, own)
                except RuntimeError as error:
                    refuse_width(f"bottom model of {name}", bottom, {name: own}, error)
                    raise
                crossed[name] = self._cross(cut, bottom, own, activation, crossing)
        finally:
            self._passing = (None, None)
        try:
            output: Tensor = call_top(self.top, list(crossed.values()), active)
        except RuntimeError as error:
            own_columns = {} if active is None else {self.labels.party: active}
            refuse_width("top model", self.top, {**crossed, **own_columns}, error)
            raise
        return self._followed(output, crossed, crossing["source"], labels)

    @untraced
    def _begin(self, labels: Tensor | None, ids: Tensor | None) -> dict[str, Any]:
        """Return what every cut is given of this pass."""
        if labels is not None and ids is not None and torch.is_grad_enabled() and self.is_watched:
            self._known.check(ids, labels)
        answer = self._answer_for_forward(labels, ids)
        if answer is not None:
            self._tell_targets()
        return {
            "labels": labels,
            "ids": ids,
            "answer": answer,
            "source": self._source(labels, answer, ids),
            "once": OneDraw() if len(self.cuts) > 1 else None,
        }

    @untraced
    def _cross(
        self, cut: CutLayer, bottom: nn.Module, own: Any, activation: Tensor, crossing: dict[str, Any]
    ) -> Tensor:
        crossed: Tensor = cut(activation, view_source=ViewSource(bottom, own, activation), **crossing)
        return crossed

    @untraced
    def _followed(
        self, output: Tensor, crossed: dict[str, Tensor], source: LabelGradientSource | None, labels: Tensor | None
    ) -> Tensor:
        """Return the output, behind which the gradients under other labels are computed if anyone needs them."""
        if source is None or labels is None:
            return output
        classes = self._classes(output, labels)
        return source.follow(output, crossed, classes=classes, values=self.labels.target_values(classes))

    def _tell_targets(self) -> None:
        """Tell the defenses of the gradient what the label defenses can answer."""
        values = None if self.labels.with_own_loss is not None else self.labels.target_values(None)
        for cut in self.cuts.values():
            cut.gradient.take_targets(values)

    def _classes(self, output: Tensor, labels: Tensor) -> int | None:
        """Return how many classes the labels have, as far as outputs and labels tell."""
        outputs = output.reshape(len(output), -1).shape[1]
        if labels.is_floating_point() and not bool((labels == labels.round()).all()):
            return None
        if outputs > 1:
            return outputs
        binary = self._loss is None or bool(((labels == 0) | (labels == 1)).all())
        return 2 if binary else None

    def _source(self, labels: Tensor | None, answer: Answer | None, ids: Tensor | None) -> LabelGradientSource | None:
        """Return what computes the gradients under every label, if anyone at a cut needs them in this pass."""
        if labels is None or not torch.is_grad_enabled():
            return None
        return self.cuts.label_gradient_source(
            self.labels.loss(self._loss or mean_cross_entropy),
            labels if answer is None else answer.targets,
            step=self._step(),
            ids=ids,
            loss_scale=next(iter(self.cuts.values())).loss_scale,
        )

    def defend(self, defense: Defense, *, noise_seed_for_experiments: int | None = None) -> Handle:
        """Attach a defense where it belongs: labels at the model, gradient and activation at the (only) cut.

        A label defense acts where the loss is computed with ``model.targets(y, ids=ids)`` in place of ``y``, or by
        ``model.loss(output, y, ids=ids)``; a backward pass that never asked for either is refused. What it remembers of
        the records is not in ``model.state_dict()``: a loop that is restarted keeps ``model.labels.state_dict()`` too,
        or all records are answered for once more.

        Raises:
            ArgumentError: If there are several cuts to choose from, or it defends scores, which a model does not send.
            PrivacyError: If it claims a guarantee per record and a layer mixes records.
        """
        if crossing_of(defense) != "labels":
            return self.cut.defend(defense, noise_seed_for_experiments=noise_seed_for_experiments)
        refuse_batch_mixing(self.bottoms.values(), defense)
        return self.labels.attach(defense, noise_seed_for_experiments=noise_seed_for_experiments)

    @untraced
    def targets(self, labels: Tensor, *, ids: Tensor | None = None) -> Tensor:
        """Return what the loss is computed with in place of the labels: the label defenses' answers.

        Where a label defense is attached, backward raises :class:`PrivacyError` unless this was called with the very
        tensor of labels that the forward pass was given. Whether the result then went into the loss is the caller's to
        see to. The answers are drawn once for both, whichever comes first.

        Args:
            labels: ``(n,)``.
            ids: Record ids, ``(n,)``, int64.

        Raises:
            PrivacyError: If a label defense computes the loss itself: :meth:`loss` is for it.
        """
        own = self.labels.with_own_loss
        if own is not None:
            raise PrivacyError(
                f"{hook_name(own)} computes the loss itself: use model.loss(output, y, ids=ids) in place of a loss of "
                "model.targets(y, ids=ids)"
            )
        return self._targets(labels, ids)

    def _targets(self, labels: Tensor, ids: Tensor | None) -> Tensor:
        if not len(self.labels):
            return labels
        answer = self._answer(labels, ids, lambda known: not known.in_loss)
        answer.in_loss = True
        return answer.targets

    @untraced
    def loss(self, output: Tensor, labels: Tensor, *, ids: Tensor | None = None) -> Tensor:
        """Return the mean loss on the label defenses' answers: with a loss of their own where one of them has it.

        Without label defenses, and with those that only replace labels, it is the loss that the model was made with
        (``loss=``). What :meth:`targets` says of the labels holds here too.

        Args:
            output: What the forward pass returned, ``(n, k)`` or ``(n,)``.
            labels: ``(n,)``, the very tensor that the forward pass was given.
            ids: Record ids, ``(n,)``, int64.
        """
        targets = self._targets(labels, ids)
        return self.labels.loss(self._loss or mean_cross_entropy)(output, targets).mean()

    def _answer_for_forward(self, labels: Tensor | None, ids: Tensor | None) -> Answer | None:
        if not len(self.labels):
            return None
        if labels is None:
            return Answer(torch.empty(0), torch.empty(0))
        answer = self._answer(labels, ids, lambda known: not known.in_forward)
        answer.in_forward = True
        return answer

    def _answer(self, labels: Tensor, ids: Tensor | None, wanting: Callable[[Answer], bool]) -> Answer:
        """Return the answer that the other side has asked for already, or a new one."""
        # The newest first: an older one belongs to a pass that was abandoned, an evaluation say.
        for known in reversed(self._answers):
            if known.labels is labels and wanting(known):
                self._answers.remove(known)  # both sides have it now
                return known
        answer = Answer(labels, self.labels.apply(labels, step=self._step(), ids=ids, labels=labels))
        self._answers.append(answer)
        return answer

    def observe(
        self,
        module: nn.Module,
        attack: Attack,
        *,
        known_positives: int | None = None,
        known_negatives: int | None = None,
        canaries: Canaries | Tensor | None = None,
        classes: int | None = 2,
    ) -> Leak:
        """Let an attack watch the gradient at an earlier layer of a bottom model: that of ``module``'s output.

        Source: Li et al., ICLR 2022, arXiv:2102.08504, figure 2b.

        Args:
            module: A submodule of one of the bottoms.
            attack: A label attack that needs the gradient only.
            known_positives: As :meth:`CutLayer.watch`.
            known_negatives: As :meth:`CutLayer.watch`.
            canaries: As :meth:`CutLayer.watch`.
            classes: As :meth:`CutLayer.watch`.

        Raises:
            ArgumentError: If the module is in no bottom, or the attack needs more than the gradient.
        """
        party = next((name for name, bottom in self.bottoms.items() if module in set(bottom.modules())), None)
        if party is None:
            raise ArgumentError("the observed module is in none of the bottom models")
        leak = observe(
            module,
            attack,
            party=party,
            passing=lambda: self._passing,
            known_positives=known_positives,
            known_negatives=known_negatives,
            canaries=canaries,
            classes=classes,
        )
        self._observing.append(leak)
        return leak

    def _step(self) -> int:
        return next(iter(self.cuts.values())).steps


def observe(
    module: nn.Module,
    attack: Attack,
    *,
    party: str,
    passing: Callable[[], tuple[Tensor | None, Tensor | None]],
    known_positives: int | None = None,
    known_negatives: int | None = None,
    canaries: Canaries | Tensor | None = None,
    classes: int | None = 2,
) -> Leak:
    """Attach an attack to the gradient of a module's output, as :meth:`SplitModel.observe`.

    Args:
        module: The observed layer.
        attack: A label attack that needs the gradient only.
        party: The party that the layer belongs to.
        passing: Returns labels and ids of the forward pass that is under way.
        known_positives: As :meth:`CutLayer.watch`.
        known_negatives: As :meth:`CutLayer.watch`.
        canaries: As :meth:`CutLayer.watch`.
        classes: As :meth:`CutLayer.watch`.

    Raises:
        ArgumentError: If the attack needs more than the gradient, or acts after training only.
    """
    leak = Leak(
        attack,
        known_positives=known_positives,
        known_negatives=known_negatives,
        remove=lambda: registered.remove(),
        canaries=canaries_of(canaries),
        classes=classes,
    )
    if leak.needs - {"gradient"}:
        raise ArgumentError(
            f"{hook_name(attack)} needs {sorted(needs_of(attack))}; an earlier layer shows its gradient"
        )
    steps = 0

    @outside_graphs
    def on_forward(_: nn.Module, __: Any, output: Tensor) -> None:
        nonlocal steps
        labels, ids = passing()
        if output.requires_grad and labels is not None:
            output.register_hook(partial(on_gradient, step=steps, labels=labels, ids=ids))
            steps += 1

    @outside_graphs
    def on_gradient(gradient: Tensor, *, step: int, labels: Tensor, ids: Tensor | None) -> None:
        numbers = ids if ids is not None else torch.arange(gradient.shape[0], device=gradient.device)
        view = View(party=party, step=step, ids=numbers, gradient=widened(gradient.detach()).flatten(1))
        leak.see(view, labels, ids_known=ids is not None)

    registered = module.register_forward_hook(on_forward)
    return leak


def call_bottom(bottom: nn.Module, columns: Any) -> Tensor:
    """Return a bottom's activation; a function of its own, which ``torch.compile`` makes a graph of."""
    activation: Tensor = bottom(columns)
    return activation


def refuse_width(called: str, half: nn.Module, given: Mapping[str, Any], error: RuntimeError) -> None:
    """Say whose rows have another width than the first linear layer of a model takes, if that is why it failed.

    Args:
        called: What the model is called.
        half: The model.
        given: What it was given, side by side, by the party that it came from.
        error: How it failed.

    Raises:
        ArgumentError: If that is why.
    """
    widths = {party: part.shape[1] for party, part in given.items() if isinstance(part, Tensor) and part.dim() == 2}
    leaves = (layer for layer in half.modules() if not any(True for _ in layer.children()))
    # What keeps rows as they are may come before; behind anything else a linear layer has another input.
    first = next((layer for layer in leaves if not _keeps_rows(layer)), None)
    got = sum(widths.values())
    if isinstance(first, nn.Linear) and len(widths) == len(given) and first.in_features != got:
        parts = ", ".join(f"{width} of {party}" for party, width in widths.items())
        raise ArgumentError(
            f"the first layer of the {called} takes rows of width {first.in_features}, and gets {got}: {parts}"
        ) from error


def _keeps_rows(layer: nn.Module) -> bool:
    """Return whether what a layer puts out has the width of what it was given."""
    by_numbers = type(layer).__module__ == "torch.nn.modules.activation" and not any(True for _ in layer.parameters())
    return by_numbers or isinstance(layer, nn.Identity | nn.Dropout | nn.Flatten)


def call_top(top: nn.Module, activations: list[Tensor], active: Any) -> Tensor:
    """Join the activations, and the active party's columns, and run the top model on them.

    A model that takes no activations gets the columns as they are.
    """
    if not activations:
        alone: Tensor = top(active)
        return alone
    joined = activations[0] if len(activations) == 1 else torch.cat(activations, dim=1)
    if getattr(top, "separate_active", False):
        output: Tensor = top(joined, active)
    elif active is None:
        output = top(joined)
    elif isinstance(active, Tensor):
        output = top(torch.cat([joined, active.to(joined.dtype)], dim=1))
    else:
        raise ArgumentError(
            f"{type(top).__name__} takes one concatenated tensor, but the active party has categorical codes; "
            "encode them as one-hot columns, or use a top with separate_active = True"
        )
    return output
