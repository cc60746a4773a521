"""What an attacker is assumed to know: the labels of a few records, which the judge hands over and judges nobody by."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError

KNOWN = 10
"""Records of each class that an attacker is assumed to know, for attacks that need some, unless one says otherwise."""

GRANTED = frozenset({"known_positives", "known_negatives", "known_records", "known_values", "classes"})
"""View fields that the judge fills: side knowledge, which is no message."""


def check_known(positives: int, negatives: int) -> None:
    """Raise :class:`ArgumentError` if an attacker would know less than 0 records of a class."""
    for field, count in (("known_positives", positives), ("known_negatives", negatives)):
        if count < 0:
            raise ArgumentError(f"{field} must be at least 0, got {count}")


def knowledge_for(
    classes: int | None, needs: frozenset[str], *, known_positives: int | None, known_negatives: int | None
) -> Knowledge:
    """Return what an attack is told, which needs these view fields.

    Args:
        classes: Number of classes; ``None`` of a regression.
        needs: Of the attack.
        known_positives: How many records of label 1 it knows, or, of k classes, of every class. Default: every other
            one that is met, up to :data:`KNOWN`.
        known_negatives: How many of label 0; of a regression it knows as many as both together.
    """
    check_known(known_positives or 0, known_negatives or 0)
    if classes == 2:
        return TwoClasses(needs, known_positives, known_negatives)
    # Who needs known records of two classes needs them of all.
    wanted = bool(needs & (GRANTED - {"classes"}))
    if classes is None:
        both = None if known_positives is None or known_negatives is None else known_positives + known_negatives
        return Numbers(both, wanted=wanted)
    return ManyClasses(classes, known_positives, wanted=wanted)


class Knowledge(ABC):
    """Records that an attacker knows the labels of: the first ones met, the same ones for the whole run."""

    @abstractmethod
    def meet(self, ids: Tensor, labels: Tensor) -> None:
        """Take records out of a batch, while any are wanted; a label of NaN is not to be told."""

    @abstractmethod
    def granted(self) -> Mapping[str, Any]:
        """Return the view fields to add."""

    @property
    @abstractmethod
    def told(self) -> list[Tensor]:
        """Ids of the records that are known."""

    @property
    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Number of records that are known, by view field; empty if none are needed."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return the records that were met."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        """Take back what :meth:`state_dict` returned."""


class TwoClasses(Knowledge):
    """Known positives and known negatives, of those two that an attack needs."""

    def __init__(self, needs: frozenset[str], positives: int | None, negatives: int | None) -> None:
        grants = {"known_positives": _Grant(1, positives), "known_negatives": _Grant(0, negatives)}
        self._grants = {field: grant for field, grant in grants.items() if field in needs}

    def meet(self, ids: Tensor, labels: Tensor) -> None:
        """Take records of either class."""
        for grant in self._grants.values():
            grant.meet(ids, labels)

    def granted(self) -> Mapping[str, Any]:
        """Return their ids."""
        return {field: grant.ids for field, grant in self._grants.items()}

    @property
    def told(self) -> list[Tensor]:
        """Ids of the records that are known."""
        return [grant.ids for grant in self._grants.values()]

    @property
    def counts(self) -> dict[str, int]:
        """Number of records by view field."""
        return {field: grant.ids.numel() for field, grant in self._grants.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the records that were met."""
        return {field: grant.state() for field, grant in self._grants.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        for field, grant in self._grants.items():
            grant.met = state[field].tolist()


class ManyClasses(Knowledge):
    """Known records of every class.

    Args:
        classes: k.
        each: How many of each. Default: every other one that is met, up to :data:`KNOWN`.
        wanted: Whether the attack needs any.
    """

    def __init__(self, classes: int, each: int | None, *, wanted: bool) -> None:
        self._classes = classes
        self._grants = [_Grant(label, each) for label in range(classes)] if wanted else []

    def meet(self, ids: Tensor, labels: Tensor) -> None:
        """Take records of every class."""
        for grant in self._grants:
            grant.meet(ids, labels)

    def granted(self) -> Mapping[str, Any]:
        """Return the number of classes, the records and their labels."""
        if not self._grants:
            return {"classes": self._classes}
        told = self.told
        labels = [torch.full_like(ids, label) for label, ids in enumerate(told)]
        return {"classes": self._classes, "known_records": torch.cat(told), "known_values": torch.cat(labels)}

    @property
    def told(self) -> list[Tensor]:
        """Ids of the records that are known, by class."""
        return [grant.ids for grant in self._grants]

    @property
    def counts(self) -> dict[str, int]:
        """Number of records."""
        return {"known_records": sum(ids.numel() for ids in self.told)} if self._grants else {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the records that were met."""
        return {str(label): grant.state() for label, grant in enumerate(self._grants)}

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        for label, grant in enumerate(self._grants):
            grant.met = state[str(label)].tolist()


class Numbers(Knowledge):
    """Known records of a regression, whatever their labels.

    Args:
        most: How many. Default: every other one that is met, up to twice :data:`KNOWN`.
        wanted: Whether the attack needs any.
    """

    def __init__(self, most: int | None, *, wanted: bool) -> None:
        self._every = 2 if most is None else 1
        self._most = 4 * KNOWN - 1 if most is None else most
        self._wanted = wanted
        self._met: dict[int, float] = {}

    def meet(self, ids: Tensor, labels: Tensor) -> None:
        """Take records of any label."""
        if not self._wanted or len(self._met) >= self._most:
            return
        for record, label in zip(ids.tolist(), labels.reshape(-1).double().tolist(), strict=True):
            if len(self._met) < self._most and not math.isnan(label):
                self._met.setdefault(record, label)

    def _known(self) -> dict[int, float]:
        return dict(sorted(list(self._met.items())[:: self._every]))

    def granted(self) -> Mapping[str, Any]:
        """Return that there are no classes, the records and their labels."""
        found: dict[str, Any] = {"classes": None}
        if self._wanted:
            known = self._known()
            labels = torch.tensor(list(known.values()), dtype=torch.float64)
            found |= {"known_records": torch.tensor(list(known), dtype=torch.int64), "known_values": labels}
        return found

    @property
    def told(self) -> list[Tensor]:
        """Ids of the records that are known."""
        return [torch.tensor(list(self._known()), dtype=torch.int64)] if self._wanted else []

    @property
    def counts(self) -> dict[str, int]:
        """Number of records."""
        return {"known_records": len(self._known())} if self._wanted else {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the records that were met."""
        return {
            "records": torch.tensor(list(self._met), dtype=torch.int64),
            "labels": torch.tensor(list(self._met.values()), dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._met = dict(zip(state["records"].tolist(), state["labels"].tolist(), strict=True))


class _Grant:
    """Records of one class: the first ones met, the same ones for the whole run.

    Unless it is said how many, it is every other one that is met, up to :data:`KNOWN`: however few there are, about as
    many are left to be judged by.
    """

    def __init__(self, label: int, wanted: int | None) -> None:
        self.met: list[int] = []
        self._label = label
        self._every = 2 if wanted is None else 1
        # The last one that is granted is the last one that has to be remembered.
        self._most = 2 * KNOWN - 1 if wanted is None else wanted

    @property
    def ids(self) -> Tensor:
        """The records that are known, in order of their ids."""
        return torch.tensor(sorted(self.met[:: self._every]), dtype=torch.int64)

    def meet(self, ids: Tensor, labels: Tensor) -> None:
        """Take records of this class out of a batch, while any are wanted."""
        if len(self.met) < self._most:
            members = ids[labels.reshape(-1).to(ids.device) == self._label].tolist()
            self.met = list(dict.fromkeys([*self.met, *members]))[: self._most]

    def state(self) -> Tensor:
        """Return the records that were met."""
        return torch.tensor(self.met, dtype=torch.int64)
