"""Attacks in the label party's seat that look at every activation of the training, and who judges them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from splitvfl.data.columns import Records
from splitvfl.exchange.base import Exchange
from splitvfl.hooks import Attack, fields_in_words, hook_name, needs_of, reads_jointly, unused
from splitvfl.leakage.after_training import own_copy
from splitvfl.leakage.architecture import architecture_of
from splitvfl.leakage.asked_categories import MOST_CATEGORIES, NO_CATEGORIES, AskedCategories, asked_categories
from splitvfl.leakage.column_figures import ColumnReading, OwnShares
from splitvfl.leakage.column_reading import ColumnReader, SentColumns
from splitvfl.leakage.ridge import fit_ridge
from splitvfl.leakage.shown_records import ShownRecords
from splitvfl.leakage.watching import Watch
from splitvfl.learning.batches import Batches
from splitvfl.learning.randomness import derive_seed
from splitvfl.party.party import ActiveParty, PassiveParty, SentActivation
from splitvfl.run.own_top import OwnTop

_MODELS = frozenset({"partner_bottom", "partner_architecture"})
_SHOWN = frozenset({"received_activation", "auxiliary", "earlier_auxiliary", "top"}) | _MODELS


class ColumnSeats:
    """Attacks on passive parties' columns in the label party's seat, at every step of an experiment.

    Args:
        active: The label party.
        passives: The others by name: each is read by a copy of every attack.
        attacks: The attacks.
        watch: Where they are kept, and the reasons of those that could not be run.
        exchange: How a step is talked through.
        batches: Which records are in which step.
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
        batches: Batches,
        seed: int,
    ) -> None:
        self._active, self._passives, self._watch = active, passives, watch
        self._among = _shown_records(active.data.train, batches, exchange)
        self._categories = {name: asked_categories(party.data) for name, party in passives.items() if attacks}
        others = "the top model takes what other parties send too, and that is not there yet"
        self._no_top = others if len(passives) > 1 else ""
        beside = _Beside([*passives], self._own_columns if self._has_columns else None)
        for name, party in passives.items():
            party.sent_to.clear()  # of an earlier trainer
            for attack in attacks:
                why = _unavailable(attack, party, exchange, self._categories[name], no_top=self._no_top)
                if why:
                    watch.unavailable[name][hook_name(attack)] = why
                else:
                    _seat(
                        party,
                        attack,
                        watch,
                        self._sent(party, exchange, batches),
                        active=active.name,
                        seed=seed,
                        top=OwnTop(active),
                        beside=beside if self._has_columns or len(passives) > 1 else None,
                    )
            if any(reads_jointly(attack) for attack in attacks):
                party.sent_to.append(partial(beside.note, name))

    def _sent(self, party: PassiveParty, exchange: Exchange, batches: Batches) -> SentColumns:
        return SentColumns(
            names=party.data.numeric_names,
            train=party.data.train,
            categories=self._categories[party.name],
            among=self._among,
            nobodys=_nobodys(self._active),
            epoch_steps=None if exchange.one_way else len(batches),
            once=exchange.one_way,
        )

    def readings(self, party: str) -> list[ColumnReading]:
        """Return what was read of one party's columns, beside what the label party's own columns tell of them."""
        return readings_of(self._watch, party, self._without_messages)

    @cached_property
    def _own(self) -> AskedCategories:
        """Return which of its own categories the label party has as columns of zeros and ones."""
        return asked_categories(self._active.data)

    @property
    def _has_columns(self) -> bool:
        return bool(self._active.data.width or self._own.width)

    def _own_columns(self, sent: SentActivation) -> Tensor:
        """Return the label party's own columns of the records of a message of training, ``(n, w)``."""
        assert sent.batch.positions is not None, "batches are taken from the party's records"
        return self._own.beside(self._active.data.train.rows(sent.batch.positions).columns)

    def _without_messages(self, party: str, reader: ColumnReader) -> OwnShares | None:
        """Return what ridge regression on the label party's own columns recovers, as :meth:`ColumnReader.share_of`.

        Without columns of its own that is the mean. ``None`` where the attacker knows too few records, or all.
        """
        own, theirs = self._active.data.train, self._passives[party].data.train
        asked = self._categories[party].beside
        if len(reader.known) < 2 or not len(reader.followed):
            return None if self._has_columns else OwnShares(0.0)
        if not self._has_columns:
            middle, truth = (asked(theirs.rows(rows).columns).cpu() for rows in (reader.known, reader.followed))
            return replace(reader.share_of(middle.mean(dim=0).expand_as(truth), truth), share=0.0)
        known, judged = (
            (self._own.beside(own.rows(rows).columns).cpu(), asked(theirs.rows(rows).columns).cpu())
            for rows in (reader.known, reader.followed)
        )
        return reader.share_of(fit_ridge(*known).estimate(judged[0]), judged[1])


