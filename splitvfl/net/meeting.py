"""Meetings of a party with its partners: who dials, who waits, and for how long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Self

from splitvfl.errors import (
    CheckpointError,
    ConfigError,
    CryptoError,
    DataError,
    ForgedError,
    HookError,
    LimitError,
    LinkError,
    PrivacyError,
    ProtocolError,
    RefusedError,
    ReplayError,
    SumRefused,
    WorkerError,
)
from splitvfl.net.frames import Hello
from splitvfl.net.link import DONE
from splitvfl.net.links import Link, Listener, dial
from splitvfl.net.tls import Identity, Plaintext

_log = logging.getLogger("splitvfl.net")

# What a partner is told when this party stops: that it did, and whether it is worth waiting for. Not the error's own
# text, which may tell of this party's data.
_REASONS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (DataError, "the parties do not agree; what differs is said where it was noticed"),
    (CheckpointError, "it cannot write its checkpoint"),
    (ConfigError, "its settings and those of the others make no run together; how, is said there"),
    (WorkerError, "a process that helps it to compute has ended"),
    (CryptoError, "it has something to encrypt that exceeds what was agreed; what, is said there"),
    (HookError, "one of its hooks failed"),
    (PrivacyError, "a guarantee cannot be kept there"),
    (ReplayError, "it was sent another message for the same step than before the run went back"),
    (ForgedError, "what came to it in another party's name is not what that party sent; which, is said there"),
    (
        SumRefused,
        "it was sent a sum that is none of the agreed numbers, and refused it; how many it takes is said there",
    ),
    (RefusedError, "another party ended the run for good; why, is said there"),
    (ProtocolError, "it got something that does not belong there"),
    (LinkError, "it lost another party, or waited for one in vain"),
    (KeyboardInterrupt, "it was stopped by its operator"),
)

# It would be the same another time.
_FINAL: Final = (ConfigError, DataError, ReplayError, ForgedError, CryptoError, LimitError)


@dataclass(frozen=True, slots=True)
class Partner:
    """Another party that a party talks to.

    Attributes:
        name: Its name.
        identity: The DNS name in its certificate.
        address: Where it is dialled; ``None``: it dials this party.
    """

    name: str
    identity: str
    address: str | None = None


class Meeting:
    """Links to all partners, made anew whenever they are asked for. A context manager: it listens inside its block.

    Args:
        hello: What the party says first: its name, its role, and what the meeting is for.
        partners: Those that it talks to.
        credentials: Its own.
        listen: Where it listens, ``host:port`` or ``:port`` for all addresses of this machine; needed for partners that
            dial it.
        wait_s: Seconds to wait for all partners to appear.
        notify: Told in one line what is waited for.
        lasting: Whether partners wait here for each other again whatever ends a meeting between others, as those of a
            service do: one of them ends its own part of it, and nobody else's.
    """

    def __init__(
        self,
        hello: Hello,
        partners: Sequence[Partner],
        credentials: Identity | Plaintext,
        *,
        listen: str | None = None,
        wait_s: float = 600.0,
        notify: Callable[[str], None] = lambda line: None,
        lasting: bool = False,
    ) -> None:
        self._hello, self._partners, self._credentials = hello, tuple(partners), credentials
        self._listen = f"0.0.0.0{listen}" if listen is not None and listen.startswith(":") else listen
        self._wait_s, self._notify, self._lasting = wait_s, notify, lasting
        self._listener: Listener | None = None
        self._stack = ExitStack()
        self._meetings = 0

    def __enter__(self) -> Self:
        for partner in self._partners:
            if partner.address is not None:
                self._credentials.check_address(partner.address)
        callers = {partner.name: partner.identity for partner in self._partners if partner.address is None}
        if callers:
            assert self._listen is not None, "partners without an address need a place to dial"
            self._listener = self._stack.enter_context(
                Listener(self._listen, self._credentials, hello=self._hello, peers=callers)
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._listener = None

    @property
    def port(self) -> int | None:
        """The port on which it listens, if it does."""
        return None if self._listener is None else self._listener.port

    @property
    def credentials(self) -> Identity | Plaintext:
        """This party's own."""
        return self._credentials

    @property
    def run(self) -> str:
        """The purpose of the meeting, as the parties tell each other."""
        return self._hello.run

    @property
    def wait_s(self) -> float:
        """Seconds that it waits for all partners to appear."""
        return self._wait_s

    @contextmanager
    def meet(self) -> Iterator[Mapping[str, Link]]:
        """Make links to all partners, for the length of a block; they are told why when it ends with an error.

        Raises:
            LinkError: If a partner does not appear in time; it names who was waited for.
            ProtocolError: If whoever answers in a partner's place is not that partner, or refuses this party.
        """
        deadline = time.monotonic() + self._wait_s
        links: dict[str, Link] = {}
        try:
            for partner in self._partners:
                links[partner.name] = self._link(partner, max(round(deadline - time.monotonic(), 1), 0.0))
                self._notify(f"linked with {partner.name}")
            self._meetings += 1
            _log.info("%s: meeting %d, linked with %s", self._hello.party, self._meetings, ", ".join(links))
            yield links
        except BaseException as error:
            reason = _reason(error)
            # A lost link quotes no data; other errors may.
            why = str(error) if isinstance(error, LinkError) else f"{type(error).__name__}, {reason}"
            _log.warning("%s: links closed: %s", self._hello.party, why)
            # What is no matter of links, or would be the same another time, ends this party. A partner that came back
            # while it takes leave would be greeted for nothing, and count that as one of the breaks that it bears.
            again = isinstance(error, LinkError | ProtocolError) and not getattr(error, "final", False)
            if self._listener is not None and not self._lasting and not again:
                self._listener.greet_nobody()
            together = len(links) == len(self._partners) and not self._lasting
            for link in links.values():
                link.close(reason, final=_is_final(error, together=together))
            raise
        for link in links.values():
            link.close(DONE)
        _log.info("%s: links closed, everything done", self._hello.party)

    def _link(self, partner: Partner, timeout: float) -> Link:
        if partner.address is None:
            assert self._listener is not None
            self._notify(f"waiting for {partner.name} to dial {self._listener.address}, {timeout:.0f} s at most")
            return self._listener.accept(partner.name, timeout=timeout)
        self._notify(f"dialling {partner.name} at {partner.address}, {timeout:.0f} s at most")
        return dial(
            partner.name,
            partner.address,
            self._credentials,
            hello=self._hello,
            identity=partner.identity,
            timeout=timeout,
            notify=self._notify,
        )


def _reason(error: BaseException) -> str:
    """Return what partners are told of an error."""
    if isinstance(error, LimitError):  # it is written for them
        return str(error)
    return next((text for kind, text in _REASONS if isinstance(error, kind)), "it was stopped")


def _is_final(error: BaseException, *, together: bool) -> bool:
    """Return whether there is no use in meeting this party again.

    Who is ended for good by one party ends for all others of a run: they would dial for nothing. Before all have met,
    whoever is refused may be started anew with other credentials, and the others may wait for that. So they may in a
    service: else any one of them could end all.
    """
    if isinstance(error, SumRefused):
        return error.final
    if isinstance(error, RefusedError):
        return together
    return isinstance(error, _FINAL) and not isinstance(error, WorkerError)
