from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from splitvfl import attacks, defenses
from splitvfl.config.registry import (
    PACKAGES,
    PluginKind,
    arguments_of,
    built_in,
    check_options,
    construct,
    describe,
    find,
    installed,
    resolve,
)
from splitvfl.errors import ArgumentError, ConfigError
from tests.test_imports import FILES

if TYPE_CHECKING:
    from decimal import Decimal

CLIP = "class Clip:\n    def __init__(self, *, bound: float): ...\n    def __call__(self, gradient, secrets, /): ...\n"

NAMES = {
    "attacks": "clamped-least-squares combined component direction gradient-classifier gradient-inversion half "
    "half-star label-sum labels-and-features least-squares mixture model-completion norm own-prediction "
    "random-guess readout residual residue-solving sign stacked-epochs zero",
    "defenses": "abstaining-response asymmetric-response axis-gaussian axis-sumkl clip-gradient coefficient-noise "
    "discretise gaussian-ir gaussian-targets isotropic max-norm memoised-response randomised-response record-gaussian "
    "rounding sumkl top-k",
    "models": "logistic-regression mlp pca wide-deep",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for the user's files that is not the current one."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what installs a package of that name with these entry points."""

    def install(package: str, entries: Mapping[str, str], group: str = "splitvfl.defenses", code: str = CLIP) -> None:
        site = tmp_path / f"site-{package}"
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        (site / f"{package}_code.py").write_text(code)
        monkeypatch.syspath_prepend(str(site))

    return install


def refused(name: str, folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve("defenses", name, folder=folder)
    return str(caught.value)


def called(one: type) -> bool:
    return any("__call__" in vars(base) for base in one.__mro__)


@pytest.mark.parametrize("kind", NAMES)
def test_names_that_experiments_use_stay(kind: PluginKind) -> None:
    for name in NAMES[kind].split():
        assert resolve(kind, name, folder=Path()).name == name


@pytest.mark.parametrize(("kind", "package"), [("attacks", attacks), ("defenses", defenses)])
def test_every_hook_that_is_exported_has_a_name(kind: Literal["attacks", "defenses"], package: Any) -> None:
    exported = {getattr(package, name) for name in package.__all__}
    hooks = {one for one in exported if inspect.isclass(one) and one.__module__.startswith("splitvfl") and called(one)}

    assert hooks == set(built_in(kind).values())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sumlk", "no such defense 'sumlk'; did you mean sumkl?  (splitvfl list defenses)"),
        ("SumKL", "did you mean sumkl?"),
        ("MaxNorm", "did you mean max-norm?"),
        ("quux", "there are abstaining-response, asymmetric-response, axis-gaussian,"),
        ("my_hooks.Clip", "a class of your own is written module:Class"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(name: str, told: str, folder: Path) -> None:
    assert told in refused(name, folder)


def test_an_attack_that_only_tables_name_is_told_with_where_it_comes_from(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such attack 'known-means'; splitvfl reconstruct and"):
        resolve("attacks", "known-means", folder=folder)


@pytest.mark.parametrize(
    ("kind", "name"), [("attacks", "norm"), ("defenses", "rounding"), ("models", "mlp"), ("data", "digits")]
)
def test_describe_gives_a_line_for_every_name(kind: str, name: str) -> None:
    lines = describe(kind)

    assert name in dict(lines)
    assert lines == sorted(lines)
    assert all(summary and "\n" not in summary for _, summary in lines)


def test_describe_gives_the_first_line_of_the_docstring() -> None:
    assert dict(describe("defenses"))["rounding"] == (inspect.getdoc(defenses.Rounding) or "").splitlines()[0]


def test_describe_of_anything_else_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot list 'defences'; did you mean defenses\?"):
        describe("defences")


def test_a_class_in_the_experiments_folder_is_found_and_the_path_is_left_alone(folder: Path) -> None:
    (folder / "hooks_a.py").write_text(CLIP)
    before = list(sys.path)

    found = resolve("defenses", "hooks_a:Clip", folder=folder)

    assert found.__name__ == "Clip"
    assert inspect.getfile(found) == str(folder / "hooks_a.py")
    assert sys.path == before


def test_a_class_in_the_current_folder_is_found_after_those_of_the_experiment(folder: Path) -> None:
    Path("hooks_b.py").write_text(CLIP)
    Path("hooks_c.py").write_text(CLIP)
    (folder / "hooks_c.py").write_text(CLIP)

    assert inspect.getfile(resolve("defenses", "hooks_b:Clip", folder=folder)) == str(Path.cwd() / "hooks_b.py")
    assert inspect.getfile(resolve("defenses", "hooks_c:Clip", folder=folder)) == str(folder / "hooks_c.py")


def test_a_module_may_import_its_neighbours_and_lie_in_a_package(folder: Path) -> None:
    (folder / "own_package").mkdir()
    (folder / "own_package" / "hooks.py").write_text(f"from bounds_of_package import BOUND\n{CLIP}")
    (folder / "bounds_of_package.py").write_text("BOUND = 3")

    assert resolve("defenses", "own_package.hooks:Clip", folder=folder).__module__ == "own_package.hooks"


def test_files_of_one_name_in_two_folders_are_told_apart(folder: Path) -> None:
    found = []
    for place in (folder / "one", folder / "two"):
        place.mkdir()
        (place / "hooks_d.py").write_text(CLIP)
        found.append(inspect.getfile(resolve("defenses", "hooks_d:Clip", folder=place)))

    assert found == [str(folder / "one" / "hooks_d.py"), str(folder / "two" / "hooks_d.py")]


def test_a_file_with_the_name_of_a_module_in_use_is_refused(folder: Path) -> None:
    import json

    (folder / "json.py").write_text(CLIP)

    assert f"{folder / 'json.py'} has the name of a module that is in use already" in refused("json:Clip", folder)
    assert sys.modules["json"] is json


def test_an_installed_module_will_do(folder: Path) -> None:
    assert resolve("defenses", "splitvfl.defenses.rounding:Rounding", folder=folder) is defenses.Rounding


@pytest.mark.parametrize(
    ("code", "name", "told"),
    [
        (
            CLIP,
            "no_such_file:Clip",
            "no module 'no_such_file'; looked in {folder}, {here}, and among installed packages",
        ),
        (CLIP, "hooks_e.sub:Clip", "hooks_e"),
        (CLIP, "hooks_e:Clop", "hooks_e has no 'Clop'; did you mean Clip?"),
        (CLIP, "hooks_e:", "expected a known name or module:Class, such as my_hooks:Clip, got 'hooks_e:'"),
        (CLIP, ":Clip", "expected a known name or module:Class"),
        (CLIP, "hooks_e:Clip:x", "expected a known name or module:Class"),
        (CLIP, "../hooks_e:Clip", "expected a known name or module:Class"),
        ("BOUND = 0.5", "hooks_e:BOUND", "hooks_e:BOUND: expected a class, got 0.5"),
        ("def clip(): ...", "hooks_e:clip", "hooks_e:clip: expected a class, got <function clip"),
        ("class Clip: ...", "hooks_e:Clip", "hooks_e:Clip: a hook is called, and this class has no __call__ method"),
        ("import no_such_thing", "hooks_e:Clip", "hooks_e imports 'no_such_thing', and there is no such module"),
        ("class Clip", "hooks_e:Clip", "hooks_e cannot be imported: SyntaxError: expected ':' (hooks_e.py, line 1)"),
        ("1 / 0", "hooks_e:Clip", "hooks_e cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_used_is_told(code: str, name: str, told: str, folder: Path) -> None:
    sys.modules.pop("hooks_e", None)
    (folder / "hooks_e.py").write_text(code)
    before = list(sys.path)

    assert told.format(folder=folder, here=Path.cwd()) in refused(name, folder)
    assert sys.path == before


def test_installed_packages_offer_hooks_by_name(offer: Callable[..., None]) -> None:
    offer("goodpack", {"clip": "goodpack_code:Clip"})

    assert resolve("defenses", "clip", folder=Path()).__name__ == "Clip"
    assert "clip" in dict(describe("defenses"))
    assert "clip" not in dict(describe("attacks"))
    assert set(installed("defenses")) == {"clip", *built_in("defenses")}


def test_installed_packages_offer_models_by_name(offer: Callable[..., None]) -> None:
    code = 'from splitvfl.models import MLPRecipe\n\nclass Tower(MLPRecipe):\n    """Higher."""\n'
    offer("towerpack", {"tower": "towerpack_code:Tower"}, group="splitvfl.models", code=code)

    assert construct(*find("models", "tower", {"bottom": [3]}, folder=Path())).bottom == (3,)
    assert dict(describe("models"))["tower"] == "Higher."


def test_a_name_of_ours_cannot_be_taken(offer: Callable[..., None]) -> None:
    offer("thief", {"sumkl": "thief_code:Clip"})

    for name in ("sumkl", "rounding"):
        assert (
            refused(name, Path())
            == "the package thief offers the defense 'sumkl', and so does splitvfl itself; remove one"
        )


def test_two_packages_cannot_share_a_name(offer: Callable[..., None]) -> None:
    offer("packone", {"clip": "packone_code:Clip"})
    offer("packtwo", {"clip": "packtwo_code:Clip"})

    told = refused("clip", Path())
    assert "packone" in told
    assert "packtwo" in told
    assert "sumkl" in installed("defenses"), "a finished run can still be read"


def test_a_broken_package_is_named_and_hides_nothing(offer: Callable[..., None]) -> None:
    offer("badpack", {"crash": "badpack_code:Clip", "plain": "badpack_code:BOUND"}, code="BOUND = 1")

    assert "defense 'crash' of the package badpack cannot be imported: AttributeError" in refused("crash", Path())
    assert "badpack_code:BOUND: expected a class, got 1" in refused("plain", Path())
    assert "cannot be imported" in dict(describe("defenses"))["crash"]
    assert "sumkl" in dict(describe("defenses"))
    assert installed("defenses") == built_in("defenses")


class Settings:
    """Takes one option of each kind."""

    def __init__(
        self,
        *,
        number: float,
        count: int = 3,
        flag: bool = False,
        word: str = "",
        kind: Literal["plain", "fancy"] = "plain",
        bounds: tuple[float, float] | None = None,
        names: Sequence[str] = (),
        either: int | str = 0,
        place: Path = Path(),
        day: date | None = None,
    ) -> None:
        self.given = {"number": number, "bounds": bounds, "place": place}

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("number", True, "expected a number, got true"),
        ("number", "1e-3", "expected a number, got '1e-3'"),
        ("number", None, "expected a number, got nothing"),
        ("count", 1.5, "expected a whole number, got 1.5"),
        ("count", False, "expected a whole number, got false"),
        ("flag", 1, "expected true or false, got 1"),
        ("word", 3, "expected text, got 3; put it in quotes if it is meant as text"),
        ("kind", "fansy", "expected 'plain' or 'fancy', got 'fansy'; did you mean fancy?"),
        ("bounds", 3, "expected a list, got 3"),
        ("names", [1], "expected text, got 1; put it in quotes if it is meant as text"),
        ("either", 1.5, "expected a whole number, got 1.5 or expected text, got 1.5; put it in quotes"),
        ("day", "tomorrow", "Input should be a valid date"),
        ("nunber", 1, "no such option; did you mean number?"),
    ],
)
def test_wrong_options_are_told_in_words(option: str, value: object, told: str) -> None:
    _, problems = check_options(Settings, {"number": 1, option: value})

    assert len(problems) == 1
    assert problems[0][0][0] == option
    assert problems[0][1].startswith(told)


def test_all_wrong_options_are_told_at_once() -> None:
    _, problems = check_options(Settings, {"count": "x", "flat": 1})

    assert [place for place, _ in problems] == [("count",), ("flat",), ("number",)]
    assert problems[2] == (("number",), "required by Settings, and missing")


def test_what_is_wrong_inside_an_option_is_told_with_its_place() -> None:
    _, problems = check_options(Settings, {"number": 1, "names": ["a", 1, 2], "bounds": [1, "x"]})

    assert [place for place, _ in problems] == [("names", 1), ("names", 2), ("bounds", 1)]
    assert problems[2][1].startswith("expected a number, got 'x'")


def test_right_options_reach_the_constructor_as_it_wants_them() -> None:
    options = {"number": 2, "bounds": [1, 2.5], "place": "there", "names": ["a"], "either": "b", "kind": "fancy"}

    taken, problems = check_options(Settings, options)

    assert problems == []
    assert Settings(**taken).given == {"number": 2, "bounds": (1, 2.5), "place": Path("there")}


class Unchecked:
    """Annotated with what means nothing at run time, or not at all."""

    def __init__(self, first, second: Decimal | None = None, *, third: int = 0) -> None:  # type: ignore[no-untyped-def]
        ...


@dataclass
class Inner:
    depth: int


class TakesAnObject:
    def __init__(self, *, inner: Inner) -> None: ...


class OpenEnded:
    def __init__(self, *, count: int = 1, **others: object) -> None: ...


class Nothing: ...


def test_options_without_a_usable_annotation_are_passed_on() -> None:
    assert check_options(Unchecked, {"first": [1], "second": "x"}) == ({"first": [1], "second": "x"}, [])
    assert check_options(Unchecked, {"last": 1})[1] == [
        (("last",), "no such option; there are first, second, third"),
        (("first",), "required by Unchecked, and missing"),
    ]


def test_options_that_pydantic_will_not_check_are_passed_on() -> None:
    assert check_options(TakesAnObject, {"inner": {"depth": 1}}) == ({"inner": {"depth": 1}}, [])
    assert check_options(dict, {"anything": 1}) == ({"anything": 1}, [])  # written in C, without a signature


def test_a_constructor_that_takes_anything_is_given_anything() -> None:
    assert check_options(OpenEnded, {"anything": 1}) == ({"anything": 1}, [])
    assert check_options(OpenEnded, {"count": "x"})[1] == [(("count",), "expected a whole number, got 'x'")]


def test_a_class_without_a_constructor_takes_no_option() -> None:
    assert check_options(Nothing, {}) == ({}, [])
    assert check_options(Nothing, {"bound": 1})[1] == [(("bound",), "no such option; Nothing takes none")]


def test_a_hook_is_made() -> None:
    hook = construct(*find("defenses", "rounding", {"decimals": 3}, folder=Path()))

    assert isinstance(hook, defenses.Rounding)
    assert hook.decimals == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "rounding: decimals: required by Rounding, and missing"),
        ({"decimal": 1}, "rounding: decimal: no such option; did you mean decimals?"),
        ({"decimals": 99}, "decimals must be a whole number from 0 to 15, got 99"),
    ],
)
def test_what_a_hook_does_not_take_is_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        construct(*find("defenses", "rounding", options, folder=Path()))

    assert told in str(caught.value)
    assert not isinstance(caught.value, ArgumentError)


def test_a_note_without_a_hash_in_an_annotation_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "noted_hook.py").write_text(
        "from typing import Annotated\n\n"
        "class Noted:\n"
        "    def __init__(self, *, bound: Annotated[float, {'unit': 'norm'}] = 1.0) -> None:\n"
        "        self.bound = bound\n\n"
        "    def __call__(self, gradient, secrets, /):\n"
        "        return gradient\n"
    )
    factory = resolve("defenses", "noted_hook:Noted", folder=tmp_path)
    assert arguments_of(factory)["bound"][1] == 1.0


# --- what is imported by a string

BY_A_STRING = frozenset({"import_module", "__import__", "exec_module", "load_module", "run_module", "run_path"})


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Yield every module of the package that may import by a string or ask for what comes with it, by name."""
    for name, path in FILES.items():
        source = path.read_text(encoding="utf-8")
        if name.split(".")[0] != "scripts" and any(word in source for word in (*BY_A_STRING, "built_in(")):
            yield name, ast.parse(source)


def test_the_table_lists_all_that_the_registry_imports() -> None:
    assert dict(PACKAGES) == {
        "attacks": "splitvfl.attacks",
        "defenses": "splitvfl.defenses",
        "penalties": "splitvfl.penalties",
        "models": "splitvfl.models",
        "exchanges": "splitvfl.exchange",
        "losses": "splitvfl.learning.losses",
    }


@pytest.mark.parametrize("kind", PACKAGES)
def test_what_the_table_names_is_there(kind: PluginKind) -> None:
    package = import_module(PACKAGES[kind])

    assert all(hasattr(package, exported) for exported in package.__all__)
    assert built_in(kind)
    assert all(found.__module__.startswith("splitvfl.") for found in built_in(kind).values())


def test_nothing_else_is_imported_by_a_string() -> None:
    """But for the public names of the package, and files of users."""
    found = {
        name
        for name, tree in trees()
        for node in ast.walk(tree)
        if (getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)) in BY_A_STRING
    }

    assert found == {"config.registry", "config.module_sources", "lazy_names"}


def asked_for(tree: ast.Module) -> Iterator[tuple[PluginKind, str]]:
    """Yield the kind and the name of whatever comes with the package that a module asks for by a name of its own."""
    kinds: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            pairs = (
                zip(target.elts, node.value.elts, strict=False)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            for left, right in pairs:
                if isinstance(left, ast.Name):
                    kinds[left.id] = kind_asked(right)
                    texts[left.id] = getattr(right, "value", None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            kind = kind_asked(node.value) or kinds.get(getattr(node.value, "id", ""))
            name = getattr(node.slice, "value", None) or texts.get(getattr(node.slice, "id", ""))
            if kind is not None and isinstance(name, str):
                yield kind, name


def kind_asked(node: ast.expr) -> Any:
    """Return the kind of a call of :func:`built_in`, ``None`` of anything else."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "built_in":
        return getattr(node.args[0], "value", None)
    return None


def test_what_the_package_asks_for_by_name_is_there() -> None:
    found = {(name, *asked) for name, tree in trees() for asked in asked_for(tree)}

    assert {
        ("app.promised_predictions", "defenses", "gaussian-ir"),
        ("app.hdp_plan", "defenses", "coefficient-noise"),
        ("app.noise", "defenses", "coefficient-noise"),
        ("app.column_auditing", "attacks", "ridge"),
        ("app.column_auditing", "attacks", "inverse-network"),
        ("app.reconstruction_figures", "attacks", "rcc1"),
    } <= found
    assert not {asked for asked in found if asked[2] not in built_in(asked[1])}
