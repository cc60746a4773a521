"""What starts again whatever ends with an error, as the kubelet of Kubernetes does: each process by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.commands import Command

# Longer than anything here takes on a busy machine.
ENOUGH_S = 120.0


class Kubelet:
    """Keeps processes going until each has ended well.

    Args:
        starts: Starts each process, by name.

    Attributes:
        running: The processes as they are now.
        ended: With which codes each has ended before it was started again.
    """

    def __init__(self, starts: Mapping[str, Callable[[], Command]]) -> None:
        self._starts = dict(starts)
        self.running = {name: start() for name, start in self._starts.items()}
        self.ended: dict[str, list[int]] = {name: [] for name in self._starts}

    def look(self) -> bool:
        """Start again what has ended with an error, and return whether all have ended well."""
        for name, process in self.running.items():
            if process.poll():
                self.ended[name].append(process.wait())
                self.running[name] = self._starts[name]()
        return all(process.poll() == 0 for process in self.running.values())

    def until(self, ready: Callable[[], bool], what: str) -> None:
        """Look after them until something has happened."""
        deadline = time.monotonic() + ENOUGH_S
        while not ready():
            assert time.monotonic() < deadline, f"{what}: ended before with {self.ended}"
            self.look()
            time.sleep(0.01)

    def finish(self) -> None:
        """Look after them until all have ended well."""
        self.until(self.look, "they do not end")

    def __enter__(self) -> Kubelet:
        return self

    def __exit__(self, *error: Any) -> None:
        for process in self.running.values():
            process.kill()
