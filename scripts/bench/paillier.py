"""How much faster the encrypted matrix-vector step is than with ``phe`` as most use it, side by side in one run.

One step: the active party encrypts ``b`` residues; the passive party computes the ``d`` encrypted sums over its ``b x
d`` features, masks and re-randomises them; the active party decrypts; the passive party takes the masks off.

Naive is ``phe`` with gmpy2: a float at a time, ``sum`` of products, a float mask added, obfuscated when it is sent.
Ours is :mod:`splitvfl.crypto` as the exchanges use it, checks, tensors and fixed point included. Residues lie in (-1,
1), features are standard normal, clipped to ±8; 26 fraction bits of features and 27 of residues, one more of each from
128 rows, and the measured error of a sum stands beside.

What is made once for a key is not counted in a step, on either side: keys, and ours: the owner's tables and the
passive party's first 128 powers. How long that takes is in the rows "prepare". Within a step of "one core" nothing
else was made before: every obfuscator is made there. "true powers" is the same with ``r^n`` from scratch for each
reply, with nothing prepared at the passive party, as the first replies under a key are made.

One-core rows are CPU time of one process. "Two cores" rows are wall time of several steps in a row: this process, one
that shares sums (where that pays) and decryption, and two that fill the pools, all on the machine's two cores; the
clock stops when the pools are as full as when it started, so that their work is in it. Naive is one process there too,
which is all that it can use; its wall time is compared. Whoever else uses the machine is in that wall time; the note
has the CPU time of all four processes as well, and the ratio that two cores of their own would give at best.

Run ``python -m scripts.bench.paillier [--quick] [--json OUT]``. ``--quick`` takes 512-bit keys and two shapes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from gmpy2 import mpz
from torch import Tensor

from scripts.bench.measuring import Result, cpu_of_all_processes, main, ratio
from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.obfuscators import FixedBase, Obfuscators, Powers, Products
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.paillier import generate_keys, private_to_phe, to_phe
from splitvfl.crypto.pools import Pool
from splitvfl.crypto.processes import Workers
from splitvfl.crypto.product_layout import ProductLayout

BITS, QUICK_BITS = (2048, 3072), (512,)
# Rows, columns, counted runs; the slowest takes naive phe eight seconds at 2048 bits, and 25 at 3072.
SHAPES = ((8, 10, 9), (16, 30, 7), (32, 64, 5), (32, 81, 5), (256, 64, 3))
QUICK_SHAPES = ((8, 10, 2), (16, 30, 2))
# Steps in a row on two cores, times columns: enough that filling the pools after the last one counts little.
STEPS = 640
TARGET, SMALL_TARGET, TWO_CORE_TARGET, ERROR_TARGET = 18.0, 14.0, 35.0, 1e-7
# An epoch's steps: breast cancer has 569 records, digits 1797; whole batches only.
EPOCHS = {(16, 30): ("breast cancer", 569 // 16), (32, 64): ("digits", 1797 // 32)}
PHASES = ("encrypt", "sums", "mask", "decrypt")


@dataclass
class Clock:
    """CPU and wall seconds of each phase of one step."""

    cpu: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    wall: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count a piece of work under a name."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu[name] += time.process_time() - cpu
        self.wall += time.perf_counter() - wall

    @property
    def total(self) -> float:
        """CPU seconds of the step."""
        return sum(self.cpu.values())


@dataclass(frozen=True)
class TwoCores:
    """Wall seconds of a step, and CPU seconds of all processes together."""

    wall: float
    cpu: float


@dataclass
class Timed:
    """Obfuscators of another source, whose time is moved from one phase to another."""

    source: Obfuscators
    seconds: float = 0.0

    def take(self, count: int) -> list[mpz]:
        """Return new obfuscators."""
        started = time.process_time()
        made = self.source.take(count)
        self.seconds += time.process_time() - started
        return made


@dataclass(frozen=True)
class Work:
    """One step's numbers.

    Attributes:
        residues: float64 ``(b,)``.
        features: float64 ``(b, d)``.
    """

    residues: Tensor
    features: Tensor

    @property
    def true(self) -> Tensor:
        """The sums."""
        return self.features.T @ self.residues

    def layout(self, bits: int) -> ProductLayout:
        """Return what parties would agree on."""
        rows, outputs = self.features.shape
        finer = int(rows >= 128)
        return ProductLayout(
            key_bits=bits,
            rows=rows,
            outputs=outputs,
            value_limit=1.0,
            weight_limit=8.0,
            value_bits=27 + finer,
            weight_bits=26 + finer,
        )


def draw(rows: int, columns: int) -> Work:
    """Return random residues and features, the same for the same shape."""
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    residues = torch.rand(rows, generator=generator, dtype=torch.float64) * 2 - 1
    features = torch.randn(rows, columns, generator=generator, dtype=torch.float64).clamp(-8, 8)
    return Work(residues, features)


def naive(key: PrivateKey) -> Callable[[Work], tuple[Clock, Tensor]]:
    """Return a step with ``phe`` as nearly every repository does it."""
    public, private = to_phe(key.public), private_to_phe(key)

    def step(work: Work) -> tuple[Clock, Tensor]:
        clock = Clock()
        with clock.phase("encrypt"):
            sent = [public.encrypt(value) for value in work.residues.tolist()]
        with clock.phase("sums"):
            columns = work.features.T.tolist()
            sums: list[Any] = [sum(x * value for x, value in zip(column, sent, strict=True)) for column in columns]
        with clock.phase("mask"):
            masks = [secrets.randbelow(1 << 20) / (1 << 10) for _ in sums]
            masked = [value + mask for value, mask in zip(sums, masks, strict=True)]
            for value in masked:
                value.ciphertext()  # obfuscates
        with clock.phase("decrypt"):
            opened = [private.decrypt(value) for value in masked]
            found = [value - mask for value, mask in zip(opened, masks, strict=True)]
        return clock, torch.tensor(found, dtype=torch.float64)

    return step


@dataclass
class Ours:
    """A step with :mod:`splitvfl.crypto`."""

    owner: Owner
    evaluator: Evaluator
    obfuscators: Timed

    def step(self, work: Work) -> tuple[Clock, Tensor]:
        """Return the time that a step takes, and its sums."""
        clock, layout = Clock(), self.evaluator.layout
        with clock.phase("encrypt"):
            sent = self.owner.encrypt(layout.encode_values(work.residues), layout)
        before = self.obfuscators.seconds
        with clock.phase("sums"):
            masked = self.evaluator.masked_sums([(sent, layout.encode_weights(work.features))])
        with clock.phase("decrypt"):
            opened = self.owner.open_masked(masked.reply, layout)
            sums = layout.decode_sums(self.evaluator.unmask(opened, masked))
        clock.cpu["mask"] = self.obfuscators.seconds - before
        clock.cpu["sums"] -= clock.cpu["mask"]
        return clock, sums


def ours(
    key: PrivateKey,
    layout: ProductLayout,
    of_owner: Obfuscators,
    of_evaluator: Obfuscators,
    workers: Workers | None = None,
) -> Ours:
    """Return both parties of a step."""
    timed = Timed(of_evaluator)
    return Ours(
        Owner(key, obfuscators=of_owner, workers=workers),
        Evaluator(key.public, layout, obfuscators=timed, workers=workers),
        timed,
    )


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes short keys and small shapes."""
    results = []
    for bits in QUICK_BITS if quick else BITS:
        key = generate_keys(bits, insecure_for_tests=bits < 2048)
        results += _key_results(key, QUICK_SHAPES if quick else SHAPES)
    return results


