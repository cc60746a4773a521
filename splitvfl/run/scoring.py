"""A third party's part in scoring records over a network: it has no data, adds up parts, and answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from splitvfl.errors import DataError, LinkError
from splitvfl.exchange.handshake import TaskSpec, agreement, farewell
from splitvfl.exchange.roll_call import UNSIGNED, Vouching
from splitvfl.exchange.scoring import COORDINATOR, CoordinatorSide, third_terms
from splitvfl.messaging.conversation import Half
from splitvfl.net.driver import Correspondent
from splitvfl.party.scorer import Scorer
from splitvfl.run.replay import ReplayGuard
from splitvfl.run.session import MeetingPlace, Session


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """What the third party of a prediction has agreed with the label party.

    Attributes:
        loss: The loss whose scores it computes, in words.
        memoised: Whether noise on scores is memoised, as its scorer has it.
        direction_by: The passive party that sends a direction of noise; ``None``: nobody does.
        vouching: How it proves that its key is its own, and whose keys it takes.
    """

    loss: str
    memoised: bool = False
    direction_by: str | None = None
    vouching: Vouching = UNSIGNED


class CoordinatorPrediction:
    """Computes the scores of one prediction. Whatever breaks the link, the two meet again and begin again.

    What it answers is the same then, the noise of its defenses included, and it answers no other parts with it.

    Args:
        active: The label party's name.
        scorer_of: Returns its defenses of scores, by what is predicted; asked once.
        settings: What is agreed.
        session: Where it meets the label party.
        progress: Told how many records are scored.
    """

    def __init__(
        self,
        active: str,
        scorer_of: Callable[[TaskSpec], Scorer],
        settings: CoordinatorSettings,
        session: Session[MeetingPlace],
        *,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._active, self._scorer_of, self._settings = active, scorer_of, settings
        self._session, self._progress = session, progress
        self._scorer: Scorer | None = None
        self._noise: dict[str, Any] = {}
        self._learned: TaskSpec | None = None
        self._guard = ReplayGuard(())
        self._scored: int | None = None

    def run(self) -> int:
        """Score all records, and return how many there were.

        Raises:
            DataError: If the two do not agree.
            LinkError: If the label party does not appear in time, or links keep breaking.
            ProtocolError: If it keeps sending what does not belong there, or passes on what nobody sent.
            ReplayError: If another part comes than before, and is to be answered with the same noise.
        """

        def talk(links: Mapping[str, Correspondent]) -> None:
            self._session.drive(self._half(), links, first_s=self._session.first_s)

        try:
            self._session.meet_until_done(talk, then="beginning again")
        except LinkError as error:
            if self._scored is None:
                raise
            self._session.notify(f"{error}; everything had been said before")
        assert self._scored is not None
        return self._scored

    def _half(self) -> Half:
        """Return its half of one meeting."""
        settings = self._settings
        terms = third_terms(
            settings.loss, settings.vouching, memoised=settings.memoised, direction_by=settings.direction_by
        )
        yield from agreement(COORDINATOR, (self._active,), terms)
        side = CoordinatorSide(self._active, vouching=settings.vouching)
        yield from side.open()
        assert side.terms is not None, "it is opened"
        side.scorer = self._prepared(side.terms.learned)
        yield from side.directed()
        records, rows = side.terms.records, side.terms.rows
        for number, start in enumerate(range(0, records, rows)):
            yield from side.step(min(rows, records - start), number)
            self._progress(min(start + rows, records))
        self._scored = records
        yield from farewell(COORDINATOR, (self._active,), records)

    def _prepared(self, learned: TaskSpec) -> Scorer:
        """Return its scorer as it was before the first answer."""
        if self._scorer is None:
            self._scorer, self._learned = self._scorer_of(learned), learned
            self._scorer.scores.draw_generators(torch.device("cpu"))
            self._noise = copy.deepcopy(self._scorer.scores.state_dict())
            # Without noise too: another part at every beginning would be another look at the same records.
            self._scorer.remember = self._guard.admit
        if learned != self._learned:
            raise DataError(f"{self._active} predicts {learned}, and it was {self._learned} before the link broke")
        self._guard.go_back()
        self._scorer.scores.load_state_dict(copy.deepcopy(self._noise))
        return self._scorer
