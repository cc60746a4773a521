"""Names and what they stand for: the one place where plug-ins are strings.

A name is looked up in three places:

- what :mod:`splitvfl.attacks`, :mod:`splitvfl.defenses`, :mod:`splitvfl.penalties`, :mod:`splitvfl.models` and
  :mod:`splitvfl.exchange` export, by the ``name`` of each class, likewise the losses of
  :mod:`splitvfl.learning.losses`, and the optimisers of :mod:`splitvfl.learning.optimizers`, for what comes with
  splitvfl;
- the entry-point group of its kind, ``splitvfl.attacks`` and so on, for what other installed packages offer;
- ``module:Class``, for a file of one's own beside the experiment or in the current folder, or an installed module.
  Where the settings of a run folder name it, :mod:`splitvfl.config.module_sources` says which files count.

What comes with splitvfl cannot be replaced under its own name: a report that says ``sumkl`` means this one.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, get_args

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from splitvfl.config.module_sources import importable, imported, make_way, note_own, sources_in_force
from splitvfl.config.other_names import named_so, pointers_to
from splitvfl.config.value_types import words
from splitvfl.config.yaml import Place, dotted, place_in
from splitvfl.data.sets import DATA_SETS
from splitvfl.errors import ConfigError, SplitVFLError, shown, suggestion
from splitvfl.exchange.base import Exchange
from splitvfl.hooks import explanations_of, weaknesses_of
from splitvfl.learning.losses import Loss
from splitvfl.learning.optimizers import EMBEDDING_OPTIMIZERS, OPTIMIZERS
from splitvfl.party.recipe import Recipe

PluginKind = Literal[
    "attacks", "defenses", "penalties", "models", "exchanges", "losses", "optimizers", "embedding_optimizers"
]

_KINDS: tuple[PluginKind, ...] = get_args(PluginKind)
_OPTIMIZERS: Mapping[PluginKind, Mapping[str, Callable[..., Any]]] = {
    "optimizers": OPTIMIZERS,
    "embedding_optimizers": EMBEDDING_OPTIMIZERS,
}
PACKAGES: Mapping[PluginKind, str] = {
    "attacks": "splitvfl.attacks",
    "defenses": "splitvfl.defenses",
    "penalties": "splitvfl.penalties",
    "models": "splitvfl.models",
    "exchanges": "splitvfl.exchange",
    "losses": "splitvfl.learning.losses",
}
"""What is imported by a string, and nothing else is: where each kind is, among what ``__all__`` lists there."""

# By kind, the method without which a class is not one of these, and why.
_METHODS: Mapping[PluginKind, tuple[str, str]] = {
    "attacks": ("__call__", "a hook is called"),
    "defenses": ("__call__", "a hook is called"),
    "penalties": ("__call__", "a hook is called"),
    "models": ("make_bottom", "a model is named by its recipe (splitvfl.models.Recipe)"),
    "exchanges": ("active", "an exchange has a side for the active party"),
    "losses": ("scores", "a loss says what outputs predict (splitvfl.learning.losses.Loss)"),
    "optimizers": ("step", "an optimiser takes steps"),
    "embedding_optimizers": ("step", "an optimiser takes steps"),
}
# By kind, arguments of constructors that no file gives: the parameters that are trained; the largest batch, a party's
# key, what it computes with, and how it proves that its keys are its own.
SUPPLIED: Mapping[PluginKind, frozenset[str]] = {
    "exchanges": frozenset({"rows", "key", "engine", "vouching"}),
    "optimizers": frozenset({"params"}),
    "embedding_optimizers": frozenset({"params"}),
}


def resolve(kind: PluginKind, name: str, *, folder: Path) -> Any:
    """Return what has that name: a class, or a function that makes an optimiser.

    Args:
        kind: What it is.
        name: A name of :func:`describe`, or ``module:Class``.
        folder: Where modules are looked for first: the experiment file's folder.

    Raises:
        ConfigError: If there is none, or what there is cannot be used.
    """
    if ":" in name:
        return _class_of_user(kind, name, folder)
    ours, offered = built_in(kind), _offered(kind)
    if name in ours:
        return ours[name]
    if name in offered:
        return _loaded(kind, offered[name])
    raise ConfigError(unknown(kind, name, [*ours, *offered]))


def unknown(kind: PluginKind | Literal["data"], name: str, known: Iterable[str]) -> str:
    """Return what is said of a name that nothing of a kind has: what was meant, what covers it, or what there is.

    Args:
        kind: The kind.
        name: What was written.
        known: The names that there are.
    """
    told = f"no such {'data set' if kind == 'data' else _one(kind)} {name!r}"
    meant, covered = search(kind, name)
    near = f"; did you mean {' or '.join(meant)}?" if meant else ""
    if covered:
        return "; ".join([f"{told}{near}", *covered])
    own = "; a class of your own is written module:Class" if "." in name and kind != "data" else ""
    return f"{told}{near or suggestion(name, known)}{own}  (splitvfl list {kind})"


def search(kind: str, name: str) -> tuple[list[str], list[str]]:
    """Return what somebody may mean who looks for a name that nothing of a kind has: the papers' name of it, say.

    Args:
        kind: A kind of the registry, or ``"data"``.
        name: What was written.

    Returns:
        The names of that kind that it stands for, itself if it is one; and, in clauses, what covers it that is of
        another kind or no plug-in.

    Raises:
        ConfigError: If there is no such kind.
    """
    known = kind_of(kind)
    items: Mapping[str, Any] = DATA_SETS if known == "data" else installed(known)
    if name in items:
        return [name], []
    meant = named_so(name, items)
    covered = [*pointers_to(name), *(_losses_of_models(name) if known == "losses" else ())]
    if meant or covered:
        return meant, covered
    # Optimisers of either kind have the same names, and stand at other keys.
    others = [other for other in _KINDS if other != known and not (other in _OPTIMIZERS and known in _OPTIMIZERS)]
    elsewhere = [
        f"it is the {_one(other)} {found}  (splitvfl list {other} {found})"
        for other in others
        for found in named_so(name, installed(other))
    ]
    return [], elsewhere + ([] if known == "losses" else [*_losses_of_models(name)])


def _losses_of_models(name: str) -> Iterator[str]:
    """Yield which models have a loss of that name among their own, in clauses."""
    for model, recipe in installed("models").items():
        own, _ = arguments_of(recipe).get("loss", (None, None))
        for loss in named_so(name, {one: one for one in get_args(own)}):
            written = f"model: {{name: {model}, loss: {loss}}}"
            yield f"it is a loss of model {model}: `{written}`  (splitvfl list models {model})"


def _one(kind: PluginKind) -> str:
    return {"losses": "loss", "penalties": "penalty"}.get(kind, kind[:-1])


@cache
def built_in(kind: PluginKind) -> Mapping[str, Any]:
    """Return what comes with splitvfl, by name: classes, and functions that make optimisers.

    A package of plug-ins is imported when it is first asked for.
    """
    if kind in _OPTIMIZERS:
        return _OPTIMIZERS[kind]
    package = importlib.import_module(PACKAGES[kind])
    exports = [getattr(package, exported) for exported in package.__all__]
    return {vars(one)["name"]: one for one in exports if inspect.isclass(one) and "name" in vars(one)}


def installed(kind: PluginKind) -> Mapping[str, Any]:
    """Return what can be named without a file of one's own, by name; what is broken is left out."""
    found = dict(built_in(kind))
    with suppress(ConfigError):
        for name, entry in _offered(kind).items():
            with suppress(ConfigError):
                found[name] = _loaded(kind, entry)
    return found


