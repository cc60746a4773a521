"""Which runs are made: to choose settings by, at the chosen settings, to convergence, and for their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.reproduce.defense_table import runs
from scripts.reproduce.defense_table.arrangements import Arrangement
from scripts.reproduce.shared.jobs import Job, Result
from splitvfl.app.experiment import variants
from splitvfl.config.registry import built_in
from splitvfl.config.sections import HookConfig, config_to_yaml, parse_config, parse_defenses
from splitvfl.hooks import moment_of, target_of

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
CONVERGED_SEEDS = 3

# Nothing comes back in these. Exchange and the widths of the partner's layers, by the name of the row.
SILENT: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "exchange: one-way, random layers 64 and 32": ("one-way", (64, 32)),
    "exchange: one-way, random layers 256 and 128": ("one-way", (256, 128)),
    "exchange: one-way, principal components": ("{name: one-way, bottom: pca}", (64, 32)),
}
ALONE = "alone"
NONE = "none"
PRIVATE = "a private top beside"

# Of the label defenses, in nats.
EPSILON = 1.5

# They are about residues, which a linear bottom's gradient is made of, and sums of them; the models here have none.
LINEAR_ONLY = frozenset(
    {
        "additive-llr",
        "coefficient-noise",
        "label-sum",
        "laplace-residue",
        "multiplicative-laplace-residue",
        "multiplicative-llr",
        "own-prediction",
        "packing",
        "residue-solving",
        "secret-batch-likelihood",
        "sparse-residues",
        "stacked-epochs",
    }
)

# Defenses that can promise the same get the same setting, so that they can be compared.
DEFENSES = (
    NONE,
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

CHOOSING_SEED = 100
"""Of the runs by which settings are chosen; those that are measured have seeds from 0."""
_TRAINED_COMPONENT = "{name: component, of: activation}"
_ROUNDS = 5


def label_attacks(moment: str) -> list[str]:
    """Return the registry's label attacks that are called at a moment, ``"every-step"`` or ``"after-training"``.

    Those of linear models are left out: the models here are none.
    """
    asked = [kind for name, kind in sorted(built_in("attacks").items()) if name not in LINEAR_ONLY]
    return [kind.name for kind in asked if target_of(kind) == "labels" and moment_of(kind) == moment]


def planned_defenses() -> list[tuple[str, HookConfig | None]]:
    """Return the table's defenses, by label; ``None`` for none."""
    chosen = parse_defenses(",".join(DEFENSES), folder=Path())
    return [(label, next(iter(hooks), None)) for label, hooks in zip(DEFENSES, chosen, strict=True)]


def jobs_of(
    text: str,
    defenses: Sequence[str],
    *,
    seeds: Sequence[int],
    what: str,
    quick: bool = False,
    sample: Mapping[str, Any] | None = None,
) -> list[list[Job]]:
    """Return the runs of an experiment: of each defense, one per seed.

    Args:
        text: The experiment.
        defenses: As on the command line.
        seeds: The seeds, each the next one's less one.
        what: Said of these runs while they are worked on.
        quick: One epoch.
        sample: Which records; ``None``: all.
    """
    return [
        [
            Job(runs.train, settings | ({} if sample is None else {"sample": sample}))
            for settings in _settings(text, [label], seeds=seeds, what=what, quick=quick)
        ]
        for label in defenses
    ]


def _settings(
    text: str, defenses: Sequence[str], *, seeds: Sequence[int], what: str, quick: bool = False
) -> list[dict[str, Any]]:
    """Return what a run is called with, for each defense and seed."""
    config = parse_config(text, source="defense_table", overrides=["train.epochs=1"] if quick else [])
    chosen = parse_defenses(",".join(defenses), folder=Path())
    config = config.model_copy(update={"train": config.train.model_copy(update={"seed": seeds[0]})})
    return [
        {
            "about": {"label": f"{config.name}: {run.label}{what}"},
            "experiment": {"yaml": config_to_yaml(run.config)},
            "seed": run.config.train.seed,
        }
        for run in variants(config, chosen, len(seeds), Path())
    ]


