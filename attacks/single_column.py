"""A partner's only column from all steps of a training, by the label party: theorem 3.5."""

from __future__ import annotations

from typing import ClassVar, Final

import torch
from torch import Tensor

from splitvfl.attacks.residue_solving import solve_residues
from splitvfl.attacks.single_feature import ObservedParts, single_feature_of_parts
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import PartnerStep, Seat, Target, View

# Of numbers in float32, or in fixed point, in units of the largest: smaller ones count as 0.
_TOLERANCE: Final = 1e-6
_SHAPES: Final = (("ids", 0), ("columns", 1))


class SingleColumnAttack:
    """Reconstruct the only column of a partner with a linear model, from every step of the training.

    A partner with one column x sends ``w x`` of each record, one number w times all columns of the batch. A record that
    comes again links the numbers of two steps, and two or three epochs link all of them. How far w moves follows from
    what the label party sent, and gives the scale. One sign stays open. Under encryption the label party gets sums of
    the parts, one for each of its own columns and one for the intercept: as many as a batch has records determine every
    part. Adam and penalties leave one factor open too; the attack then assumes a mean square of 1, as ``data.scale:
    standard`` makes it.

    It knows no record's column, no weight and no model. Records that no step links to the others get the mean.

    Promises nothing of noisy parts: their rank-one fit by least squares is what it returns.

    In a file: ``attacks: [single-column]``

    Also called: single-feature, one-feature, theorem 3.5, single-feature reconstruction.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, lemmas 3.3 and 3.4, theorem 3.5; for every sigmoid.
    """

    name: ClassVar[str] = "single-column"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"partner_steps"})

    def __init__(self) -> None:
        self.note = ""

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``partner_steps`` are read.

        Returns:
            ``(n, 1)``, float64, of the records of ``view.ids``, up to one sign, and up to one factor where no step has
            a learning rate.

        Raises:
            AttackRefused: If no step determines the parts of its records, or these are 0 throughout.
        """
        steps = view.partner_steps
        observed = [_observed(one) for one in steps]
        if not any(bool(torch.isfinite(one.parts).any()) for one in observed):
            sizes, sums = (
                max((getattr(one, name).shape[place] for one in steps), default=0) for name, place in _SHAPES
            )
            raise AttackRefused(
                f"batches have up to {sizes:,} records, and {sums:,} sums of its own columns in each step do not "
                "determine the parts of so many"
            )
        try:
            found, why = single_feature_of_parts(observed, tolerance=_TOLERANCE)
        except ArgumentError as error:
            raise AttackRefused(str(error)) from error
        linked = torch.isfinite(found.features)
        notes = [] if not why else [f"the scale is not determined ({why}): a mean square of 1 is assumed"]
        if not bool(linked.all()):
            notes.append(f"{int((~linked).sum()):,} of {len(linked):,} records are not linked to the others")
        self.note = "; ".join(notes)
        values = torch.where(linked, found.features, found.features[linked].mean())
        ids = view.ids.cpu()
        places = torch.searchsorted(found.ids, ids).clamp_max(len(found.ids) - 1)
        there = found.ids[places] == ids
        return torch.where(there, values[places], values.mean()).unsqueeze(1).to(view.device)


def _observed(step: PartnerStep) -> ObservedParts:
    """Return a step with the partner's part of each logit solved for, where sums determine it; NaN where not."""
    unknown = torch.full_like(step.sent, torch.nan)
    parts = _solved(step.columns, step.received, unknown)
    pulls = step.sent
    if step.of_all.numel():
        pulls = pulls + step.part_weight * _solved(step.columns, step.of_all, unknown)
    return ObservedParts(step.ids, parts, pulls, step.eta)


def _solved(columns: Tensor, sums: Tensor, unknown: Tensor) -> Tensor:
    if not columns.shape[1]:
        return sums
    try:
        return solve_residues(columns, sums)
    except ArgumentError:  # more records than independent sums: this step determines none
        return unknown
