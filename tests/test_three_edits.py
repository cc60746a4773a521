"""A plug-in of any kind is added by three edits, and then has its name, its checks and its places on all pages."""

from __future__ import annotations

import os
import re
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

MODEL = '''"""Two layers at each party, the first of them as wide as asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from splitvfl.data.columns import PartyData
from splitvfl.learning.tasks import Task
from splitvfl.party.recipe import Recipe, Width


@dataclass(frozen=True, kw_only=True)
class TowerRecipe(Recipe):
    """Two layers, and a linear top.

    Source: made for this test.
    """

    name: ClassVar[str] = "tower"

    height: Width = 6

    def make_bottom(self, columns: PartyData, task: Task) -> nn.Module:
        """Return both layers."""
        return nn.Sequential(nn.Linear(columns.width, self.height), nn.Tanh(), nn.Linear(self.height, 3))

    def make_top(self, columns: PartyData, task: Task, widths: Sequence[int]) -> nn.Module:
        """Return one linear layer."""
        return nn.Linear(sum(widths) + columns.width, task.outputs)
'''

LOSS = '''class Huber(Loss):
    """Squared difference of one output and the label, and the difference itself from some size on.

    Args:
        delta: That size, > 0.
    """

    name = "huber"

    def __init__(self, *, delta: float = 1.0) -> None:
        self.delta = delta

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss."""
        return functional.huber_loss(outputs.squeeze(1), targets.to(outputs.dtype), delta=self.delta)

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the predictions, ``(n,)``."""
        return outputs.squeeze(1)


'''

EXCHANGE = '''"""Split learning under another name."""

from __future__ import annotations

from splitvfl.exchange.split import Split


class Echo(Split):
    """Activations one way and gradients the other, as in split learning.

    Source: made for this test.
    """

    name = "echo"
    in_headings = True
    seen = ("each passive party's echo", "an echo per record")
'''

EXPERIMENT = """
name: three-edits
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: {name: tower, height: 5}
exchange: echo
train: {epochs: 1, batch_size: 128, device: cpu, loss: {name: huber, delta: 0.5}}
attacks: [entry, norm]
defenses: [halve]
"""

USED = """
import sys
from pathlib import Path
sys.path.insert(0, "docs")
from conf import filled_in
from splitvfl.cli import main
from tests.boosting import few_rounds_of_boosting

for kind in ("attacks", "defenses", "models", "exchanges", "losses"):
    assert main(["list", kind]) == 0
for command in ("train experiment.yaml --out run", "report run"):
    with few_rounds_of_boosting():
        assert main(command.split()) == 0
references = ("attacks", "defenses", "models", "training", "protocol", "experiments")
for page in (*(f"reference/{page}" for page in references), "results/defenses", "logistic-regression"):
    print(filled_in(Path(f"docs/{page}.md").read_text(encoding="utf-8")))
sys.stdout.flush()

import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""

CHECKS = (
    "tests/test_contract.py",
    "tests/test_contract_training.py",
    "tests/test_exports.py",
    "tests/test_imports.py",
    "tests/config/test_registry.py",
    "tests/scripts/test_defense_table.py",
    "tests/defenses/test_what_noise_tells.py",
    "-k",
    "entry or (halve and not halves) or tower or Huber or echo or tables or all_names or sorted or imports_run "
    "or circles or exported or stay or made_without",
)


def insert(path: Path, before: str, new: str) -> None:
    """Put text in front of a line that is there once."""
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, new + before), encoding="utf-8")


@pytest.fixture(scope="module")
def tree(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree in which a plug-in of every kind has been added, three edits each.

    What was compiled is copied too: it is valid for files of the same age, and compiling takes as long as the checks.
    """
    tree = tmp_path_factory.mktemp("tree")
    for part in ("splitvfl", "attacks", "defenses", "models", "penalties", "scripts", "tests", "docs"):
        kept_out = shutil.ignore_patterns("_build", "*.pyc.*")
        shutil.copytree(checkout / part, tree / part, symlinks=True, ignore=kept_out)
    shutil.copy(checkout / "pyproject.toml", tree)

    (tree / "attacks" / "entry.py").write_text(ATTACK, encoding="utf-8")
    exports = tree / "attacks" / "__init__.py"
    insert(exports, "from splitvfl.attacks.generative_regression", "from splitvfl.attacks.entry import EntryAttack\n")
    insert(exports, '    "GenerativeRegressionAttack",\n', '    "EntryAttack",\n')

    (tree / "defenses" / "halve.py").write_text(DEFENSE, encoding="utf-8")
    exports = tree / "defenses" / "__init__.py"
    insert(exports, "from splitvfl.defenses.isotropic", "from splitvfl.defenses.halve import Halve\n")
    insert(exports, '    "Isotropic",\n', '    "Halve",\n')

    (tree / "models" / "tower.py").write_text(MODEL, encoding="utf-8")
    exports = tree / "models" / "__init__.py"
    insert(exports, "from splitvfl.models.wide_deep", "from splitvfl.models.tower import TowerRecipe\n")
    insert(exports, '    "WideDeepBottom",\n', '    "TowerRecipe",\n')

    losses = tree / "splitvfl" / "learning" / "losses.py"
    insert(losses, "class SquaredError(Loss):\n", LOSS)
    insert(losses, '"Logistic", "Loss"', '"Huber", ')

    (tree / "splitvfl" / "exchange" / "echo.py").write_text(EXCHANGE, encoding="utf-8")
    exports = tree / "splitvfl" / "exchange" / "__init__.py"
    insert(exports, "    from splitvfl.exchange.hybrid", "    from splitvfl.exchange.echo import Echo\n")
    insert(exports, '"Hybrid", ', '"Echo", ')
    insert(exports, '            "splitvfl.exchange.hybrid"', '            "splitvfl.exchange.echo": ("Echo",),\n')

    contract = tree / "tests" / "test_contract_training.py"
    insert(contract, '    "wide-deep": ModelRow(', '    "tower": ModelRow(models.TowerRecipe),\n')
    insert(contract, '    "Logistic": LossRow(', '    "Huber": LossRow(losses.Huber, Regression),\n')
    insert(contract, '    "one-way": ExchangeRow(', '    "echo": ExchangeRow(exchanges.Echo, linear=False),\n')
    contract = tree / "tests" / "test_contract.py"
    insert(contract, '    "norm": AttackRow(', '    "entry": AttackRow(attacks.EntryAttack),\n')
    insert(contract, '    "isotropic": DefenseRow(', '    "halve": DefenseRow(defenses.Halve, noisy=False),\n')
    return tree


