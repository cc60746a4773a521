"""What attacks found in runs, in sentences: all that stands beside a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from splitvfl.config.registry import weaknesses
from splitvfl.leakage.after_training import AfterTraining
from splitvfl.leakage.column_figures import EXACT, ColumnReading
from splitvfl.leakage.features import best_by_knowledge
from splitvfl.leakage.leak_summary import LeakSummary, largest, nanmax
from splitvfl.leakage.membership import FEWEST_OTHERS, MembershipLeak
from splitvfl.leakage.message_audit import WITHOUT_FEATURES, shown_name
from splitvfl.metrics import chance_of_largest, oriented
from splitvfl.report.most_read import most_read, sent_when
from splitvfl.report.own_seat import seat_verdict
from splitvfl.report.read_words import (
    beside_own,
    counting,
    exactly,
    later,
    of_variance,
    once_each,
    too_many,
    with_share,
)
from splitvfl.report.rows import AUDITOR, AfterRow, DefenseRow, counted, known_records, leaves_out, with_parties
from splitvfl.report.summary import RunSummary

_FROM = {
    "scores": "the published scores",
    "activation": "the activation that the active party receives for a prediction",
}


def facts(run: RunSummary) -> list[str]:
    """Return what attacks found beside what a verdict says of labels, in sentences; none where none was run."""
    if run.seat:
        return [seat_verdict(run)]
    return [
        *_weaknesses(run),
        *_left_out(run),
        *_columns_recovered(run),
        *columns_hidden(run),
        *columns_read(run),
        *_learned(run),
        *membership_read(run),
        *packing_read(run),
    ]


def _weaknesses(run: RunSummary) -> list[str]:
    """Return what the run's defenses say of attacks that were run and recover labels behind them."""
    ran = {name.partition("@")[0] for _, name, _ in _results(run)}
    said = weaknesses(label.partition("(")[0] for label in run.defenses)
    return list(dict.fromkeys(text for attack, text in said if attack in ran))


def stopping_note(run: RunSummary) -> str:
    """Return in a sentence where early stopping ended a run, and what it kept; nothing if the run was without it."""
    if run.planned_epochs is None:
        return ""
    where = f"{run.epochs} of {counted(run.planned_epochs, 'epoch')}"
    if run.kept_epoch is None:
        return f"Trained {where}; no evaluation gave a figure to judge by, so the last weights were kept."
    figure = f"{run.metric_name} of {run.validation_metric:.3f}"
    return f"Trained {where} and kept the weights of epoch {run.kept_epoch}, with a validation {figure}."


def sending_note(run: RunSummary) -> str:
    """Return in a sentence how good the top was whose gradients were sent, where another one predicts; else nothing."""
    if run.sending_metric is None:
        return ""
    return f"The top model that sends gradients has a test {run.metric_name} of {run.sending_metric:.3f}."


def total_notes(runs: Sequence[RunSummary]) -> list[str]:
    """Return in sentences what the totals leave out, and what they are where nothing leaks."""
    leaks = [leak for run in runs for party in run.parties.values() if (leak := party.label_leak).total is not None]
    notes = []
    without = sum(not leak.includes_features for leak in leaks)
    if without:
        some = "" if without == len(leaks) else f" for {without:,} of {len(leaks):,} totals"
        notes.append(f"Total: {WITHOUT_FEATURES}{some}; the partner's own features are not known.")
    chance = largest(leak.by_chance for leak in leaks)
    if chance is not None:
        notes.append(f"The total is the largest of several figures: where nothing leaks, 95 % are below {chance:.2f}.")
    return notes


def label_notes(runs: Sequence[RunSummary]) -> list[str]:
    """Return in a sentence how the excess leakage was measured; none without canaries."""
    counts = sorted({run.canaries.count for run in runs if run.canaries is not None})
    if not counts:
        return []
    many = " or ".join(f"{count:,}" for count in counts)
    cost = (
        "They are an audit twin's; the test figure is of the model without canaries."
        if all(run.has_twin for run in runs if run.canaries is not None)
        else "The test figure is of a model that was trained on their random labels too."
    )
    return [f"The excess is the largest AUC of all attacks among {many} canaries, with a joint 95 % CI. {cost}"]


