"""An audit in words, for who has to answer for it: what could the other party learn, and what is not covered.

Everything follows from what ``audit.json`` holds. A figure that was measured is one that somebody has reached, and
never a limit: what is a limit is said to be guaranteed, and only where the guarantee counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from splitvfl.report.rows import counted

FINDINGS = {
    "violated": "This does not hold.",
    "not covered": "",
    "proven": "A theorem says so, its conditions that can be checked are met, and no trial contradicted it.",
    "not refuted": "Nothing that was tried contradicted it, and that is no proof.",
    "no claim": "It guarantees nothing of what anybody learns.",
}
"""What a verdict says, in a sentence."""

_SYMBOLS = set("εδμσΦΔ√½")
_BELOW = "Why, its formulas say further down."
_WHAT = {
    "label of a record": "labels",
    "residue of a record": "residues",
    "row of a record": "rows",
    "record at all parties": "records",
}


class Part(NamedTuple):
    """A share on the scale from guessing to everything.

    Attributes:
        left: Where it begins, in per cent of the scale.
        width: How long it is.
    """

    left: float
    width: float


class Line(NamedTuple):
    """What is not covered, in a line.

    Attributes:
        kind: ``"violated"``, ``"not covered"``, ``"no guarantee"`` or ``"not audited"``.
        about: What it is about.
        said: In whole sentences.
    """

    kind: str
    about: str
    said: str


def overall(audit: Mapping[str, Any]) -> str:
    """Return the worst finding of an audit in sentences: what does not hold, what could be inferred, and the limit."""
    found = [claim["verdict"] for each in audit["defenses"] for claim in each["claims"]]
    violated = found.count("violated")
    said = [f"{violated} of {counted(len(found), 'statement')} {'does' if violated == 1 else 'do'} not hold."]
    tried = [(strongest["right"]["mean"], seat) for seat in audit["learned"] if (strongest := best(seat["after"][-1]))]
    limited = audit["learned"]
    if tried:
        right, worst = max(tried, key=lambda one: one[0])
        readers = _names(worst["readers"]) if worst["readers"] else "Somebody who reads every message"
        said.append(
            f"{readers} could infer {of_hundred(right)} of 100 labels of {_names(worst['owners'])}; guessing gives 50."
        )
        limited = [worst]
    else:
        said.append("How many labels could be inferred was not measured.")
    limits = [seat["after"][-1] for seat in limited]
    if not limits or not all(map(_counts, limits)):
        said.append("No guarantee applies.")
    else:
        said.append(f"Guaranteed: at most {at_most(max(last['guarantee']['right'] for last in limits))}.")
        if any(last["guarantee"]["verdict"] == "not refuted" for last in limits):
            said.append("No calculation confirms it.")
    return " ".join(said if violated else said[1:])


def _counts(reading: Mapping[str, Any]) -> bool:
    """Return whether a guarantee applies: it is stated, nothing voids it, and nothing refuted it."""
    allowed = reading["guarantee"]
    return allowed is not None and not reading["why"] and allowed["verdict"] != "violated"


def tone(audit: Mapping[str, Any]) -> str:
    """Return how that is coloured: green only where a proven guarantee counts, and nothing is refuted or void."""
    verdicts = {claim["verdict"] for each in audit["defenses"] for claim in each["claims"]}
    if "violated" in verdicts:
        return "high"
    lasts = [seat["after"][-1] for seat in audit["learned"] if seat["after"][-1]["guarantee"]]
    holds = any(last["guarantee"]["verdict"] == "proven" and not last["why"] for last in lasts)
    return "low" if holds and "not covered" not in verdicts else "middle"


def not_covered(audit: Mapping[str, Any]) -> Iterator[Line]:
    """Yield what is not covered, the worst first: what is refuted, void, nowhere promised, and not looked at."""
    for verdict in ("violated", "not covered"):
        for each in audit["defenses"]:
            for claim in each["claims"]:
                if claim["verdict"] == verdict:
                    yield Line(verdict, f"{each['defense']}: {promise(claim)}", reason(claim))
    for seat in audit["learned"]:
        last = seat["after"][-1]
        if last["guarantee"] is None:
            yield Line("no guarantee", question(seat), " ".join(_plain(last["why"])) or _BELOW)
    for gap in audit["gaps"]:
        yield Line("not audited", "", gap)


def promise(claim: Mapping[str, Any]) -> str:
    """Return what a claim states, in a sentence without a formula, and first if it does not apply."""
    said = _statement(claim)
    return f"Does not apply here: {said[:1].lower()}{said[1:]}" if claim["verdict"] == "not covered" else said


def _statement(claim: Mapping[str, Any]) -> str:
    right, relation = claim["right"], claim["relation"]
    if right is None:
        return _sentence(claim["claim"])
    source = "all messages of the run together" if claim["per"] == "run" else "one message"
    if relation.startswith("label"):  # of a record, or of one at a named party
        return f"From {source} nobody gets more than {at_most(right)} of 100 labels right; guessing gets 50."
    kind = "residues" if relation.startswith("residue") else "rows"
    where = relation.partition(" at ")[2]
    whose = f"of a record at {where}" if where else "of a record"
    return f"From {source} nobody tells two {kind} {whose} apart more than {at_most(right)} times in 100; guessing: 50."


def reason(claim: Mapping[str, Any]) -> str:
    """Return why a claim does not hold or does not count, in a sentence without a formula."""
    right, calculated = claim["right"], claim["calculated_right"]
    if claim["verdict"] == "violated" and right is not None and calculated is not None and calculated > right:
        return f"A calculation allows {at_most(calculated)} of 100, and not {at_most(right)}."
    if claim["verdict"] == "violated" and claim["measured"] is not None:
        return "Trials have shown more than it allows, and more than chance does."
    return next(_plain(claim["why"]), _BELOW)


def _plain(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines without a formula."""
    return (line for line in lines if not set(line) & _SYMBOLS)


