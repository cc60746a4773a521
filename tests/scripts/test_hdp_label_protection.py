"""Labels protected in five ways: the fast training against the package's run, and attacks against their ceilings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import norm

from scripts.reproduce.hdp_vfl.label_protection import Duel, Outcome, above_ceilings, duels
from scripts.reproduce.hdp_vfl.label_runs import (
    DELTA,
    EPSILONS,
    KINDS,
    RADII,
    Kind,
    Plan,
    Protection,
    Rows,
    attacked,
    descend,
)
from scripts.reproduce.hdp_vfl.study import BREAST, Party, table_of
from scripts.reproduce.residue_protection.beyond_outcomes import Compared
from splitvfl.defenses import GaussianTargets, LaplaceResidue, MemoisedResponse
from splitvfl.exchange.noise import SumNoiseSettings
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.sum_noise import SumNoise
from splitvfl.privacy import gaussian_delta
from tests.exchange.logistic import RATE, RECORDS, SHORT, trainer_of, weights_of

EACH = 4
SIZE = RECORDS // EACH


def test_noise_on_sums_trains_as_the_exchange_does() -> None:
    """Two epochs from weights of zero, the same order and the same noise: equal up to float32 and fixed point."""
    sigma, bits = 2.0, SHORT.value_bits + SHORT.feature_bits
    settings = SumNoiseSettings(epsilon=1.0, delta=1e-5, sigma=sigma)
    exchange = Residue(rows=SIZE, encryption=SHORT, own_part="sent", sum_noise=settings)
    trainer = trainer_of(exchange, {"lab": 4}, approximation="exact", batch=SIZE, drop_last=True, audit=False, seed=3)
    for party in (trainer.active.top, trainer.passives["lab"].bottom):
        for weight in party.parameters():
            torch.nn.init.zeros_(weight)
    key = trainer._sides["bank"]._noise.key  # type: ignore[attr-defined]
    trainer.fit(2)

    noise = SumNoise(key, sigma)

    def on_sums(step: int, columns: int, trainings: int) -> torch.Tensor:
        own = noise.on_own(torch.zeros(4, dtype=torch.float64), step)
        lab = torch.tensor(noise.on_integers("lab", step, 4, bits=bits), dtype=torch.float64) / 2.0**bits
        return (torch.cat([own, lab]) / sigma).float().unsqueeze(1).expand(columns, trainings)

    bank, lab = (party.data.train for party in (trainer.active, trainer.passives["lab"]))
    assert bank.labels is not None
    own = torch.cat([bank.columns.numeric, torch.ones(RECORDS, 1)], dim=1)
    rows = Rows(Party(own, own), Party(lab.columns.numeric, lab.columns.numeric), bank.labels, bank.labels)
    plan = Plan(epochs=2, batches=EACH, rate=RATE)
    weights = descend(
        rows, "sums", [(plan, sigma)], seed=3, generator=torch.Generator().manual_seed(0), on_sums=on_sums
    )[:, 0]
    found = weights_of(trainer)
    torch.testing.assert_close(weights, torch.cat([found["bank"], found["lab"]]), rtol=0, atol=2e-6)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_scales_of_noise_are_those_of_the_package(epsilon: float) -> None:
    plan = Plan(epochs=10, batches=10, rate=1.0)
    assert Protection("memoised", epsilon).scale(plan, 1000) == pytest.approx(MemoisedResponse(epsilon=epsilon).flip)
    one = GaussianTargets(epsilon=epsilon, delta=DELTA)
    assert Protection("targets", epsilon).scale(plan, 1000) == pytest.approx(one.sigma, rel=1e-6)
    # Ten releases, each with an ε of a label of a tenth, which is half of that of a residue.
    each = LaplaceResidue(epsilon=2 * epsilon / 10)
    assert each.label_epsilon == pytest.approx(epsilon / 10)
    assert Protection("add", epsilon).scale(plan, 1000) == pytest.approx(2 / each.epsilon)
    sigma = Protection("sums", epsilon).scale(plan, 1000)
    assert gaussian_delta(sigma, epsilon, sensitivity=math.sqrt(30)) == pytest.approx(DELTA, rel=1e-4)
    within = plan._replace(radius=RADII[0])
    # At the least a label moves its own derivative in each of ten epochs.
    assert Protection("hdp", epsilon).scale(within, 1000) >= sigma / math.sqrt(3) * (1 - 1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_attacks_read_nearly_as_much_as_is_allowed_and_no_more(kind: Kind) -> None:
    """Of remembered targets and memoised answers exactly the ceiling; of others what their law says."""
    rows = Rows.of(table_of(BREAST, 0))
    protection = Protection(kind, 2.0)
    plan = Plan(epochs=5, batches=1, rate=1.0, radius=1.0 if kind == "hdp" else math.inf)
    scale = protection.scale(plan, len(rows.labels))
    found = attacked(rows, protection, plan, scale, seed=1)
    share, coins = found["right"] / found["coins"], found["coins"]
    assert coins >= 1_000
    # Four standard errors.
    error = 4 * 0.5 / math.sqrt(coins)
    assert share < protection.ceiling + error
    if kind in ("memoised", "targets", "fresh targets"):
        assert share > protection.ceiling - error
    if kind == "hdp":
        assert share == pytest.approx(norm.cdf(math.sqrt(5) / (2 * scale)), abs=error)
    if kind == "sums":
        lengths = torch.cat([rows.active.train, rows.passive.train], dim=1).double().norm(dim=1)
        expected = norm.cdf(math.sqrt(5) * lengths.numpy() / (2 * scale)).mean()
        assert share == pytest.approx(expected, abs=error)
        assert found["alone"] / coins < share + error


def outcome(kind: Kind, auc: list[float], right: float = 50.0) -> Outcome:
    cells = [{"auc": value, "right": right, "coins": 100.0} for value in auc]
    return Outcome(Protection(kind, 1.0), cells)


def test_who_wins_is_decided_by_paired_intervals_for_all_comparisons() -> None:
    close, far = [0.70, 0.71, 0.70, 0.71, 0.705], [0.60, 0.61, 0.60, 0.61, 0.605]
    own = {(kind, epsilon): outcome(kind, far) for kind in KINDS for epsilon in EPSILONS}
    own |= {("sums", epsilon): outcome("sums", close) for epsilon in EPSILONS}
    own |= {("memoised", 1.0): outcome("memoised", [0.71, 0.69, 0.72, 0.70, 0.7])}
    words = {(duel.epsilon, duel.other): duel.words for duel in duels({BREAST: own})}
    assert words[1.0, "memoised"] == "alike"
    assert {word for key, word in words.items() if key != (1.0, "memoised")} == {"wins"}
    assert Duel(BREAST, 1.0, "add", Compared(-0.2, (-0.3, -0.1))).words == "loses"


def test_an_attack_above_its_ceiling_is_named() -> None:
    own: dict[tuple[Kind, float], Outcome] = {}
    own |= {("targets", 1.0): outcome("targets", [0.7] * 5), ("add", 1.0): outcome("add", [0.7] * 5, right=99.0)}
    tried, above = above_ceilings({replace(BREAST, rows=7): own})
    assert tried == 2
    assert [one.protection.kind for one in above] == ["add"]
