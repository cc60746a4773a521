"""Before the first step: do the parties hold the same records, in the same order, and the same settings?

What crosses is a count and a digest. The digest of ids that are easy to guess can be inverted by trying; parties
that train together hold the same ids anyway.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from splitvfl.data.columns import PartyData
from splitvfl.errors import ArgumentError, DataError
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.messaging.json_message import awaited_note, note, read_note
from splitvfl.wording import shown

KIND = "agreement"

_SAME_RECORDS = (
    ". All parties need the same records in the same order, split alike: the same alignment (splitvfl align), or files "
    "of equal ids in equal order, and the same test_fraction and split_seed"
)


def terms_of(data: PartyData, settings: Mapping[str, object]) -> dict[str, object]:
    """Return what must be equal at every party: counts and digests of its ids, and the agreed settings."""
    return {
        "training records": data.train.count,
        "test records": data.test.count,
        "order of the training ids": _digest(data.train.ids),
        "order of the test ids": _digest(data.test.ids),
        **settings,
    }


def agreed_settings(
    *,
    batch_size: int,
    block_rows: int,
    seed: int,
    evaluate_every: int,
    early_stopping: EarlyStopping | None,
    exchange: Mapping[str, object],
    autocast: torch.dtype | None,
    wire: torch.dtype | None,
) -> dict[str, object]:
    """Return the settings of a run that every party must have alike, by the names under which they are compared.

    Those of the exchange are its own (:meth:`splitvfl.exchange.base.Exchange.terms`).

    Raises:
        ArgumentError: If a dtype is neither bfloat16 nor ``None``.
    """
    stopping = early_stopping
    return {
        "batch size": batch_size,
        "rows in a block": block_rows,
        "seed of the order": seed,
        "epochs between evaluations": evaluate_every,
        "early stopping: patience": None if stopping is None else stopping.patience,
        "early stopping: min_delta": None if stopping is None else stopping.min_delta,
        "early stopping: validation_every": None if stopping is None else stopping.validation_every,
        **exchange,
        "autocast": _dtype_name("autocast", autocast, none="off"),
        "wire": _dtype_name("wire", wire, none="as computed"),
    }


def _dtype_name(setting: str, dtype: torch.dtype | None, *, none: str) -> str:
    # float16 would need a loss scaler: the gradient of a mean over 65 536 records lies below its smallest number.
    if dtype not in (None, torch.bfloat16):
        raise ArgumentError(f"{setting} must be torch.bfloat16 or None, got {dtype}")
    return none if dtype is None else "bf16"


def _digest(ids: Tensor) -> str:
    # Hashed where they lie: ids of a table on disk need not fit into memory.
    return hashlib.sha256(ids.cpu().contiguous().numpy().astype("<i8", copy=False).data).hexdigest()[:32]


def agreement(name: str, others: tuple[str, ...], terms: Mapping[str, object]) -> Half:
    """Return one party's half: it sends its terms to the others, and compares theirs with its own.

    Raises:
        DataError: If any term differs; every difference is named, with both values.
        ProtocolError: If what came are no terms.
    """
    send = tuple(note(name, other, KIND, 0, terms) for other in others)
    terms = read_note(send[0])  # as the others read them: a tuple arrives as a list
    inbox = yield Outbox(send=send, wait=tuple(awaited_note(other, KIND, 0) for other in others))
    for other in others:
        theirs = read_note(inbox[other])
        differing = [key for key in sorted({*terms, *theirs}) if terms.get(key) != theirs.get(key)]
        if differing:
            lines = "; ".join(
                f"{_plain(key)}: {name} has {_plain(terms.get(key))}, {other} has {_plain(theirs.get(key))}"
                for key in differing
            )
            advice = _SAME_RECORDS if any(key.startswith("order of ") for key in differing) else ""
            raise DataError(f"{name} and {other} do not agree: {lines}{advice}")


def _plain(value: object) -> str:
    """Return a name or a term as people write it; another party's text may hold anything, and is shown harmless."""
    return value if isinstance(value, str) and re.fullmatch(r"[\w .:-]{1,100}", value, re.ASCII) else shown(value)
