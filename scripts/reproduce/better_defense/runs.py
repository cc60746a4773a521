"""All runs of the study, in the order in which they are made, and what was measured by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.reproduce.better_defense import choosing
from scripts.reproduce.better_defense.choosing import ANSWER_RATES, DOUBLINGS, RATES, SILENT_RATES, Choice
from scripts.reproduce.better_defense.defenses import NONE, OLDER, Defense, chosen
from scripts.reproduce.better_defense.settings import VALIDATION_SEED, Case, cases
from scripts.reproduce.better_defense.study import alone, measure, one_way, validate
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.settings import Settings

ALONE = "label party alone"
SILENT: Mapping[str, tuple[str, bool] | None] = {
    ALONE: None,
    "one-way, random layers": ("random", False),
    "one-way, random layers, hidden": ("random", True),
    "one-way, components": ("pca", False),
    "one-way, components, hidden": ("pca", True),
}
"""What sends nothing back, by name: the partner's bottom, and whether the label party's top has a hidden layer."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured in one setting.

    Attributes:
        case: The setting, and what was tried on it.
        choices: Epochs and rate of each defense, by label.
        silent_choices: The same of what sends nothing back, by name.
        runs: Results by the defense's label, one for each of the case's seeds.
        validated: Of the older defenses, the audited run of the seed by which one of them is chosen.
        silent: Test AUCs of what sends nothing back, by name, one for each seed.
    """

    case: Case
    choices: Mapping[str, Choice]
    silent_choices: Mapping[str, Choice]
    runs: Mapping[str, Sequence[Result]]
    validated: Mapping[str, Result]
    silent: Mapping[str, Sequence[float]]

    def values(self, label: str, key: str) -> list[float]:
        """Return one figure of a defense, one per seed."""
        return [result[key] for result in self.runs[label]]

    @property
    def no_message(self) -> str:
        """The best one-way row by validation: what the label party has for nothing."""
        return max((name for name, how in SILENT.items() if how), key=lambda name: self.silent_choices[name].auc)

    @property
    def no_message_linear(self) -> str:
        """The best of those whose top is that of the setting."""
        plain = (name for name, how in SILENT.items() if how and not how[1])
        return max(plain, key=lambda name: self.silent_choices[name].auc)


def trial_job(case: Case, defense: Defense, rate: float, epochs: Sequence[int] = ()) -> Job:
    """Return the validation run of one defense at one rate, with the case's numbers of epochs or with others."""
    return Job(
        validate,
        {
            "setting": case.setting.as_settings(),
            "seed": VALIDATION_SEED,
            "defense": defense.as_settings(),
            "learning_rate": rate,
            "epochs": list(epochs or case.epochs),
        },
    )


def _silent_job(case: Case, name: str, rate: float, epochs: Sequence[int], seed: int, *, validation: bool) -> Job:
    how = SILENT[name]
    settings: dict[str, Any] = {"setting": case.setting.as_settings(), "seed": seed}
    if how is not None:
        settings |= {"bottom": how[0], "hidden": how[1]}
    settings |= {"learning_rate": rate, "epochs": list(epochs), "validation": validation}
    return Job(alone if how is None else one_way, settings)


def _measure_job(case: Case, defense: Defense, choice: Choice, seed: int, *, validation: bool) -> Job:
    return Job(
        measure,
        {
            "setting": case.setting.as_settings(),
            "seed": seed,
            "defense": defense.as_settings(),
            "learning_rate": choice.rate,
            "epochs": choice.epochs,
            "validation": validation,
        },
    )


