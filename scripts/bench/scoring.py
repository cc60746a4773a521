"""What it costs that another party computes the scores: time and bytes of a call, beside the label party's own.

Three parties with logistic regression in one process, each call from the keys to the scores: what lies between machines
is not in it. Calls of all roles are interleaved, and CPU time is counted, which other work on the machine leaves alone.
"""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median

import torch

from scripts.bench.measuring import Result
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.exchange.prediction import predict_records
from splitvfl.exchange.scoring import ACTIVE, COORDINATOR
from splitvfl.messaging.messages import Message
from splitvfl.models import Linear, LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty

BANK, TELECOM, SHOP = "bank", "telecom", "shop"
ROLES = {ACTIVE: "the label party", COORDINATOR: "a coordinator", TELECOM: "a passive party"}
SIZES, COLUMNS = (1, 256, 4096), 10
CALLS, QUICK_CALLS = 51, 5


def roles(quick: bool) -> list[Result]:
    """Return a row of milliseconds and one of bytes for each role and number of records in a call."""
    calls = QUICK_CALLS if quick else CALLS
    results = []
    active, passives = _parties()
    for rows in SIZES:
        parties = (active, *passives.values())
        records = {party.name: party.data.test.rows(torch.arange(rows)) for party in parties}
        took: dict[str, list[float]] = defaultdict(list)
        crossed: dict[str, int] = {}
        for _ in range(calls):
            for scores_by in ROLES:
                sizes: list[int] = []

                def weigh(message: Message, sizes: list[int] = sizes) -> None:
                    sizes.append(message.payload.nbytes)

                started = time.process_time()
                predict_records(active, passives, records, scores_by=scores_by, record=weigh)
                took[scores_by].append((time.process_time() - started) * 1e3)
                crossed[scores_by] = sum(sizes)
        what = "1 record" if rows == 1 else f"{rows} records"
        for scores_by, who in ROLES.items():
            note = f"CPU time, median of {calls} interleaved calls, three parties in one process"
            results += [
                Result(f"scores by {who}, {what} a call", median(took[scores_by]), "ms", None, note=note),
                Result(f"scores by {who}, {what} a call, sent", crossed[scores_by], "bytes", None, note="payloads"),
            ]
    return results


def _parties() -> tuple[ActiveParty, dict[str, PassiveParty]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        data = {name: _data(name, max(SIZES)) for name in (BANK, TELECOM, SHOP)}
        active = ActiveParty(data[BANK], LinearTop(2, active_inputs=COLUMNS))
        passives = {name: PassiveParty(data[name], Linear(COLUMNS)) for name in (TELECOM, SHOP)}
    return active, passives


def _data(name: str, rows: int) -> PartyData:
    ids = torch.arange(rows)
    records = Records(ids, Columns.of(torch.randn(rows, COLUMNS)), (ids % 2).float() if name == BANK else None)
    names = tuple(f"{name}{number}" for number in range(COLUMNS))
    return PartyData(name, names, names, (), records, records)
