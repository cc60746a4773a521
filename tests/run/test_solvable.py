"""Over a network the label owner's console says before step 1 what each partner can solve for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.parties import SHORT_KEYS, finished, free_ports, start_party
from tests.summaries import opened

TEXT = """
data: {name: breast-cancer, test_fraction: 0.9}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error"]}
  shop: {role: passive, columns: ["worst *"]}
model: {name: logistic-regression, init: zero, row_norm: 1.0}
exchange: {name: EXCHANGE, encryption: {key_bits: 2048}}
train: {epochs: 1, batch_size: 8, seed: 1, optimizer: {name: sgd, lr: 0.02}}
network: {listen: "127.0.0.1:PORT", plaintext_on_loopback: true, meeting_s: 20}
"""


@pytest.mark.parametrize(
    "exchange",
    [
        "residue",
        pytest.param("taylor", marks=pytest.mark.slow(reason="processes that train")),
        pytest.param("coordinator", marks=pytest.mark.slow(reason="processes that train")),
    ],
)
def test_the_label_owner_reads_it_before_step_1(exchange: str, tmp_path: Path, checkout: Path) -> None:
    text = TEXT.replace("PORT", str(free_ports(1)[0])).replace("EXCHANGE", exchange)
    (tmp_path / "run.yaml").write_text(text)
    names = ["clinic", "lab", "shop", *(["coordinator"] if exchange == "coordinator" else [])]
    said = finished(
        {name: start_party(checkout, tmp_path, "run.yaml", name, within=SHORT_KEYS) for name in names},
    )
    console = " ".join(said["clinic"].split())
    summary = opened(tmp_path / "runs" / "clinic" / "summary.json")
    records = summary["solvable"][0]["of"]
    honest = [one for one in summary["solvable"] if one["computation"] != "packing"]
    assert len(summary["solvable"]) == 2 * len(honest)
    for partner in ("lab", "shop"):
        line = f"{partner} can solve for {records} of {records} labels after 1 epoch."
        assert 0 <= console.find(line) < console.find("epoch 1/1")
        assert any(note.startswith(line) for note in summary["notes"])
        assert " labels after 1 epoch" not in said[partner]
    assert {one["partner"]: (one["features"], one["labels"], one["exact"]) for one in honest} == {
        "lab": (10, "true", True),
        "shop": (10, "true", True),
    }


def test_a_leak_check_at_the_label_owner_stops_before_step_1(tmp_path: Path, checkout: Path) -> None:
    text = TEXT.replace("PORT", str(free_ports(1)[0])).replace("EXCHANGE", "residue")
    # So long the partners dial once more, in vain.
    (tmp_path / "run.yaml").write_text(text.replace("meeting_s: 20", "meeting_s: 2"))
    parties = {
        name: start_party(
            checkout,
            tmp_path,
            "run.yaml",
            name,
            *(["--fail-above", "0.6"] if name == "clinic" else []),
            within=SHORT_KEYS,
        )
        for name in ("clinic", "lab", "shop")
    }
    ends = {name: (*party.communicate(timeout=60), party.returncode) for name, party in parties.items()}
    errors = " ".join(ends["clinic"][1].split())
    assert "leak check failed before step 1: above goal 0.6: lab can solve for" in errors
    assert {name: end[2] for name, end in ends.items()} == {"clinic": 3, "lab": 2, "shop": 2}
    assert not list((tmp_path / "runs").rglob("*.safetensors"))
    assert not list((tmp_path / "runs").rglob("checkpoints/*"))


def test_a_partner_cannot_check_what_others_learn(tmp_path: Path, checkout: Path) -> None:
    text = TEXT.replace("PORT", str(free_ports(1)[0])).replace("EXCHANGE", "residue")
    (tmp_path / "run.yaml").write_text(text)
    _, errors = start_party(checkout, tmp_path, "run.yaml", "lab", "--fail-above", "0.6").communicate(timeout=60)
    assert "splitvfl: --fail-above: lab has no labels" in errors


@pytest.mark.slow(reason="processes that train")
@pytest.mark.parametrize(
    ("defenses", "code", "said"),
    [
        ("[]", 4, "undecided: lab → clinic's labels: inconclusive (goal 0.60): not measured; decided by"),
        ("[{name: asymmetric-response, detection_error: 0.4}]", 0, "passed: lab → clinic's labels: below goal"),
    ],
)
def test_the_label_owner_ends_with_the_code_of_its_verdict(
    defenses: str, code: int, said: str, tmp_path: Path, checkout: Path
) -> None:
    text = TEXT.replace("PORT", str(free_ports(1)[0])).replace('["* error"]', "rest")
    text = text.replace("{name: EXCHANGE, encryption: {key_bits: 2048}}", "split").replace(
        '  shop: {role: passive, columns: ["worst *"]}\n', ""
    )
    (tmp_path / "run.yaml").write_text(f"{text}defenses: {defenses}\n")
    more = {"clinic": ["--fail-above", "0.6"], "lab": []}
    parties = {name: start_party(checkout, tmp_path, "run.yaml", name, *own) for name, own in more.items()}
    ends = {name: (*party.communicate(timeout=60), party.returncode) for name, party in parties.items()}
    assert {name: end[2] for name, end in ends.items()} == {"clinic": code, "lab": 0}
    assert f"leak check {said}" in " ".join(ends["clinic"][1].split())
