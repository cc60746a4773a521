"""Feature attack on a party with one feature, which sends multiples of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, assert_never

import numpy as np
import numpy.typing as npt
import scipy
import torch
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from torch import Tensor

from splitvfl.attacks.residue_solving import solve_residues
from splitvfl.errors import ArgumentError
from splitvfl.learning.losses import Approximation
from splitvfl.learning.sigmoid_coefficients import MINIMAX_CUBIC, MINIMAX_LINEAR, gradient_scale

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

# Share that a fit by one feature may leave over of logits without noise. Roundings leave 1e-12; two features leave 1e-4
# to tenths, the less the more slowly their weights turn.
_LEFT_OVER = 1e-6
# Rounds of alternating least squares on noisy logits.
_NOISY_ROUNDS = 100


class SingleFeature(NamedTuple):
    """Records, features and weights as recovered; their sign is one guess for all of them.

    Attributes:
        ids: Ids of all records that were seen, ``(n,)``, int64, ascending.
        features: The other party's feature of each, ``(n,)``, float64; NaN where it is not linked to the rest.
        weights: The other party's weight before each observed step, ``(steps,)``, float64; NaN where unknown.
    """

    ids: Tensor
    features: Tensor
    weights: Tensor


class ObservedBatch(NamedTuple):
    """One step as the attacker holds it.

    Attributes:
        ids: Record ids, ``(s,)``, int64, each once.
        columns: The attacker's own columns, ``(s, d)`` of rank s.
        gradient: ``(d,)``: the sum, not the mean, over the batch of residue times row.
        own_logits: The attacker's own part of the logits, ``(s,)``, before the step.
        labels: ``(s,)``, each −1 or +1.
        eta: Learning rate of the step, above 0.
    """

    ids: Tensor
    columns: Tensor
    gradient: Tensor
    own_logits: Tensor
    labels: Tensor
    eta: float


class ObservedParts(NamedTuple):
    """One step of which the attacker knows the other party's part of each logit.

    Attributes:
        ids: Record ids, ``(s,)``, int64, each once.
        parts: The other party's part of each logit, ``(s,)``: its feature times its weight; NaN where unknown.
        pulls: What the other party multiplies its feature with and adds up to the gradient of its weight, ``(s,)``; NaN
            where unknown.
        eta: Learning rate of the step, above 0; ``None``: it is not known, or the weight takes another step.
    """

    ids: Tensor
    parts: Tensor
    pulls: Tensor
    eta: float | None


@dataclass(frozen=True)
class _Step:
    """One batch: records, pulls, the other party's logits (NaN where unknown), and how small is nothing of either."""

    ids: Places
    pulls: Floats
    logits: Floats
    eta: float
    noise: float
    pull_noise: float