class _Beside:
    """What the label party has of a step's records beside one partner's message: the others' messages and own columns.

    Args:
        parties: The partners.
        own: The label party's own columns of the records of a message, ``(n, w)``; ``None``: it has none.
    """

    def __init__(self, parties: Sequence[str], own: Callable[[SentActivation], Tensor] | None) -> None:
        self._parties, self._own = parties, own
        self._messages: dict[int, dict[str, Tensor]] = {}
        self._asked: dict[int, list[tuple[str, Callable[[Tensor], None]]]] = {}

    def ask(self, party: str, step: int, told: Callable[[Tensor], None]) -> None:
        """Ask what stands beside a party's message of a step, ``(n, w)``; it is told once every partner has sent."""
        self._asked.setdefault(step, []).append((party, told))

    def note(self, party: str, sent: SentActivation) -> None:
        """Note what a party sent in training, after all have asked that read this message."""
        if sent.phase != "training":
            return
        messages = self._messages.setdefault(sent.step, {})
        messages[party] = sent.message.detach().float()
        if len(messages) < len(self._parties):
            return
        own = [] if self._own is None else [self._own(sent)]
        for reader, told in self._asked.pop(sent.step, []):
            told(torch.cat([*own, *(messages[name] for name in self._parties if name != reader)], dim=1))
        del self._messages[sent.step]


def readings_of(
    watch: Watch,
    party: str,
    without_messages: Callable[[str, ColumnReader], OwnShares | None] = lambda party, reader: None,
) -> list[ColumnReading]:
    """Return what was read of one party's columns; who was never judged is listed as unavailable.

    Args:
        watch: Where the readers are kept.
        party: Whose columns.
        without_messages: What the label party's own columns tell of them, where that can be known.
    """
    found = []
    for reader in watch.readers[party].values():
        reading = reader.reading()
        if (reading is None or reading.evaluation_only) and reader.unjudged:
            watch.unavailable[party][reader.name] = f"never judged by what was sent in training: {reader.unjudged}"
        if reading is not None:
            found.append(reading.with_own(without_messages(party, reader)))
    return found


def shown_of(watch: Watch, party: str) -> tuple[ShownRecords, ...]:
    """Return a few records' columns as the reader estimates them that reads most of a party's, of those in training."""
    readings = {name: reader.reading() for name, reader in watch.readers[party].items()}
    shares = {name: reading.most for name, reading in readings.items() if reading is not None}
    if not shares:
        return ()
    best = max(shares, key=lambda name: shares[name])
    columns = watch.readers[party][best].shown()
    return (ShownRecords(party=party, attack=best, columns=columns),) if columns else ()


def read_own_columns(
    party: PassiveParty,
    attacks: Sequence[Attack],
    watch: Watch,
    *,
    active: str,
    exchange: Exchange,
    batches: Batches,
    seed: int,
    every_message: bool = False,
) -> None:
    """Let a passive party see for itself what the label party could read of its columns in what it sends.

    Nobody else is needed for that, and nothing is sent for it. An attack that fails is left out, with its reason: a run
    that partners take part in does not end for that.

    Args:
        party: The party, alone or the only worker.
        attacks: Attacks in the label party's seat.
        watch: Where they are kept, and the reasons of those that could not be run.
        active: The label party's name.
        exchange: How a step is talked through.
        batches: Which records are in which step.
        seed: Draws the records whose columns the attacker is assumed to know.
        every_message: Whether sampled attacks are called with every message too.
    """
    categories = asked_categories(party.data) if attacks else NO_CATEGORIES
    sent = SentColumns(
        names=party.data.numeric_names,
        train=party.data.train,
        categories=categories,
        among=_shown_records(party.data.train, batches, exchange),
        epoch_steps=None if every_message or exchange.one_way else len(batches),
        once=exchange.one_way,
    )
    no_top = f"{party.name} holds neither the label party's half of the model nor labels"
    for attack in attacks:
        why = _unavailable(attack, party, exchange, categories, no_top=no_top)
        if not why and party.team.size > 1:
            why = "where a party is several workers each sends its own part, and nobody here sees all of a message"
        if why:
            watch.unavailable[party.name][hook_name(attack)] = why
        else:
            _seat(party, attack, watch, sent, active=active, seed=seed, spared=True)


