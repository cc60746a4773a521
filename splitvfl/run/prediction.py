"""One party's part in scoring records jointly over a network: meet, agree, predict, take leave.

There is no state to go on from. Whatever breaks a link, the parties meet again and begin again, and what was sent
before is sent again to the bit, the noise of the defenses included: a partner who breaks links learns nothing by it.
What is masked is sent under new masks, which tell as little, and adds up to the same. Nor does one learn by sending
something else then: published scores that are defended answer one activation for each batch, the first.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import torch
from torch import Tensor

from splitvfl.cut.chain import DefenseChain
from splitvfl.data.columns import Records
from splitvfl.data.id_column import order_digest
from splitvfl.errors import DataError, LeaveError, LinkError
from splitvfl.exchange.direction import receiving_direction, sending_direction
from splitvfl.exchange.handshake import (
    TaskSpec,
    active_farewell,
    active_introduction,
    agreement,
    farewell,
    passive_introduction,
)
from splitvfl.exchange.masking import active_masking, passive_masking
from splitvfl.exchange.prediction import Prediction, active_prediction, passive_prediction
from splitvfl.exchange.roll_call import UNSIGNED, Vouching, vouching_terms
from splitvfl.exchange.scoring import (
    ACTIVE,
    COORDINATOR,
    LabelSide,
    PassiveScorerSide,
    PassiveSide,
    ScoringTerms,
    noise_terms,
    scorer_terms,
    third_terms,
)
from splitvfl.messaging.conversation import Half
from splitvfl.net.driver import Correspondent
from splitvfl.party.direction import DIRECTION
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.party.scorer import Scorer
from splitvfl.run.replay import ReplayGuard
from splitvfl.run.session import MeetingPlace, Session
from splitvfl.run.trained_halves import TrainedHalves, halves_terms

ROWS: Final = 4096
MOST_RETRIES: Final = 3
"""A link that breaks more often than this will break again."""

_P = TypeVar("_P", bound=Party)


@dataclass(frozen=True, kw_only=True)
class PredictionSettings(TrainedHalves):
    """What the parties of a prediction have in common.

    Attributes:
        publish: Whether the passive parties get the scores.
        masked: Whether who adds up the passive parties' parts learns only their sum.
        vouching: Where keys are passed on: how this party proves that its keys are its own, and whose it takes.
        scores_by: Who computes the scores: :data:`~splitvfl.exchange.scoring.ACTIVE` or a name.
        loss: Where another party does: the loss whose scores they are, in words.
        memoised: Whether noise on scores is memoised: all compute what they send record by record then.
        direction_by: The passive party that sends a direction of noise on scores; ``None``: nobody does.
        noise: Noise on each part of a logit that the training put by for predictions; ``None``: none.
        rows: Records in a message.
    """

    publish: bool = False
    masked: bool = False
    vouching: Vouching = UNSIGNED
    scores_by: str = ACTIVE
    loss: str = ""
    memoised: bool = False
    direction_by: str | None = None
    noise: float | None = None
    rows: int = ROWS

    def scoring_terms(self, parties: Sequence[str], records: int) -> ScoringTerms:
        """Return what the parts of so many records are of, where another party than the active one adds them up."""
        return ScoringTerms(
            scorer=self.scores_by,
            parties=tuple(parties),
            learned=self.learned,
            loss=self.loss,
            records=records,
            rows=self.rows,
            masked=self.masked,
            memoised=self.memoised,
            direction_by=self.direction_by,
            run=self.run,
            step=self.step,
            epoch=self.epoch,
        )


def prediction_terms(party: Party, settings: PredictionSettings) -> dict[str, object]:
    """Return what must be equal at every party of a prediction, by the names under which it is compared."""
    ids = party.data.test.ids
    return {
        "what is done": "prediction",
        **halves_terms(party, settings),
        "records": len(ids),
        "order of the record ids": order_digest(ids.cpu().numpy()),
        "records in a message": settings.rows,
        "scores are published": settings.publish,
        "parts are masked": settings.masked,
        "noise of a prediction": settings.noise,
        **noise_terms(memoised=settings.memoised, direction_by=settings.direction_by),
        **({} if settings.scores_by == ACTIVE else {"scores are computed by": settings.scores_by}),
        **(vouching_terms(settings.vouching) if settings.masked or settings.scores_by != ACTIVE else {}),
    }


class JointPrediction(ABC, Generic[_P]):
    """One party's part.

    Args:
        party: The party, with its trained model and the defenses of what it sends; its test records are scored.
        partners: Names of those that it talks to.
        settings: What is common to all.
        session: Where it meets them.
        progress: Told how many records are scored.
        before: Called when all parties have agreed, before anything of a record crosses, at every meeting.
    """

    def __init__(
        self,
        party: _P,
        partners: Sequence[str],
        settings: PredictionSettings,
        session: Session[MeetingPlace],
        *,
        progress: Callable[[int], None] = lambda done: None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.party, self.partners, self.settings = party, tuple(partners), settings
        self._session, self._progress = session, progress
        self._before = before
        self._result: list[Any] | None = None  # of every batch, once all are done
        self._begun = False  # whether anything of a record may have left
        self._guard: ReplayGuard | None = None
        party.one_by_one = settings.memoised

    def run(self) -> Any:
        """Score all records and return this party's result.

        Raises:
            DataError: If the parties have halves of different runs, or records or settings differ.
            LinkError: If a partner does not appear in time, or links keep breaking.
            ProtocolError: If a partner keeps sending what does not belong there.
            ReplayError: If one sends another activation than before, and gets defended scores for it.
            LimitError: If this party counts what it lets be scored, and lets no more of these records.
        """
        for chain in [*self.party.chains().values(), *self._scores]:
            chain.draw_generators(self.party.device)
        noise = copy.deepcopy(self.party.hook_state())
        of_scores = [copy.deepcopy(chain.state_dict()) for chain in self._scores]

        def talk(links: Mapping[str, Correspondent]) -> None:
            self.party.load_hook_state(copy.deepcopy(noise))
            for chain, state in zip(self._scores, of_scores, strict=True):
                chain.load_state_dict(copy.deepcopy(state))
            with self.party.evaluating():
                try:
                    links = self._watched(links)
                    self._session.drive(self._half(), links, first_s=self._first_s, turn=self.party.random)
                except LeaveError as error:
                    # Of who has no scores itself: what it has sent may have come to nothing.
                    if not error.done and self._result is not None and self._joined(self._result) is None:
                        self._result = None
                    raise

        try:
            self._session.meet_until_done(talk, then="beginning again")
        except LinkError as error:
            if self._result is None:
                if self._begun:
                    self._session.notify("nobody here knows of any score; what was counted stays counted")
                raise
            # Who still needs something comes back for it.
            self._session.notify(f"{error}; everything had been said before")
        assert self._result is not None
        return self._joined(self._result)

    def _half(self) -> Half:
        """Return its half of one meeting."""
        yield from self._agreement()
        yield from self._introduction()
        if self.settings.scores_by != ACTIVE:
            yield from self._meet_scorer()
        elif self.settings.masked:
            yield from self._masking()
        if self.settings.scores_by == ACTIVE and self.settings.direction_by is not None:
            yield from self._directed(self.settings.direction_by)
        self._count_records()
        self._before()
        self._begun = True
        parts = []
        for number, batch in enumerate(self._batches()):
            parts.append((yield from self._scoring(batch, number)))
            self._progress(min((number + 1) * self.settings.rows, self._count))
        self._result = parts
        yield from self._leave()

    def _watched(self, links: Mapping[str, Correspondent]) -> Mapping[str, Correspondent]:
        """Return links on which, where that matters, a partner that begins again must send what it sent before."""
        if self._guard is None:
            return links
        self._guard.go_back()
        return {name: self._guard.watching(link) for name, link in links.items()}

    def _agreement(self) -> Half:
        """Compare what must be equal at all."""
        return agreement(self.party.name, self.partners, prediction_terms(self.party, self.settings))

    @property
    def _scores(self) -> tuple[DefenseChain, ...]:
        """Defenses of scores that this party computes for another one."""
        return ()

    @property
    def _first_s(self) -> float:
        """Seconds to wait for the first message."""
        return self._session.message_s

    @property
    def _count(self) -> int:
        return self.party.data.test.count

    def _batches(self) -> Iterator[Records]:
        for rows in torch.arange(self._count).split(self.settings.rows):
            yield self.party.test_batch(rows)

    def _count_records(self) -> None:
        """Count the records of which this party sends parts, before it does."""
        if isinstance(self.party, PassiveParty) and self.party.tally is not None:
            self.party.tally.begin()

    @abstractmethod
    def _introduction(self) -> Half:
        """Check that the trained halves fit together."""

    @abstractmethod
    def _masking(self) -> Half:
        """Agree on masks that cancel in the sum of the passive parties' parts."""

    @abstractmethod
    def _meet_scorer(self) -> Half:
        """Exchange keys where another party than the active one computes the scores."""

    @abstractmethod
    def _directed(self, sender: str) -> Half:
        """Bring a direction of noise to the active party, where it computes the scores."""

    @abstractmethod
    def _scoring(self, batch: Records, number: int) -> Half:
        """Return its half of one batch."""

    @abstractmethod
    def _leave(self) -> Half:
        """Return its half of the farewell, when all batches are done."""

    @abstractmethod
    def _joined(self, parts: Sequence[Any]) -> Any:
        """Return the results of all batches as one."""


