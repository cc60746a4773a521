"""One defense audited: each of its claims compared with a calculation, and with what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from splitvfl.audit.calculation import ROUNDING, Calculated, calculated
from splitvfl.audit.verdicts import ClaimAudit, DefenseAudit, Verdict
from splitvfl.audit.worlds import (
    MESSAGES,
    Dependence,
    Messages,
    Relation,
    Stage,
    Surroundings,
    World,
    neighbours,
    observe,
    prepared,
)
from splitvfl.claims import (
    Claim,
    DetectionError,
    Gaussian,
    GaussianDP,
    NoPromise,
    PerRecord,
    PureDP,
    RowNorm,
    claims_of,
    is_built_in,
    sentence,
    told,
)
from splitvfl.errors import ArgumentError, SplitVFLError
from splitvfl.hooks import Defense, crossing_of, hook_name, needs_label_gradients
from splitvfl.privacy.audit import Measured, Objective, measure

DRAWS: Final = 100_000
"""Draws of each world that a claim is measured with."""

_SCREENED = 3_000  # draws of each world by which the worst neighbours are looked for
_ROWS = 4096  # of a batch
_FEW_ROWS = 64  # of a batch, where its rows share noise
_MIXED = range(200, 2_001)  # draws where each is a batch of its own, which takes time: one for ten others
_BESIDE = 12_000  # draws that are looked at with what was sent before them and beside them
_UNBOUNDED = 1.5  # distance of two rows in units of σ, where nothing bounds them
_TESTS: Final = 4  # of a claim at most: in these ways a record is looked at


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked of a claim: an objective, the value that must not be exceeded, and between which worlds."""

    quantity: str
    claimed: float
    objective: Objective
    limit: float
    relation: Relation
    bound: float = 1.0
    per_run: bool = False
    together: bool = False


class _Look(NamedTuple):
    """One way in which a record is looked at.

    Attributes:
        seen: What is looked at, in words.
        stage: How it is drawn.
        draws: How many draws of each world.
        twice: Whether it is two messages of which each has the claim for itself.
    """

    seen: str
    stage: Stage
    draws: int
    twice: bool = False


def claims_to_measure(claims: Iterable[Claim]) -> int:
    """Return how many tests the claims of a defense take: a page's error is divided among those of all defenses."""
    return sum(_TESTS for claim in claims if _question(claim) is not None)


def audit_defense(
    defense: Defense,
    *,
    claims: Iterable[Claim] | None = None,
    around: Surroundings | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    confidence: float = 0.95,
    tests: int | None = None,
) -> DefenseAudit:
    """Return what was found of a defense's claims, built in or a user's.

    Each claim is compared with a calculation where the mechanism's law is known, and with a measured lower bound:
    neighbouring inputs for the claim's relation are searched for the pair that is told apart best, and on other draws
    it is told apart in up to four ways: by a record's message alone, together with an earlier message of other records
    and known ones of its batch, by two messages of the record, and, where records turn out to depend on each other,
    together with all others of a batch of eight. The first that refutes a claim ends the test.

    It does not see what depends on more than it makes: noise that cancels over three messages of a record or more, or
    between records that are drawn anew in every batch; several runs; other defenses before and after; secrets that
    leak elsewhere. What was not refuted is not proven by that.

    Args:
        defense: The defense; it is left as it is.
        claims: What is claimed of it; default: what it claims.
        around: Where it is used; default: two classes, one receiver, one epoch.
        draws: Of each world, for each test.
        seed: Of all that is drawn.
        confidence: Share of audits in which no true claim is called violated.
        tests: Number of tests among which the error is divided; default: those of this defense.

    Raises:
        HookError: If what it claims is no claim.
    """
    surroundings = around or Surroundings()
    try:
        defense = prepared(defense, surroundings)
    except SplitVFLError as error:
        why = f"It cannot be used so: {sentence(str(error))}"
        refused = ClaimAudit("nothing could be asked", "", None, "", "not covered", (why,))
        return DefenseAudit(hook_name(defense), crossing_of(defense), (refused,), (why,))
    found = claims_of(defense) if claims is None else tuple(claims)
    # A defense of the gradient of one logit has rows of one column; of several classes, one for each.
    if crossing_of(defense) == "gradient" and not needs_label_gradients(defense) and _of_labels(found):
        classes = surroundings.classes or 2
        surroundings = replace(surroundings, width=1 if classes == 2 else classes)
    number = max(1, claims_to_measure(found) if tests is None else tests)
    auditor = _Auditor(defense, surroundings, draws, seed, 1.0 - (1.0 - confidence) / number)
    # What else is said about rows and records is no promise of privacy, where there is one beside.
    audits = tuple(auditor.of(claim) for claim in found if not isinstance(claim, NoPromise))
    if not any(map(_is_promise, found)):
        audits = (*audits, _nothing(found))
    said = told(found)
    # Where nothing is promised that is its claim, and not what it leaves out.
    beyond = [claim.why for claim in found if isinstance(claim, NoPromise) and any(map(_is_promise, found))]
    return DefenseAudit(
        hook_name(defense), crossing_of(defense), audits, tuple(dict.fromkeys(auditor.gaps)),
        (*beyond, *said.not_covered), said.conditions,
    )  # fmt: skip


