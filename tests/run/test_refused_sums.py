"""A key's owner that lies now and then, over a network: refusals add up, whatever succeeds between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from unittest import mock

import pytest
from torch import Tensor

from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.net.certs import make_certificates
from splitvfl.party.refusals import journal_of
from splitvfl.run import checkpoint
from tests.run.parties import SHORT_KEYS, free_ports, start_party

EXPERIMENT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error", "worst *"]}
model: logistic-regression
exchange: {name: residue, encryption: {key_bits: 2048}}
train:
  epochs: 30
  batch_size: 16
  seed: 1
  private_seed_for_experiments: 1
  checkpoint_every_steps: 1
  optimizer: {name: sgd, lr: 0.02}
network: {listen: "127.0.0.1:PORT", certificates: certs, meeting_s: 60, message_s: 30}
audit: false
"""
DEADLINE_S = 120


@contextmanager
def lying() -> Iterator[None]:
    """Let every fourth answer be none of the agreed numbers, by three quarters of what its first slot holds."""
    honest, numbers = Owner.open_masked, count(1)

    def opened(owner: Owner, reply: Tensor, layout: ProductLayout) -> Tensor:
        found = tensor_to_integers(honest(owner, reply, layout), layout.opened_bytes)
        lie = 3 << (layout.slot_bits - 3) if next(numbers) % 4 == 0 else 0
        found[0] = (found[0] + lie) % (1 << layout.opened_bits[0])
        return integers_to_tensor(found, layout.opened_bytes)

    with SHORT_KEYS(), mock.patch.object(Owner, "open_masked", opened):
        yield


def test_the_third_refusal_ends_a_run_for_good(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path / "certs", ["clinic", "lab"])
    (tmp_path / "run.yaml").write_text(EXPERIMENT.replace("PORT", str(free_ports(1)[0])))
    lab = start_party(checkout, tmp_path, "run.yaml", "lab", within=SHORT_KEYS)
    clinic = start_party(checkout, tmp_path, "run.yaml", "clinic", within=lying)
    _, said = lab.communicate(timeout=DEADLINE_S)
    _, heard = clinic.communicate(timeout=DEADLINE_S)
    assert (lab.returncode, clinic.returncode) == (2, 2), said + heard
    assert said.count("going back to the last checkpoint") == 2, said
    assert "lab has refused 1 of the 3 sums" in _flat(said)
    assert "lab has refused 3 sums in this run" in _flat(said)
    # It hears that a sum was refused, and not which or why.
    assert "it was sent a sum that is none of the agreed numbers" in _flat(heard)
    assert "something else was decrypted" not in heard
    assert len(journal_of(tmp_path / "runs" / "lab", "lab").read_text().split("\n")) == 1 + 3
    assert max(checkpoint.steps(tmp_path / "runs" / "lab" / "checkpoints")) > 3  # steps succeeded in between

    again = start_party(checkout, tmp_path, "run.yaml", "lab", within=SHORT_KEYS)
    _, said = again.communicate(timeout=DEADLINE_S)
    assert again.returncode == 2
    assert "lab has refused 3 sums in this run" in _flat(said)
    assert "takes no part in this run any more" in _flat(said)
    assert "dialling" not in said  # nobody was there, and nobody was waited for


def _flat(text: str) -> str:
    return " ".join(text.split())
