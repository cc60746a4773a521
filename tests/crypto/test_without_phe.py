"""Training, prediction and the encrypted protocols run where ``phe`` is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitvfl.crypto import paillier

# In a process of its own: whatever this one has imported of phe does not count.
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "phe":
            raise ModuleNotFoundError("No module named 'phe'", name="phe")

sys.meta_path.insert(0, Blocked())
"""

PROTOCOLS = """
from splitvfl.crypto.key_generation import generate_keys
from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from tests.exchange.logistic import SHORT, trainer_of, weights_of

BATCH = 32
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
"""

COMMANDS = """
from splitvfl.cli import main

for command in (["train", "small.yaml", "--out", "run"], ["predict", "run", "--out", "scores.csv"]):
    try:
        main(command)
    except SystemExit as ended:
        if ended.code:
            raise
"""

EXPERIMENT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
train: {epochs: 1, batch_size: 128}
"""


def without_phe(code: str, checkout: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_training_prediction_and_every_encrypted_protocol_run_without_phe(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(EXPERIMENT, encoding="utf-8")

    done = without_phe(PROTOCOLS + COMMANDS, checkout, tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == ["residue True", "taylor True", "hybrid True", "coordinator True"]
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
