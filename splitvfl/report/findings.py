"""What runs say, in plain words.

Three figures come first (:func:`headline`). Which one decides whether a run is below the goal: with canaries the leak
beyond the prediction, and then with the whole of its interval; else the worst attack on messages. Below the goal is
still not hidden, where much more is read in all than is known without messages (:func:`verdict` says so).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from splitvfl.config.registry import weaknesses
from splitvfl.errors import ArgumentError
from splitvfl.leakage.after_training import AfterTraining
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.column_figures import EXACT, ColumnReading
from splitvfl.leakage.features import best_by_knowledge
from splitvfl.leakage.label_leak import LabelLeak
from splitvfl.leakage.leak_summary import LeakSummary, largest, nanmax
from splitvfl.leakage.membership import FEWEST_OTHERS, MembershipLeak
from splitvfl.leakage.message_audit import WITHOUT_FEATURES, shown_name
from splitvfl.metrics import chance_of_largest, oriented
from splitvfl.report.most_read import most_read, sent_when
from splitvfl.report.own_seat import seat_verdict
from splitvfl.report.party_result import PartyResult
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
from splitvfl.report.rows import (
    AUDITOR,
    AfterRow,
    DefenseRow,
    RunGroup,
    Undefended,
    attack_names,
    counted,
    estimate,
    known_records,
    leaves_out,
    rows_by_defense,
    with_parties,
)
from splitvfl.report.summary import RunSummary
from splitvfl.report.verdict import half_width

VISIBLE = 0.9
PARTLY_VISIBLE = 0.7

MATCHING = "up to 0.11 (135,000 records) and 0.36 (455 records, 4 epochs)"
"""By how much the matched figure exceeded what a theorem allows, ``asymmetric-response`` at .2 to .4."""

CERTAIN_CANARIES = 3000

_SHOWING = {
    "scores": "the published scores",
    "activation": "the activation that the label party receives for a prediction",
}

EXCESS = 0.05
"""By so much total may exceed what is known without messages, before labels are called not hidden."""


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
    """Return in a sentence how good the top was whose gradients crossed, where another one predicts; else nothing."""
    if run.sending_metric is None:
        return ""
    return f"The top that sends has a test {run.metric_name} of {run.sending_metric:.3f}."


def below(run: RunSummary, goal: float | None = None) -> bool:
    """Return whether a run was judged and is below the goal.

    With canaries that is the upper end of their interval, and no column predicts a coin. Else, at every party, the
    worst attack: against the goal, or what the party's own columns tell anyway, if that is more.

    Args:
        run: The run.
        goal: Leak AUC in (0.5, 1]; the run's own by default.
    """
    goal = run.goal if goal is None else goal
    if run.canaries is not None:
        return run.canaries.high < goal
    return run.worst[0] is not None and not run.above(goal)


def headline(run: RunSummary) -> str:
    """Return what is to be read first: leak beyond the prediction, total, and what is known without messages.

    A sentence for every passive party; nothing without any figure.
    """
    return " ".join(filter(None, (_three(run, name, party) for name, party in run.parties.items())))


def _three(run: RunSummary, name: str, party: PartyResult) -> str:
    leak = party.label_leak
    where = f"Labels, {name}:" if len(run.parties) > 1 else "Labels:"
    if run.traits.one_way:
        return f"{where} no message of training depends on them; {_known(name, leak)}."
    if not party.attacks:
        return ""
    if leak.total is None:
        why = "" if any(shown_name(attack) == AUDITOR for attack in party.attacks) else ", as no auditor watched"
        return f"{where} beyond the prediction and in all not measured{why}; {_known(name, leak)}."
    return f"{where} {_beyond(leak)} beyond the prediction, {in_all(leak)}; {_known(name, leak)}."


def in_all(leak: LabelLeak) -> str:
    """Return the total in words, and what is not in it."""
    if leak.total is None:
        return "in all not measured"
    return f"{figure(leak.total)} in all" + ("" if leak.includes_features else f" ({WITHOUT_FEATURES})")


def _beyond(leak: LabelLeak) -> str:
    if leak.beyond is None:
        return "not measured"
    if leak.low is None or leak.high is None:
        return f"{figure(leak.beyond)} (matched)"
    return f"{figure(leak.beyond)} ({figure(leak.low)} to {figure(leak.high)})"


def _known(name: str, leak: LabelLeak) -> str:
    if leak.known is None:
        return f"what the columns of {name} tell without messages is not known"
    if leak.labelled:
        return f"{name}'s own columns alone read {figure(leak.known)}"
    return f"the first principal component of {name}'s columns reads {figure(leak.known)} without any label"


def total_notes(runs: Sequence[RunSummary]) -> list[str]:
    """Return in sentences what the totals leave out, and what they are where nothing leaks."""
    leaks = [leak for run in runs for party in run.parties.values() if (leak := party.label_leak).total is not None]
    notes = []
    without = sum(not leak.includes_features for leak in leaks)
    if without:
        some = "" if without == len(leaks) else f" for {without:,} of {len(leaks):,} totals"
        notes.append(f"In all: {WITHOUT_FEATURES}{some}, as the partner's own features are not known.")
    chance = largest(leak.by_chance for leak in leaks)
    if chance is not None:
        notes.append(f"In all is the largest of several figures: where nothing leaks, 95 % are below {chance:.2f}.")
    return notes


def label_notes(runs: Sequence[RunSummary]) -> list[str]:
    """Return in sentences how the three figures were come by, and what is wrong with the matched one; each once."""
    notes = []
    counts = sorted({run.canaries.count for run in runs if run.canaries is not None})
    if counts:
        many = " or ".join(f"{count:,}" for count in counts)
        cost = (
            "they are an audit twin's, and the test figure is that of a model without canaries."
            if all(run.has_twin for run in runs if run.canaries is not None)
            else "the test figure is that of a model trained on their coin tosses too."
        )
        notes.append(f"Beyond the prediction is the auditor's AUC among {many} canaries, with a 95 % interval; {cost}")
    if any(
        run.canaries is None and party.label_leak.beyond is not None for run in runs for party in run.parties.values()
    ):
        notes.append(
            "Matched: without canaries, beyond the prediction is the AUC between records of equal final prediction, "
            f"which leaves prediction in: it read {MATCHING} too high. audit: {{canaries: 300}} needs no matching."
        )
    return notes


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
    said = (
        f"By chance, an attack that knows nothing is expected to get {figure(chance)} on as many records "
        f"({records}), as it is turned round where that reads better"
    )
    # Each attack has two figures, and the worst leak is the largest of all.
    figures = max(sum(2 for _ in _results(run)) for run in runs)
    most = chance_of_largest(chance, figures)
    return f"{said}; the largest of {figures} such figures, which the worst leak is, up to {figure(most)}."


def told_notes(runs: Sequence[RunSummary]) -> list[str]:
    """Return what attacks told of classes and numbers beside their AUCs, a sentence for each; of single runs only."""
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
            "In place of an AUC stands the concordance: of two records, how often the larger label has the larger "
            "score. Within ½ σ is the share of labels that a line of the scores tells within half their deviation."
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
    return f"Attacks that need known records were told of {' or '.join(given)}, and are not judged by them."


def unavailable_notes(rows: Sequence[DefenseRow]) -> list[str]:
    """Return a sentence for every reason why attacks could not be run at a party, once for all defenses."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for _, party in with_parties(rows):
        for attack, reason in party.unavailable.items():
            found.setdefault((party.name, reason), {})[attack] = None
    return [f"{', '.join(attacks)} could not be run at {name}: {reason}" for (name, reason), attacks in found.items()]


