"""One run judged as a whole: how many coins attacks guess, and what that proves of claims about the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import binom

from splitvfl.app.auditing import audit_experiment
from splitvfl.app.experiment import prepare
from splitvfl.app.run_auditing import DELTA, audit_run, judge
from splitvfl.claims import GaussianDP, PureDP
from splitvfl.config.sections import ExperimentConfig, load_config
from splitvfl.privacy import gaussian_mu_epsilon
from splitvfl.privacy.audit import one_run_epsilon


def config_of(folder: Path, *defenses: Any, **data: Any) -> ExperimentConfig:
    settings = {
        "data": {"name": "breast-cancer", **data},
        "parties": {"bank": {"role": "active", "columns": 0.4}, "lab": {"role": "passive", "columns": "rest"}},
        "model": "logistic-regression",
        "train": {"epochs": 2, "batch_size": 64},
        "defenses": list(defenses),
    }
    path = folder / "asked.yaml"
    path.write_text(yaml.safe_dump(settings))
    return load_config(path)


def read_of(right: int, wrong: int) -> Mapping[str, Any]:
    """Return scores of which so many have the sign of their coin, and so many the other; all as far from the middle."""
    n = right + wrong
    coins = np.arange(n) % 2
    signs = np.where(np.arange(n) < right, 1, -1) * (2 * coins - 1)
    assert signs.sum() == 0
    return {"attack": (signs * 1.0, coins)}


def test_what_is_proven_is_the_published_bound_of_the_right_guesses() -> None:
    (none,) = judge(read_of(120, 80), (), confidence=0.95)
    assert none.verdict == "no claim"
    assert none.measured is not None
    # Two numbers of guesses are tried, so that each may err half as often.
    known = [one_run_epsilon(right=r, guesses=n, canaries=200, confidence=0.975) for r, n in ((120, 200), (50, 50))]
    assert none.measured.bound == max(known)


def test_attacks_and_claims_share_what_may_err() -> None:
    """Three attacks, two shares of guesses, two claims: twelve bounds, whatever one attack reads of them."""
    scores, coins = read_of(120, 80)["attack"]
    claims = (PureDP(0.2, per="run"), PureDP(9.0, per="run"))
    for found in judge(dict.fromkeys("abc", (scores, coins)), claims, confidence=0.95):
        assert found.measured is not None
        assert found.measured.confidence == pytest.approx(1 - 0.05 / 12, abs=1e-9)
        known = [
            one_run_epsilon(right=r, guesses=n, canaries=200, confidence=1 - 0.05 / 12)
            for r, n in ((120, 200), (50, 50))
        ]
        assert found.measured.bound == pytest.approx(max(known), rel=1e-9)
        # 50 right guesses of 50 prove most here; 200 of 200 would have proven more.
        refutable = one_run_epsilon(right=200, guesses=200, canaries=200, confidence=1 - 0.05 / 12)
        assert found.measured.ceiling == pytest.approx(refutable, rel=1e-9)
        assert refutable > max(known)


def test_claims_about_a_run_are_compared_with_it_and_others_are_not() -> None:
    claims = (PureDP(0.2, per="run"), PureDP(9.0, per="run"), GaussianDP(0.1, per="run"), PureDP(0.01))
    small, large, mu = judge(read_of(200, 0), claims, confidence=0.95)
    assert (small.verdict, large.verdict, mu.verdict) == ("violated", "not refuted", "violated")
    assert (small.claimed, mu.claimed) == (0.2, gaussian_mu_epsilon(0.1, DELTA))
    assert mu.bound is not None
    assert small.bound is not None
    assert mu.bound < small.bound, "δ takes something from it"


def test_a_claim_beyond_what_guesses_could_refute_says_so() -> None:
    # 300 right guesses of 300 prove less than an ε of ln 300 = 5.7; a μ of 2 allows 10 at δ = 10⁻⁵.
    (weak,) = judge(read_of(300, 0), [GaussianDP(2.0, per="run")], confidence=0.95)
    assert weak.verdict == "not refuted"
    assert "could not be refuted by guessing" in weak.why[-1]
    (strong,) = judge(read_of(300, 0), [PureDP(0.5, per="run")], confidence=0.95)
    assert strong.verdict == "violated"
    assert "could not be refuted" not in strong.why[-1]


def test_scores_that_know_no_coin_seldom_prove_anything() -> None:
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(50):
        read = {name: (rng.standard_normal(100), rng.integers(0, 2, 100)) for name in "ab"}
        (found,) = judge(read, (), confidence=0.8)
        wrong += bool(found.bound)
    assert wrong <= binom.isf(1e-3, 50, 0.2)


def test_an_undefended_run_breaks_what_is_claimed_of_it(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    found = audit_run(config, prepare(config), (PureDP(0.5, per="run"),), canaries=60, confidence=0.95)
    assert found.verdict == "violated"
    assert "coins were guessed right" in found.claims[0].why[0]
    assert config.canaries is None, "the experiment itself is left as it is"


@pytest.mark.parametrize("canaries", [None, 40])
def test_the_run_is_judged_where_it_is_asked_for(tmp_path: Path, canaries: int | None) -> None:
    config = config_of(tmp_path, {"name": "memoised-response", "epsilon": 1.0})
    found = audit_experiment(config, draws=400, canaries=canaries)
    names = [each.defense for each in found.defenses]
    assert names == ["memoised-response", *([] if canaries is None else ["one run, whole"])]
    assert any("without --canaries" in gap for gap in found.gaps) == (canaries is None)
    assert found.defenses[0].claims[0].measured is not None
    assert found.defenses[0].claims[0].measured.confidence == (0.9875 if canaries is None else 0.99375)


@pytest.mark.parametrize(
    ("own_part", "claimed", "verdict"),
    [("sent", 2 * 1.5 / 2, "not refuted"), ("exact", None, "no claim")],
    ids=["releases add up", "exact residues tell more"],
)
def test_a_run_is_judged_by_what_its_releases_come_to(
    tmp_path: Path, own_part: str, claimed: float | None, verdict: str
) -> None:
    # A label moves a residue by half of what any two are apart, and costs half of their ε in each of two epochs.
    config = config_of(tmp_path, {"name": "laplace-residue", "epsilon": 1.5})
    exchange = config.exchange.model_copy(update={"own_part": own_part})
    found = audit_experiment(config.model_copy(update={"exchange": exchange}), draws=400, canaries=40)
    (run,) = (each for each in found.defenses if each.crossing == "run")
    (claim,) = run.claims
    assert (claim.claimed, claim.verdict) == (claimed, verdict)
    # The row and the note say the same.
    together = any("all messages of the run together are 1.5-differentially private" in note for note in found.notes)
    assert together == (claim.claim.startswith("All messages of the run together are 1.5-diff")) == (own_part == "sent")
