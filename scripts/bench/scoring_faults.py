"""Does a prediction survive? Every kind of scorer, in processes of their own, and faults at messages drawn with a seed.

A bank, two passive parties and, where it computes the scores, a coordinator score records over mutual TLS on loopback,
with memoised noise on the scores. At messages that are drawn, parties are killed and started again with the same
command, hang up, or send what is late, doubled, cut short, missing or out of order. A fault is survived if everybody
ends well who was not killed, and the scores are those of an undisturbed prediction, to the bit: the noise too, also of
a scorer that was killed. And each passive party's ledger is whole, and counts no record less often than it was shown:
than processes of the party sent something of it, and than it was sent at all where somebody else answers.

Run ``python -m scripts.bench.scoring_faults [--quick] [--json OUT] [--faults 20] [--seed 0]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from scripts.bench.faulty import MESSAGES
from scripts.bench.measuring import Result, machine, print_table
from scripts.bench.processes import LIMIT_S, Command, Launch, Process, free_port, workplace
from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.config.sections import parse_config
from splitvfl.exchange.scoring import ACTIVE, COORDINATOR
from splitvfl.report.served import served_in

BANK, PASSIVES = "clinic", ("lab", "shop")
ROLES: Final = (ACTIVE, COORDINATOR, PASSIVES[0])
KINDS: Final = (*MESSAGES, "die", "die", "hang up")  # a kill is the worst of them, and is drawn more often
FAULTS_IN_A_RUN: Final = 2  # a link is mended three times
# Eight messages of parts and of scores.
_RECORDS, _ROWS = 114, 16
_MOST_MESSAGES: Final = 14
_POLL_S: Final = 0.02
_SHOWN: Final = {"activation", "part", "scores"}
"""Kinds of messages by which a passive party shows something of a record."""
_TEXT = """\
name: scored
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: "worst *"}
  shop: {role: passive, columns: rest}