def leakiest(runs: Sequence[RunSummary]) -> RunSummary:
    """Return the run that leaked most, by the figure that decides; the first one if nothing was judged."""
    return max(runs, key=lambda run: run.deciding or 0.0)


def _results(run: RunSummary) -> Iterator[tuple[str, str, LeakSummary]]:
    """Return the figures of each attack, behind the names of its party and its own."""
    return ((party, attack, result) for party, found in run.parties.items() for attack, result in found.attacks.items())


def verdict(run: RunSummary, goal: float | None = None, *, own_columns: bool = True) -> str:
    """Return what a run showed, in sentences that anyone can act on; :func:`headline` is to be shown before them.

    It speaks of the attacks that were run, and claims nothing about others.

    Args:
        run: The run.
        goal: Leak AUC that every attack should stay below, in (0.5, 1], or below what the partner's own columns tell,
            if that is more; the run's own by default.
        own_columns: Whether it speaks of the partner's own columns, too.

    Raises:
        ArgumentError: If the goal is outside its range.
    """
    goal = run.goal if goal is None else goal
    if not 0.5 < goal <= 1.0:
        raise ArgumentError(f"goal must be in (0.5, 1], got {goal}")
    if run.seat:
        return seat_verdict(run)
    worst = run.worst[0]
    if worst is None:
        sentences = [_nothing_measured(run)]
    elif run.canaries is not None:
        sentences = [*_by_canaries(run, run.canaries, goal), *_weaknesses(run, goal), *_limits(run)]
    elif run.above(goal):
        sentences = [*_readable(run, goal), *_weaknesses(run, goal)]
    else:
        sentences = _unread(run, goal)
    sentences += [*_left_out(run, goal), *_columns_recovered(run), *columns_read(run), *_learned(run, goal)]
    sentences += [*membership_read(run), *packing_read(run)]
    if own_columns:
        sentences.append(_own_columns(run))
    return " ".join(filter(None, sentences))


