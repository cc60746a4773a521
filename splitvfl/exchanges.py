"""From the exchange section of an experiment to objects: the exchange, and the task with the loss that it can train."""

from __future__ import annotations

from functools import partial

from splitvfl.config import Approximation, EncryptionConfig, ExchangeConfig, OracleConfig, ResidueConfig, TaylorConfig
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.paillier import Encryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor
from splitvfl.models import approximate_loss
from splitvfl.tasks import Binary, Task, task_for


def exchange_of(section: ExchangeConfig, *, rows: int) -> Exchange:
    """Return the exchange that a section describes.

    Args:
        section: The section.
        rows: Largest batch.
    """
    if isinstance(section, OracleConfig):
        return Oracle(approximation=section.approximation)
    if isinstance(section, ResidueConfig):
        return Residue(rows=rows, encryption=_encryption(section.encryption), approximation=section.approximation)
    if isinstance(section, TaylorConfig):
        return Taylor(rows=rows, encryption=_encryption(section.encryption), loss=section.loss)
    return Split()


def task_of(section: ExchangeConfig, name: str, classes: int) -> Task:
    """Return the task, with the loss whose gradient the exchange computes."""
    approximation = _approximation(section)
    if name == "binary" and approximation != "exact":
        return Binary(record_loss=partial(approximate_loss, approximation=approximation))
    return task_for(name, classes)


def _approximation(section: ExchangeConfig) -> Approximation:
    if isinstance(section, TaylorConfig):
        return "taylor"
    return section.approximation if isinstance(section, OracleConfig | ResidueConfig) else "exact"


def _encryption(section: EncryptionConfig) -> Encryption:
    return Encryption(**section.model_dump())
