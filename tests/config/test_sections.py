from __future__ import annotations

import dataclasses
import inspect
import math
import os
from pathlib import Path
from typing import Any

import pydantic
import pytest
import torch
from torch import nn

from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.config.registry import arguments_of, built_in
from splitvfl.config.sections import (
    DataConfig,
    ExperimentConfig,
    config_to_yaml,
    load_config,
    parse_config,
    parse_defenses,
)
from splitvfl.data.load import load
from splitvfl.data.spec import TableSpec
from splitvfl.errors import ConfigError
from splitvfl.hooks import PHASES
from splitvfl.learning.optimizers import OPTIMIZERS
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.models import LogisticRegressionRecipe, MLPRecipe, WideDeepRecipe

EXPERIMENT = """\
data: {name: credit-default, path: credit.parquet}
parties:
  bank: {role: active, columns: [LIMIT_BAL, SEX, EDUCATION, MARRIAGE, AGE], label: default_payment_next_month}
  telecom: {role: passive, columns: [PAY_*, BILL_*]}
model: {name: mlp, bottom: [64, 32], top: [1]}
train: {epochs: 10, batch_size: 256, optimizer: {name: adam, lr: 1e-3}, seed: 0}
defenses:
  - {name: isotropic, ratio: 2}
attacks: [norm, direction]
"""

SHORT = "data: digits\nparties: {a: {role: active}, b: {role: passive, columns: rest}}\n"

SGD = {"name": "sgd", "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}
ADAGRAD = {"name": "adagrad", "lr": 0.001, "weight_decay": 0.0}


def parse(text: str = EXPERIMENT, *overrides: str) -> ExperimentConfig:
    return parse_config(text, source="credit.yaml", overrides=overrides)


def told(text: str = EXPERIMENT, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, *overrides)
    return str(caught.value).splitlines()


def test_the_engineers_file_is_read() -> None:
    config = parse()

    assert config.name == "credit"
    assert config.active == "bank"
    assert config.parties["bank"].columns == ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE")
    assert config.parties["bank"].label == "default_payment_next_month"
    assert config.parties["telecom"].columns == ("PAY_*", "BILL_*")
    assert config.model.recipe == MLPRecipe(bottom=(64, 32), top_hidden=(), top=(1,))
    assert (config.train.epochs, config.train.batch_size, config.train.seed) == (10, 256, 0)
    assert config.train.optimizer.model_dump() == {"name": "adam", "lr": 0.001, "weight_decay": 0.0}
    assert [hook.name for hook in config.attacks] == ["norm", "direction"]
    assert (config.defenses[0].name, config.defenses[0].options) == ("isotropic", {"ratio": 2})
    assert config.source == "credit.yaml"
    assert config.folder == Path()


def test_what_is_not_said_has_a_default() -> None:
    config = parse(SHORT)

    assert config.data == DataConfig(name="digits")
    assert config.parties["a"].columns == ()
    assert config.model.recipe == MLPRecipe(bottom=(64, 32))
    assert config.exchange.name == "split"
    assert config.train.optimizer.model_dump() == {"name": "adam", "lr": 0.001, "weight_decay": 0.0}
    assert (config.train.threads, config.train.device, config.train.evaluate_every_epochs) == (1, "auto", 1)
    assert config.train.noise_seed_for_experiments is None
    assert config.train.checkpoint_every_steps is None
    assert (config.defenses, config.attacks, config.audit) == ((), (), True)
    assert (config.known_positives, config.known_negatives) == (10, 10)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        parse().train.epochs = 3


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("model: wide-deep", "model: {name: wide-deep}"),
        ("exchange: split", "exchange: {name: split}"),
        ("train: {optimizer: sgd}", "train: {optimizer: {name: sgd}}"),
        ("train: {lr: 0.5}", "train: {optimizer: {name: adam, lr: 0.5}}"),
        ("train: {optimizer: sgd, lr: 0.5}", "train: {optimizer: {name: sgd, lr: 0.5}}"),
        (
            "train: {optimizer: {momentum: 0.9, name: sgd}, lr: 1}",
            "train: {optimizer: {name: sgd, lr: 1, momentum: 0.9}}",
        ),
        ("train: {optimizer: {lr: 0.5}}", "train: {optimizer: {name: adam, lr: 0.5}}"),
        ("defenses: [max-norm]", "defenses: [{name: max-norm}]"),
        ("defenses:\nattacks:", "defenses: []\nattacks: []"),
        ("model: {name: mlp, top: [32, 16, 1]}", "model: {name: mlp, top_hidden: [32, 16], top: [32, 16, 1]}"),
        ("train:", "train: {}"),
    ],
)
def test_short_forms_mean_the_same(short: str, long: str) -> None:
    assert parse(SHORT + short) == parse(SHORT + long)