def _nothing_measured(run: RunSummary) -> str:
    if run.traits.one_way:  # of any task
        read = any(party.readings for party in run.parties.values())
        unread = "" if read else "; what the activations tell of a partner's columns was not measured"
        return (
            "Nothing that depends on labels was sent to a partner in training, so there was no message to read them "
            f"from. Scores that are published later tell of labels, as any prediction does{unread}."
        )
    if solved := [one for one in run.solvable if one.reveals_labels]:
        said = " ".join(" ".join(one.sentences()) for one in solved)
        return f"No attack was judged in this run, and none is needed: {said}"
    if any(_results(run)):
        held = "both classes" if run.task == "binary" else "different labels"
        return f"No batch held {held}, so no attack could be judged: what leaks is not known."
    return "No label attack watched this run: what leaks is not known."


def _readable(run: RunSummary, goal: float) -> list[str]:
    above = run.above(goal)
    worst, _, party = max(above)
    own, attack, own_party = _partners_best(run, {name for *_, name in above})
    how, reads = ("visible", "reads") if worst >= VISIBLE else ("partly visible", "reads part of")
    # An attack that needs no secrets of the label party is the worse news, also where it is worse in the third digit.
    if own is not None and figure(own) == figure(worst):
        return [
            f"The labels are {how} to {_partner(run, own_party)}: the {attack} attack {reads} them "
            f"(leak AUC {figure(own)}, {_aim(run, own_party, goal)})."
        ]
    sentences = [
        f"The labels are {how} in what {_partner(run, party)} receives: the auditor's attack, which also knows the "
        f"clean gradients, {reads} them (leak AUC {figure(worst)}, {_aim(run, party, goal)})."
    ]
    own, attack, own_party = _partners_best(run, run.parties)
    if own is not None:
        where = "" if own_party == party else f", in what {_partner(run, own_party)} receives"
        sentences.append(f"Of the attacks that need no such knowledge, {attack} got furthest ({figure(own)}){where}.")
    return sentences


def _aim(run: RunSummary, party: str, goal: float) -> str:
    """Return the goal at a party in a few words."""
    limit, worst = run.parties[party].limit(goal), run.parties[party].worst[0]
    if limit == goal:
        return f"goal below {goal:.2f}"
    digits = 2 if worst is None or figure(worst) != figure(limit) else 4
    return f"goal below {limit:.{digits}f}, which its own columns read"


def _unread(run: RunSummary, goal: float) -> list[str]:
    worst, attack, party = run.worst
    assert worst is not None
    names = attack_names([run])
    strongest = attack_phrase(attack)
    limit = run.parties[party].limit(goal)
    digits = 2 if round(worst, 2) < round(limit, 2) or limit > goal else 4
    several = f"Every attack stayed below the goal: the strongest of {len(names)}"
    sentences = [
        f"{several if len(names) > 1 else 'The only attack that was run'}, {strongest}, got a leak AUC of "
        f"{worst:.{digits}f} ({_aim(run, party, goal)}).",
        _not_hidden(run, goal),
        "That is what was found in this run, and no proof that nothing else leaks.",
    ]
    return [*sentences, *_limits(run)]


def _limits(run: RunSummary) -> list[str]:
    sentences = [] if AUDITOR in attack_names([run]) else ["The auditor's attack was not run."]
    missing = sorted({name for party in run.parties.values() for name in party.unavailable})
    return [*sentences, f"Could not be run: {', '.join(missing)}."] if missing else sentences


