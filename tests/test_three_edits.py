"""An attack or a defense is added by three edits, and then has its name, its checks and its places on all pages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from splitvfl.report.summary import read_summary

ATTACK = '''"""The largest entry of a record's gradient."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from splitvfl.hooks import View


class EntryAttack:
    """Score every record by the largest entry of its cut gradient, in size.

    Source: made for this test.
    """

    name: ClassVar[str] = "entry"
    explanation: ClassVar[str] = "Scores a record by the largest entry of its gradient."

    def __call__(self, view: View, /) -> Tensor:
        """Return the largest entries.

        Args:
            view: Its ``gradient`` is read.

        Returns:
            ``(n,)``.
        """
        return view.gradient.abs().amax(dim=1)
'''

DEFENSE = '''"""Half of every gradient."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from splitvfl.hooks import Secrets


class Halve:
    """Send half of every gradient: it hides nothing.

    Source: made for this test.
    """

    name: ClassVar[str] = "halve"

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the gradient to send.

        Args:
            gradient: ``(n, width)``.
            secrets: Its log is used.

        Returns:
            A new tensor like ``gradient``.
        """
        secrets.log("power", gradient.square().sum(dim=1).mean().item() / 4)
        return gradient / 2
'''

EXPERIMENT = """
name: three-edits
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
train: {epochs: 1, batch_size: 128, device: cpu}
attacks: [entry, norm]
defenses: [halve]
"""

USED = """
import sys
from pathlib import Path
sys.path.insert(0, "docs")
from conf import filled_in
from splitvfl.cli import main

for command in ("train experiment.yaml --out run", "report run", "list attacks", "list defenses"):
    assert main(command.split()) == 0
for page in ("reference/attacks", "reference/defenses", "results/defenses"):
    print(filled_in(Path(f"docs/{page}.md").read_text(encoding="utf-8")))
"""


def insert(path: Path, before: str, new: str) -> None:
    """Put text in front of a line that is there once."""
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, new + before), encoding="utf-8")


@pytest.fixture(scope="module")
def tree(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree in which one attack and one defense have been added, three edits each."""
    tree = tmp_path_factory.mktemp("tree")
    for part in ("splitvfl", "attacks", "defenses", "models", "scripts", "tests", "docs"):
        kept_out = shutil.ignore_patterns("__pycache__", "_build")
        shutil.copytree(checkout / part, tree / part, symlinks=True, ignore=kept_out)
    shutil.copy(checkout / "pyproject.toml", tree)

    (tree / "attacks" / "entry.py").write_text(ATTACK, encoding="utf-8")
    exports = tree / "attacks" / "__init__.py"
    insert(exports, "from splitvfl.attacks.equation_solving", "from splitvfl.attacks.entry import EntryAttack\n")
    insert(exports, '    "GradientClassifierAttack",\n', '    "EntryAttack",\n')

    (tree / "defenses" / "halve.py").write_text(DEFENSE, encoding="utf-8")
    exports = tree / "defenses" / "__init__.py"
    insert(exports, "from splitvfl.defenses.isotropic", "from splitvfl.defenses.halve import Halve\n")
    insert(exports, '    "Isotropic",\n', '    "Halve",\n')

    contract = tree / "tests" / "test_contract.py"
    insert(contract, '    "norm": AttackRow(', '    "entry": AttackRow(attacks.EntryAttack),\n')
    insert(contract, '    "isotropic": DefenseRow(', '    "halve": DefenseRow(defenses.Halve, noisy=False),\n')
    return tree


def python(tree: Path, *arguments: str) -> str:
    """Run Python in the copy, with the copy's package, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_both_are_named_in_an_experiment_and_stand_on_every_page(tree: Path) -> None:
    (tree / "experiment.yaml").write_text(EXPERIMENT, encoding="utf-8")

    printed = python(tree, "-c", USED)

    summary = read_summary(tree / "run")
    assert summary.defenses == ["halve"]
    assert summary.parties["lab"].attacks["entry"].worst is not None
    assert (
        "<dd>Scores a record by the largest entry of its gradient.</dd>" in (tree / "run" / "report.html").read_text()
    )
    assert "Score every record by the largest entry of its cut gradient, in size." in printed
    assert "Send half of every gradient: it hides nothing." in printed
    assert ".. automodule:: splitvfl.attacks.entry\n" in printed
    assert ".. automodule:: splitvfl.defenses.halve\n" in printed
    (without,) = (item for item in printed.split("\n- ") if item.startswith("Made without"))
    assert "`entry`" in without
    assert "`halve`" in without


def test_their_checks_run_and_none_of_the_tables_misses_them(tree: Path) -> None:
    """Among them those that compare tables, exports, names and pages with each other."""
    tables = [
        "tests/test_contract.py",
        "tests/test_exports.py",
        "tests/test_imports.py",
        "tests/config/test_registry.py",
    ]
    pages = ["tests/scripts/test_defense_table.py", "tests/defenses/test_what_noise_tells.py"]
    chosen = (
        "entry or halve or tables or all_names or sorted or imports_run or circles or exported or stay or made_without"
    )

    printed = python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tables, *pages, "-k", chosen)

    assert "passed" in printed