@pytest.mark.parametrize(
    ("written", "columns"),
    [
        ("rest", "rest"),
        ('"PAY_*, BILL_*"', "PAY_*, BILL_*"),
        ("[PAY_*]", ("PAY_*",)),
        ("0.5", 0.5),
        ("1", 1.0),
        ("[no, y, '1']", ("no", "y", "1")),
    ],
)
def test_columns_are_named_or_shared_out(written: str, columns: object) -> None:
    assert parse(SHORT, f"parties.b.columns={written}").parties["b"].columns == columns


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("train.epochs=3", lambda config: config.train.epochs == 3),
        ("train.lr=0.5", lambda config: config.train.optimizer.lr == 0.5),
        ("train.lr=1e-2", lambda config: config.train.optimizer.lr == 0.01),
        ("train.optimizer=sgd", lambda config: config.train.optimizer.model_dump() == SGD),
        ("train.optimizer.name=adagrad", lambda config: config.train.optimizer.model_dump() == ADAGRAD),
        ("train.checkpoint_every_steps=7", lambda config: config.train.checkpoint_every_steps == 7),
        ("train.threads=null", lambda config: config.train.threads is None),
        ("train.threads=", lambda config: config.train.threads is None),
        ("defenses.0.ratio=0.3", lambda config: config.defenses[0].options == {"ratio": 0.3}),
        ("defenses.0=max-norm", lambda config: config.model_dump()["defenses"] == ({"name": "max-norm"},)),
        ("defenses=[]", lambda config: config.defenses == ()),
        ("attacks.1=sign", lambda config: [hook.name for hook in config.attacks] == ["norm", "sign"]),
        (
            "attacks=[{name: gradient-inversion, start: 0.1}]",
            lambda config: config.attacks[0].options == {"start": 0.1},
        ),
        ("model=logistic-regression", lambda config: config.model.recipe == LogisticRegressionRecipe()),
        ("model.top=[8, 1]", lambda config: config.model.recipe == MLPRecipe(top_hidden=(8,), top=(8, 1))),
        ("parties.shop={role: passive, columns: rest}", lambda config: list(config.parties)[2] == "shop"),
        ("name=other", lambda config: config.name == "other"),
        ("data.digit=null", lambda config: config.data.digit is None),
        ("data.positive=yes", lambda config: config.data.positive == "yes"),
        ("data.positive=1", lambda config: config.data.positive == 1 and type(config.data.positive) is int),
        ("data.positive=true", lambda config: config.data.positive is True),
    ],
)
def test_overrides_change_one_setting(override: str, read: Any) -> None:
    assert read(parse(EXPERIMENT, override))


def test_overrides_are_made_in_their_order() -> None:
    config = parse(SHORT, "defenses=[isotropic]", "defenses.0.ratio=2", "train.lr=1", "train.optimizer.lr=2")

    assert config.defenses[0].options == {"ratio": 2}
    assert config.train.optimizer.lr == 2