model: logistic-regression
train: {epochs: 1, batch_size: 64, seed: 3, device: cpu, threads: 1}
audit: false
"""


@dataclass(frozen=True)
class Outcome:
    """What became of one prediction.

    Attributes:
        role: Who computed the scores.
        faults: What happened in it: party, message and kind.
        happened: How many of these it came to.
        lost: What went wrong; empty: nothing did.
    """

    role: str
    faults: tuple[str, ...]
    happened: int
    lost: str


def make_halves(folder: Path) -> Path:
    """Train a model, and return where the halves of all parties lie, with new records beside them."""
    from sklearn.datasets import load_breast_cancer

    load_breast_cancer(as_frame=True).data[:_RECORDS].to_csv(folder / "new.csv", index=False)
    config = parse_config(_TEXT, source="scored.yaml")
    trainer = build_trainer(config, load_data(config))
    trainer.fit(1)
    trainer.save(folder / "halves")
    return folder / "halves"


class Scored:
    """One prediction of a role, with a folder for each party. A context manager: nobody outlives it.

    Args:
        role: Who computes the scores.
        folder: Where; certificates lie in ``certs`` beside it.
        halves: The parties' halves.
        launch: Starts a party.
        message_s: Seconds that a message may take.
    """

    def __init__(self, role: str, folder: Path, halves: Path, *, launch: Launch, message_s: float = 6.0) -> None:
        self.role, self.folder, self._launch = role, folder, launch
        self.names = (BANK, *PASSIVES, *([COORDINATOR] if role == COORDINATOR else []))
        self.processes: dict[str, Process] = {}
        self._halves = halves
        port = {name: free_port() for name in self.names}
        for name in self.names:
            (folder / name).mkdir(parents=True)
            (folder / name / "certs").symlink_to(folder.parent / "certs")
            (folder / name / "rows").write_text(str(_ROWS))
            (folder / name / "sent").touch()
            if name != COORDINATOR:
                # Its own: the ledger is beside it.
                shutil.copytree(halves / name, self._half(name))
            (folder / name / "run.yaml").write_text(self._file(name, port, message_s))

    def _file(self, name: str, port: Mapping[str, int], message_s: float) -> str:
        text = _TEXT
        for other in PASSIVES:
            text = text.replace(f"{other}: {{", f'{other}: {{address: "127.0.0.1:{port[other]}", ')
        third = f', address: "127.0.0.1:{port[COORDINATOR]}"' if self.role == COORDINATOR else ""
        scorer = BANK if self.role == ACTIVE else self.role
        noise = "{name: score-noise, scheme: optimum, power: 2.0, direction: sent}"
        # In a file of all parties a defense of scores is the scorer's.
        publish = "publish_scores: true, " if self.role == ACTIVE else ""
        return (
            f"{text}prediction: {{scores_by: {self.role}, score_noise: memoised, direction_by: shop{third}}}\n"
            f"network: {{listen: '127.0.0.1:{port[name]}', certificates: certs, {publish}message_s: {message_s}, "
            f"meeting_s: 60}}\n" + (f"defenses: [{noise}]\n" if name == scorer or scorer != COORDINATOR else "")
        )

    def __enter__(self) -> Scored:
        for name in self.names:
            self.start(name)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            if process.code() is None:
                os.kill(process.pid, signal.SIGKILL)
            while process.code() is None:
                time.sleep(_POLL_S)

    def start(self, name: str) -> None:
        """Start a party: the same command every time."""
        arguments = ["predict", "run.yaml", "--as", name]
        if name != COORDINATOR:
            arguments += ["--model", "half", "--records", str(self._halves.parent / "new.csv")]
        if name == BANK:
            arguments += ["--out", "scores.csv", "--overwrite"]
        self.processes[name] = self._launch(self.folder / name, arguments)

    def _half(self, name: str) -> Path:
        return self.folder / name / "half"

    def keep_keys_of(self, earlier: Scored) -> None:
        """Take over the key of memoised noise of an earlier prediction: a file of the scorer, which lasts."""
        for key in earlier.folder.rglob("noise.key"):
            own = self.folder / key.relative_to(earlier.folder)
            own.parent.mkdir(parents=True, exist_ok=True)
            own.parent.chmod(0o700)
            own.write_bytes(key.read_bytes())
            own.chmod(0o600)

    def plan(self, faults: Sequence[tuple[str, int, str]]) -> None:
        """Say what is to happen, before the start: at whom, at which message, and what."""
        for name, number, kind in faults:
            with (self.folder / name / "faults").open("a") as file:
                file.write(f"{number} {kind}\n")

    def finish(self, limit_s: float = LIMIT_S) -> str:
        """Wait until all have ended well, and start again whoever was killed; return what went wrong, if anything did.

        Whoever had ended when somebody was killed is started again too: a prediction that begins again needs everybody.
        """
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            codes = {name: process.code() for name, process in self.processes.items()}
            if all(code == 0 for code in codes.values()):
                return ""
            wrong = [name for name, code in codes.items() if code not in (None, 0, -signal.SIGKILL)]
            if wrong:
                return f"{wrong[0]} ended with {codes[wrong[0]]}: {self.processes[wrong[0]].words()}"
            if -signal.SIGKILL in codes.values():
                for name in [name for name, code in codes.items() if code is not None]:
                    self.start(name)
            time.sleep(_POLL_S)
        return f"no end within {limit_s:g} s"

    def miscounted(self) -> str:
        """Return which passive party's ledger is not whole, or has less than was shown, in words; empty: none."""
        for name in PASSIVES:
            looks = self._looks(name)
            found = served_in(self._half(name))
            if len(found) != 1:
                return f"{name} has {len(found)} ledgers"
            (ledger,) = found
            if ledger.problem:
                return f"the ledger of {name} is not whole: {ledger.problem}"
            if ledger.different != _RECORDS or ledger.records < _RECORDS * looks:
                return (
                    f"{name} showed {_RECORDS} records {looks} times, and counted {ledger.records}, "
                    f"{ledger.different} different ones"
                )
        return ""

    def _looks(self, name: str) -> int:
        """Return how often a passive party showed the record that it showed most often."""
        sent = [line.split() for line in (self.folder / name / "sent").read_text().splitlines()]
        shown = [(process, step) for process, kind, step in sent if kind in _SHOWN]
        # One process sends the same to the bit when it begins again. But who else answers may have forgotten.
        looks = shown if self.role not in (ACTIVE, name) else set(shown)
        return max(Counter(step for _, step in looks).values(), default=0)

    @property
    def left(self) -> int:
        """Faults that have not happened."""
        files = [self.folder / name / "faults" for name in self.names]
        return sum(len(file.read_text().splitlines()) for file in files if file.exists())

    @property
    def scores(self) -> bytes:
        """What the label party has been answered."""
        return (self.folder / BANK / "scores.csv").read_bytes()


