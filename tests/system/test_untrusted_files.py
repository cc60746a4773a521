"""Small files that may come from somebody else: files, of a size and a shape, and nothing else."""

from __future__ import annotations

import errno
import io
import json
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from splitvfl.errors import CheckpointError, DataError
from splitvfl.system.untrusted_files import (
    DEEPEST,
    UntrustedFile,
    append_bytes,
    archive_directory,
    decoded,
    new_file,
    open_own,
    write_json,
    write_named,
    write_new,
    write_whole,
)


def read(path: Path, **rules: Any) -> bytes | None:
    return UntrustedFile(path=path, **rules).read()


# --- what is opened


def test_a_file_is_read_and_none_is_none(tmp_path: Path) -> None:
    path = tmp_path / "figures"
    assert read(path) is None
    assert UntrustedFile(path=path).open() is None
    assert read(path / "below") is None
    path.write_bytes(b"\x00" * 1024)
    assert read(path / "below") is None, "what is above it is no folder"
    assert read(path, most=1024) == bytes(1024)
    with pytest.raises(CheckpointError, match=r"figures is larger than 1023 bytes, and no such file is"):
        read(path, most=1023)
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(CheckpointError, match=r"larger than 1 MiB"):
        read(path, most=1 << 20)


def test_the_folder_above_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "figures").write_text("all")
    (tmp_path / "link").symlink_to("run")
    assert read(tmp_path / "link" / "figures") == b"all"


def test_links_pipes_folders_and_devices_are_refused_and_not_opened(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of its reader")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "astray").symlink_to(tmp_path / "nowhere")
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")  # which nobody writes to
    (tmp_path / "folder").mkdir()
    for name in ("link", "astray", "device"):
        with pytest.raises(CheckpointError, match=f"{name} is a link, .* and is not followed"):
            read(tmp_path / name)
    for name in ("pipe", "folder"):
        with pytest.raises(CheckpointError, match=f"{name} is no file, but a folder, a pipe or a device"):
            read(tmp_path / name)
    with pytest.raises(DataError, match="zero is no file"):
        read(Path("/dev/zero"), error=DataError)


def test_a_link_that_the_user_names_is_followed_and_leads_to_a_file(tmp_path: Path) -> None:
    """So Kubernetes mounts a ConfigMap: ``file.yaml -> ..data/file.yaml``, and ``..data -> ..2026_11_28``."""
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "file.yaml").write_text("name: shop")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "file.yaml").symlink_to("..data/file.yaml")
    assert read(tmp_path / "file.yaml", linked=True) == b"name: shop"
    (tmp_path / "device").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="device is no file"):
        read(tmp_path / "device", linked=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads what nobody may read")
def test_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "closed").write_text("")
    (tmp_path / "closed").chmod(0)
    with pytest.raises(CheckpointError, match="closed cannot be read: Permission denied"):
        read(tmp_path / "closed")


# --- JSON


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"a": 1, "a": 2}', "'a' comes twice"),
        (b'[{"b": {"a:c": 1, "a:c": 1}}]', "'a:c' comes twice"),
        (b'{"a": 1, "\\u0061": ":"}', "'a' comes twice"),
        (b'{"a": NaN}', "malformed"),
        (b'{"a": Infinity}', "malformed"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": "\xff"}', "utf-8"),
        (b'{"a": ', "truncated"),
        (b"", "truncated"),
        (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), "nested more than 64 deep"),
        (b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1), "nested more than 64 deep"),
        (b"[" + b"[]," * 10 + b"[]]", "at most 20 values, got up to 22"),
    ],
)
def test_what_is_no_strict_json_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decoded(text, most=20 if b"[]," in text else 1000)


def test_json_that_is_nested_beyond_every_measure_is_refused_too() -> None:
    with pytest.raises((ValueError, RecursionError)):
        decoded(b"[" * 1_000_000)


