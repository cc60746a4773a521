"""The comparison beyond the paper: it trains as the package does, reads what can be read, and counts right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from scripts.reproduce.residue_protection import beyond
from scripts.reproduce.residue_protection.beyond_claims import claims_of
from scripts.reproduce.residue_protection.beyond_outcomes import OWN, RATIOS, Outcome, above_ceilings, corrected
from scripts.reproduce.residue_protection.beyond_runs import (
    EPSILONS,
    SELECTIONS,
    additive_success,
    contenders,
    effort_for,
    exchange_of,
    judged,
)
from scripts.reproduce.residue_protection.beyond_summary import summary
from scripts.reproduce.residue_protection.descent import Step, descend, hybrid_steps, number_of_steps, steps_of
from scripts.reproduce.residue_protection.guesses import ATTACKS, Effort, Reading, Transcript, balanced
from scripts.reproduce.residue_protection.mechanisms import NONE, Mechanism, additive, chosen, multiplicative
from scripts.reproduce.residue_protection.pareto import Choice, front
from scripts.reproduce.residue_protection.protections import Contender, Memoised, Protection, Residues, Selection
from scripts.reproduce.residue_protection.study import (
    BREAST,
    CENSUS,
    CREDIT,
    DIGITS,
    PASSIVE,
    Table,
    build_trainer,
    table_of,
)
from scripts.reproduce.shared.claims import interval
from scripts.reproduce.shared.settings import Settings
from splitvfl.claims import DetectionError, PureDP
from splitvfl.defenses import MemoisedResponse
from splitvfl.defenses.corrected_response import Corrected
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.paillier import InsecureEncryption
from splitvfl.hooks import Secrets, View
from splitvfl.privacy import laplace_label_success
from splitvfl.run.trainer import Trainer

RATE, EPOCHS = 0.1, 2
SMALL = replace(BREAST, epochs=EPOCHS, rows=130, batch_size=32)
EXACT = Residues(mechanism=NONE)
HIDING = Selection(used=16, sent=40)
# No limit of time is met: the integer programs below are small.
EFFORT = Effort(solved=1000, sparse=10, program=2, stacked=1 << 20, time_limit=60.0)

# Weights are float32 in the package: ten steps of residues up to 100 may each round by 2^-24 of their size.
ROUNDING = 1e-4


def contender(protection: Protection, selection: Selection | None = None) -> Contender:
    return Contender(key="tried", title="tried", protection=protection, selection=selection)


def no_noise(records: int, trainings: int) -> Tensor:
    raise AssertionError("noise was drawn where there is none")


def package_weights(trainer: Trainer) -> Tensor:
    return next(trainer.passives[PASSIVE].bottom.parameters())[0].detach().double()


def own_weights(
    table: Table, protection: Protection, targets: Tensor, steps: Iterator[Step], draw: Any = no_noise
) -> Tensor:
    rates = torch.tensor([RATE], dtype=torch.float64)
    return descend(table.train.double(), targets[:, None], protection, steps, rates=rates, draw=draw)[:, 0]


def small_steps(protection: Protection, table: Table) -> Iterator[Step]:
    records, columns = table.train.shape
    return steps_of(
        contender(protection),
        records=records,
        columns=columns,
        batch_size=SMALL.batch_size,
        epochs=EPOCHS,
        seed=0,
    )


# Trainings


@pytest.mark.parametrize(
    "mechanism",
    [NONE, additive(1.0), chosen(0.5), *(multiplicative(1.0, 0.1, 10.0, m) for m in ("as_printed", "sign_preserving"))],
    ids=lambda each: f"{each.kind}-{each.mode}",
)
def test_a_training_is_that_of_exchange_split_under_the_packages_defense(
    mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Tensor] = []
    own = Secrets.laplace

    def recorded(secrets: Secrets, *shape: int) -> Tensor:
        drawn.append(own(secrets, *shape))
        return drawn[-1]

    add = Secrets.add_laplace

    def recorded_sum(secrets: Secrets, message: Tensor, scale: float) -> Tensor:
        noisy = add(secrets, message, scale)
        drawn.append((noisy.double() - message.double()) / scale)
        return noisy

    monkeypatch.setattr(Secrets, "laplace", recorded)
    monkeypatch.setattr(Secrets, "add_laplace", recorded_sum)
    protection = Residues(mechanism=mechanism)
    defense = protection.defense()
    trainer = build_trainer(SMALL, 0, rate=RATE, defenses=() if defense is None else (defense,))
    trainer.fit(EPOCHS)
    assert len(drawn) == (0 if mechanism.kind == "none" else 10)

    noise, table = iter(drawn), table_of(SMALL, 0)
    expected = own_weights(
        table,
        protection,
        table.labels.double(),
        small_steps(protection, table),
        draw=lambda records, trainings: next(noise).reshape(records, trainings),
    )
    assert expected.abs().max() > 50 * ROUNDING
    assert torch.allclose(package_weights(trainer), expected, rtol=0, atol=ROUNDING)


ANSWERED: dict[int, float] = {}


class Overheard(MemoisedResponse):
    """A memoised response whose targets the test knows, by record."""

    def claims(self) -> tuple[PureDP | DetectionError, ...]:
        """What it returns is the same."""
        return super().claims()

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        targets = super().__call__(labels, secrets)
        ANSWERED.update(zip(secrets.ids.tolist(), targets.double().tolist(), strict=True))
        return targets


@pytest.mark.parametrize("corrected_by", ["targets", "likelihood"])
def test_a_training_on_memoised_answers_is_the_packages(corrected_by: Corrected) -> None:
    ANSWERED.clear()
    protection = Memoised(epsilon=1.5, corrected=corrected_by)
    trainer = build_trainer(SMALL, 0, rate=RATE, defenses=(Overheard(epsilon=1.5, corrected=corrected_by),))
    trainer.fit(EPOCHS)

    table = table_of(SMALL, 0)
    answers = torch.tensor([ANSWERED[record] for record in range(130)], dtype=torch.float64)
    if corrected_by == "targets":
        drawn = protection.targets(table.labels.double(), torch.Generator().manual_seed(0), 50)
        assert np.allclose(np.unique(drawn.numpy()), np.unique(answers.numpy()), rtol=0, atol=1e-6)
        flipped = (drawn > 0.5) != (table.labels > 0.5)[:, None]
        # 6500 tosses: three standard errors.
        assert abs(float(flipped.double().mean()) - protection.flip) < 3 * math.sqrt(protection.flip / 6500)
    expected = own_weights(table, protection, answers, small_steps(protection, table))
    assert expected.abs().max() > 0.01
    assert torch.allclose(package_weights(trainer), expected, rtol=0, atol=ROUNDING)


class Seen:
    """An observer in the passive party's seat, which keeps what it is shown of each step."""

    needs = frozenset({"aggregated_gradient", "activation"})

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []

    def __call__(self, view: View, /) -> None:
        self.steps.append((view.ids.clone(), view.aggregated_gradient[:, 0].double(), view.activation[:, 0].double()))


