"""The demonstration: what gradients leak, what defenses cost, and what costs the label party little or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from splitvfl.app.experiment import Variant, variants
from splitvfl.config.sections import parse_config, parse_defenses

EXPERIMENTS = {
    "digits-mlp": """
data: {name: digits, digit: 8, scale: standard}
model: {name: mlp, bottom: [64, 32]}
train: {epochs: 15, batch_size: 128, optimizer: {name: adam, lr: 0.001}}
audit: {twin: true}
""",
    "digits-logistic-regression": """
data: {name: digits, digit: 8, scale: standard}
model: {name: logistic-regression}
train: {epochs: 15, batch_size: 128, optimizer: {name: adam, lr: 0.02}}
audit: {twin: true}
""",
    "breast-cancer-mlp": """
data: {name: breast-cancer, scale: standard}
model: {name: mlp, bottom: [64, 32]}
train: {epochs: 15, batch_size: 64, optimizer: {name: adam, lr: 0.001}}
audit: {twin: true}
""",
    "digits-to-convergence": """
data: {name: digits, digit: 8, scale: standard}
model: {name: mlp, bottom: [64, 32]}
train: {epochs: 40, batch_size: 128, optimizer: {name: adam, lr: 0.001}}
audit: {twin: true}
""",
}

_COMMON = """
parties:
  clinic: {role: active, columns: []}
  partner: {role: passive, columns: rest}
"""

# A detection error of one half is a blind attacker's; both sumKL defenses spend the least noise that promises .4
# against the attacker of their model, who does not know what is predicted of a record.
_AXIS = "axis-sumkl(detection_error=0.4)"
_IN_PAPERS = (f"none,isotropic,max-norm,sumkl(detection_error=0.4),{_AXIS}", ("attacks=[norm, direction, residual]",))
# What is recommended: answers that are drawn once per record, and a top of one's own that learns from the labels.
_RECOMMENDED = (
    "asymmetric-response(detection_error=0.4)",
    ("attacks=[norm, direction, residual]", "model.private_top=true"),
)
# A linear model has no second top: there the answers alone are what is recommended.
_ANSWERS = ("asymmetric-response(detection_error=0.4)", ("attacks=[norm, direction, residual]",))
# Nothing comes back, so there are no messages to attack and no coins to find; random features want to be many, and
# one layer on them a longer step.
_ONE_WAY = ("none", ("exchange=one-way", "model.bottom=[256, 128]", "train.optimizer.lr=0.03", "audit=true"))
_CONVERGED = (_AXIS, ("attacks=[norm, direction, residual, mixture]",))

_RUNS = {
    "digits-mlp": (_IN_PAPERS, _RECOMMENDED, _ONE_WAY),
    "digits-logistic-regression": (_IN_PAPERS, _ANSWERS),
    "breast-cancer-mlp": (_IN_PAPERS, _RECOMMENDED, _ONE_WAY),
    "digits-to-convergence": (_CONVERGED,),
}


# Of every run with --quick: enough to see that everything works, too few to compare.
QUICK_EPOCHS = 3


def demo_variants(folder: Path, *, quick: bool = False) -> dict[str, list[Variant]]:
    """Return the runs of the demonstration by experiment.

    Five defenses each, and the recommended one: of models with layers with a private top. Of these also a run to
    which nothing flows back, and one to convergence, in which noise along the gap of the class means is read.

    Args:
        folder: Where the runs go.
        quick: Three epochs in place of fifteen and forty: enough to see that everything works, too few to compare.
    """
    hurry = [f"train.epochs={QUICK_EPOCHS}"] if quick else []
    return {
        name: [
            variant
            for defenses, settings in _RUNS[name]
            for variant in _variants(name, defenses, [*settings, *hurry], folder / name)
        ]
        for name in EXPERIMENTS
    }


def _variants(name: str, defenses: str, settings: Sequence[str], folder: Path) -> Iterator[Variant]:
    config = parse_config(f"name: {name}{EXPERIMENTS[name]}{_COMMON}", source="demo", overrides=settings)
    for variant in variants(config, parse_defenses(defenses, folder=folder), 1, folder):
        exchange = config.exchange
        if exchange.factory.one_way:
            yield replace(variant, label=exchange.name, folder=folder / exchange.name / variant.folder.name)
        elif config.model.recipe.private_top:
            yield replace(variant, label=f"{variant.label}, private top")
        else:
            yield variant