class ActivePrediction(JointPrediction[ActiveParty]):
    """The active party's part; its result is a :class:`~splitvfl.exchange.prediction.Prediction`.

    Its partners are the passive parties, in the order in which its model takes their activations, and a third party
    that computes the scores, if there is one.
    """

    def __init__(
        self,
        party: ActiveParty,
        partners: Sequence[str],
        settings: PredictionSettings,
        session: Session[MeetingPlace],
        **options: Any,
    ) -> None:
        super().__init__(party, partners, settings, session, **options)
        if settings.publish and len(party.scores):
            # Masks are new when a passive party starts again: their sum is what must not vary.
            self._guard = ReplayGuard({DIRECTION} if settings.masked else {DIRECTION, "activation"})
            if settings.masked:
                party.remember = self._guard.admit
        self._passives = tuple(name for name in self.partners if name != COORDINATOR or name in party.cuts)
        self._side: LabelSide | None = None
        self._noise = party.score_noise

    def _agreement(self) -> Half:
        settings, terms = self.settings, prediction_terms(self.party, self.settings)
        computes = {name for name in self._passives if name == settings.scores_by}
        third = third_terms(
            settings.loss, settings.vouching, memoised=settings.memoised, direction_by=settings.direction_by
        )
        for others, theirs in (
            (tuple(name for name in self._passives if name not in computes), terms),
            (tuple(computes), terms | scorer_terms(settings.loss)),
            (tuple(set(self.partners) - set(self._passives)), third),
        ):
            if others:
                yield from agreement(self.party.name, others, theirs)

    def _introduction(self) -> Half:
        widths = yield from active_introduction(self.party.name, self._passives, self.settings.learned)
        for name, width in widths.items():
            if width != self.party.widths[name]:
                raise DataError(
                    f"{name} sends activations of width {width}; the half of {self.party.name} was trained on "
                    f"{self.party.widths[name]}"
                )

    def _masking(self) -> Half:
        return active_masking(self.party, self.settings.vouching)

    def _directed(self, sender: str) -> Half:
        self.party.score_noise = self._noise
        return receiving_direction(self.party, sender)

    def _meet_scorer(self) -> Half:
        terms = self.settings.scoring_terms(self._passives, self._count)
        self._side = LabelSide(self.party, terms, vouching=self.settings.vouching)
        return self._side.open()

    def _scoring(self, batch: Records, number: int) -> Half:
        if self._side is None:
            return (yield from active_prediction(self.party, batch, number, publish=self.settings.publish))
        scores = yield from self._side.step(batch, number)
        return Prediction(torch.zeros(len(scores), 0), scores)

    def _leave(self) -> Half:
        for name in self.partners:
            try:
                yield from active_farewell(self.party.name, (name,), self._count, lambda: None)
            except LinkError as error:  # nothing more is needed of anybody
                self._session.notify(f"{error}; everything had been said before")

    def _joined(self, parts: Sequence[Prediction]) -> Prediction:
        return Prediction(torch.cat([part.outputs for part in parts]), torch.cat([part.scores for part in parts]))