def recover_single_feature(
    batches: Iterable[ObservedBatch],
    *,
    approximation: Approximation = "taylor",
    other_features: int = 1,
    intercept: float | None = None,
    weight_decay: float = 0.0,
    tolerance: float = 1e-9,
) -> SingleFeature:
    """Return the one feature of another party, up to one sign, from the gradients of the attacker's own columns.

    Each batch: the residues f follow from the attacker's ``Xᵀ f`` for s up to the rank
    (:func:`~splitvfl.attacks.residue_solving.solve_residues`), the logit z from f and the label, and the other party's
    part ``g_i = w x_i`` from ``z_i`` less the attacker's own. In a batch the g are the features up to one factor w.
    Batches that share a record with ``x ≠ 0`` have their factors linked; two to three epochs link everything, and more
    steps may link more. The scale comes from the other party's own update: between step a and a later step b its weight
    changed by what the attacker can add up, ``x² = c (g_a − g_b) / Σ_{a≤t<b} (η_t / s_t) Σ_j f_j r_j`` with ``x_j = r_j
    x`` and c = 4 for Taylor, 1 for the others; the pair of steps with the largest change is used.

    The label party attacks a passive party with one column in this way. A passive party that knows the labels attacks a
    label party with one column alike (remark 4.9): ``intercept`` takes the label party's intercept into account.

    It needs every step from the first observed one on, in order, of plain gradient descent with the η and the weight
    decay given. It cannot work against two or more features, which are determined up to an orthogonal map only
    (:func:`~splitvfl.attacks.orthogonal_twin.orthogonal_twin`), nor, with several other parties, against their sum.
    Logits are known with Taylor residues always; with ``minimax`` under the assumption that ``|z| ≤ 4.05``, without
    which they are ambiguous; with ``piecewise`` where ``0 < |f| < 1``, elsewhere the record gives nothing in that step;
    with ``exact`` until they saturate.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the feature attack and remark 4.9, with the
    scale's factor c corrected for residues other than Taylor's.

    Args:
        batches: Every step, in order. Residues that are known take the identity for columns.
        approximation: How residues were computed.
        other_features: How many features the other parties have together; only 1 is accepted.
        intercept: The other party's intercept before the first observed step, if it has one that is trained like a
            weight of the constant 1; ``None`` if it has none.
        weight_decay: Coefficient λ of the other party's L2 penalty, ``w ← w − η (gradient + λ w)``, at least 0.
        tolerance: Error of the residues in units of the batch's largest (or 1, if that is more), above 0: the other
            party's logits below it count as 0. Raise it to the fixed-point error under encryption.

    Returns:
        Ids, features up to one sign, and the other party's weights.

    Raises:
        ArgumentError: If an argument is outside its range, shapes differ, an id comes twice in a batch, a value is not
            finite, a batch has more records than the columns' rank, nothing was observed, the other party's logits are
            0 throughout, no record links two steps between which all records are known, the logits are not those of
            one feature, or its update contradicts them (a quotient below 0).
    """
    _check_settings(other_features, intercept, weight_decay, tolerance)
    c = gradient_scale(approximation)
    steps: list[_Step] = []
    for batch in batches:
        residues = solve_residues(batch.columns, batch.gradient)
        _check_batch(batch, residues, weight_decay)
        found, known = _numbers(residues), _numbers(batch.labels)
        noise = tolerance * max(1.0, float(np.abs(found).max()))
        logits = logits_of_residues(found, known, approximation=approximation, noise=noise)
        logits -= _numbers(batch.own_logits) + (intercept or 0.0)
        unit = c * found.size
        ids = batch.ids.cpu().numpy().astype(np.int64)
        steps.append(_Step(ids, found / unit, logits, float(batch.eta), noise, noise / unit))
        if intercept is not None:
            intercept -= batch.eta * float(found.mean()) / c
    seen = _seen(steps)
    ratios, factors = _refined(seen, *_linked(seen))
    _check_one_feature(seen, ratios, factors)
    return _scaled(seen, ratios, factors, math.sqrt(_squared_scale(seen, ratios, factors, weight_decay)))


def single_feature_of_parts(steps: Iterable[ObservedParts], *, tolerance: float = 1e-9) -> tuple[SingleFeature, str]:
    """Return the one feature of another party from its parts of the logits in every step, noisy ones too.

    As :func:`recover_single_feature`, whatever the protocol: the attacker knows the parts, and what their owner's
    weight learns from. Of noisy parts it is the rank-one fit, by alternating least squares.

    Args:
        steps: Every step, in order.
        tolerance: Error of parts and pulls in units of a step's largest, above 0: what is below counts as 0.

    Returns:
        What was recovered, and why its scale is not known; empty: it is. Without a scale known features have a mean
        square of 1.

    Raises:
        ArgumentError: If an argument is outside its range, shapes differ, an id comes twice in a step, nothing was
            observed, or all parts are 0 or unknown.
    """
    _check_settings(1, None, 0.0, tolerance)
    found, known_rates = [], True
    for one in steps:
        shapes = [tuple(tensor.shape) for tensor in (one.ids, one.parts, one.pulls)]
        _check_ids(one.ids, shapes, "ids, parts and pulls")
        parts, pulls = _numbers(one.parts), _numbers(one.pulls)
        known_rates &= one.eta is not None
        sizes = [tolerance * float(np.nan_to_num(np.abs(values)).max(initial=0.0)) for values in (parts, pulls)]
        found.append(_Step(one.ids.cpu().numpy().astype(np.int64), pulls, parts, one.eta or 0.0, *sizes))
    seen = _seen(found)
    ratios, factors = _refined(seen, *_linked(seen), rounds=_NOISY_ROUNDS)
    why = "" if known_rates else "the partner's weight takes no plain gradient step at a rate that is known here"
    scale = 1.0 / math.sqrt(float(np.nanmean(ratios**2)))
    if known_rates:
        try:
            scale = math.sqrt(_squared_scale(seen, ratios, factors, 0.0))
        except ArgumentError as error:
            why = str(error)
    return _scaled(seen, ratios, factors, scale), why


