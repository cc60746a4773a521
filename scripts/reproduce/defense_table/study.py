"""What is trained for the table of defenses, and what was measured: a row per choice of the label party."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn import functional

from scripts.reproduce.shared.claims import Interval, mean
from scripts.reproduce.shared.jobs import Job, Result
from splitvfl.app.experiment import Experiment, Workbench, prepare, variants
from splitvfl.app.records import load_data
from splitvfl.config.registry import built_in
from splitvfl.config.sections import ExperimentConfig, HookConfig, config_to_yaml, parse_config, parse_defenses
from splitvfl.hooks import moment_of, target_of
from splitvfl.leakage.message_audit import AUDITORS
from splitvfl.learning.randomness import PartyRandom
from splitvfl.metrics import leak_auc
from splitvfl.party.private_top import private_adam
from splitvfl.privacy import gaussian_mu
from splitvfl.report.summary import PartyResult, RunSummary

EXPERIMENT = """
name: digits-8
data: {name: digits, digit: 8, scale: standard}
parties:
  bank: {role: active, columns: 0.5}
  telecom: {role: passive, columns: rest}
model: {name: mlp, bottom: [64, 32], private_top: true}
train: {epochs: 15, batch_size: 128, optimizer: {name: adam, lr: 0.001}, device: cpu}
known_positives: 10
known_negatives: 10
"""

# The arrangement in which the mixture attack was first tried: all columns at the partner, and trained until it fits.
CONVERGED = """
name: digits-8-converged
data: {name: digits, digit: 8, scale: standard, test_fraction: 0.142857}
parties:
  bank: {role: active}
  telecom: {role: passive, columns: rest}
