"""Does a run survive? Parties in processes of their own, and one fault after the other, at moments drawn with a seed.

Two and three parties train over mutual TLS on loopback, with defenses, dropout, evaluation and early stopping, each
passive party through a TCP relay. They are killed, stopped, cut off, sent the wrong things, and their disks are full.
Whoever dies is started again with the same command. A fault is survived if the run gets further than it was before,
nobody dies who was not killed, and in the end weights and figures are those of an undisturbed run and of one process,
to the bit.

With ``--minutes 60`` one run of three parties goes on for about so long, with a fault of a random kind every half
minute, and ends with the weights of one process; the figures then are those faults, and by how many bytes the memory of
each party grew with a step. The label party is spared what ends a process, so that its memory is one line.

Run ``python -m scripts.bench.faults [--quick] [--json OUT] [--faults 50] [--minutes 60] [--seed 0]
[--exchange taylor]``.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from scripts.bench.faulty import CHECKPOINTS, LEAVES, MESSAGES
from scripts.bench.measuring import Result, machine, print_table
from scripts.bench.memory import Sample, Sampler, growth
from scripts.bench.processes import (
    LIMIT_S,
    POLL_S,
    Command,
    Disturbed,
    Ended,
    Fault,
    Kinds,
    Launch,
    Lost,
    Pace,
    differences,
    free_port,
    kept_state,
    workplace,
)
from scripts.bench.relay import MANGLED, Relay
from splitvfl.run import checkpoint

FAULTS_IN_A_RUN: Final = 8
_LAST_STEPS = 5  # a party that is asked to stop within them may be through before it hears


@dataclass(frozen=True)
class Scenario:
    """A run that is disturbed.

    Attributes:
        name: Its name.
        passives: The passive parties and their columns.
        settings: The rest of the file.
        key_bits: Length of all keys, if there are any.
    """

    name: str
    passives: dict[str, str]
    settings: str
    key_bits: int | None = None

    @property
    def parties(self) -> tuple[str, ...]:
        """All of them, the active one first."""
        return ("clinic", *self.passives)

    def file(self, port: int, relay: int, pace: Pace) -> str:
        """Return the file of a passive party that dials a relay, or of the active one, who listens."""
        passives = "".join(f"  {name}: {{role: passive, columns: [{own}]}}\n" for name, own in self.passives.items())
        return (
            f"name: {self.name}\ndata: {{name: breast-cancer}}\nparties:\n"
            f'  clinic: {{role: active, columns: ["mean *"], address: "127.0.0.1:{relay}"}}\n{passives}{self.settings}'
            f'network: {{listen: "127.0.0.1:{port}", certificates: certs, message_s: {pace.message_s}, '
            f"meeting_s: {pace.meeting_s}}}\n"
        )


# Shorter than any for real data; nothing that can go wrong here depends on it.
_KEY_BITS: Final = 512
EXCHANGES: Final = ("split", "in-flight", "residue", "hybrid", "taylor")
_MLP = "model: {name: mlp, bottom: [16, 8], top_hidden: [8], dropout: 0.2}\n"
_IN_THE_CLEAR: Final = {"split": _MLP, "in-flight": f"{_MLP}exchange: {{name: split, in_flight: 2}}\n"}
_ENCRYPTED = "model: logistic-regression\nexchange: {name: EXCHANGE, encryption: {key_bits: 2048, value_limit: 64}}\n"
# Of so many records enough are sent to hide those that are used from 20 columns.
_SECRET, _SECRET_BATCH = "hybrid, epsilon: 1.0, share: 0.4, selection_seed_for_experiments: 5", 64
_TRAINING = """train:
  epochs: EPOCHS
  batch_size: BATCH
  seed: 3
  private_seed_for_experiments: 3
  noise_seed_for_experiments: 5
  checkpoint_every_steps: 10
  early_stopping: {patience: PATIENCE, validation_every: 8}
