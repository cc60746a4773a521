"""The demonstration: what messages leak without a defense, what breaks defenses of the papers, and what protects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from splitvfl.app.experiment import Variant, variants
from splitvfl.config.sections import parse_config, parse_defenses
from splitvfl.report.summary import RunSummary

NAME = "digits"

EXPERIMENT = f"""
name: {NAME}
data: {{name: digits, digit: 8, scale: standard}}
parties:
  clinic: {{role: active, columns: []}}
  partner: {{role: passive, columns: rest}}
model: {{name: mlp, bottom: [64, 32]}}
train: {{epochs: 8, batch_size: 128, optimizer: {{name: adam, lr: 0.001}}}}
audit: {{twin: true}}
attacks: [norm, direction, residual]
"""

# A detection error of one half is a guessing attacker's; both sumKL defenses add the least noise that bounds it by 0.4
# for an attacker of their model, who does not know what is predicted of a record.
_OF_PAPERS = "none,sumkl(detection_error=0.4),axis-sumkl(detection_error=0.4)"
# Labels that are randomised once per record, and a top of one's own that learns from the true ones.
_RECOMMENDED = "asymmetric-response(detection_error=0.4)"
# Nothing comes back, so there are no messages to attack and no canaries; random features want to be many, and one
# layer on them a longer step.
_ONE_WAY = ("exchange=one-way", "model.bottom=[256, 128]", "train.optimizer.lr=0.03", "audit=true", "attacks=[]")

# Of every run with --quick: enough to see that everything works, too few to compare.
QUICK_EPOCHS = 3


def demo_variants(folder: Path, *, quick: bool = False) -> list[Variant]:
    """Return the runs of the demonstration: without a defense, with some of the papers, and what is recommended.

    Args:
        folder: Where the runs go.
        quick: Three epochs in place of eight: enough to see that everything works, too few to compare.
    """
    hurry = [f"train.epochs={QUICK_EPOCHS}"] if quick else []
    return [
        *_variants(_OF_PAPERS, hurry, folder),
        *_variants(_RECOMMENDED, [*hurry, "model.private_top=true"], folder),
        *_variants("none", [*hurry, *_ONE_WAY], folder),
    ]


def _variants(defenses: str, settings: Sequence[str], folder: Path) -> Iterator[Variant]:
    config = parse_config(EXPERIMENT, source="demo", overrides=settings)
    for variant in variants(config, parse_defenses(defenses, folder=folder), 1, folder):
        exchange = config.exchange
        if exchange.factory.one_way:
            yield replace(variant, label=exchange.name, folder=folder / exchange.name / variant.folder.name)
        elif config.model.recipe.private_top:
            yield replace(variant, label=f"{variant.label}, private top")
        else:
            yield variant


def lesson(runs: Sequence[RunSummary]) -> list[str]:
    """Return what the demonstration shows, in five lines with its own figures.

    Args:
        runs: Its runs, in their order.
    """
    plain, *papers, recommended, one_way = (_Shown.of(run) for run in runs)
    broken = ", ".join(f"{one.name} {one.excess}" for one in papers)
    return [
        f"1. No defense: the partner infers single labels (excess {plain.excess}; guessing 0.50).",
        f"2. Hiding single messages is not enough: excess {broken}.",
        f"3. Randomised labels are guaranteed: AUC at most {recommended.bound}, whatever the attack.",
        f"4. One-way: no message depends on labels. Test AUC {one_way.test} (3: {recommended.test}; 1: {plain.test}).",
        f"5. No defense hides what a partner knows alone: {plain.alone}, with others' labels {plain.taught}.",
    ]


class _Shown(NamedTuple):
    """Figures of a run as the lesson writes them."""

    name: str
    test: str
    excess: str
    bound: str
    alone: str
    taught: str

    @classmethod
    def of(cls, run: RunSummary) -> Self:
        (verdict,) = [one.labels for one in run.verdict.values()]
        assert verdict is not None
        excess, bound, baseline = verdict.excess, verdict.guarantee, verdict.baseline

        def shown(value: float | None, digits: int = 2) -> str:
            return "not measured" if value is None else f"{value:.{digits}f}"

        return cls(
            run.label.partition("(")[0],
            shown(run.test_metric, 3),
            shown(None if excess is None else excess.value),
            shown(None if bound is None else bound.auc),
            shown(None if baseline is None else baseline.without_labels),
            shown(None if baseline is None else baseline.with_labels),
        )