model: {name: mlp, bottom: [64, 32]}
train: {epochs: 40, batch_size: 128, optimizer: {name: adam, lr: 0.001}, device: cpu}
attacks: [mixture, readout]
"""
CONVERGED_DEFENSES = ("axis-sumkl(detection_error=0.4)", "axis-gaussian(detection_error=0.4)")

# Nothing comes back in these: what the top learns costs no message, so that it has a faster rate and as many epochs as
# it takes. Exchange by the name of the row.
SILENT_EPOCHS = 60
SILENT = {
    "exchange: one-way, random layers 64 and 32": ("one-way", (64, 32)),
    "exchange: one-way, random layers 256 and 128": ("one-way", (256, 128)),
    "exchange: one-way, principal components": ("{name: one-way, bottom: pca}", (64, 32)),
}
ALONE = "alone"
# That of the three which is compared with, chosen before these runs: wide random layers.
ONE_WAY = "exchange: one-way, random layers 256 and 128"

# Of the label defenses, in nats.
EPSILON = 1.5

# They are about residues, which a linear bottom's gradient is made of; the model here has none.
LINEAR_ONLY = frozenset(
    {
        "additive-llr",
        "coefficient-noise",
        "label-sum",
        "laplace-residue",
        "multiplicative-laplace-residue",
        "multiplicative-llr",
        "own-prediction",
        "residue-solving",
        "secret-batch-likelihood",
        "sparse-residues",
        "stacked-epochs",
    }
)

# Defenses that can promise the same get the same setting, so that they can be compared.
DEFENSES = (
    "none",
    "isotropic(ratio=1)",
    "isotropic(ratio=5)",
    "max-norm",
    "sumkl(detection_error=0.4)",
    "axis-sumkl(detection_error=0.4)",
    "axis-gaussian(detection_error=0.4)",
    "record-gaussian(detection_error=0.4)",
    "gaussian-targets(detection_error=0.4)",
    "asymmetric-response(detection_error=0.4)",
    "abstaining-response(detection_error=0.4)",
    f"memoised-response(epsilon={EPSILON})",
    f"randomised-response(epsilon={EPSILON})",
    "clip-gradient(quantile=0.1)",
    "discretise(bins=6)",
    "top-k(keep=0.1)",
)

SEEDS = 3
"""Runs of a defense that are attacked."""
TEST_SEEDS = 8
"""Runs of a defense, or of a choice without one, whose test figures are averaged."""
CANARIES = 200
"""Training records with coin-toss labels, in runs of their own."""
CANARY_SEEDS = 5
"""So many of these runs."""

# It scores records by the model's own prediction, so it tells how much was learned, whatever the defense.
PREDICTION = "readout"
# What stands for what is known without a message, beside what own columns predict.
COMPONENT = "component"
# No message is read for it either, but training has moved the layers.
TRAINED_COMPONENT = "component-of-activation"
_TRAINED_COMPONENT = "{name: component, of: activation}"


@dataclass(frozen=True)
class Promise:
    """What a defense says of a record's label, to whoever knows all else.

    Attributes:
        detection_error: No attacker's ½(FPR + FNR) is below.
        per: Of one message, or of the whole run.
        auc: Of the whole run, the AUC between records that are alike in all else; ``None`` where nothing is said of it.
        proven: Whether it is proven for whoever knows what the model predicts.
    """

    detection_error: float
    per: str
    auc: float | None = None
    proven: bool = True


@dataclass(frozen=True)
class Row:
    """The runs of one defense.

    Attributes:
        label: The defense with its settings.
        runs: One per seed, attacked and audited.
        plain: Further runs, not attacked: test figures only.
        canary_runs: Runs in which some labels are coin tosses.
        promise: What it promises; ``None``: nothing.
    """

    label: str
    runs: Sequence[RunSummary]
    plain: Sequence[RunSummary] = ()
    canary_runs: Sequence[RunSummary] = ()
    promise: Promise | None = None

    @property
    def parties(self) -> list[PartyResult]:
        """The passive party of each run."""
        return [next(iter(run.parties.values())) for run in self.runs]

    @property
    def test_aucs(self) -> list[float]:
        """AUC on the test records, one per seed: of the private top, where there is one."""
        return [_number(run.test_metric) for run in (*self.runs, *self.plain)]

    @property
    def sending_aucs(self) -> list[float]:
        """The same of the top that sends."""
        return [sending_auc(run) for run in (*self.runs, *self.plain)]

    @property
    def totals(self) -> list[float]:
        """Messages and predictions together, by the auditor, one per seed."""
        return [_number(party.total) for party in self.parties]

    @property
    def late_errors(self) -> list[float]:
        """The auditor's detection error in one message late in the run, one per seed."""
        return [_number(party.late_detection_error) for party in self.parties]

    @property
    def known(self) -> list[float]:
        """What is known without a message, one per seed: the better of own columns and their first component."""
        return [max(_or_zero(_number(party.own_columns_auc)), _component(party)) for party in self.parties]

    @property
    def canaries(self) -> Canaried | None:
        """What was read of canaries' labels, over all their runs; ``None`` without any."""
        return Canaried.of(self.canary_runs)

    def per_step(self, attack: str) -> list[float]:
        """Mean leak AUC of a step, one per seed, in the orientation that is better over the run."""
        return [_number(party.attacks[attack].worst_auc) for party in self.parties if attack in party.attacks]

    def accumulated(self, attack: str) -> list[float]:
        """Leak AUC of the scores added up over the run, one per seed, in the better orientation."""
        found = [party.attacks[attack] for party in self.parties if attack in party.attacks]
        return [_number(result.worst_accumulated_auc) for result in found]

    def figures(self, *, but: frozenset[str] = frozenset()) -> dict[str, list[float]]:
        """Return the figures of every attack that reads messages, one per seed, by attack and kind."""
        names = {name for party in self.parties for name, found in party.attacks.items() if found.by_messages} - but
        found = {f"{name}, per step": self.per_step(name) for name in sorted(names)}
        return found | {f"{name}, accumulated": self.accumulated(name) for name in sorted(names)}

    @property
    def worst(self) -> tuple[str, list[float]]:
        """The figure with the largest mean over seeds, the prediction aside: whose it is, and its values."""
        return max(self.figures(but=frozenset({PREDICTION})).items(), key=lambda found: _or_zero(mean(found[1])))

    @property
    def ahead(self) -> tuple[str, list[float]]:
        """What no auditor's attack is of these, with the largest mean lead over total: whose, and the leads by seed.

        Lead of every seed: its figure less the total of that run. The prediction counts, as total has it too.
        """
        found = {
            name: [value - total for value, total in zip(values, self.totals, strict=True)]
            for name, values in self.figures(but=frozenset(AUDITORS)).items()
            if len(values) == len(self.runs)
        }
        return max(found.items(), key=lambda lead: -math.inf if math.isnan(mean(lead[1])) else mean(lead[1]))


