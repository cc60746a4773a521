"""Data sets in which the partner's representation matters, their bottoms, and what columns tell without labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from sklearn.utils.extmath import randomized_svd
from torch import Tensor, nn
from torch.nn import functional

from scripts.reproduce.label_leakage.study import held_out
from scripts.reproduce.shared.settings import Settings, data_folder
from splitvfl.data.clicks import Clicks, write_clicks
from splitvfl.data.columns import Columns, PartyData, Records, VerticalData
from splitvfl.data.load import load
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.models import MLP, WideDeepBottom
from splitvfl.models.wide_deep import FieldTable

PARTNER = "partner"
WIDTH = 32
"""Width of the cut."""

COMPONENTS = 64
"""Components of the partner's columns that a label-free bottom sends."""

_SIDE = 28
_OWN_ROWS = 8
_PATCH = 6
_WIDE = 512


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A data set at the scale at which it is searched.

    Attributes:
        key: Short name.
        title: Name for people.
        kind: ``"table"``, of :func:`splitvfl.data.load.load`, or ``"images"``.
        arguments: ``file`` in the data folder, or number of ``clicks`` that are generated; ``train``, ``test``: so many
            records at most; others of the loader.
        batch_size: Records in a step.
        points: Numbers of epochs, of which each channel has its best, rising.
        canaries: Training records with coin-toss labels.
    """

    key: str
    title: str = ""
    kind: str = "table"
    arguments: Mapping[str, Any]
    batch_size: int = 512
    points: Sequence[int] = (2, 4, 8)
    canaries: int = 800

    def as_settings(self) -> dict[str, Any]:
        """Return what a job needs to know of it: JSON values."""
        return {
            "key": self.key,
            "kind": self.kind,
            "arguments": dict(self.arguments),
            "batch_size": self.batch_size,
            "points": list(self.points),
            "canaries": self.canaries,
        }


def problems(settings: Settings) -> list[Problem]:
    """Return the data sets that are at hand; what is missing is said, and left out."""
    if settings.quick:
        return [_QUICK]
    folder = data_folder()
    found = []
    for problem in _PROBLEMS:
        name = problem.arguments.get("file")
        if name is None or (folder / name).is_file():
            found.append(problem)
        else:
            settings.leave_out(problem.title, folder / name)
    return found


_PROBLEMS = (
    Problem(
        key="criteo-10k",
        title="Criteo, first 10k: 13 counts at the label party, 26 categories at the partner",
        arguments={"file": "criteo_head_10k.parquet"},
    ),
    Problem(
        key="mnist",
        title="MNIST, odd or even, 5000 images: the upper 8 rows at the label party, the lower 20 at the partner",
        kind="images",
        arguments={"file": "mnist.npz", "train": 5000, "test": 4000},
        batch_size=256,
        points=(3, 6, 12),
        canaries=500,
    ),
    Problem(
        key="clicks-25k",
        title="generated clicks, 25 000: 13 counts at the label party, 26 categories at the partner",
        arguments={"clicks": 25_000, "min_count": 5},
        points=(1, 2, 4),
        canaries=1600,
    ),
)

_QUICK = Problem(
    key="clicks-quick",
    title="generated clicks, 1500",
    arguments={"clicks": 1500, "min_count": 5},
    batch_size=400,
    points=(1,),
    canaries=100,
)


def data_of(problem: Problem, seed: int, *, validation: bool) -> VerticalData:
    """Return the data, divided with a seed: a fifth to test on (images: as many as were asked for).

    Of a table of which fewer training records are wanted, they are drawn with the seed.

    Args:
        problem: The data set.
        seed: Of the split.
        validation: A tenth of the training records stands in the place of the test records.
    """
    return _divided(json.dumps(problem.as_settings()), seed, validation)


@lru_cache(maxsize=2)
def _divided(settings: str, seed: int, validation: bool) -> VerticalData:
    problem = Problem(**json.loads(settings))
    data = _images(problem, seed) if problem.kind == "images" else _table(problem, seed)
    return held_out(data, seed) if validation else data


def _table(problem: Problem, seed: int) -> VerticalData:
    arguments = dict(problem.arguments)
    wanted, rows, file = (arguments.pop(name, None) for name in ("train", "clicks", "file"))
    arguments |= {"active": "I*", "passive": {PARTNER: "rest"}, "categorical": "index"}
    arguments |= {"test_fraction": 0.2, "split_seed": seed}
    if rows is None:
        data = load("criteo", path=data_folder() / file, **arguments)
    else:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "clicks.parquet"
            write_clicks(path, Clicks(rows))
            data = load("criteo", path=path, drop=["id"], **arguments)
    if wanted is None:
        return data
    order = torch.randperm(data.active.train.count, generator=torch.Generator().manual_seed(derive_seed(seed, "few")))
    kept = order[:wanted].sort().values

    def cut(party: PartyData) -> PartyData:
        return replace(party, train=party.train.rows(kept))

    return replace(data, active=cut(data.active), passives={PARTNER: cut(data[PARTNER])})


def _images(problem: Problem, seed: int) -> VerticalData:
    arguments = problem.arguments
    pictures, labels = _mnist(str(data_folder() / arguments["file"]))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(derive_seed(seed, "images")))
    train, test = order[: arguments["train"]], order[arguments["train"] :][: arguments["test"]]
    mean, deviation = pictures[train].mean(), pictures[train].std()

    def party(name: str, rows: slice, *, labelled: bool) -> PartyData:
        def part(index: Tensor) -> Records:
            pixels = (pictures[index][:, rows].flatten(1) - mean) / deviation
            return Records(index, Columns.of(pixels), labels[index] if labelled else None)

        names = tuple(f"pixel {number}" for number in range(_SIDE * _SIDE)[rows.start * _SIDE : rows.stop * _SIDE])
        return PartyData(name, names, names, (), part(train), part(test))

    active = party("active", slice(0, _OWN_ROWS), labelled=True)
    return VerticalData(
        name="mnist",
        task="binary",
        classes=2,
        active=active,
        passives={PARTNER: party(PARTNER, slice(_OWN_ROWS, _SIDE), labelled=False)},
        description="handwritten digits: odd?",
    )


@lru_cache(maxsize=1)
def _mnist(path: str) -> tuple[Tensor, Tensor]:
    with np.load(Path(path)) as parts:
        pictures = np.concatenate([parts["x_train"], parts["x_test"]])
        digits = np.concatenate([parts["y_train"], parts["y_test"]])
    return torch.from_numpy(pictures).float() / 255.0, torch.from_numpy(digits % 2).float()


class Convolutions(nn.Module):
    """A small convolutional bottom for rows of pixels: two strided convolutions and a linear layer, with ReLU.

    Args:
        width: Width of the activation.
    """

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 5, stride=2)
        self.second = nn.Conv2d(8, 16, 3, stride=2)
        self.last = nn.LazyLinear(width)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the activation, ``(n, width)``, of pixels ``(n, 28 r)``."""
        maps = functional.relu(self.first(pixels.unflatten(1, (1, -1, _SIDE))))
        maps = functional.relu(self.second(maps))
        return functional.relu(self.last(maps.flatten(1)))