def drawn(role: str, count: int, rng: random.Random) -> list[tuple[str, int, str]]:
    """Return so many faults, at different messages."""
    names = (BANK, *PASSIVES, *([COORDINATOR] if role == COORDINATOR else []))
    places = rng.sample([(name, number) for name in names for number in range(_MOST_MESSAGES)], count)
    return [(name, number, rng.choice(KINDS)) for name, number in places]


def disturbed(scored: Scored, faults: Sequence[tuple[str, int, str]], expected: bytes) -> Outcome:
    """Return what becomes of one prediction in which these things happen."""
    scored.plan(faults)
    with scored:
        lost = scored.finish()
    if not lost and scored.scores != expected:
        lost = "other scores than undisturbed"
    lost = lost or scored.miscounted()
    return Outcome(scored.role, tuple(map(str, faults)), len(faults) - scored.left, lost)


def campaign(faults: int, seed: int, folder: Path, *, launch: Launch = Command) -> list[Outcome]:
    """Let at least so many faults happen to each role, and return what became of the predictions."""
    rng, outcomes = random.Random(seed), []
    halves = make_halves(folder)
    for role in ROLES:
        with Scored(role, folder / role, halves, launch=launch) as first:
            if lost := first.finish():
                outcomes.append(Outcome(role, (), 0, lost))
                continue
        expected, happened, number = first.scores, 0, 0
        while happened < faults:
            number += 1
            scored = Scored(role, folder / f"{role}-{number}", halves, launch=launch)
            scored.keep_keys_of(first)
            outcomes.append(disturbed(scored, drawn(role, FAULTS_IN_A_RUN, rng), expected))
            happened += outcomes[-1].happened
            print(outcomes[-1], flush=True)
    return outcomes


def results(outcomes: Sequence[Outcome]) -> list[Result]:
    """Return a row for each role."""
    happened: Counter[str] = Counter()
    for outcome in outcomes:
        happened[outcome.role] += outcome.happened
    rows = []
    for role in ROLES:
        lost = [one for one in outcomes if one.role == role and one.lost]
        note = "; ".join(f"{', '.join(one.faults)}: {one.lost[:200]}" for one in lost)
        rows.append(
            Result(f"scores by {role}: predictions lost", len(lost), f"{happened[role]} faults", 0.0, note=note)
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Let faults happen, and print and write what became of them; 1 if a prediction was lost."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.scoring_faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four faults in each role")
    parser.add_argument("--faults", type=int, default=None, help="how many in each role; default 20, or 4")
    parser.add_argument("--seed", type=int, default=0, help="draws what happens, to whom, and when")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    with workplace(BANK, *PASSIVES, COORDINATOR) as folder:
        rows = results(campaign(arguments.faults or (4 if arguments.quick else 20), arguments.seed, folder))
    print_table("faults of predictions", rows)
    if arguments.json is not None:
        written = [{**asdict(row), "holds": row.holds} for row in rows]
        arguments.json.write_text(json.dumps({"machine": machine(), "results": written}, indent=2) + "\n")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
