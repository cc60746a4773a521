"""Table IV's steps are the package's own, with as many records used and sent as published; equation 12's are read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from scripts.reproduce.residue_protection import recovery_time, timed_steps, times
from scripts.reproduce.residue_protection.study import BREAST, DIGITS, PASSIVE, Problem, build_trainer, table_of
from scripts.reproduce.residue_protection.timed_steps import MECHANISMS, NOISE, TABLE_4, MechanismName, Steps
from scripts.reproduce.shared.claims import mean
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.paillier import InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.messaging.messages import Message

BITS = 512
SMALL = replace(BREAST, rows=180, epochs=1)
LIMITS = InsecureEncryption(key_bits=BITS)


def weights_of_fit(name: MechanismName, problem: Problem) -> Tensor:
    """What the package's trainer makes of one epoch."""
    # |S| = 84 of which 28 are ones of m, kept with p = 28 / 49: 16 and 24 on average.
    exchanges: dict[str, tuple[Exchange, int]] = {
        "residue": (Residue(rows=16, encryption=LIMITS), 16),
        "hybrid": (
            Hybrid(
                rows=84,
                encryption=LIMITS,
                epsilon=torch.tensor(4 / 3).double().log().item(),
                share=1 / 3,
                selection_seed_for_experiments=0,
            ),
            84,
        ),
    }
    exchange, size = exchanges.get(name, (Split(), 16))
    noise = NOISE[name].defense() if name in NOISE else None
    trainer = build_trainer(
        replace(problem, batch_size=size),
        0,
        rate=0.1,
        defenses=() if noise is None else (noise,),
        exchange=exchange,
    )
    trainer.fit(1)
    return trainer.passives[PASSIVE].bottom.weight.detach()


@pytest.mark.parametrize("name", MECHANISMS)
def test_steps_one_at_a_time_are_those_of_a_training(name: MechanismName) -> None:
    with Steps(name, SMALL, bits=BITS, exact=False) as steps:
        # 180 records are 11 batches of 16 and one of 4; or 2 of 84, and one of 12 that can hide nothing.
        for _ in range(3 if name == "hybrid" else 12):
            steps.step()
        found = steps.passive.bottom.weight.detach()

    expected = weights_of_fit(name, SMALL)
    # Fixed point is exact on both sides; a sum of floats may be taken in another order.
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)
    assert found.abs().max() > 0.01


def test_steps_of_the_hybrid_use_and_send_as_many_records_as_published() -> None:
    messages: list[Message] = []
    steps = Steps("hybrid", BREAST, bits=BITS, record=messages.append)
    steps.plan(3)
    with steps:
        for _ in range(3):
            steps.step()

    asked = [message for message in messages if message.kind == "selection"]
    assert [int(message.payload.sum()) for message in asked] == [40, 40, 40]
    assert [len(message.payload) for message in messages if message.kind == "residues"] == [40, 40, 40]
    exchange = Hybrid(rows=84, encryption=LIMITS, epsilon=1.0, share=0.3, selection_seed_for_experiments=0)
    key, drawn = exchange.selection_key(), steps.secret_batch
    assert drawn is not None
    assert [int(drawn.draw(key, message.step, 84, [30]).used.sum()) for message in asked] == [16, 16, 16]
    assert len({message.step for message in asked}) == 3


def test_published_ratios_are_those_of_the_published_seconds() -> None:
    assert [round(row.ratio, 2) for row in TABLE_4.values()] == [1.73, 1.71, 1.77, 1.29]
    assert [(row.columns, row.used, row.sent) for row in TABLE_4.values()] == [
        (30, 16, 40),
        (64, 32, 70),
        (81, 32, 90),
        (10, 8, 15),
    ]


def test_a_naive_step_of_the_hybrid_has_the_same_residues_among_zeros() -> None:
    works = timed_steps.naive_works(DIGITS, TABLE_4["digits"], seed=3)
    residue, hybrid = works["residue"], works["hybrid"]

    assert residue.features.shape == (32, 64)
    assert hybrid.features.shape == (70, 64)
    assert sorted(hybrid.residues[hybrid.residues != 0].tolist()) == sorted(residue.residues.tolist())


