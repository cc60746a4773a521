"""From a party's own file to objects: what is refused before anybody is dialled."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitvfl.config import parse_config
from splitvfl.deployment import own_name, party_run
from splitvfl.errors import ConfigError

OWN_FILE = """
data: {{name: table, path: lab.csv, id_column: patient}}
parties:
  clinic: {{role: active, address: "127.0.0.1:7000"}}
  lab: {{role: passive, columns: rest}}
network: {{plaintext_on_loopback: true}}
defenses: [{defense}]
"""

SHARED_FILE = """
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:7000"}
  lab: {role: passive, columns: rest}
network: {plaintext_on_loopback: true, listen: "127.0.0.1:7000"}
defenses: [{name: isotropic, ratio: 1.0}, {name: gaussian-ir, clip: 1.0, sigma: 0.1}, {name: rounding, decimals: 2}]
"""


@pytest.mark.parametrize(
    ("defense", "crossing"),
    [
        ("{name: isotropic, ratio: 1.0}", "gradient"),
        ("{name: memoised-response, epsilon: 1.0}", "labels"),
        ("{name: rounding, decimals: 2}", "scores"),
    ],
)
def test_a_defense_that_would_do_nothing_at_this_party_is_refused(defense: str, crossing: str, tmp_path: Path) -> None:
    config = parse_config(OWN_FILE.format(defense=defense), source=tmp_path / "lab.yaml")
    complaint = f"lab.yaml: defenses: .* acts on the {crossing} of the active party, and would do nothing at lab"
    with pytest.raises(ConfigError, match=complaint):
        party_run(config, "lab", tmp_path / "run")


def test_in_a_shared_file_it_may_be_another_partys(tmp_path: Path) -> None:
    config = parse_config(SHARED_FILE, source=tmp_path / "all.yaml")
    for name in ("clinic", "lab"):
        assert party_run(config, name, tmp_path / "run").name == name


def test_the_active_party_has_two_names(tmp_path: Path) -> None:
    config = parse_config(SHARED_FILE, source=tmp_path / "all.yaml")
    assert [own_name(config, name) for name in ("active", "clinic", "lab")] == ["clinic", "clinic", "lab"]
    with pytest.raises(ConfigError, match="there is no .laboratory."):
        own_name(config, "laboratory")


@pytest.mark.parametrize(
    ("left_out", "complaint"),
    [
        ('network: {plaintext_on_loopback: true, listen: "127.0.0.1:7000"}', "network: where do the parties meet"),
        (', listen: "127.0.0.1:7000"', "how do clinic and lab meet"),
        ("plaintext_on_loopback: true, ", "network.certificates: expected a folder"),
    ],
)
def test_what_a_meeting_needs_is_asked_for(left_out: str, complaint: str, tmp_path: Path) -> None:
    assert left_out in SHARED_FILE
    config = parse_config(SHARED_FILE.replace(left_out, ""), source=tmp_path / "all.yaml")
    with pytest.raises(ConfigError, match=complaint):
        party_run(config, "clinic", tmp_path / "run")
