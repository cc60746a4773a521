"""One thing that an experiment can name, for people: what it does, claims, takes and costs, and how it is written.

What can be asked of the code is asked of it (which labels and exchanges it goes with, what a defense claims, what an
attack reads); the rest is said by its docstring (:mod:`splitvfl.config.docstrings`), of plug-ins of one's own too.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitvfl.claims import Claim, NoPromise, PerRecord, claims_of, told
from splitvfl.config.docstrings import Docstring, docstring_of
from splitvfl.config.keys import REQUIRED, Key, keys_of, options_of
from splitvfl.config.registry import PluginKind, built_in, construct, kind_of, resolve, summary_of, unknown
from splitvfl.config.sections import DataConfig, ExchangeSection, HookConfig, PenaltyConfig
from splitvfl.config.yaml import Document
from splitvfl.data.sets import DATA_FOLDER, DATA_SETS, TABLES, DataSet
from splitvfl.errors import ConfigError, SplitVFLError
from splitvfl.exchange.base import Exchange
from splitvfl.hooks import (
    Crossing,
    crossing_of,
    explanations_of,
    fields_in_words,
    moment_of,
    needs_label_gradients,
    needs_of,
    reads_activations,
    record_loss_of,
    shifts_scores_of,
    target_of,
)

_OF_EXAMPLE = " (The figures are those of the example.)"
_CROSSINGS: Mapping[Crossing, str] = {
    "gradient": "the cut gradient, which the label party sends back",
    "activation": "the activation, which a passive party sends",
    "labels": "the labels, before the label party computes the loss",
    "scores": "scores, which the label party publishes",
}
# What every passive party has, or is assumed to have, whatever crosses.
_HELD = frozenset({"activation", "columns", "logits", "weights", "bottom", "known_positives", "known_negatives"})


@dataclass(frozen=True, slots=True)
class Entry:
    """What there is to say of one name.

    Attributes:
        summary: What it is, in a line.
        facts: What is known of it, under headings.
        options: What can be said of it in a file.
        example: How it is written in an experiment, as YAML.
        documentation: What Python shows the whole docstring of; empty for data.
    """

    summary: str
    facts: Mapping[str, str]
    options: tuple[Key, ...]
    example: str
    documentation: str = ""


def entry(kind: str, name: str) -> Entry:
    """Return what there is to say of one name.

    Args:
        kind: A kind of the registry, or ``"data"``.
        name: A name of that kind, or ``module:Class`` in the current folder.

    Raises:
        ConfigError: If there is no such kind, or no such name.
    """
    known = kind_of(kind)
    if known == "data":
        return _data_set(name)
    factory: Any = resolve(known, name, folder=Path())
    said = docstring_of(factory)
    options = (*_common(known, factory), *options_of(known, factory))
    example = _example_of(known, name, factory)
    return Entry(
        summary=summary_of(factory),
        facts={heading: text for heading, text in _facts(known, factory, said, example).items() if text},
        options=options,
        example=example,
        documentation=_documentation(factory),
    )


def _documentation(factory: Any) -> str:
    """Return where in Python it is found: in the package that exports it, if one does."""
    module, name = factory.__module__, factory.__qualname__
    package = module.rpartition(".")[0]
    exported = getattr(sys.modules.get(package), name, None) is factory
    return f"{package if exported else module}.{name}"


def _common(kind: PluginKind, factory: Any) -> tuple[Key, ...]:
    """Return what can be said of every exchange, of every penalty, or of every defense of the activation."""
    if kind == "exchanges":
        return tuple(key for key in keys_of(ExchangeSection) if key.name not in ("name", *factory.gone))
    if kind == "penalties":
        return tuple(key for key in keys_of(PenaltyConfig) if key.name not in ("name", "at"))
    of_phases = kind == "defenses" and crossing_of(factory) == "activation"
    return tuple(key for key in keys_of(HookConfig) if key.name == "at") if of_phases else ()


def _facts(kind: PluginKind, factory: Any, docstring: Docstring, example: str) -> dict[str, str]:
    derived = _DERIVED[kind](factory, example) if kind in _DERIVED else {}
    headings = ("Claim", "Works with", "Cost", "Also called", "Source")
    said = {heading: docstring.labelled.get(heading, "") for heading in headings}
    module = inspect.getmodule(factory)
    # A file of one idea may name its source at its top.
    said["Source"] = said["Source"] or docstring_of(module).labelled.get("Source", "")
    return {"Claim": derived.pop("Claim", said.pop("Claim")), **derived, **said}


def _defense(factory: Any, example: str) -> dict[str, str]:
    defense = _made("defenses", factory, example)
    fitting = [name for name, exchange in built_in("exchanges").items() if _goes_with(defense, exchange)]
    return {
        **_claimed(defense),
        "Acts on": _CROSSINGS[crossing_of(defense)],
        "Labels": _labels_of(factory),
        "Scores": _scores_of(defense),
        "Exchanges": _listed(fitting),
    }


def _scores_of(hook: Any) -> str:
    """Return whether scores are probabilities with a hook, as its example sets it; of a class, as it says itself."""
    said = getattr(hook, "shifts_scores", "") if inspect.isclass(hook) else shifts_scores_of(hook).partition(": ")[2]
    return (
        f"no probabilities: {said}" if isinstance(said, str) and said else "estimates of probabilities, as without it"
    )


def _claimed(defense: Any) -> dict[str, str]:
    """Return what a defense claims in words; nothing of one that has not said so with types, or cannot be made."""
    claims = () if inspect.isclass(defense) or not hasattr(defense, "claims") else claims_of(defense)
    said = told(claims)
    if not said.promised:
        return {}
    with_figures = any(not isinstance(claim, NoPromise | PerRecord) for claim in claims)
    return {
        "Claim": f"{' '.join(said.promised)}{_OF_EXAMPLE if with_figures else ''}",
        "Mechanism": "; ".join(said.mechanisms),
        "Rests on": " ".join(f"{condition.needed} {condition.checked}" for condition in said.conditions),
        "Not covered": " ".join(said.not_covered),
    }


def claims_of_example(name: str, *, folder: Path | None = None) -> tuple[tuple[Claim, ...], str]:
    """Return what a defense claims as its example sets it, and the example; nothing of one that states nothing.

    Args:
        name: A name of a defense, or ``module:Class``.
        folder: Where one's own modules are looked for. Default: the current folder.
    """
    factory: Any = resolve("defenses", name, folder=folder or Path())
    example = _example_of("defenses", name, factory)
    defense = _made("defenses", factory, example)
    return (() if inspect.isclass(defense) else claims_of(defense)), example


def example_made(kind: PluginKind, name: str) -> Any:
    """Return something as its example makes it; its class, where that cannot be made.

    Args:
        kind: What it is.
        name: A name of that kind, or ``module:Class`` in the current folder.

    Raises:
        ConfigError: If there is none.
    """
    factory: Any = resolve(kind, name, folder=Path())
    return _made(kind, factory, _example_of(kind, name, factory))


def _example_of(kind: PluginKind, name: str, factory: Any) -> str:
    written = docstring_of(factory).labelled.get("In a file", "").strip("`")
    return written or _written(kind, name, (*_common(kind, factory), *options_of(kind, factory)))


def _labels_of(defense: Any) -> str:
    """Return for which labels a defense is, as :mod:`splitvfl.party.attaching` checks it."""
    if getattr(defense, "needs_binary_labels", False):
        return "0 and 1"
    if getattr(defense, "needs_probabilities", False):
        return "of every task but regression"
    advice, takes = getattr(defense, "for_regression", ""), inspect.signature(defense).parameters
    if advice:
        return f"0 and 1; classes (classes: k); numbers ({advice})"
    return "0 and 1; classes (classes: k)" if "classes" in takes else "of every task"


def _goes_with(defense: Any, exchange: type[Exchange]) -> bool:
    crossing = crossing_of(defense)
    if exchange.one_way:
        return crossing in ("activation", "scores")
    if needs_label_gradients(defense) and exchange.limits_values:
        return False
    return not (exchange.sums_only and crossing == "labels" and record_loss_of(defense) is not None)


def _attack(factory: Any, example: str) -> dict[str, str]:
    attack = _made("attacks", factory, example)
    target, moment, needs = target_of(attack), moment_of(attack), needs_of(attack)
    fitting = [name for name, exchange in built_in("exchanges").items() if _can_be_seen(attack, exchange)]
    return {
        "What it does": explanations_of(attack).get(factory.name, "") if hasattr(factory, "name") else "",
        "Reads": _READ[target],
        "Needs": _listed(fields_in_words(needs)),
        "When": "in every step, and over the run" if (target, moment) == ("labels", "every-step") else "after training",
        "Labels": _tasks_of(attack) if target == "labels" else "of every task",
        "Exchanges": _listed(fitting),
    }


_READ: Mapping[str, str] = {
    "labels": "labels",
    "features": "the passive party's columns",
    "members": "whether a record was trained on",
}


def _tasks_of(attack: Any) -> str:
    """Return which labels an attack reads: 0 and 1, unless it says that there are others."""
    read = getattr(attack, "tasks", ("binary",))
    said = {"binary": "0 and 1", "multiclass": "classes", "regression": "numbers"}
    return "; ".join(labels for task, labels in said.items() if task in read)


def _can_be_seen(attack: Any, exchange: type[Exchange]) -> bool:
    if target_of(attack) == "members":
        return "received_activation" not in needs_of(attack) or not exchange.hides_parts
    if target_of(attack) == "features":
        # Others are for linear models, which an exchange that is one-way does not train.
        return exchange.shows_activations if reads_activations(attack) else not exchange.one_way
    if moment_of(attack) == "after-training":
        return True
    # Who has the gradient of each record has that of its own weights, where its bottom is one linear layer.
    seen = {"gradient", "aggregated_gradient"} if exchange.shows_gradients() else {"aggregated_gradient"}
    return not exchange.one_way and needs_of(attack) <= _HELD | seen


def _exchange(factory: Any, example: str) -> dict[str, str]:
    if factory.seen is None:
        return {}
    active, passive = factory.seen
    return {"The label party sees": active, "A passive party sees": passive}


def _loss(factory: Any, example: str) -> dict[str, str]:
    return {"Task": factory.labels or "every task"}


def _penalty(factory: Any, example: str) -> dict[str, str]:
    fitting = [name for name, exchange in built_in("exchanges").items() if exchange.adds_penalties]
    acting = "the gradient that a passive party's bottom model learns from, in training; nothing that is sent"
    return {
        "Acts on": acting,
        "Scores": _scores_of(factory),
        "Exchanges": _listed(fitting),
    }


_DERIVED: Mapping[PluginKind, Callable[[Any, str], dict[str, str]]] = {
    "defenses": _defense,
    "attacks": _attack,
    "exchanges": _exchange,
    "penalties": _penalty,
    "losses": _loss,
}


def _made(kind: PluginKind, factory: Any, example: str) -> Any:
    """Return one as its example makes it: its settings may decide what it is. Else its class, which knows less."""
    named = next(iter(Document(example, source="example").tree[kind]))
    options = {key: value for key, value in named.items() if key != "name"} if isinstance(named, dict) else {}
    with suppress(SplitVFLError):
        return construct(factory, {key: tuple(one) if isinstance(one, list) else one for key, one in options.items()})
    return factory


def _written(kind: PluginKind, name: str, options: Iterable[Key]) -> str:
    """Return how a file names something of which its docstring shows no example."""
    needed = [f"{key.name}: ..." for key in options if key.default is REQUIRED]
    section = f"{{name: {_quoted(name)}{''.join(f', {one}' for one in needed)}}}" if needed else _quoted(name)
    place = {"models": "model", "exchanges": "exchange", "losses": "loss"}.get(kind, kind.removesuffix("s"))
    if kind == "penalties":
        return f"parties: {{NAME: {{role: passive, columns: ..., penalties: [{section}]}}}}"
    if kind in ("attacks", "defenses"):
        return f"{kind}: [{section}]"
    return f"{place}: {section}" if kind in ("models", "exchanges") else f"train: {{{place}: {section}}}"


def _quoted(name: str) -> str:
    return f'"{name}"' if ":" in name else name


def _data_set(name: str) -> Entry:
    if name not in DATA_SETS:
        raise ConfigError(unknown("data", name, DATA_SETS))
    found = DATA_SETS[name]
    ours = ("path",) if name == TABLES else [key for key in DataConfig.model_fields if key != "name"]
    meaningless = set() if found.of_digits else {"digit"}
    meaningless |= {"path"} if found.make is not None else set()
    return Entry(
        summary=found.description,
        facts={
            "Task": "as it was ingested" if name == TABLES else found.task,
            **({"Label": " or ".join(found.labels)} if found.labels else {}),
            "Where": _place_of(name, found),
            "Source": found.source,
            "Licence": found.licence,
        },
        options=tuple(key for key in keys_of(DataConfig) if key.name in ours and key.name not in meaningless),
        example=_EXAMPLES.get(name, f"data: {name}"),
    )


_EXAMPLES = {
    "table": "data: {name: table, path: customers.csv, label: default, id_column: customer}",
    TABLES: f"data: {{name: {TABLES}, path: tables}}",
    "digits": "data: {name: digits, digit: 8}",
    "mnist": "data: {name: mnist, path: mnist.npz, digit: 8}",
}


def _place_of(name: str, found: DataSet) -> str:
    if found.make is not None:
        return "comes with splitvfl or scikit-learn; no file is needed"
    if not found.files:
        return "at the path that you give"
    here = os.environ.get(DATA_FOLDER)
    there = f"{here} ({DATA_FOLDER})" if here else f"the folder that the environment variable {DATA_FOLDER} names"
    return f"{' or '.join(found.files)} in {there}, or at the path that you give"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
