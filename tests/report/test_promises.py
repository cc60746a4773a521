"""What a report says first is promised: by a budget, by defenses, or nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import escape

from splitvfl.app.experiment import run_experiment
from splitvfl.cli import main
from splitvfl.config.sections import parse_config
from splitvfl.report.promises import promise
from splitvfl.report.report import write_report
from splitvfl.report.summary import ExchangeTraits, RunSummary, SpentPrivacy, read_summary

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: {name: logistic-regression, init: zero, row_norm: 1.0}
exchange: EXCHANGE
train: {epochs: 2, batch_size: all, optimizer: {name: sgd, lr: 0.1}}
audit: false
defenses: DEFENSES
"""


def guarantees(folder: Path, *, exchange: str = "split", defenses: str = "[]") -> tuple[RunSummary, str]:
    text = TEXT.replace("EXCHANGE", exchange).replace("DEFENSES", defenses)
    run_experiment(parse_config(text, source="promises.yaml"), folder / "run")
    page = write_report([folder / "run"], folder / "report.html", title="Promises").read_text("utf-8")
    return read_summary(folder / "run"), page.split("<h3>Guarantees</h3>")[1].split("</table>")[0]


@pytest.mark.parametrize(
    ("exchange", "defenses", "said"),
    [
        (
            "{name: split, noise: {epsilon: 1.0, delta: 0.001}}",
            "[]",
            "all that lab sends in the run is (1, 0.001)-differentially private in one row of its own for clinic",
        ),
        (
            "split",
            "[{name: laplace-residue, epsilon: 1.0}]",
            "each message is 0.5-differentially private in the label of a record",
        ),
        (
            "split",
            "[{name: laplace-residue, epsilon: 1.0}]",
            "of the whole run nothing is promised: clinic learns its own columns",
        ),
        (
            "{name: split, own_part: sent}",  # two epochs at half of ε each
            "[{name: laplace-residue, epsilon: 1.0}]",
            "all messages of the run together are 1-differentially private in the label of a record",
        ),
        ("split", "[max-norm]", "max-norm: promises nothing of what anybody learns"),
        ("split", "[]", "none. What messages reveal is known"),
    ],
)
def test_a_report_says_what_is_promised(exchange: str, defenses: str, said: str, tmp_path: Path) -> None:
    summary, first = guarantees(tmp_path, exchange=exchange, defenses=defenses)
    assert said in first
    assert said in promise(summary)


def test_what_was_said_before_the_first_step_is_pointed_to_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TEXT.replace("EXCHANGE", "{name: split, noise: {epsilon: 1.0, delta: 0.001}}").replace("DEFENSES", "[]")
    (tmp_path / "one.yaml").write_text(text)
    assert main(["train", str(tmp_path / "one.yaml"), "--out", str(tmp_path / "run")]) == 0
    told = capsys.readouterr()
    out, before = " ".join(told.out.split()), " ".join(told.err.split())
    notes = read_summary(tmp_path / "run").notes
    for note in notes:
        assert (" ".join(note.split()) in out) is note.startswith("Spent on"), note
        assert (" ".join(note.split()) in before) is not note.startswith("Spent on"), note
    assert "are kept in" in out
    report = write_report([tmp_path / "run"], tmp_path / "report.html", title="t").read_text("utf-8")
    assert all(escape(note) in report for note in notes)


def plain(**changed: object) -> RunSummary:
    made = RunSummary("n", "d", "binary", "m", [], 0, 1, 1, 8, "auc", 0, {})
    return replace(made, **changed)  # type: ignore[arg-type]


def test_a_loss_is_never_written_smaller_than_it_is() -> None:
    spent = SpentPrivacy(["a"], ["b"], "row", 1.2301, 1e-3, 0.1, 0.1, 2, 1.2301, 2)
    assert "(1.24, 0.001)-differentially private" in promise(plain(privacy=[spent]))
    assert "not differentially private with any finite ε" in promise(plain(privacy=[replace(spent, epsilon=None)]))
    outsider = promise(plain(privacy=[replace(spent, relation="record")]))
    assert outsider.startswith("towards an outsider who reads every message")


def test_what_was_not_noted_is_not_called_nothing() -> None:
    assert "not noted" in promise(plain(defenses=["max-norm"]))
    assert "no message of training" in promise(plain(exchange_traits=ExchangeTraits(one_way=True)))