def bottom_of(problem: Problem, partner: PartyData, seed: int) -> nn.Module:
    """Return the partner's bottom as it is initialised."""
    with PartyRandom(derive_seed(seed, "initialisation", PARTNER)):
        if problem.kind == "images":
            bottom = Convolutions()
            bottom(partner.train.columns.numeric[:1])
            return bottom
        return WideDeepBottom(partner.width, partner.field_sizes, embedding_dim=8, widths=(64, WIDTH))


class RandomLayers(nn.Module):
    """Random layers of 256 and 128 over random vectors of categories, or over numbers: never trained.

    Args:
        partner: Whose columns they are for.
    """

    def __init__(self, partner: PartyData) -> None:
        super().__init__()
        sizes = partner.field_sizes
        self.vectors = FieldTable(sizes, 8, sparse=False, initialise=nn.init.normal_) if sizes else None
        self.layers = MLP(partner.width + 8 * len(sizes), (256, 128))

    def forward(self, columns: Columns) -> Tensor:
        """Return the activations, ``(n, 128)``."""
        parts = [columns.numeric]
        if self.vectors is not None:
            parts.append(self.vectors(columns.categorical).flatten(1))
        activations: Tensor = self.layers(torch.cat(parts, dim=1))
        return activations


class Free(NamedTuple):
    """What is computed of columns without labels, ``(n, d)``.

    Attributes:
        train: Of the training records.
        test: Of the test records.
    """

    train: Tensor
    test: Tensor


