"""An active party that changes what it passes on, over a network: whoever gets it stops for good, with the names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from splitvfl.exchange import taylor
from splitvfl.net.certs import make_certificates
from splitvfl.party.refusals import journal_of
from tests.run.parties import SHORT_KEYS, free_ports, start_party

EXPERIMENT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error"]}
  shop: {role: passive, columns: ["worst *"]}
model: logistic-regression
exchange: {name: taylor, encryption: {key_bits: 2048}}
train:
  epochs: 3
  batch_size: 8
  seed: 1
  private_seed_for_experiments: 1
  checkpoint_every_steps: 1
  optimizer: {name: sgd, lr: 0.02}
network: {listen: "127.0.0.1:PORT", certificates: certs, meeting_s: 60, message_s: 60}
audit: false
"""
DEADLINE_S = 120


@contextmanager
def changing() -> Iterator[None]:
    """Let it change a bit of what shop asks the lab to decrypt, in its third step."""
    honest, numbers = taylor._passed_on, count(1)

    def passed_on(*arguments: Any) -> Any:
        found = honest(*arguments)
        if next(numbers) == 5:
            found["lab"][7] ^= 1
        return found

    with SHORT_KEYS(), mock.patch.object(taylor, "_passed_on", passed_on):
        yield


def test_a_changed_request_ends_the_run_for_good(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path / "certs", ["clinic", "lab", "shop"])
    (tmp_path / "run.yaml").write_text(EXPERIMENT.replace("PORT", str(free_ports(1)[0])))
    passives = {name: start_party(checkout, tmp_path, "run.yaml", name, within=SHORT_KEYS) for name in ("lab", "shop")}
    clinic = start_party(checkout, tmp_path, "run.yaml", "clinic", within=changing)
    try:
        said = _flat(passives["lab"].communicate(timeout=DEADLINE_S)[1])
        heard = _flat(clinic.communicate(timeout=DEADLINE_S)[1])
    finally:
        passives["shop"].kill()  # it has lost the clinic, and would dial it for a while
        passives["shop"].communicate()
    assert passives["lab"].returncode == 2, said
    assert "clinic passed on asked of step 2 in the name of shop, and it is not what shop sent lab" in said
    assert "going back to the last checkpoint" not in said
    assert not journal_of(tmp_path / "runs" / "lab", "lab").exists()
    assert clinic.returncode == 2
    assert "what came to it in another party's name is not what that party sent" in heard
    assert "going back to the last checkpoint" not in heard


def _flat(text: str) -> str:
    return " ".join(text.split())
