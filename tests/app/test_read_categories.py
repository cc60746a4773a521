"""What is read of a partner's categories: in one process, by the partner itself over a network, and beforehand."""

from __future__ import annotations

import json
import random
import threading
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from splitvfl.app.activation_forecast import DRAWS, forecast_activations
from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import RunSummary, read_summary
from tests.run.parties import free_ports

FILE = """
data: {{name: table, path: clicks.csv, label: y, categorical_columns: [city, ad, site, user]}}
parties:
  shop: {{role: active, columns: [city, price], address: "127.0.0.1:{port}"}}
  paper: {{role: passive, columns: [ad, site, user, hour]}}
model: {{name: wide-deep, embedding_dim: 3, bottom: [8]}}
train: {{epochs: 2, batch_size: 64, device: cpu, private_seed_for_experiments: 1}}
network: {{listen: "127.0.0.1:{port}", plaintext_on_loopback: true, meeting_s: 60, message_s: 60}}
attacks: [{{name: ridge, known_share: 0.3}}, white-box-inversion]
"""
FIELDS = {"ad", "site"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks")
    draw = random.Random(0)
    lines = ["city,price,ad,site,user,hour,y"]
    for row in range(400):
        ad, site = draw.choices("abc", [5, 3, 2])[0], draw.choices("xy", [6, 4])[0]
        lines.append(f"c{row % 5},{draw.random()},{ad},{site},u{row},{draw.random()},{int(ad == 'a')}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("clicks.csv").write_text("\n".join(lines) + "\n")
        Path("run.yaml").write_text(FILE.format(port=free_ports(1)[0]))
        assert main(["train", "run.yaml", "--out", "together"]) == 0

        def take_part(name: str) -> int:
            return main(["party", "run.yaml", "--as", name, "--out", name])

        with redirect_stdout(StringIO()) as said:
            other = threading.Thread(target=take_part, args=("shop",))
            other.start()
            assert take_part("paper") == 0
            other.join()
    Path(folder, "said").write_text(said.getvalue())
    return folder


def paper(run: Path) -> tuple[RunSummary, PartyResult]:
    summary = read_summary(run)
    return summary, summary.parties["paper"]


def test_a_run_in_one_process_reads_fields_and_says_which_it_leaves_out(here: Path) -> None:
    _, party = paper(here / "together")
    (reading,) = party.readings
    assert {one.column for one in reading.columns} == FIELDS | {"hour"}
    assert {one.column for one in reading.columns if one.right is not None} == FIELDS
    for one in reading.columns:
        if one.right is not None:
            assert one.share == pytest.approx(max(0.0, (one.right - one.commonest) / (1 - one.commonest)))  # type: ignore[operator]
    assert reading.too_many == ["user"]
    assert "has categories, and a bottom model that looks them up" in party.unavailable["white-box-inversion"]
    last = [json.loads(line) for line in (here / "together" / "metrics.jsonl").read_text().splitlines()][-1]
    logged = {tag.rpartition("/")[2]: value for tag, value in last.items() if tag.startswith("categories_right/paper/")}
    assert logged == pytest.approx({one.column: one.right for one in reading.columns if one.right is not None})


def test_over_a_network_the_party_reads_itself_live_and_when_it_has_trained(here: Path) -> None:
    _, own = paper(here / "paper")
    again = own.readings[1:]
    assert [one.attack for one in again] == ["ridge", "inverse-network"]
    assert [one.standing_still for one in own.readings] == [False, True, True]
    assert [one.evaluation is not None for one in own.readings] == [True, False, False]
    for one in own.readings:
        assert {column.column for column in one.columns if column.right is not None} == FIELDS
    said = " ".join(Path(here, "said").read_text().split())
    assert "of 2 categorical fields what is right beyond the most frequent category" in said


def test_a_forecast_reads_categories_that_first_weights_look_up(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three numbers hold three categories whatever they are drawn as; the layer of 8 behind them bends them."""
    monkeypatch.chdir(here)
    found = forecast_activations(load_config(Path("run.yaml")), "paper")
    assert len(found.readings) == 2 * DRAWS
    assert found.most is not None
    told = {one.column: one for one in found.most.columns}
    # A standard error of what 200 records are right by chance is at most .035.
    assert max((told[name].right or 0.0) - (told[name].commonest or 0.0) for name in FIELDS) > 0.15
    assert "of its 3 features (of numbers the variance, of 2 categorical fields" in found.sentence
    assert found.sentence.endswith("Left out, as they have more than 32 categories: user.")
