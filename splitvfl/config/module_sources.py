"""Which code the settings in a run folder may name.

A run folder may come from somebody else, and its ``experiment.yaml`` names classes as ``module:Class``. Importing a
module executes it, and a constructor acts on the options beside the name. So within :func:`untrusted_run` such a name
stands for a class that is *defined* in a source file of the user's own, below a folder that the user chose, or in an
installed package that the user named. The file is found, read and compared before anything of it is executed.

Names without a module, of splitvfl's own classes and of entry points, work as everywhere. The sender still chooses
which of these classes are constructed, and with which options.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

from splitvfl.errors import ConfigError, shown, suggestion
from splitvfl.system.untrusted_files import UntrustedFile, refuse_links

Modules: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None"
"""Folders of the user's own modules, and installed packages as ``package:NAME``; default: the current folder."""

_PACKAGE: Final = "package:"
_BY_OPTION: Final = "name your own with --modules FOLDER, or an installed package with --modules package:NAME"
_OWN: Final = tuple(
    (Path(__file__).parents[1] / part).resolve() for part in ("", "attacks", "defenses", "models", "penalties")
)
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

# Modules that were imported from a user's folder. A file of the same name in another folder may take their place; it
# may not take the place of anything else.
_from_folders: set[str] = set()


class CodeInRunFolder(ImportError):
    """An import would execute code of an untrusted run folder."""


@dataclass(frozen=True)
class ModuleSources:
    """Where classes may come from that the settings of an untrusted run folder name.

    Attributes:
        run: The run folder, of which nothing is imported.
        folders: Folders of the user's own modules, in the order in which they are searched.
        packages: Installed packages that the user named.
        remedy: What the user can do about a class from elsewhere.
    """

    run: Path
    folders: tuple[Path, ...]
    packages: tuple[str, ...] = ()
    remedy: str = _BY_OPTION

    @classmethod
    def of(cls, run: Path, modules: Modules, *, remedy: str = _BY_OPTION) -> ModuleSources:
        """Return the sources that a user chose for a run folder.

        Raises:
            ConfigError: If one of them is no folder, lies in the run folder, or is no name of a package.
        """
        folders, packages = _divided(modules)
        for package in packages:
            if not _is_dotted(package):
                raise ConfigError(
                    f"--modules: expected package:NAME with the name that you import, such as acme_hooks, got "
                    f"{shown(package)}"
                )
        for folder in folders:
            if not folder.is_dir():
                why = f"a file; name its folder, {folder.parent}" if folder.is_file() else "no such folder is there"
                raise ConfigError(f"--modules: expected a folder or package:NAME, got {folder}: {why}")
        sources = cls(run, tuple(folders), tuple(packages), remedy)
        for folder in folders if modules else ():  # the current folder may lie there, where no class is named
            sources.check_place("--modules", folder)
        return sources

    def load(self, module: str, attribute: str) -> Any:
        """Return a class after a check of where it is defined.

        Args:
            module: Its module, a dotted name.
            attribute: Its name there.

        Raises:
            ConfigError: If it is defined nowhere where it may be, or its module cannot be imported.
        """
        for folder in self.folders:
            file = self._source(module, folder)
            if file is not None:
                return self._from_file(module, attribute, file, folder)
        if any(f"{module}.".startswith(f"{package}.") for package in self.packages):
            return self._from_package(module, attribute)
        looked = ", ".join(str(folder.absolute()) for folder in self.folders)
        raise ConfigError(
            f"no module {module!r} in {looked or ' or '.join(self.packages)}. A run folder may name classes that are "
            f"defined in files of your own, and entry points of installed packages; {self.remedy}"
        )

    def _source(self, module: str, folder: Path) -> Path | None:
        """Return the source file of a module below a folder, without importing anything; ``None``: there is none.

        Raises:
            ConfigError: If what Python would import is no such file.
        """
        importlib.invalidate_caches()  # a file written since Python last looked into the folder would not be seen
        places = [str(folder.absolute())]
        origin = None
        for part in module.split("."):
            # Each part by itself, in the folders of the one before: Python would import that one to look there.
            spec = PathFinder.find_spec(part, places)
            if spec is None:
                return None
            self._check_spec(module, spec, folder)
            places, origin = list(spec.submodule_search_locations or ()), spec.origin
        if origin is None:
            raise ConfigError(f"expected a module, got the folder {module} without an __init__.py; name a module in it")
        return Path(origin)

    def _check_spec(self, module: str, spec: ModuleSpec, folder: Path) -> None:
        """Refuse a module, or a package above it, that is no source file or folder of the user's own."""
        beside = _first_towards(self.run, folder)
        for place in _places(spec):
            self.check_place(module, place)
            if beside is not None and _lies_in(place, beside):
                raise ConfigError(
                    f"{module}: {place} lies in {beside}, which also contains the run folder {self.run}, and may have "
                    f"come with it; {self.remedy}"
                )
            if not _lies_in(place, folder):
                raise ConfigError(
                    f"{module}: expected a file in {folder.absolute()}, got a link to {place.resolve()}; {self.remedy}"
                )
            if _is_installed(place):
                raise ConfigError(f"{module}: expected a file of your own, got {place}, installed; {self.remedy}")
        if spec.origin is not None and not isinstance(spec.loader, SourceFileLoader):
            raise ConfigError(f"{module}: expected a source file (.py), got {spec.origin}")

    def _from_file(self, module: str, attribute: str, file: Path, folder: Path) -> Any:
        classes = _classes_in(file, module)
        if attribute not in classes:
            raise ConfigError(
                f"{module} has no class {attribute!r}: a run folder may name classes that are defined in the file "
                f"itself, {file}{suggestion(attribute, classes)}"
            )
        make_way(module.partition(".")[0], [str(folder.absolute())])
        with importable([str(folder.absolute())]):
            loaded = _imported(module, file)
        note_own(module.partition(".")[0])
        found = getattr(loaded, attribute, None)
        got = getattr(loaded, "__file__", None)
        if got is None or not os.path.samefile(got, file) or not _is_defined_in(found, module):
            raise ConfigError(
                f"{module}:{attribute}: expected the class that {file} defines, got {shown(found)} of "
                f"{got or 'no file'}: another module of this name is in use; rename yours"
            )
        return found

    def _from_package(self, module: str, attribute: str) -> Any:
        found = getattr(_imported(module, None), attribute, None)
        if not inspect.isclass(found) or not any(_is_defined_in(found, package) for package in self.packages):
            raise ConfigError(
                f"{module}:{attribute}: expected a class that is defined in {' or '.join(self.packages)}, got "
                f"{shown(found)}"
            )
        return found

    def check_place(self, name: str, place: Path) -> None:
        """Refuse code that lies in the run folder.

        Args:
            name: What would be imported.
            place: Its file, or a folder above it.

        Raises:
            ConfigError: If it lies there.
        """
        if _lies_in(place, self.run):
            raise ConfigError(f"{name}: {_in_run(place, self.run)}; {self.remedy}")