def _of_labels(claims: Iterable[Claim]) -> bool:
    return any(isinstance(claim, PureDP | GaussianDP | DetectionError) for claim in claims)


def _is_promise(claim: Claim) -> bool:
    """Return whether a claim bounds what is learned; noise on rows that nothing bounds does not."""
    return isinstance(claim, PureDP | GaussianDP | DetectionError) or (isinstance(claim, Gaussian) and claim.hides_rows)


def _nothing(claims: tuple[Claim, ...]) -> ClaimAudit:
    said = told([claim for claim in claims if isinstance(claim, NoPromise)]).promised
    why = said or ("It makes no statement of what anybody learns from what is sent.",)
    return ClaimAudit("no promise of privacy", "", None, "", "no claim", why)


def _question(claim: Claim) -> _Question | None:
    """Return how a claim is put to the test; ``None``: not by telling worlds apart."""
    match claim:
        case PureDP():
            run = claim.per == "run"
            return _Question(
                "ε", claim.epsilon, Objective("epsilon"), claim.epsilon, claim.unit, per_run=run, together=True
            )
        case GaussianDP():
            # A message to another party is another message; of a run all of them are meant.
            run = claim.per == "run"
            return _Question("μ", claim.mu, Objective("mu"), claim.mu, claim.unit, per_run=run, together=run)
        case DetectionError() if claim.proven:
            run, most = claim.per == "run", 1.0 - 2.0 * claim.bound
            return _Question(
                "detection error", claim.bound, Objective("advantage"), most, "label of a record",
                per_run=run, together=run,
            )  # fmt: skip
        case Gaussian() if claim.bound is not None:
            mu = 2.0 * claim.bound / claim.sigma
            return _Question("μ", mu, Objective("mu"), mu, "row of a record", bound=claim.bound)
        case Gaussian():
            # Rows so far apart, and no farther: nothing else is done to them.
            return _Question(
                "μ", _UNBOUNDED, Objective("mu"), _UNBOUNDED, "row of a record", bound=_UNBOUNDED * claim.sigma
            )
        case _:
            return None