def random_layers(partner: PartyData, seed: int) -> Free:
    """Return the activations of random layers."""
    with PartyRandom(derive_seed(seed, "random layers")), torch.no_grad():
        layers = RandomLayers(partner)
        return _standard(layers(partner.train.columns), layers(partner.test.columns))


@lru_cache(maxsize=8)
def components(partner: PartyData, seed: int, count: int = COMPONENTS) -> Free:
    """Return the principal components of numbers, or of categories as zeros and ones over the root of their share.

    The first of categories is constant: what is left of it is rounding, a feature of noise.
    """
    train, test = (_indicators(partner, part.columns) for part in (partner.train, partner.test))
    count = min(count, train.shape[1] - 1)
    if sparse.issparse(train):
        shares = np.maximum(np.asarray(train.mean(axis=0)).reshape(-1), 1.0 / train.shape[0])
        scale = sparse.diags_array(1.0 / np.sqrt(shares))
        train, test = train @ scale, test @ scale
    else:
        middle = train.mean(axis=0)
        train, test = train - middle, test - middle
    directions = randomized_svd(train, count, random_state=seed)[2].T
    return _standard(torch.from_numpy(train @ directions), torch.from_numpy(test @ directions))


def wide_features(partner: PartyData, seed: int) -> Free:
    """Return 512 features: categories with random signs in 512 buckets, or images under patches of themselves.

    Source: count sketches of categories, Weinberger et al., ICML 2009; patches as filters, Coates and Ng, ICML 2011.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "wide features"))
    if not partner.field_sizes:
        return _patch_features(partner, generator)
    count = sum(partner.field_sizes)
    bucket = torch.randint(_WIDE, (count,), generator=generator).numpy()
    sign = (torch.randint(2, (count,), generator=generator) * 2 - 1).numpy()
    into = sparse.csr_array((sign.astype(np.float32), (np.arange(count), bucket)), shape=(count, _WIDE))
    found = [_indicators(partner, part.columns) @ into for part in (partner.train, partner.test)]
    return _standard(*(torch.from_numpy(one.toarray()) for one in found))


def _patch_features(partner: PartyData, generator: torch.Generator) -> Free:
    train, test = (part.columns.numeric.unflatten(1, (1, -1, _SIDE)) for part in (partner.train, partner.test))
    filters = _WIDE // 8
    height = train.shape[2]
    picked = torch.randint(len(train), (filters,), generator=generator)
    tops = torch.randint(height - _PATCH, (filters,), generator=generator)
    lefts = torch.randint(4, _SIDE - _PATCH - 4, (filters,), generator=generator)
    patches = torch.stack(
        [train[i, :, t : t + _PATCH, s : s + _PATCH] for i, t, s in zip(picked, tops, lefts, strict=True)]
    )
    patches = patches - patches.mean(dim=(1, 2, 3), keepdim=True)
    patches = patches / torch.linalg.vector_norm(patches, dim=(1, 2, 3), keepdim=True).clamp(min=1e-3)

    def features(images: Tensor) -> Tensor:
        found = [
            functional.adaptive_avg_pool2d(functional.relu(functional.conv2d(part, patches) - 1.0), (2, 4)).flatten(1)
            for part in images.split(1000)
        ]
        return torch.cat(found)

    return _standard(features(train), features(test))


def _indicators(partner: PartyData, columns: Columns) -> npt.NDArray[np.float32] | sparse.csr_array:
    if not partner.field_sizes:
        numbers: npt.NDArray[np.float32] = columns.numeric.numpy()
        return numbers
    codes = columns.categorical.long()
    offsets = torch.tensor([0, *partner.field_sizes[:-1]]).cumsum(0)
    places = (codes + offsets).reshape(-1).numpy()
    rows = np.repeat(np.arange(len(codes)), codes.shape[1])
    ones = np.ones(places.size, dtype=np.float32)
    return sparse.csr_array((ones, (rows, places)), shape=(len(codes), sum(partner.field_sizes)))


def _standard(train: Tensor, test: Tensor) -> Free:
    train, test = train.float(), test.float()
    middle, deviation = train.mean(dim=0), train.std(dim=0)
    # A feature that is nearly constant would become noise.
    scale = torch.where(deviation > 1e-6, 1.0 / deviation.clamp(min=1e-6), 0.0)
    return Free((train - middle) * scale, (test - middle) * scale)