def _seat(
    party: PassiveParty,
    attack: Attack,
    watch: Watch,
    sent: SentColumns,
    *,
    active: str,
    seed: int,
    top: Callable[[Tensor], nn.Module] | None = None,
    beside: _Beside | None = None,
    spared: bool = False,
) -> None:
    """Let a copy of an attack see every activation that a party sends, and what the label party has beside it."""
    joint = beside is not None and reads_jointly(attack)
    name = unused(hook_name(attack), watch.readers[party.name])
    fresh = derive_seed(seed, "architecture", party.name)
    reader = ColumnReader(
        copy.deepcopy(attack),
        sent,
        name=name,
        seed=derive_seed(seed, "known columns", party.name),
        refused=partial(watch.unavailable[party.name].__setitem__, name),
        models={
            "partner_bottom": lambda known: own_copy(party.bottom),
            "partner_architecture": lambda known: architecture_of(party.bottom, fresh),
            **({} if top is None else {"top": top}),
        },
        spared=spared,
        joint=joint,
    )
    watch.readers[party.name][name] = reader

    def see(one: SentActivation) -> None:
        seen = (one.message, one.batch.columns, one.batch.ids)
        if one.phase == "training":
            reader.see(*seen, party=active, step=one.step)
            if joint and beside is not None:
                beside.ask(party.name, one.step, partial(reader.see_jointly, *seen, party=active, step=one.step))
        else:
            reader.see_later(*seen, party=active, step=one.step, phase=one.phase, piece=one.piece)

    party.sent_to.append(see)


def sent_records(train: Records, batches: Batches) -> Tensor:
    """Return the places of a party's training records that are in batches, and no dummies."""
    sent = _real(train)
    sent[torch.tensor(list(batches.held_out), dtype=torch.int64)] = False
    return sent.nonzero().squeeze(1)


def _shown_records(train: Records, batches: Batches, exchange: Exchange) -> Tensor:
    """Return the places of the records whose activations are sent to train on, and no dummies.

    A one-way exchange sends those that early stopping holds out with all others.
    """
    return _real(train).nonzero().squeeze(1) if exchange.one_way else sent_records(train, batches)


def _real(train: Records) -> Tensor:
    """Return which records are somebody's, bool on the CPU; a new tensor."""
    return torch.ones(train.count, dtype=torch.bool) if train.real is None else train.real.cpu().clone()


def _nobodys(active: ActiveParty) -> Tensor:
    """Return the ids of dummies, in all of a padded alignment."""
    parts = (active.data.train, active.data.test)
    return torch.cat([part.ids[:0] if part.real is None else part.ids[~part.real] for part in parts])


def _unavailable(
    attack: Attack, party: PassiveParty, exchange: Exchange, categories: AskedCategories, *, no_top: str
) -> str:
    """Return why an attack cannot look at a party's activations, or nothing.

    Args:
        attack: The attack.
        party: Whose activations.
        exchange: How a step is talked through.
        categories: Which of the party's categories are asked for.
        no_top: Why nobody can show it the label party's top model, or nothing.
    """
    if not exchange.shows_activations:
        return f"in exchange {exchange.name} the label party does not receive each record's activation in every step"
    if party.data.transform is not None:
        return "not where a party transforms its columns: which of them are meant, those before or behind it?"
    if not party.data.width and not categories.fields:
        return (
            f"{party.name} has no columns of numbers, and none of categories that can be asked for: more than one, and "
            f"{MOST_CATEGORIES} at most"
        )
    if needs_of(attack) & _MODELS:
        if party.data.train.columns.categorical.shape[1]:
            return f"{party.name} has categories, and a bottom model that looks them up has no gradient to go back by"
        if party.weights.divided or party.weights.is_to_be_divided:
            return f"the workers of {party.name} hold parts of its bottom model, and none has a copy of it"
    if "top" in needs_of(attack) and exchange.one_way:
        return "in exchange one-way activations are sent before the label party's top model has learned anything"
    if "top" in needs_of(attack) and no_top:
        return no_top
    missing = sorted(needs_of(attack) - _SHOWN)
    return f"needs {', '.join(fields_in_words(missing))}" if missing else ""
