"""Why what was tried is no better, in sentences with their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scripts.reproduce.better_defense.search_plan import (
    ASYMMETRIC,
    CHECKED,
    CROSS_FITTED,
    FEW_COINS,
    LIKELIHOOD,
    NEIGHBOURS,
    NOISY,
    NOISY_WIDE,
    POSTERIOR,
    RIDGE,
    RIDGE_WIDE,
    ROUNDS,
    SIDED,
    UNDEFENDED,
    WARM,
    WIDE_HEADS,
)
from scripts.reproduce.better_defense.search_rows import Found, Row
from scripts.reproduce.shared.claims import mean, shown, signed


def reasons(found: Sequence[Found]) -> str:
    """Return a list of what was found of each kind of channel, and why."""
    beside = "by the private top, mean over strengths and seeds"
    return "\n".join(
        f"- {line}"
        for line in (
            "**The likelihood loss and the warm start** use the same answers. Against asymmetric answers of one L, "
            f"{beside}: {_each(found, _ahead(LIKELIHOOD, ASYMMETRIC))} and {_each(found, _ahead(WARM, ASYMMETRIC))}.",
            "**Answers on the likelier side** have less variance only where the teacher is sure, who takes "
            "a part of the promise. Against asymmetric answers with the same bound on the AUC: "
            f"{_each(found, _ahead(SIDED, ASYMMETRIC))}; with the posterior as target "
            f"{_each(found, _ahead(POSTERIOR, ASYMMETRIC))}.",
            "**Noisy teachers** keep a strong promise, and tell nothing that the label party does not know: their "
            "opinions are a regression on what crossed without any message. Against that regression alone, without "
            f"noise and with nothing sent back: {_each(found, _ahead(NOISY, RIDGE))} in one round, "
            f"{_each(found, _ahead(ROUNDS, RIDGE))} in three; with 512 features "
            f"{_each(found, _ahead(NOISY_WIDE, RIDGE_WIDE))}.",
            "**Cross-fitted opinions** are the same without noise and without a promise. Against the regression alone: "
            f"{_each(found, _ahead(CROSS_FITTED, RIDGE))}. The auditor reads "
            f"{_each(found, _audited(CROSS_FITTED))} at most, who takes the folds' sums from the targets reads "
            f"{_each(found, _informed(CROSS_FITTED))}.",
            "**Neighbours' labels** show best that no target of its own is no promise: the auditor reads "
            f"{_each(found, _audited(NEIGHBOURS))} at most, who solves the equations "
            f"{_each(found, _informed(NEIGHBOURS))}.",
            "**Sending 512 label-free features once** costs no label at all, and shows the label party more of the "
            "columns than a cut of 32 does. Its better head, linear or with a hidden layer, or the regression, against "
            f"the undefended model: {_each(found, _wide)}.",
            "**The coins** cost rows with messages what rows without do not pay. With "
            f"{FEW_COINS} of them, at the middle strength: {'; '.join(_coins(found, name) for name in CHECKED)}.",
        )
    )


def _each(found: Sequence[Found], figure: Callable[[Found], str]) -> str:
    return ", ".join(f"{figure(one)} ({one.problem.key})" for one in found)


def _level(rows: Sequence[Row]) -> float:
    return mean(mean(row.private) for row in rows)


def _ahead(one: str, other: str) -> Callable[[Found], str]:
    return lambda found: signed(_level(found.of(one)) - _level(found.of(other)))


def _audited(channel: str) -> Callable[[Found], str]:
    return lambda found: shown(max(row.reading.auc for row in found.of(channel)))


def _informed(channel: str) -> Callable[[Found], str]:
    def figure(found: Found) -> str:
        read = [row.informed for row in found.of(channel)]
        return shown(read[0]) if len(read) == 1 else f"{shown(min(read))} to {shown(max(read))}"

    return figure


def _coins(found: Sequence[Found], channel: str) -> str:
    return f"{channel} {_each(found, lambda one: signed(one.cost_of_coins(channel)))}"


def _wide(found: Found) -> str:
    best = max(_level(found.of(name)) for name in (*WIDE_HEADS, RIDGE_WIDE))
    return signed(best - _level(found.of(UNDEFENDED)))