def test_an_option_is_added_to_a_hook_that_is_only_named() -> None:
    assert parse(SHORT + "defenses: [isotropic]", "defenses.0.ratio=2").defenses[0].options == {"ratio": 2}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("batch_size", "batchsize", "6: train.batchsize: no such key; did you mean batch_size?"),
        ("epochs: 10", "epochs: ten", "6: train.epochs: expected a whole number, got 'ten'"),
        ("epochs: 10", "epochs: 1.5", "6: train.epochs: expected a whole number, got 1.5"),
        ("epochs: 10", "epochs: 0", "6: train.epochs: expected at least 1, got 0"),
        (
            "seed: 0",
            f"seed: {2**63}",
            "6: train.seed: expected a number below 9223372036854775808, got 9223372036854775808",
        ),
        ("seed: 0", "seed: true", "6: train.seed: expected a whole number, got true"),
        ("seed: 0", "seed:", "6: train.seed: expected a whole number, got nothing"),
        ("lr: 1e-3", "lr: '1e-3'", "6: train.optimizer.lr: expected a number, got '1e-3'"),
        ("lr: 1e-3", "lr: 0", "6: train.optimizer.lr: expected a number above 0.0, got 0"),
        ("lr: 1e-3", "lr: .inf", "6: train.optimizer.lr: expected a finite number, got inf"),
        ("lr: 1e-3", "lr: .nan", "6: train.optimizer.lr: expected a finite number, got nan"),
        (
            "lr: 1e-3",
            "momentum: 1",
            "6: train.optimizer.momentum: no such key; there are lr, name, weight_decay  (keys of adam)",
        ),
        ("name: adam", "name: adm", "6: train.optimizer.name: no such optimizer 'adm'; did you mean adam?"),
        ("[64, 32]", "[64, 0]", "5: model.bottom.1: expected at least 1, got 0"),
        ("[64, 32]", "[]", "5: model.bottom: expected the width of at least one layer, got none"),
        ("[64, 32]", "64", "5: model.bottom: expected a list, got 64"),
        ("name: mlp", "name: mpl", "5: model.name: no such model 'mpl'; did you mean mlp?  (splitvfl list models)"),
        ("name: mlp, ", "", "5: model.name: required, and missing"),
        ("top: [1]", "tops: [1]", "5: model.tops: no such key; did you mean top?"),
        (
            "top: [1]",
            "top: [8, 1], top_hidden: [9]",
            "5: model: top and top_hidden contradict each other; top is top_hidden and then the outputs",
        ),
        ("path: credit", "positive: [1], path: credit", "1: data.positive: expected a number, a text or a truth value"),
        ("path: credit", "drop: 3, path: credit", "1: data.drop: expected names and patterns of columns, got 3"),
        ("path: credit", "pth: credit", "1: data.pth: no such key; did you mean path?"),
        (
            "name: credit-default",
            "name: credit",
            "1: data.name: no such data set 'credit'; did you mean credit-default?  (splitvfl list data)",
        ),
        ("name: credit-default, ", "", "1: data.name: required, and missing"),
        (
            "role: passive",
            "role: pasive",
            "4: parties.telecom.role: expected 'active' or 'passive', got 'pasive'; did you",
        ),
        ("role: passive, ", "", "4: parties.telecom.role: required, and missing"),
        (
            "[PAY_*, BILL_*]",
            "[PAY_*, 3]",
            "4: parties.telecom.columns: expected names of columns as text, got 3; put it in quotes",
        ),
        (
            "[PAY_*, BILL_*]",
            "1.5",
            "4: parties.telecom.columns: expected names and patterns of columns, a share in (0, 1]",
        ),
        ("[PAY_*, BILL_*]", "[]", "4: parties.telecom: a passive party needs columns: names"),
        ("telecom:", "tele.com:", "2: parties: expected a party's name of letters, digits, _ and -, got 'tele.com'"),
        (
            "telecom: {role: passive",
            "telecom: {role: active",
            "2: parties: expected exactly one active party, got bank and telecom",
        ),
        (
            "role: active",
            "role: passive",
            "3: parties.bank: labels are at the active party; a passive party has no label column",
        ),
        ("label: default_payment_next_month", "lable: x", "3: parties.bank.lable: no such key; did you mean label?"),
        (
            "- {name: isotropic, ratio: 2}",
            "- sumlk",
            "8: defenses.0.name: no such defense 'sumlk'; did you mean sumkl?  (splitvfl list defenses)",
        ),
        ("ratio: 2", "ratoi: 2", "8: defenses.0.ratoi: no such option; did you mean ratio?"),
        ("ratio: 2", "ratio: '2'", "8: defenses.0.ratio: expected a number, got '2'"),
        ("ratio: 2", "ratio: -2", "8: defenses.0: isotropic: ratio must be positive and finite, got -2.0"),
        ("name: isotropic", "nam: isotropic", "8: defenses.0.name: required, and missing"),
        ("- {name: isotropic, ratio: 2}", "- 3", "8: defenses.0: expected keys with values, got 3"),
        ("[norm, direction]", "norm", "9: attacks: expected a list, got 'norm'"),
        ("[norm, direction]", "[norm, least]", "9: attacks.1.name: no such attack 'least'"),
        ("attacks:", "atacks:", "9: atacks: no such key; did you mean attacks?"),
        ("attacks:", "epochs:", "9: epochs: no such key; did you mean train.epochs?"),
        ("attacks:", "scale:", "9: scale: no such key; did you mean data.scale?"),
        ("attacks: [norm, direction]", "audit: 1", "9: audit: expected true or false, got 1"),
        ("attacks: [norm, direction]", "audit: [canaries]", "9: audit: expected true or false, got ['canaries']; or a"),
        ("attacks: [norm, direction]", "audit: {canaries: 0}", "9: audit.canaries: expected at least 20, got 0"),
        ("attacks: [norm, direction]", "audit: {canaries: 19}", "9: audit.canaries: expected at least 20, got 19"),
        ("attacks: [norm, direction]", "audit: {canaries: many}", "9: audit.canaries: expected a whole number"),
        ("attacks: [norm, direction]", "audit: {canaries: true}", "9: audit.canaries: expected a whole number"),
        (
            "attacks: [norm, direction]",
            "audit: {canarys: 300}",
            "9: audit.canarys: no such key; did you mean canaries?",
        ),
        (
            "attacks: [norm, direction]",
            "exchange: splt",
            "9: exchange.name: no such exchange 'splt'; did you mean split?",
        ),
        ("attacks: [norm, direction]", "train: {}", "9: train: given twice, first on line 6"),
        (
            "attacks: [norm, direction]",
            "name: a/b",
            "9: name: expected a name for a folder, of letters, digits and . _ + = -, got 'a/b'",
        ),
        ("epochs: 10", "lr: 1", "6: train.lr: short for train.optimizer.lr, which is given too; keep one"),
    ],
)
def test_a_mistake_is_told_with_its_line(old: str, new: str, line: str) -> None:
    assert old in EXPERIMENT

    lines = told(EXPERIMENT.replace(old, new, 1))

    assert len(lines) == 1
    assert lines[0].startswith(f"credit.yaml:{line}")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.batchsize=512", "train.batchsize: no such key; did you mean batch_size?"),
        ("trian.epochs=3", "trian: no such key; did you mean train?"),
        ("train.epochs=ten", "train.epochs: expected a whole number, got 'ten'"),
        ("train.epochs.first=3", "train.epochs.first: no such key: train.epochs is 10"),
        ("defenses.3.ratio=1", "defenses.3: expected one of the 1 items of defenses, counted from 0"),
        ("defenses.0.ratio=x", "defenses.0.ratio: expected a number, got 'x'"),
        ("attacks=[norn]", "attacks.0.name: no such attack 'norn'; did you mean norm?  (splitvfl list attacks)"),
        (
            "train=[1",
            "train:1:3: not YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'; "
            "text that begins with a bracket or a quotation mark stands in quotes, as in key='\"[a\"'",
        ),
        ("--seed", "expected key=value, such as train.epochs=3, got '--seed'"),
        ("train={lr: -1}", "train.optimizer.lr: expected a number above 0.0, got -1"),
        ("train.lr=-1", "train.optimizer.lr: expected a number above 0.0, got -1"),
        ("model=mpl", "model.name: no such model 'mpl'; did you mean mlp?  (splitvfl list models)"),
        ("parties.shop.columns=rest", "parties.shop.role: required, and missing"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_as_such(override: str, line: str) -> None:
    assert told(EXPERIMENT, override) == [f"credit.yaml + command line: {line}"]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = EXPERIMENT.replace("batch_size", "batchsize").replace("ratio", "ratoi").replace("[64, 32]", "[x]")

    lines = told(text.replace("norm,", "norn,") + "b: 1\nb: 1\n", "train.epochs=ten", "nonsense")

    assert [line.partition(": ")[0] for line in lines] == [
        "credit.yaml:5",
        "credit.yaml:6",
        "credit.yaml:8",
        "credit.yaml:9",
        "credit.yaml:11",
        "credit.yaml:11",
        "credit.yaml + command line",
        "credit.yaml + command line",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ": the file is empty"),
        ("- 1", ": expected keys with values, such as `data:`, got a list"),
        ("data: [1", ":1:9: not YAML"),
        ("model: mlp", ": data: required, and missing"),
        ("data: digits\nparties: {}", ":2: parties: expected exactly one active party, got none"),
        ("data: digits\nparties:", ":2: parties: required, and missing"),
        ("data: digits\nparties: [a]", ":2: parties: expected keys with values, got ['a']"),
        (SHORT + "train:\n  epochs: 3\n  lr: -1", ":5: train.optimizer.lr: expected a number above 0.0, got -1"),
        ("data: digits\nparties: {a: }", ":2: parties.a: expected keys with values, got nothing"),
        ("data: digits\nparties: {a: {role: active}}", ":2: parties: expected at least one passive party beside a"),
        (
            SHORT.replace("digits", "{name: digits, label: x}").replace("active}", "active, label: y}"),
            ": data.label is 'x', and parties.a.label is 'y'; keep one",
        ),
    ],
)
def test_a_file_that_is_no_experiment_is_told(text: str, line: str) -> None:
    assert told(text)[0].startswith(f"credit.yaml{line}")


