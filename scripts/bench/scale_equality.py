"""Do several workers train what one process trains? Weights, figures and verdicts, and two runs of the same number.

Every worker is a process of its own, which runs ``splitvfl party`` as it is; the one process, ``splitvfl train``, takes
the same file, and so as many shards. Batches are of 47 of 440 records, in shards of 220 or 110, so that workers have
more or less of a step, and another part of the next. In float64 sums in another order are apart by the last places of a
number, and stay so; in float32 a ReLU at which rounding decides may set weights apart by more, the later the more
likely.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors.torch import load

from scripts.bench.measuring import Result
from scripts.bench.processes import Command, Launch, Pace, differences, workplace
from scripts.bench.scale_parties import PARTIES, Teams, TeamScenario, member_of
from splitvfl.run import checkpoint

STEPS_PER_EPOCH: Final = 10
# Processes that are many for their cores may be slow.
PACE: Final = Pace(message_s=120.0, meeting_s=300.0)
_TRAINING = (
    "train: {epochs: EPOCHS, batch_size: 47, seed: 3, private_seed_for_experiments: 3, "
    "optimizer: {name: sgd, lr: 0.1, momentum: MOMENTUM}MORE}\n"
)
_PLAIN = f"data: breast-cancer\nmodel: {{name: mlp, bottom: [16, 8], top_hidden: [8]}}\naudit: false\n{_TRAINING}"
# Of 20 000 records 462 are trained on.
_TABLES: Final = {
    form: "data: {name: clicks, test_fraction: 0.9795}\naudit: false\nmodel: {name: wide-deep, bottom: [16, 8], "
    f"embedding_dim: 4, sparse: true, tables: {form}}}\n{_TRAINING}"
    for form in ("replicated", "sharded")
}
DEFENDED: Final = (
    "data: breast-cancer\nmodel: {name: mlp, bottom: [16, 8]}\naudit: {canaries: 60}\n"
    f"{_TRAINING}defenses: [DEFENSES]\nattacks: [norm, direction, residual]\n"
).replace("MORE", ", noise_seed_for_experiments: 5, early_stopping: {patience: 3, validation_every: 7}")
DEFENSES: Final = {
    "isotropic": "{name: isotropic, ratio: 1.0}",
    "sumkl": "{name: sumkl, detection_error: 0.4}",
    "max-norm": "max-norm",
    "axis-sumkl": "{name: axis-sumkl, detection_error: 0.4}",
    "answers, isotropic": "{name: asymmetric-response, detection_error: 0.3}, {name: isotropic, ratio: 2.0}",
}
# Behind them rows lie on a line but for rounding, and what the auditor makes of how far they are off it is of rounding
# too: in one process these figures move by as much if the rate changes by one part in 10¹⁵.
ON_A_LINE: Final = frozenset({"max-norm", "axis-sumkl"})
BY_ROUNDING: Final = ("labels/lab/total", "labels/lab/beyond_prediction")


@dataclass(frozen=True)
class Case:
    """One run of several workers beside one of one process.

    Attributes:
        title: What is trained.
        workers: How many each party has.
        steps: How many steps, in tens.
        wide: Whether in float64.
        settings: The file, with places for what else is here.
        columns: The label party's.
        target: How far weights may be apart; ``None``: shown.
        defense: Which defenses there are, by :data:`DEFENSES`; empty: none.
        again: Whether it is done twice.
    """

    title: str
    workers: int
    steps: int
    wide: bool
    target: float | None
    settings: str = _PLAIN
    columns: str = '"mean *"'
    defense: str = ""
    again: bool = False

    @property
    def name(self) -> str:
        """What a row says of it."""
        return f"{self.title}, W = {self.workers}, {'float64' if self.wide else 'float32'}, {self.steps} steps"

    def scenario(self) -> TeamScenario:
        """Return the run."""
        text = self.settings
        for place, value in (
            ("EPOCHS", str(self.steps // STEPS_PER_EPOCH)),
            ("MOMENTUM", "0.0" if self.defense else "0.9"),
            ("DEFENSES", DEFENSES.get(self.defense, "")),
            ("MORE", ""),
        ):
            text = text.replace(place, value)
        return TeamScenario(self.name, self.workers, text, columns=self.columns, wide=self.wide)


CASES: Final = (
    *(Case("plain", workers, 300, True, 1e-12, again=True) for workers in (2, 4)),
    *(Case("plain", workers, 50, False, 1e-6) for workers in (2, 4)),
    *(Case("plain", workers, 300, False, None) for workers in (2, 4)),
    *(
        Case(f"{form} tables", workers, 300, True, 1e-12, settings=settings, columns='"I*", "C[1-5]"')
        for form, settings in _TABLES.items()
        for workers in (2, 4)
    ),
    *(Case(defense, 2, 50, True, 1e-6, settings=DEFENDED, defense=defense) for defense in DEFENSES),
    *(
        Case("answers, isotropic", workers, 50, wide, 1e-6, settings=DEFENDED, defense="answers, isotropic")
        for workers, wide in ((2, False), (4, True))
    ),
)
QUICK_CASES: Final = (
    Case("plain", 2, 20, True, 1e-12),
    Case("answers, isotropic", 2, 20, True, 1e-6, settings=DEFENDED, defense="answers, isotropic"),
)


def equality(quick: bool, *, launch: Launch = Command) -> list[Result]:
    """Return how far several workers and one process end apart, in every case."""
    rows = []
    with workplace(*PARTIES) as folder:
        for number, case in enumerate(QUICK_CASES if quick else CASES):
            found = compared(case, folder / str(number), launch)
            print(f"{case.name}: {'as it should be' if all(row.holds for row in found) else 'NOT EQUAL'}", flush=True)
            rows += found
    return rows


def compared(case: Case, folder: Path, launch: Launch) -> list[Result]:
    """Train with several workers and with one process, and return how far they end apart.

    Args:
        case: What is trained.
        folder: Where; certificates lie in ``certs`` beside it.
        launch: Starts a process.

    Raises:
        Lost: If a process does not end well.
    """
    scenario = case.scenario()
    folder.mkdir()
    (folder / "certs").symlink_to(folder.parent / "certs")
    with Teams(scenario, folder / "run", pace=PACE, launch=launch) as run:
        run.finish_undisturbed()
        whole, state = run.in_one_process(), run.state()
        metrics = run.folder / PARTIES[0] / "metrics.jsonl"
        rows = [_weights_apart(case, state, whole), *_figures_apart(case, metrics, whole / "metrics.jsonl")]
        if case.defense:
            rows.append(_verdicts(case, state, whole))
    if case.again:
        with Teams(scenario, folder / "again", pace=PACE, launch=launch) as run:
            run.finish_undisturbed()
            differing = differences(state, run.state())
        rows.append(
            Result(f"{case.name}: two runs, what differs", len(differing), "entries", 0.0, note=", ".join(differing))
        )
    return rows


def _weights_apart(case: Case, state: Mapping[str, Any], whole: Path) -> Result:
    parts = _newest(whole)
    found = []
    for party in PARTIES:
        known = parts[f"party-{party}"]["module"]
        for rank in range(case.workers):
            own = state[member_of(party, rank)]["module"]
            # Rows of tables that are divided are in no other worker's weights; in the trained half they all are.
            shared = own.keys() & known.keys()
            found.append(largest_difference({key: own[key] for key in shared}, {key: known[key] for key in shared}))
        half = (whole / "model" / party / "weights.safetensors").read_bytes()
        found.append(largest_difference(load(state[f"{party}'s half"]), load(half)))
    losses = [line["train/loss"] for line in _lines(whole / "metrics.jsonl") if "train/loss" in line]
    note = f"{parts['run']['step']} steps taken, loss {losses[0]:.3f} to {losses[-1]:.3f}"
    return Result(f"{case.name}: weights from one process", max(found), "at most", case.target, note=note)


def largest_difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> float:
    """Return how far the tensors of two models are apart, at most."""
    assert left.keys() == right.keys(), "they are of one model"
    return max((left[name] - right[name]).abs().max().item() for name in left)


def _figures_apart(case: Case, several: Path, one: Path) -> list[Result]:
    # The total in one process includes the partner's features, which the label owner of a network does not hold.
    apart = {
        tag: value for tag, value in figures_apart(_lines(several), _lines(one)).items() if not tag.endswith("/total")
    }
    unsteady = {tag: apart.pop(tag) for tag in list(apart) if case.defense in ON_A_LINE and tag.startswith(BY_ROUNDING)}
    worst = max(apart, key=lambda tag: apart[tag])
    # In float32 the target is that of weights: figures of losses and noise are numbers of any size.
    target = 1e-6 if case.target is not None and case.wide else None
    name = f"{case.name}: figures from one process"
    rows = [Result(name, apart[worst], "at most", target, note=f"{len(apart)} figures, the furthest {worst}")]
    if unsteady:
        note = f"{', '.join(unsteady)}; in one process rounding moves them as much"
        rows.append(Result(f"{name}, of rounding", max(unsteady.values()), "at most", None, note=note))
    return rows


def figures_apart(several: Sequence[Mapping[str, float]], one: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return by how much the figures of two logs differ at most, by tag.

    What an experiment alone can know (what a partner predicts without messages) is in the log of one process only.

    Raises:
        ValueError: If one log has other lines, or tags that the other should have.
    """
    apart: dict[str, float] = {}
    for left, right in zip(several, one, strict=True):
        if more := {tag for tag in left.keys() ^ right.keys() if not tag.endswith("/known_without_messages")}:
            raise ValueError(f"only one log has {', '.join(sorted(more))} at step {left.get('step')}")
        for tag in left.keys() & right.keys():
            apart[tag] = max(apart.get(tag, 0.0), abs(left[tag] - right[tag]))
    return apart


def _verdicts(case: Case, state: Mapping[str, Any], whole: Path) -> Result:
    """Return at how many workers training ended at another evaluation, or another epoch was the best."""
    parts = _newest(whole)
    differing = [
        name
        for party in PARTIES
        for name in (member_of(party, rank) for rank in range(case.workers))
        if any(state[name][key] != parts[f"party-{party}"][key] for key in ("epoch", "stopped"))
    ]
    known = parts[f"party-{PARTIES[0]}"]
    note = f"best epoch {known['epoch']}, {'stopped early' if known['stopped'] else 'not stopped early'}"
    return Result(f"{case.name}: verdicts that differ", len(differing), "workers", 0.0, note=note)


def _newest(run: Path) -> dict[str, Any]:
    newest = checkpoint.latest(run / "checkpoints")
    assert newest is not None
    return checkpoint.load(newest)


def _lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
