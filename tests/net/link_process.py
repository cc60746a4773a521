"""One end of a link, alone in a process: ``python link_process.py NAME CERTIFICATES ADDRESS WHAT``.

It dials ``bank`` as ``NAME`` and then, by ``WHAT``: ``sleep``, having sent one activation; ``wait`` for a gradient.
"""

from __future__ import annotations

import sys
import time

import torch

from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import Message
from splitvfl.net.frames import Hello
from splitvfl.net.links import dial
from splitvfl.net.tls import Identity


def main(name: str, folder: str, address: str, what: str) -> None:
    identity = Identity.load(name, folder=folder)
    link = dial("bank", address, identity, hello=Hello(name, "credit", "passive"), identity="bank", timeout=10)
    link.send(Message(name, "bank", "activation", 0, torch.ones(3)), timeout=10)
    print("linked", flush=True)
    if what == "wait":
        link.receive(Expected("bank", "gradient", 0, (torch.float32,), (3,)), timeout=60)
    time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
