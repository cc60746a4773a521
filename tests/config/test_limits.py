"""Every number of an experiment file has its limits: a slip of the finger is an error in words, with its line.

Each number that the schema knows is set to numbers that are far too large, negative, or none: the file is either taken,
and what it describes can be built, or refused by name and line, at once and before memory is taken for it.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import resource
import typing
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from splitvfl.app.experiment import build_trainer, variants
from splitvfl.app.records import load_data
from splitvfl.config.named import Named
from splitvfl.config.registry import built_in, resolve
from splitvfl.config.sections import ExperimentConfig, HookConfig, parse_config
from splitvfl.config.yaml import to_yaml
from splitvfl.data.columns import VerticalData
from splitvfl.errors import ConfigError, SplitVFLError

BASE: dict[str, Any] = {
    "data": {"name": "breast-cancer"},
    "parties": {"clinic": {"role": "active", "columns": ["mean *"]}, "lab": {"role": "passive", "columns": "rest"}},
    "audit": False,
    "network": {"listen": "127.0.0.1:1", "plaintext_on_loopback": True},
}
# What sections need beside their name.
NEEDED: dict[str, dict[str, Any]] = {
    "NoiseSettings": {"epsilon": 0.5, "delta": 0.1},
    "HdpNoiseSettings": {"epsilon": 0.5, "delta": 0.1},
    "SumNoiseSettings": {"epsilon": 0.5, "delta": 0.1},
    "exchanges: hybrid": {"epsilon": 1.0, "share": 0.3},
}
VALUES = ("1000000000000", "1" + 30 * "0", "-1", "0", ".nan", ".inf", "1e300", "5e-324", "1" + 399 * "0")
ON_THE_COMMAND_LINE = (VALUES[0], ".nan")  # what is read there is checked as what a file has


def numbers_of(section: type[BaseModel], tree: dict[str, Any], place: tuple[str, ...]) -> Iterator[Any]:
    """Yield a file, and the place in it, for every number of a section and of those in it."""
    for name, field in section.model_fields.items():
        for kind in kinds_of(typing.Annotated[field.annotation, *field.metadata, None]):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                inner = dict(NEEDED.get(kind.__name__, {}))
                chosen = kind.model_fields.get("name")
                if chosen is not None and chosen.default is not None and isinstance(chosen.default, str):
                    inner["name"] = chosen.default
                held = value_at(tree, (*place, name))
                whole = with_value(tree, (*place, name), {**(held if isinstance(held, dict) else {}), **inner})
                yield from numbers_of(kind, whole, (*place, name))
            elif is_dataclass(kind):
                for inside, hint in typing.get_type_hints(kind).items():
                    if hint in (int, float):
                        yield with_value(tree, (*place, name), {}), (*place, name, inside), False
            elif kind in (int, float):
                yield tree, (*place, name), typing.get_origin(bare(field.annotation)) is tuple


def bare(annotation: Any) -> Any:
    members = [member for member in typing.get_args(annotation) if member is not type(None)]
    return bare(members[0]) if len(members) == 1 and typing.get_origin(annotation) is not tuple else annotation


def kinds_of(annotation: Any) -> Iterator[Any]:
    """Yield what an annotation is made of; a truth value is no number."""
    notes = getattr(annotation, "__metadata__", ())
    for note in notes:
        if isinstance(note, Named):
            # Principal components are named by no file.
            yield from (note.section(name, Path()) for name in built_in(note.kind) if name != "pca")
            return
    inner = [part for part in typing.get_args(annotation) if isinstance(part, type) or typing.get_args(part)]
    if not inner:
        yield annotation
    for part in inner:
        yield from kinds_of(part)


def value_at(tree: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def refused(text: str, overrides: tuple[str, ...] = ()) -> str:
    """Return what is said of a file, nothing if it is taken; any other error than of settings is one of the test."""
    try:
        parse_config(text, source="run.yaml", overrides=overrides)
    except ConfigError as error:
        return str(error)
    return ""


def with_value(tree: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    if not place:
        return value  # type: ignore[no-any-return]
    inner = tree.get(place[0], {})
    return {**tree, place[0]: with_value(inner if isinstance(inner, dict) else {}, place[1:], value)}


LEAVES = {
    f"{number}-{'.'.join(place)}": (tree, place, many)  # sections of several names have numbers of one name
    for number, (tree, place, many) in enumerate(numbers_of(ExperimentConfig, BASE, ()))
    if place[0] != "parties"  # a share of the columns, tried below
}


@pytest.fixture(scope="module")
def data() -> VerticalData:
    return load_data(parse_config(to_yaml(BASE), source="base.yaml"))


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Let nothing take more than 2 GiB more than there is, so that what would fill a machine fails here."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_the_numbers_that_decide_memory_are_among_those_that_are_tried() -> None:
    places = {".".join(place) for _, place, _ in LEAVES.values()}
    assert {
        "model.bottom",
        "model.top_hidden",
        "model.embedding_dim",
        "model.cross_buckets",
        "train.batch_size",
        "train.epochs",
        "train.threads",
        "train.optimizer.lr",
        "train.early_stopping.patience",
        "exchange.encryption.key_bits",
        "exchange.encryption.most_columns",
        "exchange.noise.gradient_bound",
        "exchange.stock",
        "network.retries",
        "known_positives",
        "data.min_count",
    } <= places
    assert len(LEAVES) > 80


@pytest.mark.parametrize("number", range(len(LEAVES)), ids=LEAVES)
def test_a_number_is_taken_or_refused_by_name_and_line(number: int, data: VerticalData, little_memory: None) -> None:
    """With some of the values: a third of all numbers are tried with each."""
    some = dict.fromkeys([*ON_THE_COMMAND_LINE, *VALUES[number % 3 :: 3]])
    check_number(*list(LEAVES.values())[number], some, data)


@pytest.mark.slow(reason="every number with every value")
def test_every_value_is_taken_or_refused_by_name_and_line(data: VerticalData, little_memory: None) -> None:
    for tree, place, many in LEAVES.values():
        check_number(tree, place, many, VALUES, data)


def check_number(
    tree: dict[str, Any], place: tuple[str, ...], many: bool, values: Iterable[str], data: VerticalData
) -> None:
    right, with_any = to_yaml(tree), to_yaml(with_value(tree, place, "VALUE"))
    base = parse_config(right, source="run.yaml")  # the file is right but for the number
    for value in values:
        written = with_any.replace("VALUE", f"[{value}]" if many else value)
        key = re.escape(".".join(place))
        said = refused(written)
        if value in ON_THE_COMMAND_LINE:
            override = f"{'.'.join(place)}={f'[{value}]' if many else value}"
            again = refused(right, (override,))
            assert bool(said) == bool(again)
            assert not said or "command line" in again
        if said:
            assert re.search(rf"run\.yaml:\d+: {key}(\.0)?: |run\.yaml:\d+: {place[0]}", said), said
            assert len(said) < 600
        elif place[0] in ("model", "train", "exchange") and base.model.name != "wide-deep":
            build(parse_config(written, source="run.yaml"), data)


LINEAR = """
data: breast-cancer
parties: {clinic: {role: active}, lab: {role: passive, columns: rest}}
model: {name: logistic-regression, row_norm: 0.7}
train: {optimizer: {name: sgd, lr: 0.1}}
"""


def build(config: ExperimentConfig, data: VerticalData) -> None:
    if config.exchange.name != "split":  # which trains linear models only, and calculates noise for plain descent
        linear = parse_config(LINEAR, source="linear.yaml")
        config = config.model_copy(update={"model": linear.model, "train": linear.train})
    with contextlib.suppress(SplitVFLError):  # in words
        build_trainer(config, data)


@pytest.mark.parametrize("value", VALUES)
def test_a_share_of_the_columns_has_limits_too(value: str) -> None:
    text = to_yaml(with_value(BASE, ("parties", "lab", "columns"), "VALUE")).replace("VALUE", value)
    if value == "5e-324":
        parse_config(text, source="run.yaml")
        return
    with pytest.raises(ConfigError, match=r"run\.yaml:\d+: parties\.lab\.columns: "):
        parse_config(text, source="run.yaml")


def test_a_width_of_a_million_millions_is_told_in_words() -> None:
    text = to_yaml(BASE) + "model:\n  name: mlp\n  bottom: [64,\n    1000000000000]\n"
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="run.yaml")
    line = text.splitlines().index("    1000000000000]") + 1
    assert str(caught.value) == f"run.yaml:{line}: model.bottom.1: expected at most 65536, got 1000000000000"
    with pytest.raises(ConfigError, match=r"command line: model\.bottom\.0: expected at most 65536, got 1000000000000"):
        parse_config(to_yaml(BASE), source="run.yaml", overrides=["model.name=mlp", "model.bottom=[1000000000000]"])


def test_layers_that_are_too_large_together_are_refused_where_they_are_built(
    data: VerticalData, monkeypatch: pytest.MonkeyPatch, little_memory: None
) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 20}.__getitem__)  # 4 GiB
    config = parse_config(to_yaml(BASE) + "model: {name: mlp, bottom: [65536, 65536]}\n", source="run.yaml")
    complaint = r"model\.bottom: with the columns of lab it makes 4,29\d,\d{3},\d{3} weights, 16 GiB, .* has 4 GiB"
    with pytest.raises(ConfigError, match=complaint):
        build_trainer(config, data)
    config = parse_config(to_yaml(BASE) + "model: {name: mlp, top_hidden: [65536, 65536]}\n", source="run.yaml")
    with pytest.raises(ConfigError, match=r"model\.top_hidden: with the columns of clinic"):
        build_trainer(config, data)


@pytest.mark.parametrize(
    "kind_and_name",
    [*(("attacks", name) for name in built_in("attacks")), *(("defenses", name) for name in built_in("defenses"))],
)
def test_numbers_of_hooks_are_taken_or_refused_in_words(kind_and_name: Any, little_memory: None) -> None:
    kind, name = kind_and_name
    factory = resolve(kind, name, folder=Path())
    for number, option in enumerate(inspect.signature(factory).parameters):
        text = to_yaml({**BASE, kind: [{"name": name, option: "VALUE"}]})
        for value in VALUES[number % 3 :: 3]:
            said = refused(text.replace("VALUE", value))
            assert not said or re.match(rf"run\.yaml:\d+: {kind}\.0", said), said


@pytest.mark.parametrize("seeds", [0, -1, 10**12, 10**30])
def test_seeds_of_a_comparison_are_limited(seeds: int) -> None:
    config = parse_config(to_yaml(BASE), source="run.yaml")
    with pytest.raises(ConfigError, match="--seeds: expected 1 to 10000, got"):
        variants(config, [[HookConfig(name="max-norm")]], seeds, Path("runs"))


def test_a_comparison_has_each_list_of_defenses_once() -> None:
    """One without a defense was compared with itself, in one folder, and two runs of one seed were shown as a range."""
    config = parse_config(to_yaml({**BASE, "defenses": []}), source="run.yaml")
    own, norm = list(config.defenses), [HookConfig(name="max-norm")]

    found = variants(config, [[], own, norm, norm], 2, Path("runs"))

    assert [one.label for one in found] == ["none", "none", "max-norm", "max-norm"]
    assert len({one.folder for one in found}) == 4