"""


def scenarios(*, epochs: int, batch: int, patience: int, exchange: str = "split") -> tuple[Scenario, Scenario]:
    """Return a run of two parties and one of three."""
    batch = max(batch, _SECRET_BATCH) if exchange == "hybrid" else batch
    section = _SECRET if exchange == "hybrid" else exchange
    model = _IN_THE_CLEAR.get(exchange) or _ENCRYPTED.replace("EXCHANGE", section)
    training, key_bits = model + _TRAINING, None if exchange in _IN_THE_CLEAR else _KEY_BITS
    for name, value in (("EPOCHS", epochs), ("BATCH", batch), ("PATIENCE", patience)):
        training = training.replace(name, str(value))
    noise = "  - {name: gaussian-ir, clip: 1.0, sigma: 0.1}\n"
    two = f"{training}defenses:\n  - {{name: isotropic, ratio: 0.5}}\n{noise}attacks: [norm, direction]\n"
    answers = "  - {name: memoised-response, flip: 0.1}\n"
    three = f"{training}defenses:\n{answers}  - {{name: max-norm}}\n{noise}attacks: [norm]\n"
    return (
        Scenario("two", {"lab": '"* error", "worst *"'}, two, key_bits),
        Scenario("three", {"lab": '"* error"', "shop": '"worst *"'}, three, key_bits),
    )


# --- parties that run


class Run(Disturbed):
    """The parties of a scenario in processes, each in a folder of its own. A context manager: nobody outlives it.

    Args:
        scenario: What they do.
        folder: Where; certificates lie in ``certs`` beside it.
        pace: How long things take.
        launch: Starts a party.
    """

    def __init__(self, scenario: Scenario, folder: Path, *, pace: Pace, launch: Launch) -> None:
        super().__init__(scenario.name, scenario.parties, folder, pace=pace, launch=launch)
        self.scenario = scenario
        port = free_port()
        for name in scenario.parties:
            (folder / name).mkdir(parents=True)
            (folder / name / "certs").symlink_to(folder.parent / "certs")
            if scenario.key_bits is not None:
                (folder / name / "key bits").write_text(str(scenario.key_bits))
            relay = self.relay(name, port) if name in scenario.passives else port
            (folder / name / "run.yaml").write_text(scenario.file(port, relay, pace))

    @property
    def kinds(self) -> Kinds:
        """What can happen to a party that is one process."""
        return KINDS

    def start(self, name: str) -> None:
        """Start a party: the same command every time."""
        arguments = ["party", "run.yaml", "--as", name, "--out", "out"]
        self.processes[name] = self.launch(self.folder / name, arguments)

    def out(self, name: str) -> Path:
        """Return where a party keeps its run."""
        return self.folder / name / "out"

    def tend(self) -> None:
        """Start again whoever has died."""
        for name, process in list(self.processes.items()):
            code = process.code()
            if code is None or name in self.done:
                continue
            self.ended.append(Ended(name, code, process.words()))
            if code:
                self.start(name)

    @property
    def done(self) -> set[str]:
        """The parties that have ended well."""
        return {one.party for one in self.ended if one.code == 0}

    def state(self) -> dict[str, Any]:
        """Return what a finished run leaves behind: what must be equal to the bit."""
        found: dict[str, Any] = {"metrics": (self.out("clinic") / "metrics.jsonl").read_bytes()}
        for name in self.scenario.parties:
            found[name] = kept_state(self.out(name))
            found[f"{name}'s half"] = (self.out(name) / "model" / "weights.safetensors").read_bytes()
        return found


# --- faults


def _some(run: Disturbed, rng: random.Random) -> str:
    run.struck = rng.choice(run.victims)
    return run.struck


def _some_relay(run: Disturbed, rng: random.Random) -> Relay:
    run.struck = rng.choice(list(run.relays))
    return run.relays[run.struck]


def _is_training(run: Disturbed, name: str) -> Callable[[], bool]:
    process, taken = run.processes[name], run.steps(name)[1]
    return lambda: run.processes[name] is not process and run.steps(name)[1] > taken


def kill_one(run: Disturbed, rng: random.Random) -> None:
    """Kill one party."""
    run.signal(_some(run, rng), signal.SIGKILL)


def kill_several(run: Disturbed, rng: random.Random) -> None:
    """Kill two or three at once."""
    names = rng.sample(run.victims, rng.randint(2, len(run.victims)))
    run.struck = " and ".join(names)
    for name in names:
        run.signal(name, signal.SIGKILL)


def kill_again(run: Disturbed, rng: random.Random) -> None:
    """Kill one, and once more as soon as it trains again."""
    name = _some(run, rng)
    trains = _is_training(run, name)
    run.signal(name, signal.SIGKILL)
    run.until(trains, f"another step of {name}")
    run.signal(name, signal.SIGKILL)


def kill_at_start(run: Disturbed, rng: random.Random) -> None:
    """Kill one, and again while it starts up."""
    name = _some(run, rng)
    for _ in range(2):
        run.signal(name, signal.SIGKILL)
        process = run.processes[name]
        run.until(lambda process=process: process.code() is not None, f"the end of {name}")  # type: ignore[misc]
        run.tend()
        time.sleep(rng.uniform(0.0, run.pace.start_s))
    run.signal(name, signal.SIGKILL)


def _ordered(name: str, what: str, run: Disturbed) -> None:
    run.order(name, what)
    run.until(lambda: not run.ordered(name), f"{what} at {name}")


def kill_in_checkpoint(run: Disturbed, rng: random.Random) -> None:
    """Kill one while it saves."""
    _ordered(_some(run, rng), rng.choice(CHECKPOINTS), run)


def freeze(*, briefly: bool) -> Fault:
    """Stop a process for a while."""

    def fault(run: Disturbed, rng: random.Random) -> None:
        name = _some(run, rng)
        run.signal(name, signal.SIGSTOP)
        time.sleep(run.pace.short_s if briefly else run.pace.long_s)
        run.signal(name, signal.SIGCONT)

    return fault


def cut(run: Disturbed, rng: random.Random) -> None:
    """Break the network, and mend it."""
    relay = _some_relay(run, rng)
    relay.cut()
    time.sleep(rng.uniform(0.0, 2 * run.pace.short_s))
    relay.mend()


def silence(run: Disturbed, rng: random.Random) -> None:
    """Let nothing pass, and tell nobody."""
    relay = _some_relay(run, rng)
    relay.silent = True
    time.sleep(rng.choice([run.pace.short_s, run.pace.long_s]))
    relay.mend()


def slow_down(run: Disturbed, rng: random.Random) -> None:
    """Let everything take long."""
    relay = _some_relay(run, rng)
    relay.delay_s = run.pace.short_s / 5
    time.sleep(2 * run.pace.short_s)
    relay.mend()


def mangle(what: str) -> Fault:
    """Do something to the bytes of one connection."""

    def fault(run: Disturbed, rng: random.Random) -> None:
        relay = _some_relay(run, rng)
        relay.mangle(what)
        run.until(lambda: relay.mangled, f"bytes to {what}")

    return fault


def spoil(what: str) -> Fault:
    """Let a message go wrong between the protocol and the wire."""
    return lambda run, rng: _ordered(_some(run, rng), what, run)


def fill_disk(run: Disturbed, rng: random.Random) -> None:
    """Let no file grow beyond a kilobyte; the party stops, and there is room when it is started again."""
    name = _some(run, rng)
    process = run.processes[name]
    hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, hard))
    run.until(lambda: process.code() is not None, f"{name} to notice that its disk is full")
    if process.code() != 2:
        raise Lost(f"{name} ended with {process.code()} when its disk was full")


def ask_to_stop(number: signal.Signals) -> Fault:
    """Ask one to stop; it saves and goes."""

    def fault(run: Disturbed, rng: random.Random) -> None:
        name = _some(run, rng)
        process = run.processes[name]
        run.signal(name, number)
        run.until(lambda: process.code() is not None, f"{name} to stop")
        # While Python itself starts, a signal ends the process as it ends any other.
        if process.code() not in (130, -number):
            raise Lost(f"{name} ended with {process.code()} when it was asked to stop")

    return fault


# Kind of fault: what happens, and the exit codes with which it may end a party; -9 is a kill.
KINDS: Final[Kinds] = {
    "killed": (kill_one, {-9}),
    "killed, several at once": (kill_several, {-9}),
    "killed, and again as soon as it trains": (kill_again, {-9}),
    "killed, and again while it starts": (kill_at_start, {-9}),
    "killed while it saves": (kill_in_checkpoint, {-9}),
    "stopped for a moment": (freeze(briefly=True), set()),
    "stopped for longer than a message may take": (freeze(briefly=False), set()),
    "network cut": (cut, set()),
    "network silent": (silence, set()),
    "network slow": (slow_down, set()),
    **{f"bytes on the network: {what}": (mangle(what), set()) for what in MANGLED},
    **{f"message: {what}": (spoil(what), set()) for what in MESSAGES},
    "disk full": (fill_disk, {2}),
    "asked to stop, SIGTERM": (ask_to_stop(signal.SIGTERM), {130, -15}),
    "asked to stop, Ctrl-C": (ask_to_stop(signal.SIGINT), {130, -2}),
}
LEAVING: Final = "killed while it takes its leave"
ITSELF: Final = "nothing more until the end of a long run, with the weights of one process"


@dataclass
class Outcome:
    """What became of one fault.

    Attributes:
        kind: Which it was.
        where: To whom it happened, and at which step.
        survived: Whether the run went on, and nobody died who was not killed.
        again: Steps that were taken again.
        seconds: Until the run was further than before.
        note: What went wrong.
    """

    kind: str
    where: str = ""
    survived: bool = True
    again: int = 0
    seconds: float = 0.0
    note: str = ""


def disturb(run: Disturbed, kind: str, rng: random.Random) -> Outcome:
    """Let one fault happen, and wait until the run is further than it was."""
    fault, _ = run.kinds[kind]
    time.sleep(rng.uniform(0.0, 0.05))
    before, taken = run.steps()
    died, started = len(run.ended), time.monotonic()
    fault(run, rng)
    run.tend()
    # One step more may be under way when another party has gone already.
    reached = max(before, run.steps()[0]) + 1
    run.until(lambda: run.steps()[0] > reached or run.is_over, f"a step after {reached} ({kind})")
    seconds = time.monotonic() - started
    now, taken_now = run.steps()
    deaths = run.unexpected(kind, run.ended[died:])
    note = "; ".join(f"{one.party} ended with {one.code}: {one.said}" for one in deaths)
    where = f"{run.struck}, step {before}"
    return Outcome(kind, where, not deaths, taken_now - taken - (now - before), seconds, note)


def disturbed(run: Disturbed, kinds: Sequence[str], steps: int, rng: random.Random) -> Iterator[Outcome]:
    """Let faults happen one after the other, spread over a run of so many steps, and wait for its end."""
    for number, kind in enumerate(kind for kind in kinds if kind != LEAVING):
        due = round(steps * (number + rng.uniform(0.2, 0.8)) / (len(kinds) + 1))
        run.until(lambda due=due: run.steps()[0] >= due, f"step {due}")  # type: ignore[misc]
        yield disturb(run, kind, rng)
    if LEAVING in kinds:
        run.order(_some(run, rng), rng.choice(LEAVES))
    died, started = len(run.ended), time.monotonic()
    run.finish()
    if LEAVING in kinds:
        deaths = [one for one in run.ended[died:] if one.code not in (0, -9)]
        yield Outcome(LEAVING, run.struck, not deaths, 0, time.monotonic() - started, str(deaths or ""))


# --- one long run

_BETWEEN_FAULTS_S: Final = (15.0, 45.0)
WARM_UP_STEPS: Final = 1000
# Fewer tell more of what an allocator does at first than of what grows.
_ENOUGH_STEPS: Final = 20_000
# Lists of one figure per step and judge, which is what grew once, were 163 bytes; caches that fill slowly are some 20.
MOST_GROWTH: Final = 50.0


def lasting_run(
    run: Run, steps: int, rng: random.Random, told: Callable[[str], None], *, between_s: tuple[float, float]
) -> tuple[list[Outcome], list[Sample]]:
    """Let faults happen to a long run until it ends, and compare its weights with those of one process.

    Args:
        run: The run; not started.
        steps: How many it takes. Nothing happens in the last two of a hundred, or the last five.
        rng: Draws what happens, and when.
        told: Told in one line of every fault.
        between_s: Seconds between two faults, at least and at most.

    Returns:
        What became of each fault, all lost if the weights differ, and what was seen of the parties' memory.
    """
    outcomes: list[Outcome] = []

    def look() -> Iterator[tuple[str, int, int]]:
        for name, process in list(run.processes.items()):
            yield name, process.pid, run.steps(name)[1]

    with run, Sampler(look) as sampler:
        try:
            while True:
                _let_pass(run, rng.uniform(*between_s))
                if run.steps()[0] >= min(0.98 * steps, steps - _LAST_STEPS) or run.is_over:
                    break
                outcomes.append(disturb(run, rng.choice(sorted(KINDS)), rng))
                told(_line(run, outcomes[-1]))
            run.finish()
            wrong = _other_weights(run)
        except Lost as error:
            told(f"{run.scenario.name}: LOST: {error}")
            return [*outcomes, Outcome(ITSELF, survived=False, note=str(error))], sampler.samples
    found = Outcome(ITSELF, survived=not wrong, note=f"{', '.join(wrong)} differ from one process" if wrong else "")
    return [*outcomes, found], sampler.samples


def _let_pass(run: Run, seconds: float) -> None:
    """Wait, and start again whoever dies meanwhile: nobody should."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not run.is_over:
        run.tend()
        time.sleep(POLL_S)