def test_a_file_is_found_or_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credit.yaml").write_bytes(b"\xef\xbb\xbf" + EXPERIMENT.encode())  # with the mark that Windows adds
    (tmp_path / "latin.yaml").write_bytes("name: crédit".encode("latin-1"))
    monkeypatch.chdir(tmp_path)

    config = load_config("credit.yaml", ["train.epochs=3"])

    assert (config.name, config.train.epochs, config.source) == ("credit", 3, "credit.yaml")
    for name, line in {
        "credti.yaml": "credti.yaml: no such file; did you mean credit.yaml?",
        "nowhere/credit.yaml": "nowhere/credit.yaml: no such file",
        ".": ". is no file, but a folder, a pipe or a device: name a file",
        "latin.yaml": "latin.yaml: expected text in UTF-8, got the byte 0xe9",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_config(name)
        assert str(caught.value) == line


def test_a_file_that_kubernetes_mounts_is_read(tmp_path: Path) -> None:
    """Each key of a ConfigMap is a link into a folder that is a link."""
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "credit.yaml").write_text(EXPERIMENT)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "credit.yaml").symlink_to("..data/credit.yaml")
    assert load_config(tmp_path / "credit.yaml").name == "credit"


def test_a_file_of_settings_may_come_through_a_pipe(tmp_path: Path) -> None:
    """As from ``splitvfl train <(envsubst < credit.yaml)``."""
    end, start = os.pipe()
    os.write(start, EXPERIMENT.encode())
    os.close(start)
    assert load_config(f"/dev/fd/{end}").parties
    os.close(end)


