"""What is promised of a run, whatever its attacks read: one line for the head of a report."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, Context

from splitvfl.report.summary import RunSummary, SpentPrivacy

_THREE_DIGITS = Context(prec=3, rounding=ROUND_CEILING)


def promise(run: RunSummary) -> str:
    """Return in words what is promised of a run, or that nothing is.

    Where a privacy budget was counted, that is what all messages of the run cost: what noise does to a single message
    says less. Else it is what each defense promises, of a message or of the run.
    """
    if run.privacy:
        spent = "; ".join(_spent(run))
        if run.released:
            spent += ". That is of the training alone: predictions were sent since, which are not covered, and ended it"
        return f"{spent}. What that rests on and does not cover stands with the run's notes, as “Not covered”."
    if run.promised:
        return f"{'. '.join(run.promised)}."
    if run.traits.one_way and not run.defenses:
        return "no message of training depends on labels. No guarantee for features."
    if run.promised is None and run.defenses:
        return "not noted by the version that made this run; what is claimed stands with the run below."
    return "none. What messages reveal is known only from the attacks that were run."


def _spent(run: RunSummary) -> Iterator[str]:
    for one in run.privacy:
        if one.relation == "record":
            yield f"towards an outsider who reads every message, {_private(one)} in one record at all parties"
        else:
            senders, readers = " and ".join(one.senders), " and ".join(one.coalition)
            whose = f"one {one.relation} of its own"
            yield f"all that {senders} sends in the run is {_private(one)} in {whose} for {readers}"


def _private(one: SpentPrivacy) -> str:
    if one.epsilon is None:
        return "not differentially private with any finite ε"
    # As notes have it: what is a whole number of units but for rounding stays what it is.
    epsilon = float(_THREE_DIGITS.create_decimal(repr(one.epsilon * (1 - 1e-9))))
    return f"({epsilon:g}, {one.delta:g})-differentially private"