def test_as_deep_as_is_allowed_is_read() -> None:
    text = b"[" * DEEPEST + b"]" * DEEPEST
    assert json.dumps(decoded(text)).encode() == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_what_json_writes_is_read_as_it_was(value: Any) -> None:
    assert decoded(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")) == value


def test_infinite_numbers_are_read_where_they_belong() -> None:
    text = b'{"step": 1, "loss": Infinity, "score": -Infinity}'
    assert decoded(text, infinite=True) == {"step": 1, "loss": float("inf"), "score": -float("inf")}
    with pytest.raises(ValueError, match="NaN"):
        decoded(b'{"loss": Infinity, "other": NaN}', infinite=True)
    with pytest.raises(ValueError, match="'loss' comes twice"):
        decoded(b'{"loss": Infinity, "loss": 1}', infinite=True)


def test_a_file_of_another_format_or_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "half.json"
    file = UntrustedFile(path=path, remedy="train again")

    def found(text: str) -> str:
        path.write_text(text)
        with pytest.raises(CheckpointError) as caught:
            file.json(dict[str, Any], wanted="half", version=3)
        return str(caught.value)

    assert 'half.json does not begin with "format": "half"' in found("[]")
    assert 'half.json does not begin with "format": "half"' in found('{"format": "other", "version": 3}')
    assert found('{"format": "half"}').endswith("half.json has no version, expected 3; train again")
    assert found('{"format": "half", "version": 2}').endswith("has version 2, expected 3; train again")
    assert found('{"format": "half", "version": 4}').endswith("train again, or update splitvfl: a newer one made it")
    path.write_text('{"format": "half", "version": true}')
    with pytest.raises(CheckpointError, match="has version True, expected 1; train again"):
        file.json(dict[str, Any], wanted="half", version=1)
    path.write_text('{"format": "half", "version": 3}')
    assert file.json(dict[str, Any], wanted="half", version=3) == {"format": "half", "version": 3}
    assert file.has_format("half")
    assert not file.has_format("other")
    assert not UntrustedFile(path=tmp_path).has_format("half")


def test_texts_that_steer_a_terminal_are_made_printable(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"\\u001b[2J": ["a\\u202eb", 1, null]}')

    found = UntrustedFile(path=tmp_path / "a.json").json(dict[str, Any], sanitise=True)

    assert found == {"\\x1b[2J": ["a\\u202eb", 1, None]}


# --- tensors


def header(text: bytes, rest: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + rest


def head(shape: str, offsets: str = "[0, 4]", dtype: str = "F32") -> bytes:
    return f'{{"w": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}}}'.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        struct.pack("<Q", 1 << 62) + b"{}",
        header(b""),
        header(b"[]"),
        header(b"{", b""),
        header(head("[1]")),  # cut off
        header(head("[1]"), bytes(8)),  # more than it announces
        header(head("[1000000000000]"), bytes(4)),
        header(head("[-1]"), bytes(4)),
        header(head("[1, 1, 1, 1, 1, 1, 1, 1, 1]"), bytes(4)),
        header(head("[4294967296, 4294967296, 4294967296]"), bytes(4)),
        header(head("[1]", dtype="X9"), bytes(4)),
        header(head("[1]")[:-1] + b', "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', bytes(4)),
        header(b'{"__metadata__": {"a": 1}}'),
    ],
)
def test_what_is_no_safetensors_file_is_refused_before_memory_is_taken(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"weights\.safetensors is damaged"):
        UntrustedFile(path=path).tensor_heads()
    with pytest.raises(CheckpointError, match=r"weights\.safetensors is damaged"):
        UntrustedFile(path=path).tensors()


def test_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    kinds = (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    )
    written = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in kinds} | {"none": torch.zeros(0, 4)}
    path = tmp_path / "weights.safetensors"
    path.write_bytes(save(written, metadata={"of": "bank"}))
    file = UntrustedFile(path=path)
    found = file.tensors()
    assert found.keys() == written.keys()
    assert all(torch.equal(found[name], written[name]) for name in written)
    heads, metadata = file.tensor_heads()
    assert metadata == {"of": "bank"}
    assert heads["torch.int64"].shape == (2, 3)


def test_a_file_with_a_hole_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(header(head("[268435456000]", "[0, 1073741824000]")))
    os.truncate(path, path.stat().st_size + 1_073_741_824_000)
    with pytest.raises(CheckpointError, match="larger than 1 GiB"):
        UntrustedFile(path=path, most=1 << 30).tensors()
    with pytest.raises(CheckpointError, match="larger than 1 GiB"):
        UntrustedFile(path=path, most=1 << 30).digest()


