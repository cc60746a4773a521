"""Two parties of several workers each, every worker a process of its own, on this machine.

Each worker is started with the variables that ``torchrun`` sets, and nobody but the workers themselves ends a party of
which one worker is gone. A party of which a worker has not ended well is started again, all its workers with the same
commands, when all of them have ended: who waits for that hangs if one of them does not end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.bench.processes import Disturbed, Ended, Kinds, Launch, Lost, Pace, free_ports, kept_state

PARTIES: Final = ("clinic", "lab")
# Of runs to which nothing happens: many processes that start on few cores take a while until the first step.
LONG_S: Final = 900.0
NO_KINDS: Final[Kinds] = {}


@dataclass(frozen=True)
class TeamScenario:
    """A run of two parties of several workers.

    Attributes:
        name: Its name.
        workers: How many each party has.
        settings: The rest of the file.
        columns: The label party's columns; the other one has the rest.
        wide: Whether all is computed in float64.
    """

    name: str
    workers: int
    settings: str
    columns: str = '"mean *"'
    wide: bool = False

    @property
    def members(self) -> tuple[str, ...]:
        """All workers of both parties, worker 0 of the active one first."""
        return tuple(member_of(party, rank) for party in PARTIES for rank in range(self.workers))

    def file(self, port: int, dialled: int, pace: Pace) -> str:
        """Return the file of all parties; worker i of the label party listens at the port and i."""
        return (
            f'parties:\n  clinic: {{role: active, columns: [{self.columns}], address: "127.0.0.1:{dialled}+"}}\n'
            f"  lab: {{role: passive, columns: rest}}\nteam: {{workers: {self.workers}}}\n{self.settings}"
            f'network: {{listen: "127.0.0.1:{port}+", certificates: certs, message_s: {pace.message_s}, '
            f"meeting_s: {pace.meeting_s}}}\n"
        )


def member_of(party: str, rank: int) -> str:
    """Return the name of a worker, which is that of its folder."""
    return f"{party}-{rank}"


def party_of(member: str) -> str:
    """Return whose worker it is."""
    return member.rpartition("-")[0]


class Teams(Disturbed):
    """Two parties of several workers in processes. A context manager: none outlives it.

    Args:
        scenario: What they do.
        folder: Where; certificates lie in ``certs`` beside it.
        pace: How long things take.
        launch: Starts a worker.
        relayed: Whether each pair of workers talks through a relay of its own.
    """

    def __init__(
        self, scenario: TeamScenario, folder: Path, *, pace: Pace, launch: Launch, relayed: bool = False
    ) -> None:
        super().__init__(scenario.name, scenario.members, folder, pace=pace, launch=launch)
        self.scenario = scenario
        # Of workers that have ended, and have not been started again.
        self._codes: dict[str, int] = {}
        workers = range(scenario.workers)
        # All at once, so that none of them is given twice.
        port = free_ports(2 * scenario.workers + len(PARTIES))
        dialled, meeting = port + scenario.workers, port + 2 * scenario.workers
        self._meeting = dict(zip(PARTIES, range(meeting, meeting + len(PARTIES)), strict=True))
        if relayed:
            for rank in workers:
                self.relay(member_of("lab", rank), port + rank, dialled + rank)
        for name in self.members:
            self._place(folder / name, scenario.file(port, dialled if relayed else port, pace))

    def _place(self, folder: Path, file: str) -> None:
        folder.mkdir(parents=True)
        (folder / "certs").symlink_to(self.folder.parent / "certs")
        (folder / "run.yaml").write_text(file)
        if self.scenario.wide:
            (folder / "float64").touch()

    @property
    def kinds(self) -> Kinds:
        """Nothing happens to them."""
        return NO_KINDS

    def start(self, name: str) -> None:
        """Start a worker: the same command every time."""
        party, _, rank = name.rpartition("-")
        self.processes[name] = self.launch(
            self.folder / name,
            ["party", "run.yaml", "--as", party, "--out", f"../{party}"],
            RANK=rank,
            LOCAL_RANK=rank,
            WORLD_SIZE=str(self.scenario.workers),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self._meeting[party]),
        )

    def folders(self, party: str) -> list[Path]:
        """Return where each worker of a party keeps what is its own."""
        run = self.folder / party
        return [run, *(run / f"worker-{rank}" for rank in range(1, self.scenario.workers))]

    def tend(self) -> None:
        """Start a party again whose workers have all ended, if one of them did not end well."""
        for name, process in list(self.processes.items()):
            code = process.code()
            if code is not None and name not in self._codes:
                self._codes[name] = code
                self.ended.append(Ended(name, code, process.words()))
        for workers in (self.fellows(member_of(party, 0)) for party in PARTIES):
            if self._codes.keys() >= set(workers) and any(self._codes[name] for name in workers):
                for name in workers:
                    del self._codes[name]
                    self.start(name)

    def fellows(self, name: str) -> list[str]:
        """Return the workers of a worker's party, itself included, in order."""
        return [other for other in self.members if party_of(other) == party_of(name)]

    @property
    def done(self) -> set[str]:
        """The workers that have ended well, if all of their party have."""
        waited_for = {party_of(name) for name in self.members if self._codes.get(name) != 0}
        return {name for name in self.members if party_of(name) not in waited_for}

    def finish_undisturbed(self) -> None:
        """Wait until all have ended well.

        Raises:
            Lost: If one of them does not.
        """
        self.until(
            lambda: self.done == set(self.members) or any(one.code for one in self.ended), "the end of the run", LONG_S
        )
        if deaths := [one for one in self.ended if one.code]:
            raise Lost(f"{self.name}: {deaths[0].party} ended with {deaths[0].code}: {deaths[0].said}")

    def in_one_process(self) -> Path:
        """Train in one process, in as many shards, and return the folder of that run.

        Raises:
            Lost: If it does not end well.
        """
        process = self.launch(self.folder / self.members[0], ["train", "run.yaml", "--out", "../whole"])
        self.until(lambda: process.code() is not None, "the end of the run in one process", LONG_S)
        if process.code() != 0:
            raise Lost(f"{self.name}: the run in one process ended with {process.code()}: {process.words()}")
        return self.folder / "whole"

    def state(self) -> dict[str, Any]:
        """Return what a finished run leaves behind: what must be equal to the bit."""
        found: dict[str, Any] = {"metrics": (self.folder / "clinic" / "metrics.jsonl").read_bytes()}
        for party in PARTIES:
            for rank, folder in enumerate(self.folders(party)):
                found[member_of(party, rank)] = kept_state(folder)
            found[f"{party}'s half"] = (self.folder / party / "model" / "weights.safetensors").read_bytes()
        return found