@dataclass(frozen=True)
class Canaried:
    """What the auditor read of canaries' labels, of several runs.

    The best of the auditor's attacks is chosen once, by its mean over the runs: chosen anew in each of them it would
    be read too high, by nearly the deviation of one run.

    Attributes:
        auc: Mean over runs of that attack's AUC.
        error: Standard error of that mean: of which records were canaries, and of their coins.
        test_auc: Mean test AUC of the top that sends in these runs.
    """

    auc: float
    error: float
    test_auc: float

    @classmethod
    def of(cls, runs: Sequence[RunSummary]) -> Canaried | None:
        """Return the figures of runs; ``None`` if none has canaries."""
        parties = [next(iter(run.parties.values())) for run in runs]
        found = {name: [party.canaries[name] for party in parties if name in party.canaries] for name in AUDITORS}
        leaks = max(found.values(), key=lambda leaks: _or_zero(mean(leak.auc for leak in leaks)))
        if not leaks:
            return None
        # Each attack's own interval is for it alone.
        errors = [(leak.high - leak.low) / (2.0 * _quantile(1)) for leak in leaks]
        return cls(
            auc=mean(leak.auc for leak in leaks),
            error=math.sqrt(math.fsum(error**2 for error in errors)) / len(errors),
            test_auc=mean(sending_auc(run) for run in runs),
        )

    def interval(self, comparisons: int = 1) -> Interval:
        """Return the 95 % interval, which holds for all of the auditor's attacks, and so many comparisons, at once."""
        half = _quantile(len(AUDITORS) * comparisons) * self.error
        return max(0.0, self.auc - half), min(1.0, self.auc + half)


@dataclass(frozen=True)
class Study:
    """All that was measured.

    Attributes:
        rows: By defense, the first without one.
        silent: Test AUCs of what sends nothing back, by its name; the first is the label party alone.
        converged: The same defenses' runs to convergence.
    """

    rows: Sequence[Row]
    silent: Mapping[str, list[float]] = field(default_factory=dict)
    converged: Sequence[Row] = ()


def sending_auc(run: RunSummary) -> float:
    """Return the test AUC of the top that sends."""
    return _number(run.test_metric if run.sending_metric is None else run.sending_metric)


def _quantile(attacks: int) -> float:
    return NormalDist().inv_cdf(1.0 - 0.025 / attacks)


def _component(party: PartyResult) -> float:
    return _or_zero(_number(party.attacks[COMPONENT].worst)) if COMPONENT in party.attacks else 0.0


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def label_attacks(moment: str) -> list[str]:
    """Return the registry's label attacks that are called at a moment, ``"every-step"`` or ``"after-training"``.

    Those of linear models are left out: the model here is none.
    """
    asked = [kind for name, kind in sorted(built_in("attacks").items()) if name not in LINEAR_ONLY]
    return [kind.name for kind in asked if target_of(kind) == "labels" and moment_of(kind) == moment]


def promise_of(hook: HookConfig) -> Promise | None:
    """Return what a defense promises with these settings; ``None`` if nothing."""
    error, epsilon = hook.options.get("detection_error"), hook.options.get("epsilon")
    if error is not None:
        return _by_error(hook, error)
    if epsilon is not None:
        # Answers that are drawn once: randomised response of two classes.
        return Promise(1.0 / (1.0 + math.exp(epsilon)), "run", 1.0 / (1.0 + math.exp(-epsilon)))
    return None


def _by_error(hook: HookConfig, error: float) -> Promise:
    if hook.name == "gaussian-targets":
        return Promise(error, "run", NormalDist().cdf(gaussian_mu(detection_error=error) / math.sqrt(2.0)))
    if hook.name == "asymmetric-response":
        return Promise(error, "run", 1.0 - error)
    if hook.name == "abstaining-response":
        built: Any = hook.found("defenses", Path()).make()
        return Promise(error, "run", built.answers_auc)
    return Promise(error, "message", proven=hook.name == "record-gaussian")


def planned_defenses() -> list[tuple[str, HookConfig | None]]:
    """Return the table's defenses, by label; ``None`` for none."""
    chosen = parse_defenses(",".join(DEFENSES), folder=Path())
    return [(label, next(iter(hooks), None)) for label, hooks in zip(DEFENSES, chosen, strict=True)]


