"""On average no attack on messages is better than the auditor's total by more than .01: the project's, and others.

Three attacks are this file's own, so that the auditor is also tried on some that it was not built against. None of them
knows a label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.nn import functional

from splitvfl import attacks as known_attacks
from splitvfl.attacks import ReadoutAttack
from splitvfl.cut.split_model import SplitModel
from splitvfl.defenses import AsymmetricResponse, AxisGaussian, AxisSumKL, Isotropic, MaxNorm, MemoisedResponse, SumKL
from splitvfl.hooks import Attack, View, moment_of, needs_of, target_of
from splitvfl.leakage.auditing import Audit
from splitvfl.learning.randomness import PartyRandom
from splitvfl.metrics import leak_auc, oriented

EPOCHS = 6
SEEDS = (0, 1)
# Where attacks and auditor read all, there is no chance to average over.
ALL_IS_READ = ("none", "max-norm", "sumkl")
SHOWN = {"gradient", "activation", "columns", "weights", "known_positives", "known_negatives"}


class Histories:
    """Keeps each record's readouts, projections and norms: what the attacks of this file are made of."""

    name: ClassVar[str] = "histories"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "activation"})

    def __init__(self) -> None:
        self.line = ReadoutAttack()
        self.direction: Tensor | None = None
        self.rows: dict[int, list[tuple[float, float, float]]] = {}

    def __call__(self, view: View, /) -> Tensor:
        readout = self.line(view)
        direction = self.line.state_dict()["direction"]
        along = view.gradient.double() @ direction
        unit = along.square().mean().sqrt().clamp(min=1e-300)
        lengths = torch.linalg.vector_norm(view.gradient.double(), dim=1) * len(along)
        for number, *values in zip(
            view.ids.tolist(), readout.tolist(), (along / unit).tolist(), lengths.tolist(), strict=True
        ):
            self.rows.setdefault(number, []).append(tuple(values))
        return readout

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        """Readouts, projections and norms, each ``(records, epochs)``."""
        table = np.array([self.rows[number] for number in sorted(self.rows)])
        return table[..., 0], table[..., 1], table[..., 2]


