"""Finding one's own records by what another party asks for: digests of ids, in the form that ``align`` compares.

An id that is asked for does not cross as it is, but as SHA-256 of the number of the run and the id. That hides nothing
that can be guessed: whoever can list all ids finds out which one it was. It gives every id the same length, and no id
of a record that only one of the parties knows stands in a message or a log.

What is hashed is a whole number of 64 bits in decimal digits, and of any other id its 63-bit number
(:func:`splitvfl.data.hashing.text_ids`), which is all that ingested tables keep of it. Where an earlier version of the
rule for ids (:mod:`splitvfl.data.id_column`) hashed something else, records are found by both, and noise is drawn by
what that version hashed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.data.hashing import text_ids
from splitvfl.data.id_column import Case, first_repeat, normalised, whole_number
from splitvfl.data.id_rules import FIRST_RULE, ID_RULE, RuleVersion
from splitvfl.data.tables import Rows
from splitvfl.errors import DataError

ID_BYTES = 32

Digests = npt.NDArray[np.uint8]

_PREFIX = b"splitvfl.serve.1\0"
# Numbers of 19 digits that 64 bits do not hold among them.
_FIRST_WHOLE = re.compile(r"-?[1-9][0-9]{0,18}|0")


def asked_digests(names: Iterable[str], *, run: str) -> Digests:
    """Return what is sent in the place of ids, ``(n, 32)`` uint8.

    Args:
        names: Ids, as :func:`splitvfl.data.id_column.normalised` writes them.
        run: Number of the run that the parties' halves are of: digests of two runs cannot be compared.
    """
    return _digests((_form(name) for name in names), run)


def _form(name: str, rule: RuleVersion = ID_RULE) -> bytes:
    whole = _FIRST_WHOLE.fullmatch(name) if rule == FIRST_RULE else whole_number(name) is not None
    return b"i" + name.encode() if whole else b"t%d" % text_ids([name])[0]


def _digests(forms: Iterable[bytes], run: str) -> Digests:
    begun = hashlib.sha256(_PREFIX + run.encode() + b"\0")
    digests = bytearray()
    for form in forms:
        one = begun.copy()
        one.update(form)
        digests += one.digest()
    return np.frombuffer(bytes(digests), np.uint8).reshape(-1, ID_BYTES)


class RecordIndex:
    """Where the records of a party are, by the digests of their ids.

    Takes 72 bytes a digest.

    Args:
        digests: ``(k·n, 32)`` uint8: n records, each k times; those of two records differ.
        records: Number of records, n. Default: as many as digests.

    Attributes:
        own: One digest for each record, always the same whatever it is asked for by, ``(n, 32)`` uint8.
    """

    def __init__(self, digests: Digests, *, records: int | None = None) -> None:
        self.own = digests if records is None else digests[:records]
        words = _words(digests)
        order = np.argsort(words[:, 0], kind="stable")
        self._words = words[order]
        self._places = order if records is None else order % records

    @classmethod
    def of(cls, names: pa.Array, *, run: str, case: Case, source: str, rule: RuleVersion = ID_RULE) -> RecordIndex:
        """Return the index of records that have these names: whole numbers or text.

        Args:
            names: What the records are called.
            run: Number of the run.
            case: Whether letter case counts.
            source: What to call the names in messages.
            rule: Version of the rule by which noise was drawn before.

        Raises:
            DataError: If an id is empty, or there twice once it is written as it is compared.
        """
        written = [normalised(str(name), case) for name in names.to_pylist()]
        if "" in written:
            raise DataError(f"{source}, row {written.index('')} (from 0): there is no id")
        digests = asked_digests(written, run=run)
        repeat = first_repeat(digests)
        if repeat is not None:
            first, second = repeat
            raise DataError(
                f"{source}: rows {first} and {second} (from 0) have the same id, {written[first]!r}, once blanks and "
                "letter case count as agreed; ids must differ"
            )
        before = [normalised(str(name), case, rule=rule) for name in names.to_pylist()]
        own = _digests((_form(name, rule) for name in before), run)
        return cls(own) if np.array_equal(own, digests) else cls(np.concatenate([own, digests]), records=len(own))

    @classmethod
    def of_numbers(cls, ids: Rows, *, run: str) -> RecordIndex:
        """Return the index of records that have these numbers, which may stand for text: they are found either way."""
        numbers = ids.tolist()
        forms = [b"%b%d" % (kind, number) for kind in (b"i", b"t") for number in numbers]
        return cls(_digests(forms, run), records=len(numbers))

    def find(self, asked: Digests) -> Rows:
        """Return the place of each record that is asked for, from 0, and −1 where there is none; ``(m,)`` int64."""
        words = _words(asked)
        found = np.full(len(words), -1, np.int64)
        places = np.searchsorted(self._words[:, 0], words[:, 0])
        pending = np.arange(len(words))
        while pending.size:  # once around, unless two digests begin with the same 8 bytes
            pending = pending[places[pending] < len(self._words)]
            pending = pending[self._words[places[pending], 0] == words[pending, 0]]
            equal = (self._words[places[pending]] == words[pending]).all(axis=1)
            found[pending[equal]] = self._places[places[pending[equal]]]
            pending = pending[~equal]
            places[pending] += 1
        return found


def _words(digests: Digests) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(digests).view("<u8")
