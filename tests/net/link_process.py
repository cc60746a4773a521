"""One end of a link, alone in a process: it dials ``bank`` and then, by the last word, ``sleep``s or ``wait``s."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from splitvfl.errors import LinkError
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import Message
from splitvfl.net.frames import Hello
from splitvfl.net.links import Link, dial
from splitvfl.net.tls import Identity


def talk(arguments: Sequence[str]) -> int:
    """Send one activation, as ``NAME CERTIFICATES ADDRESS WHAT`` say, and then sleep, or wait for a gradient."""
    name, folder, address, what = arguments
    link = _dialled(name, folder, address, timeout=10)
    link.send(Message(name, "bank", "activation", 0, torch.ones(3)), timeout=10)
    print("linked", flush=True)
    if what == "wait":
        link.receive(Expected("bank", "gradient", 0, (torch.float32,), (3,)), timeout=60)
    time.sleep(60)
    return 0


def talk_to_nobody(arguments: Sequence[str]) -> int:
    """Dial where nobody listens, as ``NAME CERTIFICATES ADDRESS`` say."""
    try:
        _dialled(*arguments, timeout=0.3)
    except LinkError:
        print("not there")
    return 0


def _dialled(name: str, folder: str, address: str, *, timeout: float) -> Link:
    identity = Identity.load(name, folder=folder)
    return dial("bank", address, identity, hello=Hello(name, "credit", "passive"), identity="bank", timeout=timeout)