def explanations() -> dict[str, str]:
    """Return what every installed attack says that it does, by its name and by those that settings give it."""
    return {name: said for attack in installed("attacks").values() for name, said in explanations_of(attack).items()}


def weaknesses(defenses: Iterable[str]) -> list[tuple[str, str]]:
    """Return what defenses of these names say of attacks that read labels behind them, each with the attack's name."""
    known = installed("defenses")
    return [pair for name in defenses if name in known for pair in weaknesses_of(known[name]).items()]


def known_to_be_broken(defenses: Iterable[str]) -> bool:
    """Return whether any of some defenses, with or without settings in brackets, says that an attack breaks it."""
    return bool(weaknesses(label.partition("(")[0] for label in defenses))


def describe(kind: str) -> list[tuple[str, str]]:
    """Return every name of a kind with one line about it, in alphabetical order.

    Args:
        kind: A kind of the registry, or ``"data"``.

    Raises:
        ConfigError: If there is no such kind.
    """
    known = kind_of(kind)
    if known == "data":
        return sorted((name, data_set.description) for name, data_set in DATA_SETS.items())
    names = [*built_in(known), *_offered(known)]
    return sorted((name, _summary(known, name)) for name in names)


def summary_of(found: Any) -> str:
    """Return the first line of the docstring of something that has a name; of a function, what it returns."""
    line = (inspect.getdoc(found) or "").partition("\n")[0].removeprefix("Return ").replace("``", "`")
    return line[:1].upper() + line[1:]