@pytest.mark.parametrize("what", ["settings", "data"])
def test_nobody_waits_at_a_pipe_under_the_name_of_a_file(what: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ("credit.yaml" if what == "settings" else "credit.parquet"))
    if what == "data":
        (tmp_path / "credit.yaml").write_text(EXPERIMENT)
    with pytest.raises(ConfigError, match="is no file, but a"):
        load_config(tmp_path / "credit.yaml")


def test_the_data_file_is_looked_for_beside_the_experiment_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder, names in ((there, ["both.csv", "there.csv"]), (here, ["both.csv", "here.csv"])):
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(there))

    def path_of(written: str, *overrides: str) -> str | None:
        text = SHORT.replace("digits", f"{{name: table, path: {written}}}")
        return parse_config(text, source=os.path.join("..", "there", "a.yaml"), overrides=overrides).data.path

    assert path_of("there.csv") == str(there / "there.csv")
    assert path_of("here.csv") == str(here / "here.csv")
    assert path_of("both.csv") == str(there / "both.csv")
    assert path_of("x.csv", "data.path=both.csv") == str(here / "both.csv")
    assert path_of("x.csv", "data.path=there.csv") == str(there / "there.csv")
    assert path_of("none.csv") == str(there / "none.csv")
    assert path_of(str(here / "both.csv")) == str(here / "both.csv")
    assert path_of("~/both.csv") == str(there / "both.csv")