def _other_weights(run: Run) -> list[str]:
    state, whole = run.state(), _in_one_process(run, limit_s=float("inf"))
    return [one for name in run.scenario.parties for one in differences(state[name]["module"], whole[name], name)]


def memory_results(samples: Sequence[Sample], parties: Sequence[str]) -> list[Result]:
    """Return by how much the memory of each party grew; the first one's has a target, if it took steps enough."""
    rows = []
    for name in parties:
        own = [sample for sample in samples if sample.party == name]
        grown, steps = growth(own, warm_up=WARM_UP_STEPS)
        target = MOST_GROWTH if name == parties[0] and steps >= _ENOUGH_STEPS else None
        note = f"over {steps} steps, {len({sample.pid for sample in own})} processes"
        if own:
            note += f"; {own[0].resident / 1e6:.1f} MB at first, {own[-1].resident / 1e6:.1f} MB at last"
        rows.append(Result(f"memory: growth of {name}", grown, "bytes a step", target, note=note))
    return rows


def long_campaign(
    minutes: float, seed: int, exchange: str, folder: Path, told: Callable[[str], None]
) -> tuple[list[Outcome], list[Result]]:
    """Let a run of three parties go on for about so many minutes, and return what became of the faults, and of memory.

    How many epochs that is follows from a short run without a fault. What the faults themselves take comes on top, and
    the run in one process at the end.
    """
    steps, seconds = _pace_of_an_epoch(exchange, folder)
    epochs = max(1, round(60 * minutes / seconds))
    plan = scenarios(epochs=epochs, batch=16, patience=epochs, exchange=exchange)[1]
    told(f"{epochs} epochs of {steps} steps, {1000 * seconds / steps:.1f} ms each")
    run = Run(plan, folder / "long", pace=Pace(), launch=Command)
    run.victims = tuple(plan.passives)
    rng = random.Random(seed)
    outcomes, samples = lasting_run(run, steps * epochs, rng, told, between_s=_BETWEEN_FAULTS_S)
    return outcomes, memory_results(samples, plan.parties)