def _by_canaries(run: RunSummary, found: CanaryLeak, goal: float) -> list[str]:
    """Return what canaries say against the goal, and what is read with the prediction."""
    auc, goal_is = found.auc, f"goal below {goal:.2f}"
    count = f"{found.count:,} canaries"
    measured = f"an AUC of {figure(auc)} (95 %: {figure(found.low)} to {figure(found.high)}, {goal_is})"
    if auc >= goal:
        how = "visible" if auc >= VISIBLE else "partly visible"
        sentences = [
            f"The labels are {how} beyond what the model predicts: the auditor reads {count} with {measured}.",
            "As the interval begins below the goal, more canaries might say otherwise." if found.low < goal else "",
        ]
    elif not below(run, goal):
        sentences = [
            f"Beyond what the model predicts, the auditor reads {count} with {measured}: too few canaries to call it "
            "below the goal."
        ]
    else:
        sentences = [
            f"Beyond what the model predicts, the leak stayed below the goal: the auditor reads {count} with "
            f"{measured}.",
            _not_hidden(run, goal),
            "That is what was found in this run, and no proof that nothing else leaks.",
        ]
    worst, attack, party = run.worst
    assert worst is not None
    sentences.append(
        f"With what messages tell of the prediction, {attack_phrase(attack)} got furthest ({figure(worst)})"
        f"{f' at {party}' if len(run.parties) > 1 else ''}."
    )
    return [*sentences, *_better_than_the_auditor(run, found)]


def _better_than_the_auditor(run: RunSummary, found: CanaryLeak) -> list[str]:
    """Return a sentence on the attack that read the canaries better than the auditor, if chance does not explain it."""
    others = [
        (leak.low, leak.auc, name)
        for party in run.parties.values()
        for name, leak in party.canaries.items()
        if shown_name(name) != AUDITOR
    ]
    low, auc, name = max(others, default=(0.0, 0.0, ""))
    if low <= found.auc:
        return []
    return [f"Of the canaries {attack_phrase(name)} read more than the auditor ({figure(auc)}): take its figure."]


def _not_hidden(run: RunSummary, goal: float) -> str:
    """Return a sentence where a run is below the goal and yet much is read in all; or ""."""
    found = [
        (leak.total, leak.excess, name)
        for name, party in run.parties.items()
        for leak in [party.label_leak]
        if leak.total is not None and leak.total >= goal and (leak.excess is None or leak.excess > EXCESS)
    ]
    if not found:
        return ""
    total, excess, name = max(found, key=lambda entry: entry[0])
    more = (
        f"what {_partner(run, name)} knows without messages was not measured"
        if excess is None
        else f"{figure(excess)} more than {_partner(run, name)} knows without messages"
    )
    features = " and the partner's features" if run.includes_features else ""
    return (
        f"The labels are not hidden by that: with the model's predictions{features} {figure(total)} is read in all, "
        f"{more}."
    )


def _weaknesses(run: RunSummary, goal: float) -> list[str]:
    """Return what the run's defenses say of attacks that read labels behind them, each sentence once."""
    reading = {name.partition("@")[0] for _, name, result in _results(run) if result.worst >= goal}
    said = weaknesses(label.partition("(")[0] for label in run.defenses)
    return list(dict.fromkeys(text for attack, text in said if attack in reading))


def _own_columns(run: RunSummary) -> str:
    """Return a sentence about what a partner predicts from its own columns, where that is more than leaks; or ""."""
    worst = run.worst[0]
    known = [(party.own_columns_auc, name) for name, party in run.parties.items() if party.own_columns_auc is not None]
    if worst is None or not known or max(known)[0] <= worst:
        return ""
    own, name = max(known)
    return (
        f"From its own columns alone {_partner(run, name)} could predict them better (AUC {figure(own)}, given labels "
        "of other records), which no defense of the messages prevents."
    )


