"""What a person sees of a run in a notebook: short lines, tables, and a bar."""

from __future__ import annotations

import io
import re
import sys

import pytest
import torch
from rich.console import Console

from splitvfl import ActiveParty, PassiveParty, Trainer, load
from splitvfl.attacks import NormAttack
from splitvfl.data.columns import VerticalData
from splitvfl.leakage.leak_table import LeakTable
from splitvfl.models import Linear, LinearTop
from splitvfl.run.progress_bar import progress_bar
from splitvfl.run.results import Results


@pytest.fixture(scope="module")
def data() -> VerticalData:
    return load("breast-cancer", active="mean *", passive={"lab": "rest"})


def made(data: VerticalData) -> Trainer:
    torch.manual_seed(0)
    return Trainer(
        ActiveParty(data.active, LinearTop(passives=1, active_inputs=data.active.width)),
        {"lab": PassiveParty(data["lab"], Linear(data["lab"].width))},
        attacks=[NormAttack()],
        batch_size=64,
    )


@pytest.fixture(scope="module")
def trained(data: VerticalData) -> tuple[Trainer, Results]:
    trainer = made(data)
    return trainer, trainer.fit(2)


def test_everything_is_a_line(data: VerticalData, trained: tuple[Trainer, Results]) -> None:
    trainer, results = trained
    said = {
        repr(data): r"VerticalData\('breast-cancer', binary; columns: active 10, lab 20; 440 training and 129 test",
        repr(data["lab"]): r"PartyData\('lab': 20 columns, 440 training and 129 test records\)",
        repr(data.active.train): r"Records\(440 records of 10 numbers and 0 codes, with labels\)",
        repr(data["lab"].test.columns): r"Columns\(129 records of 20 numbers and 0 codes\)",
        repr(trainer): r"<Trainer of active and lab: step 14, test auc \d\.\d+, test loss \d\.\d+, worst leak 1\.00 \(",
        repr(trainer.active): r"<ActiveParty active: LinearTop of 11 weights, PartyData\('active': 10 columns",
        repr(trainer.passives["lab"]): r"<PassiveParty lab: Linear of 20 weights, PartyData\('lab'",
        repr(trainer.leaks["lab"]["norm"]): r"<Leak of norm: AUC 0\.\d+ a step, 0\.\d+ accumulated, worst 0\.\d+>",
        repr(trainer.audits["lab"]): r"<Audit: worst 1\.000 by messages, 1\.000 in all>",
        repr(results): r"\{'auc': [\d.]+, 'loss': [\d.]+\}$",
    }
    for line, pattern in said.items():
        assert re.match(pattern, line), line
        assert len(line) < 200
        assert "\n" not in line


def test_before_the_first_step_too(data: VerticalData) -> None:
    trainer = made(data)

    assert repr(trainer) == "<Trainer of active and lab: step 0>"
    assert "nan" in repr(trainer.leaks["lab"]["norm"])
    assert "<td>norm</td><td>–</td>" in trainer.leaks._repr_html_()


def test_results_are_the_mapping_that_they_were_and_a_table(trained: tuple[Trainer, Results]) -> None:
    trainer, results = trained

    assert results == trainer.test == dict(results)
    shown = results._repr_html_()
    assert f"<td>test auc</td><td>{results['auc']:.3f}</td>" in shown
    assert "worst leak AUC (auditor-" in shown
    assert "<td>lab</td><td>1.000</td>" in shown
    assert Results({"auc": 0.5})._repr_html_().count("<table>") == 1


def test_leaks_are_a_table_with_the_judges_figures(trained: tuple[Trainer, Results]) -> None:
    trainer, _ = trained
    leak = trainer.leaks["lab"]["norm"]

    assert f"<td>lab</td><td>norm</td><td>{leak.auc:.3f}</td>" in trainer.leaks._repr_html_()
    table = LeakTable.of(trainer.watch)
    columns = table.columns()
    assert columns["attack"][:2] == ["in total", "beyond the prediction"]
    assert columns["worst"][columns["attack"].index("norm")] == trainer.summaries("lab")["norm"].worst
    assert "<td>norm</td>" in table._repr_html_()


def test_what_users_call_their_parties_is_no_markup() -> None:
    assert "<td>&lt;b&gt;</td>" in Results({"<b>": 1.0})._repr_html_().replace("test ", "")


def test_progress_is_shown_where_output_is_no_terminal_in_a_few_lines(
    data: VerticalData, trained: tuple[Trainer, Results], capsys: pytest.CaptureFixture[str]
) -> None:
    results = made(data).fit(2, progress=True)

    assert results == trained[1]
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert 2 <= len(lines) <= 20
    assert re.match(rf"epoch 2/2  loss \d\.\d+  test {results['auc']:.3f}  worst leak 1\.00 \(", lines[-1])
    made(data).fit(1, progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(data: VerticalData) -> None:
    drawn = io.StringIO()

    with progress_bar(console=Console(file=drawn, force_terminal=True, width=100)) as show:
        made(data).fit(1, progress=show)

    assert "epoch 1/1" in drawn.getvalue()
    assert "7/7" in drawn.getvalue()


def test_a_notebook_that_cannot_draw_a_bar_gets_lines(data: VerticalData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    lines: list[object] = []

    class Notebook(Console):
        is_jupyter = True  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__(force_jupyter=True)

        def print(self, *written: object, **_: object) -> None:
            lines.extend(written)

    with progress_bar(console=Notebook()) as show:
        made(data).fit(1, progress=show)

    assert str(lines[-1]).startswith("epoch 1/1  loss")
