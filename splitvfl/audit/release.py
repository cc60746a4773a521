"""A claim of (ε, δ) put to the test by draws of two worlds: of any release, hook or not."""

from __future__ import annotations

from splitvfl.audit.calculation import Calculated
from splitvfl.audit.defense import DRAWS
from splitvfl.audit.verdicts import ClaimAudit, Verdict
from splitvfl.errors import probability
from splitvfl.privacy.audit import Objective, measure
from splitvfl.privacy.audit.two_worlds import Draw
from splitvfl.privacy.gaussian_dp import gaussian_mu_epsilon


def audit_release(
    first: Draw,
    second: Draw,
    *,
    epsilon: float,
    delta: float = 0.0,
    draws: int = DRAWS,
    gaussian: bool = False,
    confidence: float = 0.95,
) -> ClaimAudit:
    """Return whether the draws of two neighbouring worlds refute that they are (ε, δ)-indistinguishable.

    Millions of draws need little memory. Counting cannot refute an ε beyond about ``ln(draws)``, at any δ; where the
    noise is Gaussian the two are as far apart as N(0, 1) and N(μ, 1), a bound of μ takes few draws, and ε(δ) follows
    from it. That one rests on the noise being Gaussian, and says so.

    Args:
        first: Draws so many messages of one world, as NumPy array.
        second: Likewise, of the other.
        epsilon: ε of the claim in nats, > 0.
        delta: δ of the claim, in [0, 1); above 0 with ``gaussian``.
        draws: Of each world; with ``gaussian`` as many again.
        gaussian: Whether the noise is Gaussian, with the same spread in both worlds.
        confidence: Share of audits in which a true claim is not called violated.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> audit_release(rng.standard_normal, lambda n: 3 + rng.standard_normal(n), epsilon=1.0, delta=0.01).verdict
    'violated'
    """
    each = 1.0 - (1.0 - probability("confidence", confidence)) / (2 if gaussian else 1)
    counted = measure(first, second, Objective("epsilon", delta), draws=draws, confidence=each)
    found = counted.bound
    why = [
        f"Measured: ε is at least {counted.bound:.3g} at δ = {delta:g}, by counting; so many draws can refute claims "
        f"up to {counted.ceiling:.3g}."
    ]
    calculated = None
    if gaussian:
        mu = measure(first, second, Objective("mu"), draws=draws, confidence=each)
        implied = gaussian_mu_epsilon(mu.bound, delta) if mu.bound > 0 else 0.0
        calculated = Calculated(implied, "from a measured μ, if the noise is Gaussian")
        found = max(found, implied)
        why.append(f"Measured: μ is at least {mu.bound:.3g}, so that ε is at least {implied:.3g} if noise is Gaussian.")
    verdict: Verdict = "violated" if found > epsilon else "not refuted"
    at = f" at δ {delta:g}" if delta else ""
    return ClaimAudit(
        f"Two neighbouring inputs are ({epsilon:g}, {delta:g})-indistinguishable.",
        f"ε{at}",
        epsilon,
        "",
        verdict,
        tuple(why),
        calculated,
        counted,
    )
