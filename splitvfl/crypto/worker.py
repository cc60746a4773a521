"""A worker process: its jobs and its loop. It imports no torch, so that it starts fast and stays small.

Jobs and answers are frames on the process's standard input and output: eight bytes of length, then msgpack. They never
leave the machine; jobs of the owner of a key hold its primes, which is why nothing of a job is ever in an argument, a
file or a log. A worker ends when its input does.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from gmpy2 import mpz

from splitvfl.crypto.kernels import packed_sums
from splitvfl.crypto.modular import power
from splitvfl.crypto.obfuscators import FixedBase, Obfuscators, Powers, Products

Job = Mapping[str, Any]


class _Modulus(NamedTuple):
    modulus: mpz


class _Primes(NamedTuple):
    p: mpz
    q: mpz


_LENGTH_BYTES = 8
# Obfuscators in one frame of a pool: few, so that the first ones come early.
_BATCH = 8


def read_frame(stream: BinaryIO) -> Any:
    """Return the next message, or ``None`` at the end."""
    head = stream.read(_LENGTH_BYTES)
    length = int.from_bytes(head, "big")
    body = stream.read(length)
    return msgspec.msgpack.decode(body) if len(head) == _LENGTH_BYTES and len(body) == length else None


def write_frame(stream: BinaryIO, message: Any) -> None:
    """Write one message."""
    body = msgspec.msgpack.encode(message)
    stream.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
    stream.flush()


def to_bytes(value: int | mpz) -> bytes:
    """Return a number ≥ 0 as bytes."""
    number = int(value)
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def to_number(given: bytes) -> mpz:
    """Return the number that :func:`to_bytes` wrote."""
    return mpz(int.from_bytes(given, "big"))


def sums_job(
    ciphertexts: Sequence[mpz], weights: np.ndarray[Any, Any], *, counts: Sequence[int], slot_bits: int, n: mpz
) -> Job:
    """Return the job of :func:`~splitvfl.crypto.kernels.packed_sums`."""
    return {
        "do": "sums",
        "ciphertexts": [to_bytes(value) for value in ciphertexts],
        "weights": np.ascontiguousarray(weights, dtype=np.int64).tobytes(),
        "counts": list(counts),
        "slot_bits": slot_bits,
        "n": to_bytes(n),
    }


def powers_job(bases: Sequence[tuple[mpz, mpz, mpz]]) -> Job:
    """Return the job of :func:`~splitvfl.crypto.modular.power` for several base, exponent, ``n``."""
    return {"do": "powers", "powers": [[to_bytes(number) for number in numbers] for numbers in bases]}


def fill_job(source: str, numbers: Sequence[mpz]) -> Job:
    """Return the job that never ends: obfuscators from a source, ``"powers"``, ``"products"`` or ``"fixed-base"``."""
    return {"do": "fill", "source": source, "numbers": [to_bytes(number) for number in numbers]}


def done(job: Job) -> list[mpz]:
    """Do a job and return its numbers."""
    return _JOBS[job["do"]](job)


def _sums(job: Job) -> list[mpz]:
    ciphertexts = [to_number(value) for value in job["ciphertexts"]]
    weights = np.frombuffer(job["weights"], dtype=np.int64).reshape(len(ciphertexts), -1)
    return packed_sums(ciphertexts, weights, counts=job["counts"], slot_bits=job["slot_bits"], n=to_number(job["n"]))


def _powers(job: Job) -> list[mpz]:
    return [power(*(to_number(number) for number in numbers)) for numbers in job["powers"]]


_JOBS: Mapping[str, Callable[[Job], list[mpz]]] = {"sums": _sums, "powers": _powers}


_SOURCES: Mapping[str, Callable[[list[mpz]], Obfuscators]] = {
    "fixed-base": lambda numbers: FixedBase(_Primes(*numbers)),
    "products": lambda numbers: Products(_Modulus(*numbers)),
    "powers": lambda numbers: Powers(_Modulus(*numbers)),
}


def _source(job: Job) -> Obfuscators:
    numbers = [to_number(number) for number in job["numbers"]]
    return _SOURCES[job["source"]](numbers)


def _fill(job: Job, answers: BinaryIO) -> None:
    source = _source(job)
    while True:
        write_frame(answers, [to_bytes(value) for value in source.take(_BATCH)])


def main() -> None:
    """Do jobs until there are no more."""
    # Whoever interrupts the run means the main process, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Whatever else prints must not get between the frames.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        while (job := read_frame(jobs)) is not None:
            if job["do"] == "fill":
                _fill(job, answers)
            write_frame(answers, [to_bytes(value) for value in done(job)])
    except BrokenPipeError:
        # Nobody reads on: the main process has ended.
        os._exit(0)


if __name__ == "__main__":
    main()
