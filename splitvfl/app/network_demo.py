"""Three companies on one machine: align, train, kill one and start it again, score new records.

Nothing is simulated: three folders stand for three machines, and each party is a process of its own that reads its own
folder alone. They talk over loopback, under mutual TLS. It is docs/network.md, unattended.

``splitvfl demo --network`` runs it; ``splitvfl examples companies`` only makes the folders, to go through the page by
hand.
"""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from splitvfl.errors import ConfigError, SplitVFLError

ACTIVE, PASSIVE = "clinic", ("lab", "imaging")
PARTIES = (ACTIVE, *PASSIVE)
PORT = 7000

# What a party has: its file, what it calls its id column, and which columns of the set it holds.
FILES = {"clinic": "patients.csv", "lab": "samples.csv", "imaging": "scans.csv"}
ID_COLUMNS = {"clinic": "patient", "lab": "sample_of", "imaging": "person"}
COLUMNS = {"clinic": "mean ", "lab": " error", "imaging": "worst "}

EXPERIMENT = "tumour.yaml"
NEW_RECORDS, NEW_ALIGNED, SCORES = "new.csv", "aligned/new", "scores.csv"
EXPERIMENTS = {
    "clinic": """\
data: {name: table, path: patients.csv, aligned: aligned/clinic}
parties:
  clinic: {role: active, columns: rest, label: malignant}
  lab: {role: passive}
  imaging: {role: passive}
model: {name: mlp, top_hidden: [16]}
train: {epochs: 400, batch_size: 32, seed: 0}
defenses:
  - {name: asymmetric-response, detection_error: 0.4}
attacks: [norm, direction, residual]
network: {listen: "127.0.0.1:7000", certificates: certs}
""",
    "lab": """\
data: {name: table, path: samples.csv, aligned: aligned/lab}
parties:
  clinic: {role: active, address: "127.0.0.1:7000"}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [16, 8]}
train: {epochs: 400, batch_size: 32, seed: 0}
network: {certificates: certs}
""",
    "imaging": """\
data: {name: table, path: scans.csv, aligned: aligned/imaging}
parties:
  clinic: {role: active, address: "127.0.0.1:7000"}
  imaging: {role: passive, columns: rest}
model: {name: mlp, bottom: [32, 8]}
train: {epochs: 400, batch_size: 32, seed: 0}
defenses:
  - {name: gaussian-ir, clip: 10.0, sigma: 0.1}
network: {certificates: certs}
""",
}
EPOCHS = 400
"""By hand: enough to look around. The demonstration takes fewer."""
RUN = "runs/tumour-{}"
"""Where a party's run lies by default."""

_NEW, _MISSING = 60, 0.07
_LIMIT_S = 300.0
_COMMAND = [sys.executable, "-c", "import sys; from splitvfl.cli import main; sys.exit(main())"]


# --- what each party has


def prepare(folder: Path, *, port: int = PORT, epochs: int = EPOCHS) -> None:
    """Make a folder for each party, with its records, new records and experiment file.

    Args:
        folder: Where the three folders lie; it is replaced if it was made by this function.
        port: Where the active party listens.
        epochs: How long they train.

    Raises:
        ConfigError: If something else lies there.
    """
    mark = folder / "made-by-demo-network"
    if folder.exists() and not mark.exists():
        raise ConfigError(f"{folder} was not made by this demonstration; name another folder with --out")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark.touch()
    for party, text in EXPERIMENTS.items():
        (folder / party).mkdir()
        changed = text.replace(f":{PORT}", f":{port}").replace(f"epochs: {EPOCHS}", f"epochs: {epochs}")
        (folder / party / EXPERIMENT).write_text(changed)
    _write_records(folder)


