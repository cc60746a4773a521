"""How many connections leave room for links and files."""

from __future__ import annotations

import resource

import pytest

from splitvfl.app.http_access import HttpLimits
from splitvfl.system.open_files import most_connections


def test_connections_leave_room_for_links_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for files in (20_000, 1024, 256, 1, resource.RLIM_INFINITY):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, 20_000))
        http, links = HttpLimits().connections, most_connections(256, one_in=4)
        assert files in (1, resource.RLIM_INFINITY) or http + links <= 3 * files // 4
        found[files] = http, links
    assert found == {
        20_000: (512, 256),
        1024: (512, 256),
        256: (128, 64),
        1: (1, 1),
        resource.RLIM_INFINITY: (512, 256),
    }