@pytest.mark.parametrize("protection", [EXACT, Memoised(epsilon=1.0)], ids=["exact", "memoised"])
def test_a_training_and_its_transcript_are_those_of_exchange_hybrid(protection: Protection) -> None:
    ANSWERED.clear()
    exchange = Hybrid(
        rows=HIDING.batch_size,
        encryption=InsecureEncryption(key_bits=512),
        epsilon=HIDING.epsilon,
        share=HIDING.share,
        selection_seed_for_experiments=3,
    )
    problem = replace(BREAST, batch_size=HIDING.batch_size)
    table = table_of(problem, 0)
    defenses = (Overheard(epsilon=1.0),) if isinstance(protection, Memoised) else ()
    trainer = build_trainer(problem, 0, rate=RATE, exchange=exchange, defenses=defenses)
    trainer.passives[PASSIVE].observers.append(seen := Seen())
    trainer.fit(1)

    records, columns = table.train.shape
    targets = table.labels.double()
    for record, answer in ANSWERED.items():
        targets[record] = answer
    every = hybrid_steps(HIDING, exchange.selection_key(), records, columns, 0)
    steps = [next(every) for _ in seen.steps]
    transcript = Transcript(table.train.double(), releases=0, sums=1000, steps=len(steps))
    rates = torch.tensor([RATE], dtype=torch.float64)
    descend(transcript.columns, targets[:, None], protection, iter(steps), rates=rates, draw=no_noise, watch=transcript)
    assert len(seen.steps) == len(transcript.sums) >= 3
    for (ids, gradient, logits), one in zip(seen.steps, transcript.sums, strict=True):
        assert torch.equal(ids, one.rows)
        assert 0 < one.used.sum() < len(ids)
        assert torch.allclose(gradient, one.gradient, rtol=0, atol=exchange.error + ROUNDING)
        assert torch.allclose(logits, one.logits, rtol=0, atol=ROUNDING + exchange.error)


