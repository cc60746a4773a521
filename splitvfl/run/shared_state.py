"""What a worker's checkpoint leaves to that of worker 0: weights, and what optimisers keep of them, lie on disk once.

What is left out is every larger tensor that worker 0 has too, equal to the bit: in its place stands its digest, by
which it is known again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from splitvfl.errors import CheckpointError
from splitvfl.run import checkpoint
from splitvfl.system.gpu_copies import bytes_of
from splitvfl.system.untrusted_files import decoded
from splitvfl.team.team import Team

# In the place of a tensor: under this key its digest, and its form.
_ELSEWHERE: Final = "worker 0 has what has this SHA-256"
# Bytes of a tensor that is worth it.
_LEAST: Final = 1024


def collect_json(team: Team, value: Any) -> list[Any]:
    """Return what every worker says, in order, each as JSON takes it.

    Raises:
        TeamError: If a worker could not go on, or is gone.
    """
    return [decoded(one, nan=True) for one in team.collect(json.dumps(value).encode())]


def without_shared(state: Mapping[str, Any], team: Team, *, own: Collection[str] = ()) -> dict[str, Any]:
    """Return a state without what worker 0 has in its own in the same place; at worker 0 as it is: all together.

    Args:
        state: Tensors, numbers, strings, lists and dicts of them.
        team: The workers.
        own: Keys under which nothing is left out: parts of weights that each worker has for itself, and may be asked
            for when worker 0's checkpoint is not at hand.

    Raises:
        TeamError: If a worker could not go on, or is gone.
    """
    if team.size == 1:
        return dict(state)
    found: dict[str, str] = {}

    def note(place: str, tensor: Tensor) -> Tensor:
        if tensor.numel() * tensor.element_size() >= _LEAST and place.rpartition("/")[2] not in own:
            found[place] = _digest(tensor)
        return tensor

    def leave(place: str, tensor: Tensor) -> Any:
        digest = found.get(place)
        if digest is None or digest != theirs.get(place):
            return tensor
        return {_ELSEWHERE: digest, "dtype": _name_of(tensor.dtype), "shape": list(tensor.shape)}

    _changed(state, note)
    theirs = collect_json(team, found if team.rank == 0 else {})[0]
    return dict(state) if team.rank == 0 else _changed(state, leave)


def with_shared(state: Mapping[str, Any], team: Team) -> dict[str, Any]:
    """Return the whole of a state of which :func:`without_shared` left something out: all together.

    Raises:
        CheckpointError: If worker 0 has something else now.
        TeamError: If a worker could not go on, or is gone.
    """
    missing = _missing(state)
    if team.size == 1:
        return dict(state)
    said = collect_json(team, missing)
    forms = {place: one for wanted in said for place, one in wanted.items()}
    own: dict[str, Tensor] = {}
    _changed(state, lambda place, tensor: own.setdefault(place, tensor))
    shared = {}
    for place, form in sorted(forms.items()):
        if team.rank:
            shared[place] = torch.empty(form["shape"], dtype=getattr(torch, form["dtype"]))
            continue
        shared[place] = own.get(place, torch.empty(0))
        if _digest(shared[place]) != form[_ELSEWHERE]:
            raise CheckpointError(
                f"the checkpoint of another worker leaves {place} to that of worker 0, which has something else there: "
                "one of their folders is of another time or another run; bring it back, or start anew with --overwrite"
            )
    team.share(list(shared.values()))
    return filled(state, shared)


def filled(state: Mapping[str, Any], shared: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a state with what it leaves out.

    Args:
        state: What :func:`without_shared` returned.
        shared: What stands at worker 0, by place (:func:`by_place`); there may be more.

    Raises:
        CheckpointError: If something is missing, or is not what was left out.
    """
    for place, form in _missing(state).items():
        if place not in shared or _digest(shared[place]) != form[_ELSEWHERE]:
            raise CheckpointError(f"{place} of worker 0 is not what this checkpoint leaves to it")
    found: dict[str, Any] = _changed(state, lambda place, tensor: tensor, lambda place, form: shared[place])
    return found


def whole_party(path: Path, first_run: Path | None = None) -> dict[str, Any]:
    """Return the party's state in a checkpoint, with what it leaves to worker 0's.

    Args:
        path: The checkpoint's folder.
        first_run: Folder of worker 0's run; ``None``: that in which the worker's lies.

    Raises:
        CheckpointError: If it is damaged, or that of worker 0 is not there, or has something else.
    """
    state: dict[str, Any] = checkpoint.load(path, only="party")["party"]
    if not _missing(state):
        return state
    first_run = path.parents[2] if first_run is None else first_run
    first = checkpoint.steps(first_run / path.parent.name).get(checkpoint.step_of(path))
    if first is None:
        raise CheckpointError(f"{path} leaves weights to that of worker 0, which is not in {first_run}")
    return filled(state, by_place(checkpoint.load(first, only="party")["party"]))


def by_place(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a state by where they stand in it."""
    found: dict[str, Tensor] = {}
    _changed(state, lambda place, tensor: found.setdefault(place, tensor))
    return found


def without_the_others(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with zeros for what it leaves out, where nobody asks this worker for that any more."""
    found: dict[str, Any] = _changed(
        state,
        lambda place, tensor: tensor,
        lambda place, form: torch.zeros(form["shape"], dtype=getattr(torch, form["dtype"])),
    )
    return found


def _missing(state: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    _changed(state, lambda place, tensor: tensor, found.setdefault)
    return found


def _changed(
    value: Any,
    tensors: Callable[[str, Tensor], Any],
    elsewhere: Callable[[str, Any], Any] = lambda place, form: form,
    place: str = "",
) -> Any:
    """Return a tree of plain values with every tensor changed, and everything that stands in the place of one."""
    if isinstance(value, Tensor):
        return tensors(place, value)
    if isinstance(value, dict):
        if _ELSEWHERE in value:
            return elsewhere(place, value)
        return _alike(value, {key: _changed(one, tensors, elsewhere, f"{place}/{key}") for key, one in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(_changed(one, tensors, elsewhere, f"{place}/{at}") for at, one in enumerate(value))
    return value


def _alike(before: dict[Any, Any], changed: dict[Any, Any]) -> dict[Any, Any]:
    """Return a dict of the same type: that of a module's state says of which version each layer is."""
    found = type(before)(changed)
    if hasattr(before, "_metadata"):
        found._metadata = before._metadata  # type: ignore[attr-defined]
    return found


def _digest(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    digest.update(bytes_of(tensor.detach().cpu()))
    return digest.hexdigest()


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