def study(settings: Settings) -> list[Measured]:
    """Run what is not kept yet, and return what was measured, one for each setting whose data are at hand.

    First everything that is chosen by validation, then one seed of all settings, then the next.
    """
    found = cases(settings)
    defenses = chosen(quick=settings.quick)
    choices, silent_choices = _choose(found, defenses, settings), _choose_silent(found, settings)
    # Of a family of one strength there is no curve, and nothing to choose.
    older = [one for family in OLDER if len(family.members) > 1 for one in family.members if one in defenses]
    validated = _by_case(
        {
            case.key: {
                one.label: [_measure_job(case, one, choices[case.key][one.label], VALIDATION_SEED, validation=True)]
                for one in older
            }
            for case in found
        },
        settings,
    )
    measured = _by_case(
        {
            case.key: {
                one.label: [
                    _measure_job(case, one, choices[case.key][one.label], seed, validation=False) for seed in case.seeds
                ]
                for one in defenses
            }
            | {
                name: [
                    _silent_job(case, name, choice.rate, [choice.epochs], seed, validation=False) for seed in case.seeds
                ]
                for name, choice in silent_choices[case.key].items()
            }
            for case in found
        },
        settings,
    )
    return [
        Measured(
            case=case,
            choices=choices[case.key],
            silent_choices=silent_choices[case.key],
            runs={one.label: measured[case.key][one.label] for one in defenses},
            validated={label: results[0] for label, results in validated[case.key].items()},
            silent={name: [result["auc"][0] for result in measured[case.key][name]] for name in SILENT},
        )
        for case in found
    ]


def _by_case(
    wanted: Mapping[str, Mapping[str, Sequence[Job]]], settings: Settings
) -> dict[str, dict[str, list[Result]]]:
    """Run jobs, first the first of every row of every setting, then the second, and return their results in place."""
    places = [
        (number, key, label)
        for number in range(max((len(jobs) for rows in wanted.values() for jobs in rows.values()), default=0))
        for key, rows in wanted.items()
        for label, jobs in rows.items()
        if number < len(jobs)
    ]
    jobs = [wanted[key][label][number] for number, key, label in places]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    found: dict[str, dict[str, list[Result]]] = {key: {label: [] for label in rows} for key, rows in wanted.items()}
    for (_, key, label), result in zip(places, results, strict=True):
        found[key][label].append(result)
    return found


def rates_of(defense: Defense) -> tuple[float, ...]:
    """Return the learning rates that are tried of a defense."""
    return ANSWER_RATES if defense.remembered else RATES


def _choose(found: Sequence[Case], defenses: Sequence[Defense], settings: Settings) -> dict[str, dict[str, Choice]]:
    by_label = {one.label: one for one in defenses}

    def job(case: Case, label: str, rate: float, epochs: Sequence[int]) -> Job:
        return trial_job(case, by_label[label], rate, epochs)

    rates = {one.label: rates_of(one) for one in defenses}
    return _best(found, rates, {case.key: case.epochs for case in found}, job, settings)


def _choose_silent(found: Sequence[Case], settings: Settings) -> dict[str, dict[str, Choice]]:
    def job(case: Case, name: str, rate: float, epochs: Sequence[int]) -> Job:
        return _silent_job(case, name, rate, epochs, VALIDATION_SEED, validation=True)

    rates = dict.fromkeys(SILENT, SILENT_RATES)
    return _best(found, rates, {case.key: case.silent_epochs for case in found}, job, settings)


def _best(
    found: Sequence[Case],
    rates: Mapping[str, Sequence[float]],
    epochs: Mapping[str, Sequence[int]],
    job: Callable[[Case, str, float, Sequence[int]], Job],
    settings: Settings,
) -> dict[str, dict[str, Choice]]:
    """Return the best epochs and rate of each row in each setting; where the most are best, twice as many are tried.

    Args:
        found: The settings.
        rates: By row, the rates that are tried.
        epochs: By setting, the numbers of epochs that are tried at each of them.
        job: Makes the validation run of a row at a rate, with some numbers of epochs.
        settings: Of the run.
    """
    first = {
        case.key: {row: [job(case, row, rate, epochs[case.key]) for rate in tried] for row, tried in rates.items()}
        for case in found
    }
    results = _by_case(first, settings)
    choices = {
        key: {
            row: choosing.best(epochs[key], {rate: one["auc"] for rate, one in zip(rates[row], ones, strict=True)})
            for row, ones in rows.items()
        }
        for key, rows in results.items()
    }
    for _ in range(DOUBLINGS):
        longer = {
            case.key: {
                row: [job(case, row, choice.rate, [2 * choice.epochs])]
                for row, choice in choices[case.key].items()
                if choice.edge == "most"
            }
            for case in found
        }
        for key, rows in _by_case(longer, settings).items():
            for row, (one,) in rows.items():
                choice = choices[key][row]
                choices[key][row] = choosing.extended(choice, 2 * choice.epochs, one["auc"][0])
    return choices


__all__ = ["ALONE", "NONE", "SILENT", "Measured", "study", "trial_job"]