# --- arrays


def npy(array: Any, *, cut: int = 0, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()[: len(file.getvalue()) - cut]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        npy(np.arange(6), cut=1),
        npy(np.arange(6)) + b"\x00",
        npy(np.array([{}], object), allow_pickle=True),
        npy(np.arange(6)).replace(b"(6,), ", b"(1<<9,"),
        npy(np.arange(6)).replace(b"(6,), }", b"(-6,),}"),
    ],
)
def test_what_is_no_array_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.npy"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"rows\.npy is damaged"):
        UntrustedFile(path=path).array()


@pytest.mark.parametrize("array", [np.arange(6), np.asfortranarray(np.eye(3, 2)), np.zeros((0, 2), np.float32)])
def test_arrays_are_read_as_they_were_written(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, array)
    found = UntrustedFile(path=path).array()
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


# --- checkpoints


def archive(change: Callable[[zipfile.ZipFile], None], compression: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as made:
        change(made)
    return content.getvalue()


def repacked(weights: torch.Tensor, compression: int) -> bytes:
    content = io.BytesIO(saved({"w": weights}))
    with zipfile.ZipFile(content) as known:
        entries = {name: known.read(name) for name in known.namelist()}
    return archive(lambda made: [made.writestr(name, data) for name, data in entries.items()] and None, compression)


def pickled(code: bytes) -> bytes:
    def fill(made: zipfile.ZipFile) -> None:
        made.writestr("archive/data.pkl", b"\x80\x02" + code + b".")
        made.writestr("archive/version", b"3\n")
        made.writestr("archive/byteorder", b"little")

    return archive(fill)


def saved(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


RANDOM = torch.randint(0, 256, (1 << 16,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def encrypted() -> bytes:
    content = bytearray(saved({"step": 1}))
    content[content.index(b"PK\x03\x04") + 6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def overlapping() -> bytes:
    """Return an archive whose directory names one entry a thousand times."""
    content = archive(lambda made: made.writestr("archive/data.pkl", bytes(1 << 12)))
    end = content.rindex(b"PK\x05\x06")
    start = struct.unpack("<I", content[end + 16 : end + 20])[0]
    entries = content[start:end] * 1000
    tail = bytearray(content[end:])
    tail[8:12] = struct.pack("<HH", 1000, 1000)
    tail[12:16] = struct.pack("<I", len(entries))
    return content[:start] + entries + bytes(tail)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is damaged"),
        (b"\x80\x02}q\x00.", "is damaged"),  # a bare pickle
        (saved([1, 2]), "is damaged"),
        (saved({"w": torch.ones(3)})[:-40], "is damaged"),
        (repacked(torch.zeros(1 << 20), zipfile.ZIP_DEFLATED), "announces more than the file holds"),
        (repacked(RANDOM, zipfile.ZIP_DEFLATED), "announces more than the file holds"),
        (encrypted(), "is damaged"),
        (overlapping(), "announces more than the file holds"),
        (pickled(b"cos\nsystem\n(X\x02\x00\x00\x00lstR"), "more than tensors and plain values"),
        # Bytes of zeros, as many as it likes, made by ten bytes of a pickle.
        (pickled(b"cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR"), "would fill the memory"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "run.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        UntrustedFile(path=path).checkpoint()


@pytest.mark.parametrize("is_64", [False, True])
def test_a_directory_of_many_entries_is_refused_before_it_takes_memory(tmp_path: Path, is_64: bool) -> None:
    """Both records say that there is one entry: zipfile goes by the directory's length alone."""
    content = saved({"step": 1})
    end = content.rindex(b"PK\x05\x06")
    start = struct.unpack("<I", content[end + 16 : end + 20])[0]
    directory = struct.pack("<4s42x", b"PK\x01\x02") * 400_000
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(directory), start)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, start + len(directory), 1)
    ends = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 0 if is_64 else len(directory), start, 0)
    path = tmp_path / "run.pt"
    path.write_bytes(content[:start] + directory + (record + locator if is_64 else b"") + ends)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="a directory of 18,400,000 bytes, as no checkpoint has"):
            UntrustedFile(path=path).checkpoint()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_zip64_locator_without_its_record_is_of_no_archive() -> None:
    """A reader that looks for the record elsewhere would see another directory than the one that was looked at."""
    content = saved({"step": 1})
    found = archive_directory(io.BytesIO(content))
    assert found is not None
    assert found.is_64
    assert found.entries == len(zipfile.ZipFile(io.BytesIO(content)).infolist())
    place = content.rindex(b"PK\x06\x07")
    assert archive_directory(io.BytesIO(content[:place] + bytes(4) + content[place:])) is None


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = {"w": torch.arange(5.0), "step": 3, "name": "bytearray", "inner": {"list": [1, None, "x"], "b": b"\x00"}}
    path = tmp_path / "run.pt"
    torch.save(written, path)
    found = UntrustedFile(path=path).checkpoint()
    assert torch.equal(found.pop("w"), written.pop("w"))  # type: ignore[arg-type]
    assert found == written


# --- writing


@pytest.mark.parametrize("alone", [True, False])
def test_a_file_is_written_whole_and_through_no_link(tmp_path: Path, alone: bool) -> None:
    (tmp_path / "victim").write_text("mine")
    path = tmp_path / "figures.json"
    path.symlink_to(tmp_path / "victim")
    (tmp_path / ".figures.json").symlink_to(tmp_path / "victim")  # where a draft may lie
    write_whole(path, b"all", alone=alone)
    assert path.read_bytes() == b"all"
    assert not path.is_symlink()
    assert (tmp_path / "victim").read_text() == "mine"
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_written_leaves_the_earlier_file_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", b"all")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("how", ["wb", "ab", "r+b", "xb"])
def test_no_link_is_opened_to_be_written(tmp_path: Path, how: Any) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="link"):
        open_own(tmp_path / "link", how)
    assert (tmp_path / "victim").read_text() == "mine"


def test_no_pipe_is_waited_at_when_it_is_to_be_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        open_own(tmp_path / "pipe", "ab")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_new_file_can_be_made_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def without(*names: object, **how: object) -> None:
        raise OSError(number, "no hard links here")

    monkeypatch.setattr(os, "link", without)
    write_new(tmp_path / "key", b"k" * 32)
    assert (tmp_path / "key").read_bytes() == b"k" * 32
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "key", b"other")
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_new_file_replaces_nothing_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_new(tmp_path / "key", b"first")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "key", b"second")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "link", b"third")
    assert (tmp_path / "key").read_bytes() == b"first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "link"]


