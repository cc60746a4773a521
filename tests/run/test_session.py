"""How often a party meets its partners again, and what it does not try twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from splitvfl.errors import LinkError, ProtocolError, ReplayError, SplitVFLError
from splitvfl.net.driver import Correspondent
from splitvfl.run.session import Session


class Place:
    """Counts meetings; nobody comes to one after the last."""

    def __init__(self, last: int = 99) -> None:
        self.met, self._last = 0, last

    @contextmanager
    def meet(self) -> Iterator[Mapping[str, Correspondent]]:
        if self.met == self._last:
            raise LinkError("nobody came")
        self.met += 1
        yield {}


def breaking(*errors: SplitVFLError) -> Callable[[object], None]:
    """Return a talk that breaks with one error after the other, and then comes to its end."""
    left = list(errors)

    def talk(links: object) -> None:
        if left:
            raise left.pop(0)

    return talk


def test_broken_links_are_mended_and_told() -> None:
    place, told = Place(), list[str]()
    breaks = breaking(LinkError("cut"), ProtocolError("garbage"))
    Session("lab", place, retries=2, notify=told.append).meet_until_done(breaks, then="again")
    assert place.met == 3
    assert told == ["cut; again", "garbage; again"]


@pytest.mark.parametrize(("retries", "met"), [(0, 1), (2, 3)])
def test_retries_end(retries: int, met: int) -> None:
    place = Place()
    with pytest.raises(LinkError, match="cut"):
        Session("lab", place, retries=retries).meet_until_done(breaking(*[LinkError("cut")] * 9), then="")
    assert place.met == met


def test_retries_begin_anew_after_progress() -> None:
    place, reached = Place(), [0, 0, 5, 5, 5, 7]
    talk = breaking(*[LinkError("cut")] * len(reached))
    with pytest.raises(LinkError):
        Session("lab", place, retries=2).meet_until_done(talk, reached=lambda: reached[place.met - 1], then="")
    # Two at 0, and of three at 5 the third is one too many.
    assert place.met == 5


def test_what_is_final_is_not_tried_again() -> None:
    place = Place()
    with pytest.raises(ReplayError):
        Session("lab", place, retries=9).meet_until_done(breaking(ReplayError("another")), then="")
    assert place.met == 1


def test_who_does_not_come_is_waited_for_once() -> None:
    place = Place(last=1)
    with pytest.raises(LinkError, match="nobody came"):
        Session("lab", place, retries=9).meet_until_done(breaking(LinkError("cut")), then="")
    assert place.met == 1
