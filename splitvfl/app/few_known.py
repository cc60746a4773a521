"""Which readers of columns will know too few records of a message, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import scipy

from splitvfl.hooks import Attack, hook_name, known_share_of, reads_activations
from splitvfl.leakage.column_reading import FEWEST
from splitvfl.report.rows import counted

# So large a share of messages that are left out is worth a line.
_TOLD_FROM: Final = 0.05


def said_of_few_known(attacks: Iterable[Attack], *, records: int, batch_size: int) -> Iterator[str]:
    """Yield of each reader that leaves messages out how many, in sentences.

    Args:
        attacks: All that will run.
        records: How many training records there are.
        batch_size: How many of them a message has.
    """
    for attack in attacks:
        if not reads_activations(attack) or not hasattr(attack, "known_share"):
            continue
        share, name = known_share_of(attack), hook_name(attack)
        known = round(share * records)
        left_out = (
            1.0 if min(known, batch_size) < FEWEST else float(scipy.stats.binom.cdf(FEWEST - 1, batch_size, share))
        )
        if left_out > _TOLD_FROM:
            yield (
                f"{name} knows {counted(known, 'record')} of {records:,}; of messages of {batch_size:,} about "
                f"{left_out:.0%} will have fewer than {FEWEST} of these and be left out: raise its known_share, or "
                "train.batch_size"
            )
