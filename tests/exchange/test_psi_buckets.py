"""Intersections bucket by bucket: what a plain one finds, going on after a break, and peers that cheat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitvfl.data.id_column import id_digest
from splitvfl.errors import ArgumentError, DataError, ProtocolError, SplitVFLError
from splitvfl.exchange import psi, psi_buckets
from splitvfl.exchange.psi import Terms, align
from splitvfl.exchange.psi_buckets import DoneBucket, align_in_buckets, bucket_of
from splitvfl.messaging.conversation import Half, converse
from tests.exchange.test_psi import Twist, changed, check, digests_of, people, twisted

BUCKETS = 3


class Memory:
    """Ids in buckets, in memory."""

    def __init__(self, names: list[str], buckets: int = BUCKETS) -> None:
        self._digests = digests_of(names)
        self._numbers = bucket_of(self._digests, buckets)
        self.sizes = np.bincount(self._numbers, minlength=buckets)
        self.kept: dict[int, DoneBucket] = {}
        self.read_of: list[int] = []
        self.breaks_after = buckets

    def read(self, number: int) -> tuple[Any, Any]:
        self.read_of.append(number)
        rows = np.flatnonzero(self._numbers == number)
        return rows, self._digests[rows]

    def done(self, number: int) -> DoneBucket | None:
        return self.kept.get(number)

    def keep(self, number: int, found: DoneBucket) -> None:
        if len(self.read_of) > self.breaks_after:
            raise SplitVFLError("the machine stopped")
        self.kept[number] = found


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of a few records, which are refused as a rule."""
    monkeypatch.setattr(psi_buckets, "LEAST_IN_BUCKET", 1)


def talk(stores: Mapping[str, Memory], **given: Any) -> dict[str, Any]:
    """The first party is active."""
    twists: dict[str, Twist] = given.pop("twists", {})
    active, *passives = stores
    terms = Terms(**{"active": active, "buckets": BUCKETS, **given})
    halves: dict[str, Half] = {}
    for name, store in stores.items():
        half = align_in_buckets(name, passives if name == active else [active], store, terms, threads=1)
        halves[name] = twisted(half, twists[name]) if name in twists else half
    return converse(halves)


NAMES = st.lists(st.integers(0, 60).map(str), unique=True, min_size=20, max_size=50)


@settings(max_examples=10, deadline=None)
@given(NAMES, NAMES, NAMES)
def test_all_buckets_together_are_what_a_plain_intersection_finds(
    bank: list[str], shop: list[str], telecom: list[str]
) -> None:
    files = {"bank": bank, "shop": shop, "telecom": telecom}
    stores = {name: Memory(names) for name, names in files.items()}
    common = set(bank) & set(shop) & set(telecom)
    if any((store.sizes == 0).any() for store in stores.values()):
        with pytest.raises(DataError, match="take fewer buckets"):
            talk(stores)
        return
    if not common:
        with pytest.raises(DataError, match="no record in common"):
            talk(stores)
        return
    found = talk(stores)
    check(found, files, common)
    assert found["bank"].shared == {name: len(set(bank) & set(files[name])) for name in ("shop", "telecom")}


def test_the_order_of_records_does_not_tell_their_buckets() -> None:
    """Of 600 records in three buckets, how often neighbours are of one bucket is what chance makes of it."""
    names = people(0, 600)
    found = talk({"bank": Memory(names), "telecom": Memory(names)})
    numbers = bucket_of(digests_of(names), BUCKETS)[found["bank"].rows]
    shares = np.bincount(numbers) / len(numbers)
    expected = float((shares**2).sum())
    # Five standard deviations of a share of 599 pairs.
    assert abs((numbers[1:] == numbers[:-1]).mean() - expected) < 5 * (expected * (1 - expected) / 599) ** 0.5


def test_the_bucket_of_an_id_never_changes_and_is_the_end_of_its_digest() -> None:
    names = ["c1", "Zoë", "7"]
    known = [int.from_bytes(id_digest(name)[-8:], "little") % 1000 for name in names]
    assert bucket_of(digests_of(names), 1000).tolist() == known == [192, 307, 861]


@pytest.mark.parametrize("broken", ["bank", "telecom"])
@pytest.mark.parametrize("padding", [0.0, 0.5])
def test_parties_go_on_with_the_buckets_that_one_of_them_lacks(broken: str, padding: float) -> None:
    given: dict[str, Any] = {"mode": "padded", "padding": padding} if padding else {}
    files = {"bank": people(0, 40), "telecom": people(10, 60)}
    stores = {name: Memory(names) for name, names in files.items()}
    stores[broken].breaks_after = 1
    with pytest.raises(SplitVFLError, match="the machine stopped"):
        talk(stores, **given)
    before = {name: dict(store.kept) for name, store in stores.items()}
    assert set(before[broken]) == {0}

    for store in stores.values():
        store.read_of, store.breaks_after = [], BUCKETS
    found = talk(stores, **given)
    assert {name: store.read_of for name, store in stores.items()} == {name: [1, 2] for name in files}
    dummies = found["bank"].rows == -1
    held = {name: [files[name][row] for row in one.rows[~dummies]] for name, one in found.items()}
    assert held["bank"] == held["telecom"]
    assert sorted(held["bank"]) == sorted(people(10, 40))
    assert bool(dummies.any()) == bool(padding)
    assert set(before["bank"][0].ids) <= set(found["bank"].ids)