def _write_records(folder: Path) -> None:
    """Divide the columns of a set; every party lacks other records, and has them in another order."""
    found = load_breast_cancer()
    random = np.random.default_rng(0)
    everybody = random.permutation(len(found.data))
    for party in PARTIES:
        columns = [place for place, name in enumerate(found.feature_names) if COLUMNS[party] in name]
        header = [ID_COLUMNS[party], *(found.feature_names[place] for place in columns)]
        for name, rows in ((FILES[party], everybody[_NEW:]), (NEW_RECORDS, everybody[:_NEW])):
            held = random.permutation(rows[random.random(len(rows)) >= _MISSING])
            records = [[f"P-{row:04d}", *found.data[row, columns]] for row in held]
            if party == ACTIVE and name == FILES[party]:
                # In this set 0 stands for malignant.
                labelled = [[*record, int(found.target[row] == 0)] for record, row in zip(records, held, strict=True)]
                _write_csv(folder / party / name, [*header, "malignant"], labelled)
            else:
                _write_csv(folder / party / name, header, records)


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


# --- what each party is told to do


def align_command(party: str, *, port: int = PORT, new: bool = False) -> str:
    """Return how a party aligns its records, or its new ones."""
    file, folder = (NEW_RECORDS, f" --out {NEW_ALIGNED}") if new else (FILES[party], "")
    if party == ACTIVE:
        way = " ".join(f"--peer {other}" for other in PASSIVE) + f" --listen 127.0.0.1:{port}"
    else:
        way = f"--peer {ACTIVE}=127.0.0.1:{port}"
    return f"splitvfl align {file} --id {ID_COLUMNS[party]} --as {party} --active {ACTIVE} {way}{folder}"


def party_command(party: str) -> str:
    """Return how a party trains."""
    return f"splitvfl party {EXPERIMENT} --as {party}"


def predict_command(party: str) -> str:
    """Return how a party takes part in scoring new records."""
    scores = f" --out {SCORES}" if party == ACTIVE else ""
    return f"splitvfl predict {EXPERIMENT} --as {party} --records {NEW_RECORDS} --aligned {NEW_ALIGNED}{scores}"


CERTS = f"splitvfl certs {' '.join(PARTIES)} --out certs"


# --- running them


class _Failed(SplitVFLError):
    """A party did not do what it was told."""


@dataclass(frozen=True)
class _Running:
    """A party's process, whose words are printed behind its name as they come; or kept, if they are results."""

    party: str
    process: subprocess.Popen[str]
    readers: tuple[threading.Thread, ...]
    results: list[str]

    def wait(self, deadline: float) -> None:
        """Wait for its end.

        Raises:
            _Failed: If it does not end in time, or not well.
        """
        try:
            code = self.process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            raise _Failed(f"{self.party} is not done after {_LIMIT_S:g} s") from None
        self._listen_to_the_end()
        if code:
            raise _Failed(f"{self.party} ended with exit code {code}; what it said stands above")

    def kill(self) -> None:
        """End it without giving it time for anything, as a power cut would."""
        self.process.kill()
        self.process.wait()
        self._listen_to_the_end()

    def _listen_to_the_end(self) -> None:
        for reader in self.readers:
            reader.join()


class _Stage:
    """Where the parties play: each in its folder, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[_Running] = []

    def start(self, party: str, command: str, *, keep_results: bool = False) -> _Running:
        """Start a party's command in its folder."""
        print(f"  {party}$ {command}", flush=True)
        words = [*_COMMAND, *shlex.split(command)[1:]]
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, cwd=self.folder / party, stdout=pipe, stderr=pipe, text=True)
        assert process.stdout is not None
        assert process.stderr is not None
        results: list[str] = []
        aloud = partial(_say_of, party)
        readers = (
            threading.Thread(target=_each, args=(process.stdout, results.append if keep_results else aloud)),
            threading.Thread(target=_each, args=(process.stderr, aloud)),
        )
        for reader in readers:
            reader.start()
        self._running.append(_Running(party, process, readers, results))
        return self._running[-1]

    def together(self, commands: Mapping[str, str]) -> None:
        """Run one command at each party, and wait for all."""
        deadline = time.monotonic() + _LIMIT_S
        for running in [self.start(party, command) for party, command in commands.items()]:
            running.wait(deadline)

    def clear(self) -> None:
        """End whatever still runs."""
        for running in self._running:
            if running.process.poll() is None:
                running.kill()


@contextmanager
def _stage(folder: Path) -> Iterator[_Stage]:
    stage = _Stage(folder)
    try:
        yield stage
    finally:
        stage.clear()


def _each(lines: Iterator[str], do: Callable[[str], None]) -> None:
    for line in lines:
        do(line)