def chance_note(runs: Sequence[RunSummary]) -> str:
    """Return in a sentence what orientation alone gives on as few records as attacks were judged by; or nothing.

    Of several runs and attacks it speaks of those with the fewest records, and of the run with most figures.
    """
    found = {
        (result.by_chance, result.judged_on)
        for run in runs
        for _, _, result in _results(run)
        if not math.isnan(result.by_chance)
    }
    if not found:
        return ""
    chance, records = max(found)
    # Each attack has two figures, and the worst leak is the largest of all.
    figures = max(sum(2 for _ in _results(run)) for run in runs)
    most = chance_of_largest(chance, figures)
    return (
        f"Guessing is expected to reach {figure(chance)} on {records}, as attacks are oriented to be right more often "
        f"than not. The largest of {figures} such figures is up to {figure(most)}."
    )


def told_notes(runs: Sequence[RunSummary]) -> list[str]:
    """Return what attacks infer of classes and numbers beside their AUCs, a sentence for each; of single runs only."""
    if len(runs) != 1:
        return []
    found = [f"{attack} at {party}: {result.told}." for party, attack, result in _results(runs[0]) if result.told]
    tasks = {result.task for _, _, result in _results(runs[0])}
    if "multiclass" in tasks:
        found.append(
            "AUCs are means over the classes of one against the rest; top-1 is the share of records whose own class "
            "scored highest."
        )
    if "regression" in tasks:
        found.append(
            "Numbers have a concordance in place of an AUC: how often the larger of two labels has the larger score. "
            "Within ½ σ is the fraction of labels that a line through the scores predicts within half their deviation."
        )
    return found


def known_note(runs: Iterable[RunSummary]) -> str:
    """Return in a sentence which records attacks that need some were given; or nothing if no attack was run."""
    given = dict.fromkeys(
        known_records(run.known_positives, run.known_negatives, run.task)
        for run in runs
        if any(party.attacks or party.after_training for party in run.parties.values())
    )
    if not given:
        return ""
    return f"Attacks that need known records know {' or '.join(given)}. They are judged on others."


def unavailable_notes(rows: Sequence[DefenseRow]) -> list[str]:
    """Return a sentence for every reason why attacks could not be run at a party, once for all defenses."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for _, party in with_parties(rows):
        for attack, reason in party.unavailable.items():
            found.setdefault((party.name, reason), {})[attack] = None
    return [f"{', '.join(attacks)} could not be run at {name}: {reason}" for (name, reason), attacks in found.items()]


def _results(run: RunSummary) -> Iterator[tuple[str, str, LeakSummary]]:
    """Return the figures of each attack, behind the names of its party and its own."""
    return ((party, attack, result) for party, found in run.parties.items() for attack, result in found.attacks.items())


def _left_out(run: RunSummary) -> list[str]:
    """Return a sentence for every attack that scores some records only, and is good there."""
    return [
        f"{_capital(attack_phrase(name))} scores {result.scored:.0%} of the records only. Among these its leak AUC is "
        f"{figure(own)}; with the others counted as ties it is {figure(result.worst)}."
        for _, name, result in _results(run)
        if leaves_out(result) and not math.isnan(result.worst)
        for own in [nanmax(0.5, oriented(result.auc), oriented(result.accumulated_auc))]
        if own >= run.goal and figure(own) != figure(result.worst)
    ]


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _columns_recovered(run: RunSummary) -> list[str]:
    """Return a sentence for every partner whose features an attack estimates better than their means do."""
    found: dict[str, list[str]] = {}
    for name, party in run.parties.items():
        for leak in chain.from_iterable(best_by_knowledge(party.features)):
            if leak.mse < leak.blind_mse:
                said = (
                    f"{leak.attack} recovers features of {name} with a mean squared error of {leak.mse:.3g}; guessing "
                    f"their means has {leak.blind_mse:.3g}."
                )
                found.setdefault(said, []).append(_FROM[leak.sees])
    return [f"From {' or '.join(shown)}, {said}" for said, shown in found.items()]


def columns_read(run: RunSummary) -> list[str]:
    """Return a sentence for every partner whose features an attack of the active party recovers.

    From what was sent in training, and from scores of predictions, each.
    """
    found = []
    for name, party in run.parties.items():
        for best in most_read(party):
            reading = best.reading
            if reading.of_steps:
                found.append(_of_steps(name, reading))
                continue
            counted = counting(reading) + once_each(best.each_category_once)
            rows = f"the features of {reading.known_share:.0%} of the records" if reading.known_share else "no record"
            knows = f"{name}'s model part and " if reading.knows_model else ""
            source, whose = f"what {name} sent {sent_when(best)}", "its features"
            if reading.of_scores:
                knows, source, whose = "the whole model and ", "scores and its own features", f"the features of {name}"
            found.append(
                f"From {source}, {reading.attack} recovers {best.share:.0%} of {of_variance(reading)}{whose}, the mean "
                f"of {len(best.columns)}{counted}{beside_own(reading)}. It knows {knows}{rows}, and recovers more than "
                f"half of {best.told or 'none'} of them, most of {with_share(best.columns[0])}.{best.fell}"
                f"{exactly(reading)}{later(reading)}{too_many(reading)}"
            )
    return found


def _of_steps(name: str, reading: ColumnReading) -> str:
    """Return what was reconstructed of a partner's only feature, in a sentence or two."""
    exact = (
        "" if reading.exact is None else f", {reading.exact:.0%} of the records within {EXACT:g} standard deviations"
    )
    return (
        f"From all steps together, {reading.attack} reconstructs {reading.share:.0%} of the variance of "
        f"{reading.columns[0].column}, the only feature of {name}{exact}. It knows no record ({reading.note}). To "
        f"prevent it, give {name} a second feature, or add noise to what it sends."
    )