def test_a_hook_of_ones_own_is_found_and_checked(tmp_path: Path) -> None:
    (tmp_path / "hooks_of_config.py").write_text(
        "class Clip:\n    def __init__(self, *, bound: float): ...\n    def __call__(self, gradient, secrets, /): ...\n"
    )
    text = SHORT + "defenses:\n- {name: 'hooks_of_config:Clip', bound: 0.1}\n"
    file = tmp_path / "own.yaml"
    file.write_text(text)

    assert load_config(file).defenses[0].options == {"bound": 0.1}
    assert load_config(file).folder == tmp_path

    file.write_text(text.replace("bound", "bond").replace("Clip'", "Clip', bound: x"))
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value).splitlines() == [
        f"{file}:4: defenses.0.bound: expected a number, got 'x'",
        f"{file}:4: defenses.0.bond: no such option; did you mean bound?",
    ]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("model: {cut_after: 0}", "model.cut_after: expected at least 1, got 0"),
        ("model: {cut_after: 5}", "model: cut_after is 5, and bottom has 4 layers to cut after"),
        ("model: {bottom: [8], cut_after: 2}", "model: cut_after is 2, and bottom has 1 layers to cut after"),
        ("model: {crosses: [[a]]}", "model.crosses.0: expected the names of at least two different fields, got ['a']"),
        ("model: {crosses: [[a, b], [c, c]]}", "model.crosses.1: expected the names of at least two different fields"),
        ("model: {crosses: [a, b]}", "model.crosses.0: expected a list, got 'a'"),
        ("model: {cross_buckets: 0}", "model.cross_buckets: expected at least 1, got 0"),
        ("model: {sparse: 1}", "model.sparse: expected true or false, got 1"),
        ("model: {tables: divided}", "model.tables: expected 'replicated' or 'sharded', got 'divided'"),
        ("model: {tables: sharded, sparse: false}", "model: tables: sharded divides tables with sparse gradients, and"),
        ("train: {autocast: fp16}", "train.autocast: expected 'bf16', got 'fp16'"),
        (
            "train: {embedding_optimizer: adam}",
            "train.embedding_optimizer.name: no such embedding_optimizer 'adam'; "
            "there are adagrad, rowwise-adagrad, sgd, sparse-adam",
        ),
        ("train: {embedding_optimizer: {lr: 0}}", "train.embedding_optimizer.lr: expected a number above 0.0, got 0"),
        (
            "train: {embedding_optimizer: {weight_decay: 0.1}}",
            "train.embedding_optimizer.weight_decay: no such key; there are lr, name",
        ),
    ],
)
def test_wrong_tables_cuts_and_precisions_are_told(given: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(SHORT + given.replace("model: {", "model: {name: wide-deep, "))
    assert f": {line}" in str(caught.value)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_that_is_not_tried_takes_a_step_with_the_largest_settings(name: str) -> None:
    factory, weight = OPTIMIZERS[name], nn.Parameter(torch.zeros(3, 1))
    weight.grad = torch.ones_like(weight)
    largest = {"momentum": 0.999} | dict.fromkeys(("lr", "weight_decay", "l1", "l2", "radius"), 1e6)
    own = arguments_of(factory)

    made = factory([weight], **{key: value for key, value in largest.items() if key in own})
    made.step()

    assert own.keys() <= {"params", *largest}
    assert not weight.isnan().any()


def test_an_optimiser_whose_settings_leave_float32_is_tried() -> None:
    with pytest.raises(ConfigError, match=r"train.optimizer: SGD cannot take a step of this training: value cannot be"):
        parse(SHORT + "train: {optimizer: {name: sgd, lr: 1.0e+39}}")


def test_the_optimiser_of_tables_may_be_a_name_or_settings() -> None:
    def chosen(*overrides: str) -> object:
        section = parse(SHORT, *overrides).train.embedding_optimizer
        return section and section.model_dump()

    assert chosen() is None
    assert chosen("train.embedding_optimizer=null") is None
    assert chosen("train.embedding_optimizer=sparse-adam") == {"name": "sparse-adam", "lr": 1e-3}
    assert chosen("train.embedding_optimizer.lr=0.5") == {"name": "rowwise-adagrad", "lr": 0.5}
    assert chosen("train.embedding_optimizer={name: sgd, lr: 1}") == {"name": "sgd", "lr": 1}


@pytest.mark.parametrize(
    "text",
    [
        EXPERIMENT,
        SHORT,
        SHORT + "model: {name: wide-deep, cut_after: 2, crosses: [[a, b], [c, a, b]]}\ntrain: {autocast: bf16}\n",
        SHORT + "model: wide-deep\ntrain: {embedding_optimizer: adagrad}\n",
        SHORT + "name: yes\ntrain: {threads: null, noise_seed_for_experiments: 3, lr: 1e-5, optimizer: sgd}\n",
        SHORT + "model: {name: mlp, top: [8, 1]}\ndefenses: [{name: isotropic, sigma: 1e-7}, max-norm]\n",
        SHORT.replace("digits", "{name: digits, digit: null, drop: ['1e-3', 'no', 'é, *'], positive: 'true'}"),
        SHORT.replace("rest", "0.25") + "model: {name: wide-deep, bottom: [3], sparse: true}\naudit: false\n",
    ],
)
def test_what_is_written_reads_back_the_same(text: str) -> None:
    config = parse(text)

    written = config_to_yaml(config)

    assert parse(written) == config
    assert config_to_yaml(parse(written)) == written
    assert "null" not in written.replace("digit: null", "").replace("threads: null", "")


def test_data_settings_are_those_of_load_and_of_a_table() -> None:
    ours = {name: field.default for name, field in DataConfig.model_fields.items() if name != "name"}
    of_load = {name: inspect.signature(load).parameters[name].default for name in ("path", "digit")}
    of_a_table = {field.name: field.default for field in dataclasses.fields(TableSpec)}
    del ours["aligned"]  # of a party's own file, see load_party
    ours["text_columns"] = ours.pop("text")  # as the flag of `splitvfl ingest`

    assert {name: ours.pop(name) for name in of_load} == of_load
    assert not set(ours) - set(of_a_table)
    # What is not set is as the data set has it.
    assert {name: default for name, default in ours.items() if default not in (None, of_a_table[name])} == {}


def test_every_listed_model_can_be_named() -> None:
    for name in {*built_in("models")} - {"pca"}:
        assert parse(SHORT + f"model: {name}").model.name == name
    assert parse(SHORT + "model: wide-deep").model.recipe == WideDeepRecipe()


def test_a_model_without_a_top_is_none_of_an_experiment() -> None:
    with pytest.raises(ConfigError, match=r"model.name: pca has no make_top\(columns, task, widths\)"):
        parse(SHORT + "model: {name: pca, width: 3}")


def test_numbers_of_hooks_survive(tmp_path: Path) -> None:
    (tmp_path / "open_hook_of_config.py").write_text(
        "class Open:\n    def __init__(self, **given): ...\n    def __call__(self, *given): ...\n"
    )
    text = SHORT + "defenses: [{name: 'open_hook_of_config:Open', a: .inf, b: [1, {c: null}], d: 1.0, e: '1'}]"

    config = parse_config(text, source=tmp_path / "x.yaml")
    again = parse_config(config_to_yaml(config), source=tmp_path / "x.yaml")

    assert repr(config.defenses[0].options) == repr({"a": math.inf, "b": [1, {"c": None}], "d": 1.0, "e": "1"})
    assert repr(again.defenses[0].options) == repr(config.defenses[0].options)


RICH = """
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Optional

from splitvfl.models import Recipe

class Kind(Enum):
    WIDE = "wide"

class Rich(Recipe):
    def __init__(self, *, rate: Decimal = Decimal("0.1"), layers: frozenset[str] = frozenset("abcdefgh"),
                 kind: Kind = Kind.WIDE, file: Path = Path("x"), pair: tuple[int, ...] = (1, 2)):
        self.given = (rate, layers, kind, file, pair)
    def make_bottom(self, party, task): ...
    def make_top(self, own, task, widths): ...

class Bare(Rich):
    def __init__(self, *, activation: Any = Kind, width: int = 3): ...
"""


def test_options_of_every_type_that_a_file_can_hold_are_written_and_read_back(tmp_path: Path) -> None:
    (tmp_path / "rich_of_config.py").write_text(RICH)
    text = SHORT + "model: {name: 'rich_of_config:Rich', layers: [d, c, a, e], rate: 0.30}"

    config = parse_config(text, source=tmp_path / "x.yaml")
    written = config_to_yaml(config)
    again = parse_config(written, source=tmp_path / "x.yaml")

    assert "layers: [a, c, d, e]" in written  # of a set, in one order in every process
    assert config.model.model_dump(mode="json")["layers"] == ["a", "c", "d", "e"]
    assert again.model.make().given == config.model.make().given
    assert again == config


def test_an_option_that_no_file_can_hold_is_refused_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "bare_of_config.py").write_text(RICH)

    with pytest.raises(ConfigError, match=r"model: the value of activation cannot be written to a file: .*Kind"):
        parse_config(SHORT + "model: 'bare_of_config:Bare'", source=tmp_path / "x.yaml")


