"""The attacks that watch a run, and their figures: those on each passive party's gradients, and the auditor's."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from splitvfl.hooks import needs_of, note_of, reads_messages, unused
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.column_reading import ColumnReader
from splitvfl.leakage.in_general import InGeneral, KnowledgeGain, LabelFreeAttack, labels_in_general
from splitvfl.leakage.judging import Leak, ScoreKeeper, worst_of
from splitvfl.leakage.keeping import Keeper
from splitvfl.leakage.label_leak import LabelLeak
from splitvfl.leakage.leak_summary import LeakSummary, nanmax
from splitvfl.leakage.leaks import Leaks
from splitvfl.leakage.message_audit import MessageAudit
from splitvfl.leakage.side_knowledge import GRANTED

# Up to here an accumulated AUC takes a few milliseconds; above, it is computed at the end of each epoch only.
_CHEAP_RECORDS = 20_000


class Watch:
    """The attacks that watch a run, by passive party and name, and what they found.

    Args:
        parties: Names of the passive parties.

    Attributes:
        leaks: Attacks in the seat of each passive party, or on what is sent to it.
        readers: Attacks in the label party's seat, on what each of them sends.
        audits: The auditor's attack on what is sent to each, where there is one.
        unavailable: Attacks that could not be run, with the reason.
        known: AUC of what each party knows of the labels without any message, where somebody measured it.
        worst_logged: The worst at the last end of an epoch; NaN and "" before.
        label_leaks_logged: The three figures by party, at the last end of an epoch; empty before.
    """

    def __init__(self, parties: Iterable[str]) -> None:
        self.leaks = Leaks({name: {} for name in parties})
        self.readers: dict[str, dict[str, ColumnReader]] = {name: {} for name in self.leaks}
        self.audits: dict[str, MessageAudit] = {}
        self.unavailable: dict[str, dict[str, str]] = {name: {} for name in self.leaks}
        self.known: dict[str, float] = {}
        self.worst_logged: tuple[float, str] = (math.nan, "")
        self.label_leaks_logged: dict[str, LabelLeak] = {}
        self._general: dict[str, tuple[int, InGeneral | None]] = {}  # and how many messages it is of

    def add(self, party: str, leak: Leak, *, name: str | None = None) -> None:
        """Keep an attack under its name, numbered if that is taken."""
        self.leaks[party][unused(name or leak.name, self.leaks[party])] = leak

    @property
    def seconds(self) -> float:
        """Time spent on attacks and their judging so far."""
        leaks = [leak.seconds for named in self.leaks.values() for leak in named.values()]
        leaks += [reader.seconds for named in self.readers.values() for reader in named.values()]
        return sum(leaks) + sum(audit.seconds for audit in self.audits.values())

    def summaries(self, party: str) -> dict[str, LeakSummary]:
        """Return the figures of every attack on one passive party's messages, and of the auditor's, by name."""
        found = {name: leak.summary for name, leak in self.leaks[party].items()}
        return found | {name: keeper.summary() for name, keeper in self._auditors(party).items()}

    def canaries(self, party: str) -> dict[str, CanaryLeak]:
        """Return what every attack on one passive party's messages read of the canaries' labels, the auditor's first.

        Empty without canaries; without those attacks that met none, or of one class only.
        """
        keepers = self._auditors(party) | self.keepers(party)
        leaks = {name: keeper.canary_leak() for name, keeper in keepers.items()}
        return {name: leak for name, leak in leaks.items() if leak is not None and not math.isnan(leak.auc)}

    def excess(self, party: str, *, randomised: bool = False) -> CanaryLeak | None:
        """Return the largest canary AUC of the auditor's and all other attacks on one party's messages.

        The interval holds for all of them at once; ``None`` without canaries. Attacks that read no message are no part
        of it.

        Args:
            party: The passive party.
            randomised: Whether it is of the labels that a label defense put in the place of the canaries'.
        """
        blind = {name for name, leak in self.leaks[party].items() if not reads_messages(leak.attack)}
        judges = (keeper for name, keeper in self.keepers(party).items() if name not in blind)
        return worst_of(judges, randomised=randomised)

    def knowledge_gain(self, party: str) -> KnowledgeGain | None:
        """Return what one party has learned of labels in general; ``None`` where that is not known."""
        found = self.in_general(party)
        return None if found is None else found.gain

    def label_free(self, party: str) -> LabelFreeAttack | None:
        """Return the attack on one party's messages that shows most of single labels and needs none.

        Attacks that read the party's own features too are left out: a model of features of their own may know more of
        labels in general than the one they are compared with. ``None`` without any attack, where the party's features
        are not known, and of other than two classes.
        """
        found = self.in_general(party)
        if found is None:
            return None
        scores = {}
        for name, leak in self.leaks[party].items():
            from_messages = reads_messages(leak.attack) and not needs_of(leak.attack) & {*GRANTED, "columns"}
            if from_messages and isinstance(leak.keeper, ScoreKeeper):
                leak.revise()
                scores[name] = leak.keeper.scores_of(found.ids)
        return found.label_free(scores)

    def in_general(self, party: str) -> InGeneral | None:
        """Return what one party knows of labels in general so far; ``None`` where its features are not known.

        It takes time in proportion to the records, of which at most 20 000 are drawn: for the end of a run.
        """
        if party not in self.audits:
            return None
        history = self.audits[party].history
        if self._general.get(party, (-1, None))[0] != history.messages:
            self._general[party] = (history.messages, labels_in_general(history))
        return self._general[party][1]

    @property
    def worst_canaries(self) -> CanaryLeak | None:
        """The largest canary AUC of the auditor's attacks on all messages, with an interval for all of them at once."""
        return worst_of([keeper for audit in self.audits.values() for keeper in audit.keepers.values()])

    @property
    def notes(self) -> list[str]:
        """Sentences of the attacks beside their figures: that a fit failed, for one."""
        return [
            f"{name} at {party}: {note_of(leak.attack)}."
            for party, named in self.leaks.items()
            for name, leak in named.items()
            if note_of(leak.attack)
        ]

    @property
    def worst(self) -> tuple[float, str]:
        """The worst leak AUC of all attacks on messages, per step or accumulated, and its name; NaN and "" if none."""
        pairs = [
            (summary.worst, name)
            for party in self.leaks
            for name, summary in self.summaries(party).items()
            if summary.by_messages
        ]
        return max((pair for pair in pairs if not math.isnan(pair[0])), default=(math.nan, ""))

    def label_leak(self, party: str) -> LabelLeak | None:
        """Return the three figures of one party so far; ``None`` without an auditor of its messages."""
        if party not in self.audits:
            return None
        audit = self.audits[party]
        # Where the partner's features count, attacks on these alone count too.
        counted = [one.worst for one in self.summaries(party).values() if one.by_messages or audit.includes_features]
        attacks = len(counted) - len(audit.keepers)
        return LabelLeak.so_far(audit, worst=nanmax(*counted), known=self.known.get(party), attacks=attacks)

    def scalars(self, *, epoch_ends: bool) -> dict[str, float]:
        """Return what there is to log after a step, by tag.

        At the end of an epoch with them the three figures of :class:`~splitvfl.leakage.label_leak.LabelLeak`, and
        what each attack read of the canaries with the ends of its interval. Of an attack that left out records, the
        share of them that it scored so far, and the AUCs that count them as ties, stand beside its own.
        """
        values: dict[str, float] = {}
        for party in self.leaks:
            judges = self.keepers(party) if epoch_ends else self._as_they_are(party)
            for name, keeper in judges.items():
                summed = epoch_ends or keeper.records <= _CHEAP_RECORDS
                values[f"leak_auc/{party}/{name}"] = keeper.recent_auc
                if summed:
                    values[f"leak_auc_accumulated/{party}/{name}"] = keeper.accumulated_auc
                beside = keeper.beside_auc
                values |= {f"{figure}/{party}/{name}": value for figure, value in beside.items()}
                if keeper.leaves_out:
                    values[f"leak_scored/{party}/{name}"] = keeper.scored
                    values[f"leak_auc_tied/{party}/{name}"] = keeper.recent_tied_auc
                    if summed:
                        values[f"leak_auc_accumulated_tied/{party}/{name}"] = keeper.tied_accumulated_auc
            for name, leak in self.leaks[party].items():
                if leak.signs is not None:
                    values[f"signs_right/{party}/{name}"] = leak.signs.recent_share
                if leak.members is not None and leak.members.has_met:
                    values[f"balanced_accuracy/{party}/{name}"] = leak.members.recent_balanced
                    values[f"zeros_found/{party}/{name}"] = leak.members.recent_zeros_found
                    if epoch_ends:
                        values[f"balanced_accuracy_accumulated/{party}/{name}"] = leak.members.accumulated_balanced
            for reader in self.readers[party].values():
                values |= reader.scalars(party, epoch_ends=epoch_ends)
            if party in self.audits:
                values |= _audited(party, self.audits[party], epoch_ends=epoch_ends)
            elif epoch_ends and party in self.known:
                values[f"labels/{party}/known_without_messages"] = self.known[party]
            three = self.label_leak(party) if epoch_ends else None
            if three is not None:
                self.label_leaks_logged[party] = three
                values |= _three(party, three)
            if epoch_ends:
                for name, found in self.canaries(party).items():
                    tag = f"{party}/{name}"
                    values[f"canary_auc/{tag}"] = found.auc
                    values |= {f"canary_auc_low/{tag}": found.low, f"canary_auc_high/{tag}": found.high}
        if epoch_ends:
            self.worst_logged = self.worst
            values["leak_auc/worst"] = self.worst_logged[0]
        return values

    def canary_scores(self) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]]:
        """Return what every attack on messages has added up of each canary, and the coins, by party and attack."""
        found = {}
        for party in self.leaks:
            for name, keeper in self.keepers(party).items():
                scores = keeper.canary_scores() if isinstance(keeper, ScoreKeeper) else None
                if scores is not None:
                    found[f"{name} at {party}"] = scores
        return found

    def keepers(self, party: str) -> dict[str, Keeper]:
        """Return the judges of every attack on one passive party's messages, and of the auditor's, by name.

        An attack that gives all records new scores is asked for them, if anything came since.
        """
        for leak in self.leaks[party].values():
            leak.revise()
        return self._as_they_are(party)

    def _as_they_are(self, party: str) -> dict[str, Keeper]:
        found: dict[str, Keeper] = {name: leak.keeper for name, leak in self.leaks[party].items()}
        return found | self._auditors(party)

    def _auditors(self, party: str) -> dict[str, Keeper]:
        return dict(self.audits[party].keepers) if party in self.audits else {}

    def state_dict(self) -> dict[str, Any]:
        """Return all figures, and what attacks remember."""
        return {
            "leaks": {
                party: {name: leak.state_dict() for name, leak in named.items()} for party, named in self.leaks.items()
            },
            "readers": {
                party: {name: reader.state_dict() for name, reader in named.items()}
                for party, named in self.readers.items()
            },
            "audits": {party: audit.state_dict() for party, audit in self.audits.items()},
            "worst": self.worst_logged,
            "label_leaks": {party: asdict(leak) for party, leak in self.label_leaks_logged.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If it is of other attacks.
        """
        for party, leaks in self.leaks.items():
            if set(leaks) != set(state["leaks"][party]):
                raise ValueError(f"it has attacks {sorted(state['leaks'][party])}, this run has {sorted(leaks)}")
            for attack, leak in leaks.items():
                leak.load_state_dict(state["leaks"][party][attack])
        readers = state.get("readers", {})  # of a run that was begun before there were any
        for party, named in self.readers.items():
            if set(named) != set(readers.get(party, {})):
                raise ValueError(f"it has attacks {sorted(readers.get(party, {}))}, this run has {sorted(named)}")
            for name, reader in named.items():
                reader.load_state_dict(readers[party][name])
        for party, audit in self.audits.items():
            audit.load_state_dict(state["audits"][party])
        self.worst_logged = state["worst"]
        self.label_leaks_logged = {party: LabelLeak(**found) for party, found in state["label_leaks"].items()}

    def take_up_readers(self, state: Mapping[str, Any]) -> list[str]:
        """Take back what readers of columns knew, of those that the state is of; return the names of all others.

        Who only looks on is no reason why a run should not go on: where other attacks are listed than before, or one
        keeps something else by now, it begins anew.
        """
        begun = []
        for party, named in self.readers.items():
            kept = state["readers"].get(party, {})
            for name, reader in named.items():
                fresh = copy.deepcopy(reader.state_dict())
                try:
                    reader.load_state_dict(kept[name])
                except (KeyError, ValueError, TypeError, RuntimeError, AttributeError):
                    reader.load_state_dict(fresh)
                    begun.append(name)
        return begun


def _audited(party: str, audit: MessageAudit, *, epoch_ends: bool) -> dict[str, float]:
    """Return the auditor's figures; those that take the time of all records at the end of an epoch only."""
    values = {f"detection_error/{party}/measured": audit.detection_error}
    if epoch_ends:
        values |= {
            f"detection_error/{party}/late": audit.late_detection_error,
            f"prediction_auc/{party}": audit.prediction_auc,
        }
    return values


def _three(party: str, leak: LabelLeak) -> dict[str, float]:
    """Return total, beyond prediction and known without messages: one section of TensorBoard."""
    beyond = "beyond_prediction" if leak.canaries else "beyond_prediction_matched"
    found = {
        "total": leak.total,
        beyond: leak.beyond,
        f"{beyond}_low": leak.low,
        f"{beyond}_high": leak.high,
        "known_without_messages": leak.known,
    }
    return {f"labels/{party}/{name}": value for name, value in found.items() if value is not None}
