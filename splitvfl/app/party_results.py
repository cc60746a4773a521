"""What one passive party could learn in a run, in figures: of an experiment, and of a trainer in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from splitvfl.exchange.base import Exchange
from splitvfl.party.attaching import label_guarantee
from splitvfl.party.party import ActiveParty
from splitvfl.report.party_result import PartyResult
from splitvfl.run.training import Training


def party_result(
    run: Training,
    active: ActiveParty,
    exchange: Exchange,
    name: str,
    *,
    epochs: int,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> PartyResult:
    """Return the figures of one passive party.

    Args:
        run: The run.
        active: The label owner.
        exchange: The protocol.
        name: The passive party's name.
        epochs: How often each record is used.
        more: What is known of it beside the figures of attacks, as :class:`PartyResult` takes it.
    """
    watch = run.watch
    found = PartyResult(
        attacks=watch.summaries(name),
        unavailable=dict(watch.unavailable[name]),
        measurements=measurements_of(run, name),
        canaries=watch.canaries(name),
        **more,
    )
    return replace(
        found.audited(watch.audits.get(name)),
        excess=watch.excess(name),
        randomised=watch.excess(name, randomised=True),
        knowledge_gain=watch.knowledge_gain(name),
        label_free=watch.label_free(name),
        guarantee=label_guarantee(active, name, epochs=epochs, own_part=exchange.own_part, account=run.account),
    )


def measurements_of(run: Training, party: str) -> dict[str, float]:
    """Return what the defenses of one party's messages logged, out of what all did."""
    prefix = f"{party}/"
    return {tag.removeprefix(prefix): value for tag, value in run.measurements.items() if tag.startswith(prefix)}
