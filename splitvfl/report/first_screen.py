"""What is read first after a run, in 80 columns: a verdict for each passive party, the model, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splitvfl.leakage.in_general import KnowledgeGain
from splitvfl.report.summary import OwnModelResult, RunSummary
from splitvfl.report.verdict import Excess, State, Verdict

STATES: Final[dict[State, tuple[str, str]]] = {
    "no-label-dependent-message": ("NO LABEL-DEPENDENT MESSAGE", "bold blue"),
    "below-goal": ("BELOW GOAL", "bold green"),
    "above-goal": ("ABOVE GOAL", "bold red"),
    "inconclusive": ("INCONCLUSIVE", "bold yellow"),
    "not-measured": ("NOT MEASURED", "bold"),
}
"""How each state is written, and its style: states alone have a colour."""

_WIDTH = 80
_VALUE = 12
_NOT_MEASURED = "not measured"


def first_screen(run: RunSummary) -> RenderableType:
    """Return what is read first after a run.

    Args:
        run: The run, as one process or the label owner has it.
    """
    parts: list[RenderableType] = []
    for name, verdict in run.verdict.items():
        if verdict.labels is not None:
            parts += [_heading(name, run.label_owner, "labels"), _rows(_of_labels(name, verdict.labels))]
        parts += [_heading(run.label_owner, name, "features"), _rows(_of_features(verdict.features))]
    return Group(*parts, _rows([("model", _model(run)), ("what to do", Text(what_to_do(run)))], indented=False))


def _heading(who: str, whose: str, what: str) -> Text:
    return Text(f"{who or 'label owner'} → {f'{whose}’s ' if whose else ''}{what}", style="bold")


def _rows(rows: list[tuple[str, Text]], *, indented: bool = True) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=14, no_wrap=True)
    table.add_column(max_width=_WIDTH - 15, overflow="fold")
    for name, text in rows:
        table.add_row(f"{'  ' if indented else ''}{name}", text)
    return table


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
    state = STATES[verdict.state][0].lower()
    said = f"{name} → {owner or 'label owner'}'s labels: {state} (goal {goal:.2f}): {verdict.reason}"
    return f"{said}; decided by: {verdict.decided_by}" if verdict.decided_by else said


def _line(value: str, text: str) -> Text:
    return Text(f"{value:<{_VALUE}} {text}".rstrip())


def _of_labels(name: str, verdict: Verdict) -> list[tuple[str, Text]]:
    said = Text.assemble(
        state_text(verdict), f"   {verdict.reason}" if verdict.excess is None or _named(verdict) else ""
    )
    rows = [("verdict", said)]
    if verdict.decided_by:
        rows.append(("", Text(f"decided by: {verdict.decided_by}")))
    if verdict.prevented_by:
        rows.append(("", Text(f"prevented by: {verdict.prevented_by}")))
    rows += [("guarantee", _guarantee(verdict)), ("excess", _excess(verdict))]
    if verdict.randomised is not None:
        rows.append(("", _randomised(verdict.randomised)))
    if verdict.knowledge_gain is not None:
        rows.append(("in general", _in_general(verdict.knowledge_gain)))
    if verdict.total is not None:
        what = (
            f"messages + {name}'s own features + predictions"
            if verdict.total.includes_features
            else ("messages and predictions only")
        )
        rows.append(("total", _line(f"{verdict.total.value:.2f}", what)))
    rows.append(("baseline", _baseline(name, verdict)))
    return rows


def _named(verdict: Verdict) -> bool:
    """Return whether the ground says something that the row of the excess does not."""
    return not verdict.row.startswith("excess")


def _guarantee(verdict: Verdict) -> Text:
    found = verdict.guarantee
    if found is None:
        return Text("none")
    if found.scope == "run" and found.void:
        return _line("void", f"{' and '.join(found.void)}: made from labels, and the partner sees it")
    where = "whole run" if found.scope == "run" else "one message, not the run"
    return _line(f"AUC ≤ {found.auc:.2f}", f"{where}, by {found.source}; all else known; guessing: 0.50")


def _excess(verdict: Verdict) -> Text:
    found = verdict.excess
    if found is None:
        return Text(_NOT_MEASURED if verdict.measurable else "cannot be measured in this protocol")
    twin = " of the audit twin" if found.twin else ""
    interval = f"95 % CI {found.low:.2f}–{found.high:.2f}, {found.canaries:,} canaries{twin}"
    return _line(f"{found.value:.2f}", f"{interval}{_beside(verdict, found)}")


def _randomised(found: Excess) -> Text:
    interval = f"95 % CI {found.low:.2f}–{found.high:.2f}"
    return _line(f"{found.value:.2f}", f"{interval} for their randomised labels")


def _beside(verdict: Verdict, found: Excess) -> str:
    bound = verdict.guarantee
    if bound is None or not bound.of_run or verdict.row != "guarantee":
        return ""
    return f": consistent with {bound.auc:.2f}" if found.above(bound.auc) < 2.0 else f": higher than {bound.auc:.2f}"


def _in_general(gain: KnowledgeGain) -> Text:
    if gain.nothing_came:
        return Text("nothing new")
    model = "" if gain.model is None else f" (model {gain.model:.2f})"
    words = f"now predicts labels without knowing one{model}" if gain.significant else "nothing new"
    return _line(f"{gain.before:.2f} → {gain.after:.2f}", words)


def _baseline(name: str, verdict: Verdict) -> Text:
    found = verdict.baseline
    if found is None:
        return Text(f"not known here: {name} has its features")
    alone, taught = found.without_labels, found.with_labels
    if alone is None:
        return _line("" if taught is None else f"{taught:.2f}", f"{name} alone, with labels of others")
    beside = "" if taught is None else f"  ({taught:.2f} with labels of others)"
    return _line(f"{alone:.2f}", f"{name} alone, without labels{beside}")


def _of_features(verdict: Verdict) -> list[tuple[str, Text]]:
    said = f"   {verdict.reason}" if verdict.state != "not-measured" else f"   add {verdict.decided_by}"
    rows = [("verdict", Text.assemble(state_text(verdict), said))]
    if verdict.decided_by and verdict.state != "not-measured":
        rows.append(("", Text(f"decided by: {verdict.decided_by}")))
    return rows


# --- the model, and what to do


def _model(run: RunSummary) -> Text:
    figure = "–" if run.test_metric is None else f"{run.test_metric:.3f}"
    own = run.own_model
    alone = "" if own is None else f"  ({own.party} alone {own.alone:.3f}: {_compared(own)})"
    return Text(f"test {run.metric_name} {figure}{alone}")


def _compared(own: OwnModelResult) -> str:
    words = "not significantly different" if own.verdict == "no difference shown" else f"joint is {own.verdict}"
    return f"{words}, 95 % CI of the difference {own.low:+.3f} to {own.high:+.3f}"


def what_to_do(run: RunSummary) -> str:
    """Return in a few sentences what follows from a run's verdicts."""
    labels = [verdict.labels for verdict in run.verdict.values() if verdict.labels is not None]
    rows, states = {one.row for one in labels}, {one.state for one in labels}
    return " ".join(_advice(run, rows, states)) or "Nothing: labels are below the goal."


