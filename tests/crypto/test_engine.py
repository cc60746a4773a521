"""A party's engine: what it makes computes right, shares its processes, and ends them."""

from __future__ import annotations

import os

import pytest
import torch

from splitvfl.crypto.engine import Engine
from splitvfl.crypto.paillier import generate_keys
from splitvfl.crypto.pools import Pool
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import ArgumentError, WorkerError

KEY = generate_keys(512, insecure_for_tests=True)
LAYOUT = ProductLayout(key_bits=512, rows=8, outputs=3, value_limit=4.0, weight_limit=8.0)


@pytest.mark.parametrize(("processes", "stock"), [(0, 0), (1, 0), (0, 4), (1, 16)])
def test_sums_are_right_whatever_the_machinery(processes: int, stock: int) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(8, generator=generator, dtype=torch.float64)
    weights = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    with Engine(processes=processes, stock=stock) as engine:
        owner, evaluator = engine.owner(KEY), engine.evaluator(KEY.public, LAYOUT)
        for _ in range(2):
            sent = owner.encrypt(LAYOUT.encode_values(values), LAYOUT)
            masked = evaluator.masked_sums([(sent, LAYOUT.encode_weights(weights))])
            opened = owner.open_masked(masked.reply, LAYOUT)
            found = LAYOUT.decode_sums(evaluator.unmask(opened, masked))
            torch.testing.assert_close(found, weights.T @ values, rtol=0, atol=LAYOUT.error)


def test_evaluators_of_one_key_share_their_obfuscators_and_others_do_not() -> None:
    other = generate_keys(512, insecure_for_tests=True)
    with Engine() as engine:
        first, second, third = (engine.evaluator(key.public, LAYOUT) for key in (KEY, KEY, other))
        assert first._obfuscators is second._obfuscators
        assert first._obfuscators is not third._obfuscators


def test_processes_end_with_the_engine() -> None:
    engine = Engine(processes=1, stock=4)
    owner, evaluator = engine.owner(KEY), engine.evaluator(KEY.public, LAYOUT)
    pool = owner._obfuscators
    assert isinstance(pool, Pool)
    assert owner._workers is evaluator._workers
    pids = [pid for source in (pool, owner._workers) for pid in source.pids]  # type: ignore[union-attr]
    assert len(set(pids)) == 2
    engine.close()
    engine.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(WorkerError):
        owner.encrypt([1] * 20)


def test_after_it_was_closed_an_engine_makes_new_ones() -> None:
    engine = Engine(stock=4)
    engine.owner(KEY)
    engine.close()
    with engine:
        assert engine.owner(KEY).encrypt([5]).shape == (1, KEY.public.ciphertext_bytes)


@pytest.mark.parametrize("setting", ["processes", "stock"])
def test_numbers_below_zero_are_refused(setting: str) -> None:
    with pytest.raises(ArgumentError, match="from 0"):
        Engine(**{setting: -1})
