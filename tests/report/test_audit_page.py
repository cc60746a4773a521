"""The page of an audit: what it says follows from audit.json, and it says no more than that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from splitvfl.app.auditing import ExperimentAudit
from splitvfl.audit import ClaimAudit, DefenseAudit
from splitvfl.audit.attacks import AttackFigures, Figure, ProvenLoss, Reading, Seat, Trainings
from splitvfl.audit.calculation import Calculated
from splitvfl.audit.ceilings import Ceiling, gaussian_ceiling, pure_ceiling
from splitvfl.errors import CheckpointError
from splitvfl.privacy.audit import Direction, Measured, Objective
from splitvfl.report.audit_file import read_audit
from splitvfl.report.audit_page import audit_page, write_audit_page
from splitvfl.report.audit_words import answer, at_most, not_covered, overall, promise, question, tone

DOCS = Path(__file__).resolve().parents[2] / "docs" / "audit.md"
SYMBOLS = "εδμσΦΔ√½≤≥"
EVIL = "<script>alert('x')</script> & {{ 7*7 }}"

CLAIM = ClaimAudit(
    "each message is 0.5-differentially private", "ε", 0.5, "label of a record", "proven",
    ("Calculated: ε = 0.5.",), Calculated(0.5, "what moves over the scale"),
    Measured(Objective("epsilon"), 0.46, 9.0, Direction(300, 50_000, 190, 50_000), "bins", 0.99),
    "one against the other", "run",
)  # fmt: skip
NOTHING = ClaimAudit("no promise of privacy", "", None, "", "no claim", ("It makes no statement.",))


def figures(name: str, right: float | None, auc: float = 0.7, *, by_messages: bool = True) -> AttackFigures:
    def of(mean: float) -> Figure:
        return Figure(mean, mean - 0.05, mean + 0.05, 8)

    return AttackFigures(name, of(auc), None if right is None else of(right), by_messages)


def seat(*right: float | None, allowed: Ceiling | None = None, why: tuple[str, ...] = ()) -> Seat:
    attacks = tuple(figures(f"attack-{number}", each) for number, each in enumerate(right))
    loss = ProvenLoss(0.3, 2.4, 70, 100, "attack-0 at lab", 0.999)
    readings = tuple(
        Reading(epochs, allowed, why, gaussian_ceiling(0.5, "Gaussian noise of σ = 2."), loss, attacks)
        for epochs in (1, 10, 15)
    )
    return Seat(("lab",), ("bank",), "label of a record", 0.83, readings)


def audit(*seats: Seat, claims: tuple[ClaimAudit, ...] = (CLAIM,), **others: Any) -> ExperimentAudit:
    defense = DefenseAudit("my-noise", "gradient", claims, left_out=("That it is little.",))
    trainings = Trainings(8, 45, 0.9, 0.95, 24)
    given = {"experiment": "asked", "gaps": ("Columns were not looked at.",), "notes": ("ε adds up.",)} | others
    return ExperimentAudit(defenses=(defense,), draws=100_000, learned=seats, trainings=trainings, **given)


PROMISED = seat(0.55, 0.61, allowed=replace(pure_ceiling(0.47, "ε = 0.47."), verdict="proven"))


class Texts(HTMLParser):
    """What stands on a page, outside of details and in them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.shown, self.hidden = "", ""
        self._depth, self._style = 0, False
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.handle_data(" ")
        self._depth += tag == "details"
        self._style = tag == "style" or (self._style and tag != "style")

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "details"
        if tag == "style":
            self._style = False

    def handle_data(self, data: str) -> None:
        if self._style:
            return
        if self._depth:
            self.hidden += data
        else:
            self.shown += data


def shown(found: ExperimentAudit) -> str:
    return " ".join(Texts(audit_page(found.as_json())).shown.split())


# --- words


