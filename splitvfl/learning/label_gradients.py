"""Cut gradients under every label: each record's prediction, and what the label party would send for each label.

Below a top model the cut gradient of a record is a function of its label: ``∂loss/∂output`` at that label, times the
Jacobian of the output, which does not know labels. A defense that hides labels has to cover the change between them,
and the auditor has to look for it. Both get it here, as :class:`LabelGradients`.

:class:`LabelGradientSource` belongs to one forward pass. It computes the Jacobian while the graph is there, in the
backward pass, before the top model's own part of it: one pass for one output, k − 1 for k classes whose loss gradients
sum to zero, and one per output otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from splitvfl.errors import ArgumentError, HookError, SplitVFLError
from splitvfl.learning.precision import without_autocast
from splitvfl.learning.sampling import blocks, drawing_device

Loss = Callable[[Tensor, Tensor], Tensor]
"""The loss of outputs ``(n, k)`` (or as the top puts them out) and targets ``(n,)``: each record's, or their mean."""


class Drawn(NamedTuple):
    """Targets that are drawn in place of the labels of a batch.

    Attributes:
        weights: How much of each value, ``(n, j)`` float64.
        values: The j targets that they are weights of.
    """

    weights: Tensor
    values: Sequence[float]

    def responses(self, like: Tensor | None) -> Tensor:
        """Return the value with the largest weight, ``(n,)``: all that later defenses may see of the labels.

        Args:
            like: Labels, for dtype and device.
        """
        values = torch.tensor(tuple(self.values), dtype=torch.float64, device=self.weights.device)
        found = values[self.weights.argmax(dim=1)]
        return found if like is None else found.to(like)


# A row under the label that it has is recomputed from a Jacobian, in another order of operations. What may differ, in
# units of the longest row and of the largest change between two labels: rounding of a deep top in the gradient's
# precision.
_OF_ROWS = {torch.float64: 1e-7, torch.float32: 1e-3}
_OF_ROWS_IN_HALF = 0.05
_OF_CHANGE = {torch.float64: 1e-10, torch.float32: 1e-5}
_OF_CHANGE_IN_HALF = 0.02
# Loss gradients of classes sum to zero but for so much of the largest one.
_SUM_IS_ZERO = 1e-5


class _AtOutputs:
    """The loss gradients at the top model's outputs under any target, in the coordinates of a Jacobian.

    Args:
        coordinates: b, how many combinations of the outputs the Jacobian has: m, or m − 1, of each less output 0.

    The others are those of :class:`LabelGradients`.
    """

    def __init__(
        self,
        loss: Loss,
        outputs: Tensor,
        targets: Tensor,
        *,
        coordinates: int,
        of_targets: Tensor | None,
        of_values: Mapping[float, Tensor],
    ) -> None:
        self.outputs, self.targets, self.loss = outputs, targets, loss
        self._coordinates = coordinates
        self._of_targets = None if of_targets is None else self._in_coordinates(of_targets)
        self._of_values = {value: self._in_coordinates(found) for value, found in of_values.items()}

    @property
    def given(self) -> Tensor:
        """The gradients under the targets that the loss was given, ``(n, b)``."""
        if self._of_targets is None:
            self._of_targets = self.under(self.targets)
        return self._of_targets

    def under(self, target: float | Tensor) -> Tensor:
        """Return the gradients under one target for all records, or one for each, ``(n, b)``."""
        if isinstance(target, Tensor):
            return self._in_coordinates(_loss_gradient(self.loss, self.outputs, target.to(self.targets)))
        return self._under_values([target])[0]

    def mixed(self, weights: Tensor, values: Sequence[float]) -> Tensor:
        """Return ``Σ_j weights[:, j] · under(values[j])``, ``(n, b)`` float64."""
        found = self._under_values(values)
        if len(values) == 2:  # from the first towards the second, one number for each row
            first, second = (gradient.double() for gradient in found)
            return torch.addcmul(first, weights[:, 1:], second - first)
        return torch.einsum("nj,njb->nb", weights, torch.stack(found, dim=1).double())

    def _under_values(self, values: Sequence[float]) -> list[Tensor]:
        missing = [value for value in dict.fromkeys(values) if value not in self._of_values]
        found = _loss_gradients(self.loss, self.outputs, [self._all(value) for value in missing])
        self._of_values |= dict(zip(missing, map(self._in_coordinates, found), strict=True))
        return [self._of_values[value] for value in values]

    def whole(self, gradient: Tensor) -> Tensor:
        """Return a gradient in coordinates as one at the outputs, ``(n, m)``."""
        if gradient.shape[1] == self.outputs.reshape(len(gradient), -1).shape[1]:
            return gradient
        return torch.cat([-gradient.sum(dim=1, keepdim=True), gradient], dim=1)

    def _all(self, target: float) -> Tensor:
        """Return one target for all records, in the form that the loss takes."""
        if self.targets.dim() == 1:
            return torch.full_like(self.targets, target)
        given = torch.zeros_like(self.targets)
        given[:, round(target)] = 1.0
        return given

    def _in_coordinates(self, gradient: Tensor) -> Tensor:
        if gradient.shape[1] == self._coordinates:
            return gradient
        if not _sums_to_zero(gradient):
            raise HookError(
                "the loss gradients of a record sum to zero under the targets of this batch, and not under others; "
                "what a record's row would be under another label is not known"
            )
        return gradient[:, 1:]  # the rest sums to minus the first one