def test_defenses_of_a_comparison_are_read() -> None:
    chosen = parse_defenses("none, isotropic(ratio=2e0)+rounding(decimals=3),max-norm,isotropic()", folder=Path())

    assert [[hook.model_dump() for hook in hooks] for hooks in chosen] == [
        [],
        [{"name": "isotropic", "ratio": 2.0}, {"name": "rounding", "decimals": 3}],
        [{"name": "max-norm"}],
        [{"name": "isotropic"}],
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "--defenses: expected none, a name, or name(option=value), got ''"),
        ("max-norm,", "--defenses: expected none, a name, or name(option=value), got ''"),
        ("rounding(decimals=3", "--defenses: expected none, a name, or name(option=value), got 'rounding(decimals=3'"),
        ("rounding(3)", "--defenses: rounding: expected each option once, as option=value, got '3'"),
        ("rounding(decimals=3, decimals=4)", "--defenses: rounding: expected each option once, as option=value"),
        ("rounding(name=3)", "--defenses: rounding: expected each option once, as option=value"),
        ("rounding(decimal=3)", "--defenses: decimal: no such option; did you mean decimals?"),
        ("none,sumlk", "--defenses: name: no such defense 'sumlk'; did you mean sumkl?"),
    ],
)
def test_defenses_of_another_form_are_refused(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_defenses(text, folder=Path())

    assert str(caught.value).startswith(line)


TABLES = """\
data: {name: tables, path: clicks}
parties:
  shop: {role: active}
  publisher: {role: passive}
"""


def test_parties_of_tables_need_no_columns() -> None:
    config = parse(TABLES)

    assert config.data.name == "tables"
    assert config.parties["publisher"].columns == ()
    assert parse(config_to_yaml(config)) == config  # every default is written out, and is no contradiction


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("path: clicks", "path: clicks, test_fraction: 0.3", "1: data.test_fraction"),
        ("path: clicks", "path: clicks, scale: log1p", "1: data.scale"),
        ("path: clicks", "path: clicks, drop: [a]", "1: data.drop"),
        ("path: clicks", "path: clicks, digit: null", "1: data.digit"),
        ("role: passive", "role: passive, columns: rest", "4: parties.publisher.columns"),
        ("role: active", "role: active, label: click", "3: parties.shop.label"),
    ],
)
def test_what_was_settled_when_tables_were_ingested_is_not_said_again(old: str, new: str, place: str) -> None:
    assert told(TABLES.replace(old, new)) == [
        f"credit.yaml:{place}: settled when tables were ingested; leave it out, or ingest them again"
    ]


def test_settled_settings_are_told_on_the_command_line_too() -> None:
    (line,) = told(TABLES, "data.min_count=3")
    assert line.startswith("credit.yaml + command line: data.min_count: settled")


@pytest.mark.parametrize(("written", "rows"), [("null", None), ("1", 1), ("4096", 4096)])
def test_rows_in_a_block(written: str, rows: int | None) -> None:
    assert parse(SHORT, f"train.block_rows={written}").train.block_rows == rows


def test_a_block_of_no_rows_is_refused() -> None:
    (line,) = told(SHORT, "train.block_rows=0")
    assert "train.block_rows: expected at least 1, got 0" in line


# --- early stopping, the wire, and when a defense acts


