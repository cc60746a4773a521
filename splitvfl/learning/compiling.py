"""What ``torch.compile`` leaves as it is: hooks, random draws and counters, between the graphs of bottoms and top.

A number that is counted in a trace is a constant of the graph, which is compiled anew at every step; and what is drawn
in one is drawn by the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

_WHY = "hooks, random draws and counters at a cut are not compiled: compile the bottoms and the top, without fullgraph"
_MARK = "_left_untraced"


def untraced(method: F) -> F:
    """Mark a method that is not traced, nor what it calls, once :func:`leave_untraced` has been told of its class."""
    vars(method)[_MARK] = True
    return method


def untraced_itself(method: F) -> F:
    """Mark a method that is not traced, while each of the functions that it calls is, by itself."""
    vars(method)[_MARK] = False
    return method


def leave_untraced(*classes: type) -> None:
    """See to it that marked methods of these classes and of their bases are not traced.

    To be called when one is made: it imports all that compiles, as an optimizer of torch does, and takes a second.
    """
    for one in {base for cls in classes for base in cls.__mro__}:
        for name, found in list(vars(one).items()):
            method = found.__func__ if isinstance(found, staticmethod) else found
            recursive = getattr(method, "__dict__", {}).get(_MARK)
            if recursive is not None:
                left = outside_graphs(method, and_what_it_calls=recursive)
                vars(left).pop(_MARK, None)
                setattr(one, name, staticmethod(left) if isinstance(found, staticmethod) else left)


def outside_graphs(function: F, *, and_what_it_calls: bool = True) -> F:
    """Return a function that is not traced."""
    disable: Any = torch.compiler.disable
    left: F = disable(function, recursive=and_what_it_calls, reason=_WHY)
    return left