def test_every_draw_and_rate_has_a_training_of_its_own() -> None:
    table = table_of(SMALL, 0)
    rates = torch.tensor([0.1, 0.3], dtype=torch.float64)
    labels = table.labels.double()
    both = descend(
        table.train.double(),
        labels[:, None].expand(-1, 2),
        EXACT,
        small_steps(EXACT, table),
        rates=rates,
        draw=no_noise,
    )
    alone = own_weights(table, EXACT, labels, small_steps(EXACT, table))
    assert torch.allclose(both[:, 0], alone, rtol=0, atol=1e-12)
    assert not torch.allclose(both[:, 1], alone, rtol=0, atol=0.01)


@pytest.mark.parametrize("key", SELECTIONS)
def test_batches_of_the_hybrid_exchange_have_the_published_sizes(key: str) -> None:
    selection = SELECTIONS[key]
    secret = selection.secret_batch
    # The batch and its share are whole numbers: of half a record each.
    assert secret.expected_used(selection.batch_size) == pytest.approx(selection.used, abs=0.75)
    assert secret.expected_sent(selection.batch_size) == pytest.approx(selection.sent, abs=1.0)
    columns = {"breast": 30, "digits": 64, "census": 81, "credit": 10}[key]
    assert secret.is_likely(selection.batch_size, columns)


def test_hybrid_uses_every_record_as_often_on_average_as_the_others() -> None:
    one = contender(EXACT, HIDING)
    steps = list(steps_of(one, records=455, columns=30, batch_size=32, epochs=10, seed=1))
    assert len(steps) == number_of_steps(one, records=455, batch_size=32, epochs=10) == 290
    uses = torch.zeros(455)
    for step in steps:
        uses[step.rows[step.used]] += 1
    # 290 batches with 16 used on average, of deviation 2: five standard errors.
    assert float(uses.mean()) == pytest.approx(10.0, abs=5 * 2 * math.sqrt(290) / 455 + 0.2)


# What is compared


@pytest.mark.parametrize("problem", [BREAST, CENSUS], ids=lambda each: each.key)
def test_those_of_one_epsilon_cost_as_much_and_those_as_well_read_are(problem: Any) -> None:
    found = {one.key: one for one in contenders(problem)}
    assert len(found) == len(contenders(problem))
    epsilons = {key: one.protection.label_epsilon(problem.epochs) for key, one in found.items()}
    for epsilon in EPSILONS[:3]:
        whole = problem.epochs * epsilon / 2
        assert epsilons[f"add-{epsilon:g}"] == pytest.approx(whole)
        assert epsilons[f"same-{epsilon:g}"] == epsilons[f"likelihood-{epsilon:g}"] == pytest.approx(whole)
        as_read = epsilons[f"as-read-{epsilon:g}"]
        assert as_read < whole
        assert 1 / (1 + math.exp(-as_read)) == pytest.approx(additive_success(epsilon, problem.epochs))
    for epsilon in EPSILONS[1:]:
        assert epsilons[f"mult-{epsilon:g}"] <= epsilons[f"add-{epsilon:g}"] * (1 + 1e-9)
        assert epsilons[f"mult-{epsilon:g}"] > 0.98 * epsilons[f"add-{epsilon:g}"]
    assert math.isinf(epsilons["none"])
    assert math.isinf(epsilons["hybrid"])


