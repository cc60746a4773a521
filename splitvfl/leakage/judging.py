"""Judging an attack: how well its scores separate the labels, in one step and added up over the run.

An attack never meets labels. Its scores do, here, at whoever holds the labels: the harness of an experiment, or the
label party, which runs the partner's attacks on its own outgoing messages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import Attack, View, call_attack, hook_name, is_signed, moment_of, needs_of, target_of
from splitvfl.leakage.series import StepValues
from splitvfl.leakage.signs import SignKeeper
from splitvfl.metrics import Array, leak_auc, rank_auc, scores_and_positives
from splitvfl.randomness import PartyRandom
from splitvfl.records import Ids, RecordTable

GRANTED = frozenset({"known_positives", "known_negatives"})
"""View fields that the judge fills: side knowledge, which is no message."""

_MOST_PENDING = 1 << 16
# Over so many records the AUC of sums has a standard error of .001 even with one positive in thirty; a table of them
# takes 100 MiB for every attack.
_MOST_RECORDS = 1 << 21


class Handle:
    """Something attached that can be taken off again; a context manager that does so even when its body raises.

    Args:
        remove: Called at most once.
    """

    def __init__(self, remove: Callable[[], None]) -> None:
        self._detach: Callable[[], None] | None = remove

    def remove(self) -> None:
        """Take it off; a second call does nothing."""
        if self._detach is not None:
            self._detach()
            self._detach = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


@dataclass(frozen=True)
class LeakSummary:
    """What one attack learned in a run.

    Attributes:
        auc: Mean leak AUC of a step, in the attack's own orientation. NaN if no batch had both classes.
        worst_auc: ``max(auc, 1 − auc)``: one orientation for the whole run, chosen after averaging.
        quantile_95: 95 % quantile over steps in that orientation: how bad a bad batch is.
        accumulated_auc: AUC of each record's standardised scores added up over the run, in the attack's orientation.
        worst_accumulated_auc: ``max(accumulated_auc, 1 − accumulated_auc)``.
        steps: Number of steps with an AUC.
        undefined: Number of steps without one (one class only, or nothing scored); they enter no average.
        signs_right: Of an attack whose score's sign is the label: share of right ones over the run. NaN for others.
        records_right: Of how many records most signs were right.
        records: Of how many records there was any sign.
    """

    auc: float
    worst_auc: float
    quantile_95: float
    accumulated_auc: float
    worst_accumulated_auc: float
    steps: int
    undefined: int
    signs_right: float = math.nan
    records_right: int = 0
    records: int = 0

    @property
    def worst(self) -> float:
        """The larger of the per-step and the accumulated AUC, each in its better orientation; NaN if neither exists."""
        return nanmax(self.worst_auc, self.worst_accumulated_auc)


def nanmax(*values: float) -> float:
    """Return the largest value that is not NaN, or NaN."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def real_rows(labels: Tensor) -> Tensor | None:
    """Return which rows have a label to be judged by, ``(n,)`` bool; ``None`` if all have, as they mostly do."""
    if not labels.is_floating_point() or not math.isnan(labels.sum().item()):
        return None
    return ~torch.isnan(labels.reshape(-1))