def _left_out(run: RunSummary, goal: float) -> list[str]:
    """Return a sentence for every attack that reads well where it dares to, and leaves out the rest."""
    return [
        f"{_capital(attack_phrase(name))} scores {result.scored:.0%} of the records only, and among these its leak AUC "
        f"is {figure(own)}; counted as ties, those that it leaves out bring it to {figure(result.worst)}."
        for _, name, result in _results(run)
        if leaves_out(result) and not math.isnan(result.worst)
        for own in [nanmax(0.5, oriented(result.auc), oriented(result.accumulated_auc))]
        if own >= goal and figure(own) != figure(result.worst)
    ]


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _columns_recovered(run: RunSummary) -> list[str]:
    """Return a sentence for every partner in whose columns an attack beats their means, once where views tell alike."""
    found: dict[str, list[str]] = {}
    for name, party in run.parties.items():
        for leak in chain.from_iterable(best_by_knowledge(party.features)):
            if leak.mse < leak.blind_mse:
                said = (
                    f"columns of {name}: the {leak.attack} attack estimates them with a mean squared error of "
                    f"{leak.mse:.3g}, against {leak.blind_mse:.3g} for guessing every column's mean."
                )
                found.setdefault(said, []).append(_SHOWING[leak.sees])
    return [f"{_capital(' and '.join(shown))} {_gives(shown)} away {said}" for said, shown in found.items()]


def columns_read(run: RunSummary) -> list[str]:
    """Return a sentence for every partner whose columns an attack in the label party's seat read.

    In what was sent in training, and in scores of predictions, each.
    """
    found = []
    for name, party in run.parties.items():
        for best in most_read(party):
            reading = best.reading
            if reading.of_steps:
                found.append(_of_steps(name, reading))
                continue
            counted = counting(reading) + once_each(best.each_category_once)
            rows = f"the columns of {reading.known_share:.0%} of the records" if reading.known_share else "no record"
            knows = f"{name}'s half of the model and " if reading.knows_model else ""
            source, whose = f"what {name} sent {sent_when(best)}", "its columns"
            if reading.of_scores:
                knows, source, whose = "the whole model and ", "scores and its own columns", f"the columns of {name}"
            found.append(
                f"From {source} the label party reads {best.share:.0%} of {of_variance(reading)}{whose}, the mean "
                f"of {len(best.columns)}{counted}{beside_own(reading)}, by the {reading.attack} attack, if it knows "
                f"{knows}{rows}: more than half of {best.told or 'none'} of them, most of "
                f"{with_share(best.columns[0])}.{best.fell}{exactly(reading)}{later(reading)}{too_many(reading)}"
            )
    return found


def _of_steps(name: str, reading: ColumnReading) -> str:
    """Return what was reconstructed of a partner's only column, in a sentence or two."""
    exact = (
        "" if reading.exact is None else f", {reading.exact:.0%} of the records within {EXACT:g} standard deviations"
    )
    return (
        f"From all steps together the label party reconstructs {reading.share:.0%} of the variance of "
        f"{reading.columns[0].column}, the only column of {name}{exact}, by the {reading.attack} attack, and knows no "
        f"record ({reading.note}). To prevent it, give {name} a second column, or add noise to what it sends."
    )


def membership_read(run: RunSummary) -> list[str]:
    """Return a sentence for every attack that told training from test records, or could not."""
    return [
        f"By the {one.attack} attack on the finished model a training record is told from a test record with an AUC of "
        f"{one.auc:.2f} (95 % interval {one.low:.2f} to {one.high:.2f}){_found_at_few_alarms(one)}."
        for one in run.membership
    ]


def packing_read(run: RunSummary) -> list[str]:
    """Return what parties read that deviated from the protocol, and what stopped them, in sentences."""
    return [sentence for one in run.packing for sentence in one.sentences()]


def _found_at_few_alarms(one: MembershipLeak) -> str:
    """Return how many members were found, or why that is not said."""
    if one.hits is None:
        return f"; how many are found at 1 % false alarms is not told by fewer than {FEWEST_OTHERS} test records"
    return (
        f": {one.hits:.1%} of {one.members:,} are found at 1 % false alarms (95 % interval {one.hits_low:.1%} to "
        f"{one.hits_high:.1%})"
    )


def _gives(shown: Sequence[str]) -> str:
    return "each give" if len(shown) > 1 else "gives" if shown[0].startswith("the activation") else "give"


def columns_hidden(run: RunSummary) -> list[str]:
    """Return a line for every partner whose columns no attack estimates better than their means do.

    Who knows a partner's transform and who does not have a line each.
    """
    return [
        f"Columns of {name}: {best.attack} estimates them with a mean squared error of {best.mse:.3g}, no better than "
        f"their means, {best.blind_mse:.3g}."
        for name, party in run.parties.items()
        for views in best_by_knowledge(party.features)
        if all(leak.mse >= leak.blind_mse for leak in views)
        for best in [min(views, key=lambda leak: leak.mse)]
    ]