def _scaled(seen: _Seen, ratios: Floats, factors: Floats, scale: float) -> SingleFeature:
    # Of the two signs, the one with which the largest feature is positive.
    scale = math.copysign(scale, ratios[np.nanargmax(np.abs(ratios))])
    return SingleFeature(
        torch.from_numpy(seen.ids), torch.from_numpy(ratios * scale), torch.from_numpy(factors / scale)
    )


def _seen(steps: list[_Step]) -> _Seen:
    if not steps:
        raise ArgumentError("no step was observed")
    return _Seen(steps)


def logits_of_residues(residues: Floats, labels: Floats, *, approximation: Approximation, noise: float) -> Floats:
    """Return the logit z of each residue, NaN where it is not determined.

    - ``taylor``: ``z = f + 2y``
    - ``minimax``: the root u with ``|u| ≤ 4.05`` of ``−0.004 u³ + 0.197 u = f + y/2``; there are up to three
    - ``piecewise``: ``z = f + y/2`` where ``0 < |f| < 1``
    - ``exact``: ``z = −y logit(−y f)`` where ``0 < −y f < 1``

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the feature attack, per approximation.

    Args:
        residues: f, ``(s,)``.
        labels: ``(s,)``, each −1 or +1.
        approximation: How residues were computed.
        noise: Error of the residues, which decides what counts as 0 or 1.

    Returns:
        ``(s,)``.
    """
    sizes = -labels * residues
    inside = (sizes > noise) & (sizes < 1.0 - noise)
    match approximation:
        case "taylor":
            return residues + 2.0 * labels
        case "minimax":
            return _minimax_root(residues + 0.5 * labels)
        case "piecewise":
            return np.where(inside, residues + 0.5 * labels, np.nan)
        case "exact":
            shares = np.where(inside, sizes, 0.5)
            return np.where(inside, -labels * (np.log(shares) - np.log1p(-shares)), np.nan)
        case _:
            assert_never(approximation)


def _minimax_root(values: Floats) -> Floats:
    """Return the middle root of ``CUBIC u³ + LINEAR u = value``, NaN beyond the cubic's turning points."""
    turning = math.sqrt(-MINIMAX_LINEAR / (3.0 * MINIMAX_CUBIC))
    peak = 2.0 / 3.0 * MINIMAX_LINEAR * turning
    shares = np.where(np.abs(values) <= peak, values / peak, np.nan)
    # With u = 2 T sin θ the cubic is peak · sin 3θ.
    return np.asarray(2.0 * turning * np.sin(np.arcsin(shares) / 3.0))