@dataclass(frozen=True)
class Choice:
    """A setting, and by what it was chosen.

    Attributes:
        epochs: Number of epochs.
        rate: Learning rate.
        tried: Validation AUC by epochs and rate.
    """

    epochs: int
    rate: float
    tried: Mapping[tuple[int, float], float]

    @classmethod
    def of(cls, tried: Mapping[tuple[int, float], float]) -> Choice:
        """Return the setting of the best validation AUC; of those that are level the shortest, and slowest, run."""
        epochs, rate = max(sorted(tried), key=lambda setting: tried[setting])
        return cls(epochs, rate, tried)

    @property
    def auc(self) -> float:
        """That of the chosen setting."""
        return self.tried[self.epochs, self.rate]


def choosing(arrangement: Arrangement) -> dict[str, dict[float, Job]]:
    """Return the runs by which settings are chosen, one for each rate, by row of the table."""
    found: dict[str, dict[float, Job]] = {
        ALONE: {rate: _alone_job(arrangement, rate) for rate in arrangement.silent_rates}
    }
    for name in SILENT:
        found[name] = {
            rate: _validating(
                arrangement,
                _silent(arrangement, name, max(arrangement.silent_epochs), rate, evaluated=True),
                NONE,
                name,
            )
            for rate in arrangement.silent_rates
        }
    for label in DEFENSES:
        texts = {
            rate: arrangement.experiment(epochs=max(arrangement.epochs), rate=rate, evaluated=True)
            for rate in arrangement.rates
        }
        found[label] = {
            rate: _validating(arrangement, f"{text}audit: false\n", label, "") for rate, text in texts.items()
        }
    return found


def _validating(arrangement: Arrangement, text: str, defense: str, name: str) -> Job:
    what = f"{', ' if name else ''}{name}, to choose"
    (settings,) = _settings(text, [defense], seeds=[CHOOSING_SEED], what=what)
    rate = parse_config(text, source="defense_table").train.optimizer
    epochs = arrangement.silent_epochs if name else arrangement.epochs
    settings["about"] = {"label": f"{settings['about']['label']}, {rate.model_dump()['lr']:g}"}
    return Job(runs.validate, settings | {"sample": arrangement.records, "epochs": list(epochs)})


def _alone_job(
    arrangement: Arrangement, rate: float, *, epochs: Sequence[int] | None = None, seed: int = CHOOSING_SEED
) -> Job:
    text = arrangement.experiment(epochs=1, rate=rate)
    (settings,) = _settings(text, [NONE], seeds=[seed], what=", to choose" if epochs is None else "")
    about = settings["about"]["label"].replace(f": {NONE}", f": {ALONE}") + f", {rate:g}"
    more = {"epochs": list(epochs or arrangement.silent_epochs), "rate": rate, "validating": epochs is None}
    return Job(runs.alone, settings | {"about": {"label": about}, "sample": arrangement.records} | more)


def _silent(arrangement: Arrangement, name: str, epochs: int, rate: float, *, evaluated: bool = False) -> str:
    exchange, widths = SILENT[name]
    more = f"exchange: {exchange}\naudit: false\n"
    return arrangement.experiment(
        epochs=epochs, rate=rate, bottom=widths, private_top=False, evaluated=evaluated, more=more
    )


def tried_of(results: Mapping[float, Result]) -> dict[tuple[int, float], float]:
    """Return validation AUCs by epochs and rate, of the results of one row's runs by rate."""
    found: dict[tuple[int, float], float] = {}
    for rate, result in results.items():
        (aucs,) = result.values()
        found |= {(int(epochs), rate): auc for epochs, auc in aucs.items()}
    return found


@dataclass(frozen=True)
class Measured:
    """The runs of a row at its chosen setting.

    Attributes:
        attacked: With every attack, and the auditor.
        plain: Further ones, of which only test figures are wanted.
        canaries: With coin-toss labels: apart, as so many of them are not free on so few records.
    """

    attacked: Sequence[Job] = ()
    plain: Sequence[Job] = ()
    canaries: Sequence[Job] = ()

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        return [*self.attacked, *self.plain, *self.canaries]


