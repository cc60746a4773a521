"""Workers that ``torch.distributed`` joins: started by ``torchrun``, or whatever sets its variables.

Only tensors cross between workers. Those collectives of ``torch.distributed`` that take objects pickle them, and are
not used. Between workers nothing is encrypted or authenticated: their network must be private.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

# They are documented there, and not marked as exported; but for the last, which is the one way to a group's store.
from torch.distributed import DistError, PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from splitvfl.errors import ConfigError, TeamError
from splitvfl.system.gpu_copies import to_device, to_memory
from splitvfl.team.gpus import GpuSums, are_apart, check_one_kind, described
from splitvfl.team.joining import JOIN_S, VARIABLES, Launch, meet
from splitvfl.team.team import T, Team

# What a worker says before an operation: which it is about to take part in, or that it cannot go on.
_CANNOT, _CANNOT_EVER, _ADDS_UP, _GATHERS, _SCATTERS, _EXCHANGES, _SHARES, _COLLECTS, _COMPUTES = range(9)
_STOP: Final = 16
_REASON_BYTES: Final = 500
# How long a worker looks for the others often, how long it pauses between two looks then, and how long later.
_OFTEN_S, _SOON_S, _POLL_S = 0.005, 0.00005, 0.001
# How often one that waits looks whether it still has its links.
_LOOK_S: Final = 1.0


class Workers(Team):
    """The workers of one party, joined by a process group of torch (gloo, and NCCL between GPUs). A context manager.

    Args:
        size: How many the party's file says there are.
        party: The party's name, for errors.
        environment: Where the launcher's variables are: ``os.environ``.
        wait_s: Seconds to wait for all workers to join.
        work_s: Seconds that an operation waits for the slowest worker, who may be waiting for another party. A worker
            that is gone is noticed at once. ``None``: as long.
        notify: Told in one line who is waited for, if they do not join soon.

    Raises:
        ConfigError: If the launcher's variables are missing or make no sense, or say another number of workers.
        TeamError: If they do not join: one is gone, say.
    """

    def __init__(
        self,
        size: int,
        *,
        party: str,
        environment: Mapping[str, str],
        wait_s: float,
        work_s: float | None = None,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__()
        missing = [name for name in VARIABLES if name not in environment]
        if missing and not dist.is_initialized():
            raise ConfigError(
                f"team.workers is {size}, and nothing says which of them this process is ({', '.join(missing)}): start "
                f"it with torchrun --nproc-per-node {size} --no-python splitvfl party FILE --as {party}"
            )
        self._party, self._wait = party, timedelta(seconds=wait_s if work_s is None else work_s)
        self._ours = not dist.is_initialized()
        launch = Launch.read(environment) if self._ours else None
        # Before they join: whoever leaves while others join is a riddle to them.
        started = dist.get_world_size() if launch is None else launch.size
        if started != size:
            raise ConfigError(
                f"team.workers is {size}, and {started} workers were started; all parties need the number that they "
                f"agreed on: start {size} of them (torchrun --nnodes N --nproc-per-node M, N times M), or change the "
                "file"
            )
        try:
            # Of a group that somebody else made, one of our own: its own waits, and gloo whatever carries theirs.
            self._group = (
                dist.new_group(backend="gloo", timeout=self._wait)
                if launch is None
                else self._joined(launch, wait_s, notify)
            )
        except (RuntimeError, ValueError) as error:
            where = "" if launch is None else f" at {launch.place}"
            raise TeamError(
                f"the workers of {party} did not join{where}{_in_words(error)}; one of them is gone, "
                "or a port is taken (torchrun --master-port), or their network does not let them through",
                final=True,
            ) from error
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # The one way to reach a worker that is not at an operation. By the group: its numbers start anew in each.
        self._called_at: Store | None = PrefixStore(
            f"splitvfl called at {self._group.group_name}", _get_default_store()
        )
        self._operations, self._notes = 0, [0] * self.size
        self._stop_asked = False
        self._gone = ""
        self._calls: list[int] = []
        self._device = torch.device("cpu")
        self._gpu_sums: GpuSums | None = None

    def _joined(self, launch: Launch, wait_s: float, notify: Callable[[str], None]) -> Any:
        """Join those who are here, and return the group of all."""
        store = meet(launch, party=self._party, wait_s=wait_s, notify=notify)
        dist.init_process_group(
            "gloo", store=store, rank=launch.rank, world_size=launch.size, timeout=timedelta(seconds=JOIN_S)
        )
        # All were here a moment ago, and need not be waited for long; what comes now may take long.
        group = dist.group.WORLD
        assert group is not None, "it was made just now"
        group._get_backend(torch.device("cpu"))._set_default_timeout(self._wait)
        return group

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the process group, if it was made here."""
        if self._gpu_sums is not None:
            self._gpu_sums.close()
        self._called_at = None  # else its store would outlive it, and who comes back would find it
        if self._ours and dist.is_initialized():
            dist.destroy_process_group()

    def compute_on(self, device: torch.device) -> str:
        """Say on which device this worker computes, and return what carries sums of dense gradients between all."""
        said = [one.decode() for one in self.collect(described(device).encode())]
        check_one_kind(self._party, said)
        self._device = device
        if device.type != "cuda":
            return "gloo"
        if not are_apart(said, os.environ):
            return "gloo, as workers share a GPU, which NCCL refuses"
        if not dist.is_nccl_available():
            return "gloo, as this build of torch has no NCCL"
        self._gpu_sums = self._in_step(_COMPUTES, lambda: GpuSums(device, self._wait_for))
        return "NCCL"

    @property
    def lost(self) -> str:
        """Why nothing can be done together any more; empty as long as something can."""
        return self._gone

    @property
    def stop_asked(self) -> bool:
        """Whether any worker had been asked to stop when the last operation began."""
        return self._stop_asked

    def add_up(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the sums over all workers: one flat sum for each dtype, and of sparse tensors indices and rows."""
        return self._in_step(_ADDS_UP, lambda: self._added_up(tensors), note=_digest(one is None for one in tensors))

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        """Return what every worker has, in order, at worker 0."""
        return self._in_step(_GATHERS, lambda: self._gathered(tensor, self._notes, at_all=False), note=len(tensor))

    def scatter(self, parts: Sequence[Tensor] | None, rows: int) -> Tensor:
        """Return this worker's part of what worker 0 has."""
        return self._in_step(_SCATTERS, lambda: self._scattered(parts, rows), note=rows)

    def exchange(
        self, rows: Tensor, counts: Sequence[int], awaited: Sequence[int] | None = None
    ) -> tuple[Tensor, list[int]]:
        """Give every worker the rows that this one has for it, and return those that all have for this one."""
        return self._in_step(_EXCHANGES, lambda: self._exchanged(rows, counts, awaited))

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite these tensors with those of worker 0."""
        self._in_step(_SHARES, lambda: self._shared(tensors))

    def collect(self, content: bytes) -> list[bytes]:
        """Return what every worker says, in order."""
        return self._in_step(_COLLECTS, lambda: self._said(content, self._notes), note=len(content))

    def divide(self, module: nn.Module) -> nn.Module:
        """Divide a model's dense weights among the workers, by torch's FSDP2."""
        # Imported late: it takes half as long as all of torch.
        from splitvfl.team.sharded_dense import divide

        return divide(module, self._group, self._calls.append)

    def jointly(self, work: Callable[[], T]) -> T:
        """Do something in which torch makes workers wait for each other."""
        self._calls.clear()
        answer = self._in_step(_COMPUTES, work)
        # Weights of other layers, if they are as large, would have been put together without a word.
        if len(set(self.collect(array("I", self._calls).tobytes()))) > 1:
            self._gone = (
                f"the workers of {self._party} did not call the same layers in the same order, as they have to where "
                "weights are divided (model.dense: sharded), whatever their records are"
            )
            raise TeamError(self._gone, final=True)
        return answer

    def refuse(self, reason: str, *, final: bool = False) -> None:
        """Tell the others, in the place of their next operation, that this worker cannot go on."""
        if self._gone:
            return
        self._call()
        votes = self._vote(_CANNOT_EVER if final else _CANNOT)
        if votes is None:
            return
        said = self._refused(votes, self._reasons(reason), but=self.rank)
        if final:
            self._gone = f"worker {self.rank} of {self._party} has ended"
        elif _CANNOT_EVER in votes:
            self._gone = said

    def is_refusing(self) -> bool:
        """Return whether a worker waits for this one in vain: asked of the store by which they joined."""
        if self._called_at is None:
            return False
        try:
            return self._called_at.check([str(self._operations)])
        except DistError:  # gone with who kept it: a worker, or what started them
            return True

    def _call(self) -> None:
        """Call the others to the operation that they come to next."""
        if self._called_at is not None:
            with suppress(DistError):  # gone with who kept it: the operation will say so
                self._called_at.set(str(self._operations), "")

    # --- in step

    def _in_step(self, operation: int, work: Callable[[], T], *, note: int = 0) -> T:
        """Do something with all others.

        Args:
            operation: What.
            work: Does it, when all are there; ``_notes`` are what all have noted then.
            note: A number that this worker tells the others on the way: a message less.
        """
        if self._gone:
            raise TeamError(self._gone, final=True)
        votes = self._vote(operation, note)
        if votes is None:
            raise TeamError(self._gone, final=True)
        if not {_CANNOT, _CANNOT_EVER}.isdisjoint(votes):
            said, final = self._refused(votes, self._reasons("")), _CANNOT_EVER in votes
            self._gone = said if final else ""
            raise TeamError(said, final=final)
        if set(votes) != {operation}:
            self._gone = (
                f"the workers of {self._party} are not in step: they are at {votes}; this is a mistake of splitvfl"
            )
            raise TeamError(self._gone, final=True)
        try:
            return work()
        except BaseException as error:
            # Half of an operation is done: with whatever came next the others would wait for the rest of it.
            self._gone = self._why_lost(error, computes=operation == _COMPUTES)
            if isinstance(error, Exception):
                raise TeamError(self._gone, final=True) from error
            raise

    def _vote(self, vote: int, note: int = 0) -> list[int] | None:
        """Return what all workers say before an operation; ``None`` if one of them is gone."""
        said = torch.zeros(2, self.size, dtype=torch.int64)
        said[0, self.rank], said[1, self.rank] = vote + (_STOP if self.stopping() else 0), note
        try:
            self._wait_for(dist.all_reduce(said, group=self._group, async_op=True), meanwhile=self._call_if_lost)
        except RuntimeError as error:
            self._gone = self._why_lost(error)
            return None
        except BaseException as error:
            self._gone = self._why_lost(error)
            raise
        self._operations += 1
        votes, self._notes = said.tolist()
        self._stop_asked = any(vote >= _STOP for vote in votes)
        return [vote % _STOP for vote in votes]

    def _call_if_lost(self) -> None:
        if self.link_lost():
            self._call()

    def _refused(self, votes: Sequence[int], reasons: Sequence[str], *, but: int | None = None) -> str:
        """Return in words who cannot go on, and why."""
        refusing = [rank for rank, vote in enumerate(votes) if vote in (_CANNOT, _CANNOT_EVER) and rank != but]
        return "; ".join(f"worker {rank} of {self._party}: {reasons[rank] or 'it is gone'}" for rank in refusing)

    def _reasons(self, reason: str) -> list[str]:
        own = reason.encode("utf-8", "replace")[:_REASON_BYTES]
        try:
            return [said.decode("utf-8", "replace") for said in self._said(own)]
        except RuntimeError:  # who said it is gone already
            return [""] * self.size

    def _why_lost(self, error: BaseException, *, computes: bool = False) -> str:
        if not isinstance(error, Exception):
            return f"worker {self.rank} of {self._party} was stopped"
        # What torch's own carrier says names its file; anything else that fails in a model is the model's.
        if not isinstance(error, RuntimeError) or (computes and "gloo" not in str(error).lower()):
            return f"worker {self.rank} of {self._party} failed: {type(error).__name__}: {error}"
        return f"a worker of {self._party} is gone, or did not come within {self._wait}{_in_words(error)}"

    def _wait_for(self, work: Any, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait for a collective, in which a signal would not be heard, piece by piece.

        Args:
            work: What is under way.
            meanwhile: Done once a second.

        Raises:
            RuntimeError: If it failed: another worker is gone.
        """
        begun = time.perf_counter()
        looked = begun
        while not work.is_completed():
            now = time.perf_counter()
            if now > looked + _LOOK_S:
                looked = now
                meanwhile()
            # Without a pause gloo's own thread would wait for this one where they share a core.
            time.sleep(_POLL_S if now > begun + _OFTEN_S else _SOON_S)
        work.wait()

    # --- what crosses

    def _added_up(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        known = self._known(tensors)
        found: list[Tensor | None] = [None] * len(tensors)
        dense: dict[torch.dtype, list[int]] = {}
        for place, (sparse, dtype, shape) in known.items():
            one = tensors[place]
            if sparse:
                found[place] = self._added_sparse(one, dtype, shape)
            else:
                zeros = partial(torch.zeros, shape, dtype=dtype, device=self._device)
                found[place] = zeros() if one is None else one.detach().to(self._device)
                dense.setdefault(dtype, []).append(place)
        for places in dense.values():
            flat = self._flat_sum(torch.cat([_tensor(found[place]).reshape(-1) for place in places]))
            parts = flat.split([_tensor(found[place]).numel() for place in places])
            for place, part in zip(places, parts, strict=True):
                found[place] = part.reshape(_tensor(found[place]).shape)
        pairs = zip(found, tensors, strict=True)
        return [one if one is None or given is None else one.to(given.device) for one, given in pairs]

    def _flat_sum(self, flat: Tensor) -> Tensor:
        """Return the sum of a dense tensor of all workers, which lies where this worker computes."""
        if self._gpu_sums is not None:
            self._gpu_sums.add_up(flat)
            return flat
        sent = to_memory(flat)
        self._wait_for(dist.all_reduce(sent, group=self._group, async_op=True))
        return to_device(sent, flat.device)

    def _known(self, tensors: Sequence[Tensor | None]) -> dict[int, tuple[bool, torch.dtype, tuple[int, ...]]]:
        """Return the form of each tensor that some worker has, by its place."""
        own = {
            place: (one.is_sparse, one.dtype, tuple(one.shape)) for place, one in enumerate(tensors) if one is not None
        }
        if len(set(self._notes)) == 1:  # all have the same ones
            return own
        missing = torch.tensor([place not in own for place in range(len(tensors))], dtype=torch.int64)
        self._wait_for(dist.all_reduce(missing, group=self._group, async_op=True))
        partly = [place for place, count in enumerate(missing.tolist()) if 0 < count < self.size]
        if not partly:
            return own
        # Rare: a weight that some rows train, and others do not.
        said = self._said("\n".join(f"{place} {_spelled(own[place])}" for place in partly if place in own).encode())
        for line in b"\n".join(filter(None, said)).decode().splitlines():
            place, _, form = line.partition(" ")
            own.setdefault(int(place), _read(form))
        return dict(sorted(own.items()))  # in one order at all workers

    def _added_sparse(self, one: Tensor | None, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return a sum of sparse tensors: all rows of all workers, in their order."""
        rows, values = torch.empty(1, 0, dtype=torch.int64), torch.empty(0, *shape[1:], dtype=dtype)
        mine = torch.sparse_coo_tensor(rows, values, shape, check_invariants=False, device=self._device)
        if one is not None:
            mine = one.detach()
        counts = self._told(len(mine._values()))
        named = self._gathered(mine._indices().T.contiguous(), counts, at_all=True)
        said = self._gathered(mine._values().contiguous(), counts, at_all=True)
        assert named is not None and said is not None  # noqa: PT018 - at all workers
        return torch.sparse_coo_tensor(torch.cat(named).T, torch.cat(said), shape, check_invariants=False)

    def _gathered(self, tensor: Tensor, counts: Sequence[int] | None = None, *, at_all: bool) -> list[Tensor] | None:
        """Return what every worker has, at worker 0 or at all; ``counts``: how many rows each has, if that is known."""
        mine = to_memory(tensor).contiguous()
        counts = self._told(len(mine)) if counts is None else counts
        most = max(counts)
        if most == 0:
            return [tensor.detach()] * self.size if at_all or self.rank == 0 else None
        padded = mine.new_zeros(most, *mine.shape[1:])
        padded[: len(mine)] = mine
        room = [torch.empty_like(padded) for _ in range(self.size)] if at_all or self.rank == 0 else None
        if at_all:
            assert room is not None
            self._wait_for(dist.all_gather(room, padded, group=self._group, async_op=True))
        else:
            self._wait_for(dist.gather(padded, room, dst=0, group=self._group, async_op=True))
        if room is None:
            return None
        return [to_device(one[:count], tensor.device) for one, count in zip(room, counts, strict=True)]

    def _told(self, number: int) -> list[int]:
        """Return which number each worker has."""
        numbers = torch.zeros(self.size, dtype=torch.int64)
        numbers[self.rank] = number
        self._wait_for(dist.all_reduce(numbers, group=self._group, async_op=True))
        found: list[int] = numbers.tolist()
        return found

    def _scattered(self, parts: Sequence[Tensor] | None, rows: int) -> Tensor:
        most = max(self._notes)
        form = b"" if parts is None else _spelled((False, parts[0].dtype, tuple(parts[0].shape[1:]))).encode()
        _, dtype, shape = _read(self._said(form)[0].decode())
        mine, room = torch.empty(most, *shape, dtype=dtype), None
        if parts is not None:
            room = [torch.zeros(most, *shape, dtype=dtype) for _ in parts]
            for place, part in zip(room, parts, strict=True):
                place[: len(part)] = to_memory(part)
        self._wait_for(dist.scatter(mine, room, src=0, group=self._group, async_op=True))
        return mine[:rows]

    def _exchanged(
        self, rows: Tensor, counts: Sequence[int], awaited: Sequence[int] | None
    ) -> tuple[Tensor, list[int]]:
        if awaited is None:  # before memory is taken for them
            told = torch.empty(self.size, dtype=torch.int64)
            asked = torch.tensor(counts, dtype=torch.int64)
            self._wait_for(dist.all_to_all_single(told, asked, group=self._group, async_op=True))
            awaited = told.tolist()
        sent = to_memory(rows).contiguous()
        room = sent.new_empty(sum(awaited), *sent.shape[1:])
        self._wait_for(
            dist.all_to_all_single(room, sent, list(awaited), list(counts), group=self._group, async_op=True)
        )
        return to_device(room, rows.device), list(awaited)

    def _shared(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            sent = to_memory(tensor).contiguous()
            self._wait_for(dist.broadcast(sent, src=0, group=self._group, async_op=True))
            with torch.no_grad():
                tensor.copy_(sent)

    def _said(self, content: bytes, counts: Sequence[int] | None = None) -> list[bytes]:
        own = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)[: len(content)]
        found = self._gathered(own, counts, at_all=True)
        assert found is not None
        return [one.numpy().tobytes() for one in found]


def _in_words(error: Exception) -> str:
    """Return what is of use in gloo's words: not where in its code, and no wishes."""
    first = (str(error).splitlines() or [""])[0]
    said = re.sub(r"\[/[^\]]*\] ?|This is typically caused by.*", "", first).strip().rstrip(".")
    return f": {said}" if said else ""


def _digest(flags: Iterable[bool]) -> int:
    """Return a number that is the same for the same flags, and for others another one."""
    return int.from_bytes(hashlib.sha256(bytes(flags)).digest()[:7], "big")


def _tensor(one: Tensor | None) -> Tensor:
    assert one is not None
    return one


def _spelled(form: tuple[bool, torch.dtype, tuple[int, ...]]) -> str:
    sparse, dtype, shape = form
    return f"{int(sparse)} {str(dtype).removeprefix('torch.')} {' '.join(map(str, shape))}"


def _read(text: str) -> tuple[bool, torch.dtype, tuple[int, ...]]:
    sparse, dtype, *shape = text.split()
    return sparse == "1", getattr(torch, dtype), tuple(map(int, shape))
