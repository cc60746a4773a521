"""From a party's own file to where it meets the others: who is found where, who proves who it is, and how."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from splitvfl.config.sections import ExchangeSection, ExperimentConfig, NetworkConfig, PartyConfig, PredictionConfig
from splitvfl.errors import ConfigError
from splitvfl.exchange.roll_call import UNSIGNED, Vouching
from splitvfl.exchange.scoring import COORDINATOR
from splitvfl.net.frames import Hello, Role
from splitvfl.net.meeting import Meeting, Partner
from splitvfl.net.signing import CertificateSigner
from splitvfl.net.tls import Identity, Plaintext, identities, is_loopback, split_address
from splitvfl.run.session import Session

SERVING: Final = "serving"
"""What parties meet for that answer about records until they are stopped."""

PREDICTION: Final = "prediction"
"""What parties meet for that score records together."""

CHECKING: Final = "checking"
"""What all meet for that take part in anything, to see whether they find each other."""

_LISTEN: Final = "network.listen"
# Hosts that stand for all addresses of whatever machine it is.
_EVERYWHERE: Final = ("", "0.0.0.0", "[::]")


@dataclass(frozen=True, eq=False)
class AddressBook:
    """Where the parties of an experiment find each other, by the file of one of them.

    Attributes:
        config: The file.
        name: The party's name.
        purpose: What they meet for: ``training``, :data:`PREDICTION`, :data:`CHECKING`, or what only parties with data
            take part in.
        worker: Which of the party's workers this process is, from 0.
        workers: How many processes each party has for this. ``None``: as many as the file says for training, and one
            for all else.
    """

    config: ExperimentConfig
    name: str
    purpose: str = "training"
    worker: int = 0
    workers: int | None = None

    def meeting(self, notify: Callable[[str], None]) -> Meeting:
        """Return where the party meets its partners.

        Raises:
            ConfigError: If the file does not say how, or a certificate is not as it must be.
        """
        config, network = self.config, self.network
        partners = self._partners()
        role: Role = "active" if self.name == config.active else "passive"
        return Meeting(
            Hello(self.name, f"{network.run or config.active}, {self.purpose}", role, self.worker, self._workers),
            partners,
            self._identity(),
            listen=self._own_address(_LISTEN, network.listen),
            wait_s=network.meeting_s,
            notify=notify,
            lasting=self.purpose == SERVING,
        )

    def session(
        self, notify: Callable[[str], None] = lambda line: None, *, most_retries: int | None = None
    ) -> Session[Meeting]:
        """Return the party's session, which meets the others where :meth:`meeting` does.

        Args:
            notify: Told in one line what happens.
            most_retries: How often a broken link is mended at most; ``None``: as often as the file says.
        """
        network, place = self.network, self.meeting(notify)
        retries = network.retries if most_retries is None else min(network.retries, most_retries)
        return Session(self.name, place, network.message_s, network.meeting_s, retries, notify)

    def vouching(self, meeting: Meeting) -> Vouching:
        """Return how the party proves that keys which the active party passes on are its own, and whose keys it takes.

        Those that its file names take part, and sign with the keys of their certificates. Without certificates nobody
        does; nor where no keys are passed on, and a file need not name others.

        Raises:
            ConfigError: If the others would not accept what this party signs.
        """
        if not (self.config.exchange.factory.hides_parts or self._scored_elsewhere):
            return UNSIGNED
        names = self._identities()
        members = frozenset(self._taking_part) - {self.config.active}
        if isinstance(meeting.credentials, Plaintext):
            return Vouching(members)
        signers = {member: names[member] for member in members}
        return Vouching(members, CertificateSigner(meeting.credentials, signers, run=meeting.run))

    @property
    def network(self) -> NetworkConfig:
        """What the file says of the network."""
        if self.config.network is None:
            raise ConfigError(f"{self.config.source}: network: where do the parties meet? Say listen and certificates")
        return self.config.network

    @property
    def active(self) -> str:
        """Name of the label party, which meets all others."""
        return self.config.active

    def waiting(self, wait_s: float) -> AddressBook:
        """Return the same book, by which the party waits so many seconds for its partners to appear."""
        network = self.network.model_copy(update={"meeting_s": wait_s})
        return replace(self, config=self.config.model_copy(update={"network": network}))

    def described(self, name: str) -> str:
        """Return a partner's name, and what it does if it has no data, or computes the scores."""
        does = [
            *(["has the key"] if name == self.config.exchange.factory.third_party else []),
            *(["computes the scores"] if name == self.config.scorer != self.active else []),
        ]
        return f"{name} ({', '.join(does)})" if does else name

    @property
    def on_one_machine(self) -> bool:
        """Whether no address that the file gives can be reached from another machine."""
        given = (self.network.listen, *(place.address for place in self._places.values()))
        # No address to listen at is 0.0.0.0: any machine's.
        return all(is_loopback(one.rpartition(":")[0].strip("[]")) for one in given if one is not None)

    def _partners(self) -> tuple[Partner, ...]:
        config, listen, places = self.config, self._own_address(_LISTEN, self.network.listen), self._places
        others = [config.active] if self.name != config.active else [name for name in places if name != self.name]
        wanted = [name for name in others if name in self._taking_part]
        names = self._identities()
        # No address to listen at is 0.0.0.0.
        self._check(_LISTEN, f"0.0.0.0{listen}" if listen is not None and listen.startswith(":") else listen)
        addresses = {name: self._own_address(f"{self._section(name)}.address", places[name].address) for name in wanted}
        for name, address in addresses.items():
            self._check(f"{self._section(name)}.address", address)
        waiting = next((name for name in wanted if places[name].address is None), None)
        if waiting is not None and listen is None:
            raise ConfigError(
                f"{config.source}: how do {self.name} and {waiting} meet? Give {self._section(waiting)}.address, "
                f"where {waiting} is found, or network.listen, where {waiting} finds {self.name}"
            )
        return tuple(Partner(name, names[name], addresses[name]) for name in wanted)

    @property
    def _workers(self) -> int:
        """How many processes each party has for this: as many as were said, or as the file says for training."""
        if self.workers is not None:
            return self.workers
        together = self.purpose == CHECKING and not self._a_third_party_scores
        return self.config.team.workers if self.purpose == "training" or together else 1

    @property
    def workers_here(self) -> range:
        """Which workers of the party one process can stand for: all, if each has an address or a port of its own."""
        listen = self.network.listen
        apart = listen is None or self._own_address(_LISTEN, listen) != self._of(self.worker + 1)._own_address(
            _LISTEN, listen
        )
        return range(self._workers) if apart else range(self.worker, self.worker + 1)

    def where(self) -> list[str]:
        """Return in words where this worker listens, and where it dials others."""
        listen = self._own_address(_LISTEN, self.network.listen)
        partners = self._partners()
        said = [f"dials {one.name} at {one.address}" for one in partners if one.address is not None]
        return said if len(said) == len(partners) else [f"listens at {listen}", *said]

    def _of(self, worker: int) -> AddressBook:
        return replace(self, worker=worker)

    def _own_address(self, key: str, address: str | None) -> str | None:
        """Return an address as this worker has it: ``{worker}`` is its number, ``7000+`` is port 7000 and so many on.

        Where a party listens at all addresses of a machine, that may be another machine for each worker.

        Raises:
            ConfigError: If all of several workers would have the same one.
        """
        if address is None:
            return None
        port = re.fullmatch(r"(.*:)([0-9]{1,5})\+", address)
        if port is not None:
            return f"{port[1]}{int(port[2]) + self.worker}"
        everywhere = key == _LISTEN and address.rpartition(":")[0] in _EVERYWHERE
        if self._workers > 1 and "{worker}" not in address and not everywhere:
            raise ConfigError(
                f"{self.config.source}: {key}: all {self._workers} workers would have the address {address}; write "
                "{worker} where the number of a worker belongs (shop-{worker}.shop.example:7000), or a plus behind the "
                "port of worker 0 (shop.example:7000+), from which they are counted"
            )
        return address.replace("{worker}", str(self.worker))

    @property
    def _places(self) -> dict[str, PartyConfig | ExchangeSection | PredictionConfig]:
        """Where each party is found, who takes part without data among them."""
        config, third = self.config, self.config.exchange.factory.third_party
        places: dict[str, PartyConfig | ExchangeSection | PredictionConfig] = {**config.parties}
        if third is not None:
            places[third] = config.exchange
        of_its_own = config.prediction.address is not None or config.prediction.identity is not None
        if config.scorer == COORDINATOR and (third is None or of_its_own):
            places[COORDINATOR] = config.prediction
        return places

    @property
    def _a_third_party_scores(self) -> bool:
        return self.config.scorer != self.config.active

    @property
    def _scored_elsewhere(self) -> bool:
        return self.purpose == PREDICTION and self._a_third_party_scores

    @property
    def _taking_part(self) -> set[str]:
        """Names of all that take part in what they meet for."""
        of_training, of_prediction = self.config.exchange.factory.third_party, self.config.scorer
        others: dict[str, tuple[str | None, ...]] = {
            "training": (of_training,),
            PREDICTION: (of_prediction,),
            CHECKING: (of_training, of_prediction),
        }
        third = (name for name in others.get(self.purpose, ()) if name is not None)
        return {*self.config.parties, *third}

    def _identities(self) -> dict[str, str]:
        return identities({name: place.identity for name, place in self._places.items()})

    def _section(self, name: str) -> str:
        if name in self.config.parties:
            return f"parties.{name}"
        return "prediction" if self._places[name] is self.config.prediction else "exchange"

    def _check(self, key: str, address: str | None) -> None:
        if address is not None:
            try:
                split_address(address)
            except ConfigError as error:
                raise ConfigError(f"{self.config.source}: {key}: {error}") from error

    def _identity(self) -> Identity | Plaintext:
        network, name = self.network, self.name
        if network.plaintext_on_loopback:
            return Plaintext(plaintext_on_loopback=True)
        if network.certificates is None and None in (network.certificate, network.key, network.roots):
            raise ConfigError(
                f"{self.config.source}: network.certificates: expected a folder with ca.pem, {name}.pem and {name}.key "
                "(splitvfl certs makes some for trials), or certificate, key and roots one by one"
            )
        return Identity.load(
            name,
            folder=self._beside(network.certificates),
            identity=self._places[name].identity,
            certificate=self._beside(network.certificate),
            key=self._beside(network.key),
            roots=self._beside(network.roots),
        )

    def _beside(self, path: str | None) -> Path | None:
        """Return a path as the file means it: beside the file, then in the current folder."""
        if path is None:
            return None
        given = Path(path).expanduser()
        return next((place / given for place in (self.config.folder, Path.cwd()) if (place / given).exists()), given)
