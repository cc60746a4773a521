"""One party's own file, and tables of it: the same records in the same order as at the others."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from splitvfl.cli import main
from splitvfl.data.alignment import aligned_rows
from splitvfl.data.columns import PartyData, Records
from splitvfl.data.hashing import are_tested
from splitvfl.data.id_column import read_digests
from splitvfl.data.ingest.run import ingest_like
from splitvfl.data.load import load
from splitvfl.data.store import open_party, open_tables
from splitvfl.errors import ArgumentError, DataError
from splitvfl.exchange.psi import Terms, align
from splitvfl.messaging.conversation import converse
from tests.tables import align_rows, ingest, load_party

ROWS = 200


def table(folder: Path, name: str, first: int, last: int, seed: int) -> Path:
    """Records in a random order of their own; every column can be told from the id."""
    numbers = np.random.default_rng(seed).permutation(np.arange(first, last))
    frame = pd.DataFrame(
        {
            "customer": [f"c{number}" for number in numbers],
            "age": numbers.astype(float),
            "town": [f"t{number % 3}" for number in numbers],
            "bought": numbers % 2,
        }
    )
    frame.to_csv(folder / f"{name}.csv", index=False)
    return folder / f"{name}.csv"


def aligned(folder: Path, files: dict[str, Path], *, padding: float = 0.0) -> dict[str, Path]:
    """Align files; the first party is active."""
    names = list(files)
    terms = Terms(active=names[0], mode="padded" if padding else "both", padding=padding)
    digests = {name: read_digests(path, "customer") for name, path in files.items()}
    found = converse(
        {
            name: align(name, names[1:] if name == names[0] else names[:1], own, terms, threads=1)
            for name, own in digests.items()
        }
    )
    for name, result in found.items():
        align_rows(
            folder / "aligned" / name,
            files[name],
            rows=result.rows.tolist(),
            ids=result.ids.tolist(),
            party=name,
            role="active" if name == names[0] else "passive",
            sizes=dict(result.sizes),
            shared=dict(result.shared),
            mode=terms.mode,
            padding=padding,
        )
    return {name: folder / "aligned" / name for name in files}


class World:
    """Two parties' files and their alignment; 120 records are common."""

    def __init__(self, folder: Path, *, padding: float = 0.0) -> None:
        self.files = {"bank": table(folder, "bank", 0, ROWS, 1), "telecom": table(folder, "telecom", 80, 300, 2)}
        self.folders = aligned(folder, self.files, padding=padding)
        self.folder = folder

    def copied(self, folder: Path) -> World:
        """The same files and their alignment elsewhere, where a test may write beside them."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        other = copy.copy(self)
        other.folder = folder
        other.files = {name: folder / path.name for name, path in self.files.items()}
        other.folders = {name: folder / path.relative_to(self.folder) for name, path in self.folders.items()}
        return other

    def load(self, party: str, **settings: Any) -> PartyData:
        return load_party(self.files[party], **{**self.settings(party), **settings}).data

    def settings(self, name: str) -> dict[str, Any]:
        own: dict[str, Any] = {"name": name, "role": "passive", "columns": "age, town", "aligned": self.folders[name]}
        return own | ({"role": "active", "label": "bought"} if name == "bank" else {})

    def ingest(self, name: str, out: str, **settings: Any) -> PartyData:
        party: dict[str, Any] = (
            {"label": "bought", "active": "age, town", "active_name": "bank"}
            if name == "bank"
            else {"passive": {name: "age, town"}, "drop": "bought"}
        )
        rows = aligned_rows(self.folders[name], self.files[name])
        ingest(self.files[name], out=self.folder / out, id_column="customer", aligned=rows, **{**party, **settings})
        return open_party(self.folder / out / name)


@pytest.fixture(scope="module")
def first_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def first_padded(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("padded"), padding=0.5)


@pytest.fixture
def world(first_world: World, tmp_path: Path) -> World:
    return first_world.copied(tmp_path)


@pytest.fixture
def padded(first_padded: World, tmp_path: Path) -> World:
    return first_padded.copied(tmp_path)


def ages(data: Records, like: PartyData) -> np.ndarray:
    """What was in the column ``age`` before scaling, up to scale."""
    return data.columns.numeric[:, like.numeric_names.index("age")].numpy()


def test_parties_end_with_the_same_records_in_the_same_order(world: World) -> None:
    bank, telecom = world.load("bank", scale="none"), world.load("telecom", scale="none")
    for part in ("train", "test"):
        ours, theirs = getattr(bank, part), getattr(telecom, part)
        assert torch.equal(ours.ids, theirs.ids)
        assert (ours.ids.diff() > 0).all()
        np.testing.assert_array_equal(ages(ours, bank), ages(theirs, telecom))
        np.testing.assert_array_equal(ours.labels, ages(ours, bank) % 2)
        assert theirs.labels is None
        assert ours.real is None
    found = np.concatenate([ages(bank.train, bank), ages(bank.test, bank)])
    assert sorted(found) == list(range(80, ROWS))


def test_the_split_is_that_of_the_ids(world: World) -> None:
    bank = world.load("bank", split_seed=7, test_fraction=0.3)
    assert are_tested(bank.test.ids.numpy(), seed=7, fraction=0.3).all()
    assert not are_tested(bank.train.ids.numpy(), seed=7, fraction=0.3).any()


def test_columns_are_encoded_as_load_encodes_them(tmp_path: Path) -> None:
    """The same training rows in the same order give the same numbers."""
    path = table(tmp_path, "bank", 0, ROWS, 1)
    settings: dict[str, Any] = {"name": "bank", "role": "active", "label": "bought", "id_column": "customer"}
    own = load_party(path, columns="age, town", **settings).data
    raw = load_party(path, columns="age", scale="none", **settings).data
    frame = pd.read_csv(path)
    frame["part"] = np.where(frame.age.isin(ages(raw.test, raw)), "test", "train")
    frame.to_csv(tmp_path / "split.csv", index=False)
    claims: dict[str, Any] = {"active": "age", "passive": {"p": "town"}, "id_column": "customer"}
    together = load("table", path=tmp_path / "split.csv", label="bought", split_column="part", **claims)
    assert torch.equal(own.train.columns.numeric[:, :1], together.active.train.columns.numeric)
    assert torch.equal(own.test.columns.numeric[:, 1:], together["p"].test.columns.numeric)
    assert torch.equal(own.train.labels, together.active.train.labels)


def test_without_an_alignment_records_stay_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = table(tmp_path, "bank", 0, ROWS, 1)
    frame = pd.read_csv(path)
    frame["number"] = frame.age.astype(int)
    frame.to_csv(path, index=False)
    own = load_party(path, name="bank", role="passive", columns="age", id_column="number", scale="none").data
    tested = are_tested(frame.number.to_numpy(), seed=0, fraction=0.2)
    np.testing.assert_array_equal(own.train.ids, frame.number[~tested])
    np.testing.assert_array_equal(own.test.columns.numeric[:, 0], frame.age[tested])


def test_without_an_id_column_records_are_numbered(tmp_path: Path) -> None:
    own = load_party(table(tmp_path, "bank", 0, ROWS, 1), name="bank", role="passive", columns="age").data
    assert sorted([*own.train.ids.tolist(), *own.test.ids.tolist()]) == list(range(ROWS))


def test_text_ids_of_two_orders_differ(tmp_path: Path) -> None:
    """They are hashes of the text, and not row numbers: parties with other orders are told apart."""
    one, two = (table(tmp_path, name, 0, 50, seed) for name, seed in (("one", 1), ("two", 2)))
    first, second = (
        load_party(path, name="p", role="passive", columns="age", id_column="customer").data for path in (one, two)
    )
    assert not torch.equal(first.train.ids, second.train.ids)
    assert sorted(first.train.ids.tolist()) == sorted(second.train.ids.tolist())


# --- dummies


def test_dummies_are_marked_at_the_active_party_alone(padded: World) -> None:
    bank, telecom = padded.load("bank"), padded.load("telecom")
    assert telecom.train.real is None
    assert bank.train.real is not None
    assert bank.test.real is not None
    assert int((~bank.train.real).sum() + (~bank.test.real).sum()) == 60
    assert bank.train.count + bank.test.count == 180
    assert torch.equal(bank.train.ids, telecom.train.ids)


def test_dummies_are_filled_from_real_records_of_their_part(padded: World) -> None:
    bank = padded.load("bank", scale="none")
    for part in (bank.train, bank.test):
        assert part.real is not None
        assert part.labels is not None
        real = set(ages(part, bank)[part.real].tolist())
        dummies = ages(part, bank)[~part.real]
        assert set(dummies.tolist()) <= real
        assert len(set(dummies.tolist())) > 1
        np.testing.assert_array_equal(part.labels, ages(part, bank) % 2)


def test_dummies_are_the_same_at_every_call(padded: World) -> None:
    one, two = padded.load("bank"), padded.load("bank")
    assert torch.equal(one.train.columns.numeric, two.train.columns.numeric)
    assert torch.equal(one.train.labels, two.train.labels)


def test_dummies_do_not_change_how_columns_are_encoded(padded: World) -> None:
    """Mean and deviation are those of the real training records."""
    bank = padded.load("bank")
    assert bank.train.real is not None
    values = ages(bank.train, bank)[bank.train.real]
    assert abs(values.mean()) < 1e-6
    assert abs(values.std() - 1) < 1e-6


def test_records_keep_their_marks_when_they_are_gathered(padded: World) -> None:
    train = padded.load("bank").train
    assert train.real is not None
    rows = torch.tensor([5, 2, 9])
    assert torch.equal(train.rows(rows).real, train.real[rows])
    assert torch.equal(train.to("cpu").real, train.real)
    judged = train.judged
    assert judged is not None
    assert torch.equal(judged.isnan(), ~train.real)


# --- tables


def test_tables_are_what_is_loaded(world: World) -> None:
    for name in ("bank", "telecom"):
        stored, loaded = world.ingest(name, f"tables-{name}"), world.load(name, categorical="index", test_fraction=0.1)
        same(stored, loaded)


def test_tables_of_a_padded_alignment_are_what_is_loaded(padded: World) -> None:
    stored = padded.ingest("bank", "tables")
    same(stored, padded.load("bank", categorical="index", test_fraction=0.1))
    assert stored.train.real is not None


def same(stored: PartyData, loaded: PartyData) -> None:
    for part in ("train", "test"):
        ours, theirs = getattr(stored, part), getattr(loaded, part)
        assert torch.equal(ours.ids, theirs.ids)
        # Means and deviations are added up in another order.
        torch.testing.assert_close(ours.columns.numeric, theirs.columns.numeric, rtol=1e-5, atol=1e-6)
        assert torch.equal(ours.columns.categorical.long(), theirs.columns.categorical.long())
        for field in ("labels", "real"):
            one, other = getattr(ours, field), getattr(theirs, field)
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)


def test_tables_that_were_ingested_apart_fit_together(padded: World) -> None:
    for name in ("bank", "telecom"):
        padded.ingest(name, f"apart-{name}")
    (padded.folder / "joined").mkdir()
    for name in ("bank", "telecom"):
        (padded.folder / f"apart-{name}" / name).rename(padded.folder / "joined" / name)
    data = open_tables(padded.folder / "joined")
    assert torch.equal(data.active.train.ids, data["telecom"].train.ids)


def test_tables_of_two_alignments_do_not(tmp_path: Path) -> None:
    worlds = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        worlds.append(World(tmp_path / str(number)))
    (tmp_path / "joined").mkdir()
    for world, name in zip(worlds, ("bank", "telecom"), strict=True):
        world.ingest(name, "tables")
        (world.folder / "tables" / name).rename(tmp_path / "joined" / name)
    with pytest.raises(DataError, match="did not agree on the kind of ids"):
        open_tables(tmp_path / "joined")


def test_later_records_are_encoded_like_the_earlier_ones(world: World) -> None:
    world.ingest("telecom", "tables")
    (world.folder / "new").mkdir()
    later = World(world.folder / "new")
    rows = aligned_rows(later.folders["telecom"], later.files["telecom"])
    settings: dict[str, Any] = {"like": world.folder / "tables"}
    ingest_like(later.files["telecom"], out=world.folder / "later", aligned=rows, **settings)
    found = open_party(world.folder / "later" / "telecom").test
    assert found.count == 120
    np.testing.assert_array_equal(found.ids, rows.ids)
    with pytest.raises(ArgumentError, match="align these as well"):
        ingest_like(later.files["telecom"], out=world.folder / "third", **settings)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"active_name": "shop"}, r"aligned for bank \(active\) alone, got shop \(active\)"),
        ({"passive": {"p": "town"}, "active": "age"}, r"alone, got bank \(active\), p \(passive\)"),
        ({"id_column": "age"}, "aligned by column 'customer', got id column 'age'"),
        ({"split_column": "town"}, "give no split column"),
    ],
)
def test_what_does_not_go_with_an_alignment_is_refused(world: World, changes: dict[str, Any], complaint: str) -> None:
    rows = aligned_rows(world.folders["bank"], world.files["bank"])
    settings: dict[str, Any] = {
        "label": "bought", "active": "age, town", "active_name": "bank", "id_column": "customer",
    }  # fmt: skip
    with pytest.raises(ArgumentError, match=complaint):
        ingest(world.files["bank"], out=world.folder / "tables", aligned=rows, **{**settings, **changes})


def test_the_command_takes_the_id_column_of_the_alignment(padded: World, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--label", "bought", "--active", "bank=age,town", "--aligned", str(padded.folders["bank"])]
    assert main(["ingest", str(padded.files["bank"]), *settings, "--out", str(padded.folder / "tables")]) == 0
    same(open_party(padded.folder / "tables" / "bank"), padded.load("bank", categorical="index", test_fraction=0.1))
    assert "180 rows" in capsys.readouterr().out
    later = [str(padded.files["bank"]), "--like", str(padded.folder / "tables"), "--out", str(padded.folder / "later")]
    assert main(["ingest", *later]) == 2
    assert "align these as well" in capsys.readouterr().err
    assert main(["ingest", *later, "--aligned", str(padded.folders["bank"])]) == 0


# --- what is refused


@pytest.mark.parametrize(
    ("party", "changes", "error", "complaint"),
    [
        ("bank", {"label": None}, ArgumentError, "the active party holds the labels"),
        ("telecom", {"label": "bought"}, ArgumentError, "a passive party holds no labels"),
        ("bank", {"role": "boss"}, ArgumentError, "expected role active or passive"),
        ("bank", {"test_fraction": 1.0}, ArgumentError, "expected test_fraction in"),
        ("bank", {"split_seed": -1}, ArgumentError, "expected split_seed from 0"),
        ("bank", {"name": "shop"}, DataError, "aligned by bank as the active party, not by shop"),
        ("telecom", {"name": "bank"}, DataError, "aligned by telecom as the passive party"),
        ("bank", {"id_column": "age"}, DataError, "aligned by column 'customer', got id column 'age'"),
        ("telecom", {"columns": ()}, DataError, "left without a column"),
        ("telecom", {"columns": "agee"}, DataError, "no column 'agee'"),
        ("bank", {"columns": "bought"}, DataError, "'bought' is the label of"),
        ("bank", {"test_fraction": 1e-9}, DataError, "bank has no test record among 120"),
    ],
)
def test_what_does_not_fit_is_refused(
    world: World, party: str, changes: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        world.load(party, **changes)


def test_a_changed_file_is_refused(world: World) -> None:
    text = world.files["bank"].read_text().splitlines()
    world.files["bank"].write_text("\n".join([text[0], *text[:0:-1]]) + "\n")
    with pytest.raises(DataError, match="records have changed, or their order; align again"):
        world.load("bank")


def test_an_active_party_may_have_labels_alone(world: World) -> None:
    data = world.load("bank", columns=())
    assert data.width == 0
    assert data.train.labels is not None


def test_task_and_classes_are_known_where_the_labels_are(world: World) -> None:
    bank = load_party(world.files["bank"], **world.settings("bank"))
    telecom = load_party(world.files["telecom"], **world.settings("telecom"))
    assert bank[1:3] == ("binary", 2)
    assert telecom[1:3] == (None, 0)


@pytest.mark.parametrize("unlabelled", ["error", "drop"])
def test_a_record_without_a_label_is_never_left_out_after_an_alignment(unlabelled: str, tmp_path: Path) -> None:
    frame = pd.read_csv(table(tmp_path, "bank", 0, ROWS, 1))
    frame["bought"] = frame["bought"].astype(float)
    frame.loc[frame["customer"] == "c100", "bought"] = np.nan
    files = {"bank": tmp_path / "gaps.csv", "telecom": table(tmp_path, "telecom", 80, 300, 2)}
    frame.to_csv(files["bank"], index=False)
    folders = aligned(tmp_path, files)
    settings: dict[str, Any] = {"label": "bought", "name": "bank", "role": "active", "unlabelled": unlabelled}

    for where in ({"aligned": folders["bank"]}, {"id_column": "customer"}):
        with pytest.raises(DataError, match=r"1 rows.*would show it which outcomes are not known.*customer .?c100"):
            load_party(files["bank"], **settings, **where)