def kind_of(name: str) -> PluginKind | Literal["data"]:
    """Return the kind of that name.

    Raises:
        ConfigError: If there is no such kind.
    """
    known: tuple[PluginKind | Literal["data"], ...] = (*_KINDS, "data")
    if name not in known:
        raise ConfigError(f"cannot list {name!r}{suggestion(name, known)}")
    return next(kind for kind in known if kind == name)


def check_options(factory: type[Any], options: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[Place, str]]]:
    """Compare options from a file with the constructor that will take them.

    Options are compared with the constructor's annotations, strictly: a truth value is not a number. Annotations that
    mean nothing to pydantic are not checked.

    Args:
        factory: The class.
        options: By name: what YAML can hold.

    Returns:
        The options as the constructor wants them (a tuple where it asks for one), and for each wrong or missing value
        where it is, an option's name first, and what is wrong.
    """
    parameters = _parameters(factory)
    if parameters is None:
        return dict(options), []
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    hints = _hints(factory.__init__)
    taken: dict[str, Any] = {}
    problems: list[tuple[Place, str]] = []
    for name, value in options.items():
        if name in named or open_ended:
            taken[name], wrong = _converted(value, hints.get(name, Any) if name in named else Any)
            problems += [((name, *place), text) for place, text in wrong]
        else:
            known = suggestion(name, named) or f"; {factory.__name__} takes none"
            problems.append(((name,), f"no such option{known}"))
    missing = [
        name for name, parameter in named.items() if parameter.default is parameter.empty and name not in options
    ]
    problems += [((name,), f"required by {factory.__name__}, and missing") for name in missing]
    return taken, problems


def find(kind: PluginKind, name: str, options: Mapping[str, Any], *, folder: Path) -> tuple[type[Any], dict[str, Any]]:
    """Return the class of an attack or a defense, and the options as its constructor wants them.

    Raises:
        ConfigError: If there is no such hook, or it does not take these options.
    """
    factory = resolve(kind, name, folder=folder)
    taken, problems = check_options(factory, options)
    if problems:
        raise ConfigError("\n".join(f"{name}: {dotted(place)}: {text}" for place, text in problems))
    return factory, taken


def arguments_of(factory: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return the annotation and the default of each argument that a constructor takes; ``...``: it has no default.

    Those that it passes on by ``**`` to the class it is derived from are among them, and come first. An annotation that
    means nothing to pydantic is ``Any``; a member of a union that no file can hold is left out.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for constructor in reversed(_constructors(factory)):
        hints = _hints(constructor)
        for name, one in inspect.signature(constructor).parameters.items():
            if name != "self" and one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD):
                found[name] = (_readable(hints.get(name, Any)), ... if one.default is one.empty else one.default)
    return found


