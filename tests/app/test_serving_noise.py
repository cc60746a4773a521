"""Settings that noise is drawn under: two that differ never share it, and what was drawn before stays as it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.app.serving_noise import (
    BESIDE_FILE,
    CODE_FILE,
    KEY_FILE,
    SETTINGS_FILE,
    as_bytes,
    drawn_under,
    files_named,
    noise_settings,
    note_code,
    note_settings,
    score_noise_settings,
)
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.defenses import GaussianIR
from splitvfl.errors import CheckpointError, ConfigError
from splitvfl.party.memoised import MemoisedNoise
from splitvfl.run.answers import RecordAnswers
from tests.run.test_answers import KEY, ask, index_of, noisy_party

FILE = """
name: credit
data: breast-cancer
parties: {bank: {role: active, columns: ["mean *"]}, telecom: {role: passive, columns: rest}}
model: logistic-regression
exchange: {name: split, activation_clip: 1.0e+9}
defenses: [%s]
"""
HOOKS = '''
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from splitvfl.claims import RowNorm


class Law(str, Enum):
    GAUSS = "gauss"
    LAPLACE = "laplace"


class Level(IntEnum):
    LOW = 1


class Kind(Enum):
    ONE = "one"
    TWO = "two"


class Pair(NamedTuple):
    first: int
    second: float


@dataclass(frozen=True)
class Inner:
    scale: float = 1.0


@dataclass(frozen=True)
class Scale:
    sigma: float
    inner: Inner = Inner()


class Unit(float):
    """A number with a unit, which JSON would not write."""


class Base:
    crossing = "activation"

    def claims(self):
        return (RowNorm(1e9),)

    def __call__(self, message, secrets, /):
        return secrets.add_normal(message, self.sigma)


class Plain(Base):
    """Takes what JSON can write."""

    def __init__(
        self,
        *,
        sigma: float,
        count: int = 2,
        on: bool = True,
        law: Law = Law.GAUSS,
        level: Level = Level.LOW,
        shape: tuple[int, ...] = (1, 2),
        by: dict[int, float] | None = None,
        pair: Pair = Pair(1, 0.5),
        text: str = "a/\\u00e9",
        whole: float = 1,
        large: int = 2**60 + 1,
        zero: float = -0.0,
        far: float = float("inf"),
        **more: Any,
    ) -> None:
        self.sigma = sigma


class Own(Base):
    """Takes what JSON cannot write."""

    def __init__(
        self,
        *,
        sigma: Decimal | None = None,
        kind: Kind | None = None,
        scale: Scale | None = None,
        names: frozenset[str] | None = None,
        scales: tuple[Decimal, ...] = (),
        by: dict[str, Decimal] | None = None,
        mixed: dict | Decimal | None = None,
    ) -> None:
        self.sigma = float(sigma or 1.0)


class Default(Base):
    """Has a default that JSON cannot write."""

    def __init__(self, *, kind: Kind = Kind.ONE) -> None:
        self.sigma = 1.0


class WithUnit(Base):
    """Has a default that JSON writes a part of."""

    def __init__(self, *, sigma: float | None = None) -> None:
        self.sigma = 1.0


class PairKeys(Base):
    """Has a default with keys that JSON cannot write."""

    def __init__(self, *, by: dict = {(1, 2): 1.0}) -> None:
        self.sigma = 1.0


class MixedKeys(Base):
    """Has a default with keys that have no order."""

    def __init__(self, *, by: dict = {1: 1.0, "a": 1.0}) -> None:
        self.sigma = 1.0


unit = Unit(0.5)
unit.unit = "mm"
WithUnit.__init__.__kwdefaults__["sigma"] = unit


class OnScores:
    """Noise on scores."""

    crossing = "scores"

    def __init__(self, *, sigma: Decimal | float = 1.0) -> None:
        self.sigma = sigma

    def __call__(self, scores, secrets, /):
        return secrets.add_normal(scores, float(self.sigma))
'''


def config_with(hooks: str, folder: Path) -> ExperimentConfig:
    if not (folder / "noise_hooks.py").exists():
        (folder / "noise_hooks.py").write_text(HOOKS)
    return parse_config(FILE % hooks, source=folder / "x.yaml", folder=folder)


def settings_of(hooks: str, folder: Path) -> dict[str, object]:
    return settings_in(config_with(hooks, folder))


def of_scores(hooks: str, folder: Path) -> dict[str, object]:
    return score_noise_settings(config_with(hooks, folder).found_defenses, source="x.yaml")


def options_of(hooks: str, folder: Path) -> str:
    """What is kept of the only defense, as text, without what every file here has."""
    text = as_bytes(settings_of(hooks, folder)).decode()
    before, after = (
        '{"activation_clip": 1000000000.0, "defenses": [',
        '], "id_column": "customer", "letter_case": "kept"}',
    )
    assert text.startswith(before)
    assert text.endswith(after)
    return text.removeprefix(before).removesuffix(after)


USUAL = (
    '"count": 2, "far": {far}, "large": 1152921504606846977, "law": "{law}", "level": 1, "more": {more}, "on": true, '
    '"pair": {pair}, "shape": {shape}, "sigma": {sigma}, "text": "a/\\u00e9", "whole": 1, "zero": -0.0'
)


def plain(by: str = "null", **changed: str) -> str:
    usual = {"far": "Infinity", "law": "gauss", "more": "{}", "pair": "[1, 0.5]", "shape": "[1, 2]"}
    told = USUAL
    for name, value in (usual | changed).items():
        told = told.replace("{" + name + "}", value)
    return f'{{"name": "noise_hooks:Plain", "options": {{"by": {by}, {told}}}}}'


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (
            "{name: gaussian-ir, clip: 1, sigma: 0.5}",
            '{"name": "gaussian-ir", "options": {"clip": 1.0, "sigma": 0.5}}',
        ),
        ("{name: 'noise_hooks:Plain', sigma: 1}", plain(sigma="1.0")),
        (
            "{name: 'noise_hooks:Plain', sigma: 0.1, law: laplace, shape: [3], by: {'2': 1, '10': 2.5}, pair: [4, 1], "
            "extra: {b: [1, null], a: yes}}",
            plain(
                '{"2": 1.0, "10": 2.5}',
                sigma="0.1",
                law="laplace",
                shape="[3]",
                pair="[4, 1.0]",
                more='{"extra": {"a": "yes", "b": [1, null]}}',
            ),
        ),
        ("{name: 'noise_hooks:Plain', sigma: .inf, far: 1.0e+300}", plain(sigma="Infinity", far="1e+300")),
        ("{name: 'noise_hooks:Plain', sigma: .nan}", plain(sigma="NaN")),
    ],
    ids=["built-in", "defaults", "given", "infinite", "not-a-number"],
)
def test_what_json_can_write_is_written_as_ever(hook: str, expected: str, tmp_path: Path) -> None:
    """Golden: with other bytes every record of a folder that serves already would get a second noise."""
    assert options_of(hook, tmp_path) == expected


def test_noise_under_plain_settings_is_what_it_was(tmp_path: Path) -> None:
    """Golden, to the bit: two answers, and what memoised noise on scores is drawn from."""
    settings = as_bytes(settings_of("{name: gaussian-ir, clip: 1, sigma: 0.5}", tmp_path))
    party = noisy_party(GaussianIR(clip=1.0, sigma=0.5))

    sent = ask(RecordAnswers(party, index_of(party), key=KEY, half="h", settings=settings), 0, 7)
    source = MemoisedNoise(KEY, settings).sources("gaussian-ir", torch.tensor([[0.25, -0.0]]))

    assert sent.numpy().tobytes().hex() == "802278be4097273e904682be00affcbdc060dc3e50d017bfa09e763eb09ed83e"
    assert source["keystream"]["key"] == "bb3e7ae4408b0409cc52789a6dcc92ee455f94723881933bda1b585d501cfed0"
    state = hashlib.sha256(source["generator"].numpy().tobytes()).hexdigest()
    assert state == "b2d37d5fabc32812aee38222d49a827422ec0633354953cdb986509b5bba9484"


OWN = (
    "sigma: 0.5",
    "sigma: 1.0",
    "sigma: '0.5'",  # the same Decimal: one look more, of which the user is told
    "kind: one",
    "kind: two",
    "scale: {sigma: 0.5}",
    "scale: {sigma: 1.0}",
    "scale: {sigma: 0.5, inner: {scale: 2.0}}",
    "names: [a, b]",
    "names: [a, c]",
    "scales: [0.5, 1.0]",
    "scales: [0.5, 2.0]",
    "by: {a: 0.5}",
    "by: {a: 1.0}",
    "by: {b: 0.5}",
    "mixed: 0.5",
    "mixed: {as written: 0.5}",
    "mixed: {mixed: 0.5}",
)


def test_what_json_cannot_write_is_told_apart_by_what_the_file_says(tmp_path: Path) -> None:
    written = [as_bytes(settings_of(f"{{name: 'noise_hooks:Own', {one}}}", tmp_path)) for one in OWN]
    assert len(set(written)) == len(OWN)
    again = [as_bytes(settings_of(f"{{name: 'noise_hooks:Own', {one}}}", tmp_path)) for one in OWN]
    assert again == written


def test_noise_on_scores_tells_such_options_apart_too(tmp_path: Path) -> None:
    hooks = ("{name: 'noise_hooks:OnScores', sigma: '0.5'}", "{name: 'noise_hooks:OnScores', sigma: '1.0'}")
    assert len({as_bytes(of_scores(hook, tmp_path)) for hook in hooks}) == 2
    usual = as_bytes(of_scores("{name: 'noise_hooks:OnScores'}", tmp_path))
    assert usual == b'{"defenses": [{"name": "noise_hooks:OnScores", "options": {"sigma": 1.0}}]}'


def test_two_answers_under_options_that_json_cannot_write_do_not_tell_the_activation(tmp_path: Path) -> None:
    """With one noise n, a + .5 n and a + 1.0 n give a = 2 (a + .5 n) - (a + 1.0 n)."""

    def sent(sigma: str) -> Tensor:
        config = config_with(f"{{name: 'noise_hooks:Own', sigma: {sigma}}}", tmp_path)
        party = noisy_party(config.defenses[0].found("defenses", tmp_path).make())
        settings = as_bytes(settings_in(config))
        return ask(RecordAnswers(party, index_of(party), key=KEY, half="h", settings=settings), *range(100))

    clean_party = noisy_party(GaussianIR(clip=1e9, sigma=1e-9))
    clean = ask(RecordAnswers(clean_party, index_of(clean_party), key=KEY, half="h", settings=b""), *range(100))

    off = (2 * sent("0.5") - sent("1.0") - clean).std().item()

    # Of independent noise sqrt(2) is left, of one noise nothing; 400 numbers, five standard errors.
    assert abs(off / 2**0.5 - 1.0) < 5 / (2 * 400) ** 0.5


@pytest.mark.parametrize(
    ("hook", "option", "value"),
    [("Default", "kind", "one"), ("WithUnit", "sigma", "0.5"), ("PairKeys", "by", "{}"), ("MixedKeys", "by", "{}")],
)
def test_a_default_that_json_cannot_write_is_refused_until_the_file_names_it(
    hook: str, option: str, value: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"x\.yaml: defenses: noise_hooks:{hook}: .*`{option}`.*set it in the file"):
        settings_of(f"{{name: 'noise_hooks:{hook}'}}", tmp_path)
    assert value in options_of(f"{{name: 'noise_hooks:{hook}', {option}: {value}}}", tmp_path)


# --- what lies beside the settings: the loss, and files that options name


def test_what_is_first_seen_beside_settings_has_the_noise_that_it_had_before(tmp_path: Path) -> None:
    settings: dict[str, object] = {"defenses": [1]}
    (tmp_path / SETTINGS_FILE).write_text(json.dumps([settings]))  # of a version that looked at nothing beside them
    assert drawn_under(tmp_path, settings, {"loss": "a"}) == settings
    assert drawn_under(tmp_path, settings, {"loss": "b"}) == settings | {"beside": {"loss": "b"}}
    assert drawn_under(tmp_path, settings, {}) == settings | {"beside": {}}
    assert drawn_under(tmp_path, settings, {"loss": "a"}) == settings
    other: dict[str, object] = {"defenses": [1.0]}
    assert drawn_under(tmp_path, other, {"loss": "b"}) == other
    (tmp_path / BESIDE_FILE).write_text("[1]")
    with pytest.raises(CheckpointError, match="bring it back"):
        drawn_under(tmp_path, settings, {})


def test_a_file_that_an_option_names_is_a_setting(tmp_path: Path) -> None:
    table = tmp_path / "scales.csv"
    table.write_text("0.5")
    config = config_with(f"{{name: 'noise_hooks:Own', names: ['{table}', b]}}", tmp_path)
    seen = []
    for content in ("0.5", "1.0", "0.5"):
        table.write_text(content)
        seen.append(
            drawn_under(tmp_path, settings_in(config), {"files": files_named(config.found_defenses, "activation")})
        )
    assert seen[0] == seen[2] == settings_in(config)
    assert seen[1] != seen[0]
    assert list(files_named(config.found_defenses, "activation")) == [f"0/names/{table}"]
    assert files_named(config.found_defenses, "scores") == {}
    usual = config_with("{name: gaussian-ir, clip: 1.0, sigma: 0.1}", tmp_path)
    assert files_named(usual.found_defenses, "activation") == {}


def settings_in(config: ExperimentConfig) -> dict[str, object]:
    return noise_settings(
        config.found_defenses,
        source=config.source,
        activation_clip=config.exchange.activation_clip,
        id_column="customer",
        case="kept",
    )


# --- what is kept beside the key


def told_of(folder: Path, *settings: dict[str, Any]) -> list[int]:
    """How many lines each start says."""
    found = []
    for one in settings:
        told: list[str] = []
        note_settings(folder, one, told.append)
        found.append(len(told))
    return found


def with_option(value: Any) -> dict[str, Any]:
    return {"defenses": [{"name": "x", "options": {"sigma": value}}]}


@pytest.mark.parametrize(
    "values",
    [(1, 1.0), (1.0, True), (0.0, -0.0), (False, 0), (2**53, 2**53 + 1), (2**64, 2.0**64), (10**30, 10**30 + 1)],
)
def test_settings_that_python_calls_equal_and_noise_does_not_are_told(values: tuple[Any, Any], tmp_path: Path) -> None:
    first, second = map(with_option, values)
    assert as_bytes(first) != as_bytes(second)
    assert told_of(tmp_path, first, first, second, second, first) == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 2**64, -(10**30), "\ud800", 5e-324])
def test_settings_are_read_again_as_they_were_kept(value: Any, tmp_path: Path) -> None:
    assert told_of(tmp_path, with_option(0.5), with_option(value), with_option(value)) == [0, 1, 0]
    assert len(json.loads((tmp_path / SETTINGS_FILE).read_text())) == 2


def test_who_has_served_under_an_option_by_its_type_is_told_that_records_are_seen_once_more(tmp_path: Path) -> None:
    """What was kept of it before could mean any value."""
    before = {**settings_of("{name: 'noise_hooks:Own'}", tmp_path)}
    before["defenses"] = [{"name": "noise_hooks:Own", "options": {"sigma": "Decimal"}}]
    (tmp_path / SETTINGS_FILE).write_text(json.dumps([before], indent=1))
    (tmp_path / KEY_FILE).write_bytes(KEY)
    now = settings_of("{name: 'noise_hooks:Own', sigma: 0.5}", tmp_path)
    assert told_of(tmp_path, now, now) == [1, 0]


def test_a_change_of_a_custom_defenses_code_is_told_once(tmp_path: Path) -> None:
    """Its name and options say nothing of it, and noise stays the same."""
    hooks = "{name: 'noise_hooks:Own'}, {name: gaussian-ir, clip: 1.0, sigma: 0.5}, {name: 'noise_hooks:OnScores'}"
    config = config_with(hooks, tmp_path)
    told: list[str] = []

    def starts(count: int = 1) -> int:
        told.clear()
        for _ in range(count):
            note_code(tmp_path, config.found_defenses, "activation", told.append)
        return len(told)

    assert starts(2) == 0
    (tmp_path / "noise_hooks.py").write_text(HOOKS.replace("or 1.0", "or 2.0"))
    assert starts() == 1
    assert told[0].startswith("the code of noise_hooks:Own (noise_hooks.py) is other than before")
    assert starts(2) == 0
    assert [one["name"] for one in json.loads((tmp_path / CODE_FILE).read_text())] == ["noise_hooks:Own"] * 2
    note_code(tmp_path, config.found_defenses, "scores", told.append)  # met for the first time
    assert told == []


@pytest.mark.parametrize("content", ["{", "{}", "3", "[" * 100_000, '["\xff'])
def test_a_file_that_holds_no_settings_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"noise\.json does not hold the settings .*; bring it back"):
        note_settings(tmp_path, with_option(1.0), lambda line: None)
