"""Feature attack: of the values that columns can take, those that fit the equations (discrete search)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from splitvfl.attacks.box_projection import FEASIBLE, in_pieces, nearest_solution
from splitvfl.attacks.discrete_halves import closest_pairs
from splitvfl.attacks.discrete_program import Program
from splitvfl.attacks.rcc2 import rcc2_within
from splitvfl.attacks.row_space import check_equations
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import Alphabet, Target, View
from splitvfl.leakage.alphabets import check_alphabets

MOST_COMBINATIONS = 65_536
# What a combination costs with continuous columns, whose nearest fit is computed, beside one without.
_CONTINUOUS_COST = 8
# Of two halves, for each combination of the first: what pieces of work leave room for.
_PAIRS_TO_EXPECT = 8
# Fits that differ by less, in units of the features, are equally good: what logits of float64 round to.
_TIE = FEASIBLE


class DiscreteFit(NamedTuple):
    """What a search of discrete values found, for every prediction.

    Attributes:
        points: ``(n, d)``, in [0, 1]: the mean of all candidates; RCC2's answer where the search gave up.
        candidates: ``(n,)``, int64: how many combinations of discrete values fit equally well; 0 where it gave up.
            Where they are equally likely, ``log2`` of it is what is left to ask of the discrete columns, in bits.
        complete: ``(n,)``, bool: there are no more candidates than these.
        mismatch: ``(n,)``: by how much the best one misses its equations beyond their error: a sum over the equations,
            each divided by the length of its row of A; NaN where the search gave up. Above 1e-9 nothing fits: a record
            whose values are other ones, or noise.
        enumerated: Whether all combinations were covered, but for predictions that none of them fits and several
            equations are of; else integer programs were solved.
    """

    points: Tensor
    candidates: Tensor
    complete: Tensor
    mismatch: Tensor
    enumerated: bool

    @property
    def gave_up(self) -> Tensor:
        """Where nothing was found in time, ``(n,)`` bool."""
        return self.candidates == 0


def discrete_search(
    A: Tensor,
    b: Tensor,
    alphabets: Sequence[Alphabet],
    *,
    error: Tensor | None = None,
    most_combinations: int = MOST_COMBINATIONS,
    time_limit_s: float = 0.25,
    most_programs: int | None = None,
    most_candidates: int = 4,
) -> DiscreteFit:
    """Return the points nearest to ``A x = b`` among those whose columns have values of their alphabets.

    Columns without an alphabet are continuous, in [0, 1]. A *candidate* is a combination of discrete values that fits
    best: the sum over equations of ``max(|A x − b| − error, 0)`` over the row's length is least, up to 1e-9. With each
    goes the continuous rest that is nearest to ½ among those that fit it best, by least squares. The answer is the mean
    of the candidates, which has the least expected squared error if they are equally likely; where there is only one,
    it is that.

    Up to ``most_combinations`` combinations, and an eighth of it with continuous columns, all are looked at, for all
    predictions at once. Without continuous columns all are covered, too, where there are at most that many of each half
    of the columns: a sorted list of the second half's sums tells which meet one of the first half's. Beyond, and where
    several equations fit no such pair, each prediction is a mixed-integer linear program
    (:func:`scipy.optimize.milp`), which is solved again without the candidates that it gave, until others fit worse by
    1e-5, which is what its solver tells apart. One that is not solved in time, and one beyond ``most_programs``, is
    given up: its answer is RCC2's, of these equations and of those that columns of one category sum to one.

    Not promised: the truth, where several candidates fit or where its values are not in the alphabets; the same answer
    on a slower machine, where programs are given up.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the conclusion; the search is ours.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.
        alphabets: Of the discrete columns, each in at most one of them.
        error: How far each right side may be off, >= 0, ``(n, m)``; ``None``: not at all.
        most_combinations: Combinations up to which all are looked at, at least 0.
        time_limit_s: For the programs of one prediction, in seconds, at least 0.
        most_programs: Predictions that are solved by programs, spread evenly; ``None``: all of them.
        most_candidates: How many of them programs look for, at least 1.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, an error is negative, a limit is out of its range,
            or alphabets are none, as :func:`~splitvfl.leakage.alphabets.check_alphabets` says.

    >>> two = Alphabet((1,), torch.tensor([[0.0], [1.0]]))
    >>> discrete_search(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.1]]).double(), [two]).points.round(decimals=6)
    tensor([[0.1000, 1.0000]], dtype=torch.float64)
    """
    check_equations(A, b)
    alphabets = check_alphabets(alphabets, A.shape[1])
    _check_limits(most_combinations, time_limit_s, most_programs, most_candidates)
    search = _Search(A, b, torch.zeros_like(b) if error is None else error, alphabets)
    if search.combinations <= most_combinations // (_CONTINUOUS_COST if search.continuous else 1):
        return search.enumerated()
    limits = _Limits(time_limit_s, most_programs, most_candidates)
    halves = search.halves(most_combinations)
    return search.programmed(limits) if halves is None else search.paired(*halves, limits)


def _check_limits(combinations: int, time_limit_s: float, programs: int | None, candidates: int) -> None:
    if isinstance(combinations, bool) or not isinstance(combinations, int) or combinations < 0:
        raise ArgumentError(f"most_combinations must be a whole number of at least 0, got {combinations!r}")
    if not (time_limit_s >= 0 and math.isfinite(time_limit_s)):
        raise ArgumentError(f"time_limit_s must be finite and at least 0, got {time_limit_s!r}")
    if programs is not None and (isinstance(programs, bool) or not isinstance(programs, int) or programs < 0):
        raise ArgumentError(f"most_programs must be a whole number of at least 0, or None, got {programs!r}")
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
        raise ArgumentError(f"most_candidates must be a whole number of at least 1, got {candidates!r}")


class _Limits(NamedTuple):
    """Of integer programs."""

    time_s: float
    programs: int | None
    candidates: int


class _Fits(NamedTuple):
    """Discrete values of some predictions with the continuous rest that fits them best.

    Attributes:
        record: ``(s,)``, int64: of which prediction each is.
        points: ``(s, d)``.
        mismatch: ``(s,)``.
    """

    record: Tensor
    points: Tensor
    mismatch: Tensor


class _Search:
    """Equations with rows of unit length, and which columns are discrete."""

    def __init__(self, A: Tensor, b: Tensor, error: Tensor, alphabets: Sequence[Alphabet]) -> None:
        if error.shape != b.shape or not bool(torch.isfinite(error).all()) or bool((error < 0).any()):
            raise ArgumentError(f"expected errors >= 0 and finite, of the shape of b, {tuple(b.shape)}")
        lengths = torch.linalg.vector_norm(A.double(), dim=1)
        lengths = torch.where(lengths > 0, lengths, 1.0)
        self._rows = A.double() / lengths.unsqueeze(1)
        self._right, self._error = (one.double() / lengths for one in (b, error))
        self._alphabets = [Alphabet(one.places, one.values.to(A.device)) for one in alphabets]
        self._places = [place for one in alphabets for place in one.places]
        self._rest = [place for place in range(A.shape[1]) if place not in set(self._places)]

    @property
    def combinations(self) -> int:
        """How many combinations of discrete values there are."""
        return _combinations(self._alphabets)

    @property
    def continuous(self) -> bool:
        """Whether there are continuous columns."""
        return bool(self._rest)

    def enumerated(self) -> DiscreteFit:
        """Look at all combinations, for all predictions."""
        values = _all_values(self._alphabets, self._rows)
        found = self._in_pieces(lambda right, error: self._looked_at(values, right, error), len(values))
        return DiscreteFit(found[0], found[1], torch.ones_like(found[1], dtype=torch.bool), found[2], True)

    def _in_pieces(self, solve: Callable[[Tensor, Tensor], list[Tensor]], combinations: int) -> list[Tensor]:
        """Return points, numbers of candidates and mismatches, a few predictions at a time."""
        m, d = self._rows.shape
        both = torch.cat([self._right, self._error], dim=1)
        like = [both.new_empty(d), both.new_empty((), dtype=torch.int64), both.new_empty(())]
        return in_pieces(
            lambda part: solve(part[:, :m], part[:, m:]), both, entries=combinations * max(m, 1), like=like
        )

    def halves(self, most: int) -> tuple[list[Alphabet], list[Alphabet]] | None:
        """Return the alphabets in two halves of at most so many combinations each; ``None`` if there are none."""
        first: list[Alphabet] = []
        second: list[Alphabet] = []
        for one in sorted(self._alphabets, key=lambda one: len(one.values), reverse=True):
            min(first, second, key=_combinations).append(one)
        fit = max(_combinations(first), _combinations(second)) <= most
        return (first, second) if fit and second and not self._rest and len(self._rows) else None

    def paired(self, first: list[Alphabet], second: list[Alphabet], limits: _Limits) -> DiscreteFit:
        """Look at all combinations, each half's sums listed once; several equations may leave some to programs."""
        self._alphabets = [*first, *second]
        self._places = [place for one in self._alphabets for place in one.places]
        one, other = (_all_values(half, self._rows) for half in (first, second))
        points, candidates, mismatch = self._in_pieces(
            lambda right, error: self._paired(one, other, right, error), len(one) * _PAIRS_TO_EXPECT
        )
        unmet = (candidates == 0) | ((mismatch > _TIE) & (len(self._rows) > 1))
        complete = torch.ones_like(unmet)
        if bool(unmet.any()):
            others = self.programmed(limits, unmet)
            points[unmet], candidates[unmet] = others.points[unmet], others.candidates[unmet]
            complete[unmet], mismatch[unmet] = others.complete[unmet], others.mismatch[unmet]
        return DiscreteFit(points, candidates, complete, mismatch, True)

    def _paired(self, first: Tensor, second: Tensor, right: Tensor, error: Tensor) -> list[Tensor]:
        # Any equation will do that is not all zeros; the others are looked at then.
        rows, width = self._rows[:, self._places], first.shape[1]
        at = int(torch.linalg.vector_norm(rows, dim=1).argmax())
        sums = first @ rows[at, :width], second @ rows[at, width:]
        pairs = closest_pairs(*sums, right[:, at], error[:, at], tie=_TIE)
        values = torch.cat([first[pairs.first], second[pairs.second]], dim=1)
        fits = self._completed(pairs.record, values, right[pairs.record], error[pairs.record])
        return list(_answered(fits, len(right)))

    def _looked_at(self, values: Tensor, right: Tensor, error: Tensor) -> list[Tensor]:
        least = self._least_mismatch(values, right, error)
        if not self._rest or len(self._rows) == 1:
            # It is attained: of a single equation by the continuous columns, else there is nothing to choose.
            kept = least <= least.amin(dim=1, keepdim=True) + _TIE
        else:
            kept = least <= _TIE
        fits = self._fitted(values, kept, right, error)
        best = _best(fits, len(right))
        unmet = (best > _TIE) & ~kept.all(dim=1)
        if self._rest and len(self._rows) > 1 and bool(unmet.any()):
            # None of those that might have fitted does: any of the others may be nearer.
            others = self._fitted(values, unmet.unsqueeze(1) & ~kept, right, error)
            fits = _Fits(*(torch.cat(pair) for pair in zip(fits, others, strict=True)))
        return list(_answered(fits, len(right)))

    def _least_mismatch(self, values: Tensor, right: Tensor, error: Tensor) -> Tensor:
        """Return below which mismatch nothing in the box can be, each equation by itself, ``(n, c)``."""
        rest = self._rows[:, self._rest]
        low, high = rest.clamp(max=0.0).sum(dim=1), rest.clamp(min=0.0).sum(dim=1)
        left = right.unsqueeze(1) - values @ self._rows[:, self._places].T
        slack = error.unsqueeze(1)
        return ((left - high - slack).clamp(min=0.0) + (low - left - slack).clamp(min=0.0)).sum(dim=2)

    def _fitted(self, values: Tensor, kept: Tensor, right: Tensor, error: Tensor) -> _Fits:
        """Return these combinations, ``kept (n, c)``, with the continuous columns that fit them best."""
        record, combination = kept.nonzero(as_tuple=True)
        return self._completed(record, values[combination], right[record], error[record])

    def _completed(self, record: Tensor, values: Tensor, right: Tensor, error: Tensor) -> _Fits:
        points = right.new_empty(len(record), self._rows.shape[1])
        points[:, self._places] = values
        if self._rest:
            rest = self._rows[:, self._rest]
            left = right - values @ self._rows[:, self._places].T
            found = nearest_solution(rest, left, 0.5).points
            # Where the equations are known to an interval only, the nearest fit to its middle need not lie in it.
            off = ((left - found @ rest.T).abs() > error + _TIE).any(dim=1) & (error > 0).any(dim=1)
            if bool(off.any()):
                found[off] = rcc2_within(rest, left[off], error[off])
            points[:, self._rest] = found
        missed = ((points @ self._rows.T - right).abs() - error).clamp(min=0.0).sum(dim=1)
        return _Fits(record, points, missed)

    def programmed(self, limits: _Limits, wanted: Tensor | None = None) -> DiscreteFit:
        """Solve programs, prediction by prediction, and complete what they found as the enumeration does.

        Args:
            limits: Of the programs.
            wanted: Which predictions, ``(n,)`` bool; others are given up. Default: all.
        """
        n, device = len(self._right), self._rows.device
        program = Program(self._rows, self._alphabets, self._rest)
        places = torch.arange(n) if wanted is None else wanted.cpu().nonzero().flatten()
        tried = len(places) if limits.programs is None else min(len(places), limits.programs)
        spread = torch.linspace(0, len(places) - 1, tried, dtype=torch.float64).round().long()
        asked = places[spread].tolist() if tried else []
        records, chosen = [], []
        proven, complete = (torch.zeros(n, dtype=torch.bool, device=device) for _ in range(2))
        for record in asked:
            found = program.solved(
                self._right[record], self._error[record], time_limit_s=limits.time_s, most=limits.candidates
            )
            records += [record] * len(found.values)
            chosen += found.values
            proven[record], complete[record] = found.proven, found.complete
        at = torch.tensor(records, dtype=torch.int64, device=device)
        values = torch.stack(chosen) if chosen else self._rows.new_empty(0, len(self._places))
        fits = self._completed(at, values.to(device), self._right[at], self._error[at])
        points, candidates, mismatch = _answered(fits, n)
        # No other values can be nearer than what fits, whether or not a program was ended.
        lost = ~(proven | (mismatch <= _TIE))
        if wanted is not None:
            lost &= wanted
        if bool(lost.any()):
            points[lost] = self._relaxed(lost)
        return DiscreteFit(
            points,
            candidates.masked_fill(lost, 0),
            complete & ~lost,
            mismatch.masked_fill(lost, math.nan),
            False,
        )

    def _relaxed(self, lost: Tensor) -> Tensor:
        """Return RCC2's answers, of the equations and of the sums that all values of an alphabet have."""
        rows, right, error = [self._rows], [self._right[lost]], [self._error[lost]]
        for one in self._alphabets:
            sums = one.values.sum(dim=1)
            if len(one.places) > 1 and bool((sums == sums[0]).all()):
                row = self._rows.new_zeros(1, self._rows.shape[1])
                row[0, list(one.places)] = 1.0
                rows.append(row)
                right.append(sums[:1].expand(len(right[0]), 1))
                error.append(torch.zeros_like(right[-1]))
        return rcc2_within(torch.cat(rows), torch.cat(right, dim=1), torch.cat(error, dim=1))