def _pace_of_an_epoch(exchange: str, folder: Path) -> tuple[int, float]:
    """Return the steps of an epoch, and its seconds once everybody has started."""
    epochs = 9
    plan = scenarios(epochs=epochs, batch=16, patience=epochs, exchange=exchange)[1]
    with Run(plan, folder / "short", pace=Pace(), launch=Command) as run:
        run.until(lambda: run.steps()[0] > 0, "the first step")
        started, first = time.monotonic(), run.steps()[0]
        run.finish()
        total = run.steps()[0]
        seconds = time.monotonic() - started
    return total // epochs, seconds / (total - first) * (total // epochs)


# --- the campaign


@dataclass(frozen=True)
class Reference:
    """What an undisturbed run ends with.

    Attributes:
        state: Of all parties.
        steps: Steps that it took.
        seconds: How long it took.
    """

    state: dict[str, Any]
    steps: int
    seconds: float


def undisturbed(scenario: Scenario, folder: Path, *, pace: Pace, launch: Launch) -> Reference:
    """Run a scenario without a fault, and compare its weights with those of one process.

    Raises:
        Lost: If they differ.
    """
    started = time.monotonic()
    with Run(scenario, folder / f"{scenario.name}-undisturbed", pace=pace, launch=launch) as run:
        run.finish()
        if deaths := [one for one in run.ended if one.code]:
            raise Lost(f"{scenario.name}: {deaths[0].party} ended with {deaths[0].code}: {deaths[0].said}")
        state, steps = run.state(), run.steps()[0]
        seconds = time.monotonic() - started
        whole = _in_one_process(run)
    for name in scenario.parties:
        if found := differences(state[name]["module"], whole[name], name):
            raise Lost(f"{scenario.name}: one process ends with other weights: {', '.join(found)}")
    return Reference(state, steps, seconds)