@pytest.mark.parametrize("problem", [BREAST, DIGITS, CENSUS, CREDIT], ids=lambda each: each.key)
def test_a_contender_is_the_same_after_it_was_json(problem: Any) -> None:
    for one in contenders(problem):
        back = Contender.of(one.as_settings())
        assert replace(back, title=one.title) == one
        assert exchange_of(one, problem, short_keys=True).sums_only == one.sums_only


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_one_release_is_read_as_the_closed_form_says(epsilon: float) -> None:
    # Cells of a thousandth: what lies in the middle one is shared evenly.
    assert additive_success(epsilon, 1) == pytest.approx(laplace_label_success(epsilon), abs=1e-6)


@pytest.mark.parametrize(("epsilon", "releases"), [(0.1, 2), (1.0, 5), (2.0, 10)])
def test_several_releases_are_read_as_often_as_in_a_simulation(epsilon: float, releases: int) -> None:
    draws = 200_000
    noise = np.random.default_rng(0).laplace(scale=2 / epsilon, size=(releases, draws))
    ratio = (np.abs(noise + 1) - np.abs(noise)).sum(axis=0)  # of what is sent, less the residue of the right label
    # Atoms at ±1 add up to whole numbers, which floating point misses by a little.
    success = (ratio > 1e-9).mean() + (np.abs(ratio) <= 1e-9).mean() / 2
    # Four standard errors of a share.
    assert additive_success(epsilon, releases) == pytest.approx(success, abs=4 * 0.5 / math.sqrt(draws))


# Attacks


