"""One run, whole, put to the test: ``splitvfl audit --canaries``.

So many training records get a fair coin for a label, the experiment is trained as it is configured, and attacks guess
the coins from all messages of the run together. How many are right bounds the ε of the whole run from below. It needs
no theory of what crosses, and no defense that can be called by itself.

Source: Steinke, Nasr and Jagielski, *Privacy Auditing with One (1) Training Run*, NeurIPS 2023, arXiv:2305.08846.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from splitvfl.app.experiment import Experiment, Workbench
from splitvfl.audit import ClaimAudit, DefenseAudit, Verdict
from splitvfl.claims import Claim, GaussianDP, PureDP, sentence
from splitvfl.config.sections import ExperimentConfig
from splitvfl.privacy.audit import Direction, Measured, Objective, one_run_epsilon
from splitvfl.privacy.gaussian_dp import gaussian_mu_epsilon

DELTA: Final = 1e-5
"""δ at which a claim of μ is compared with the ε of a run."""

Scores = npt.NDArray[np.float64]
Coins = npt.NDArray[np.int64]

GUESSED: Final = (1.0, 0.25)
"""Shares of the canaries that are guessed, those of the largest scores: settled before anybody looks."""
_NAME = "one run, whole"


def audit_run(
    config: ExperimentConfig, bench: Workbench, claims: Sequence[Claim], *, canaries: int, confidence: float
) -> DefenseAudit:
    """Train once with canaries, and return what was found of the claims about the run's labels.

    Args:
        config: The experiment.
        bench: Its data.
        claims: Those of its defenses.
        canaries: Training records with a coin for a label.
        confidence: Share of audits in which no true claim is called violated.

    Raises:
        ConfigError: If nobody could look for canaries in this experiment, or there are too many.
    """
    trainer = Experiment(config.auditing(canaries=canaries), bench).trainer()
    trainer.fit(config.train.epochs)
    read = trainer.watch.canary_scores()
    if not read:
        why = "No attack read the coins here: they are of classes or numbers, or nothing that is read crosses."
        nothing = ClaimAudit("labels over the run", "", None, "", "not covered", (why,))
        return DefenseAudit(_NAME, "run", (nothing,), (f"{_NAME}: {why}",))
    return DefenseAudit(_NAME, "run", tuple(judge(read, claims, confidence=confidence)))


def judge(
    read: Mapping[str, tuple[Scores, Coins]], claims: Iterable[Claim], *, confidence: float
) -> Iterator[ClaimAudit]:
    """Yield what the canaries' scores say of each claim about labels over a run, and what they prove if there is none.

    Args:
        read: By attack the scores of all canaries, higher for label 1, and the coins.
        claims: All that is claimed.
        confidence: Share of audits in which no true claim is called violated.
    """
    promised = [claim for claim in dict.fromkeys(claims) if isinstance(claim, PureDP | GaussianDP) and _of_run(claim)]
    each = 1.0 - (1.0 - confidence) / (len(read) * len(GUESSED) * max(1, len(promised)))
    for claim in promised:
        pure = isinstance(claim, PureDP)
        limit = claim.epsilon if isinstance(claim, PureDP) else gaussian_mu_epsilon(claim.mu, DELTA)
        found = strongest(read, delta=0.0 if pure else DELTA, confidence=each)
        verdict: Verdict = "violated" if found.bound > limit else "not refuted"
        at = "" if pure else f" at δ = {DELTA:g}, of which the claim allows {limit:.3g}"
        yield ClaimAudit(
            sentence(claim.stated()),
            "ε" if pure else f"ε at δ {DELTA:g}",
            limit,
            "label of a record",
            verdict,
            (_words(found, at, limit=limit),),
            measured=found,
            per="run",
        )
    if not promised:
        found = strongest(read, delta=0.0, confidence=each)
        none = "Of labels over the whole run nothing is promised."
        yield ClaimAudit("labels over the run", "", None, "", "no claim", (none, _words(found)), measured=found)


def _of_run(claim: PureDP | GaussianDP) -> bool:
    return claim.per == "run" and claim.unit == "label of a record"


def _words(found: Measured, at: str = "", *, limit: float = -math.inf) -> str:
    event = found.event
    said = (
        f"Measured: {event.hits} of {event.draws} coins were guessed right ({found.statistic}), so that the ε of the "
        f"run is at least {found.bound:.3g}{at}; so many guesses can refute claims up to {found.ceiling:.3g}."
    )
    return said if limit <= found.ceiling else f"{said} This one is above that, and could not be refuted by guessing."


def strongest(read: Mapping[str, tuple[Scores, Coins]], *, delta: float, confidence: float) -> Measured:
    """Return what the attack proves that proves most.

    Args:
        read: By attack the scores of all canaries, higher for label 1, and the coins.
        delta: δ at which ε is bounded.
        confidence: Of each bound: what is left is wrong as often for every attack and share that is guessed.
    """
    found = []
    for attack, (scores, coins) in read.items():
        for share in GUESSED:
            right, guesses = _guessed(scores, coins, share)
            bounds = [
                one_run_epsilon(right=number, guesses=guesses, canaries=len(coins), delta=delta, confidence=confidence)
                for number in (right, guesses)
            ]
            event = Direction(right, guesses, 0, 0)
            found.append(Measured(Objective("epsilon", delta), bounds[0], bounds[1], event, attack, confidence))
    best = max(found, key=lambda each: (each.bound, each.event.hits / each.event.draws))
    # What so many guesses could have proven is the most that any share of them could.
    return replace(best, ceiling=max(each.ceiling for each in found))


def _guessed(scores: Scores, coins: Coins, share: float) -> tuple[int, int]:
    """Return how many coins were guessed right, and how many were guessed: those farthest from the middle score.

    Neither the middle nor the order knows a coin. A score in the middle is a guess like any other.
    """
    away = scores - np.median(scores)
    guesses = max(1, round(share * len(coins)))
    chosen = np.argsort(-np.abs(away), kind="stable")[:guesses]
    return int(np.count_nonzero((away[chosen] > 0) == (coins[chosen] > 0))), guesses