def test_columns_of_another_number_are_not_timed() -> None:
    with pytest.raises(AssertionError, match="64 columns, and 30 are published"):
        timed_steps.check_width(replace(DIGITS, key="breast"))


def test_a_training_has_as_many_steps_as_use_every_record_once() -> None:
    found = timed_steps.whole_training(SMALL.as_settings(), "hybrid", BITS, epochs=2)

    assert found["steps"] == 2 * 12
    assert found["seconds"] > 0


# --- the section


def made_up(ratio: float, *, add: float = 1.0) -> times.Times:
    runs = [0.9, 1.0, 1.2]
    encrypted = {"residue": runs, "hybrid": [ratio * one for one in runs]}
    clear = {"Add": [add, add, add], "Mult": [add, add, add]}
    return times.Times(
        BREAST,
        {"naive phe": encrypted, "this package, one core": {**clear, **encrypted}},
        {},
        {"residue": 812.0},
    )


@pytest.mark.parametrize(("ratio", "verdict"), [(1.73, "reproduces"), (1.55, "reproduces"), (2.1, "does not")])
def test_a_ratio_reproduces_within_fifteen_per_cent(ratio: float, verdict: str) -> None:
    claims = times.claims_of(made_up(ratio))

    found = [claim for claim in claims if "hybrid / residue" in claim.claim]
    assert [claim.ours for claim in found] == pytest.approx([ratio, ratio])
    assert [claim.verdict for claim in found] == [verdict] * 2
    assert [claim.seeds for claim in found] == [3, 3]


@pytest.mark.parametrize(("add", "verdict"), [(1.0, "does not"), (1 / 150, "reproduces"), (1 / 400, "does not")])
def test_what_encryption_costs_reproduces_within_a_factor_of_two(add: float, verdict: str) -> None:
    """Published are 554.2 seconds for 3.5."""
    claim = next(
        claim
        for claim in times.claims_of(made_up(1.73, add=add))
        if "/ Add" in claim.claim[20:] and "phe" in claim.claim
    )

    assert claim.ours == pytest.approx(mean([0.9, 1.0, 1.2]) / add)
    assert claim.verdict == verdict


def test_a_training_is_extrapolated_from_the_median_step_and_labelled_so() -> None:
    found = made_up(1.5)
    steps = -(-len(table_of(BREAST, 0).train) // 16) * 30

    assert found.training("this package, one core", "residue") == steps * 1.0
    # 554.2 seconds are published, and a step takes one here.
    assert found.published_epochs == pytest.approx(554.2 / 29)
    section = times.section_of([found], times.QUICK)
    row = next(line for line in section.body.splitlines() if f"| {BREAST.epochs} | this package, one core" in line)
    # 29 steps of 16 or fewer of 455 records, in 30 epochs.
    assert [cell.strip() for cell in row.split("|")][4:8] == ["~870", "~870", "812 (870)", "~1 305"]


# --- equation 12


def test_the_labels_of_a_step_are_read_and_the_claim_of_work_is_refuted() -> None:
    results = {
        stage: recovery_time.read_steps(BREAST.as_settings(), stage, batches=8) for stage in recovery_time.STAGES
    }

    # .998 and .984 of 100 batches; standard errors of 8 are .012 and less.
    assert all(result["balanced"] > 0.93 for result in results.values())
    assert all(len(result["seconds"]) == 8 for result in results.values())
    claim = recovery_time.claim_of(BREAST, results)
    assert claim.verdict == "does not"
    assert "4.5·10^14" in claim.claim
    blind = {stage: {**result, "balanced": 0.52} for stage, result in results.items()}
    assert recovery_time.claim_of(BREAST, blind).verdict == "reproduces"


def test_trained_weights_predict_and_first_ones_are_zero() -> None:
    table, weights = table_of(BREAST, 0), recovery_time.weights_at(BREAST, "trained weights")

    assert not recovery_time.weights_at(BREAST, "zero weights").any()
    assert ((table.test @ weights > 0) == (table.test_labels == 1)).double().mean() > 0.9
