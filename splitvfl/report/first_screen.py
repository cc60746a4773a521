"""What is read first after a run, in 80 columns: a verdict for each passive party, the model, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import NormalDist
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splitvfl.config.registry import known_to_be_broken
from splitvfl.leakage.in_general import KnowledgeGain
from splitvfl.report.summary import RunSummary
from splitvfl.report.verdict import Excess, State, Verdict

STATES: Final[dict[State, tuple[str, str]]] = {
    "no-label-dependent-message": ("NO LABEL-DEPENDENT MESSAGE", "bold blue"),
    "below-goal": ("BELOW GOAL", "bold green"),
    "above-goal": ("ABOVE GOAL", "bold red"),
    "inconclusive": ("INCONCLUSIVE", "bold yellow"),
    "not-measured": ("NOT MEASURED", "bold"),
}
"""How each state is written, and its style: states alone have a colour."""

_NAME, _VALUE = 14, 12
_WIDEST = 110
_NOT_MEASURED = "not measured"
_CONSISTENT = "; measured, consistent"  # the row of the excess says it too

Line = tuple[str, Text, str]
"""Its name, a figure or a state, and what there is to say of it."""


def first_screen(run: RunSummary) -> RenderableType:
    """Return what is read first after a run.

    Args:
        run: The run, as one process or the label owner has it.
    """
    parts: list[RenderableType] = []
    for heading, lines in verdict_boxes(run):
        parts += [heading, *_rows(lines)]
    return Group(*parts, *_plain_rows([("model", model_line(run)), ("what to do", what_to_do(run))]))


def verdict_boxes(run: RunSummary) -> Iterator[tuple[Text, list[Line]]]:
    """Yield each verdict of a run: whose it is about whose labels or features, and its lines.

    Args:
        run: The run, as one process or the label owner has it.
    """
    for name, verdict in run.verdict.items():
        if verdict.labels is not None:
            yield _heading(name, run.label_owner, "labels"), list(_of_labels(name, verdict.labels, run))
        yield _heading(run.label_owner, name, "features"), list(_of_features(verdict.features))


def _heading(who: str, whose: str, what: str) -> Text:
    return Text(f"{who or 'label owner'} → {f'{whose}’s ' if whose else ''}{what}", style="bold")


def _rows(lines: Iterable[Line]) -> Iterator[Table]:
    for name, value, text in lines:
        table = Table.grid(padding=(0, 1))
        table.add_column(width=_NAME, no_wrap=True)
        if len(value) > _VALUE:  # a state of several words: the text goes on beside it
            table.add_column(max_width=_WIDEST - _NAME, overflow="fold")
            table.add_row(f"  {name}", Text.assemble(value, f"    {text}"))
        else:
            table.add_column(width=_VALUE, no_wrap=True)
            table.add_column(max_width=_WIDEST - _NAME - _VALUE, overflow="fold")
            table.add_row(f"  {name}", value, Text(text))
        yield table


def _plain_rows(lines: Sequence[tuple[str, str]]) -> Iterator[Table]:
    for name, text in lines:
        table = Table.grid(padding=(0, 1))
        table.add_column(width=_NAME, no_wrap=True)
        table.add_column(max_width=_WIDEST - _NAME, overflow="fold")
        table.add_row(name, Text(text))
        yield table


def state_words(verdict: Verdict) -> str:
    """Return a state as it stands within a sentence."""
    return STATES[verdict.state][0].lower()


def state_text(verdict: Verdict) -> Text:
    """Return a state as it is written everywhere."""
    words, style = STATES[verdict.state]
    return Text(words, style=style)


def ground(name: str, owner: str, verdict: Verdict, goal: float) -> str:
    """Return in a clause whose verdict about labels it is, the state with a goal, and why.

    Args:
        name: The partner.
        owner: The label owner; empty in summaries that were written before it was kept.
        verdict: The verdict.
        goal: The goal.
    """
    said = f"{name} → {owner or 'label owner'}'s labels: {state_words(verdict)} (goal {goal:.2f}): {verdict.reason}"
    return f"{said}; decided by: {verdict.decided_by}" if verdict.decided_by else said


def _of_labels(name: str, verdict: Verdict, run: RunSummary) -> Iterator[Line]:
    yield "verdict", state_text(verdict), _ground(verdict, run.goal)
    if verdict.decided_by:
        yield "", Text(), f"decided by: {verdict.decided_by}"
    if verdict.prevented_by:
        yield "", Text(), f"prevented by: {verdict.prevented_by}"
    if verdict.row != "one-way":
        yield "guarantee", *_guarantee(verdict)
        yield "excess", *_excess(verdict)
        if verdict.randomised is not None:
            yield "", *_randomised(verdict.randomised)
    if verdict.knowledge_gain is not None:
        yield "in general", *_in_general(name, verdict.knowledge_gain, run)
    if verdict.total is not None:
        features = f" + {name}'s own features" if verdict.total.includes_features else ""
        yield (
            "total",
            Text(f"{verdict.total.value:.2f}"),
            f"messages{features} + predictions{_solved(name, verdict, run)}",
        )
    yield "baseline", *_baseline(name, verdict)


def _ground(verdict: Verdict, goal: float) -> str:
    """Return the ground of a verdict, short where the row of the excess has its figures."""
    short = {
        "excess-above": f"the excess is above the goal, {goal:.2f}, with 95 % confidence",
        "excess-below": f"the excess is below the goal, {goal:.2f}, with 95 % confidence",
        "excess-undecided": f"the CI of the excess contains the goal, {goal:.2f}",
    }
    return short.get(verdict.row) or verdict.reason.removesuffix(_CONSISTENT).replace("AUC at most", "AUC ≤")


def _guarantee(verdict: Verdict) -> tuple[Text, str]:
    found = verdict.guarantee
    if found is None:
        return Text("none"), ""
    if found.scope == "run" and found.void:
        return Text("void"), found.why_void
    value = Text(f"AUC ≤ {found.auc:.2f}")
    if found.scope == "run":
        return value, "for one record, all else known; guessing gives 0.50"
    return value, "for one message, not for the run; guessing gives 0.50"


def _excess(verdict: Verdict) -> tuple[Text, str]:
    found = verdict.excess
    if found is not None:
        twin = " of the audit twin" if found.twin else ""
        interval = f"95 % CI {found.low:.2f}–{found.high:.2f}, {found.canaries:,} canaries{twin}"
        return Text(f"{found.value:.2f}"), f"{interval}{_beside(verdict, found)}"
    if verdict.measurable:
        return Text(_NOT_MEASURED), ""
    return Text("cannot be measured in this protocol"), "(only sums are sent)"


def _randomised(found: Excess) -> tuple[Text, str]:
    return Text(
        f"{found.value:.2f}"
    ), f"95 % CI {found.low:.2f}–{found.high:.2f} for the randomised labels, of which messages are made"


def _beside(verdict: Verdict, found: Excess) -> str:
    bound = verdict.guarantee
    if bound is None or not bound.of_run or verdict.row != "guarantee":
        return ""
    consistent = found.low <= bound.auc
    return f": consistent with {bound.auc:.2f}" if consistent else f": higher than {bound.auc:.2f}"


def _in_general(name: str, gain: KnowledgeGain, run: RunSummary) -> tuple[Text, str]:
    if gain.nothing_came:
        scores = run.parties[name].prediction_auc
        return Text("nothing new"), "" if scores is None else f"published scores would reveal: {scores:.2f}"
    model = "" if gain.model is None else f" (model {gain.model:.2f})"
    words = f"now predicts labels without knowing one{model}" if gain.significant else "nothing new"
    return Text(f"{gain.before:.2f} → {gain.after:.2f}"), words


def _solved(name: str, verdict: Verdict, run: RunSummary) -> str:
    """Return which attack recovers what it does without labels, where shapes allow to solve for them."""
    if verdict.row != "solvable":
        return ""
    worst, attack = run.parties[name].worst
    return "" if worst is None else f"; {attack} reaches {worst:.2f} and needs no label"


def _baseline(name: str, verdict: Verdict) -> tuple[Text, str]:
    found = verdict.baseline
    if found is None:
        return Text("not known"), f"here: only {name} has its features"
    alone, taught = found.without_labels, found.with_labels
    if alone is None:
        return Text("" if taught is None else f"{taught:.2f}"), f"{name} alone, with labels of others"
    beside = "" if taught is None else f"  ({taught:.2f} with labels of others)"
    return Text(f"{alone:.2f}"), f"{name} alone, without labels{beside}"


def _of_features(verdict: Verdict) -> Iterator[Line]:
    measured = verdict.state != "not-measured"
    yield "verdict", state_text(verdict), verdict.reason if measured else f"add {verdict.decided_by}"
    if verdict.decided_by and measured:
        yield "", Text(), f"decided by: {verdict.decided_by}"


# --- the model, and what to do


def model_line(run: RunSummary) -> str:
    """Return what the model of a run is worth, beside the label owner alone."""
    tested = "not tested" if run.test_metric is None else f"test {run.metric_name} {run.test_metric:.3f}"
    own = run.own_model
    if own is None:
        return tested
    if own.verdict == "no difference shown":
        return f"{tested}: not significantly different from {own.party} alone ({own.alone:.3f})"
    if own.verdict == "worse":
        return f"{tested}: lower than {own.party} alone ({own.alone:.3f}). Not worth joining."
    return f"{tested}  ({own.party} alone {own.alone:.3f})"


_ENOUGH = "Single labels need nothing more. That does not cover labels in general, the total, and features."


def what_to_do(run: RunSummary) -> str:
    """Return in a few sentences what follows from a run's verdicts."""
    labels = [verdict.labels for verdict in run.verdict.values() if verdict.labels is not None]
    rows, states = {one.row for one in labels}, {one.state for one in labels}
    return " ".join(_advice(run, rows, states)) or _ENOUGH


