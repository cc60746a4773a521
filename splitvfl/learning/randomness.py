"""Sources of random numbers: entropy for deployed noise, seeds by purpose for experiments, a state per party."""

from __future__ import annotations

import hashlib
import os
import secrets as entropy
import threading
from types import TracebackType
from typing import Any, Self, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from splitvfl.errors import PrivacyError
from splitvfl.learning.discrete_noise import Keystream
from splitvfl.system.forks import forks

# Torch's state of a Mersenne twister: 24 bytes of header, then 624 words of 32 bits in 8 bytes each.
_HEADER, _WORDS = 24, 624

_everybodys = torch.default_generator
# Torch holds the generator's own lock while it makes a tensor of its state. If Python collects garbage just then, the
# interpreter is let go of, and taken by a thread that waits for that lock: for ever. So only one thread asks at a time.
_asking = threading.RLock()


def derive_seed(seed: int, *purpose: object) -> int:
    """Return a seed for one purpose, independent of every other purpose's.

    63 bits, of which torch's generator on a CPU takes the lower 32: enough to keep purposes apart in an experiment, and
    no protection.
    """
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def entropic_generator(device: torch.device) -> torch.Generator:
    """Return a generator whose whole state comes from the operating system's entropy.

    On a CPU a seed would not do: torch takes 32 bits of it, which can be tried one by one. All 624 words are drawn
    instead; on a GPU the seed has 63 bits. Neither generator is cryptographic: from enough of its output the rest can
    be computed.

    Raises:
        PrivacyError: If this build of torch keeps its state in another form.
    """
    generator = torch.Generator(device)
    generator.manual_seed(entropy.randbits(63))
    if device.type == "cpu":
        _set_words(generator, os.urandom(4 * _WORDS))
    return generator


class EntropicGenerator:
    """A generator of :func:`entropic_generator` of one's own: copies, unpickled ones and forked children draw another.

    Two that went on with one state would draw the same noise for two messages.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generator: torch.Generator | None = None
        self._forks = forks()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Return how a copy is made: without the state."""
        return type(self), (self._device,)

    def __call__(self) -> torch.Generator:
        """Return the generator; it is drawn at first use."""
        if self._generator is None or self._forks != forks():
            self._generator, self._forks = entropic_generator(self._device), forks()
        return self._generator


def keyed_generator(key: bytes, *about: bytes) -> torch.Generator:
    """Return a generator on the CPU whose whole state follows from a secret key and what it is for, and nothing else.

    The same key and purpose give the same numbers, for ever. SHAKE-256 of the key and the purpose is the state: who
    does not have the key cannot tell it from a random one, nor what one generator draws from what all others have
    drawn. The numbers of one generator are torch's, and not cryptographic.

    Args:
        key: A secret of 32 bytes.
        about: What it is for; ``(b"ab", b"c")`` is something else than ``(b"a", b"bc")``.
    """
    generator = torch.Generator().manual_seed(0)
    _set_words(generator, _derived(key, about, 4 * _WORDS))
    return generator


def keyed_stream(key: bytes, *about: bytes) -> Keystream:
    """Return a keystream that follows from a secret key and what it is for, as :func:`keyed_generator`.

    The two have nothing in common, for the same key and purpose either.
    """
    return Keystream(_derived(key, (b"keystream", *about), 32))


def _derived(key: bytes, about: tuple[bytes, ...], length: int) -> bytes:
    assert len(key) == 32, "a key is 32 bytes long"
    state = hashlib.shake_256(key)
    for part in about:
        state.update(len(part).to_bytes(8, "little") + part)
    return state.digest(length)


def _set_words(generator: torch.Generator, content: bytes) -> None:
    state = generator.get_state().numpy()
    words = state[_HEADER : _HEADER + 8 * _WORDS].view("<u8")
    if words.size != _WORDS or words[0] != generator.initial_seed() & 0xFFFFFFFF or words.max() >> 32:
        raise PrivacyError("this build of torch keeps generator states in another form; noise cannot be seeded safely")
    words[:] = np.frombuffer(content, "<u4")
    generator.set_state(torch.from_numpy(state))


class PartyRandom:
    """A state of torch's global generators of one's own, swapped in around one's turns.

    With dropout, parties that shared one generator in one process would draw other numbers than the same parties in
    two processes; and an attack that draws numbers would change what it watches.
    """

    def __init__(self, seed: int) -> None:
        self._cpu = torch.Generator().manual_seed(seed).get_state()
        self._cuda: Tensor | None = None
        self._outside: tuple[Tensor, Tensor | None] | None = None
        self._seed = seed
        self._drawn_for: torch.device | None = None
        self._forks = forks()

    @classmethod
    def entropic(cls, device: torch.device) -> Self:
        """Return a state that nobody can guess, for a party in a deployed run.

        Nobody else has it: a copy, an unpickled one and a forked child draw one of their own.
        """
        own = cls(entropy.randbits(63))
        own._drawn_for = device
        own._draw(device)
        return own

    def _draw(self, device: torch.device) -> None:
        self._cpu = entropic_generator(torch.device("cpu")).get_state()
        if device.type == "cuda" or self._cuda is not None:
            self._cuda = entropic_generator(torch.device("cuda")).get_state()

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Return how a copy is made: of a state from entropy, with another one."""
        if self._drawn_for is None:
            return super().__reduce_ex__(protocol)
        return type(self).entropic, (self._drawn_for,)

    def _leave_to_the_parent(self) -> None:
        """In a forked child, draw a state in place of the parent's, if that came from entropy."""
        if self._drawn_for is not None and self._forks != forks():
            self._draw(self._drawn_for)
        self._forks = forks()

    @classmethod
    def beside(cls, purpose: bytes) -> Self:
        """Return a state that follows from the one in force, and from a purpose, without drawing from it."""
        with _asking:
            words = _everybodys.get_state()[: _HEADER + 8 * _WORDS].numpy().tobytes()
        key = hashlib.blake2b(words, digest_size=32).digest()
        own = cls(int.from_bytes(_derived(key, (b"seed", purpose), 8), "little") >> 1)
        own._cpu = keyed_generator(key, b"state", purpose).get_state()
        return own

    def use_cuda(self) -> None:
        """Keep a state of the CUDA generator too."""
        if self._cuda is None:
            self._cuda = torch.Generator("cuda").manual_seed(self._seed).get_state()
            if self._drawn_for is not None:
                self._drawn_for = torch.device("cuda")

    def __enter__(self) -> None:
        self._leave_to_the_parent()
        with _asking:
            self._outside = (_everybodys.get_state(), None if self._cuda is None else torch.cuda.get_rng_state())
            _everybodys.set_state(self._cpu)
            if self._cuda is not None:
                torch.cuda.set_rng_state(self._cuda)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._outside is not None
        with _asking:
            self._cpu = _everybodys.get_state()
            _everybodys.set_state(self._outside[0])
            if self._cuda is not None and self._outside[1] is not None:
                self._cuda = torch.cuda.get_rng_state()
                torch.cuda.set_rng_state(self._outside[1])

    def state_dict(self) -> dict[str, Any]:
        """Return the generators' states."""
        self._leave_to_the_parent()
        return {"cpu": self._cpu, "cuda": self._cuda}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._cpu, self._cuda = state["cpu"], state["cuda"]
        self._forks = forks()