def test_nothing_stays_of_a_new_file_that_fails_and_what_was_there_stays(tmp_path: Path) -> None:
    with pytest.raises(TypeError), new_file(tmp_path / "half") as file:
        file.writelines([b"...", None])  # type: ignore[list-item]
    (tmp_path / "there").write_bytes(b"mine")
    with pytest.raises(FileExistsError), new_file(tmp_path / "there"):
        pass
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"there": b"mine"}


@pytest.mark.parametrize("indent", [0, 1, 2])
def test_json_is_written_as_python_writes_it(tmp_path: Path, indent: int) -> None:
    value = {"run": "3f", "step": 12, "inner": {"list": [1, None, True], "empty": [], "none": {}}}
    write_json(tmp_path / "a.json", value, indent=indent)
    assert (tmp_path / "a.json").read_text() == json.dumps(value, indent=indent or None) + "\n"
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o600


def test_what_the_user_names_is_written_through_links_and_into_pipes(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_text("something longer")
    write_named(tmp_path / "link", b"all", mode=0o600)
    assert (tmp_path / "target").read_bytes() == b"all"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_named(tmp_path / "pipe", b"into it")
        assert os.read(reader, 100) == b"into it"
    finally:
        os.close(reader)
    write_named(tmp_path / "new", b"", mode=0o600)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_what_is_added_to_a_file_is_on_the_disk_and_so_is_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.readlink(f"/proc/self/fd/{number}")))
    for line in (b"one\n", b"two\n"):
        append_bytes(tmp_path / "journal", line)
    assert (tmp_path / "journal").read_bytes() == b"one\ntwo\n"
    assert flushed == [str(tmp_path / "journal"), str(tmp_path), str(tmp_path / "journal")]
    (tmp_path / "link").symlink_to(tmp_path / "journal")
    with pytest.raises(OSError, match="link"):
        append_bytes(tmp_path / "link", b"three\n")