def attacked(protection: Protection, selection: Selection | None = None, *, epochs: int = 10) -> tuple[Any, Tensor]:
    """A transcript of generic columns whose labels are coins, and the labels."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(300, 12, generator=generator, dtype=torch.float64)
    labels = torch.randint(2, (300,), generator=generator).double()
    one = contender(protection, selection)
    steps = list(steps_of(one, records=300, columns=12, batch_size=30, epochs=epochs, seed=0))
    transcript = Transcript(columns, releases=0 if one.sums_only else epochs, sums=1000, steps=len(steps))
    numbers = np.random.default_rng(1)

    def draw(records: int, trainings: int) -> Tensor:
        return torch.from_numpy(numbers.laplace(size=(records, trainings)))

    rates = torch.tensor([0.05 / protection.size], dtype=torch.float64)
    weights = descend(
        columns,
        protection.targets(labels, generator, 1),
        protection,
        iter(steps),
        rates=rates,
        draw=draw,
        watch=transcript,
    )
    transcript.own = (columns @ weights)[:, 0]
    return transcript, labels


def read(attack: str, transcript: Transcript, protection: Protection) -> Reading:
    found = ATTACKS[attack](transcript, protection, EFFORT)
    assert found is not None
    return found


def test_without_noise_every_residue_tells_its_label() -> None:
    transcript, labels = attacked(EXACT)
    found = read(RATIOS, transcript, EXACT)
    assert balanced(found.run, labels) == 1.0
    assert balanced(found.single, labels[found.records]) == 1.0
    assert len(found.single) == 3000


@pytest.mark.parametrize("mechanism", [additive(1.0), chosen(0.5)], ids=["add", "mult"])
def test_noise_is_read_as_often_as_theory_says(mechanism: Mechanism) -> None:
    protection = Residues(mechanism=mechanism)
    transcript, labels = attacked(protection)
    found = read(RATIOS, transcript, protection)
    single = balanced(found.single, labels[found.records])
    # 3000 releases: five standard errors.
    assert single == pytest.approx(laplace_label_success(1.0), abs=5 * 0.5 / math.sqrt(3000))
    assert balanced(found.run, labels) == pytest.approx(additive_success(1.0, 10), abs=5 * 0.5 / math.sqrt(300))


@pytest.mark.parametrize("corrected_by", ["targets", "likelihood"])
def test_what_is_read_of_memoised_answers_are_the_answers(corrected_by: Corrected) -> None:
    protection = Memoised(epsilon=1.0, corrected=corrected_by)
    transcript, labels = attacked(protection)
    found = read(RATIOS, transcript, protection)
    assert balanced(found.run, labels) == pytest.approx(1 - protection.flip, abs=5 * 0.5 / math.sqrt(300))
    # The same answer in every release.
    signs = torch.sign(found.single).view(10, 300)
    assert (signs == torch.sign(found.run)).all()
    # Residues of answers: less their probability, they are 0 or 1.
    residues, predictions = protection.read(transcript.sent, transcript.logits)
    answers = residues + predictions
    assert torch.minimum(answers.abs(), (answers - 1).abs()).max() < 1e-9


SMALL_HIDING = Selection(used=6, sent=18)


@pytest.mark.parametrize("attack", ["residue-solving", "sparse-residues", "binary program", "stacked-epochs"])
def test_hybrid_batches_are_read_and_memoised_ones_to_their_answers(attack: str) -> None:
    exact, labels = attacked(EXACT, SMALL_HIDING)
    protection = Memoised(epsilon=1.0)
    memoised, _ = attacked(protection, SMALL_HIDING)
    assert ATTACKS[RATIOS](exact, EXACT, EFFORT) is None
    plain, answered = read(attack, exact, EXACT), read(attack, memoised, protection)
    if attack == "stacked-epochs":
        assert balanced(plain.run, labels) > 0.9
        assert balanced(answered.run, labels) < 1 - protection.flip + 5 * 0.5 / math.sqrt(300)
    else:
        least = {"residue-solving": 0.75, "sparse-residues": 0.85, "binary program": 0.95}[attack]
        assert balanced(plain.single, labels[plain.records]) > least
        told = balanced(answered.single, labels[answered.records])
        assert 0.55 < told < 0.9
    if attack == "binary program":
        assert "answered in 2 of 2" in answered.note  # it knows what an answer's residue is


def test_own_labels_coins_and_undecided_ones_are_judged_apart() -> None:
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    coins = torch.tensor([False, False, False, True, True, True])
    reading = Reading(
        run=torch.tensor([1.0, -1.0, -1.0, -2.0, 0.0, 3.0]),
        records=torch.tensor([0, 1, 3, 4, 4, 5]),
        single=torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0, -1.0]),
    )
    found = judged(reading, labels, coins)
    assert found["run"] == 0.75  # one of two positives, the negative
    assert found["run_coins"] == 0.5  # the positive undecided, one of two negatives
    assert found["single"] == 0.5
    assert found["single_coins"] == 0.75
    assert (found["guessed"], found["right"]) == (2, 1)
    assert math.isnan(judged(Reading(run=reading.run), labels, coins)["single"])


# Figures over seeds


def test_an_interval_of_one_comparison_is_the_usual_one_and_of_many_is_wider() -> None:
    values = [0.1, 0.2, 0.4, 0.15, 0.3]
    usual = interval(values)
    assert usual is not None
    alone, among = corrected(values, comparisons=1), corrected(values, comparisons=12)
    assert alone.ends == pytest.approx(usual)
    assert among.middle == pytest.approx(0.23)
    assert among.ends is not None
    half = stats.t.ppf(1 - 0.05 / 24, 4) * stats.sem(values)
    assert among.ends[1] - among.middle == pytest.approx(half)
    assert among.ends[0] < 0.0
    assert corrected(values, comparisons=12, least=0.0).ends == (0.0, among.ends[1])
    assert corrected([0.5], comparisons=3).ends is None


def test_the_front_is_what_nobody_beats() -> None:
    generator = np.random.default_rng(0)
    # In hundredths, and powers of ten of seconds: whole numbers, so that a difference is one.
    figures = generator.integers([50, 50, 0], [100, 100, 4], (60, 3)).tolist()
    figures += [[accuracy, read, power + 0.5] for accuracy, read, power in figures[:20]]

    def beaten(one: list[float]) -> bool:
        return any(
            a >= one[0] and r <= one[1] and s - one[2] < 1 and (a > one[0] or r < one[1] or one[2] - s >= 1)
            for a, r, s in figures
        )

    choices = {
        str(number): Choice(accuracy=a / 100, read=r / 100, seconds=10.0**s) for number, (a, r, s) in enumerate(figures)
    }
    # A difference of .01 is one, and of two numbers of two digits it may come out a little less.
    apart = {
        name: replace(one, accuracy=1.001 * one.accuracy, read=1.001 * one.read, seconds=one.seconds)
        for name, one in choices.items()
    }
    best = front(apart)
    assert 0 < len(best) < len(figures)
    assert best == [name for name, one in zip(choices, figures, strict=True) if not beaten(one)]


@pytest.mark.parametrize(
    ("accuracy", "read", "seconds", "beaten"),
    [
        (0.895, 0.7, 1.0, False),  # worse by less than one would choose by
        (0.88, 0.7, 1.0, True),
        (0.9, 0.72, 1.0, True),
        (0.9, 0.7, 5.0, False),
        (0.9, 0.7, 11.0, True),
        (0.88, 0.7, 0.5, True),  # times within a factor of ten are alike
        (0.88, 0.7, 0.05, False),
        (0.5, 0.65, 100.0, False),
    ],
)
def test_a_choice_is_beaten_by_a_clear_difference_alone(
    accuracy: float, read: float, seconds: float, beaten: bool
) -> None:
    good = Choice(accuracy=0.9, read=0.7, seconds=1.0)
    assert good.beats(Choice(accuracy=accuracy, read=read, seconds=seconds)) is beaten
    assert not good.beats(good)


def outcome(
    key: str,
    protection: Protection,
    *,
    read: float,
    accuracy: float = 0.9,
    attack: str = RATIOS,
    spread: float = 0.001,
) -> Outcome:
    """What five seeds with small differences, or accuracies so far apart, would have come to, of 100 coins each."""
    cells = []
    for seed in range(5):
        off = (seed - 2) / 1000
        figure = {
            "run": read,
            "run_auc": read,
            "run_coins": read + off,
            "single": read,
            "single_coins": read,
            "guessed": 100,
            "right": round(100 * read),
        }
        own = {**figure, "run_coins": 0.5, "right": 50}
        cells.append(
            {
                "accuracy": accuracy + (seed - 2) * spread,
                "auc": accuracy,
                "steps": 10,
                "at_end": False,
                "attacks": {attack: figure, OWN: own},
            }
        )
    one = Contender(key=key, title=key, protection=protection)
    return Outcome(problem=BREAST, contender=one, cells=cells, step_seconds=0.1)


def verdicts(*found: Outcome) -> dict[str, str]:
    return {claim.claim: claim.verdict for claim in claims_of({BREAST: found})}


def test_claims_follow_the_figures() -> None:
    add, same = outcome("add-1", Residues(mechanism=additive(1.0)), read=0.9), Memoised(epsilon=15.0)

    def of(found: dict[str, str], part: str) -> str:
        return next(verdict for claim, verdict in found.items() if part in claim)

    better = verdicts(add, outcome("same-1", same, read=1.0, accuracy=0.95))
    worse = verdicts(add, outcome("same-1", same, read=1.0, accuracy=0.85))
    assert of(better, "says nothing") == "reproduces"  # 30 releases at ε 1
    assert of(better, "at least as accurate") == "reproduces"
    reasons = [claim.why for claim in claims_of({BREAST: [add, outcome("same-1", same, read=1.0, accuracy=0.85)]})]
    assert any(why.startswith("surely less; difference of accuracy") for why in reasons)
    assert of(worse, "at least as accurate") == "does not"
    # More on average, of seeds that say nothing: no ground to say that it is not less.
    doubtful = outcome("same-1", same, read=1.0, accuracy=0.95, spread=0.1)
    assert of(verdicts(add, doubtful), "at least as accurate") == "does not"

    none, answers = outcome("none", EXACT, read=1.0), Memoised(epsilon=1.0)
    for hides, told in (("does not", 0.95), ("reproduces", 0.52)):
        found = verdicts(none, outcome("hybrid", EXACT, read=told, attack="stacked-epochs"))
        assert of(found, "hybrid alone hides") == hides

    alone = outcome("memoised-1", answers, read=0.73)
    for holds, told, adds in (("reproduces", 0.72, "reproduces"), ("does not", 0.85, "does not")):
        found = verdicts(none, alone, outcome("hybrid-memoised-1", answers, read=told, attack="stacked-epochs"))
        assert of(found, "no attack reads more coins than the ceiling") == holds
        assert of(found, "no attack reads more coins than the whole-run") == holds
        assert of(found, "hides more than") == adds


def test_the_summary_counts_from_the_figures() -> None:
    add, same = Residues(mechanism=additive(1.0)), Memoised(epsilon=15.0)
    answers = Memoised(epsilon=1.0)
    found = {
        BREAST: [
            outcome("add-1", add, read=0.9, accuracy=0.8),
            outcome("same-1", same, read=0.95, accuracy=0.9),
            outcome("hybrid", EXACT, read=0.96, attack="stacked-epochs"),
            outcome("memoised-1", answers, read=0.73),
            outcome("hybrid-memoised-1", answers, read=0.71, accuracy=0.88, attack="stacked-epochs"),
        ]
    }
    text = summary(found)
    assert "costs a label ε 15 over the run, with ceilings of 1.000; .900 of coins are read" in text
    assert "accuracy +.100 (mean +.100), surely better in 1 and surely worse in 0 of 1 comparisons" in text
    assert "one step tells .960 of those used in it, and .960 of coins" in text
    assert "no attack above its ceiling. Of the same response in the clear +.020 more" in text
    assert "changes accuracy by −.020 and takes 1 times" in text
    assert "likelihood" not in text  # which did not take part


def test_the_section_has_a_row_for_each_mechanism_and_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        outcome("none", EXACT, read=1.0, accuracy=0.98),
        outcome("add-1", Residues(mechanism=additive(1.0)), read=0.9, accuracy=0.8),
        outcome("memoised-1", Memoised(epsilon=1.0), read=0.73, accuracy=0.9),
    ]
    monkeypatch.setattr(beyond, "outcomes", lambda settings: {BREAST: found})
    (section,) = beyond.sections(Settings(out=Path(), seeds=5, say=lambda line: None))

    rows = {
        cells[1]: cells[2:-1]
        for line in section.body.splitlines()
        if len(cells := [cell.strip() for cell in line.split("|")]) == 14
    }
    assert rows["none"][0].startswith(".980")
    assert rows["none"][3:7] == ["–", "1.000", "1.000 ± .001", RATIOS]
    assert rows["add-1"][3:6] == ["15", "1.000", ".900 ± .001"]
    assert [rows[name][-1] for name in ("none", "add-1", "memoised-1")] == ["yes", "", "yes"]
    assert "On no problem's front: add-1." in section.body
    drawn = ElementTree.fromstring(section.figures["residue-protection-front"])
    assert drawn.tag.endswith("svg")
    assert set(section.figures) == set(section.captions)


def test_coins_beyond_a_ceiling_are_as_likely_as_the_binomial_distribution_says() -> None:
    one = outcome("memoised-1", Memoised(epsilon=1.0), read=0.78)
    share = 1 / (1 + math.exp(-1.0))
    expected = sum(math.comb(500, k) * share**k * (1 - share) ** (500 - k) for k in range(390, 501))
    assert one.beyond_ceiling(RATIOS) == pytest.approx(expected, rel=1e-6)
    low, high = one.coins_between(RATIOS, comparisons=10)
    assert stats.binom.sf(389, 500, low) == pytest.approx(0.0025)  # .05 / 10, at either end
    assert stats.binom.cdf(390, 500, high) == pytest.approx(0.0025)
    assert one.seconds == pytest.approx(1.0)
    assert one.uses == pytest.approx(10 * 32 / 455)  # ten steps
    hidden = replace(one, contender=replace(one.contender, selection=HIDING))
    assert hidden.uses == pytest.approx(10 * 16 / 455)
    assert above_ceilings({BREAST: [one]}) == (2, [(one, RATIOS)])
    assert above_ceilings({BREAST: [outcome("none", EXACT, read=1.0)]}) == (0, [])


def test_attacks_are_given_less_where_residues_cross() -> None:
    clear, hidden = effort_for(contender(EXACT)), effort_for(contender(EXACT, HIDING))
    assert clear.solved < hidden.solved
    assert clear.program < hidden.program
