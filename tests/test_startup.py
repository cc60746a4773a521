"""What starting costs: which slow libraries commands and the names of the package import, and which modules do."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_imports import FILES

SLOW = (
    *("cryptography", "flint", "gmpy2", "grpc", "jinja2", "matplotlib", "numpy", "pandas", "phe", "pyarrow"),
    *("safetensors", "scipy", "scipy.integrate", "scipy.linalg", "scipy.optimize", "scipy.signal"),
    *("scipy.sparse", "scipy.special", "scipy.stats", "sklearn", "sympy", "tensorboard", "torch", "torch._dynamo"),
    *("yaml",),
)
"""Libraries that are slow to import, and parts of them. Not pydantic, which comes with a command's parser."""

# One process for all: what comes first imports nothing slow, and so hides nothing from what follows.
STEPS = """
import contextlib, io, json, os, sys

SLOW = json.loads(sys.argv[1])
found = {}

def note(step):
    found[step] = [name for name in SLOW if name in sys.modules]

import splitvfl
note("import splitvfl")
from splitvfl.cli import app, main
from splitvfl.cli.help_pages import PAGES

out = io.StringIO()
with contextlib.redirect_stdout(out):
    main(["--version"])
    note("--version")
    main(["--help"])
    note("--help")
    for name in PAGES:
        main([*name.split(), "--help"])
        note(f"{name} --help")
    for given in ("", "list ", "reconstruct RUN --views ", "train --"):
        words = f"splitvfl {given}"
        os.environ |= {"_SPLITVFL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        out.truncate(out.seek(0))
        main([])
        assert out.getvalue().split(), f"nothing completes {words!r}"
        note(f"completion of {given!r}")
splitvfl.SplitModel
note("splitvfl.SplitModel")
from splitvfl.config.sections import load_config
load_config("splitvfl/examples/breast_cancer.yaml", ["attacks=[]"])
note("an experiment's file")
print(json.dumps(found))
"""


def test_starting_imports_nothing_slow_and_a_split_model_and_a_file_only_what_they_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPS, json.dumps(SLOW)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("splitvfl.SplitModel") == ["numpy", "scipy", "torch"]
    assert found.pop("an experiment's file") == ["cryptography", "gmpy2", "numpy", "pyarrow", "scipy", "torch", "yaml"]
    assert len(found) > 25
    assert {step: names for step, names in found.items() if names} == {}


# What a module imports when it is imported itself. SciPy imports its parts when they are first used (``import scipy``
# and ``scipy.stats.t``); the others belong into the function that uses them.
WHERE_USED = ("flint", "grpc", "matplotlib", "pandas", "phe", "scipy.", "sklearn", "tensorboard")
AT_ONCE = {
    "app.estimator_tables": {"sklearn"},
    "app.estimators": {"sklearn"},
    "app.network_demo": {"sklearn"},
    "attacks.packed_equations": {"flint"},
    "attacks.recover_labels": {"flint"},
    "attacks.single_feature": {"scipy"},
    "attacks.stacked_epochs": {"scipy"},
    "leakage.own_columns": {"sklearn"},
    "leakage.own_columns_many": {"sklearn"},
    "net.links": {"grpc"},
    "net.tls": {"grpc"},
    "report.figures": {"matplotlib"},
}


def at_once(body: list[ast.stmt]) -> Iterator[str]:
    """Yield what is imported as a module is: not inside functions, and not for annotations alone."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from at_once(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            for part in ("body", "orelse", "finalbody"):
                yield from at_once(getattr(node, part, []))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import scipy", ["scipy"]),
        ("from scipy import stats", ["scipy.stats"]),
        ("try:\n    import phe\nexcept ImportError:\n    pass", ["phe"]),
        ("def f():\n    import grpc", []),
        ("if TYPE_CHECKING:\n    import grpc\nelse:\n    import phe", ["phe"]),
    ],
)
def test_imports_at_once_are_told_from_later_ones(source: str, expected: list[str]) -> None:
    assert list(at_once(ast.parse(source).body)) == expected


def test_slow_libraries_are_imported_where_they_are_used() -> None:
    sources = {module: path.read_text(encoding="utf-8") for module, path in FILES.items()}
    found = {
        module: {name.split(".")[0] for name in names}
        for module, source in sources.items()
        if not module.startswith("scripts")
        and any(word.rstrip(".") in source for word in WHERE_USED)  # few
        and (
            names := [
                name
                for name in at_once(ast.parse(source).body)
                if f"{name}.".startswith(WHERE_USED) and name != "scipy"
            ]
        )
    }

    assert found == AT_ONCE