class _Guard(MetaPathFinder):
    """The finder that keeps every import, nested ones too, out of a folder: it asks all others, and compares."""

    def __init__(self, run: Path, folders: Sequence[Path]) -> None:
        self.run = run
        beside = {_first_towards(run, folder) for folder in (*folders, Path.cwd())} - {None}
        self.beside = [one for one in beside if one is not None]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return what the other finders find.

        Raises:
            CodeInRunFolder: If it lies in the folder.
        """
        others = [one for one in sys.meta_path if not isinstance(one, _Guard) and hasattr(one, "find_spec")]
        spec = next(filter(None, (one.find_spec(fullname, path, target) for one in others)), None)
        for place in [] if spec is None else _places(spec):
            if _lies_in(place, self.run):
                raise CodeInRunFolder(f"{fullname}: {_in_run(place, self.run)}", name=fullname)
            if any(_lies_in(place, one) for one in self.beside) and not _is_of_environment(place):
                raise CodeInRunFolder(f"{fullname}: {place} came beside the run folder {self.run}", name=fullname)
        return spec


_sources: ContextVar[ModuleSources | None] = ContextVar("sources", default=None)


def own_folder(modules: Modules) -> Path:
    """Return where files are looked for that settings or a command line name: the first folder, or the current one."""
    folders, _ = _divided(modules)
    return folders[0] if folders else Path.cwd()


def _divided(modules: Modules) -> tuple[list[Path], list[str]]:
    given = [modules] if isinstance(modules, str | os.PathLike) else list(modules or ())
    texts = [os.fspath(one) for one in given]
    packages = [text.removeprefix(_PACKAGE) for text in texts if text.startswith(_PACKAGE)]
    folders = [Path(text) for text in texts if not text.startswith(_PACKAGE)]
    return folders if texts else [Path.cwd()], packages


def sources_in_force() -> ModuleSources | None:
    """Return where classes may come from; ``None`` outside :func:`untrusted_run`, where all may be named."""
    return _sources.get()


@contextmanager
def untrusted_run(folder: Path, modules: Modules = None, *, remedy: str = _BY_OPTION) -> Iterator[None]:
    """Within the block, take names of classes for those of a folder from somebody else, in which no link lies.

    Args:
        folder: The run folder, of which no code is imported.
        modules: Where classes may come from that its settings name as ``module:Class``.
        remedy: What the user can do about a class from elsewhere.

    Raises:
        ConfigError: As :meth:`ModuleSources.of`, or if there is a link in the folder.
    """
    sources = ModuleSources.of(folder, modules, remedy=remedy)
    refuse_links(folder, ConfigError)
    token, guard = _sources.set(sources), _Guard(folder, sources.folders)
    sys.meta_path.insert(0, guard)
    try:
        yield
    finally:
        sys.meta_path.remove(guard)
        _sources.reset(token)


# --- importing


def imported(name: str) -> ModuleType:
    """Return a module of somebody's, imported.

    Raises:
        ModuleNotFoundError: If there is none of this name.
        ConfigError: If its own code fails, or imports what is not there.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{name} imports {error.name!r}, and there is no such module") from error
        raise
    except CodeInRunFolder as error:
        raise ConfigError(f"{name} cannot be imported: {error}") from error
    except Exception as error:  # a user's file may fail in any way
        raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def make_way(top: str, folders: Sequence[str]) -> bool:
    """Forget a module of the same name from another folder, unless it is not a user's; return whether one is here.

    Raises:
        ConfigError: If a file here has the name of a module that is in use.
    """
    spec = PathFinder.find_spec(top, list(folders))
    if spec is None:
        return False
    loaded = sys.modules.get(top)
    if loaded is None or spec.origin is None or getattr(loaded, "__file__", None) == spec.origin:
        return True
    if top not in _from_folders:
        raise ConfigError(f"{spec.origin} has the name of a module that is in use already ({loaded!r}); rename it")
    for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
        del sys.modules[name]
    return True