class LabelGradients:
    """Each record's prediction, and its cut gradient under every label: one batch, at one cut, at the label party only.

    The gradients are clean: before any defense, of the mean loss, 1/n included, for the weights, dropout masks and
    columns of this step. Rows are right record by record where the top model keeps records apart; a layer that mixes
    them (batch normalisation) makes a row depend on other records' labels too, and :meth:`under` changes all of them at
    once.

    Args:
        outputs: What the top model put out, ``(n, m)``.
        targets: What the loss was given, ``(n,)``: labels, or what label defenses answered.
        values: Values that a target can take; ``None`` where that is not known, or there are infinitely many.
        classes: Number of classes of the labels; ``None`` where they are none.
        loss: The loss of the step.
        loss_gradient: Its gradient at the outputs under these targets, ``(n, m)``, where it is known.
        of_values: The same under single values, where they are known.
        jacobian: Gradients of combinations of the outputs, ``(b, n, width)``: of each output (b = m), or of output j
            less output 0 for j = 1 … m − 1 (b = m − 1).

    Attributes:
        values: See above.
        classes: See above.
        drawn: What a defense has drawn in place of the labels for the top model and all cuts together; ``None``: the
            top goes on with what its loss was given.
    """

    def __init__(
        self,
        *,
        outputs: Tensor,
        targets: Tensor,
        values: Sequence[float] | None,
        classes: int | None,
        loss: Loss,
        jacobian: Tensor,
        loss_gradient: Tensor | None = None,
        of_values: Mapping[float, Tensor] | None = None,
    ) -> None:
        self._jacobian = jacobian
        self._at_outputs = _AtOutputs(
            loss, outputs, targets, coordinates=len(jacobian), of_targets=loss_gradient, of_values=of_values or {}
        )
        self.values = None if values is None else tuple(values)
        self.classes = classes
        self.drawn: Drawn | None = None

    def of_all(self, whole: Callable[[Tensor], Tensor | None]) -> LabelGradients | None:
        """Return the same of the records of several workers, whose mean loss it is then.

        Args:
            whole: Returns what all workers have of a tensor with a row for each record, one behind the other; or
                ``None``, at all workers but one.
        """
        own = self._at_outputs
        outputs, targets, jacobian = (whole(one) for one in (own.outputs, own.targets, self._jacobian.transpose(0, 1)))
        if outputs is None or targets is None or jacobian is None:
            return None
        return LabelGradients(
            outputs=outputs,
            targets=targets,
            values=self.values,
            classes=self.classes,
            loss=own.loss,
            jacobian=jacobian.transpose(0, 1).contiguous(),
        )

    @property
    def outputs(self) -> Tensor:
        """Outputs of the top model, ``(n, m)``, as it computed them."""
        outputs = self._at_outputs.outputs
        return outputs.reshape(len(outputs), -1).clone()

    @property
    def targets(self) -> Tensor:
        """Targets of the loss in place of the labels, ``(n,)``; ``(n, k)`` with one number for each class."""
        return self._at_outputs.targets.clone()

    @property
    def predictions(self) -> Tensor:
        """Probability of each class, ``(n, k)`` float64; the outputs themselves where labels are no classes."""
        outputs = self.outputs.double()
        if self.classes is None:
            return outputs
        if outputs.shape[1] == 1:
            positive = torch.sigmoid(outputs)
            return torch.cat([1.0 - positive, positive], dim=1)
        return torch.softmax(outputs, dim=1)

    def under(self, target: float | Tensor) -> Tensor:
        """Return the rows of the cut gradient if the loss had been given this target, ``(n, width)`` float64.

        Args:
            target: One value for all records, or one for each, ``(n,)``.
        """
        return self._rows(self._at_outputs.under(target), torch.float64)

    def place(self, target: float | Tensor, low: float, high: float) -> Tensor:
        """Return where each row lies between those under two targets, ``(n,)`` float64: 0 at the first, 1 at the other.

        It is 0 where these two are the same.

        Args:
            target: What the loss is given, as :meth:`under`.
            low: The first target.
            high: The second one.

        Raises:
            ArgumentError: If rows do not all lie on one line.
        """
        if not self.on_a_line:
            raise ArgumentError(f"rows change in {len(self._jacobian)} directions with the label; expected one")
        start, end, own = (self._at_outputs.under(one)[:, 0].double() for one in (low, high, target))
        length = end - start
        return torch.where(length == 0.0, 0.0, (own - start) / length)

    def mean_under(self, target: float, weights: Tensor) -> Tensor:
        """Return the mean of the rows under one target, ``Σ_i weights[i] · under(target)[i] / Σ_i weights[i]``.

        Args:
            target: One value for all records.
            weights: ``(n,)`` float64, ≥ 0, of which one is more.

        Returns:
            ``(width,)`` float64, of which products have the precision of the Jacobian.
        """
        shares = weights / weights.sum()
        gradient = self._at_outputs.under(target).double() * shares[:, None].to(self._jacobian.device)
        mean: Tensor = torch.einsum("nb,bnw->w", gradient.to(self._jacobian), self._jacobian).double()
        return mean

    def mixed(self, weights: Tensor, values: Sequence[float]) -> Tensor:
        """Return ``Σ_j weights[:, j] · under(values[j])``, ``(n, width)`` float64, at the cost of one of them.

        No label enters but through the weights.

        Args:
            weights: ``(n, j)`` float64.
            values: The j targets.
        """
        return self._rows(self._at_outputs.mixed(weights, values), torch.float64)

    def mixed_blocks(self, weights: Tensor, values: Sequence[float]) -> tuple[float, Iterator[tuple[slice, Tensor]]]:
        """Return a number that no entry of :meth:`mixed` exceeds, and its rows block by block, which are the caller's.

        A message in float64 as a whole would be new memory in every step, which takes longer than to compute it.

        Args:
            weights: As :meth:`mixed`.
            values: As :meth:`mixed`.
        """
        mixture = self._at_outputs.mixed(weights, values)
        low, high = (one.item() for one in torch.aminmax(self._jacobian)) if self._jacobian.numel() else (0.0, 0.0)
        most = mixture.abs().sum(dim=1).max().item() if mixture.numel() else 0.0
        return most * max(-low, high), self._blocks_of(mixture)

    def _blocks_of(self, mixture: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for block in blocks(self._jacobian[0]):
            jacobian = self._jacobian[:, block]
            if len(jacobian) == 1:
                yield block, jacobian[0].to(torch.float64, copy=True).mul_(mixture[block])
            else:
                yield block, torch.einsum("nb,bnw->nw", mixture[block], jacobian.double())

    def mixed_at_output(self, weights: Tensor, values: Sequence[float]) -> Tensor:
        """Return the same of the loss gradients at the outputs, ``(n, m)`` float64."""
        return self._at_outputs.whole(self._at_outputs.mixed(weights, values))

    @property
    def rows(self) -> Tensor:
        """The rows under the targets that the loss was given, ``(n, width)`` float64."""
        return self._rows(self._at_outputs.given, torch.float64)

    def _rows(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
        gradient, jacobian = gradient.to(dtype), self._jacobian.to(dtype)
        if len(jacobian) == 1:
            return gradient * jacobian[0]
        rows: Tensor = torch.einsum("nb,bnw->nw", gradient, jacobian)
        return rows

    @property
    def on_a_line(self) -> bool:
        """Whether all rows that a record may have lie on one line: there is one output, or there are two classes."""
        return len(self._jacobian) == 1

    @property
    def direction(self) -> Tensor:
        """The unit vector along which a record's row changes with its label, ``(n, width)`` float64.

        It is 0 where the row does not change.

        Raises:
            ArgumentError: If there is more than one.
        """
        if not self.on_a_line:
            raise ArgumentError(f"rows change in {len(self._jacobian)} directions with the label; expected one")
        jacobian = self._jacobian[0].double()
        lengths = torch.linalg.vector_norm(jacobian, dim=1, keepdim=True)
        return torch.where(lengths > 0, jacobian / lengths.clamp(min=torch.finfo(torch.float64).tiny), 0.0)

    def change(self, values: Sequence[float] | None = None) -> Tensor:
        """Return the largest norm of the change of each record's row between two of these targets, ``(n,)`` float64.

        Args:
            values: At least one target. Default: :attr:`values`.

        Raises:
            ArgumentError: If none are given, and it is not known which a target can take.
        """
        chosen = self.values if values is None else tuple(values)
        if not chosen:
            raise ArgumentError("it is not known which values a target can take; say which: change([low, high])")
        gradients = torch.stack([self._at_outputs.under(value) for value in chosen]).double()
        if self.on_a_line:
            ends = gradients[..., 0].amax(dim=0) - gradients[..., 0].amin(dim=0)
            length: Tensor = ends * torch.linalg.vector_norm(self._jacobian[0], dim=1, dtype=torch.float64)
            return length
        rows = torch.stack([self._rows(gradient, torch.float64) for gradient in gradients], dim=1)
        # Not by inner products: they would cancel.
        apart: Tensor = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        return apart.flatten(1).amax(dim=1)

    def check(self, clean: Tensor, *, party: str, mixing: str | None = None) -> None:
        """Raise :class:`HookError` unless the rows under the targets are the ones that came in the backward pass.

        Args:
            clean: The cut gradient before the defenses, ``(n, width)``.
            party: Name of the party that it is for.
            mixing: A layer of the top model through which one record changes another's output, if there is one.
        """
        if not len(clean):
            return
        came = clean.detach().flatten(1).to(self._jacobian.device)
        dtype = torch.promote_types(came.dtype, torch.float32)
        expected = self._rows(
            self._at_outputs.given if self.drawn is None else self._at_outputs.mixed(*self.drawn), dtype
        )
        narrow = max(came.dtype, self._at_outputs.outputs.dtype, key=lambda kind: torch.finfo(kind).eps)
        of_rows = _OF_ROWS.get(narrow, _OF_ROWS_IN_HALF)
        difference = expected - came
        # No row is longer than all together, and the longest is no shorter than their mean.
        together, mean = (torch.linalg.vector_norm(rows).item() for rows in (difference, expected))
        if together <= of_rows * mean / math.sqrt(len(came)):
            return
        longest = torch.linalg.vector_norm(expected, dim=1).max()
        apart = torch.linalg.vector_norm(difference, dim=1)
        allowed = of_rows * longest
        if bool((apart <= allowed).all()):
            return
        # Where all records are fitted rows are but rounding, in units of the change from one label to another.
        unit = self.change(self.values or self._ends()).max()
        if bool((apart <= allowed + _OF_CHANGE.get(narrow, _OF_CHANGE_IN_HALF) * unit).all()):
            return
        worst = int(apart.nan_to_num(nan=torch.inf).argmax())
        if mixing is not None:
            raise HookError(
                f"{mixing} of the top model mixes the records of a batch, so that what a record's row at the cut "
                f"with {party} would be under another label is not its own, so nothing was sent; a defense "
                "that needs it wants a top that keeps records apart: take GroupNorm or LayerNorm, or go without"
            )
        raise HookError(
            f"the gradient at the cut with {party} is not that of the loss that the label party's own checks assume: "
            f"row {worst} differs by {apart[worst].item():.3g}, and rows are up to {longest.item():.3g} long, so "
            "nothing was sent; an auditor, or a defense that computes what other labels would have given, needs the "
            "loop's own: SplitModel(bottom, top, loss=...), of (output, labels), per record or their mean; "
            "a sum over the batch, and weights that other records' labels decide, are none"
        )

    def check_output(self, came: Tensor) -> None:
        """Raise :class:`HookError` unless that is the loss gradient at the outputs under the targets.

        Args:
            came: ``(n, m)``, before a loss scaler's factor.
        """
        given = self._at_outputs.given.double()
        came = came.detach().to(device=given.device, dtype=torch.float64)
        expected = self._at_outputs.whole(given)
        apart = torch.linalg.vector_norm(came - expected, dim=1)
        unit = torch.linalg.vector_norm(expected, dim=1).max()
        unit = unit + sum(torch.linalg.vector_norm(self._at_outputs.under(v), dim=1).max() for v in self.values or ())
        if bool((apart <= _OF_ROWS.get(self._at_outputs.outputs.dtype, _OF_ROWS_IN_HALF) * unit).all()):
            return
        raise HookError(
            "the gradient at the top model's output is not that of the loss that the label party's own checks assume, "
            "so nothing was sent; a defense that computes what other labels would have given needs the loop's own: "
            "SplitModel(bottom, top, loss=...), of (output, labels), per record or their mean"
        )

    def _ends(self) -> tuple[float, ...]:
        targets = self._at_outputs.targets
        if targets.dim() > 1:
            return tuple(map(float, range(targets.shape[1])))
        return float(targets.min()), float(targets.max())


class LabelGradientSource:
    """Computes :class:`LabelGradients` of one forward pass, for all its cuts at once.

    Args:
        loss: The loss of the step, of the outputs and the targets.
        targets: What it is given, ``(n,)``.
        draw: Draws what the top model and all cuts are to learn from in place of the targets, out of what is known at
            any of the cuts. Default: they learn from the targets.
        loss_scale: Factor that a loss scaler put on the loss.
    """

    def __init__(
        self,
        loss: Loss,
        targets: Tensor,
        *,
        draw: Callable[[LabelGradients], Drawn] | None = None,
        loss_scale: float = 1.0,
    ) -> None:
        self._loss, self._targets = loss, targets
        self._draw, self._loss_scale = draw, loss_scale
        self._values: Sequence[float] | None = None
        self._classes: int | None = None
        self._found: dict[str, LabelGradients] = {}

    def follow(
        self,
        output: Tensor,
        crossed: Mapping[str, Tensor],
        *,
        classes: int | None,
        values: Sequence[float] | None,
    ) -> Tensor:
        """Return the output, to go on with: its backward pass will fill in what there is to know.

        Args:
            output: What the top model put out.
            crossed: What it was given, by passive party.
            classes: See :class:`LabelGradients`.
            values: See :class:`LabelGradients`.
        """
        if not output.requires_grad:
            return output
        self._classes, self._values = classes, values
        edges = {
            name: get_gradient_edge(activation) for name, activation in crossed.items() if activation.requires_grad
        }
        if not edges:
            return output  # nothing goes back through a cut
        followed: Tensor = _Follow.apply(output, self, edges)  # type: ignore[no-untyped-call]
        return followed

    def at(self, party: str) -> LabelGradients | None:
        """Return what was found at the cut with a party; ``None`` if no backward pass came through the output."""
        return self._found.get(party)

    def _compute(self, output: Tensor, edge: GradientEdge, crossed: Mapping[str, GradientEdge]) -> None:
        device = drawing_device(output.device)
        with without_autocast(output.device):
            targets = self._targets.detach()
            gradient, of_values = self._of_loss(output, targets) if len(output) else (self._of_one(output, targets), {})
            pulled = [
                torch.autograd.grad(
                    edge, list(crossed.values()), grad_outputs=along, retain_graph=True, allow_unused=True
                )
                for along in _combinations(output, gradient)
            ]
        for number, name in enumerate(crossed):
            if any(parts[number] is None for parts in pulled):
                continue  # the top model does not use it, and no gradient will come
            jacobian = [parts[number].flatten(1).to(device) for parts in pulled]
            self._found[name] = LabelGradients(
                outputs=output.to(device),
                targets=targets.to(device),
                values=self._values,
                classes=self._classes,
                loss=self._loss,
                loss_gradient=gradient.to(device) if len(output) else None,
                of_values={value: found.to(device) for value, found in of_values.items()},
                jacobian=jacobian[0].unsqueeze(0) if len(jacobian) == 1 else torch.stack(jacobian),  # one is not copied
            )

    def _of_one(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the loss gradient of one record of zeros, for a worker without records: what form gradients have."""
        return _loss_gradient(
            self._loss, output.new_zeros(1, *output.shape[1:]), targets.new_zeros(1, *targets.shape[1:])
        )

    def _of_loss(self, output: Tensor, targets: Tensor) -> tuple[Tensor, dict[float, Tensor]]:
        """Return the loss gradient at the outputs under the targets, and, of two values, under each."""
        if self._values is None or len(self._values) != 2 or targets.dim() != 1:
            return _loss_gradient(self._loss, output, targets), {}
        # Nearly everybody who asks for this asks for both values: all in one backward pass.
        every = [torch.full_like(targets, value) for value in self._values]
        second = is_second(targets, self._values)
        if second is None:
            gradient, *of_values = _loss_gradients(self._loss, output, [targets, *every])
        else:
            of_values = _loss_gradients(self._loss, output, every)
            gradient = torch.where(second[:, None], of_values[1], of_values[0])
        return gradient, dict(zip(self._values, of_values, strict=True))

    def _replaced(self, came: Tensor) -> Tensor:
        """Return the gradient at the output with which the top model and the cuts go on.

        Raises:
            HookError: If it is to be another one, and what came is not the gradient of the loss.
        """
        if self._draw is None or not self._found:
            return came
        first = next(iter(self._found.values()))
        with without_autocast(came.device), torch.no_grad():
            first.check_output(came.reshape(len(came), -1) / self._loss_scale)
            drawn = self._draw(first)
            for known in self._found.values():
                known.drawn = drawn
            gradient = first.mixed_at_output(*drawn) * self._loss_scale
        return gradient.to(came).reshape(came.shape)


class _Follow(torch.autograd.Function):
    """Stands behind the output: in its backward pass the top model's part of the graph is whole, and freed after it.

    It alone refers to the graph, and to a part that comes after it: what the cuts keep would make a circle.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, source: LabelGradientSource, crossed: Mapping[str, GradientEdge]) -> Tensor:
        ctx.source, ctx.crossed = source, crossed
        ctx.save_for_backward(output)
        return output.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (output,) = ctx.saved_tensors
        ctx.source._compute(output.detach(), GradientEdge(*ctx.next_functions[0]), ctx.crossed)
        return ctx.source._replaced(gradient), None, None


def is_second(targets: Tensor, values: Sequence[float]) -> Tensor | None:
    """Return whether each target is the second of two values; ``None`` if one is neither.

    Args:
        targets: ``(n,)``.
        values: Two.
    """
    second = targets == values[1]
    return second if bool((second | (targets == values[0])).all()) else None


def _combinations(output: Tensor, gradient: Tensor) -> list[Tensor]:
    """Return the combinations of outputs whose gradients make up every row, each of the output's shape."""
    if gradient.shape[1] == 1:
        return [torch.ones_like(output)]
    chosen = torch.eye(gradient.shape[1])
    if _sums_to_zero(gradient):
        chosen = chosen[1:] - chosen[0]
    return [row.to(output).expand(len(output), -1).reshape(output.shape) for row in chosen]


def _sums_to_zero(gradient: Tensor) -> bool:
    """Return whether the loss does not change if all outputs of a record do by the same number, as with softmax."""
    if gradient.shape[1] == 1:
        return False
    allowed = max(_SUM_IS_ZERO, 4.0 * torch.finfo(gradient.dtype).eps) * gradient.abs().max()
    return bool((gradient.sum(dim=1).abs() <= allowed).all())


def _loss_gradient(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of the mean loss at the outputs, ``(n, m)``."""
    return _loss_gradients(loss, outputs, [targets])[0]


def _loss_gradients(loss: Loss, outputs: Tensor, every: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of the mean loss at the outputs, ``(n, m)``, under several targets: in one backward pass."""
    if not every:
        return []
    with torch.enable_grad():
        leaves = [outputs.detach().requires_grad_() for _ in every]
        values = [_mean_loss(loss, leaf, targets) for leaf, targets in zip(leaves, every, strict=True)]
        gradients = torch.autograd.grad(values, leaves)
    return [gradient.reshape(len(outputs), -1) for gradient in gradients]


def _mean_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    rows = len(outputs)
    try:
        value = loss(outputs, targets)
    except (SplitVFLError, torch.OutOfMemoryError):
        raise
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        # The loop calls it with what it has reshaped itself, and here it gets both as they are.
        raise HookError(
            f"the loss that the label party's own checks assume, SplitModel(bottom, top, loss=...), failed on outputs "
            f"{tuple(outputs.shape)} and labels {tuple(targets.shape)} as they are, so nothing was sent: {error}; "
            "reshape within it, as in loss=lambda output, y: binary_cross_entropy_with_logits(output.squeeze(1), y)"
        ) from error
    if not isinstance(value, Tensor) or value.numel() not in (1, rows):
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ArgumentError(f"expected a loss per record, ({rows},), or their mean, got {shape}")
    return value if value.dim() == 0 else value.mean()


def mean_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy: of logits ``(n,)`` or ``(n, 1)`` and labels in [0, 1], or ``(n, k)`` and classes.

    Targets ``(n, k)`` are one number for each class: ``−Σ_c t_c log p_c``.

    >>> mean_cross_entropy(torch.zeros(2, 1), torch.tensor([0.0, 1.0])).item() == torch.tensor(2.0).log().item()
    True
    """
    flat = outputs.reshape(len(outputs), -1)
    if flat.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(flat[:, 0], targets.reshape(-1).to(flat.dtype))
    if targets.dim() == 2 and targets.shape[1] > 1:
        return functional.cross_entropy(flat, targets.to(flat.dtype))
    return functional.cross_entropy(flat, targets.reshape(-1).long())