def _say_of(party: str, line: str) -> None:
    print(f"  {party:8}| {line}" if line.strip() else "", end="", flush=True)


# --- the demonstration


def demonstrate(folder: Path, *, quick: bool = False) -> None:
    """Go through docs/network.md, and print what happens.

    Raises:
        ConfigError: If something else lies in the folder's place.
        SplitVFLError: If a party fails.
    """
    begun, port = time.monotonic(), _free_port()
    with _stage(folder) as stage:
        _say("Three companies, three folders", f"{folder}; each process works in its own and sees nothing else")
        prepare(folder, port=port, epochs=12 if quick else 60)
        _show_records(folder)
        _say("Certificates", "each gets ca.pem, its own certificate and its own key")
        _hand_out_certificates(folder)
        _say("Align", "which patients do all three have? Private set intersection; nobody shows a list")
        stage.together({party: align_command(party, port=port) for party in PARTIES})
        _say("Train", "the lab is killed on the way, and started again with the same command")
        results = _train(stage, kill_after=40 if quick else 200)
        _say("Score new patients", "aligned first; the scores go to the clinic alone")
        stage.together({party: align_command(party, port=port, new=True) for party in PARTIES})
        stage.together({party: predict_command(party) for party in PARTIES})
        _show_scores(folder / ACTIVE / SCORES)
    _say("Done", f"in {time.monotonic() - begun:.0f} s; what the clinic was told when training had ended")
    print("".join(results), flush=True)
    _next_steps(folder)


def _train(stage: _Stage, kill_after: int) -> list[str]:
    """Train, kill the lab and start it again; return what the active party printed as its results."""
    deadline = time.monotonic() + _LIMIT_S
    running = {party: stage.start(party, party_command(party), keep_results=party == ACTIVE) for party in PARTIES}
    log = stage.folder / ACTIVE / RUN.format(ACTIVE) / "metrics.jsonl"
    while (step := _logged(log)) < kill_after:
        ended = [party for party, one in running.items() if one.process.poll() is not None]
        if ended or time.monotonic() > deadline:
            why = f"{ended[0]} has ended" if ended else f"after {_LIMIT_S:g} s"
            raise _Failed(f"training did not get to step {kill_after}: {why}; what was said stands above")
        time.sleep(0.05)
    running["lab"].kill()
    print(f"  -- kill -9: the lab is gone, after step {step}; it is started again with the same command", flush=True)
    running["lab"] = stage.start("lab", party_command("lab"))
    for one in running.values():
        one.wait(deadline)
    # What comes next is said at the end, and from where the reader is.
    return list(takewhile(lambda line: not line.startswith("next:"), running[ACTIVE].results))


def _logged(log: Path) -> int:
    """Return the last step that a run has logged for certain; the last line may be half a line."""
    lines = log.read_text().splitlines()[:-1] if log.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _hand_out_certificates(folder: Path) -> None:
    print(f"  $ {CERTS}", flush=True)
    subprocess.run([*_COMMAND, *shlex.split(CERTS)[1:]], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    for party in PARTIES:
        (folder / party / "certs").mkdir()
        for name in ("ca.pem", f"{party}.pem", f"{party}.key"):
            shutil.copy(folder / "certs" / name, folder / party / "certs" / name)
    shutil.rmtree(folder / "certs")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _say(title: str, more: str) -> None:
    print(f"\n{title}: {more}", flush=True)


def _show_records(folder: Path) -> None:
    for party in PARTIES:
        with (folder / party / FILES[party]).open() as file:
            rows = list(csv.reader(file))
        print(
            f"  {party:8}| {FILES[party]}: {len(rows) - 1} records, {', '.join(rows[0][:3])}, ...; first {rows[1][0]}"
        )


def _show_scores(path: Path) -> None:
    lines = path.read_text().splitlines()
    print(f"  {ACTIVE}/{SCORES}: {len(lines) - 1} scores")
    for line in lines[:4]:
        print(f"    {line}")


def _next_steps(folder: Path) -> None:
    run = folder / ACTIVE / RUN.format(ACTIVE)
    print(f"next: splitvfl report {run}")
    print(f"      tensorboard --logdir {run}")
    print("      docs/network.md: the same by hand, in three terminals, and what to know before you do it for real")
