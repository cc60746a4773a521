"""Which epochs and rates were chosen, and how often the best lay at the end of what was tried."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.reproduce.better_defense.choosing import ANSWER_RATES, RATES, SILENT_RATES, counted_edges
from scripts.reproduce.better_defense.defenses import ASYMMETRIC, AXIS_SUMKL, FAMILIES, NONE
from scripts.reproduce.better_defense.kept import all_labels
from scripts.reproduce.better_defense.runs import Measured, study, trial_job
from scripts.reproduce.better_defense.settings import VALIDATION_SEED, Case, cases
from scripts.reproduce.shared.claims import markdown_table, shown
from scripts.reproduce.shared.jobs import run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

TRIAL_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
TRIAL_SETTINGS = ("criteo-10k", "bank-divided", "mnist")
TRIAL = (NONE, AXIS_SUMKL.members[1], ASYMMETRIC.members[2])


def choices_table(found: Sequence[Measured]) -> str:
    """Return epochs and rate of every defense in every setting."""
    rows = [
        (
            f"`{label}`" if label != NONE.label else label,
            *(f"{one.choices[label].epochs}, {one.choices[label].rate:g}" for one in found),
        )
        for label in all_labels(found)
    ]
    return markdown_table(("", *(one.case.title for one in found)), rows)


def edges_table(found: Sequence[Measured]) -> str:
    """Return how often the best is the fewest or the most epochs that were tried, by family."""
    rows = []
    for name, labels in [(NONE.label, [NONE.label])] + [
        (family.label, [member.label for member in family.members]) for family in FAMILIES
    ]:
        edges = counted_edges(one.choices[label] for one in found for label in labels if label in one.choices)
        if edges["all"]:
            rows.append((name, str(edges["all"]), str(edges["fewest"]), str(edges["most"])))
    return markdown_table(("", "choices", "fewest epochs tried", "most epochs tried"), rows)


def _trial(settings: Settings) -> str:
    """Return the trial of four rates: validation AUC at the best number of epochs."""
    chosen: list[Case] = [case for case in cases(settings) if case.key in TRIAL_SETTINGS]
    wanted = [(case, one) for case in chosen for one in TRIAL]
    jobs = [trial_job(case, one, rate) for case, one in wanted for rate in TRIAL_RATES]
    results = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    rows = [
        (case.title, one.label, *(shown(max(next(results)["auc"]), 4) for _ in TRIAL_RATES)) for case, one in wanted
    ]
    return markdown_table(("setting", "defense", *(f"{rate:g}" for rate in TRIAL_RATES)), rows, left=2)


def sections(settings: Settings) -> list[Section]:
    """Return the section on what was chosen."""
    found = study(settings)
    edges = counted_edges(choice for one in found for choice in one.choices.values())
    silent = counted_edges(choice for one in found for choice in one.silent_choices.values())
    trial = "" if settings.quick else f"{_TRIAL}\n\n{_trial(settings)}"
    body = f"""
With one more seed ({VALIDATION_SEED}), a tenth of the training records held out: by the validation AUC of the top that
sends, of three numbers of epochs and of rates of Adam: {_listed(RATES)}; of answers and targets that are drawn once and
remembered {_listed(ANSWER_RATES)}; where nothing comes back {_listed(SILENT_RATES)}.
No defense here depends on how many epochs are planned, and rates are constant, so that one run of the most epochs
passes through the others. Where the most of the three were best, the same rate was tried with twice as many, and where
these were better, with four times as many. The private top has the package's own rate. Of {edges["all"]} choices
{edges["fewest"]} are of the fewest epochs that were tried and {edges["most"]} of the most: there, fewer or more might
be better (of what sends nothing back {silent["fewest"]} and {silent["most"]} of {silent["all"]}).

{edges_table(found)}

{choices_table(found)}

{trial}
"""
    return [Section(title="Which epochs and rates were chosen", body=body)]


_TRIAL = """\
The rates follow from a trial of four, by validation AUC at the best of the three numbers of epochs. The third one, of
remembered answers alone, was added after it, when test figures of one seed had been seen: they are learned by heart at
the higher ones. So answers have nine tries at first where noise has six, which favours answers."""


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)
