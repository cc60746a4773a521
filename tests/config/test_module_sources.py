"""The settings of a run folder decide on no code: only classes of the user's own files and of named packages count."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from splitvfl import defenses
from splitvfl.config.module_sources import Modules, untrusted_run
from splitvfl.config.registry import PluginKind, find, resolve
from splitvfl.config.sections import load_config
from splitvfl.errors import ConfigError

CALLED = "    def __call__(self, gradient, secrets, /): return gradient\n"
CLIP = f"class Clip:\n    def __init__(self, *, bound: float = 1.0): self.bound = bound\n{CALLED}"
EVIL = f"from pathlib import Path\nPath({{mark!r}}).touch()\nclass X:\n{CALLED}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, which is the current one, with the run folder ``runs/credit`` in it."""
    folder = tmp_path / "user"
    (folder / "runs/credit").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()


def plant(path: Path, mark: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EVIL.format(mark=str(mark)))


def named(name: str, run: str = "runs/credit", modules: Modules = None, kind: PluginKind = "defenses") -> Any:
    with untrusted_run(Path(run), modules):
        return resolve(kind, name, folder=Path())


def refused(name: str, run: str = "runs/credit", modules: Modules = None, kind: PluginKind = "defenses") -> str:
    with pytest.raises(ConfigError) as caught:
        named(name, run, modules, kind)
    return str(caught.value)


# --- code in the run folder


@pytest.mark.parametrize(
    ("file", "cwd", "run", "name", "modules"),
    [
        ("runs/credit/evil.py", ".", "runs/credit", "runs.credit.evil:X", None),
        ("runs/credit/evil.py", ".", "runs/credit", "runs.credit.evil.x:X", None),  # Python imports every part
        ("runs/credit/__init__.py", ".", "runs/credit", "runs.credit:X", None),
        ("runs/credit/evil/__init__.py", ".", "runs/credit", "runs.credit.evil.deep.x:X", None),
        ("runs/credit/evil.py", "runs/credit", ".", "evil:X", None),
        ("runs/credit/evil.py", "runs/credit", ".", "evil.x:X", None),
        ("runs/credit/evil.py", "runs/credit", ".", "evil:X", "../../own"),
        ("runs/credit/evil.py", "runs", "credit", "credit.evil:X", None),
        ("runs/credit/evil.py", ".", "runs/credit", "evil:X", "runs/credit"),
        ("runs/credit/model/evil.py", ".", "runs/credit", "evil:X", "runs/credit/model"),
        ("runs/credit/model/evil.py", "runs/credit/model", "..", "evil:X", None),  # the run folder contains this one
        ("runs/evil.py", ".", "runs/credit", "runs.evil:X", None),  # what was unpacked beside the run
        ("runs/evil.py", ".", "runs/credit/model", "runs.evil:X", None),
        ("evil.py", ".", "runs/credit", "evil:X", "own"),  # the current folder beside the one that was named
    ],
)
def test_no_file_that_came_with_the_run_is_executed(
    file: str, cwd: str, run: str, name: str, modules: str | None, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "own").mkdir()
    (here / "runs/credit/model").mkdir(exist_ok=True)
    mark = here / "executed"
    plant(here / file, mark)
    monkeypatch.chdir(here / cwd)

    refused(name, run, modules)

    assert not mark.exists()


@pytest.mark.parametrize("link", ["file", "folder", "to the folder above", "of the run"])
def test_a_link_leads_to_no_code_of_the_run(link: str, here: Path) -> None:
    mark = here / "executed"
    plant(here / "runs/credit/evil.py", mark)
    name, run = "evil:X", "runs/credit"
    if link == "file":
        Path("evil.py").symlink_to("runs/credit/evil.py")
    elif link == "folder":
        Path("own").symlink_to("runs/credit")
        name = "own.evil:X"
    elif link == "to the folder above":
        Path("own").symlink_to("runs")
        name = "own.credit.evil:X"
    else:
        Path("received").symlink_to("runs/credit")
        name, run = "runs.credit.evil:X", "received"

    assert "evil" in refused(name, run)
    assert not mark.exists()


def test_a_link_from_the_run_to_elsewhere_is_no_file_of_the_users(here: Path) -> None:
    mark = here / "executed"
    plant(here / "elsewhere/evil.py", mark)
    (here / "runs/credit/sub").symlink_to(here / "elsewhere")

    with pytest.raises(ConfigError, match="sub is a link"):
        named("runs.credit.sub.evil:X")

    assert not mark.exists()