def _in_one_process(run: Run, limit_s: float = LIMIT_S) -> dict[str, Any]:
    folder = run.folder / "clinic"
    process = run.launch(folder, ["train", "run.yaml", "--out", "whole"])
    run.until(lambda: process.code() is not None, "the end of the run in one process", limit_s)
    newest = checkpoint.latest(folder / "whole" / "checkpoints")
    if process.code() != 0 or newest is None:
        raise Lost(f"the run in one process ended with {process.code()}: {process.words()}")
    parts = checkpoint.load(newest, only="party-*")
    return {name: parts[f"party-{name}"]["module"] for name in run.scenario.parties}


def campaign(
    faults: int, seed: int, plans: Sequence[Scenario], folder: Path, told: Callable[[str], None]
) -> list[Outcome]:
    """Let so many faults happen, every kind in turn in a drawn order, in runs of two and three parties.

    Args:
        faults: How many.
        seed: Draws what happens, to whom, and when.
        plans: The scenarios, which take turns.
        folder: Where they run; certificates lie in ``certs``.
        told: Told in one line of every fault.

    Returns:
        What became of each. Those of a run that ended with other weights or figures are all lost.
    """
    rng = random.Random(seed)
    references = {plan.name: undisturbed(plan, folder, pace=Pace(), launch=Command) for plan in plans}
    for plan in plans:
        known = references[plan.name]
        told(f"{plan.name} undisturbed: {known.steps} steps in {known.seconds:.1f} s, as in one process")
    outcomes: list[Outcome] = []
    for number, kinds in enumerate(shares_of(faults, rng)):
        plan = plans[number % len(plans)]
        run = Run(plan, folder / f"run-{number}", pace=Pace(), launch=Command)
        outcomes += disturbed_run(run, kinds, references[plan.name], rng, told)
    return outcomes