def _advice(run: RunSummary, rows: set[str], states: set[State]) -> Iterator[str]:
    guarantee = recommended(run.task, run.goal)
    if "contradicted" in rows:
        yield "Report this as a bug: the measurement contradicts the guarantee."
    elif "above-goal" in states:
        sums = "A larger batch alone does not help. " if "solvable" in rows else ""
        yield f"{sums}Train one-way (exchange: one-way), or randomise labels ({guarantee})."
    elif "inconclusive" in states:
        yield f"To decide without measuring, train one-way (exchange: one-way), or randomise labels ({guarantee})."
    broken = [label for label in run.defenses if known_to_be_broken([label])]
    if broken:
        yield f"Known to be broken, for comparisons only: {', '.join(label.partition('(')[0] for label in broken)}."


def recommended(task: str, goal: float) -> str:
    """Return the defense that guarantees a goal for the whole run, as an experiment names it.

    >>> recommended("binary", 0.60), recommended("multiclass", 0.60), recommended("regression", 0.60)
    ('asymmetric-response(detection_error=0.4)', 'randomised-response(epsilon=0.405)', 'gaussian-targets(mu=0.358)')
    """
    reachable = min(goal, 0.999)
    if task == "binary":
        return f"asymmetric-response(detection_error={1.0 - reachable:.3g})"
    if task == "multiclass":
        return f"randomised-response(epsilon={math.log(reachable / (1.0 - reachable)):.3g})"
    return f"gaussian-targets(mu={2.0**0.5 * NormalDist().inv_cdf(reachable):.3g})"
