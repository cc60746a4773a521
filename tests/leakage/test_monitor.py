"""Numbers of a run, as lines of JSON and as TensorBoard events."""

from __future__ import annotations

import math
import resource
import threading
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from splitvfl.errors import CheckpointError
from splitvfl.leakage.monitor import Monitor, read_metrics


def events(folder: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_the_same_numbers_go_to_both(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "runs" / "one")
    monitor.write(1, {"loss": 0.5, "leak_auc/x": 0.75})
    monitor.write(2, {"loss": 0.25})
    monitor.close()
    assert read_metrics(tmp_path / "runs" / "one") == [
        {"step": 1, "loss": 0.5, "leak_auc/x": 0.75},
        {"step": 2, "loss": 0.25},
    ]
    assert events(tmp_path / "runs" / "one", "loss") == [(1, 0.5), (2, 0.25)]  # exact in float32
    assert events(tmp_path / "runs" / "one", "leak_auc/x") == [(1, 0.75)]


def test_undefined_values_are_left_out_and_a_step_of_nothing_else_too(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    monitor.write(1, {"a": math.nan, "b": 0.5})
    monitor.write(2, {"a": math.nan})
    monitor.write(3, {})
    monitor.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "b": 0.5}\n'


def test_what_was_written_after_the_checkpoint_is_discarded_on_resuming(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    monitor.write(1, {"loss": 0.5})
    offset = monitor.flush()
    assert offset == (tmp_path / "metrics.jsonl").stat().st_size
    monitor.write(2, {"loss": 9.0})
    monitor.write(3, {"loss": 9.0})
    monitor.close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "lo')  # killed in the middle of a line
    again = Monitor(tmp_path, resume_at=(offset, 1))
    again.write(2, {"loss": 0.25})
    assert again.flush() == (tmp_path / "metrics.jsonl").stat().st_size
    again.close()
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    assert events(tmp_path, "loss") == [(1, 0.5), (2, 0.25)]


def test_a_file_that_lost_its_end_with_the_power_is_cut_back_to_a_whole_line(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    for step in (1, 2, 3):
        monitor.write(step, {"loss": 0.5})
    offset = monitor.flush()
    monitor.close()
    with (tmp_path / "metrics.jsonl").open("r+b") as file:
        file.truncate(offset - 4)
    again = Monitor(tmp_path, resume_at=(offset, 3))
    again.write(4, {"loss": 0.25})
    again.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 4]


def test_a_full_disk_is_named_and_a_second_close_does_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    monitor = Monitor(tmp_path)
    monitor.write(1, {"loss": 0.5})
    offset = monitor.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (offset, before[1]))
    try:
        with pytest.raises(CheckpointError, match="cannot write metrics in"):
            monitor.write(2, {"loss": 0.25})  # of the event file
        with pytest.raises(CheckpointError, match="cannot write metrics in"):
            monitor.flush()
        with pytest.raises(CheckpointError, match="cannot write metrics in"):
            monitor.close()
        monitor.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 0.5}]


def test_a_new_run_begins_a_new_file(tmp_path: Path) -> None:
    for value in (0.5, 0.25):
        monitor = Monitor(tmp_path)
        monitor.write(1, {"loss": value})
        monitor.close()
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 0.25}]


def test_without_a_folder_nothing_is_kept() -> None:
    monitor = Monitor(None)
    monitor.write(1, {"loss": 0.5})
    assert monitor.flush() == 0
    monitor.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match="file"):
        Monitor(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        Monitor(tmp_path / "gone", resume_at=(10, 1))


def test_reading_names_the_damaged_line_and_finds_nothing_where_nothing_is(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    with pytest.raises(CheckpointError, match=r"metrics.jsonl:2: not a line of JSON"):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[]",
        b'{"loss": 1}',
        b'{"step": 1',
        b'{"step": 1, "loss": "low"}',
        b'{"step": 1, "loss": null}',
        b'{"step": 1, "loss": 1' + 400 * b"0" + b"}",
        b'{"step": 1, "loss": 1' + 5000 * b"0" + b"}",
        b"[" * 100_000,
    ],
    ids=lambda line: line[:26].decode("latin-1"),
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 0.5}\n' + line + b"\n")

    with pytest.raises(CheckpointError, match=r"metrics\.jsonl:2"):
        read_metrics(tmp_path)


def event_files(folder: Path) -> int:
    return len(list(folder.glob("events.out.tfevents.*")))


def test_an_event_file_is_begun_with_the_first_value(tmp_path: Path) -> None:
    """A meeting that comes to nothing leaves none behind, and no thread."""
    before = threading.active_count()
    for _ in range(3):
        monitor = Monitor(tmp_path)
        monitor.write(1, {})
        monitor.write(2, {"a": math.nan})
        assert monitor.flush() == 0
        assert threading.active_count() == before
        monitor.close()
    assert event_files(tmp_path) == 0
    monitor = Monitor(tmp_path)
    monitor.write(1, {"a": 0.5})
    assert event_files(tmp_path) == 1
    offset = monitor.flush()
    monitor.close()
    for _ in range(3):
        again = Monitor(tmp_path, resume_at=(offset, 1))
        assert again.flush() == offset
        again.close()
    assert event_files(tmp_path) == 1


def test_what_was_discarded_goes_with_the_next_value(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    for step in (1, 2, 3):
        monitor.write(step, {"loss": float(step)})
    monitor.close()
    for _ in range(2):  # two meetings that come to nothing
        Monitor(tmp_path, resume_at=((tmp_path / "metrics.jsonl").stat().st_size // 3, 1)).close()
    again = Monitor(tmp_path, resume_at=((tmp_path / "metrics.jsonl").stat().st_size, 1))
    again.write(2, {"loss": 9.0})
    again.close()
    assert events(tmp_path, "loss") == [(1, 1.0), (2, 9.0)]


@pytest.mark.parametrize("older", ["1000000000.host.9", "4000000000.host.10.99"])
def test_a_resumed_run_is_read_after_every_older_file(tmp_path: Path, older: str) -> None:
    """TensorBoard sorts by name: a counter that goes from 9 to 10 and a clock that went back must change nothing."""
    monitor = Monitor(tmp_path)
    for step in (1, 2, 3):
        monitor.write(step, {"loss": 1.0})
    offset = monitor.flush() // 3
    monitor.close()
    (only,) = tmp_path.glob("events.out.tfevents.*")
    only.rename(tmp_path / f"events.out.tfevents.{older}")
    for value in (2.0, 3.0):
        monitor = Monitor(tmp_path, resume_at=(offset, 1))
        monitor.write(2, {"loss": value})
        monitor.close()
    assert events(tmp_path, "loss") == [(1, 1.0), (2, 3.0)]
    assert event_files(tmp_path) == 3


def test_an_event_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.of-another-program").touch()
    Monitor(tmp_path).close()
    monitor = Monitor(tmp_path)
    monitor.write(1, {"loss": 0.5})
    monitor.close()
    assert events(tmp_path, "loss") == [(1, 0.5)]
    assert event_files(tmp_path) == 2


def test_values_can_be_watched_while_the_run_goes_on(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    monitor.write(1, {"loss": 0.5, "leak_auc/x": 0.75})
    assert events(tmp_path, "loss") == [(1, 0.5)]
    monitor.close()