def _combinations(alphabets: Sequence[Alphabet]) -> int:
    return math.prod(len(one.values) for one in alphabets)


def _all_values(alphabets: Sequence[Alphabet], like: Tensor) -> Tensor:
    """Return every combination of their values, ``(c, f)``, on the device of ``like``."""
    counts = [torch.arange(len(one.values), device=like.device) for one in alphabets]
    chosen = torch.cartesian_prod(*counts).reshape(_combinations(alphabets), len(counts))
    return torch.cat([one.values[chosen[:, at]] for at, one in enumerate(alphabets)], dim=1)


def _best(fits: _Fits, count: int) -> Tensor:
    """Return each prediction's least mismatch, infinite where there is none."""
    found = torch.full((count,), math.inf, dtype=torch.float64, device=fits.mismatch.device)
    return found.scatter_reduce(0, fits.record, fits.mismatch, "amin")


def _answered(fits: _Fits, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of each prediction's candidates, their number, and their mismatch."""
    best = _best(fits, count)
    tied = fits.mismatch <= best[fits.record] + _TIE
    record = fits.record[tied]
    candidates = torch.bincount(record, minlength=count)
    sums = fits.points.new_zeros(count, fits.points.shape[1]).index_add_(0, record, fits.points[tied])
    return sums / candidates.clamp(min=1).unsqueeze(1), candidates, best


class DiscreteSearchAttack:
    """Estimate a party's features by searching the values that its columns can take.

    The attacker is assumed to know these values, their alphabets: which columns are one category, and which values
    occur among the training records. Promises, for records with such values and equations without error: where there
    is one candidate only and no continuous column, the truth. How many candidates there were is said beside its
    figures, and on how many predictions it gave up.

    In a file: ``attacks: [{name: discrete-search, time_limit_s: 1.0}]``

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the conclusion; see
    :func:`discrete_search`.

    Args:
        most_combinations: Combinations up to which all are looked at, at least 0; with continuous columns an
            eighth of it, and without them as many of each half of the columns.
        time_limit_s: For the integer programs of one prediction, where there are more, in seconds, at least 0.
        most_programs: Predictions of a view that are solved by programs; the rest is given up.
        most_candidates: How many of them programs look for, at least 1.

    Raises:
        ArgumentError: If a limit is out of its range.
    """

    name: ClassVar[str] = "discrete-search"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"alphabets", "equations"})

    def __init__(
        self,
        *,
        most_combinations: int = MOST_COMBINATIONS,
        time_limit_s: float = 0.25,
        most_programs: int = 200,
        most_candidates: int = 4,
    ) -> None:
        _check_limits(most_combinations, time_limit_s, most_programs, most_candidates)
        self._limits = (most_combinations, time_limit_s, most_programs, most_candidates)
        self.note = ""

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate, and keep in ``note`` what there is to say of it.

        Args:
            view: Its ``equations`` and ``alphabets`` are read.

        Returns:
            ``(n, d)``, float64, in [0, 1].

        Raises:
            AttackRefused: If no column has an alphabet: there is nothing to search.
        """
        (A, b, error), alphabets = view.equations, view.alphabets
        if not alphabets:
            raise AttackRefused("no column is known to have few values: there is nothing to search")
        combinations, limit, programs, candidates = self._limits
        fit = discrete_search(
            A,
            b,
            alphabets,
            error=error,
            most_combinations=combinations,
            time_limit_s=limit,
            most_programs=programs,
            most_candidates=candidates,
        )
        self.note = _note(fit, f"at most {programs} predictions, {limit:g} s each")
        return fit.points


def _note(fit: DiscreteFit, limits: str) -> str:
    total, lost = len(fit.candidates), int(fit.gave_up.sum())
    found = fit.candidates[~fit.gave_up]
    said = ["all combinations looked at" if fit.enumerated else f"integer programs for {limits}"]
    if len(found):
        single = int(((fit.candidates == 1) & fit.complete).sum())
        said.append(f"one candidate alone for {single} of {total} predictions")
        if int(found.max()) > 1:
            most = f"{int(found.max())}{'' if bool(fit.complete[~fit.gave_up].all()) else ' or more'}"
            said.append(f"else their mean, of {int(found.median())} in the median and up to {most}")
        unmet = int((fit.mismatch > _TIE).sum())
        if unmet:
            said.append(f"no values fit for {unmet}, and the nearest are answered")
    if lost:
        programs = f" by integer programs for {limits}" if fit.enumerated else ""
        said.append(f"gave up on {lost} of {total}{programs}, where RCC2 is answered")
    return ", ".join(said)
