"""Short Paillier keys that are made once: their search, proof and tables would take a tenth of many encrypted runs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from splitvfl.crypto import owner
from splitvfl.crypto.key_generation import generate_keys
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.obfuscators import FixedBase
from splitvfl.exchange import paillier

# More than the parties and attempts of a test have, so that two that are compared have keys of their own.
_KEPT = 12

_kept: dict[int, deque[PrivateKey]] = defaultdict(deque)
_tables_of = cache(FixedBase)


@contextmanager
def few_short_keys() -> Iterator[None]:
    """Let exchanges of this process take one of few short keys, in turn, for the length of a block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paillier, "generate_keys", _next_key)
        patch.setattr(owner, "FixedBase", _tables_of)
        yield


def _next_key(bits: int, *, insecure_for_tests: bool) -> PrivateKey:
    if not insecure_for_tests:
        return generate_keys(bits)
    kept = _kept[bits]
    if len(kept) < _KEPT:
        kept.append(generate_keys(bits, insecure_for_tests=True))
    else:
        kept.rotate(-1)
    return kept[-1]