def jobs_of(text: str, defenses: Sequence[str], *, seeds: Sequence[int], what: str, quick: bool) -> list[list[Job]]:
    """Return the runs of an experiment: of each defense, one per seed.

    Args:
        text: The experiment.
        defenses: As on the command line.
        seeds: The seeds, each the next one's less one.
        what: Said of these runs while they are worked on.
        quick: One epoch.
    """
    config = parse_config(text, source="defense_table", overrides=["train.epochs=1"] if quick else [])
    chosen = parse_defenses(",".join(defenses), folder=Path())
    config = config.model_copy(update={"train": config.train.model_copy(update={"seed": seeds[0]})})
    found: list[list[Job]] = [[] for _ in defenses]
    for number, run in enumerate(variants(config, chosen, len(seeds), Path())):
        settings = {
            "about": {"label": f"{run.label}{what}"},
            "experiment": config_to_yaml(run.config),
            "seed": run.config.train.seed,
        }
        found[number // len(seeds)].append(Job(train, settings))
    return found


def attacked(*, quick: bool) -> list[list[Job]]:
    """Return the runs that every attack looks at."""
    attacks = [*label_attacks("every-step"), _TRAINED_COMPONENT, *label_attacks("after-training")]
    text = f"{EXPERIMENT}attacks: [{', '.join(attacks)}]\n"
    return jobs_of(text, DEFENSES, seeds=range(1 if quick else SEEDS), what=", attacked", quick=quick)


def plain(*, quick: bool) -> list[list[Job]]:
    """Return further runs of the same, of which only test figures are wanted."""
    seeds = range(1, 2) if quick else range(SEEDS, TEST_SEEDS)
    return jobs_of(f"{EXPERIMENT}audit: false\n", DEFENSES, seeds=seeds, what=", test figures", quick=quick)


def with_canaries(*, quick: bool) -> list[list[Job]]:
    """Return the runs with coin-toss labels: apart, as so many of them are not free on so few records."""
    text = f"{EXPERIMENT}audit: {{canaries: {CANARIES}}}\n"
    return jobs_of(text, DEFENSES, seeds=range(1 if quick else CANARY_SEEDS), what=", canaries", quick=quick)


def converged(*, quick: bool) -> list[list[Job]]:
    """Return the runs to convergence."""
    seeds = range(1 if quick else SEEDS)
    return jobs_of(CONVERGED, CONVERGED_DEFENSES, seeds=seeds, what=", to convergence", quick=quick)


def silent(*, quick: bool) -> dict[str, list[Job]]:
    """Return the runs in which nothing comes back to the partner, by name; the label party alone first."""
    seeds = range(2 if quick else TEST_SEEDS)
    epochs = 1 if quick else SILENT_EPOCHS
    found = {ALONE: [Job(train_alone, {"epochs": epochs, "seed": seed}) for seed in seeds]}
    for name, (exchange, widths) in SILENT.items():
        text = EXPERIMENT.replace("bottom: [64, 32], private_top: true", f"bottom: {list(widths)}").replace(
            "lr: 0.001", "lr: 0.01"
        )
        text = text.replace("epochs: 15", f"epochs: {epochs}") + f"exchange: {exchange}\naudit: false\n"
        (runs,) = jobs_of(text, ["none"], seeds=seeds, what=f", {name}", quick=quick)
        found[name] = runs
    return found


def train(*, about: Mapping[str, str], experiment: str, seed: int) -> Result:
    """Train one experiment, and return its summary; ``about`` and ``seed`` are for those who watch."""
    config = parse_config(experiment, source=f"defense_table ({about['label']}, seed {seed})")
    bench = _bench(config)
    parts = Experiment(config, bench)
    trainer = parts.trainer()
    trainer.active.plan_run(epochs=config.train.epochs, early_stopping=False)
    trainer.fit(config.train.epochs)
    return {"summary": msgspec.json.encode(parts.summary(trainer)).decode()}


def train_alone(*, epochs: int, seed: int) -> Result:
    """Train the label party's own head on its own columns, by batches as with a partner; return its test AUC."""
    config = parse_config(EXPERIMENT, source="defense_table")
    active = load_data(config).active
    columns, labels = active.train.columns.numeric, active.train.labels
    assert labels is not None
    assert active.test.labels is not None
    with PartyRandom(seed):
        head = nn.Linear(columns.shape[1], 1)
        optimizer = private_adam(list(head.parameters()))
        for _ in range(epochs):
            for rows in torch.randperm(labels.numel()).split(config.train.batch_size):
                optimizer.zero_grad()
                loss = functional.binary_cross_entropy_with_logits(head(columns[rows])[:, 0], labels[rows].float())
                loss.backward()
                optimizer.step()
    return {"test_auc": leak_auc(head(active.test.columns.numeric)[:, 0].detach(), active.test.labels)}


def summary_of(result: Result) -> RunSummary:
    """Return the summary that :func:`train` returned."""
    return msgspec.json.decode(result["summary"], type=RunSummary)


def _bench(config: ExperimentConfig) -> Workbench:
    # Shared by runs on the same columns: to measure what these predict takes longer than a run.
    key = repr((config.data, config.parties, config.audited))
    if key not in _BENCHES:
        _BENCHES[key] = prepare(config)
    return _BENCHES[key]


_BENCHES: dict[str, Workbench] = {}