class ScoreKeeper:
    """Leak AUC of each step, and per-record sums over the run.

    Scores of one step are standardised (zero mean, unit variance over the scored records of the batch) before they are
    added to their record's sum, so that steps with large gradients do not drown the others.

    Memory does not grow with the steps: see :class:`~splitvfl.leakage.series.StepValues`. Sums are kept of about the
    first two million records that are met; in a shuffled order they are a random sample.
    """

    def __init__(self) -> None:
        self._aucs = StepValues()
        self._undefined = 0
        self._pending: list[tuple[Ids, Array, npt.NDArray[np.bool_]]] = []
        self._pending_rows = 0
        self._records = RecordTable(total=np.float64, count=np.int64, label=np.int8)

    def add(self, ids: Tensor | None, scores: Tensor, labels: Tensor) -> float:
        """Judge one step and return its leak AUC (NaN if undefined).

        Args:
            ids: Record ids, ``(n,)``; ``None`` when nobody knows them, and nothing can be added up.
            scores: ``(n,)``; NaN marks records that were not scored.
            labels: ``(n,)`` in {0, 1}; NaN marks records that are not judged: dummies of a padded alignment.
        """
        if math.isnan(scores.sum().item()):
            scored = ~torch.isnan(scores.reshape(-1))
            scores, labels = scores.reshape(-1)[scored], labels.reshape(-1)[scored.to(labels.device)]
            ids = None if ids is None else ids.reshape(-1)[scored.to(ids.device)]
        real = real_rows(labels)
        if real is not None:
            scores, labels = scores.reshape(-1)[real.to(scores.device)], labels.reshape(-1)[real]
            ids = None if ids is None else ids.reshape(-1)[real.to(ids.device)]
        values, positive = scores_and_positives(scores, labels)
        auc = rank_auc(values, positive)
        if math.isnan(auc):
            self._undefined += 1
        else:
            self._aucs.append(auc)
        if ids is not None and values.size > 1:
            self._accumulate(ids.detach().cpu().numpy().reshape(-1).copy(), values, positive)
        return auc

    def _accumulate(self, ids: Ids, values: Array, positive: npt.NDArray[np.bool_]) -> None:
        # Relative to one of them first: the mean of equal scores would be rounded, and differ from every one of them.
        shifted = np.subtract(values, values[0], dtype=np.float64)
        centred = shifted - shifted.sum() / values.size
        deviation = math.sqrt(np.dot(centred, centred) / values.size)
        # All scores equal: they say nothing about anybody.
        standardised = centred / deviation if deviation > 0 else np.zeros_like(centred)
        self._pending.append((ids, standardised, positive))
        self._pending_rows += values.size
        if self._pending_rows >= _MOST_PENDING:
            self._settle()

    def _settle(self) -> None:
        """Add what is pending to the records; many steps at once cost far less than one by one."""
        if not self._pending:
            return
        ids, standardised, positive = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._pending_rows = [], 0
        if len(self._records) < _MOST_RECORDS:
            slots = self._records.slots(ids)
        else:
            slots = self._records.find(ids)
            kept = slots >= 0
            slots, standardised, positive = slots[kept], standardised[kept], positive[kept]
        # In the column's own dtype: numpy adds thirty times slower where it has to convert.
        np.add.at(self._records["total"], slots, standardised.astype(np.float64))
        np.add.at(self._records["count"], slots, 1)
        self._records["label"][slots] = positive

    @property
    def aucs(self) -> tuple[float, ...]:
        """Leak AUC of each step that had one, in order and in the attack's own orientation.

        Of a run of more than 8192 such steps, evenly spaced ones: :class:`~splitvfl.leakage.series.Thinned`.
        """
        return tuple(self._aucs.kept.tolist())

    @property
    def auc_sum(self) -> tuple[float, int]:
        """Sum of the leak AUCs of all steps that had one, and how many these are: for means over part of a run."""
        return self._aucs.total, len(self._aucs)

    @property
    def recent_auc(self) -> float:
        """Mean leak AUC of the last ten steps that had one: a curve of it shows the course of a run."""
        return self._aucs.recent_mean

    @property
    def records(self) -> int:
        """Number of records whose scores are added up; the accumulated AUC takes time in proportion."""
        self._settle()
        return int(np.count_nonzero(self._records["count"]))

    @property
    def accumulated_auc(self) -> float:
        """AUC of the per-record sums; O(records · log records)."""
        self._settle()
        seen = self._records["count"] > 0
        if not seen.any():
            return math.nan
        sums = torch.from_numpy(self._records["total"][seen])
        return leak_auc(sums, torch.from_numpy(self._records["label"][seen]))

    def summary(self) -> LeakSummary:
        """Return the run's figures so far."""
        auc = self._aucs.mean
        # The upper quantile of what is turned around is the lower one of what it was.
        quantile = self._aucs.quantile(0.95) if auc >= 0.5 else 1.0 - self._aucs.quantile(0.05)
        accumulated = self.accumulated_auc
        return LeakSummary(
            auc=auc,
            worst_auc=max(auc, 1.0 - auc),
            quantile_95=quantile,
            accumulated_auc=accumulated,
            worst_accumulated_auc=max(accumulated, 1.0 - accumulated),
            steps=len(self._aucs),
            undefined=self._undefined,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers, fit for a checkpoint."""
        self._settle()
        return {
            "aucs": self._aucs.state_dict(),
            "undefined": self._undefined,
            "records": self._records.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._aucs.load_state_dict(state["aucs"])
        self._undefined = state["undefined"]
        self._pending, self._pending_rows = [], 0
        self._records.load_state_dict(state["records"])


def check_known(positives: int, negatives: int) -> None:
    """Raise :class:`ArgumentError` if an attacker would know less than 0 records of a class."""
    for field, count in (("known_positives", positives), ("known_negatives", negatives)):
        if count < 0:
            raise ArgumentError(f"{field} must be at least 0, got {count}")


class _Grant:
    """Side knowledge of an attacker: the first records met of one class, the same ones for the whole run."""

    def __init__(self, field: str, *, label: int, wanted: int) -> None:
        self.field = field
        self.ids = torch.zeros(0, dtype=torch.int64)
        self._label = label
        self._wanted = wanted

    def meet(self, ids: Tensor, labels: Tensor) -> None:
        """Take records of this class out of a batch, while any are wanted."""
        if self.ids.numel() < self._wanted:
            members = ids[labels.reshape(-1).to(ids.device) == self._label].tolist()
            first = list(dict.fromkeys([*self.ids.tolist(), *members]))[: self._wanted]
            self.ids = torch.tensor(sorted(first), dtype=torch.int64)


class Leak(Handle):
    """A label attack being judged: what ``watch`` returns.

    Args:
        attack: The attack.
        known_positives: How many positive records the attacker is assumed to know, for attacks that need some. They
            are the first ones met, and stay the same for the whole run. The grant is side knowledge of the attacker,
            stated in every report; their labels are the only ones that reach an attack, as ids.
        known_negatives: How many negative records it is assumed to know, likewise.
        remove: Called when the leak is detached.

    Attributes:
        name: The attack's name.
        needs: View fields that it reads, besides what the judge grants.
        keeper: The judge's figures.
        signs: How many labels it has right, if the sign of its score is the label.
        seconds: Time spent on attacking and judging, so that a step's own time can be told apart.

    Raises:
        ArgumentError: If the attack is none on the labels of a training step, or it would know less than 0 records.
    """

    def __init__(
        self,
        attack: Attack,
        *,
        known_positives: int = 1,
        known_negatives: int = 1,
        remove: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(remove)
        if target_of(attack) != "labels":
            raise ArgumentError(f"{hook_name(attack)} estimates features; only label attacks watch a training step")
        if moment_of(attack) != "every-step":
            raise ArgumentError(
                f"{hook_name(attack)} acts after training, not on a message; once the model is trained, call it: "
                "attack(view_after_training(bottom, columns, ids=..., known_positives=..., known_negatives=...)), "
                "from splitvfl.leakage.after_training"
            )
        self.attack = attack
        self.name = hook_name(attack)
        check_known(known_positives, known_negatives)
        self._grants = tuple(
            _Grant(field, label=label, wanted=wanted)
            for field, label, wanted in (
                ("known_positives", 1, known_positives),
                ("known_negatives", 0, known_negatives),
            )
            if field in needs_of(attack)
        )
        self.needs = needs_of(attack) - GRANTED
        self.keeper = ScoreKeeper()
        self.signs = SignKeeper() if is_signed(attack) else None
        self.seconds = 0.0
        # An attack that draws numbers must not change the dropout of what it watches.
        self._random = PartyRandom(0)

    def see(self, view: View, labels: Tensor, *, ids_known: bool = True) -> float:
        """Show the attack a view, judge its scores with the labels, and return the step's leak AUC.

        Args:
            view: What the attacking party sees. Labels are not handed to the attack.
            labels: ``(n,)`` in {0, 1}.
            ids_known: Whether the view's ids name records; if they only number the batch's rows, nothing is
                accumulated and no record is granted.

        Raises:
            HookError: If the attack breaks its contract, or the labels are not binary.
        """
        started = time.perf_counter()
        for grant in self._grants:
            if ids_known:
                grant.meet(view.ids, labels)
            view = view.granting(**{grant.field: grant.ids.to(view.device)})
        if view.device.type == "cuda":
            self._random.use_cuda()
        with self._random:
            scores = call_attack(self.attack, view)
        ids = view.ids if ids_known else None
        try:
            if self.signs is not None:
                self.signs.add(ids, scores, labels)
            return self.keeper.add(ids, scores, labels)
        except ArgumentError as error:
            raise HookError(f"attack {self.name} cannot be judged at step {view.step}: {error}") from error
        finally:
            self.seconds += time.perf_counter() - started

    @property
    def auc(self) -> float:
        """Mean leak AUC of a step, in the attack's orientation."""
        return self.keeper.summary().auc

    @property
    def accumulated_auc(self) -> float:
        """Leak AUC of the scores added up per record."""
        return self.keeper.accumulated_auc

    @property
    def summary(self) -> LeakSummary:
        """All figures so far."""
        summary = self.keeper.summary()
        if self.signs is None:
            return summary
        right, records = self.signs.records
        return replace(summary, signs_right=self.signs.share(), records_right=right, records=records)

    def state_dict(self) -> dict[str, Any]:
        """Return the judge's state, and the attack's where it has one."""
        state: dict[str, Any] = {
            "keeper": self.keeper.state_dict(),
            "known": {grant.field: grant.ids for grant in self._grants},
            "random": self._random.state_dict(),
        }
        if self.signs is not None:
            state["signs"] = self.signs.state_dict()
        if hasattr(self.attack, "state_dict"):
            state["attack"] = self.attack.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self.keeper.load_state_dict(state["keeper"])
        if self.signs is not None:
            self.signs.load_state_dict(state["signs"])
        for grant in self._grants:
            grant.ids = state["known"][grant.field]
        self._random.load_state_dict(state["random"])
        if "attack" in state and hasattr(self.attack, "load_state_dict"):
            self.attack.load_state_dict(state["attack"])
