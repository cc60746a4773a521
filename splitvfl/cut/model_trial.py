"""A run of a model's halves on an example: what layers do not say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from splitvfl.cut.findings import MIXES, SHAPE, Finding, in_place, place_of
from splitvfl.cut.halves import Halves
from splitvfl.cut.layer import CutLayer
from splitvfl.cut.split_model import call_top
from splitvfl.errors import SplitVFLError


class Trial:
    """A run of copies of the halves on some records.

    Args:
        halves: The halves, all of them modules.
        columns: The records, one argument per bottom.
        active: The active party's own columns of them.

    Attributes:
        shapes: Shape of a record's activation by party, where a bottom puts out one: ``(width,)`` or more.
        flattens: Whether the top takes activations of more than one dimension flattened only.
    """

    def __init__(self, halves: Halves, columns: Sequence[Any], active: Any) -> None:
        self._halves = halves.copied()
        self._columns, self._active = columns, active
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.flattens = False

    def findings(self) -> list[Finding]:
        """Run the halves, and return what stands in their way."""
        parties = list(self._halves.bottoms)
        if len(self._columns) != len(parties):
            got = f"expected {len(parties)} inputs, one per bottom ({', '.join(parties)}), got {len(self._columns)}"
            return [Finding("example", "the example", got, "give one argument per bottom")]
        counts = {_rows(own) for own in self._columns} | ({_rows(self._active)} if self._active is not None else set())
        if len(counts) > 1 or None in counts or counts == {1}:
            got = f"expected the same records in every argument, two or more, got {sorted(map(str, counts))}"
            return [Finding("example", "the example", got, "give more, as tensors or Columns")]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            return list(self._findings())

    def _findings(self) -> Iterator[Finding]:
        activations: list[Tensor] = []
        for (party, bottom), columns in zip(self._halves.bottoms.items(), self._columns, strict=True):
            path = f"{self._halves.prefix}{party}"
            output, failed = _run(path, bottom, partial(bottom, columns))
            yield from failed
            if failed:
                continue
            shape_found = list(_misshapen(path, bottom, output, _rows(columns)))
            yield from shape_found
            if any(not finding.repaired for finding in shape_found):
                continue
            yield from _not_alike(path, bottom, partial(_called, bottom), columns)
            if not output.requires_grad and any(weight.requires_grad for weight in bottom.parameters()):
                why = "what it puts out leads back to none of its weights, so that nothing is learned"
                yield Finding(
                    "no gradient", place_of(path, bottom), why, "let it put out what it computed, not detached"
                )
            self.shapes[party] = tuple(output.shape[1:])
            activations.append(output.detach())
        if len(activations) == len(self._halves.bottoms):
            yield from self._of_top(activations)

    def _of_top(self, activations: list[Tensor]) -> Iterator[Finding]:
        top = self._halves.top
        leaves = [one.clone().requires_grad_() for one in activations]
        output, failed = _run("top", top, lambda: self._joined(leaves))
        if failed and any(one.dim() > 2 for one in leaves):
            leaves = [one.detach().flatten(1).requires_grad_() for one in activations]
            flat, still = _run("top", top, lambda: self._joined(leaves))
            self.flattens = not still
            output, failed = (flat, still) if not still else (output, failed)
        yield from failed
        if failed:
            return
        yield from _misshapen_top(top, output, len(activations[0]))
        yield from _not_alike("top", top, lambda given: self._joined(given), [one.detach() for one in leaves])
        if not (isinstance(output, Tensor) and output.requires_grad):
            yield Finding("no gradient", place_of("top", top), "its output has no gradient", "do not detach it")
            return
        gradients = torch.autograd.grad(output.sum(), leaves, allow_unused=True)
        for party, gradient in zip(self._halves.bottoms, gradients, strict=True):
            if gradient is None:
                why = f"its output does not depend on the activation of {party}, which learns nothing"
                yield Finding("no gradient", place_of("top", top), why, "let it use every activation")

    def _joined(self, leaves: list[Tensor]) -> Any:
        # A cut takes rows alone; here is seen what a top makes of an activation of more dimensions too.
        crossed = [CutLayer()(leaf.flatten(1)).view_as(leaf) for leaf in leaves]
        return call_top(self._halves.top, crossed, self._active)


def _called(half: nn.Module, given: list[Any]) -> Any:
    return half(given[0])


def _rows(columns: Any) -> int | None:
    if isinstance(columns, tuple):  # Columns, of numbers and codes
        return _rows(columns[0])
    return len(columns) if isinstance(columns, Tensor) and columns.dim() else None


def _run(path: str, half: nn.Module, call: Callable[[], Any]) -> tuple[Any, list[Finding]]:
    """Return what a call of a half returned, or why it failed and in which layer."""
    with _entered(path, half) as layers:
        torch.manual_seed(0)
        try:
            return call(), []
        except Exception as error:  # a user's module may fail in any way
            where, layer = layers[-1] if layers else (path, half)
            if isinstance(error, RuntimeError) and "modified inplace" in str(error):
                return None, [in_place(where, layer)]
            said = str(error) if isinstance(error, SplitVFLError) else f"{type(error).__name__}: {error}"
            why = f"it fails on the example: {said.splitlines()[0]}"
            return None, [Finding("fails", place_of(where, layer), why, "compare widths, dtypes and devices")]


@contextmanager
def _entered(path: str, half: nn.Module) -> Iterator[list[tuple[str, nn.Module]]]:
    """Yield the layers that are being called, the innermost last."""
    stack: list[tuple[str, nn.Module]] = []
    handles = []
    for name, layer in half.named_modules():
        place = (f"{path}.{name}" if name else path, layer)
        handles.append(layer.register_forward_pre_hook(lambda *_, place=place: stack.append(place)))
        handles.append(layer.register_forward_hook(lambda *_: stack.pop() and None))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


def _misshapen(path: str, bottom: nn.Module, output: Any, rows: int | None) -> Iterator[Finding]:
    where = place_of(path, bottom)
    if not isinstance(output, Tensor) or not output.is_floating_point():
        got = str(output.dtype) if isinstance(output, Tensor) else type(output).__name__
        yield Finding(SHAPE, where, f"it puts out {got}, and not one tensor of real numbers", "return (n, width)")
        return
    shape = tuple(output.shape)
    if output.dim() < 2 or shape[0] != rows:
        yield Finding(SHAPE, where, f"it puts out {shape} for {rows} records", "return a row per record: (n, width)")
    elif output.dim() > 2:
        why = f"it puts out {shape}, and what crosses has the shape (n, width)"
        yield Finding(
            SHAPE, where, why, "end it in nn.Flatten(); a top that needs the shape begins with nn.Unflatten", True
        )


def _misshapen_top(top: nn.Module, output: Any, rows: int) -> Iterator[Finding]:
    where = place_of("top", top)
    if not isinstance(output, Tensor):
        yield Finding("output", where, f"it puts out {type(output).__name__}", "return a tensor (n, outputs)")
    elif output.dim() != 2 or len(output) != rows:
        why = f"it puts out {tuple(output.shape)} for {rows} records, and a Trainer needs (n, outputs)"
        yield Finding("output", where, why, "end it in a layer of one output per label, not squeezed")


def _not_alike(path: str, half: nn.Module, call: Callable[[list[Any]], Any], given: Any) -> Iterator[Finding]:
    """Yield that records change each other, or that an evaluation is random."""
    inputs = given if isinstance(given, list) else [given]
    outputs = [_run(path, half, partial(call, these))[0] for these in (inputs, _first_replaced(inputs))]
    if all(isinstance(one, Tensor) for one in outputs) and not _close(outputs[0][1:], outputs[1][1:]):
        yield Finding(
            MIXES,
            place_of(path, half),
            "another first record changed what it puts out of the others",
            "let each record be computed by itself",
        )
    modes = [(layer, layer.training) for layer in half.modules()]
    half.eval()
    try:
        torch.manual_seed(1)
        with torch.no_grad():
            again = [_unseeded(call, inputs) for _ in range(2)]
    finally:
        for layer, mode in modes:
            layer.training = mode
    if all(isinstance(one, Tensor) for one in again) and not _close(*again):
        yield Finding(
            "random",
            place_of(path, half),
            "in evaluation mode it puts out other numbers each time, so that no test figure can be repeated",
            "draw in training only: if self.training",
        )


def _unseeded(call: Callable[[list[Any]], Any], inputs: list[Any]) -> Any:
    try:
        return call(inputs)
    except Exception:  # that it fails was found before, or is so in evaluation mode alone
        return None


def _first_replaced(inputs: list[Any]) -> list[Any]:
    """Return the records with the last one in the place of the first."""
    return [_with_last(one) for one in inputs]


def _with_last(values: Any) -> Any:
    if isinstance(values, tuple):
        return type(values)(*map(_with_last, values))
    return torch.cat([values[-1:], values[1:]]) if len(values) else values


def _close(one: Tensor, other: Tensor) -> bool:
    # Kernels may add up in another order; a layer that mixes changes more than that.
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)
