"""A coordinator's part in a networked run: it has the key, no data and no state, and serves until it is dismissed."""

from __future__ import annotations

from collections.abc import Callable

from splitvfl.errors import LinkError, ProtocolError
from splitvfl.exchange.coordinator import NAME, ThirdParty
from splitvfl.net.driver import drive
from splitvfl.net.meeting import Meeting


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
        failures, reached = 0, -1
        try:
            with self._meeting:
                while (broken := self._served()) is not None:
                    failures, reached = (1, self.step) if self.step > reached else (failures + 1, reached)
                    if getattr(broken, "final", False) or failures > self._retries:
                        raise broken
                    self._notify(f"{broken}; meeting again")
        finally:
            self._side.close()

    def _served(self) -> LinkError | ProtocolError | None:
        """Meet and serve to the end; return what broke, if anything did once the two had met."""
        met = False
        try:
            with self._meeting.meet() as links:
                met = True
                drive(self._side.serve(), party=NAME, links=links, timeout=self._patience)
        except (LinkError, ProtocolError) as error:
            if not met:
                raise
            return error
        return None
