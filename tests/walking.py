"""Everything that can be reached from an object, and whether a secret is among it."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_DEEPEST_STRIDE = 32  # wider than any table of these tests
_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type, types.ModuleType, torch.dtype, torch.device)


def reachable(root: object) -> Iterator[object]:
    """Yield every object that can be reached from ``root`` without reading memory that nothing refers to.

    Attributes (``__dict__`` and ``__slots__``), containers, closures, default arguments, partials, bound methods, and
    for tensors their base, gradient, hooks, and autograd graph with all that its nodes saved.
    """
    seen: set[int] = set()
    waiting: list[object] = [root]
    kept: list[object] = []  # an object that died would lend its id to another one
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, _LEAVES) or item is None:
            continue
        seen.add(id(item))
        kept.append(item)
        yield item
        waiting.extend(_parts(item))


def _parts(item: object) -> Iterator[object]:
    if isinstance(item, Mapping):
        yield from item.keys()
        yield from item.values()
    elif isinstance(item, Iterable) and not isinstance(item, (Tensor, Iterator)):
        yield from _tolerant(item)
    yield from _attributes(item)
    if isinstance(item, Tensor):
        yield from (item.grad_fn, item._base, item._backward_hooks, item.grad if item.is_leaf else None)
    if isinstance(item, types.FunctionType):
        yield from (item.__defaults__, item.__kwdefaults__)
        yield from (_content(cell) for cell in item.__closure__ or ())
    if isinstance(item, types.MethodType):
        yield from (item.__self__, item.__func__)
    if isinstance(item, functools.partial):
        yield from (item.func, item.args, item.keywords)
    if hasattr(item, "next_functions"):
        yield from _saved_by(item)


def _tolerant(items: Iterable[Any]) -> list[object]:
    try:
        return list(items)
    except Exception:
        return []


def _attributes(item: object) -> Iterator[object]:
    yield getattr(item, "__dict__", None)
    for owner in type(item).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(item, name, None)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _saved_by(node: Any) -> Iterator[object]:
    """What an autograd node holds: the nodes before it, its saved tensors, and a leaf's variable."""
    saved = (name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors")
    for name in ("next_functions", "variable", *saved):
        try:
            yield getattr(node, name)
        except (AttributeError, RuntimeError):  # not there, or freed by a backward pass
            continue


def reveals(root: object, secret: Tensor) -> bool:
    """Whether a tensor that can be reached from ``root`` holds the secret, as a run or at any stride of its memory."""
    return any(_holds(item, secret) for item in reachable(root) if isinstance(item, Tensor))


def _holds(tensor: Tensor, secret: Tensor) -> bool:
    # All of the memory behind it, so that a slice of a table gives the whole table away.
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.detach().untyped_storage()).double()  # type: ignore[call-overload]
    wanted = secret.detach().double().flatten()
    for stride in range(1, _DEEPEST_STRIDE + 1):
        starts = memory.numel() - (wanted.numel() - 1) * stride
        if starts < 1:
            return False
        if (memory.as_strided((starts, wanted.numel()), (1, stride)) == wanted).all(dim=1).any():
            return True
    return False