def note_own(top: str) -> None:
    """Take note that a module was imported from a user's folder."""
    _from_folders.add(top)


@contextmanager
def importable(folders: Sequence[str]) -> Iterator[None]:
    """Let modules be imported from these folders first, within the block."""
    sys.path[:0] = folders
    try:
        yield
    finally:
        # Not restored as a whole: what the user's file itself adds to the path is to stay.
        for folder in folders:
            sys.path.remove(folder)


def _imported(name: str, file: Path | None) -> ModuleType:
    try:
        return imported(name)
    except ModuleNotFoundError as error:
        among = "no such module is installed" if file is None else f"another package hides {file}; rename yours"
        raise ConfigError(f"no module {name!r}: {among}") from error


# --- places


def _places(spec: ModuleSpec) -> list[Path]:
    """Return where a module lies: its file, the folders of a package, the archive it is in."""
    files = [spec.origin] if spec.has_location and spec.origin is not None else []
    archive = getattr(spec.loader, "archive", None)
    return [Path(one) for one in (*files, *(spec.submodule_search_locations or ()), *([archive] if archive else []))]


def _lies_in(path: Path, folder: Path) -> bool:
    """Return whether a path, with its links followed, is a folder or lies in it, however either is spelled."""
    resolved, whole = path.resolve(), folder.resolve()
    if resolved.is_relative_to(whole):
        return True
    above = (resolved, *resolved.parents)  # a mount, or a file system that ignores case, gives one folder two names
    return any(one.exists() and whole.exists() and one.samefile(whole) for one in above)


def _first_towards(run: Path, folder: Path) -> Path | None:
    """Return what lies in a folder and holds the run folder: who sent the one may have sent all of it."""
    whole, resolved = folder.resolve(), run.resolve()
    if resolved == whole or not resolved.is_relative_to(whole):
        return None
    return whole / resolved.relative_to(whole).parts[0]


def _is_installed(path: Path) -> bool:
    resolved = path.resolve()
    return bool(_INSTALLED.intersection(resolved.parts)) or any(map(resolved.is_relative_to, _installed_places()))


def _is_of_environment(path: Path) -> bool:
    """Return whether a file belongs to this Python or to splitvfl, which the user may keep above a run folder."""
    return any(map(path.resolve().is_relative_to, (*_installed_places(), *_OWN)))


def _installed_places() -> set[Path]:
    found = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found.update(site.getsitepackages())
    found.add(site.getusersitepackages())
    return {Path(one).resolve() for one in found if one}


def _in_run(path: Path, run: Path) -> str:
    return f"{path} lies in the run folder {run}, which may come from somebody else, and no code there is executed"


# --- classes


def _classes_in(file: Path, module: str) -> list[str]:
    """Return the classes that a file defines at its top level, without executing it."""
    source = UntrustedFile(path=file, error=ConfigError, linked=True).read() or b""
    try:
        tree = ast.parse(source, filename=file.name)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    return [node.name for node in _top_level(tree.body) if isinstance(node, ast.ClassDef)]


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _top_level([*node.body, *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())])
            for handler in getattr(node, "handlers", ()):
                yield from _top_level(handler.body)


def _is_defined_in(found: Any, module: str) -> bool:
    return inspect.isclass(found) and f"{found.__module__}.".startswith(f"{module}.")


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