def test_what_would_be_right_stands_beside_guessing_and_the_guarantee() -> None:
    said = list(answer(PROMISED.as_json(), Trainings(8, 45, 0.9, 0.95, 24).as_json()))
    assert said[0] == "Of 100 labels it would get 61 right, 50 by guessing; the guarantee allows 62."
    assert said[1].startswith(
        "Nothing that we tried got more than 61 (over trainings 56 to 66): 2 attacks in 8 trainings"
    )
    assert "Another attack may get more." in said[1]
    assert "put 70 in the right order, and its own columns alone, without any message, 83." in said[2]
    assert "is right for 90 of 100" in said[2]


@pytest.mark.parametrize(
    ("share", "said"), [(0.6154, "62"), (0.62, "62"), (0.6200001, "63"), (0.5, "50"), (1.0, "100")]
)
def test_a_guarantee_is_never_rounded_down(share: float, said: str) -> None:
    assert at_most(share) == said


def test_a_guarantee_that_does_not_count_is_no_limit() -> None:
    void = seat(0.61, allowed=pure_ceiling(0.47, ""), why=("Early stopping looks at labels.",))
    said = list(answer(void.as_json(), None))
    assert said[0].endswith("a guarantee of at most 62 is stated, and does not count here.")
    assert said[-1] == "That guarantee does not count here. Early stopping looks at labels."
    bare = list(answer(seat(0.61, why=("Nothing is promised.",)).as_json(), None))
    assert bare[0].endswith("no guarantee limits it.")
    assert "guarantee allows" not in " ".join([*said, *bare])


def test_a_guarantee_without_a_calculation_is_said_to_be_no_proof() -> None:
    stated = seat(0.55, allowed=replace(pure_ceiling(0.47, ""), verdict="not refuted"))
    assert "which is no proof" in list(answer(stated.as_json(), None))[-1]
    assert "no proof" not in " ".join(answer(PROMISED.as_json(), None))


def test_more_than_is_guaranteed_is_said_with_what_chance_does() -> None:
    allowed = replace(pure_ceiling(0.2, ""), verdict="proven")  # 55
    near, far = (" ".join(answer(seat(right, allowed=allowed).as_json(), None)) for right in (0.58, 0.7))
    assert "above the 55 of the guarantee, and no more than chance does" in near
    assert "more than chance does: do not rely on the guarantee" in far
    assert "above the" not in " ".join(answer(PROMISED.as_json(), None))


def test_attacks_that_read_no_message_do_not_speak_for_messages() -> None:
    own = figures("own-columns", 0.9, 0.9, by_messages=False)
    last = Reading(2, None, ("Nothing.",), None, None, (own, figures("norm", 0.6)))
    found = Seat(("lab",), ("bank",), "label of a record", None, (last,)).as_json()
    assert next(answer(found, None)).startswith("Of 100 labels it would get 60 right")


def test_questions_name_who_reads_and_whose_data() -> None:
    one = PROMISED.as_json()
    assert question(one) == "What could lab learn about the labels of bank?"
    joint = question(one | {"readers": ["lab", "shop"]})
    assert joint == "What could lab and shop, who put together what they receive, learn about the labels of bank?"
    rows = question(one | {"readers": ["bank"], "owners": ["lab"], "relation": "row of a record"})
    assert rows == "What could bank learn about the rows of lab?"
    outsider = question(one | {"readers": [], "owners": ["bank", "lab"], "relation": "record at all parties"})
    assert (
        outsider == "What could somebody who reads every message learn about a record, of all that bank and lab hold?"
    )


def test_promises_are_said_without_formulas() -> None:
    assert promise(CLAIM.as_json()) == (
        "From all messages of the run together nobody gets more than 63 of 100 labels right; guessing gets 50."
    )
    row = replace(CLAIM, quantity="μ", claimed=1.0, relation="row of a record", per="message")
    assert promise(row.as_json()).startswith("From one message nobody tells two rows of a record apart more than 70 ")
    sums = replace(CLAIM, quantity="δ at ε 1", claimed=1e-3, relation="label at bank")
    assert promise(sums.as_json()) == (
        "From all messages of the run together nobody gets more than 58 of 100 labels right; guessing gets 50."
    )
    assert promise(NOTHING.as_json()) == "No promise of privacy."
    unbounded = replace(row, claim="noise is added, and nothing else is done.", limits=False)
    assert promise(unbounded.as_json()) == "Noise is added, and nothing else is done."


