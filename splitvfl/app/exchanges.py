"""From the exchange section of an experiment to objects: the exchange, and the task with the loss that it can train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from splitvfl.app.noise import NoisePlan
from splitvfl.config.sections import (
    Approximation,
    CoordinatorConfig,
    EncryptionConfig,
    ExchangeConfig,
    OneWayConfig,
    OracleConfig,
    ResidueConfig,
    SplitConfig,
    TaylorConfig,
)
from splitvfl.crypto.engine import Engine
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.one_way import OneWay
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.paillier import Encryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.roll_call import UNSIGNED, Vouching
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor
from splitvfl.learning.tasks import Binary, Task, task_for
from splitvfl.models import approximate_loss


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the exchange of a section is made, and what is known of it from the section alone.

    Attributes:
        make: Called with the section, the largest batch, the noise, and how keys are vouched for.
        sums_only: See :func:`sums_only`.
        hides_parts: See :func:`hides_parts`.
        approximation: The sigmoid's; ``None``: the section says.
        one_way: See :func:`one_way`.
    """

    make: Callable[[Any, int, NoisePlan | None, Vouching], Exchange]
    sums_only: bool
    hides_parts: bool
    approximation: Approximation | None
    one_way: bool = False


def _one_way(section: OneWayConfig, rows: int, noise: NoisePlan | None, vouching: Vouching) -> Exchange:
    return OneWay(memory_mib=section.memory_mib, disk_mib=section.disk_mib)


def _residue(section: ResidueConfig, rows: int, noise: NoisePlan | None, vouching: Vouching) -> Exchange:
    return Residue(
        rows=rows,
        encryption=_encryption(section.encryption),
        approximation=section.approximation,
        engine=_engine(section),
    )


def _taylor(section: TaylorConfig, rows: int, noise: NoisePlan | None, vouching: Vouching) -> Exchange:
    loss = noise is None if section.loss is None else section.loss
    return Taylor(
        rows=rows,
        encryption=_encryption(section.encryption, noise),
        loss=loss,
        engine=_engine(section),
        vouching=vouching,
    )


def _coordinator(section: CoordinatorConfig, rows: int, noise: NoisePlan | None, vouching: Vouching) -> Exchange:
    return Coordinator(
        rows=rows, encryption=_encryption(section.encryption), engine=_engine(section), vouching=vouching
    )


_KINDS: Mapping[type, _Kind] = {
    SplitConfig: _Kind(lambda section, rows, noise, vouching: Split(), False, False, "exact"),
    OneWayConfig: _Kind(_one_way, False, False, "exact", one_way=True),
    OracleConfig: _Kind(
        lambda section, rows, noise, vouching: Oracle(approximation=section.approximation), True, False, None
    ),
    ResidueConfig: _Kind(_residue, sums_only=True, hides_parts=False, approximation=None),
    TaylorConfig: _Kind(_taylor, sums_only=True, hides_parts=True, approximation="taylor"),
    CoordinatorConfig: _Kind(_coordinator, sums_only=True, hides_parts=True, approximation="taylor"),
}


def _kind_of(section: ExchangeConfig) -> _Kind:
    # By its very type: a section that is derived from another describes another exchange.
    kind = _KINDS.get(type(section))
    if kind is None:
        raise ConfigError(
            f"exchange {section.name}: nobody knows how its steps are taken; expected a section of "
            f"{', '.join(known.__name__ for known in _KINDS)}, got {type(section).__name__}"
        )
    return kind


def exchange_of(
    section: ExchangeConfig, *, rows: int, noise: NoisePlan | None = None, vouching: Vouching = UNSIGNED
) -> Exchange:
    """Return the exchange that a section describes.

    Args:
        section: The section.
        rows: Largest batch.
        noise: What is added before encryption.
        vouching: Over a network: how the party proves that its keys are its own, and whose it takes.

    Raises:
        ConfigError: If no exchange belongs to such a section, here and below.
    """
    return _kind_of(section).make(section, rows, noise, vouching)


def sums_only(section: ExchangeConfig) -> bool:
    """Return whether a passive party learns no gradient per record under the exchange of a section."""
    return _kind_of(section).sums_only


def one_way(section: ExchangeConfig) -> bool:
    """Return whether a passive party gets nothing back under the exchange of a section."""
    return _kind_of(section).one_way


def hides_parts(section: ExchangeConfig) -> bool:
    """Return whether a passive party's part of the logits stays hidden among the others', in scores too."""
    return _kind_of(section).hides_parts


def task_of(section: ExchangeConfig, name: str, classes: int) -> Task:
    """Return the task, with the loss whose gradient the exchange computes.

    Raises:
        ConfigError: If the exchange is for binary labels and these are others.
    """
    if name != "binary" and sums_only(section):
        raise ConfigError(
            f"exchange {section.name} trains logistic regression, on labels 0 and 1; this is a {name} task: take "
            "exchange split for it"
        )
    approximation = approximation_of(section)
    if name == "binary" and approximation != "exact":
        return Binary(record_loss=partial(approximate_loss, approximation=approximation))
    return task_for(name, classes)


def approximation_of(section: ExchangeConfig) -> Approximation:
    """Return the sigmoid's approximation of an exchange."""
    fixed = _kind_of(section).approximation
    if fixed is not None:
        return fixed
    chosen: Approximation = section.approximation  # type: ignore[union-attr]  # those that choose have it
    return chosen


def _encryption(section: EncryptionConfig, noise: NoisePlan | None = None) -> Encryption:
    chosen = section.model_dump(exclude_none=True)
    if noise is not None and section.value_limit is None:
        chosen["value_limit"] = noise.value_limit
    return Encryption(**chosen)


def _engine(section: ResidueConfig | TaylorConfig | CoordinatorConfig) -> Callable[[], Engine]:
    return partial(Engine, processes=section.processes, stock=section.stock)
