"""What must be called violated, and what must not, in every seed; in twenty there are 220 audits of true claims."""

from __future__ import annotations

import pytest

from tests.audit.seeds import SEEDS
from tests.audit.test_audit_defense import BROKEN, TRUE, audited

# So few draws do for each of 20 seeds; an ε of 4 where 2 or 1 is claimed takes more.
FEW, MORE = 1_000, 3_000
OF_MORE = ("one draw for all rows", "a draw for each party", "E releases as one")


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_claims_are_called_violated_in_every_seed(broken: str) -> None:
    make, settings = BROKEN[broken]
    for seed in range(SEEDS):
        found = audited(make(), seed, draws=MORE if broken in OF_MORE else FEW, **settings)
        assert any(claim.verdict == "violated" and claim.why[-1].startswith("Measured: ") for claim in found.claims), (
            seed
        )


@pytest.mark.slow(reason="an audit of each true claim in every seed")
def test_at_most_five_percent_of_true_claims_are_called_violated() -> None:
    audits = [
        audited(make(), seed, draws=400, **settings).verdict
        for seed in range(SEEDS)
        for make, settings, _ in TRUE.values()
    ]
    assert len(audits) >= 10 * SEEDS
    assert audits.count("violated") <= 0.05 * len(audits)


@pytest.mark.parametrize("true", ["Mult at 10", "analytic Gaussian", "memoised response", "discrete sampler"])
def test_what_is_known_to_be_true_is_never_called_violated(true: str) -> None:
    make, settings, verdict = TRUE[true]
    found = {audited(make(), seed, draws=1_000, **settings).verdict for seed in range(SEEDS)}
    assert found == {verdict}