def shares_of(
    faults: int, rng: random.Random, kinds: Iterable[str] = KINDS, *, leaving: bool = True
) -> Iterator[list[str]]:
    """Return the kinds of the faults of each run: all kinds before any comes again.

    Args:
        faults: How many in all runs.
        rng: Draws their order.
        kinds: The kinds.
        leaving: Whether each run of several ends with an unruly leave.
    """
    waiting: list[str] = []
    while faults > 0:
        share = min(FAULTS_IN_A_RUN, faults)
        while len(waiting) < share:
            more = sorted(kinds)
            rng.shuffle(more)
            waiting += more
        leaves = [LEAVING] if leaving and share > 1 else []
        count = share - len(leaves)
        yield [*waiting[:count], *leaves]
        waiting = waiting[count:]
        faults -= share


def disturbed_run(
    run: Disturbed, kinds: Sequence[str], known: Reference, rng: random.Random, told: Callable[[str], None]
) -> list[Outcome]:
    """Return what became of each fault of one run; all are lost if it ends otherwise than the undisturbed one."""
    found: list[Outcome] = []
    with run:
        try:
            for outcome in disturbed(run, kinds, known.steps, rng):
                found.append(outcome)
                told(_line(run, outcome))
            wrong = differences(known.state, run.state())
        except Lost as error:
            told(f"{run.name}: LOST: {error}")
            found += [Outcome(kind, survived=False, note=str(error)) for kind in kinds[len(found) :]]
            wrong = []
    if wrong:
        told(f"{run.name}: LOST: {', '.join(wrong)} differ from the undisturbed run")
        for outcome in found:
            outcome.survived, outcome.note = False, f"{', '.join(wrong)} differ"
    return found


