"""The demonstration: what gradients leak, what five defenses cost, and by which attacker each has to be judged."""

from __future__ import annotations

from pathlib import Path

from splitvfl.config import parse_config, parse_defenses
from splitvfl.experiment import Variant, variants

EXPERIMENTS = {
    "digits-mlp": """
data: {name: digits, digit: 8, scale: standard}
model: {name: mlp, bottom: [64, 32]}
train: {epochs: 15, batch_size: 128, optimizer: {name: adam, lr: 0.001}}
""",
    "digits-logistic-regression": """
data: {name: digits, digit: 8, scale: standard}
model: {name: logistic-regression}
train: {epochs: 15, batch_size: 128, optimizer: {name: adam, lr: 0.02}}
""",
    "breast-cancer-mlp": """
data: {name: breast-cancer, scale: standard}
model: {name: mlp, bottom: [64, 32]}
train: {epochs: 15, batch_size: 64, optimizer: {name: adam, lr: 0.001}}
""",
    "breast-cancer-logistic-regression": """
data: {name: breast-cancer, scale: standard}
model: {name: logistic-regression}
train: {epochs: 15, batch_size: 64, optimizer: {name: adam, lr: 0.02}}
""",
}

_COMMON = """
parties:
  clinic: {role: active, columns: []}
  partner: {role: passive, columns: rest}
attacks: [norm, direction, residual]
"""

# A detection error of one half is a blind attacker's; both sumKL defenses spend the least noise that promises .4
# against the attacker of their model, who does not know what is predicted of a record.
_DEFENSES = "none,isotropic,max-norm,sumkl(detection_error=0.4),axis-sumkl(detection_error=0.4)"


def demo_variants(folder: Path, *, quick: bool = False) -> dict[str, list[Variant]]:
    """Return the runs of the demonstration by experiment: five defenses each.

    Args:
        folder: Where the runs go.
        quick: Three epochs instead of fifteen: enough to see that everything works, too few to compare defenses.
    """
    overrides = ["train.epochs=3"] if quick else []
    found = {}
    for name, text in EXPERIMENTS.items():
        config = parse_config(f"name: {name}{text}{_COMMON}", source="demo", overrides=overrides)
        found[name] = variants(config, parse_defenses(_DEFENSES, folder=folder), 1, folder / name)
    return found
