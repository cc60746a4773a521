"""What a passive party's own summary says: what its partner can read of its columns, and nothing of labels."""

from __future__ import annotations

from collections.abc import Mapping

from splitvfl.leakage.estimates import TOLD, quoted
from splitvfl.leakage.features import FeatureLeak, best_by_view
from splitvfl.report.most_read import MostRead, epoch_of, most_read, sent_when
from splitvfl.report.read_words import counting, exactly, later, of_variance, once_each, too_many, with_share
from splitvfl.report.summary import RunSummary

# As one of a pair stands in a line of its own, and in a sentence to the party itself.
_FROM = {"scores": "scores alone", "activation": "its part of a prediction"}
_FROM_YOURS = {"scores": "scores alone", "activation": "your part of a prediction, as the active party receives it,"}
_ASSUMED = "These attacks know your weights and the range of each of your features. Your partner has got neither."


_KNOWING = {False: "", True: ", which knows the model,"}


def seat_lines(run: RunSummary) -> list[str]:
    """Return in lines what its partner can read, in training and of predictions, and where the other figures are."""
    return [
        *_unfinished(run),
        *_training_lines(run),
        *_columns_lines(run),
        "The verdict on labels and the test figure are in the report of the active party.",
    ]


def _unfinished(run: RunSummary) -> list[str]:
    if run.planned_steps is None:
        return []
    return [
        f"Not finished: {run.steps:,} of {run.planned_steps:,} steps were done. The run resumes when {run.seat} and "
        "its partners are started again, as they were started."
    ]


def _training_lines(run: RunSummary) -> list[str]:
    return [_training_line(run.seat, best) for best in most_read(run.parties[run.seat])]


def _training_line(party: str, best: MostRead) -> str:
    reading = best.reading
    what = "their variance" if of_variance(reading) else "them"
    return (
        f"Features of {party}: {_moment(best)} {reading.attack}{_KNOWING[reading.knows_model]} recovers "
        f"{best.share:.0%} of {what}{counting(reading)}{once_each(best.each_category_once)}, more than half of "
        f"{best.told or 'none'} of {len(best.columns)}, most of {with_share(best.columns[0])}.{best.fell}"
    )


def _moment(best: MostRead) -> str:
    """Return in words of which messages a reading is."""
    words = {"finished": "with the finished model", "run": "over the run", "last": "in training"}
    words |= {"evaluation": "of records that were evaluated", "once": "in what is sent once"}
    return words.get(best.moment) or f"in {epoch_of(best.reading)}"


def _columns_lines(run: RunSummary) -> list[str]:
    party = run.parties[run.seat]
    best = min(best_by_view(party.features), key=lambda leak: leak.mse, default=None)
    if best is None:
        return [] if party.readings else [f"Features of {run.seat}: no attack could be run."]
    return [
        f"Features of {run.seat}: {best.attack} estimates them from {_FROM[best.sees]} with a mean squared error of "
        f"{best.mse:.3g}; guessing their means has {best.blind_mse:.3g}."
    ]


def seat_verdict(run: RunSummary) -> str:
    """Return what the party found, in sentences that anyone can act on."""
    found: dict[str, list[str]] = {}
    for leak in best_by_view(run.parties[run.seat].features):
        found.setdefault(_reading(leak), []).append(_FROM_YOURS[leak.sees])
    party = run.parties[run.seat]
    sentences = [_of_training(best) for best in most_read(party)]
    sentences += [f"From {' or '.join(sources)} {reading}" for reading, sources in found.items()]
    if found:
        sentences.append(_ASSUMED)
    elif not sentences:
        sentences.append("What your features leak is not known.")
    return " ".join([*sentences, *_missing(party.unavailable)])


def _missing(unavailable: Mapping[str, str]) -> list[str]:
    """Return a sentence for every reason why attacks were not run, or not judged."""
    found: dict[str, list[str]] = {}
    for name in sorted(unavailable):
        found.setdefault(unavailable[name], []).append(name)
    return [
        f"{', '.join(names)} {reason if reason.startswith('never judged') else f'could not be run: {reason}'}."
        for reason, names in found.items()
    ]


def _of_training(best: MostRead) -> str:
    reading = best.reading
    knows = "your model part and " if reading.knows_model else ""
    sent = "send with the finished model" if best.moment == "finished" else f"sent {sent_when(best)}"
    counted = counting(reading) + once_each(best.each_category_once)
    return (
        f"From what you {sent}, {reading.attack} recovers {best.share:.0%} of {of_variance(reading)}your features, the "
        f"mean of {len(best.columns)}{counted}. It knows {knows}the features of {reading.known_share:.0%} of your "
        f"records, and recovers more than half of {best.told or 'none'} of them, most of "
        f"{with_share(best.columns[0])}.{best.fell}{exactly(reading)}{later(reading)} Another attack may recover more."
        f"{too_many(reading)}"
    )


def _reading(leak: FeatureLeak) -> str:
    if leak.mse >= leak.blind_mse:
        told = [one.column for one in leak.columns if one.mse < TOLD * one.mean_mse]
        of_all = "no attack that was run estimates your features better than their means do"
        if not told:
            return f"{of_all}."
        return f"{of_all}, taken together, but {leak.attack} recovers more than half of the variance of {quoted(told)}."
    exact = f", within .05 of {leak.near:.0%} of all values" if leak.near is not None else ""
    return (
        f"{leak.attack} estimates your features with a mean squared error of {leak.mse:.3g}{exact}, against "
        f"{leak.blind_mse:.3g} for guessing their means."
    )