def test_what_does_not_hold_comes_first_and_without_a_formula() -> None:
    calculated = replace(CLAIM, verdict="violated", calculated=Calculated(2.3, ""), why=("Calculated: ε = 2.3.",))
    measured = replace(CLAIM, verdict="violated", calculated=None, why=("Measured: ε is at least 0.9.",))
    void = replace(CLAIM, verdict="not covered", why=("The noise has a fixed seed.",))
    found = audit(seat(0.6, why=("Nothing is promised.",)), claims=(void, calculated, measured)).as_json()
    lines = list(not_covered(found))
    assert [line.kind for line in lines] == ["violated", "violated", "not covered", "no guarantee", "not audited"]
    assert lines[0].said == "A calculation allows 91 of 100, and not 63."
    assert lines[1].said == "Trials have shown more than it allows, and more than chance does."
    assert lines[2].said == "The noise has a fixed seed."
    assert overall(found) == (
        "2 of 3 statements do not hold. lab could infer 60 of 100 labels of bank; guessing gives 50. "
        "No guarantee applies."
    )
    assert lines[2].about.startswith("my-noise: Does not apply here: from all messages of the run together nobody")


def test_green_is_for_what_is_guaranteed_and_neither_refuted_nor_void() -> None:
    def colour(*seats: Seat, **claims: Any) -> str:
        return tone(audit(*seats, **claims).as_json())

    void = replace(CLAIM, verdict="not covered")
    assert colour(PROMISED) == "low"
    assert colour(seat(0.5)) == "middle"
    assert colour(seat(0.5, allowed=pure_ceiling(0.5, ""), why=("Void.",))) == "middle"
    assert colour(PROMISED, claims=(void,)) == "middle"
    # That nothing was found of a claim which no calculation knows is not green either.
    open_claim, stated = replace(CLAIM, verdict="not refuted"), replace(pure_ceiling(0.01, ""), verdict="not refuted")
    assert colour(seat(0.5, allowed=stated), claims=(open_claim,)) == "middle"
    said = overall(audit(claims=(open_claim, CLAIM)).as_json())
    assert said == "How many labels could be inferred was not measured. No guarantee applies."
    assert colour(PROMISED, claims=(void, replace(CLAIM, verdict="violated"))) == "high"


@pytest.mark.parametrize(
    ("seats", "said"),
    [
        ((PROMISED,), "lab could infer 61 of 100 labels of bank; guessing gives 50. Guaranteed: at most 62."),
        ((PROMISED, seat(0.96)), "lab could infer 96 of 100 labels of bank; guessing gives 50. No guarantee applies."),
        (
            (seat(allowed=replace(pure_ceiling(0.47, ""), verdict="not refuted")),),
            "was not measured. Guaranteed: at most 62. No calculation confirms it.",
        ),
        ((seat(0.5, allowed=pure_ceiling(0.5, ""), why=("Void.",)),), "guessing gives 50. No guarantee applies."),
        ((seat(0.5, allowed=replace(pure_ceiling(0.5, ""), verdict="violated")),), "No guarantee applies."),
    ],
)
def test_the_banner_is_the_worst_finding_with_its_limit(seats: tuple[Seat, ...], said: str) -> None:
    assert overall(audit(*seats).as_json()).endswith(said)


def test_a_claim_that_does_not_apply_is_grey_and_says_so_first() -> None:
    void = replace(CLAIM, verdict="not covered", why=("The noise has a fixed seed.",))
    page = audit_page(audit(PROMISED, claims=(void, CLAIM)).as_json())
    grey = re.findall(r'<li class="quiet">.*?<p class="promise">([^<]*)</p>', page)
    assert [line.startswith("Does not apply here: ") for line in grey] == [True]
    assert page.count('<p class="promise">From all messages') == 1


