"""The search for discrete values as a mixed-integer linear program, one prediction after another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from splitvfl.hooks import Alphabet

Floats = npt.NDArray[np.float64]

# Of scipy.optimize.milp's answers.
_OPTIMAL, _INFEASIBLE = 0, 2
# HiGHS meets constraints to 1e-6, so that sums of mismatch this close are not told apart. (Scaling rows up does not
# help: it then rejects solutions of its own, and says so on the standard output.)
_RESOLVED = 1e-5


class Found(NamedTuple):
    """What programs of one prediction gave.

    Attributes:
        values: Of the discrete columns, float64 ``(f,)`` each, in the alphabets' order. They fit about equally well.
        proven: That nothing fits better was proven, to 1e-5.
        complete: It was proven, too, that nothing else fits as well.
    """

    values: list[Tensor]
    proven: bool
    complete: bool


class Program:
    """The linear programs ``min Σ s`` with ``|rows · x − right| <= error + s``, one binary for each possibility.

    Of each alphabet one possibility is chosen; continuous columns are in [0, 1]. The mismatch is a sum of absolute
    values, so that the programs stay linear. What was found is ruled out in the next one: some alphabet has another
    possibility there.

    Args:
        rows: Equations, ``(m, d)``, float64; rows of about unit length.
        alphabets: Of the discrete columns.
        rest: Places of the continuous columns.
    """

    def __init__(self, rows: Tensor, alphabets: Sequence[Alphabet], rest: Sequence[int]) -> None:
        self._alphabets = alphabets
        matrix = rows.cpu().numpy()
        by_choice = [matrix[:, list(one.places)] @ one.values.cpu().numpy().T for one in alphabets]
        self._m, self._rest = len(matrix), len(rest)
        self._ends = self._rest + np.cumsum([0, *(len(one.values) for one in alphabets)])
        self._weights = np.concatenate([matrix[:, list(rest)], *by_choice], axis=1)
        self._one_each = np.zeros((len(alphabets), int(self._ends[-1]) + self._m))
        for number, (first, last) in enumerate(pairwise(self._ends)):
            self._one_each[number, first:last] = 1.0

    def solved(self, right: Tensor, error: Tensor, *, time_limit_s: float, most: int) -> Found:
        """Return what was found for one right-hand side.

        Args:
            right: ``(m,)``.
            error: How far it may be off, ``(m,)``.
            time_limit_s: For all of its programs together.
            most: Candidates to look for.
        """
        end = time.monotonic() + time_limit_s
        target, slack = right.cpu().numpy(), error.cpu().numpy()
        ruled_out: list[Floats] = []
        values: list[Tensor] = []
        proven, least = False, 0.0
        while True:
            left = end - time.monotonic() if values else time_limit_s
            solution = self._solve(target, slack, ruled_out, left) if left > 0 else None
            if solution is None or (solution.x is None and solution.status != _INFEASIBLE):
                return Found(values, proven, complete=False)
            ended = solution.status in (_OPTIMAL, _INFEASIBLE)
            if solution.x is None or (values and solution.fun > least + _RESOLVED):
                return Found(values, proven, complete=proven and ended)
            if len(values) == most:
                return Found(values, proven, complete=False)
            if not values:
                least, proven = solution.fun, ended
            chosen = self._chosen(solution.x)
            values.append(torch.cat([one.values[at] for one, at in zip(self._alphabets, chosen, strict=True)]))
            ruled_out.append(self._cut(chosen))

    def _chosen(self, solution: Floats) -> list[int]:
        """Return which possibility of each alphabet a solution takes."""
        return [int(solution[first:last].argmax()) for first, last in pairwise(self._ends)]

    def _cut(self, chosen: Sequence[int]) -> Floats:
        row = np.zeros(self._one_each.shape[1])
        row[self._ends[:-1] + chosen] = 1.0
        return row

    def _solve(self, target: Floats, slack: Floats, ruled_out: Sequence[Floats], time_limit_s: float) -> Any:
        binaries, m = int(self._ends[-1]) - self._rest, self._m
        own = np.eye(m)
        constraints = [
            scipy.optimize.LinearConstraint(np.hstack([self._weights, -own]), -np.inf, target + slack),
            scipy.optimize.LinearConstraint(np.hstack([self._weights, own]), target - slack, np.inf),
            scipy.optimize.LinearConstraint(self._one_each, 1.0, 1.0),
        ]
        if ruled_out:
            constraints.append(
                scipy.optimize.LinearConstraint(np.stack(ruled_out), -np.inf, len(self._alphabets) - 1.0)
            )
        return scipy.optimize.milp(
            np.concatenate([np.zeros(self._rest + binaries), np.ones(m)]),
            integrality=np.concatenate([np.zeros(self._rest), np.ones(binaries), np.zeros(m)]),
            bounds=scipy.optimize.Bounds(0.0, np.concatenate([np.ones(self._rest + binaries), np.full(m, np.inf)])),
            constraints=constraints,
            options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
        )
