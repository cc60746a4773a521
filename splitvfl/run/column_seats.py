"""Attacks in the label party's seat that look at every activation of the training, and who judges them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.exchange.base import Exchange
from splitvfl.hooks import Attack, hook_name, needs_of
from splitvfl.leakage.after_training import own_copy
from splitvfl.leakage.column_reading import ColumnReader, ColumnReading
from splitvfl.leakage.ridge import fit_ridge
from splitvfl.leakage.view_fields import in_words
from splitvfl.leakage.watching import Watch, unused
from splitvfl.learning.randomness import derive_seed
from splitvfl.party.party import ActiveParty, PassiveParty

_SHOWN = frozenset({"received_activation", "auxiliary", "partner_bottom"})


class ColumnSeats:
    """Attacks on passive parties' columns in the label party's seat, at every step of an experiment.

    Args:
        active: The label party.
        passives: The others by name: each is read by a copy of every attack.
        attacks: The attacks.
        watch: Where they are kept, and the reasons of those that could not be run.
        exchange: How a step is talked through.
        held_out: Places of training records that are in no batch.
        seed: Draws the records whose columns an attacker is assumed to know: the same for all attacks on a party.
    """

    def __init__(
        self,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        attacks: Sequence[Attack],
        *,
        watch: Watch,
        exchange: Exchange,
        held_out: Sequence[int] = (),
        seed: int,
    ) -> None:
        self._active, self._passives, self._watch = active, passives, watch
        self._among = _sent(active.data.train, held_out)
        for name, party in passives.items():
            party.sent_to.clear()  # of an earlier trainer
            for attack in attacks:
                why = _unavailable(attack, party, exchange)
                if why:
                    watch.unavailable[name][hook_name(attack)] = why
                else:
                    self._seat(party, copy.deepcopy(attack), derive_seed(seed, "known columns", name))

    def _seat(self, party: PassiveParty, attack: Attack, seed: int) -> None:
        name = unused(hook_name(attack), self._watch.readers[party.name])
        refused = partial(self._watch.unavailable[party.name].__setitem__, name)
        names = party.data.numeric_names
        options: dict[str, Any] = {"train": party.data.train, "among": self._among, "seed": seed, "refused": refused}
        reader = ColumnReader(attack, name=name, names=names, bottom=lambda: own_copy(party.bottom), **options)
        self._watch.readers[party.name][name] = reader

        def see(message: Tensor, batch: Records, step: int) -> None:
            reader.see(message, batch.columns.numeric, batch.ids, party=self._active.name, step=step)

        party.sent_to.append(see)

    def readings(self, party: str) -> list[ColumnReading]:
        """Return what was read of one party's columns, beside what the label party's own columns tell of them."""
        found = []
        for reader in self._watch.readers[party].values():
            reading = reader.reading()
            if reading is None and reader.unjudged:
                self._watch.unavailable[party][reader.name] = f"never judged: {reader.unjudged}"
            if reading is not None:
                found.append(replace(reading, without_messages=self._without_messages(party, reader)))
        return found

    def _without_messages(self, party: str, reader: ColumnReader) -> float | None:
        """Return the share of variance that ridge regression on the label party's own columns recovers.

        ``None`` where the attacker knows too few records, or all.
        """
        own, theirs = self._active.data.train, self._passives[party].data.train
        if not self._active.data.width:
            return 0.0
        if len(reader.known) < 2 or not len(reader.followed):
            return None
        known, judged = (
            (own.rows(rows).columns.numeric.cpu(), theirs.rows(rows).columns.numeric.cpu())
            for rows in (reader.known, reader.followed)
        )
        return reader.share_of(fit_ridge(*known).estimate(judged[0]), judged[1])


def _sent(train: Records, held_out: Sequence[int]) -> Tensor:
    """Return the places of the label party's training records that are in batches, and no dummies."""
    sent = torch.ones(train.count, dtype=torch.bool) if train.real is None else train.real.cpu().clone()
    sent[torch.tensor(list(held_out), dtype=torch.int64)] = False
    return sent.nonzero().squeeze(1)


def _unavailable(attack: Attack, party: PassiveParty, exchange: Exchange) -> str:
    """Return why an attack cannot look at a party's activations, or nothing."""
    if not exchange.shows_activations:
        return f"in exchange {exchange.name} the label party does not receive each record's activation in every step"
    if party.data.transform is not None:
        return "not where a party transforms its columns: which of them are meant, those before or behind it?"
    if not party.data.width:
        return f"{party.name} has no columns of numbers, and of categories there is no variance to recover"
    if "partner_bottom" in needs_of(attack):
        if party.data.train.columns.categorical.shape[1]:
            return f"{party.name} has categories, and a bottom model that looks them up has no gradient to go back by"
        if party.divided or party.is_to_be_divided:
            return f"the workers of {party.name} hold parts of its bottom model, and none has a copy of it"
    missing = sorted(needs_of(attack) - _SHOWN)
    return f"needs {', '.join(in_words(missing))}" if missing else ""