def _learned(run: RunSummary, goal: float) -> list[str]:
    return [
        f"After training, {_partner(run, name)} {'can' if leak >= goal else 'could hardly'} read labels "
        f"with its own half of the model: given the labels of "
        f"{AfterRow([found]).known}, {attack_phrase(attack)} gets an AUC of "
        f"{figure(leak)} on other training records{_aside(found)}, and {figure(before)} with that half as it was "
        "before training."
        for name, party in run.parties.items()
        for attack, found in party.after_training.items()
        for leak, before in [(found.train.worst_auc, found.before_train.worst_auc)]
        if not math.isnan(leak + before)
    ]


def _aside(found: AfterTraining) -> str:
    """Return what is to be known of the figure on training records, in brackets: how it came about, and chance."""
    parts = []
    if found.train.deciding[0] < 0.5:
        parts.append(f"the other way round: {figure(found.train.deciding[0])} as it scores them")
    if found.scored < 1.0 and not math.isnan(found.train.auc):
        own = figure(oriented(found.train.auc))
        parts.append(f"with {1.0 - found.scored:.0%} left out, as ties; {own} among the others")
    if not math.isnan(found.train.by_chance):
        parts.append(f"{figure(found.train.by_chance)} is what chance gives")
    return f" ({'; '.join(parts)})" if parts else ""


def _partners_best(run: RunSummary, partners: Collection[str]) -> tuple[float | None, str, str]:
    """Return the best of the attacks that one of these partners can run on messages: value, attack, party."""
    found = [
        (result.worst, attack, name)
        for name, attack, result in _results(run)
        if name in partners and not math.isnan(result.worst) and result.by_messages and shown_name(attack) != AUDITOR
    ]
    return max(found, default=(None, "", ""))


def _partner(run: RunSummary, party: str) -> str:
    return f"your partner {party}" if len(run.parties) > 1 else "your partner"


def advice(group: RunGroup, goal: float | None = None) -> str:
    """Return which defense of a group to take, if any, and at what cost; empty if there is nothing to choose from.

    Where none is below the goal, it says why, as far as the figures tell.

    Args:
        group: Runs that may be compared.
        goal: As that of :func:`verdict`; the lowest of the runs by default.
    """
    goal = group.goal if goal is None else goal
    rows = [row for row in rows_by_defense(group) if row.deciding is not None]
    if len(rows) < 2:
        return _one_way(group)
    kept = [row for row in rows if all(below(run, goal) for run in row.results)]
    if kept:
        said = f"{_kept(kept, goal, group)} {_cost(kept, rows, group.metric)}".strip()
        return " ".join(filter(None, [said, _in_all(kept), _one_way(group)]))
    least = min(rows, key=lambda row: row.deciding.mean if row.deciding else 1.0)
    assert least.deciding is not None
    name = _capital(_undefended_name(least)) if least.undefended else least.label
    mean = f", the mean of the worst of each of {least.runs} runs" if least.runs > 1 else ""
    if group.by_canaries:
        said = (
            f"Nothing kept what messages tell beyond the prediction surely below {goal:.2f}. {name} leaked least: "
            f"{figure(least.deciding.mean)}{mean}."
        )
    else:
        said = (
            f"Nothing kept every attack below {_group_aim(group, goal).rstrip(',')}. {name} leaked least: "
            f"{figure(least.deciding.mean)}{mean}; {attack_phrase(least.worst_attack)} got furthest."
        )
    return " ".join(filter(None, [said, *why_nothing(rows, goal), _one_way(group)]))


def _undefended_name(row: DefenseRow) -> str:
    return f"the run without a defense{', with a private top,' if row.private_top else ''}"


def _group_aim(group: RunGroup, goal: float) -> str:
    """Return the goal of a group in words: with what own columns tell, where that is more."""
    told = largest(run.known for run in group.runs)
    return f"{goal:.2f}" if told is None or told <= goal else f"{figure(told)}, what own columns tell anyway,"


