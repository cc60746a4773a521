"""Training, prediction and the encrypted protocols run where ``phe`` is not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest

from splitvfl.cli import main
from splitvfl.crypto import paillier
from splitvfl.crypto.key_generation import generate_keys
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from tests.commands import Command
from tests.exchange.logistic import SHORT, trainer_of, weights_of

BATCH = 32
EXPERIMENT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
train: {epochs: 1, batch_size: 128}
audit: false
"""


class Blocked(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "phe":
            raise ModuleNotFoundError("No module named 'phe'", name="phe")


def without_phe(arguments: Sequence[str]) -> int:
    """Run all of it where nothing has imported phe, and nothing can."""
    assert "phe" not in sys.modules, "all of the package is imported here"
    sys.meta_path.insert(0, Blocked())
    for exchange in (
        Residue(rows=BATCH, encryption=SHORT),
        Taylor(rows=BATCH, encryption=SHORT),
        Hybrid(rows=BATCH, encryption=SHORT, epsilon=1.0, share=0.3, selection_seed_for_experiments=3),
        Coordinator(rows=BATCH, encryption=SHORT, key=generate_keys(512, insecure_for_tests=True)),
    ):
        trainer = trainer_of(exchange, {"lab": 2}, batch=BATCH)
        before = weights_of(trainer)
        trainer.fit(1)
        trainer.predict()
        print(exchange.name, all(not before[name].equal(weight) for name, weight in weights_of(trainer).items()))
    return main(["train", "small.yaml", "--out", "run"]) or main(["predict", "run", "--out", "scores.csv"])


def test_training_prediction_and_every_encrypted_protocol_run_without_phe(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(EXPERIMENT, encoding="utf-8")

    done = Command([], tmp_path, program=without_phe)
    said, complained = done.communicate(timeout=120)

    assert done.returncode == 0, complained
    assert said.splitlines()[:4] == ["residue True", "taylor True", "hybrid True", "coordinator True"]
    # A header, and a line for each of the 129 test records.
    assert len((tmp_path / "scores.csv").read_text(encoding="utf-8").splitlines()) == 130


def test_the_error_is_an_import_error_that_names_phe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "phe", None)
    key = paillier.generate_keys(256, insecure_for_tests=True)

    for ask in (
        lambda: paillier.to_phe(key.public),
        lambda: paillier.private_to_phe(key),
        lambda: paillier.ciphertexts_to_phe(
            key.public, paillier.torch.zeros((0, 64), dtype=paillier.torch.uint8), bits=0
        ),
    ):
        with pytest.raises(ImportError, match=r"phe .* is not installed") as raised:
            ask()
        assert raised.value.name == "phe"