class _Seen:
    """Everything observed as flat arrays, one entry per record and step."""

    def __init__(self, steps: list[_Step]) -> None:
        self.ids, self.record = np.unique(np.concatenate([step.ids for step in steps]), return_inverse=True)
        self.count, self.records = len(steps), self.ids.size
        self.sizes = np.array([step.ids.size for step in steps])
        self.etas = np.array([step.eta for step in steps])
        self.step = np.repeat(np.arange(self.count), self.sizes)
        self.logits = np.concatenate([step.logits for step in steps])
        self.pulls = np.concatenate([step.pulls for step in steps])
        self.noise, pull_noise = (
            np.repeat(np.array(values), self.sizes)
            for values in ([step.noise for step in steps], [step.pull_noise for step in steps])
        )
        # A pull that is not known counts.
        self.pulled = ~(np.abs(self.pulls) <= pull_noise)

    def pulls_in(self, ratios: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return ``Σ_j pull_j r_j`` of every step, and at which steps a ratio or a pull is unknown that counts."""
        products = ratios[self.record] * self.pulls
        missing = np.isnan(products) & self.pulled
        sums = np.bincount(self.step, np.nan_to_num(products), self.count).astype(np.float64)
        return sums, np.bincount(self.step, missing, self.count) > 0


def _linked(seen: _Seen) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the factor of every step up to a common one, and which steps are linked to most records.

    Steps and records are the nodes of a graph, and every logit that is not 0 an edge; a spanning tree of large logits,
    found by union-find, carries the factors from step to step with the smallest relative errors.
    """
    used = np.flatnonzero(np.abs(seen.logits) > seen.noise)  # NaN is not
    if used.size == 0:
        raise ArgumentError("the other party's logits are 0 at all steps: its weight, or its feature, is")
    rows, columns, logits = seen.step[used], seen.count + seen.record[used], seen.logits[used]
    nodes = seen.count + seen.records
    tree = minimum_spanning_tree(
        scipy.sparse.coo_array((1.0 / np.abs(logits), (rows, columns)), shape=(nodes, nodes)).tocsr()
    )
    _, component = connected_components(tree, directed=False)
    largest = np.bincount(component[seen.count :]).argmax()
    inside = component[: seen.count] == largest
    order, before = breadth_first_order(tree, int(np.flatnonzero(inside)[0]), directed=False)
    values = np.ones(nodes)
    sent = dict(zip(zip(rows.tolist(), columns.tolist(), strict=True), logits.tolist(), strict=True))
    for node, parent in zip(order[1:].tolist(), before[order[1:]].tolist(), strict=True):
        values[node] = sent[min(node, parent), max(node, parent)] / values[parent]
    return values[: seen.count], inside


def _refined(seen: _Seen, factors: Floats, inside: npt.NDArray[np.bool_], *, rounds: int = 1) -> tuple[Floats, Floats]:
    """Return ratios ``(n,)`` and factors ``(steps,)`` that fit the linked steps' logits best, NaN where unknown."""
    used = np.flatnonzero(inside[seen.step] & ~np.isnan(seen.logits))
    steps, records, logits = seen.step[used], seen.record[used], seen.logits[used]
    ratios = _fitted(records, factors[steps], logits, seen.records)
    for _ in range(rounds):
        factors = _fitted(steps, ratios[records], logits, seen.count)
        ratios = _fitted(records, factors[steps], logits, seen.records)
    return ratios, factors


def _check_one_feature(seen: _Seen, ratios: Floats, factors: Floats) -> None:
    """Refuse logits that are not multiples of one feature of each record."""
    there = np.flatnonzero(~np.isnan(factors[seen.step] * ratios[seen.record] * seen.logits))
    logits = seen.logits[there]
    left = logits - factors[seen.step[there]] * ratios[seen.record[there]]
    if np.linalg.norm(left) > _LEFT_OVER * np.linalg.norm(logits) + np.linalg.norm(seen.noise[there]):
        raise ArgumentError(
            "the other party's logits are not multiples of one feature per record: it has more features, which are "
            "determined up to an orthogonal map only, or what was observed is noisy"
        )


def _fitted(places: Places, regressors: Floats, targets: Floats, count: int) -> Floats:
    """Return the least-squares coefficient of every place's entries, NaN at places without any."""
    squares = np.bincount(places, regressors**2, count)
    products = np.bincount(places, regressors * targets, count)
    fitted: Floats = np.divide(products, squares, out=np.full(count, np.nan), where=squares > 0)
    return fitted


def _squared_scale(seen: _Seen, ratios: Floats, factors: Floats, weight_decay: float) -> float:
    """Return κ² with features ``κ ratios`` and weights ``factors / κ``, from the largest change of the weight."""
    sums, unknown = seen.pulls_in(ratios)
    # Decay alone turns w_0 into w_0 · decays[t]; without it the rest is a plain sum.
    decays = np.concatenate([[1.0], np.cumprod(1.0 - seen.etas * weight_decay)])
    moved = np.concatenate([[0.0], np.cumsum(seen.etas * sums / decays[1:])])[:-1]
    stretch = np.concatenate([[0], np.cumsum(unknown)])[:-1]
    first, last = _largest_change(factors / decays[:-1], stretch)
    change = factors[first] / decays[first] - factors[last] / decays[last]
    due = moved[last] - moved[first]
    if change * due <= 0:
        raise ArgumentError(
            f"between steps {first} and {last} the other party's weight moved against its gradient: residues, "
            "labels, learning rates or the approximation are not those of this training"
        )
    return float(change / due)


def _largest_change(values: Floats, stretch: npt.NDArray[Any]) -> tuple[int, int]:
    """Return the earlier and the later of the two steps of one stretch whose values differ most."""
    best: tuple[float, int, int] = (0.0, -1, -1)
    for own in np.unique(stretch):
        steps = np.flatnonzero((stretch == own) & ~np.isnan(values))
        if steps.size > 1:
            low, high = sorted((int(steps[values[steps].argmin()]), int(steps[values[steps].argmax()])))
            best = max(best, (abs(values[low] - values[high]), low, high))
    if best[0] == 0:
        raise ArgumentError(
            "no scale: there are no two linked steps with all records between them linked too; observe more epochs"
        )
    return best[1], best[2]


def _numbers(values: Tensor) -> Floats:
    return np.array(values.detach().cpu().numpy(), dtype=np.float64)


def _check_settings(other_features: int, intercept: float | None, weight_decay: float, tolerance: float) -> None:
    if other_features != 1:
        raise ArgumentError(
            f"the other party has {other_features} features; only a single one is determined (up to its sign), two or "
            "more up to an orthogonal map only: see orthogonal_twin"
        )
    if intercept is not None and not math.isfinite(intercept):
        raise ArgumentError(f"intercept must be finite, got {intercept!r}")
    if not (math.isfinite(weight_decay) and weight_decay >= 0):
        raise ArgumentError(f"weight_decay must be finite and at least 0, got {weight_decay!r}")
    if not 0 < tolerance < 0.1:
        raise ArgumentError(f"tolerance must lie between 0 and 0.1, got {tolerance!r}")


def _check_batch(batch: ObservedBatch, residues: Tensor, weight_decay: float) -> None:
    shapes = [tuple(tensor.shape) for tensor in (batch.ids, residues, batch.own_logits, batch.labels)]
    _check_ids(batch.ids, shapes, "ids, residues, own logits and labels")
    if not torch.isfinite(batch.own_logits).all():
        raise ArgumentError("own_logits holds NaN or infinite values")
    if not (batch.labels.double().abs() == 1).all():
        raise ArgumentError("expected labels -1 and +1; a label in {0, 1} is 2 * label - 1 here")
    if not (math.isfinite(batch.eta) and batch.eta > 0 and batch.eta * weight_decay < 1):
        raise ArgumentError(f"eta must be finite, above 0, and below 1 / weight_decay, got {batch.eta!r}")


def _check_ids(ids: Tensor, shapes: list[tuple[int, ...]], what: str) -> None:
    if ids.dim() != 1 or len(set(shapes)) != 1:
        raise ArgumentError(f"expected {what} of one shape (s,), got {shapes}")
    different, given = ids.unique().numel(), ids.numel()
    if ids.is_floating_point() or different != given:
        raise ArgumentError(f"expected whole ids, each once in a batch, got {ids.dtype}, {different} of {given}")