def _constructors(factory: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return a function itself, or the constructors of a class as far as one passes on what it does not name."""
    if not inspect.isclass(factory):
        return [factory]
    found: list[Callable[..., Any]] = []
    for base in factory.__mro__[:-1]:
        constructor = vars(base).get("__init__")
        if inspect.isfunction(constructor):
            found.append(constructor)
            if not any(one.kind is one.VAR_KEYWORD for one in inspect.signature(constructor).parameters.values()):
                break
    return found


def _readable(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (typing.Union, UnionType):
        members = [member for member in typing.get_args(annotation) if _means_something(member)]
        return typing.Union[tuple(members)] if members else Any  # noqa: UP007 - its members are not known here
    return annotation if _means_something(annotation) else Any


def _means_something(annotation: Any) -> bool:
    """Return whether pydantic can read what a file holds as this."""
    try:
        return _meant_before(annotation)
    except TypeError:  # what a user put into Annotated has no hash
        return _is_read(annotation)


def _is_read(annotation: Any) -> bool:
    try:
        TypeAdapter(annotation)
    except PydanticUserError:
        return False
    return True


_meant_before = cache(_is_read)


def construct(factory: Callable[..., Any], options: Mapping[str, Any], *given: Any) -> Any:
    """Return an instance; what its constructor objects to becomes a :class:`ConfigError`.

    Args:
        factory: The class, or a function that makes one.
        options: Arguments by name.
        given: Arguments before these.
    """
    try:
        return factory(*given, **options)
    except ArithmeticError as error:
        raise ConfigError(f"a number is too large or too small to compute with: {error}") from error
    except (SplitVFLError, TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error


def _offered(kind: PluginKind) -> Mapping[str, EntryPoint]:
    return _offered_on(kind, tuple(sys.path))


@cache
def _offered_on(kind: PluginKind, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Return what packages on the path offer; the same for every name in a file."""
    found: dict[str, EntryPoint] = {}
    # A set: the same package seen twice on the path (a checkout and its wheel) makes one offer, not two.
    for entry in set(_entry_points(path)(group=f"splitvfl.{kind}")):
        rival = found.get(entry.name)
        if entry.name in built_in(kind) or rival is not None:
            taken = "splitvfl itself" if rival is None else _owner(rival)
            raise ConfigError(
                f"{_owner(entry)} offers the {_one(kind)} {entry.name!r}, and so does {taken}; remove one"
            )
        found[entry.name] = entry
    return found


@cache
def _entry_points(path: tuple[str, ...]) -> Callable[..., EntryPoints]:
    """Return what selects among those of all packages on the path: all files are read whichever group it is."""
    return entry_points().select


def _owner(entry: EntryPoint) -> str:
    return f"the package {entry.dist.name}" if entry.dist is not None else f"an entry point ({entry.value})"


def _loaded(kind: PluginKind, entry: EntryPoint) -> type[Any]:
    sources = sources_in_force()
    if sources is not None and entry.dist is not None:
        sources.check_place(entry.name, Path(str(entry.dist.locate_file("."))))
    try:
        found = entry.load()
    except Exception as error:  # other people's code may fail in any way
        raise ConfigError(
            f"{_one(kind)} {entry.name!r} of {_owner(entry)} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return _checked_class(kind, found, entry.value)


def _summary(kind: PluginKind, name: str) -> str:
    try:
        found = resolve(kind, name, folder=Path())
    except ConfigError as error:  # one broken package must not hide the others
        return str(error)
    return summary_of(found)


def _class_of_user(kind: PluginKind, name: str, folder: Path) -> type[Any]:
    module_name, _, attribute = name.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"expected a known name or module:Class, such as my_hooks:Clip, got {name!r}")
    sources = sources_in_force()
    if sources is not None:
        ours = [one for one in built_in(kind).values() if f"{one.__module__}:{one.__qualname__}" == name]
        return _checked_class(kind, ours[0] if ours else sources.load(module_name, attribute), name)
    module = _module_of_user(module_name, folder)
    if not hasattr(module, attribute):
        classes = [key for key, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigError(f"{module_name} has no {attribute!r}{suggestion(attribute, classes)}")
    return _checked_class(kind, getattr(module, attribute), name)


def _module_of_user(name: str, folder: Path) -> ModuleType:
    folders = list(dict.fromkeys(os.path.abspath(place) for place in (folder, Path.cwd())))
    # A file written since Python last looked into the folder would not be seen.
    importlib.invalidate_caches()
    top = name.partition(".")[0]
    own = make_way(top, folders)
    with importable(folders):
        try:
            module = imported(name)
        except ModuleNotFoundError:
            raise ConfigError(
                f"no module {name!r}; looked in {', '.join(folders)}, and among installed packages"
            ) from None
    if own:
        note_own(top)
    return module


def _checked_class(kind: PluginKind, found: object, name: str) -> type[Any]:
    if not inspect.isclass(found):
        raise ConfigError(f"{name}: expected a class, got {shown(found)}")
    method, why = _METHODS[kind]
    if not any(method in vars(base) for base in found.__mro__):
        raise ConfigError(f"{name}: {why}, and this class has no {method} method")
    if kind == "models":
        _check_recipe(found, name)
    if kind == "exchanges":
        _check_exchange(found, name)
    if kind == "losses" and (not issubclass(found, Loss) or inspect.isabstract(found)):
        raise ConfigError(
            f"{name}: derive this class from splitvfl.learning.losses.Loss, and give it __call__ and scores"
        )
    return found


def _check_recipe(found: type[Any], name: str) -> None:
    if not issubclass(found, Recipe):
        raise ConfigError(f"{name}: a model is named by its recipe; derive this class from splitvfl.models.Recipe")
    if inspect.isabstract(found):
        raise ConfigError(
            f"{name}: this recipe has no make_bottom(columns, task), which returns a passive party's model; add it"
        )


def _check_exchange(found: type[Any], name: str) -> None:
    if not issubclass(found, Exchange):
        raise ConfigError(f"{name}: expected a class derived from splitvfl.exchange.base.Exchange")
    if inspect.isabstract(found):
        raise ConfigError(f"{name}: this exchange has no {' and no '.join(sorted(found.__abstractmethods__))} method")
    if "name" not in vars(found) or found.name in built_in("exchanges"):
        raise ConfigError(f"{name}: parties compare the names of exchanges; give this class a name of its own")


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(factory).parameters
    except ValueError:  # written in C, and silent about what it takes
        return None


@cache
def _hints(constructor: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(constructor, include_extras=True)
    except (NameError, TypeError, AttributeError):  # names that exist for type checkers only
        return {}


def _converted(value: Any, annotation: Any) -> tuple[Any, list[tuple[Place, str]]]:
    """Return a value as the annotation wants it, and where in it is wrong what."""
    try:
        adapter = TypeAdapter[Any](annotation, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
    except PydanticUserError:
        return value, []
    try:
        # As JSON, in which a list may become a tuple but, strictly, a truth value or a text never a number.
        return adapter.validate_json(json.dumps(value)), []
    except ValidationError as error:
        found = [(place_in(detail["loc"], value), words(detail)) for detail in error.errors()]
    places = dict.fromkeys(place for place, _ in found)
    if () in places:
        # Each member of a union objects in its own words; the value is wrong once.
        return value, [((), " or ".join(dict.fromkeys(text for _, text in found)))]
    return value, [(place, " or ".join(text for other, text in found if other == place)) for place in places]
