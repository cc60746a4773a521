"""Does a run of parties of several workers survive? One fault after the other, drawn with a seed.

Two parties of two workers each, over mutual TLS on loopback, each pair of workers through a TCP relay of its own. A
worker is killed, or all of a party; a link is cut; a worker is asked to stop, its disk is full, or it is killed while
its fellow saves the same step. Nobody ends the others of a party of which one worker is gone: if they do not end by
themselves, the run hangs. When all have ended, the party is started again with the same commands. A fault is survived
if the run gets further than it was before, nobody of the other party ends, and in the end weights and figures of all
workers are those of an undisturbed run, to the bit.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from scripts.bench.faults import (
    Outcome,
    Reference,
    ask_to_stop,
    cut,
    disturbed_run,
    fill_disk,
    kill_one,
    results,
    shares_of,
)
from scripts.bench.measuring import Result
from scripts.bench.processes import Command, Disturbed, Ended, Kinds, Launch, Lost, Pace, workplace
from scripts.bench.scale_parties import PARTIES, Teams, TeamScenario, party_of
from splitvfl.run import checkpoint

FAULTS, QUICK_FAULTS = 30, 3
# Four processes on two cores take a while to start, and to step.
PACE: Final = Pace(message_s=20.0, meeting_s=300.0)
WORKERS: Final = 2
BETWEEN: Final = "killed between two workers' checkpoints"
_TRAINING = """train:
  epochs: EPOCHS
  batch_size: 16
  seed: 3
  private_seed_for_experiments: 3
  noise_seed_for_experiments: 5
  checkpoint_every_steps: 10
  early_stopping: {patience: EPOCHS, validation_every: 8}
data: breast-cancer
"""
_DEFENDED = """model: {name: mlp, bottom: [16, 8], dropout: 0.2}
audit: {canaries: 60}
defenses:
  - {name: asymmetric-response, detection_error: 0.3}
  - {name: isotropic, ratio: 0.5}
attacks: [norm, direction]
"""
_IN_FLIGHT = """model: {name: mlp, bottom: [16, 8], top_hidden: [8], dropout: 0.2}
exchange: {name: split, in_flight: 2}
audit: false
"""


def scenarios(epochs: int) -> tuple[TeamScenario, TeamScenario]:
    """Return a run with defenses and attacks, and one with batches in flight."""
    training = _TRAINING.replace("EPOCHS", str(epochs))
    return (
        TeamScenario("defended", WORKERS, training + _DEFENDED),
        TeamScenario("in flight", WORKERS, training + _IN_FLIGHT),
    )


def kill_party(run: Disturbed, rng: random.Random) -> None:
    """Kill all workers of a party at once."""
    run.struck = rng.choice(PARTIES)
    for name in run.members:
        if party_of(name) == run.struck:
            run.signal(name, signal.SIGKILL)


def kill_between_checkpoints(run: Disturbed, rng: random.Random) -> None:
    """Kill a worker that has not yet saved a step, while its fellow saves it."""
    assert isinstance(run, Teams), "else there is no fellow"
    name = run.struck = rng.choice(run.victims)
    party, fellows = party_of(name), [run.processes[other] for other in run.fellows(name)]
    run.order(name, rng.choice(["die between files", "die before renaming"]))
    run.until(lambda: all(one.code() is not None for one in fellows), f"the end of all workers of {party}")
    newest = (max(checkpoint.steps(folder / "checkpoints")) for folder in run.folders(party))
    saved = dict(zip(run.fellows(name), newest, strict=True))
    if saved[name] == max(saved.values()):
        raise Lost(f"no fellow of {name} saved a step that it did not: {saved}")


class DisturbedTeams(Teams):
    """Parties of several workers to whom something happens."""

    @property
    def kinds(self) -> Kinds:
        """What can happen to them."""
        return KINDS

    def unexpected(self, kind: str, ended: Sequence[Ended]) -> list[Ended]:
        """Return those that it does not end: by their exit codes, and whoever is not of the party that it struck."""
        party = self.struck if self.struck in PARTIES else party_of(self.struck)
        others = [one for one in ended if one.code and party_of(one.party) != party]
        return [*super().unexpected(kind, ended), *others]


# Kind of fault: what happens, and the exit codes with which it may end a worker of the party that it strikes: 2 is that
# of one whose fellow is gone.
KINDS: Final[Kinds] = {
    "a worker killed": (kill_one, {-9, 2}),
    "a party killed": (kill_party, {-9}),
    "a link cut": (cut, set()),
    "a worker asked to stop, SIGTERM": (ask_to_stop(signal.SIGTERM), {130}),
    "a worker's disk full": (fill_disk, {2}),
    BETWEEN: (kill_between_checkpoints, {-9, 2}),
}


def faults(quick: bool, *, seed: int = 0, launch: Launch = Command) -> list[Result]:
    """Return what became of thirty faults."""
    count, epochs = (QUICK_FAULTS, 4) if quick else (FAULTS, 16)
    with workplace(*PARTIES) as folder:
        return results(campaign(count, seed, scenarios(epochs), folder, _print, launch=launch))


def _print(line: str) -> None:
    print(line, flush=True)


def campaign(
    count: int,
    seed: int,
    plans: Sequence[TeamScenario],
    folder: Path,
    told: Callable[[str], None],
    *,
    pace: Pace = PACE,
    launch: Launch = Command,
) -> list[Outcome]:
    """Let so many faults happen, every kind in turn in a drawn order, in runs of these scenarios, which take turns.

    Args:
        count: How many.
        seed: Draws what happens, to whom, and when.
        plans: The scenarios.
        folder: Where they run; certificates lie in ``certs``.
        told: Told in one line of every fault.
        pace: How long things take.
        launch: Starts a worker.

    Returns:
        What became of each. Those of a run that ended with other weights or figures are all lost.
    """
    rng = random.Random(seed)
    shares = list(shares_of(count, rng, KINDS, leaving=False))
    known: dict[str, Reference] = {}
    outcomes: list[Outcome] = []
    for number, kinds in enumerate(shares):
        plan = plans[number % len(plans)]
        if plan.name not in known:
            known[plan.name] = undisturbed(plan, folder, pace=pace, launch=launch)
            told(f"{plan.name} undisturbed: {known[plan.name].steps} steps in {known[plan.name].seconds:.1f} s")
        run = DisturbedTeams(plan, folder / f"run-{number}", pace=pace, launch=launch, relayed=True)
        outcomes += disturbed_run(run, kinds, known[plan.name], rng, told)
    return outcomes


def undisturbed(plan: TeamScenario, folder: Path, *, pace: Pace, launch: Launch) -> Reference:
    """Run a scenario without a fault.

    Raises:
        Lost: If a worker does not end well.
    """
    started = time.monotonic()
    with Teams(plan, folder / f"{plan.name}-undisturbed", pace=pace, launch=launch, relayed=True) as run:
        run.finish_undisturbed()
        return Reference(run.state(), run.steps()[0], time.monotonic() - started)