@pytest.mark.parametrize("kind", ["models", "defenses", "optimizers", "losses", "exchanges", "penalties"])
def test_every_kind_of_plug_in_follows_the_rule(kind: PluginKind, here: Path) -> None:
    mark = here / "executed"
    plant(here / "runs/credit/evil.py", mark)

    refused("runs.credit.evil.x:X", kind=kind)
    refused("sympy:Lambda", kind=kind)

    assert not mark.exists()


# --- installed packages


def test_an_installed_class_is_not_constructed(here: Path) -> None:
    # Its constructor evaluates text.
    options = {"signature": "x", "expr": f"__import__('pathlib').Path({str(here / 'executed')!r}).touch()"}
    with untrusted_run(Path("runs/credit")), pytest.raises(ConfigError, match=r"no module 'sympy' in .*entry points"):
        find("defenses", "sympy:Lambda", options, folder=Path())

    assert not (here / "executed").exists()


@pytest.mark.parametrize("name", ["unittest.__main__:X", "this:X", "splitvfl.cli:X", "runpy:X", "sympy.core:Lambda"])
def test_no_installed_module_is_imported(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = name.partition(":")[0]
    monkeypatch.delitem(sys.modules, module, raising=False)

    assert "no module" in refused(name)
    assert module not in sys.modules


def test_installed_packages_below_the_users_folder_are_none_of_the_users_files(here: Path) -> None:
    mark = here / "executed"
    plant(here / "env/site-packages/tool.py", mark)

    assert "installed" in refused("tool:X", modules="env/site-packages")
    assert not mark.exists()


def test_the_library_of_python_is_no_folder_of_the_users(here: Path) -> None:
    above = str(Path(os.__file__).parent)

    assert "installed" in refused("antigravity:X", modules=above)
    assert "antigravity" not in sys.modules


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return what puts a package on the path, with entry points."""

    def do(package: str, code: str, entries: str = "", site: Path = tmp_path / "site") -> Path:
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[splitvfl.defenses]\n{entries}\n")
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("")
        (site / package / "hooks.py").write_text(code)
        monkeypatch.syspath_prepend(str(site))
        return site

    return do


def test_an_entry_point_of_an_installed_package_works(here: Path, install: Callable[..., Path]) -> None:
    install("acme_entry", CLIP, "acme-clip = acme_entry.hooks:Clip")

    assert named("acme-clip").__module__ == "acme_entry.hooks"
    assert "no module 'acme_entry.hooks'" in refused("acme_entry.hooks:Clip")


def test_a_package_that_the_user_names_works(here: Path, install: Callable[..., Path]) -> None:
    install("acme_named", CLIP + "from collections import Counter\n")
    (here / "my_hooks.py").write_text(CLIP)

    assert named("acme_named.hooks:Clip", modules="package:acme_named").__name__ == "Clip"
    assert named("acme_named.hooks:Clip", modules=["package:acme_named", "."]).__name__ == "Clip"
    assert named("my_hooks:Clip", modules=["package:acme_named", "."]).__module__ == "my_hooks"
    assert "no module 'my_hooks' in acme_named" in refused("my_hooks:Clip", modules="package:acme_named")
    # What it imports is not defined in it, and a name that begins alike is another package.
    assert "defined in acme_named" in refused("acme_named.hooks:Counter", modules="package:acme_named")
    assert "no module" in refused("acme_named_too:Clip", modules="package:acme_named")
    assert "no such module is installed" in refused("acme_none:Clip", modules="package:acme_none")


def test_an_entry_point_in_the_run_folder_names_nothing(here: Path, install: Callable[..., Path]) -> None:
    mark = here / "executed"
    site = here / "runs/credit"  # on the path, as the current folder is in a notebook
    install("acme_evil", EVIL.format(mark=str(mark)), "evil = acme_evil.hooks:X\nlambda = sympy:Lambda", site=site)

    assert "lies in the run folder" in refused("evil")
    assert "lies in the run folder" in refused("lambda")
    assert not mark.exists()


@pytest.mark.parametrize("modules", ["missing", "package:", "package:a-b", "package:..x", "own.zip"])
def test_sources_that_are_none_are_refused(modules: str, here: Path) -> None:
    (here / "own.zip").write_bytes(b"PK")

    assert "expected" in refused("my_hooks:Clip", modules=modules)


# --- files of the user's own


def test_own_hooks_work(here: Path) -> None:
    (here / "my_hooks.py").write_text(f"import my_bounds\n{CLIP}")
    (here / "my_bounds.py").write_text("BOUND = 2.0")
    (here / "packed").mkdir()
    (here / "packed/own.py").write_text(
        f"try:\n    import no_such\nexcept ImportError:\n    pass\nif True:\n    {CLIP}".replace(
            "\n    def", "\n        def"
        )
    )
    (here / "elsewhere").mkdir()
    (here / "elsewhere/far_hooks.py").write_text(CLIP)

    assert named("my_hooks:Clip")(bound=2.0).bound == 2.0
    assert named("packed.own:Clip").__module__ == "packed.own"
    assert named("far_hooks:Clip", modules="elsewhere").__module__ == "far_hooks"
    assert named("far_hooks:Clip", modules=[".", "elsewhere"]).__module__ == "far_hooks"
    assert named("rounding") is defenses.Rounding
    assert named("splitvfl.defenses.rounding:Rounding") is defenses.Rounding


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("from my_other import Clip", "has no class 'Clip'"),
        ("Clip = type('Clip', (), {})", "has no class 'Clip'"),
        ("def Clip(): ...", "has no class 'Clip'"),
        ("class Clop: ...", "did you mean Clop?"),
        (f"{CLIP}from collections import Counter as Clip", "another module of this name"),
        ("class Clip", "SyntaxError"),
    ],
)
def test_a_class_that_is_not_defined_in_the_file_is_refused(code: str, told: str, here: Path) -> None:
    mark = here / "executed"
    (here / "my_hooks.py").write_text(f"from pathlib import Path\n{code}\nPath({str(mark)!r}).touch()")
    (here / "my_other.py").write_text(CLIP)

    assert told in refused("my_hooks:Clip")
    assert mark.exists() is ("another module" in told)  # all else is seen without executing the file


@pytest.mark.parametrize("suffix", [".pyc", ".so"])
def test_only_source_files_count(suffix: str, here: Path) -> None:
    (here / f"my_hooks{suffix}").write_bytes(b"\0" * 64)

    assert "expected a source file (.py)" in refused("my_hooks:Clip")


# --- imports of imports


@pytest.mark.parametrize("how", ["file", "namespace", "package", "zip", "link"])
def test_what_an_own_module_imports_comes_from_elsewhere(how: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, run = here / "executed", here / "runs/credit"
    monkeypatch.syspath_prepend(str(run))  # as the current folder is in a notebook
    if how == "file":
        plant(run / "hidden.py", mark)
    elif how == "namespace":
        plant(run / "hidden/inner.py", mark)
    elif how == "package":
        plant(run / "hidden/__init__.py", mark)
    elif how == "zip":
        with zipfile.ZipFile(run / "site.zip", "w") as archive:
            archive.writestr("hidden.py", EVIL.format(mark=str(mark)))
        monkeypatch.syspath_prepend(str(run / "site.zip"))
    else:
        plant(run / "inner/evil.py", mark)
        (here / "linked").symlink_to(run / "inner")
        monkeypatch.syspath_prepend(str(here / "linked"))
    imported = {"namespace": "hidden.inner", "link": "evil"}.get(how, "hidden")
    (here / "my_hooks.py").write_text(f"import {imported}\n{CLIP}")

    assert f"lies in the run folder {Path('runs/credit')}" in refused("my_hooks:Clip")
    assert not mark.exists()


def test_an_import_that_is_tried_only_finds_nothing_either(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = here / "executed"
    plant(here / "runs/credit/optional.py", mark)
    monkeypatch.syspath_prepend(str(here / "runs/credit"))
    (here / "my_hooks.py").write_text(f"try:\n    import optional\nexcept ImportError:\n    optional = None\n{CLIP}")

    assert named("my_hooks:Clip").__name__ == "Clip"
    assert not mark.exists()


def test_imports_are_free_again_afterwards(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finders = list(sys.meta_path)
    plant(here / "runs/credit/free.py", here / "executed")
    refused("runs.credit.free:X")

    monkeypatch.syspath_prepend(str(here / "runs/credit"))
    importlib.import_module("free")

    assert sys.meta_path == finders
    assert (here / "executed").exists()


# --- a run's own file, named as an experiment

SETTINGS = """{header}data: {{name: breast-cancer}}
parties: {{clinic: {{role: active, columns: ["mean *"]}}, lab: {{role: passive, columns: rest}}}}
model: {{name: mlp, bottom: [4]}}
defenses: [{{name: "{name}"}}]
"""
HEADER = "# All settings of this run, written by splitvfl.\n"


def test_the_file_of_a_run_takes_no_code_from_its_folder(here: Path) -> None:
    mark, file = here / "executed", here / "runs/credit/experiment.yaml"
    plant(here / "runs/credit/evil.py", mark)
    file.write_text(SETTINGS.format(header=HEADER, name="evil:X"))
    (here / "mine.yaml").write_text(SETTINGS.format(header="", name="my_hooks:Clip"))
    (here / "my_hooks.py").write_text(CLIP)

    with pytest.raises(ConfigError, match=r"no module 'evil'.*copy it to a file of another name"):
        load_config(file)
    assert not mark.exists()
    file.write_text(SETTINGS.format(header=HEADER, name="my_hooks:Clip"))
    assert load_config(file).defenses[0].name == load_config(here / "mine.yaml").defenses[0].name == "my_hooks:Clip"


@pytest.mark.parametrize("changed", ["", "# mine\n" + HEADER, HEADER.replace("All", " All"), "\r\n" + HEADER])
def test_a_file_of_a_run_is_known_by_what_lies_beside_it_too(changed: str, here: Path) -> None:
    mark, file = here / "executed", here / "runs/credit/experiment.yaml"
    plant(here / "runs/credit/evil.py", mark)
    file.write_text(SETTINGS.format(header=changed, name="evil:X"))
    (here / "runs/credit/summary.json").write_text("{}")

    with pytest.raises(ConfigError, match=r"no module 'evil'"):
        load_config(file)
    assert not mark.exists()


def test_a_copy_of_a_runs_file_under_another_name_is_ones_own(here: Path) -> None:
    (here / "hooks_of_a_copy.py").write_text(CLIP)
    (here / "copy.yaml").write_text(SETTINGS.format(header=HEADER, name="hooks_of_a_copy:Clip"))

    assert load_config(here / "copy.yaml").defenses[0].name == "hooks_of_a_copy:Clip"


def test_an_experiment_of_ones_own_may_have_the_name_that_runs_use(here: Path) -> None:
    (here / "model").mkdir()  # a package of the user's
    (here / "hooks_of_mine.py").write_text(CLIP)
    (here / "experiment.yaml").write_text(SETTINGS.format(header="", name="hooks_of_mine:Clip"))

    assert load_config(here / "experiment.yaml").defenses[0].name == "hooks_of_mine:Clip"


def test_an_own_module_imports_nothing_that_came_beside_the_run(here: Path) -> None:
    mark = here / "executed"
    (here / "utils_of_mine/credit").mkdir(parents=True)
    plant(here / "utils_of_mine/__init__.py", mark)  # a folder goes before the user's file of this name
    (here / "utils_of_mine.py").write_text("BOUND = 1")
    (here / "my_hooks.py").write_text(f"import utils_of_mine\n{CLIP}")

    assert "came beside the run folder" in refused("my_hooks:Clip", run="utils_of_mine/credit")
    assert not mark.exists()


def test_packages_of_the_environment_above_a_run_can_be_imported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A run in the folder of an environment that is above the current folder's first step towards it.
    site = here / "runs/env/site"
    site.mkdir(parents=True)
    (site / "acme_lazy.py").write_text("BOUND = 1")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr("splitvfl.config.module_sources._installed_places", lambda: {site.resolve()})
    (here / "my_hooks.py").write_text(f"import acme_lazy\n{CLIP}")

    assert named("my_hooks:Clip").__name__ == "Clip"


@pytest.mark.parametrize("place", ["checkpoints", "model/telecom", "ledger/a/b", "experiment.yaml"])
def test_a_run_folder_with_a_link_in_it_is_refused(place: str, here: Path) -> None:
    (here / "victim").mkdir()
    path = here / "runs/credit" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(here / "victim")

    with pytest.raises(ConfigError, match=f"{place} is a link"):
        named("rounding")
    Path("linked").symlink_to("runs")  # above it there may be one
    path.unlink()
    assert named("rounding", run="linked/credit") is defenses.Rounding
