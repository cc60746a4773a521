"""Large blocks of memory stay with the process: counted in page faults, which the kernel keeps."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys
import numpy as np  # which takes its memory from where torch does, and is there sooner
from splitvfl.system.allocator import keep_large_blocks
done = keep_large_blocks() if sys.argv[1] == "keep" else None
def step():
    block = np.empty(48 << 20, dtype=np.uint8)
    block.fill(1)
for _ in range(20):  # until the heap has grown to what is needed
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(done, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator is at work")


def _run(what: str, **environment: str) -> tuple[str, int]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    command = [sys.executable, "-c", _FAULTS, what]
    done, faults = subprocess.run(
        command, env=clean | environment, capture_output=True, text=True, check=True
    ).stdout.split()
    return done, int(faults)


def test_blocks_that_are_kept_are_not_faulted_in_again() -> None:
    _, returned = _run("return")
    done, kept = _run("keep")
    assert done == "True"
    # Ten times 48 MiB, in pages of 4 KiB or in huge ones of 2 MiB: at least 240 faults where blocks go back.
    assert returned >= 200
    assert kept < returned / 10


def test_what_the_user_has_set_stays() -> None:
    done, faults = _run("keep", MALLOC_MMAP_THRESHOLD_="65536")
    assert done == "False"
    assert faults >= 200
