"""From the exchange section of an experiment to objects: the exchange, and the task with the loss that it can train."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from splitvfl.config import (
    Approximation,
    CoordinatorConfig,
    EncryptionConfig,
    ExchangeConfig,
    OracleConfig,
    ResidueConfig,
    SplitConfig,
    TaylorConfig,
)
from splitvfl.crypto.engine import Engine
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.paillier import Encryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor
from splitvfl.models import approximate_loss
from splitvfl.noise import NoisePlan
from splitvfl.tasks import Binary, Task, task_for


def exchange_of(section: ExchangeConfig, *, rows: int, noise: NoisePlan | None = None) -> Exchange:
    """Return the exchange that a section describes.

    Args:
        section: The section.
        rows: Largest batch.
        noise: What is added before encryption.
    """
    if isinstance(section, OracleConfig):
        return Oracle(approximation=section.approximation)
    if isinstance(section, ResidueConfig):
        return Residue(
            rows=rows,
            encryption=_encryption(section.encryption),
            approximation=section.approximation,
            engine=_engine(section),
        )
    if isinstance(section, TaylorConfig):
        loss = noise is None if section.loss is None else section.loss
        return Taylor(rows=rows, encryption=_encryption(section.encryption, noise), loss=loss, engine=_engine(section))
    if isinstance(section, CoordinatorConfig):
        return Coordinator(rows=rows, encryption=_encryption(section.encryption), engine=_engine(section))
    return Split()


def sums_only(section: ExchangeConfig) -> bool:
    """Return whether a passive party learns no gradient per record under the exchange of a section."""
    return not isinstance(section, SplitConfig)


def hides_parts(section: ExchangeConfig) -> bool:
    """Return whether a passive party's part of the logits stays hidden among the others', in scores too."""
    return isinstance(section, TaylorConfig | CoordinatorConfig)


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
    if isinstance(section, TaylorConfig | CoordinatorConfig):
        return "taylor"
    return section.approximation if isinstance(section, OracleConfig | ResidueConfig) else "exact"


def _encryption(section: EncryptionConfig, noise: NoisePlan | None = None) -> Encryption:
    chosen = section.model_dump(exclude_none=True)
    if noise is not None and section.value_limit is None:
        chosen["value_limit"] = noise.value_limit
    return Encryption(**chosen)


def _engine(section: ResidueConfig | TaylorConfig | CoordinatorConfig) -> Callable[[], Engine]:
    return partial(Engine, processes=section.processes, stock=section.stock)