def standard(values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return (values - values.mean()) / max(float(values.std()), 1e-300)


def regression_on_the_prediction(readouts, along, norms):  # type: ignore[no-untyped-def]
    """What the late messages hold that one's own prediction does not explain, beside that prediction."""
    late, guess = -along[:, -3:].mean(axis=1), standard(readouts[:, -3:].mean(axis=1))
    design = np.stack([np.ones_like(guess), guess, np.tanh(guess), guess**2], axis=1)
    left = late - design @ np.linalg.lstsq(design, late, rcond=None)[0]
    return standard(left) + guess


def two_clusters_of_histories(readouts, along, norms):  # type: ignore[no-untyped-def]
    numbers = [
        -along.mean(axis=1),
        -along[:, -3:].mean(axis=1),
        readouts[:, -3:].mean(axis=1),
        np.log(norms + 1e-12).mean(axis=1),
    ]
    found = KMeans(2, n_init=3, random_state=0).fit(np.stack([standard(one) for one in numbers], axis=1))
    far = found.transform(np.stack([standard(one) for one in numbers], axis=1))
    return far[:, 0] - far[:, 1]


def growth_of_norms(readouts, along, norms):  # type: ignore[no-untyped-def]
    """Late norms over early ones, with the sign of the messages' median: what a model does not learn stays long."""
    growth = standard(np.log(norms[:, -3:].mean(axis=1) + 1e-12) - np.log(norms[:, :3].mean(axis=1) + 1e-12))
    return growth - 2 * standard(np.median(along, axis=1)) + standard(readouts.mean(axis=1))


UNSEEN = (regression_on_the_prediction, two_clusters_of_histories, growth_of_norms)


def every_attack() -> list[Attack]:
    """All attacks on labels in this package that watch steps, and read messages: columns alone are no message."""
    made = [
        getattr(known_attacks, name)() for name in known_attacks.__all__ if name.endswith("Attack") and name not in NOT
    ]
    return [one for one in made if needs_of(one) <= SHOWN and {"gradient"} & needs_of(one)]


# They know a mechanism of residues, at cuts of width 1 (tests/attacks/test_noise_llr.py).
OF_RESIDUES = {"AdditiveLLRAttack", "MultiplicativeLLRAttack", "SecretBatchLikelihoodAttack"}
# They solve linear exchanges, or act on scores or after training.
NOT = OF_RESIDUES | {
    name
    for name in known_attacks.__all__
    if name.endswith("Attack")
    and (target_of(getattr(known_attacks, name)) != "labels" or moment_of(getattr(known_attacks, name)) != "every-step")
}


def breast_cancer() -> tuple[Tensor, Tensor]:
    columns, malignant = load_breast_cancer(return_X_y=True)
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    return torch.tensor(columns[:350], dtype=torch.float32), torch.tensor(1 - malignant[:350], dtype=torch.float32)


def made_up() -> tuple[Tensor, Tensor]:
    """Records of which columns tell little: an AUC of .8 at best."""
    random = torch.Generator().manual_seed(5)
    columns = torch.randn(400, 8, generator=random)
    odds = 1.2 * columns[:, :4].sum(dim=1) / 2 - 0.8
    return columns, (torch.rand(400, generator=random) < torch.sigmoid(odds)).float()


def attacked(data: tuple[Tensor, Tensor], defense: object, seed: int) -> tuple[Audit, dict[str, float]]:
    """Train, and return the auditor and the worst AUC of every attack."""
    columns, labels = data
    with PartyRandom(seed):
        bottom = nn.Sequential(nn.Linear(columns.shape[1], 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        model = SplitModel(bottom, nn.Linear(16, 1))
        order = [torch.randperm(len(labels)) for _ in range(EPOCHS)]
    if defense is not None:
        model.defend(defense, noise_seed_for_experiments=seed)  # type: ignore[arg-type]
    audit, histories = model.cut.audit(), Histories()
    leaks = [model.cut.watch(attack) for attack in every_attack()]
    model.cut.watch(histories)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for rows in (part for epoch in order for part in epoch.split(50)):
        truth = labels[rows]
        outputs = model(columns[rows], labels=truth, ids=rows).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(outputs, model.targets(truth, ids=rows))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    found = {leak.name: leak.summary.worst for leak in leaks}
    for attack in UNSEEN:
        scores = torch.from_numpy(attack(*histories.arrays()))  # type: ignore[no-untyped-call]
        found[attack.__name__] = oriented(leak_auc(scores, labels))
    return audit, found


DEFENSES: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "isotropic": lambda: Isotropic(ratio=10.0),
    "max-norm": MaxNorm,
    "sumkl": lambda: SumKL(detection_error=0.4),
    "axis-sumkl": lambda: AxisSumKL(detection_error=0.4),
    "axis-gaussian": lambda: AxisGaussian(detection_error=0.4),
    "memoised-response": lambda: MemoisedResponse(flip=0.3),
    "asymmetric-response": lambda: AsymmetricResponse(detection_error=0.3),
}


@pytest.mark.slow(reason="every attack beside the auditor, in two seeds")
@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, made_up) for name in DEFENSES),
        *((name, breast_cancer) for name in ("axis-gaussian", "asymmetric-response")),
    ],
)
def test_no_attack_on_messages_beats_the_total(name: str, make: Callable[[], tuple[Tensor, Tensor]]) -> None:
    seeds = SEEDS[:1] if name in ALL_IS_READ else SEEDS
    runs = [attacked(make(), DEFENSES[name](), seed) for seed in seeds]
    total = float(np.mean([audit.total for audit, _ in runs]))
    for attack in runs[0][1]:
        reached = float(np.nanmean([found[attack] for _, found in runs]))
        assert reached <= total + 0.01, f"{attack}: {reached:.3f}, the auditor's total {total:.3f}"
    for audit, _ in runs:
        assert audit.total >= audit.worst
        # Out of fold a fit loses a little; that it knows the prediction it must not lose.
        assert audit.total > audit.prediction_auc - 0.015