class PassivePrediction(JointPrediction[PassiveParty]):
    """A passive party's part; its result is the published scores, or ``None`` where none are published.

    Where it computes the scores itself, the result is what it answers the active party.

    Args:
        scorer: Its defenses of scores, if it computes them.
        arguments: As for :class:`JointPrediction`.
    """

    def __init__(
        self,
        party: PassiveParty,
        partners: Sequence[str],
        settings: PredictionSettings,
        session: Session[MeetingPlace],
        *,
        scorer: Scorer | None = None,
        **options: Any,
    ) -> None:
        super().__init__(party, partners, settings, session, **options)
        self._scorer = scorer
        self._side: PassiveSide | None = None
        if scorer is not None:
            # Parts are sealed anew at every meeting: what is in them must not vary, with noise or without it, as
            # another part would be another look at the same records.
            self._guard = ReplayGuard(())
            scorer.remember = self._guard.admit

    def _introduction(self) -> Half:
        return passive_introduction(self.party.name, self._active, self._width_for)

    @property
    def _first_s(self) -> float:
        return self._session.first_s

    @property
    def _active(self) -> str:
        return self.partners[0]

    def _width_for(self, learned: TaskSpec) -> int:
        self.settings.check_learned(learned, self._active, self.party.name)
        return self.party.output_width()

    def _masking(self) -> Half:
        return passive_masking(self.party, self._active, self.settings.vouching)

    def _directed(self, sender: str) -> Half:
        if sender == self.party.name:
            yield from sending_direction(self.party, self._active)

    @property
    def _scores(self) -> tuple[DefenseChain, ...]:
        return () if self._scorer is None else (self._scorer.scores,)

    def _agreement(self) -> Half:
        own = {} if self._scorer is None else scorer_terms(self.settings.loss)
        return agreement(self.party.name, self.partners, prediction_terms(self.party, self.settings) | own)

    def _meet_scorer(self) -> Half:
        terms, vouching = self.settings.scoring_terms((), self._count), self.settings.vouching
        self.party.masks = None  # those of an earlier meeting
        if self._scorer is None:
            self._side = PassiveSide(self.party, self._active, terms, vouching=vouching)
        else:
            self._side = PassiveScorerSide(self.party, self._scorer, self._active, terms, vouching=vouching)
        return self._side.open()

    def _scoring(self, batch: Records, number: int) -> Half:
        settings = self.settings
        if self._side is not None:
            return self._side.step(batch, number)
        return passive_prediction(
            self.party, batch, number, active=self._active, outputs=settings.learned.outputs, publish=settings.publish
        )

    def _leave(self) -> Half:
        return farewell(self.party.name, self.partners, self._count)

    def _joined(self, parts: Sequence[Tensor | None]) -> Tensor | None:
        published = [part for part in parts if part is not None]
        return torch.cat(published) if published else None
