"""What the papers prove of training with noise: bounds on noise, horizon of the sign attack, excess loss."""

from __future__ import annotations

import math

from splitvfl.errors import count, from_zero, positive, probability


def noise_norm_bound(*, sigma: float, batch_size: int, steps: int, delta: float, constant: float = 1.0) -> float:
    """Return the bound on the noise of all steps that DP-Paillier's lemma 6.3 states: ``√(k/s) σ``.

    With ``k = ln(2 T / δ) / c`` it holds in all T steps with probability at least 1 − δ. The paper never gives c.

    Args:
        sigma: σ of the noise, from 0.
        batch_size: s, records in a step.
        steps: T.
        delta: δ in (0, 1), the probability with which it may fail.
        constant: c, above 0.

    Raises:
        ArgumentError: If a number is out of its range.
    """
    k = math.log(2.0 * count("steps", steps) / probability("delta", delta)) / positive("constant", constant)
    return math.sqrt(k / count("batch_size", batch_size)) * from_zero("sigma", sigma)


def noisy_label_horizon(*, eta: float, noise: float, first_logit: float = 0.0) -> int:
    """Return for how many steps the signs of residues tell labels under noise: DP-Paillier's theorem 6.6.

    It is ``⌈log_{1 + η/4}((4u + 4) / (4u + 2 + ε))⌉``, for rows of norm 1 and the quadratic approximation of the loss.
    It is a guarantee of the attack: beyond it, signs may still tell labels.

    Args:
        eta: η, the learning rate, above 0.
        noise: u, the bound on the noise (:func:`noise_norm_bound`); 0 without noise.
        first_logit: ε, the largest absolute logit of the first weights; from 2 on the horizon is 0.

    Raises:
        ArgumentError: If a number is out of its range.
    """
    eta, noise, first = positive("eta", eta), from_zero("noise", noise), from_zero("first_logit", first_logit)
    if first >= 2.0:
        return 0
    return math.ceil(math.log((4 * noise + 4) / (4 * noise + 2 + first)) / math.log1p(eta / 4))


def hdp_excess_loss(
    *, beta: float, beta_theta: float, steps: int, k: float, distance: float, noise: tuple[float, float] = (0.0, 0.0)
) -> float:
    """Return the bound on the excess loss of the averaged weights that HDP-VFL's theorem 3 states.

    It is ``β/(2T) (‖w_0 − w*‖ + 2 Σ|e_t| / β)²`` with lemma 5's ``|e_t| ≤ β_θ (2k + B) + A``. The term of 2k alone
    makes it grow with T: for the logistic loss it is at least 2 T at k = 1, without any noise,
    where guessing loses ln 2.

    Args:
        beta: β, smoothness of the loss, above 0.
        beta_theta: β_θ, largest second derivative in the logit, from 0.
        steps: T.
        k: Bound on a party's part of a logit, from 0.
        distance: ``‖w_0 − w*‖``, from 0.
        noise: A and B, bounds on the noise of the label party and of the passive party, each from 0.

    Raises:
        ArgumentError: If a number is out of its range.
    """
    active, passive = (from_zero("noise", each) for each in noise)
    error = from_zero("beta_theta", beta_theta) * (2 * from_zero("k", k) + passive) + active
    taken = count("steps", steps)
    return positive("beta", beta) / (2 * taken) * (from_zero("distance", distance) + 2 * taken * error / beta) ** 2
