"""Names that papers use find what is meant, in lists and in the errors of files and of Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import splitvfl.attacks
from splitvfl.app.named_parts import attack_of, defense_of
from splitvfl.config.other_names import POINTERS, named_so, other_names, simplified
from splitvfl.config.registry import PluginKind, built_in, find, resolve, search
from splitvfl.config.sections import parse_config
from splitvfl.config.yaml import Document
from splitvfl.errors import ConfigError
from splitvfl.learning.glm_losses import LOSS_NAMES

KINDS: tuple[PluginKind, ...] = get_args(PluginKind)
ALIASES = [
    (kind, name, alias) for kind in KINDS for name, found in built_in(kind).items() for alias in other_names(found)
]
PARTIES = "parties: {a: {role: active, columns: 0.5}, b: {role: passive, columns: rest}}\n"
PAPERS: list[tuple[PluginKind, str, str]] = [
    ("attacks", "gia", "gradient-inversion"),
    ("attacks", "equation solving", "residue-solving"),
    ("attacks", "ESA", "least-squares"),
    ("attacks", "SDAR", "pseudo-client"),
    ("attacks", "FORA", "pseudo-client"),
    ("attacks", "SDAR/FORA", "pseudo-client"),
    ("attacks", "model completion", "model-completion"),
    ("attacks", "single-feature", "black-box-feature"),
    ("attacks", "single-feature", "single-column"),
    ("attacks", "theorem 3.5", "single-column"),
    ("attacks", "active packing", "packing"),
    ("attacks", "component-of-activation", "component"),
    ("defenses", "dp-ir", "gaussian-ir"),
    ("defenses", "Marvell", "sumkl"),
    ("defenses", "KRR", "randomised-response"),
    ("defenses", "randomised response", "randomised-response"),
    ("defenses", "randomized response", "randomised-response"),
    ("penalties", "NoPeek", "distance-correlation"),
    ("penalties", "MID", "mutual-information-bottleneck"),
    ("exchanges", "SplitNN", "split"),
]
COVERED: list[tuple[PluginKind, str, str]] = [
    ("defenses", "hdp-vfl", "exchange: {name: split, noise:"),
    ("defenses", "dp-paillier", "exchange: {name: taylor, noise:"),
    ("attacks", "PackingEngine", "malicious: {a: packing}"),
    ("attacks", "FSHA", "docs/threat-model.md"),
    ("defenses", "NoPeek", "splitvfl list penalties distance-correlation"),
    ("defenses", "MID", "splitvfl list penalties mutual-information-bottleneck"),
    ("defenses", "one-way", "splitvfl list exchanges one-way"),
    ("attacks", "marvell", "splitvfl list defenses sumkl"),
    ("models", "SplitNN", "splitvfl list exchanges split"),
    ("defenses", "private top", "private_top: true"),
    ("losses", "poisson", "model: {name: glm, loss: poisson}"),
    ("models", "poisson", "model: {name: glm, loss: poisson}"),
    ("models", "Gamma", "model: {name: glm, loss: gamma}"),
]


@pytest.mark.parametrize(("kind", "name", "alias"), ALIASES)
def test_every_alias_finds_its_item(kind: PluginKind, name: str, alias: str) -> None:
    assert name in search(kind, alias)[0]
    with pytest.raises(ConfigError, match=rf"no such .*; did you mean [a-z0-9 -]*\b{name}\b"):
        resolve(kind, alias, folder=Path())


@pytest.mark.parametrize(("kind", "wanted", "name"), PAPERS)
def test_the_papers_names_find_their_items(kind: PluginKind, wanted: str, name: str) -> None:
    assert name in search(kind, wanted)[0]


@pytest.mark.parametrize(("kind", "wanted", "told"), COVERED)
def test_what_is_covered_elsewhere_is_pointed_to(kind: PluginKind, wanted: str, told: str) -> None:
    assert told in " ".join(search(kind, wanted)[1])
    with pytest.raises(ConfigError, match=re.escape(told)):
        resolve(kind, wanted, folder=Path())


def test_an_alias_means_several_items_only_where_papers_do() -> None:
    several = {(kind, simplified(alias)) for kind, _, alias in ALIASES if len(search(kind, alias)[0]) > 1}

    assert several == {("attacks", name) for name in ("equationsolving", "membershipinference", "singlefeature")}


def test_no_alias_is_the_name_of_something_else_of_its_kind() -> None:
    for kind, name, alias in ALIASES:
        assert simplified(alias) not in {simplified(other) for other in built_in(kind) if other != name}


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_every_loss_of_the_linear_models_is_found(loss: str) -> None:
    meant, covered = search("losses", loss)

    assert meant == [loss] or f"loss: {loss}" in " ".join(covered)


def test_what_pointers_name_is_there(checkout: Path) -> None:
    """Pages, settings and functions."""
    text = " ".join(pointer.covered for pointer in POINTERS)
    pages, places = re.findall(r"docs/\S+\.md", text), re.findall(r"splitvfl\.attacks\.(\w+)", text)
    examples = [one for one in re.findall(r"`([^`]*)`", text) if one.startswith(("exchange:", "model:", "data:"))]

    assert all((checkout / page).is_file() for page in pages)
    assert all(hasattr(splitvfl.attacks, place) for place in places)
    for example in examples:
        own = set(Document(example, source="pointer").tree)
        rest = {"data": "breast-cancer", "model": "{name: logistic-regression, row_norm: 0.5}"}
        others = "".join(f"{key}: {value}\n" for key, value in rest.items() if key not in own)
        parse_config(f"{PARTIES}{others}{example}\n", source="pointer")
    assert len(pages) >= 4
    assert len(places) == 1
    assert len(examples) == 3


def test_files_and_python_say_it_too() -> None:
    text = f"data: breast-cancer\n{PARTIES}"
    for hooks, told in [
        ("attacks: [GIA]", "no such attack 'GIA'; did you mean gradient-inversion?"),
        ("train: {loss: poisson}", "no such loss 'poisson'; it is a loss of model glm"),
        ("defenses: [hdp-vfl]", "no such defense 'hdp-vfl'; it is a setting of exchange split"),
    ]:
        with pytest.raises(ConfigError, match=re.escape(told)):
            parse_config(f"{text}{hooks}\n", source="experiment.yaml")
    for name, told in [("MNIST", "did you mean mnist?"), ("Credit Default", "did you mean credit-default?")]:
        with pytest.raises(ConfigError, match=rf"no such data set '{name}'; .*{re.escape(told)}"):
            parse_config(f"data: {name}\n{PARTIES}", source="experiment.yaml")
    with pytest.raises(ConfigError, match=r"did you mean gaussian-ir\?"):
        defense_of("dp-ir(clip=1.0,sigma=1.0)")
    with pytest.raises(
        ConfigError, match=r"did you mean residue-solving or least|did you mean least-squares or residue-s"
    ):
        attack_of("equation solving")


def test_a_class_of_a_user_has_other_names_as_well() -> None:
    class Shuffle:
        """Shuffle rows.

        Also called: row swap, SWAP-2.
        """

    assert other_names(Shuffle) == ("row swap", "SWAP-2")
    assert named_so("swap2", {"shuffle": Shuffle}) == ["shuffle"]
    assert named_so("-", {"shuffle": Shuffle}) == []


def test_a_name_that_nothing_has_finds_nothing() -> None:
    assert search("attacks", "no such thing") == ([], [])
    assert search("attacks", "norm") == (["norm"], [])
    assert find("attacks", "norm", {}, folder=Path())[0].name == "norm"
    assert search("data", "Breast cancer") == (["breast-cancer"], [])
