"""Versions of the rule for ids (:mod:`splitvfl.data.id_column`), which folders name."""

from __future__ import annotations

from typing import Final, Literal

RuleVersion = Literal[1, 2]
"""Versions of the rule that this version knows: a folder that names another one is refused."""

FIRST_RULE: Final[RuleVersion] = 1
"""The rule of folders that name none: UUIDs that are text are as they stand, and :mod:`splitvfl.data.old_ids`."""
ID_RULE: Final[RuleVersion] = 2
"""The rule of this version."""

SplitBy = Literal["labels", "ids"]
"""What divides the records of one process into training and test records: ids; labels, before folders named it."""