@pytest.fixture(scope="module")
def printed(tree: Path) -> str:
    """Return what was printed by one process that used both, with the package of the copy, and then ran its checks."""
    (tree / "experiment.yaml").write_text(EXPERIMENT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", USED, "-q", "-p", "no:cacheprovider", *CHECKS],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow(reason="a copy of the tree, and its checks")
def test_they_are_named_in_an_experiment_and_stand_on_every_page(tree: Path, printed: str) -> None:
    summary = read_summary(tree / "run")
    assert summary.defenses == ["halve"]
    assert summary.parties["lab"].attacks["entry"].worst is not None
    page = (tree / "run" / "report.html").read_text(encoding="utf-8")
    assert "<dd>Scores a record by the largest entry of its gradient.</dd>" in page
    assert "breast-cancer, tower, exchange echo" in page
    for kind, line in (
        ("tower", "Two layers, and a linear top."),
        ("echo", "Activations one way and gradients the"),
        ("huber", "Squared difference of one output and the label, and"),
    ):
        assert re.search(rf"^ *{kind} +{line}", printed, re.MULTILINE), kind
    words = " ".join(printed.split())  # lists are broken at 80 columns
    assert " entry Score every record by the largest entry of its cut gradient, in size." in words
    assert " halve Send half of every gradient: it hides nothing." in words
    assert "Guarantee not stated; acts on cut gradients: halve" in words
    assert ".. automodule:: splitvfl.attacks.entry\n" in printed
    assert ".. automodule:: splitvfl.defenses.halve\n" in printed
    assert ".. automodule:: splitvfl.models.tower\n" in printed
    assert ".. automodule:: splitvfl.exchange.echo\n" in printed
    assert ".. automodule:: splitvfl.learning.losses\n" in printed
    assert "{class}`~splitvfl.exchange.echo.Echo`" in printed
    assert '`"coordinator"`, `"echo"`, ' in printed
    assert "| `echo` | each passive party's echo | an echo per record | exact |" in printed
    (without,) = (item for item in printed.split("\n- ") if item.startswith("Made without"))
    assert "`entry`" in without
    assert "`halve`" in without


def test_their_checks_run_and_none_of_the_tables_misses_them(printed: str) -> None:
    """Among them those that compare tables, exports, names and pages with each other."""
    assert re.search(r"^\d+ passed", printed.splitlines()[-1])
