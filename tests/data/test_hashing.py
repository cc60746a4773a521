from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.data.hashing import (
    are_tested,
    bucket_codes,
    fingerprints,
    hash_key,
    key_name,
    mix64,
    text_buffers,
    text_ids,
)
from splitvfl.errors import ArgumentError

MASK = (1 << 64) - 1


def slow_mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def test_mix_is_splitmix64() -> None:
    # The first outputs of splitmix64.c (Vigna) from state 1234567, as published with the Rosetta Code task.
    state, outputs = 1234567, []
    for _ in range(5):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        outputs.append(int(mix64(np.array([state], np.uint64))[0]))

    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
def test_the_split_follows_its_formula_and_nothing_but_id_and_seed(ids: list[int], seed: int) -> None:
    limit = int(0.3 * 2**64)

    tested = are_tested(np.array(ids, np.int64), seed=seed, fraction=0.3)

    offset = slow_mix((seed + 0x9E3779B97F4A7C15) & MASK)
    assert tested.tolist() == [slow_mix((number + offset) & MASK) < limit for number in ids]


def test_shares_of_the_split_are_as_asked_for_and_seeds_independent() -> None:
    ids = np.arange(100_000)

    first, second = (are_tested(ids, seed=seed, fraction=0.1) for seed in (0, 1))

    # Standard errors of a share of 0.1 and of 0.01 among 100 000 are 0.00095 and 0.00031: four of each.
    assert first.mean() == pytest.approx(0.1, abs=0.004)
    assert (first & second).mean() == pytest.approx(0.01, abs=0.0013)


def test_text_ids_are_63_bits_of_blake2b() -> None:
    digest = hashlib.blake2b("Zoë".encode(), digest_size=8, person=b"splitvfl.record").digest()

    assert text_ids(["Zoë"]).tolist() == [int.from_bytes(digest, "little") & (2**63 - 1)]
    # Written down once: ids must be the same in every version.
    assert text_ids(["a", ""]).tolist() == [1256654420139104663, 905266523215910534]


def test_bucket_codes_are_stable_keyed_and_different_by_column() -> None:
    values = [f"v{number}" for number in range(2000)]
    public = hash_key(None)

    codes = bucket_codes(values, column="C1", key=public, buckets=50)
    others = bucket_codes(values, column="C2", key=public, buckets=50)
    secret = bucket_codes(values, column="C1", key=hash_key(b"sixteen bytes or more"), buckets=50)

    assert codes[:4].tolist() == [40, 40, 44, 33]  # written down once: a trained model depends on them
    assert codes.min() == 1
    assert codes.max() == 50
    for other in (others, secret):
        # Independent codes agree in 2000 / 50 = 40 places, give or take 6: five standard deviations.
        assert abs(int((codes == other).sum()) - 40) < 32
    # Under uniform codes, chi² has mean 49 and standard deviation 10.
    assert ((np.bincount(codes, minlength=51)[1:] - 40) ** 2 / 40).sum() < 100


def test_the_name_of_a_key_tells_keys_apart_and_is_not_the_key() -> None:
    key = hash_key(b"0123456789abcdef")

    assert key_name(key) != key_name(hash_key(None))
    assert key_name(key) not in key.hex()


def test_a_key_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ArgumentError, match="16 bytes at least, got 6"):
        hash_key(b"secret")


@given(st.lists(st.text(max_size=40), min_size=1, max_size=30, unique=True), st.integers(0, 3))
def test_fingerprints_tell_texts_apart_wherever_they_stand(texts: list[str], seed: int) -> None:
    words = fingerprints(pa.array(texts), seed)

    # 64 bits: two of 30 agree with a chance of 2e-17.
    assert len(set(words.tolist())) == len(texts)
    moved = fingerprints(pa.array(["x", None, "yy", *texts]).slice(3), seed)
    assert moved.tolist() == words.tolist()


def test_fingerprints_of_numbers_tell_them_apart() -> None:
    numbers = pa.array([0, 1, -1, 2**63 - 1, -(2**63)])

    assert len(set(fingerprints(numbers, 0).tolist())) == 5
    assert len(set(fingerprints(pa.array([0.0, 1.0, -1.0, 0.5]), 0).tolist())) == 4


def test_text_buffers_are_those_of_a_slice() -> None:
    offsets, data = text_buffers(pa.array(["ab", "", "cde", "f"]).slice(1, 2))

    assert offsets.tolist() == [0, 0, 3]
    assert data.tobytes() == b"cde"
    assert text_buffers(pa.array([], pa.string()))[0].tolist() == [0]