def measuring(arrangement: Arrangement, choices: Mapping[str, Choice], *, seeds: int) -> dict[str, Measured]:
    """Return the runs at the chosen settings, by row of the table.

    Args:
        arrangement: The data set.
        choices: By row.
        seeds: How many test figures are averaged; of the runs that are attacked and those with canaries there are
            fewer, if the arrangement says so.
    """
    found: dict[str, Measured] = {}
    for name, choice in choices.items():
        if name == ALONE:
            every = [_alone_job(arrangement, choice.rate, epochs=[choice.epochs], seed=seed) for seed in range(seeds)]
            found[name] = Measured(plain=every)
        elif name in SILENT:
            text = _silent(arrangement, name, choice.epochs, choice.rate)
            found[name] = Measured(plain=_jobs(arrangement, text, NONE, range(seeds), f", {name}"))
        else:
            found[name] = _defended(arrangement, name, choice, seeds)
    return found


def _jobs(arrangement: Arrangement, text: str, label: str, seeds: Sequence[int], what: str) -> list[Job]:
    return jobs_of(text, [label], seeds=seeds, what=what, sample=arrangement.records)[0] if seeds else []


def _defended(arrangement: Arrangement, label: str, choice: Choice, seeds: int) -> Measured:
    text = arrangement.experiment(epochs=choice.epochs, rate=choice.rate)
    every = [*label_attacks("every-step"), _TRAINED_COMPONENT, *label_attacks("after-training")]
    attacks = ", ".join(name for name in every if name not in arrangement.left_out)
    attacked, tossed = min(seeds, arrangement.attacked), min(seeds, arrangement.canary_runs)
    return Measured(
        _jobs(arrangement, f"{text}attacks: [{attacks}]\n", label, range(attacked), ", attacked"),
        _jobs(arrangement, f"{text}audit: false\n", label, range(attacked, seeds), ", test figures"),
        _jobs(arrangement, f"{text}audit: {{canaries: {arrangement.canaries}}}\n", label, range(tossed), ", canaries"),
    )


def converged(*, quick: bool) -> list[list[Job]]:
    """Return the runs to convergence."""
    seeds = range(1 if quick else CONVERGED_SEEDS)
    return jobs_of(CONVERGED, CONVERGED_DEFENSES, seeds=seeds, what="", quick=quick)


def costs(arrangement: Arrangement, *, quick: bool) -> dict[str, Job]:
    """Return the measurements of steps, by row: of every defense, of a private top, and of a one-way exchange."""

    def text(label: str, *, private_top: bool = False) -> str:
        plain = arrangement.experiment(
            epochs=1, rate=arrangement.rates[0], private_top=private_top, more="audit: false"
        )
        (settings,) = _settings(plain, [label], seeds=[0], what="")
        return str(settings["experiment"]["yaml"])

    experiments = {label: text(label) for label in DEFENSES} | {PRIVATE: text(NONE, private_top=True)}
    common = {"without": {"yaml": text(NONE)}, "sample": arrangement.records, "rounds": 1 if quick else _ROUNDS}
    return {
        label: Job(
            runs.step_cost,
            {"about": {"label": f"{arrangement.key}: {label}, cost of a step"}, "experiment": {"yaml": yaml}} | common,
        )
        for label, yaml in experiments.items()
    }


def crossing_once(arrangement: Arrangement) -> Job:
    """Return what counts the bytes of a one-way exchange with wide random layers."""
    name = next(name for name, (_, widths) in SILENT.items() if widths != (64, 32))
    text = _silent(arrangement, name, 1, arrangement.silent_rates[0])
    (settings,) = _settings(text, [NONE], seeds=[0], what=f", {name}, bytes")
    return Job(runs.crossing_bytes, settings | {"sample": arrangement.records})