# --- the page


def test_what_is_not_covered_stands_before_what_was_found() -> None:
    said = shown(audit(PROMISED))
    places = [
        said.index(each) for each in ("What is not covered", "Columns were not looked at.", "Who could learn what")
    ]
    assert places == sorted(places)
    assert said.index("Who could learn what") < said.index("Of 100 labels it would get 61 right")


def test_formulas_are_one_click_away() -> None:
    violated = replace(CLAIM, verdict="violated", why=("Calculated: ε = 2.3.",))
    texts = Texts(audit_page(audit(PROMISED, seat(0.6), claims=(violated, CLAIM, NOTHING)).as_json()))
    assert not set(texts.shown) & set(SYMBOLS)
    assert "e^ε/(1 + e^ε) = 0.615" in " ".join(texts.hidden.split())
    assert "Gaussian noise of σ = 2." in texts.hidden
    assert sum(tag == "details" for tag, _ in texts.tags) >= 4


def test_figures_at_every_moment_stand_in_the_page() -> None:
    growing = replace(PROMISED, after=tuple(
        replace(reading, attacks=(figures("norm", right),))
        for reading, right in zip(PROMISED.after, (0.512, 0.567, 0.634), strict=True)
    ))  # fmt: skip
    said = shown(audit(growing))
    for part in ("1 epoch", "10 epochs", "15 epochs", "51 46–56", "57 52–62", "63 58–68"):
        assert part in said


def test_the_page_needs_nothing_else_and_takes_names_for_names() -> None:
    page = audit_page(audit(PROMISED, experiment=EVIL, gaps=(EVIL,)).as_json())
    texts = Texts(page)
    assert "script" not in {tag for tag, _ in texts.tags}
    assert texts.shown.count("{{ 7*7 }}") >= 2
    assert not [value for _, attributes in texts.tags for name, value in attributes.items() if name in ("src", "href")]
    assert "url(" not in page
    assert "@import" not in page


def test_without_trainings_nothing_is_said_to_be_tried() -> None:
    untried = replace(PROMISED, after=tuple(replace(each, attacks=(), proven=None) for each in PROMISED.after))
    said = shown(replace(audit(untried), trainings=None))
    assert "No training was made to try attacks on." in said
    assert "Nothing that we tried" not in said
    assert "was not measured, 50 of 100 are right by guessing; the guarantee allows 62." in said


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    found = audit(PROMISED).as_json()
    assert write_audit_page(found, tmp_path / "audit.html").read_text(encoding="utf-8") == audit_page(found)
    with pytest.raises(CheckpointError, match="cannot write"):
        write_audit_page(found, tmp_path / "audit.html" / "audit.html")
    assert [path.name for path in tmp_path.iterdir()] == ["audit.html"]


# --- the file


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys_of(each)


def test_every_key_of_the_file_is_documented() -> None:
    said = DOCS.read_text(encoding="utf-8")
    schema = said[said.index("## `audit.json`") :]
    keys = set(keys_of(audit(PROMISED).as_json()))
    assert {"learned", "trainings", "guarantee", "noise_alone", "proven", "hits"} <= keys
    assert not [key for key in sorted(keys) if not re.search(rf"`{re.escape(key)}`", schema)]


def test_the_file_is_json_and_read_again_as_it_was(tmp_path: Path) -> None:
    found = audit(PROMISED).as_json()
    assert read_audit(tmp_path) is None
    (tmp_path / "audit.json").write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    assert read_audit(tmp_path) == found
    (tmp_path / "audit.json").write_text('{"format": "splitvfl audit", "version": 1}', encoding="utf-8")
    assert read_audit(tmp_path) is None, "it was written before there were seats"
    for text in ("{", "[]", "[" * 100_000):
        (tmp_path / "audit.json").write_text(text, encoding="utf-8")
        with pytest.raises(CheckpointError, match="damaged"):
            read_audit(tmp_path)