def test_every_bucket_has_a_dummy_where_there_are_any() -> None:
    """A bucket without common records would be seen to have none."""
    bank, telecom = people(0, 30), people(30, 60)
    numbers = {name: bucket_of(digests_of(own), BUCKETS) for name, own in (("bank", bank), ("telecom", telecom))}
    shared = [name for name, number in zip(bank, numbers["bank"], strict=True) if number == 0]
    stores = {"bank": Memory(bank), "telecom": Memory([*telecom, *shared])}
    talk(stores, mode="padded", padding=0.01)
    for number in (1, 2):
        assert stores["bank"].kept[number].rows.tolist() == [-1]
        assert len(stores["telecom"].kept[number].rows) == 1


# --- what is refused


def test_small_and_large_buckets_are_refused_at_both(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = {"bank": Memory(people(0, 40)), "telecom": Memory(people(10, 60))}
    largest = int(stores["telecom"].sizes.max())
    assert largest > stores["bank"].sizes.max()
    with pytest.raises(DataError, match=f"telecom has {largest} records in a bucket; expected {largest - 1} at most"):
        talk(stores, most_records=largest - 1)
    monkeypatch.setattr(psi_buckets, "LEAST_IN_BUCKET", 30)
    with pytest.raises(DataError, match=r"bank has \d+ records in bucket \d of 3; expected 30 at least"):
        align_in_buckets("bank", ["telecom"], stores["bank"], Terms(active="bank", buckets=BUCKETS))


def test_a_peer_that_has_few_records_in_a_bucket_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_buckets, "LEAST_IN_BUCKET", 5)
    stores = {"bank": Memory(people(0, 40)), "telecom": Memory(people(10, 60))}

    def fewer(sizes: torch.Tensor) -> torch.Tensor:
        sizes[1] = 4
        return sizes

    with pytest.raises(DataError, match="telecom has 4 records in bucket 1 of 3; expected 5 at least"):
        talk(stores, twists={"telecom": changed("buckets", fewer)})


@pytest.mark.parametrize("value", [0, 2])
def test_an_active_party_that_leaves_out_a_bucket_is_refused(value: int) -> None:
    stores = {"bank": Memory(people(0, 40)), "telecom": Memory(people(10, 60))}

    def without(left: torch.Tensor) -> torch.Tensor:
        left[1] = value
        return left

    with pytest.raises(ProtocolError, match="bank leaves out buckets that telecom has not done"):
        talk(stores, twists={"bank": changed("left", without)})


def test_an_id_in_two_buckets_is_refused() -> None:
    """An active party that draws one twice would merge two records into one."""
    stores = {"bank": Memory(people(0, 40)), "telecom": Memory(people(10, 60))}
    talk(stores)
    for store in stores.values():
        ids = store.kept[0].ids.copy()
        ids[0] = store.kept[1].ids[0]
        store.kept[0] = DoneBucket(store.kept[0].rows, np.sort(ids), store.kept[0].shared)
    with pytest.raises(ProtocolError, match="bank sent an id in two buckets"):
        talk(stores)


def test_a_bucket_of_which_parties_keep_different_orders_is_intersected_again() -> None:
    files = {"bank": people(0, 40), "telecom": people(10, 60)}
    stores = {name: Memory(names) for name, names in files.items()}
    talk(stores)
    kept = stores["telecom"].kept[2]
    stores["telecom"].kept[2] = DoneBucket(kept.rows, kept.ids + 1)
    for store in stores.values():
        store.read_of = []
    check(talk(stores), files, set(people(10, 40)))
    assert stores["bank"].read_of == stores["telecom"].read_of == [2]


def test_a_bucket_gets_no_id_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bucket is told which ids are taken, those of buckets that were done before a break too."""
    files = {"bank": people(0, 40), "telecom": people(10, 60)}
    stores = {name: Memory(names) for name, names in files.items()}
    stores["bank"].breaks_after = 1
    with pytest.raises(SplitVFLError, match="the machine stopped"):
        talk(stores)
    for store in stores.values():
        store.read_of, store.breaks_after = [], BUCKETS
    taken: list[list[int]] = []
    known = psi.random_ids

    def watched(count: int, others: Any = None) -> Any:
        taken.append([] if others is None else sorted(others.tolist()))
        return known(count, others)

    monkeypatch.setattr(psi, "random_ids", watched)
    check(talk(stores), files, set(people(10, 40)))
    done = [stores["bank"].kept[number].ids.tolist() for number in range(BUCKETS)]
    assert taken == [sorted(done[0]), sorted(done[0] + done[1])]


def test_buckets_have_a_command_of_their_own_and_no_sizes_alone() -> None:
    with pytest.raises(ArgumentError, match="2 buckets are intersected one by one"):
        align("bank", ["telecom"], digests_of(people(0, 9)), Terms(active="bank", buckets=2))
    with pytest.raises(ArgumentError, match="mode size-only tells how many"):
        Terms(active="bank", buckets=2, mode="size-only")
    for buckets in (0, 4097):
        with pytest.raises(ArgumentError, match="expected buckets from 1 to 4096"):
            Terms(active="bank", buckets=buckets)
    assert "buckets" not in Terms(active="bank").agreed()  # which older versions do not know