def _advice(run: RunSummary, rows: set[str], states: set[State]) -> Iterator[str]:
    if run.own_model is not None and run.own_model.verdict == "worse":
        yield "The joint model is worse than the label owner's own: it is not worth joining."
    if "contradicted" in rows:
        yield "A guarantee is contradicted by what was measured: report this as a bug."
    elif "above-goal" in states:
        sums = "A larger batch alone does not help. " if "solvable" in rows else ""
        yield f"{sums}Train one-way (exchange: one-way), or randomise labels ({recommended(run.task, run.goal)})."
    elif "inconclusive" in states:
        yield (
            "See what would decide it above. A guarantee decides it without measuring: "
            f"{recommended(run.task, run.goal)}, or train one-way."
        )


def recommended(task: str, goal: float) -> str:
    """Return the defense that guarantees a goal for the whole run, as an experiment names it.

    >>> recommended("binary", 0.60), recommended("regression", 0.60)
    ('asymmetric-response(detection_error=0.4)', 'gaussian-targets(mu=0.358)')
    """
    if task == "regression":
        return f"gaussian-targets(mu={2.0**0.5 * NormalDist().inv_cdf(min(goal, 0.999)):.3g})"
    return f"asymmetric-response(detection_error={1.0 - goal:.3g})" if task == "binary" else "randomised-response"