def membership_read(run: RunSummary) -> list[str]:
    """Return a sentence for every attack on membership: how well it separates training from test records."""
    return [
        f"Membership: {one.attack} separates training from test records by the finished model with an AUC of "
        f"{one.auc:.2f} (95 % CI {one.low:.2f}–{one.high:.2f}){_found_at_few_alarms(one)}."
        for one in run.membership
    ]


def packing_read(run: RunSummary) -> list[str]:
    """Return what parties recovered that deviated from the protocol, and what stopped them, in sentences."""
    return [sentence for one in run.packing for sentence in one.sentences()]


def _found_at_few_alarms(one: MembershipLeak) -> str:
    """Return how many members were found, or why there is no such figure."""
    if one.hits is None:
        return f"; the hits at 1 % false alarms need at least {FEWEST_OTHERS} test records"
    return (
        f": it finds {one.hits:.1%} of {one.members:,} at 1 % false alarms (95 % CI {one.hits_low:.1%} to "
        f"{one.hits_high:.1%})"
    )


def columns_hidden(run: RunSummary) -> list[str]:
    """Return a line for every partner whose features no attack estimates better than their means do.

    Attackers that know a partner's transform and those that do not have a line each.
    """
    return [
        f"Features of {name}: {best.attack} estimates them with a mean squared error of {best.mse:.3g}, no better than "
        f"their means, {best.blind_mse:.3g}."
        for name, party in run.parties.items()
        for views in best_by_knowledge(party.features)
        if all(leak.mse >= leak.blind_mse for leak in views)
        for best in [min(views, key=lambda leak: leak.mse)]
    ]


def _learned(run: RunSummary) -> list[str]:
    return [
        f"After training, with the labels of {AfterRow([found]).known} and {name}'s own model part, "
        f"{attack_phrase(attack)} reaches an AUC of {figure(leak)} on other training records"
        f"{_aside(found)}; with that part before training, {figure(before)}."
        for name, party in run.parties.items()
        for attack, found in party.after_training.items()
        for leak, before in [(found.train.worst_auc, found.before_train.worst_auc)]
        if not math.isnan(leak + before)
    ]


def _aside(found: AfterTraining) -> str:
    """Return what is to be known of the figure on training records, in brackets: how it came about, and chance."""
    parts = []
    if found.train.deciding[0] < 0.5:
        parts.append(f"{figure(found.train.deciding[0])} before it is oriented")
    if found.scored < 1.0 and not math.isnan(found.train.auc):
        own = figure(oriented(found.train.auc))
        parts.append(f"{1.0 - found.scored:.0%} left out count as ties; {own} among the others")
    if not math.isnan(found.train.by_chance):
        parts.append(f"guessing: {figure(found.train.by_chance)}")
    return f" ({'; '.join(parts)})" if parts else ""


def attack_phrase(attack: str) -> str:
    """Return an attack as it is called in a sentence.

    >>> attack_phrase("norm"), attack_phrase("auditor-linear")
    ('the norm attack', "the auditor's attack")
    """
    return "the auditor's attack" if shown_name(attack) == AUDITOR else f"the {attack} attack"


def figure(value: float) -> str:
    """Return a leak AUC as it is written everywhere."""
    return f"{value:.2f}"