def why_nothing(rows: Sequence[DefenseRow], goal: float) -> Iterator[str]:
    """Give reasons why nothing among these rows is below a goal, as far as the figures tell, in sentences.

    Args:
        rows: Judged runs, none of which is below the goal.
        goal: As that of :func:`verdict`.
    """
    coins = [run.canaries for row in rows for run in row.results if run.canaries is not None]
    if any(found.low < goal for found in coins):
        fewest = min(coins, key=lambda found: found.count)
        margin, narrow = (half_width(count, figures=fewest.figures) for count in (fewest.count, CERTAIN_CANARIES))
        yield (
            f"{fewest.count:,} canaries give a margin of ±{margin:.2f}, too wide to decide. Use {CERTAIN_CANARIES:,} "
            f"(±{narrow:.2f})."
        )
    predicted = largest(party.prediction_auc for row in rows for run in row.results for party in run.parties.values())
    if not coins and predicted is not None and predicted >= goal:
        yield (
            f"The finished models' own predictions tell the training labels with an AUC of up to {figure(predicted)}, "
            "and a gradient per record depends on its record's prediction: noise hides that in one message, and less "
            "of it over the epochs. What does not follow the prediction are answers that are drawn once per record "
            "(asymmetric-response), and training in which nothing flows back (exchange: one-way)."
        )
    if not coins:
        yield from dict.fromkeys(text for row in rows for run in row.results for text in _weaknesses(run, goal))


def _in_all(kept: Sequence[DefenseRow]) -> str:
    """Return what is read in all behind defenses that hold, beside what is known without messages."""
    total = max((row.total.mean for row in kept if row.total is not None), default=None)
    known = max((row.known.mean for row in kept if row.known is not None), default=None)
    if total is None:
        return ""
    beside = "" if known is None else f"; {figure(known)} is known without any message"
    return f"With the model's predictions {figure(total)} is read in all{beside}."


def _one_way(group: RunGroup) -> str:
    """Return what training cost in which nothing flows back, if the group has it."""
    tested = estimate(run.test_metric for run in group.runs if run.traits.one_way)
    if tested is None:
        return ""
    return (
        f"One-way training, in which no message depends on labels, reached a test {group.metric} of {tested.mean:.3f}."
    )


def own_columns_floor(group: RunGroup) -> str:
    """Return what remains whatever is done to a group's messages; empty where it was not measured."""
    parties = [party for run in group.runs for party in run.parties.values()]
    own = largest(party.own_columns_auc for party in parties)
    component = largest(party.first_component_auc for party in parties)
    if own is None:
        return ""
    said = (
        "Whatever is done to the messages: given labels of other records, the partner's own columns alone predict the "
        f"labels with an AUC of {figure(own)}"
    )
    if component is None:
        return f"{said}."
    return f"{said}; without any label, their first principal component reads {figure(component)}."


def _kept(kept: Sequence[DefenseRow], goal: float, group: RunGroup) -> str:
    names = [row.label for row in kept]
    if any(row.undefended for row in kept):
        if group.by_canaries:
            return f"What messages tell beyond the prediction stayed below {goal:.2f} even without a defense."
        return f"Every attack stayed below {_group_aim(group, goal)} even without a defense."
    if group.by_canaries:
        held = f"what messages tell beyond the prediction below {goal:.2f}"
    else:
        held = f"every attack below {_group_aim(group, goal)}"
    return f"{'Only ' if len(kept) == 1 else ''}{', '.join(names)} kept {held.rstrip(',')}."


def _cost(kept: Sequence[DefenseRow], rows: Sequence[DefenseRow], metric: str) -> str:
    tested = [row for row in kept if row.test is not None]
    if not tested or any(row.undefended for row in kept):
        return ""
    best = max(tested, key=lambda row: row.test.mean if row.test else -math.inf)
    assert best.test is not None
    plain = Undefended.beside(best, [run for row in rows for run in row.results])
    if plain is None:
        return ""
    name = f"{best.label} reached" if len(kept) > 1 else "It reached"
    return f"{name} a test {metric} of {best.test.mean:.3f}; without any {plain.words} it was {plain.test.mean:.3f}."


def attack_phrase(attack: str) -> str:
    """Return an attack as it is called in a sentence.

    >>> attack_phrase("norm"), attack_phrase("auditor-linear")
    ('the norm attack', "the auditor's attack")
    """
    return "the auditor's attack" if shown_name(attack) == AUDITOR else f"the {attack} attack"


def figure(value: float) -> str:
    """Return a leak AUC as it is written everywhere."""
    return f"{value:.2f}"