def question(seat: Mapping[str, Any]) -> str:
    """Return what a seat answers, as a question."""
    readers = _names(seat["readers"]) if seat["readers"] else "somebody who reads every message"
    joint = ", who put together what they receive," if len(seat["readers"]) > 1 else ""
    owners = _names(seat["owners"])
    if seat["relation"] == "record at all parties":
        return f"What could {readers} learn about a record, of all that {owners} hold?"
    return f"What could {readers}{joint} learn about the {_WHAT[seat['relation']]} of {owners}?"


def answer(seat: Mapping[str, Any], trainings: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what a seat could learn, in sentences: what was reached, and what is guaranteed."""
    last = seat["after"][-1]
    strongest = best(last)
    labels = seat["relation"] == "label of a record"
    if strongest is not None and strongest["right"] is not None:
        right = strongest["right"]
        yield (f"Of 100 labels it would get {of_hundred(right['mean'])} right, 50 by guessing; {_limit(last)}.")
        yield _tried(last, right, trainings)
        if last["guarantee"] is not None and right["mean"] > last["guarantee"]["right"]:
            yield _above(last, right)
    elif labels:
        yield f"How many labels it would get right was not measured, 50 of 100 are right by guessing; {_limit(last)}."
    else:
        yield f"Which of two rows a record has, guessing tells 50 times in 100; {_limit(last)}."
        yield "No attack on columns was tried here, so that nothing is known but what is guaranteed."
    ranked = best(last, "auc")
    if ranked is not None and ranked["auc"] is not None:
        yield _ranked(seat, ranked["auc"], trainings)
    if last["why"] and last["guarantee"] is not None:
        yield f"That guarantee does not count here. {' '.join(_plain(last['why'])) or _BELOW}"
    elif last["why"]:
        yield " ".join(_plain(last["why"])) or _BELOW
    elif last["guarantee"] is not None and last["guarantee"]["verdict"] == "not refuted":
        yield "No calculation confirms that guarantee here. Nothing that was tried refuted it, which is no proof."


def _limit(reading: Mapping[str, Any]) -> str:
    allowed = reading["guarantee"]
    if allowed is None:
        return "no guarantee limits it"
    if reading["why"]:
        return f"a guarantee of at most {at_most(allowed['right'])} is stated, and does not count here"
    return f"the guarantee allows {at_most(allowed['right'])}"


def _tried(reading: Mapping[str, Any], right: Mapping[str, Any], trainings: Mapping[str, Any] | None) -> str:
    number = len([attack for attack in reading["attacks"] if attack["right"] is not None])
    times = "" if trainings is None else f" in {counted(trainings['count'], 'training')}"
    margin = ""
    if right["low"] is not None:
        margin = f" (over trainings {of_hundred(right['low'])} to {of_hundred(right['high'])})"
    return (
        f"Nothing that we tried got more than {of_hundred(right['mean'])}{margin}: {counted(number, 'attack')}{times}, "
        "on labels that were coin tosses, of which messages alone can tell. Another attack may get more."
    )


def _above(reading: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    allowed = at_most(reading["guarantee"]["right"])
    if right["low"] is None or right["low"] <= reading["guarantee"]["right"]:
        return f"That is above the {allowed} of the guarantee, and no more than chance does to so few coins."
    return f"That is above the {allowed} of the guarantee, and more than chance does: do not rely on the guarantee."


def _ranked(seat: Mapping[str, Any], auc: Mapping[str, Any], trainings: Mapping[str, Any] | None) -> str:
    said = (
        f"With the true labels, which columns tell too: of 100 pairs of records with different labels, messages put "
        f"{of_hundred(auc['mean'])} in the right order"
    )
    own, rate = seat["own_columns"], None if trainings is None else trainings["base_rate"]
    beside = "" if own is None else f", and its own columns alone, without any message, {of_hundred(own)}"
    common = "" if rate is None else f" Naming the commonest label every time is right for {of_hundred(rate)} of 100."
    return f"{said}{beside}.{common}"


def best(reading: Mapping[str, Any], figure: str = "right") -> Mapping[str, Any] | None:
    """Return the attack on messages that has the largest figure, ``"right"`` or ``"auc"``; ``None``: there is none."""
    found = [attack for attack in reading["attacks"] if attack["by_messages"] and attack[figure] is not None]
    strongest: Mapping[str, Any] | None = max(found, key=lambda attack: attack[figure]["mean"], default=None)
    return strongest


def scale(seat: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is drawn on the scale from guessing, 50, to everything, 100."""
    last = seat["after"][-1]
    strongest, allowed = best(last), last["guarantee"]
    found = None if strongest is None else strongest["right"]
    return {
        "found": None if found is None else _place(found["mean"]),
        "range": None if found is None or found["low"] is None else _part(found["low"], found["high"]),
        "allowed": None if allowed is None else _place(allowed["right"]),
        "counts": not last["why"],
    }


def _place(share: float) -> float:
    return 200.0 * (min(1.0, max(0.5, share)) - 0.5)


def _part(low: float, high: float) -> Part:
    return Part(_place(low), _place(high) - _place(low))


def of_hundred(share: float) -> str:
    """Return a share that was measured, of a hundred.

    >>> of_hundred(0.614)
    '61'
    """
    return f"{100.0 * share:.0f}"


def at_most(share: float) -> str:
    """Return a share that is guaranteed, of a hundred, and never less than it.

    >>> at_most(0.614), at_most(0.61), at_most(0.9994)
    ('62', '61', '100')
    """
    return f"{math.ceil(100.0 * share - 1e-9):d}"


def measured(claim: Mapping[str, Any]) -> str:
    """Return what happened how often, in the trials that tell most against a claim."""
    event = claim["event"]
    if event is None:
        return ""
    if not event["other_draws"]:
        return f"{event['hits']} of {event['draws']} guesses right"
    share, other = event["hits"] / event["draws"], event["other_hits"] / event["other_draws"]
    return f"an event of {share:.3%} of the messages in one world, {other:.3%} in the other"


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."
