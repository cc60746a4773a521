"""A coordinator's part in a networked run: it has the key, no data and no state, and serves until it is dismissed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from splitvfl.exchange.coordinator import ThirdParty
from splitvfl.net.driver import Correspondent
from splitvfl.net.meeting import Meeting
from splitvfl.run.session import Session


class CoordinatorRun:
    """Serves a run: whatever breaks the link with the active party, the two meet again.

    Its key is made anew for every run, and lost with the process: a coordinator that is started again has another one,
    with which the parties go on.

    Args:
        side: Its side of the exchange.
        session: Where it meets the active party.
    """

    def __init__(self, side: ThirdParty, session: Session[Meeting]) -> None:
        self._side = side
        # The active party may wait for all others, and evaluates between steps.
        self._session = replace(session, message_s=session.first_s)

    @property
    def step(self) -> int:
        """Number of steps that it has served; those that were taken again count again."""
        return self._side.served

    def run(self) -> None:
        """Serve until the active party has no step left.

        Raises:
            DataError: If the two do not agree.
            LinkError: If the active party does not appear, or links keep breaking.
            ProtocolError: If it keeps sending what does not belong there.
        """
        try:
            with self._session.place:
                self._session.meet_until_done(self._serve, reached=lambda: self.step, then="meeting again")
        finally:
            self._side.close()

    def _serve(self, links: Mapping[str, Correspondent]) -> None:
        self._session.drive(self._side.serve(), links)
