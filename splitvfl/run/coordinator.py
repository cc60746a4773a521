"""A coordinator's part in a networked run: it has the key, no data and no state, and serves until it is dismissed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from splitvfl.exchange.coordinator import NAME, ThirdParty
from splitvfl.net.driver import Correspondent, drive
from splitvfl.net.meeting import Meeting
from splitvfl.run.session import meet_until_done


class CoordinatorRun:
    """Serves a run: whatever breaks the link with the active party, the two meet again.

    Its key is made anew for every run, and lost with the process: a coordinator that is started again has another one,
    with which the parties go on.

    Args:
        side: Its side of the exchange.
        meeting: Where it meets the active party.
        message_s: Seconds that a message may take.
        retries: How often in a row it meets again without serving any step.
        notify: Told in one line what happens.
    """

    def __init__(
        self,
        side: ThirdParty,
        meeting: Meeting,
        *,
        message_s: float,
        retries: int,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._side, self._meeting, self._notify = side, meeting, notify
        # The active party may wait for all others, and evaluates between steps.
        self._patience, self._retries = max(meeting.wait_s, message_s), retries

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
            with self._meeting:
                meet_until_done(
                    self._meeting,
                    self._serve,
                    retries=self._retries,
                    reached=lambda: self.step,
                    notify=self._notify,
                    then="meeting again",
                )
        finally:
            self._side.close()

    def _serve(self, links: Mapping[str, Correspondent]) -> None:
        drive(self._side.serve(), party=NAME, links=links, timeout=self._patience)