def _key_results(key: PrivateKey, shapes: Sequence[tuple[int, int, int]]) -> list[Result]:
    started = time.process_time()
    fixed = FixedBase(key)
    prepared = time.process_time()
    products = Products(key.public)
    products.prepare()
    ended = time.process_time()
    bits = key.public.bits
    results = [
        Result(f"{bits} bits: prepare the owner's tables", prepared - started, "s", None, note="once per key, CPU"),
        Result(f"{bits} bits: prepare 128 powers", ended - prepared, "s", None, note="once per key, CPU"),
    ]
    for rows, columns, runs in shapes:
        results += _shape_results(key, draw(rows, columns), fixed, products, runs)
    return results


def _shape_results(key: PrivateKey, work: Work, fixed: Obfuscators, products: Obfuscators, runs: int) -> list[Result]:
    layout, slow = work.layout(key.public.bits), naive(key)
    online = ours(key, layout, fixed, products)
    strict = ours(key, layout, fixed, Powers(key.public))
    rows, columns = work.features.shape
    name = f"{key.public.bits} bits, {rows} x {columns}"
    base, fast, true = [], [], []
    two_cores: list[TwoCores] = []
    worst = 0.0
    room, steps = 2 * rows, max(4, STEPS // columns)
    with (
        Workers(1) as workers,
        Pool.fixed_base(key, capacity=room) as of_owner,
        Pool.products(key.public, capacity=2 * layout.replies) as of_evaluator,
    ):
        pooled = ours(key, layout, of_owner, of_evaluator, workers)
        pools = ((of_owner, room), (of_evaluator, 2 * layout.replies))
        pooled.step(work)
        online.step(work)
        for _ in range(runs):
            # The pools are full, and their processes wait, while one core is measured.
            _fill(pools)
            clock, found = slow(work)
            base.append(clock)
            mine = [(online.step(work)) for _ in range(3)]
            fast.append(_middle([clock for clock, _ in mine]))
            true.append(strict.step(work)[0].total)
            two_cores.append(_two_cores(pooled, work, pools, steps=steps))
            worst = max(worst, *(float((sums - work.true).abs().max()) for _, sums in mine))
            assert torch.allclose(found, work.true)
    return _rows(name, work, layout, base, fast, true, two_cores, worst)


def _rows(
    name: str,
    work: Work,
    layout: ProductLayout,
    base: Sequence[Clock],
    fast: Sequence[Clock],
    true: Sequence[float],
    two_cores: Sequence[TwoCores],
    worst: float,
) -> list[Result]:
    shape = (layout.rows, layout.outputs)
    totals = [clock.total for clock in base]
    small = SMALL_TARGET if shape == (8, 10) else TARGET
    rows = [
        _ratio(f"{name}: step, one core", totals, [clock.total for clock in fast], small),
        _ratio(f"{name}: step, one core, true powers", totals, true, None),
        _two_core_ratio(f"{name}: step, two cores, pools filled meanwhile", base, two_cores),
    ]
    rows += [_ratio(f"{name}: {p}", [c.cpu[p] for c in base], [c.cpu[p] for c in fast], None) for p in PHASES]
    rows.append(Result(f"{name}: error of a sum", worst, "abs", ERROR_TARGET, note=f"bound {layout.error:.2g}"))
    rows.append(_bytes(name, layout))
    if shape in EPOCHS:
        data, steps = EPOCHS[shape]
        seconds = [median(clock.total for clock in clocks) * steps for clocks in (fast, base)]
        note = (
            f"{steps} steps, CPU of both parties; naive {seconds[1]:.1f} s, two cores "
            f"{median(one.wall for one in two_cores) * steps:.2f} s"
        )
        rows.append(Result(f"{name}: an epoch of {data}", seconds[0], "s", None, note=note))
    return rows


def _ratio(name: str, slow: Sequence[float], fast: Sequence[float], target: float | None) -> Result:
    value, note = ratio(slow, fast)
    times = f"{median(slow) * 1000:.1f} / {median(fast) * 1000:.1f} ms, {note}"
    return Result(name, value, "ratio", target, "higher", times)


def _bytes(name: str, layout: ProductLayout) -> Result:
    ciphertext = 2 * layout.key_bits // 8
    sent = (layout.rows + layout.replies) * ciphertext + layout.replies * layout.opened_bytes
    # phe sends an exponent with each, which is left out here.
    slow = (layout.rows + layout.outputs) * ciphertext + layout.outputs * 8
    replies = f"{layout.replies} replies of up to {layout.slots} sums, {layout.slot_bits} bits each"
    note = f"both ways; naive {slow / 1024:.1f} KiB; {replies}"
    return Result(f"{name}: bytes on the wire", sent / 1024, "KiB", None, note=note)


def _two_core_ratio(name: str, base: Sequence[Clock], two_cores: Sequence[TwoCores]) -> Result:
    found = _ratio(name, [clock.wall for clock in base], [one.wall for one in two_cores], TWO_CORE_TARGET)
    slow, cpu = median(clock.total for clock in base), median(one.cpu for one in two_cores)
    best = f"; CPU of all processes {cpu * 1000:.1f} ms, so at best {2 * slow / cpu:.1f}" if cpu else ""
    return replace(found, note=found.note + best)


def _two_cores(pooled: Ours, work: Work, pools: Sequence[tuple[Pool, int]], *, steps: int) -> TwoCores:
    """Return the time of a step, its share of filling the pools included."""
    _fill(pools)
    started, cpu = time.perf_counter(), cpu_of_all_processes()
    for _ in range(steps):
        pooled.step(work)
    _fill(pools)
    return TwoCores((time.perf_counter() - started) / steps, (cpu_of_all_processes() - cpu) / steps)


def _fill(pools: Sequence[tuple[Pool, int]]) -> None:
    while any(len(pool) < capacity for pool, capacity in pools):
        time.sleep(0.0005)


def _middle(clocks: Sequence[Clock]) -> Clock:
    return sorted(clocks, key=lambda clock: clock.total)[len(clocks) // 2]


if __name__ == "__main__":
    raise SystemExit(main("Paillier: our step beside phe's", measure))