def test_early_stopping_is_off_unless_it_is_asked_for() -> None:
    assert parse(SHORT).train.early_stopping is None
    config = parse(SHORT, "train.early_stopping={}")
    assert config.train.early_stopping is not None
    assert config.train.early_stopping == EarlyStopping(patience=3, min_delta=0.0, validation_every=10)
    changed = parse(SHORT, "train.early_stopping.patience=5", "train.early_stopping.min_delta=1e-3")
    assert changed.train.early_stopping is not None
    assert changed.train.early_stopping == EarlyStopping(patience=5, min_delta=0.001)
    assert parse_config(config_to_yaml(changed), source="credit.yaml") == changed


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("train: {early_stopping: {patience: 0}}", "train.early_stopping.patience: expected at least 1, got 0"),
        ("train: {early_stopping: {min_delta: -1}}", "train.early_stopping.min_delta: expected at least 0.0, got -1"),
        ("train: {early_stopping: {min_delta: .inf}}", "train.early_stopping.min_delta: expected a finite number"),
        (
            "train: {early_stopping: {validation_every: 1}}",
            "train.early_stopping.validation_every: expected at least 2",
        ),
        ("train: {early_stopping: true}", "train.early_stopping: expected keys with values, got true"),
        (
            "train: {early_stopping: {pacience: 1}}",
            "train.early_stopping.pacience: no such key; did you mean patience?",
        ),
        ("exchange: {wire: fp16}", "exchange.wire: expected 'bf16', got 'fp16'"),
        ("defenses: [{name: gaussian-ir, clip: 1, sigma: 1, at: serving}]", "defenses.0.at: expected one or more of"),
        ("defenses: [{name: gaussian-ir, clip: 1, sigma: 1, at: 3}]", "defenses.0.at: expected one or more of"),
        ("defenses: [{name: gaussian-ir, clip: 1, sigma: 1, at: []}]", "defenses.0.at: expected one or more of"),
        (
            "defenses: [{name: isotropic, at: training}]",
            "defenses.0.at: for defenses of the activation; isotropic defends the gradient",
        ),
        ("attacks: [{name: norm, at: training}]", "attacks.0.at: for defenses of the activation; norm is an attack"),
    ],
)
def test_mistakes_about_them_are_told_once_with_their_line(given: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(SHORT + given + "\n")
    told = str(caught.value).splitlines()
    assert len(told) == 1
    assert told[0].startswith(f"credit.yaml:3: {line}")


def test_the_phases_of_a_defense_are_no_options_of_its_own() -> None:
    text = SHORT + (
        "defenses:\n- {name: gaussian-ir, clip: 1, sigma: 1, at: prediction}\n"
        "- {name: gaussian-ir, clip: 1, sigma: 2, at: [evaluation, training]}\n"
        "- {name: gaussian-ir, clip: 1, sigma: 3}\n"
    )
    config = parse(text)
    assert [hook.phases for hook in config.defenses] == [("prediction",), ("training", "evaluation"), PHASES]
    assert [sorted(hook.options) for hook in config.defenses] == [["clip", "sigma"]] * 3
    written = config_to_yaml(config)
    assert written.count("at:") == 2
    assert parse_config(written, source="credit.yaml") == config


def test_phases_can_be_named_on_the_command_line() -> None:
    [[hook]] = parse_defenses("gaussian-ir(clip=1,sigma=2,at=[prediction,evaluation])", folder=Path())
    assert hook.phases == ("evaluation", "prediction")
    assert str(hook) == "gaussian-ir(clip=1, sigma=2, at=evaluation+prediction)"
    with pytest.raises(ConfigError, match="at: expected one or more of training, evaluation, prediction, got 'x'"):
        parse_defenses("gaussian-ir(clip=1,sigma=2,at=x)", folder=Path())


def test_a_trainer_gets_all_of_it() -> None:
    text = SHORT + (
        "train: {early_stopping: {patience: 2, validation_every: 4}}\nexchange: {wire: bf16}\n"
        "defenses: [{name: gaussian-ir, clip: 1, sigma: 1, at: prediction}]\n"
    )
    config = parse(text)
    trainer = build_trainer(config, load_data(config))
    assert trainer.active.patience is not None
    assert trainer.active.patience.settings == EarlyStopping(patience=2, validation_every=4)
    assert trainer.batches.held_out.step == 4
    for party in (trainer.active, *trainer.passives.values()):
        assert party.wire == torch.bfloat16
    for party in trainer.passives.values():
        assert [len(party.activation[phase]) for phase in PHASES] == [0, 0, 1]


@pytest.mark.parametrize(
    ("written", "audited", "canaries"),
    [("true", True, None), ("false", False, None), ("{}", True, None), ("{canaries: 300}", True, 300)],
)
def test_an_audit_may_be_a_switch_or_a_section(written: str, audited: bool, canaries: int | None) -> None:
    config = parse(EXPERIMENT.replace("attacks: [norm, direction]", f"audit: {written}"))
    assert (config.audited, config.canaries) == (audited, canaries)
    again = parse(config_to_yaml(config))
    assert again == config


def test_canaries_can_be_asked_for_on_the_command_line() -> None:
    assert parse(EXPERIMENT, "audit.canaries=3000").canaries == 3000