def _line(run: Disturbed, outcome: Outcome) -> str:
    return (
        f"{run.name}: {outcome.kind} ({outcome.where}): {'survived' if outcome.survived else 'LOST'}, "
        f"{outcome.again} steps again, {outcome.seconds:.1f} s {outcome.note}"
    )


def results(outcomes: Sequence[Outcome]) -> list[Result]:
    """Return what is reported: the lost, what recovery takes, and every kind by itself."""
    lost = [outcome for outcome in outcomes if not outcome.survived]
    note = "; ".join(f"{outcome.kind}: {outcome.note[:200]}" for outcome in lost)
    rows = [Result("faults that a run did not survive", len(lost), f"of {len(outcomes)}", 0.0, note=note)]
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    for kind, those in sorted(by_kind.items()):
        survived = sum(outcome.survived for outcome in those)
        note = (
            f"{survived} of {len(those)}; median {median(outcome.again for outcome in those):.0f} steps again, "
            f"{median(outcome.seconds for outcome in those):.1f} s"
        )
        rows.append(Result(f"survived: {kind}", survived / len(those), "share", 1.0, better="higher", note=note))
    mid = [outcome for outcome in outcomes if outcome.kind not in (LEAVING, ITSELF)] or [Outcome("nothing")]
    rows.append(Result("steps taken again", median(one.again for one in mid), "steps", None, note="median of all"))
    note = "median of all: until the run is further than before, with what the fault itself and a start take"
    rows.append(Result("time to recover", median(one.seconds for one in mid), "s", None, note=note))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Let faults happen, and print and write what became of them; 1 if any was not survived."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="six faults, in shorter runs")
    parser.add_argument("--faults", type=int, default=None, help="how many; default 50, or 6")
    parser.add_argument("--seed", type=int, default=0, help="draws what happens, to whom, and when")
    parser.add_argument("--exchange", choices=EXCHANGES, default="split", help="how steps are taken")
    parser.add_argument("--minutes", type=float, default=None, help="one run that goes on for about so long instead")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    faults = arguments.faults or (6 if arguments.quick else 50)
    epochs, patience = (12, 12) if arguments.quick else (24, 6)
    plans = scenarios(epochs=epochs, batch=16, patience=patience, exchange=arguments.exchange)
    memory: list[Result] = []

    def told(line: str) -> None:
        print(line, flush=True)

    with workplace("clinic", "lab", "shop") as folder:
        if arguments.minutes is None:
            outcomes = campaign(faults, arguments.seed, plans, folder, told)
        else:
            outcomes, memory = long_campaign(arguments.minutes, arguments.seed, arguments.exchange, folder, told)
    rows = [*results(outcomes), *memory]
    print_table("faults", rows)
    if arguments.json is not None:
        written = [{**asdict(row), "holds": row.holds} for row in rows]
        arguments.json.write_text(json.dumps({"machine": machine(), "results": written}, indent=2) + "\n")
    return 0 if all(row.holds for row in (rows[0], *memory)) else 1


if __name__ == "__main__":
    sys.exit(main())