class _Auditor:
    """One defense among its surroundings, and how much is drawn of it."""

    def __init__(self, defense: Defense, around: Surroundings, draws: int, seed: int, confidence: float) -> None:
        self.defense, self.around, self.draws, self.seed = defense, around, draws, seed
        self.confidence = confidence
        self.gaps: list[str] = []
        self._tried = 0

    def of(self, claim: Claim) -> ClaimAudit:
        """Return what was found of one claim."""
        stated = sentence(claim.stated())  # type: ignore[union-attr]  # all but those that promise nothing
        question = _question(claim)
        if question is None:
            return self._unmeasured(claim, stated)
        known = calculated(self.defense, claim, receivers=self.around.receivers, epochs=self.around.epochs)
        if isinstance(claim, Gaussian) and claim.bound is None and known is not None:
            # Of a standard deviation less is worse.
            known = Calculated(_UNBOUNDED * claim.sigma / known.value, "distance of two rows over σ")
        try:
            measured, seen, inputs, notes = self._measured(question)
        except ArgumentError as error:
            measured, seen, inputs, notes = None, "", "", (f"It could not be measured: {error}.",)
            self.gaps.append(f"{hook_name(self.defense)}: {question.relation}: {error}.")
        except SplitVFLError as error:
            measured, seen, inputs, notes = None, "", "", (f"It failed on inputs of the audit: {sentence(str(error))}",)
            self.gaps.append(f"{hook_name(self.defense)}: {question.relation}: it failed: {sentence(str(error))}")
        verdict, why = self._verdict(question, known, measured, seen, inputs)
        if notes and verdict in ("proven", "not refuted"):
            # Whoever cannot draw its noise again sends another one where a step is repeated.
            verdict, why, notes = "not covered", (*notes, *why), ()
            self.gaps.append(f"{hook_name(self.defense)}: {question.relation}: {_NOT_REPEATABLE}")
        if isinstance(claim, Gaussian) and claim.bound is not None and not claim.hides_rows and verdict != "violated":
            verdict, why = "no claim", (_TOLD_APART, *why)
        return ClaimAudit(
            stated, question.quantity, question.claimed, question.relation, verdict, (*why, *notes), known,
            measured, inputs, getattr(claim, "per", "message"), limits=_is_promise(claim), seen=seen,
        )  # fmt: skip

    def _unmeasured(self, claim: Claim, stated: str) -> ClaimAudit:
        match claim:
            case RowNorm():
                why = "Every message is compared with it before it is sent, and one that breaks it is not sent."
                return ClaimAudit(stated, "norm", claim.bound, "", "proven", (why,))
            case PerRecord():
                return self._per_record()
            case DetectionError():
                rests = " ".join(f"{condition.needed} {condition.checked}" for condition in claim.conditions)
                why = f"It rests on a model of gradients. {rests}".strip()
                return ClaimAudit(
                    stated, "detection error", claim.bound, "label of a record", "not covered", (why,), per=claim.per
                )
            case _:
                return ClaimAudit(stated, "", None, "", "not covered", ("No test of such a claim is known here.",))

    def _per_record(self) -> ClaimAudit:
        try:
            pair = next(neighbours(self._relation(), self.defense, 1.0, self.around))
            seen = observe(self.defense, pair, self.around)
        except (ArgumentError, SplitVFLError) as error:
            self.gaps.append(f"{hook_name(self.defense)}: {sentence(str(error))}")
            return ClaimAudit(_APART, "", None, "", "not covered", (f"It could not be tried: {sentence(str(error))}",))
        if not seen.repeatable:
            return ClaimAudit(_APART, "", None, "", "not covered", (_NOT_REPEATABLE,))
        if seen.mixing:
            why = f"Another row ({pair[1]} for {pair[0]}) changed what was sent of other records, with the same noise."
            return ClaimAudit(_APART, "", None, "", "violated", (why,))
        verdict: Verdict = "proven" if is_built_in(self.defense) else "not refuted"
        why = "With the same noise, another row left what was sent of other records as it was."
        return ClaimAudit(_APART, "", None, "", verdict, (why,))

    def _relation(self) -> Relation:
        return "label of a record" if crossing_of(self.defense) == "labels" else "row of a record"

    # --- measuring

    def _measured(self, question: _Question) -> tuple[Measured, str, str, tuple[str, ...]]:
        """Return the strongest bound, what was looked at for it, between which inputs, and what stands against it."""
        pairs = list(neighbours(question.relation, self.defense, question.bound, self.around))
        if question.relation == "row of a record" and question.objective.kind == "mu" and question.bound != 1.0:
            pairs = self._within(pairs, question)
        behaviours = [observe(self.defense, pairs[0], self.around), observe(self.defense, pairs[-1], self.around)]
        notes = () if all(seen.repeatable for seen in behaviours) else (_NOT_REPEATABLE,)
        mixing = any(seen.mixing for seen in behaviours)
        plain = Stage(
            self.defense, self.around, together=question.together, steps=MESSAGES if question.per_run else 1,
            seed=self._next_seed(), rows=min(_ROWS, max(64, self.draws // 4)),
        )  # fmt: skip
        depends = plain.dependence(pairs[0][0])
        # Rows that share noise are no independent draws, but do to choose by, where they are of many batches.
        plain.whole = mixing
        chosen_by = replace(plain, rows=_FEW_ROWS, seed=self._next_seed()) if depends.on_batch else plain
        pair = self._worst(chosen_by, pairs, question)
        plain.whole = mixing or depends.on_batch
        found: list[tuple[Measured, str]] = []
        for look in self._looks(plain, depends, question):
            measured = self._told_apart(look, pair, question)
            found.append((measured, look.seen))
            # One test that refutes a claim is enough: the others would take their time for nothing.
            if measured.bound > question.limit:
                break
        best, seen = max(found, key=lambda each: each[0].bound)
        return best, seen, f"{pair[0]} against {pair[1]}", notes

    def _looks(self, plain: Stage, depends: Dependence, question: _Question) -> Iterator[_Look]:
        """Yield in what ways a record is looked at, the quick ones first."""
        some = min(_MIXED[-1], max(_MIXED[0], self.draws // 10))
        message = "the messages of the record over a run" if question.per_run else "one message of the record"
        if plain.whole:
            yield _Look(f"{message}, with {_BATCH}", plain, some)
        else:
            yield _Look(message, plain, self.draws)
            beside = replace(plain, beside=True, together=False, seed=self._next_seed())
            yield _Look(f"{message}, with {_BEFORE} and known records of its batch", beside, min(self.draws, _BESIDE))
        if not question.per_run and self._says_the_same_of_two_epochs():
            around = replace(self.around, epochs=max(2, self.around.epochs))
            again = replace(plain, around=around, steps=2, seed=self._next_seed())
            shown = f"two messages of the record, with {_BATCH}" if plain.whole else "two messages of the record"
            yield _Look(shown, again, some if plain.whole else min(self.draws, _BESIDE), twice=True)
        if plain.whole or depends.on_earlier:
            # Of many messages of a run two do: wider ones take more draws than these.
            steps = min(2, plain.steps)
            whole = replace(plain, whole=True, beside=True, together=False, steps=steps, seed=self._next_seed())
            yield _Look(f"{message}, with {_BEFORE} and {_BATCH}", whole, some)

    def _told_apart(self, look: _Look, pair: tuple[World, World], question: _Question) -> Measured:
        found = measure(
            lambda number: look.stage.draw(pair[0], number),
            lambda number: look.stage.draw(pair[1], number),
            question.objective,
            draws=look.draws,
            confidence=self.confidence,
        )
        if not look.twice:
            return found
        kind = question.objective.kind
        return replace(found, bound=of_one(kind, found.bound), ceiling=of_one(kind, found.ceiling))

    def _says_the_same_of_two_epochs(self) -> bool:
        """Return whether the defense takes a record twice, and claims of its messages what it does of a single one."""
        if self.around.epochs > 1:
            return True
        try:
            twice = prepared(self.defense, replace(self.around, epochs=2))
        except SplitVFLError as error:
            self.gaps.append(f"{hook_name(self.defense)}: two messages of a record: {sentence(str(error))}")
            return False
        if claims_of(twice) == claims_of(self.defense):
            return True
        self.gaps.append(
            f"{hook_name(self.defense)}: two messages of a record: of two epochs it claims something else."
        )
        return False

    def _within(self, pairs: list[tuple[World, World]], question: _Question) -> list[tuple[World, World]]:
        """Return the pairs that a claim without a bound is about: rows that are so far apart and no farther."""
        if question.claimed != _UNBOUNDED or question.limit != _UNBOUNDED:
            return pairs
        return [
            pair
            for pair in pairs
            if np.linalg.norm(np.subtract(pair[0].row, pair[1].row)) <= question.bound * (1 + ROUNDING)
        ]

    def _worst(self, stage: Stage, pairs: list[tuple[World, World]], question: _Question) -> tuple[World, World]:
        """Return the pair that few draws tell apart best."""
        if len(pairs) == 1:
            return pairs[0]
        number = 200 if stage.whole else min(_SCREENED, self.draws)
        drawn: dict[World, Messages] = {}
        for world in dict.fromkeys(world for pair in pairs for world in pair):
            drawn[world] = stage.draw(world, number)
        found = [
            measure(
                _from(drawn[one]), _from(drawn[other]), question.objective, draws=number, confidence=0.5, boosting=False
            ).bound
            for one, other in pairs
        ]
        return pairs[int(np.argmax(found))]

    def _next_seed(self) -> int:
        self._tried += 1
        return self.seed * 1_000_003 + self._tried

    # --- judging

    def _verdict(
        self, question: _Question, known: Calculated | None, measured: Measured | None, seen: str, inputs: str
    ) -> tuple[Verdict, tuple[str, ...]]:
        broken = list(self._broken(question, known, measured, seen, inputs))
        if broken:
            return "violated", tuple(broken)
        unmet, void = self.around.unmet, self.around.void
        if void and question.per_run:
            unmet = (sentence(void), *unmet)
        if unmet:
            return "not covered", unmet
        if measured is None:
            return "not covered", ("Nothing was measured of it.",)
        shown = _measured_words(question, measured)
        if known is not None and is_built_in(self.defense):
            return "proven", (f"Calculated: {question.quantity} = {known.value:.3g} ({known.by}).", shown)
        return "not refuted", (shown,)

    def _broken(
        self, question: _Question, known: Calculated | None, measured: Measured | None, seen: str, inputs: str
    ) -> Iterator[str]:
        if known is not None and known.value > question.claimed * (1.0 + ROUNDING):
            yield (
                f"Calculated: {question.quantity} = {known.value:.3g} ({known.by}), "
                f"{known.value / question.claimed:.3g} times what is claimed."
            )
        if measured is not None and measured.bound > question.limit:
            yield f"{_measured_words(question, measured)} So it was between {inputs}. This was seen in {seen}."


def _measured_words(question: _Question, measured: Measured) -> str:
    if question.quantity == "detection error":
        found, most = 0.5 * (1.0 - measured.bound), 0.5 * (1.0 - measured.ceiling)
        return f"Measured: a detection error of at most {found:.3f}; so many draws can show {most:.3g} at the least."
    said = (
        f"Measured: {question.quantity} is at least {measured.bound:.3g}; so many draws can refute claims up to "
        f"{measured.ceiling:.3g}."
    )
    if question.claimed > measured.ceiling:
        said += " This one is above that, and could not be refuted by counting."
    return said


def of_one(kind: str, bound: float) -> float:
    """Return what is at least true of one of two messages, the other one known, by what both prove together.

    Two messages of which each keeps ε keep 2ε, of μ they keep √2 μ, and the advantages of each, a, come to no more than
    1 − (1 − a)²: where two prove more than that, the noise of one depends on the other's.
    """
    match kind:
        case "epsilon":
            return bound / 2.0
        case "mu":
            return bound / math.sqrt(2.0)
        case _:
            return 1.0 - math.sqrt(1.0 - bound)


def _from(drawn: Messages):  # type: ignore[no-untyped-def]  # a closure with state
    """Return a function that hands out what was drawn, piece by piece."""
    used = 0

    def draw(number: int) -> Messages:
        nonlocal used
        used += number
        return drawn[used - number : used]

    return draw


_BATCH = "all records of a batch of eight, of which the others are known"
_BEFORE = "an earlier message of other records"
_TOLD_APART = "There is too little noise to hide anything of a row: δ is as good as 1 at ε = 1."
_APART = "records are kept apart"
_NOT_REPEATABLE = (
    "It is not repeatable: the same generator gave another message, so that it draws from elsewhere than its secrets."
)
