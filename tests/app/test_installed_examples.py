"""Examples are written out of the package, and what somebody has changed stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitvfl.app.examples import COMPANIES, described, examples
from splitvfl.cli import main
from splitvfl.config.sections import load_config


def test_every_example_says_in_its_first_lines_what_it_shows() -> None:
    assert all(len(summary) > 20 for summary in described().values())


def test_an_example_is_written_as_it_is_and_is_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["examples", "three-parties", "digits", "--out", str(tmp_path / "new")]) == 0

    said = capsys.readouterr().out
    for name in ("three_parties", "digits"):
        path = tmp_path / "new" / f"{name}.yaml"
        assert path.read_text() == examples()[name].text
        assert load_config(path).name == name
        assert f"splitvfl train {path}" in said


def test_what_somebody_has_changed_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "digits.yaml"
    assert main(["examples", "digits", "--out", str(tmp_path)]) == 0
    assert main(["examples", "digits", "--out", str(tmp_path)]) == 0  # the same again is no loss
    path.write_text("data: mine")

    assert main(["examples", "digits", "--out", str(tmp_path)]) == 2
    assert "--out" in capsys.readouterr().err
    assert path.read_text() == "data: mine"


def test_a_link_to_nothing_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "digits.yaml").symlink_to(tmp_path / "elsewhere")

    assert main(["examples", "digits", "--out", str(tmp_path)]) == 2
    assert "is a link; name another folder with --out" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()


def test_an_unknown_name_is_told_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples", "digts", "--out", str(tmp_path)]) == 2
    assert "did you mean digits?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_companies_get_a_folder_each(tmp_path: Path) -> None:
    assert main(["examples", COMPANIES, "--out", str(tmp_path)]) == 0

    assert {path.parent.name for path in tmp_path.glob("companies/*/tumour.yaml")} == {"clinic", "lab", "imaging"}


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in [*examples(), COMPANIES])
