"""What a passive party's own summary says: what its partner can read of its columns, and nothing of labels."""

from __future__ import annotations

from splitvfl.leakage.estimates import TOLD, quoted
from splitvfl.leakage.features import FeatureLeak, best_by_view
from splitvfl.report.summary import RunSummary

# As one of a pair stands in a line of its own, and in a sentence to the party itself.
_FROM = {"scores": "scores alone", "activation": "its part of a prediction"}
_FROM_YOURS = {"scores": "scores alone", "activation": "your part of a prediction, as the label party receives it,"}
_ASSUMED = (
    "Who runs one is assumed to know your weights and the range of each of your columns, which your partner has not "
    "been told."
)


def seat_lines(run: RunSummary) -> list[str]:
    """Return in two lines what its partner can read, and where the other figures are."""
    return [_columns_line(run), "What leaks of labels, and the test figure, are in the label party's report."]


def _columns_line(run: RunSummary) -> str:
    best = min(best_by_view(run.parties[run.seat].features), key=lambda leak: leak.mse, default=None)
    if best is None:
        return f"Columns of {run.seat}: no attack could be run."
    return (
        f"Columns of {run.seat}: {best.attack} estimates them from {_FROM[best.sees]} with a mean squared error of "
        f"{best.mse:.3g}; guessing their means has {best.blind_mse:.3g}."
    )


def seat_verdict(run: RunSummary) -> str:
    """Return what the party found, in sentences that anyone can act on."""
    found: dict[str, list[str]] = {}
    for leak in best_by_view(run.parties[run.seat].features):
        found.setdefault(_reading(leak), []).append(_FROM_YOURS[leak.sees])
    sentences = [f"From {' or '.join(sources)} {reading}" for reading, sources in found.items()]
    missing = sorted(run.parties[run.seat].unavailable)
    sentences.append(_ASSUMED if found else "What your columns leak is not known.")
    if missing:
        sentences.append(f"Could not be run: {', '.join(missing)}.")
    return " ".join(sentences)


def _reading(leak: FeatureLeak) -> str:
    if leak.mse >= leak.blind_mse:
        told = [one.column for one in leak.columns if one.mse < TOLD * one.mean_mse]
        of_all = "no attack that was run estimates your columns better than their means do"
        if not told:
            return f"{of_all}."
        return f"{of_all}, taken together, but {leak.attack} learns more than half of the variance of {quoted(told)}."
    exact = f", within .05 of {leak.near:.0%} of all values" if leak.near is not None else ""
    return (
        f"the {leak.attack} attack estimates your columns with a mean squared error of {leak.mse:.3g}{exact}, against "
        f"{leak.blind_mse:.3g} for guessing their means."
    )
