"""`check` says of a folder that holds a run what `train --resume` and `party` say of it, for every setting there is.

The list of changed settings follows from the schema of experiments, so that a new setting is in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import yaml

from splitvfl.app.checking import check_experiment, check_party
from splitvfl.app.deployment import run_party
from splitvfl.app.experiment import run_experiment
from splitvfl.cli import main
from splitvfl.config.describing import entry
from splitvfl.config.keys import Key, experiment_keys, flat, keys_of, options_of
from splitvfl.config.registry import built_in
from splitvfl.config.sections import ExchangeSection, ExperimentConfig, load_config
from splitvfl.errors import SplitVFLError
from splitvfl.net.meeting import Meeting
from splitvfl.run.replacement import PART, REPLACED
from splitvfl.run.trainer import Trainer
from splitvfl.run.written_files import FAREWELL_FILE
from tests.run.parties import free_ports

USUAL = """
data: {{name: table, path: {folder}/all.csv, id_column: customer}}
parties:
  bank: {{role: active, columns: [age, extra], label: default, address: "127.0.0.1:{port}"}}
  telecom: {{role: passive, columns: [calls, minutes]}}
model: {{name: mlp, bottom: [4], top: [3, 1]}}
train: {{epochs: 1, batch_size: 32, device: cpu, optimizer: {{name: adam, lr: 1.0e-3}}}}
network: {{listen: "127.0.0.1:{port}", plaintext_on_loopback: true, message_s: 60, retries: 0}}
audit: false
"""
NOISY = (
    USUAL.replace("name: mlp, bottom: [4], top: [3, 1]", "name: logistic-regression, row_norm: 0.7, init: zero")
    .replace("name: adam, lr: 1.0e-3", "name: sgd, lr: 0.01")
    .replace("audit:", "exchange: {{name: split, noise: {{epsilon: 0.5, delta: 0.1}}}}\naudit:")
)
TEXTS = {"usual": USUAL, "noisy": NOISY}
PARTIES = ("bank", "telecom")

FREE = {"goal", "keep_records", "train.epochs"}
"""May change when `train --resume` goes on."""


class ReachedError(Exception):
    """Nothing was refused before the first step, or before anybody was met."""


# --- the settings, and other values of them


def others(values: dict[str, Any], default: object) -> Iterator[object]:
    """Yield values that a JSON Schema lets be, other than the default: one for each of its types."""
    kind = values.get("type")
    if "anyOf" in values:
        for one in values["anyOf"]:
            yield from others(one, default)
    elif "enum" in values:
        yield next(value for value in values["enum"] if value != default)
    elif "const" in values:
        yield values["const"]
    elif kind == "boolean":
        yield not default
    elif kind == "integer":
        least = max(values.get("minimum", 0), 0)
        yield next(number for number in (least + 1, least + 2) if number != default)
    elif kind == "number":
        low = values.get("exclusiveMinimum", values.get("minimum", 0.0))
        high = min(values.get("maximum", values.get("exclusiveMaximum", low + 2)), low + 2)
        yield next(number for number in ((low + high) / 2, (2 * low + high) / 3) if number != default)
    elif kind == "null":
        if default is not None:
            yield None
    elif kind == "array":
        yield [next(others(values["items"], None))]
    else:
        yield "extra"


def changes_of(place: str, key: Key) -> Iterator[str]:
    """Yield changes of one key, as an override says them."""
    if key.form == "value":
        yield from (f"{place}={json.dumps(value)}" for value in islice(others(dict(key.values), key.default), 1))
    elif key.form == "named":
        assert key.kind is not None, "it names something"
        for name in [name for name in built_in(key.kind) if name != key.default][:2]:
            yield f"{place}={{name: {name}}}"
    elif key.form == "hooks":
        assert key.kind is not None, "it names something"
        names = [*built_in(key.kind)]
        for name in (names[0], names[len(names) // 2]):
            example = yaml.safe_load(entry(key.kind, name).example)
            found = example.get(place, [{"name": name}]) if isinstance(example, dict) else [{"name": name}]
            yield f"{place}={json.dumps(found)}"


def placed(keys: tuple[Key, ...], before: str) -> Iterator[str]:
    for place, key in flat(keys, before=before):
        yield from changes_of(place, key)


def changes() -> Iterator[str]:
    """Yield a change of every setting, those of the model, the exchange and the optimiser in use included."""
    for place, key in flat(experiment_keys()):
        names = PARTIES if ".NAME." in place else ("",)
        for name in names:
            yield from changes_of(place.replace("NAME", name), key)
    yield from placed(options_of("models", built_in("models")["mlp"]), "model.")
    yield from placed(options_of("optimizers", built_in("optimizers")["adam"]), "train.optimizer.")
    yield from placed(keys_of(ExchangeSection), "exchange.")
    yield from placed(options_of("exchanges", built_in("exchanges")["split"]), "exchange.")


def noise_changes() -> Iterator[str]:
    (noise,) = (key for key in options_of("exchanges", built_in("exchanges")["split"]) if key.name == "noise")
    yield from placed(noise.keys, "exchange.noise.")
    yield from placed(options_of("models", built_in("models")["logistic-regression"]), "model.")


CHANGES = {"usual": [*dict.fromkeys(changes())], "noisy": [*noise_changes()]}
READ_BY_TELECOM = ("data.", "model", "train.", "exchange", "parties.telecom.", "defenses")
FIRST_TIER_HAS = 10
"""One case in so many, whatever settings there are: the others run in the second tier."""

CASES = [
    (base, who, change)
    for base, found in CHANGES.items()
    for change in found
    for who in ("train", *PARTIES)
    if who != "telecom" or (base == "usual" and change.startswith(READ_BY_TELECOM))
]


# --- finished runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished runs ``usual/train``, ``usual/bank`` and so on, of one process and of two parties."""
    folder = tmp_path_factory.mktemp("agrees")
    draw = np.random.default_rng(0)
    age, extra, calls, minutes = draw.normal(size=(4, 120))
    columns = {"age": age, "extra": extra, "calls": calls, "minutes": minutes, "default": (age + calls > 0).astype(int)}
    table = pd.DataFrame({"customer": [f"c{number:03d}" for number in range(120)], **columns})
    table.to_csv(folder / "all.csv", index=False)
    for name, text in TEXTS.items():
        (port,) = free_ports(1)
        (folder / f"{name}.yaml").write_text(text.format(folder=folder, port=port))
        config = load_config(folder / f"{name}.yaml")
        run_experiment(config, folder / name / "train")
        with ThreadPoolExecutor(2) as pool:
            for run, _ in pool.map(lambda party: run_party(config, party, folder / name / party), PARTIES):  # noqa: B023
                # Otherwise it would wait for nobody: at its end all the same, but not parted.
                (run.settings.folder / FAREWELL_FILE).unlink()
    return folder


@cache
def unchanged(file: Path) -> ExperimentConfig:
    """Return an experiment as it stands, which no test changes."""
    return load_config(file)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checked(config: ExperimentConfig, who: str, folder: Path) -> list[str]:
    if who == "train":
        return check_experiment(config, folder, tell=lambda line: None)
    return check_party(config, who, folder, connect_s=None, tell=lambda line: None)


def refusal(config: ExperimentConfig, who: str, folder: Path) -> str | None:
    """Return why the command does not begin; ``None``: it would train, or meet its partner."""
    try:
        if who == "train":
            with mock.patch.object(Trainer, "fit", side_effect=ReachedError):
                run_experiment(config, folder, resume=True)
        else:
            with mock.patch.object(Meeting, "__enter__", side_effect=ReachedError):
                run_party(config, who, folder)
    except ReachedError:
        return None
    except (SplitVFLError, OSError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("base", "who", "change"),
    [
        pytest.param(
            *case,
            id="-".join(case),
            marks=[pytest.mark.slow(reason="every setting of every party")] if number % FIRST_TIER_HAS else [],
        )
        for number, case in enumerate(CASES)
    ],
)
def test_check_says_what_the_command_says(base: str, who: str, change: str, runs: Path, tmp_path: Path) -> None:
    try:
        config = load_config(runs / f"{base}.yaml", [change])
    except SplitVFLError:  # all commands read the file alike
        return
    folder = tmp_path / "run"
    shutil.copytree(runs / base / who, folder)
    before = content(folder)
    problems = checked(config, who, folder)
    assert content(folder) == before, "it changes nothing"
    said = refusal(config, who, folder)
    assert (said is None) == (problems == []), (said, problems)
    assert said is None or said in problems
    earlier = unchanged(runs / f"{base}.yaml")
    key = change.partition("=")[0]
    if who == "train" and config != earlier and key not in FREE:
        assert said is not None, f"a run goes on with another {key}"


# --- pinned


@pytest.mark.parametrize(
    ("who", "change", "words"),
    [
        ("bank", "parties.bank.columns=[age]", "the data have changed since this run began: the names, kinds"),
        ("bank", "train.batch_size=16", "batch size was 32 and is 16"),
        ("bank", "model.top=[5, 1]", "model was"),
        ("bank", "train.optimizer.lr=0.5", "optimizer was"),
        ("telecom", "model.bottom=[7]", "model was"),
        ("telecom", "train.seed=5", "seed of the order was 0 and is 5"),
        ("train", "train.batch_size=16", "was started with other settings: train.batch_size"),
        ("train", "model.top=[5, 1]", "was started with other settings: model.top"),
    ],
)
def test_other_settings_than_those_of_a_finished_run_are_told(
    who: str, change: str, words: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    party = [] if who == "train" else ["--as", who]
    command = ["check", str(runs / "usual.yaml"), change, *party, "--out", str(runs / "usual" / who)]
    assert main(command) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_party_whose_partner_is_another_is_told_before_it_connects(runs: Path, tmp_path: Path) -> None:
    text = (runs / "usual.yaml").read_text().replace("telecom:", "shop:")
    (tmp_path / "bank.yaml").write_text(text)
    shutil.copytree(runs / "usual" / "bank", tmp_path / "run")
    config = load_config(tmp_path / "bank.yaml", ["name=usual"])
    (problem,) = checked(config, "bank", tmp_path / "run")
    assert "partners were telecom and are shop" in problem
    assert refusal(config, "bank", tmp_path / "run") == problem


@pytest.mark.parametrize(
    ("who", "words", "then"),
    [
        ("train", "checked for train --resume", "--resume"),
        ("bank", "party resumes it", "--as bank"),
        ("telecom", "party resumes it", "--as telecom"),
    ],
)
def test_a_finished_run_is_no_mistake(
    who: str, words: str, then: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    party = [] if who == "train" else ["--as", who]
    assert main(["check", str(runs / "usual.yaml"), *party, "--out", str(runs / "usual" / who)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert words in said
    assert "nothing is left to train" in said
    assert then in said.partition("next:")[2]


def test_a_run_that_can_go_on_is_no_mistake_either(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(runs / "usual" / "train")
    assert main(["check", str(runs / "usual.yaml"), "train.epochs=2", "--out", folder]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "goes on from step 3" in said or "goes on from step 4" in said


def test_a_finished_run_without_checkpoints_is_no_mistake(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "usual" / "train", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert main(["check", str(runs / "usual.yaml"), "--out", str(tmp_path / "run")]) == 0
    assert "already holds a finished run" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("moved", "compared"), [(REPLACED, True), (PART, False)])
def test_an_earlier_run_that_lies_aside_is_compared_or_said_not_to_be(
    moved: str, compared: bool, runs: Path, tmp_path: Path
) -> None:
    earlier = Path(shutil.copytree(runs / "usual" / "train", tmp_path / "run"))
    (earlier / moved).mkdir()
    for path in list(earlier.iterdir()):
        if path.name != moved and (compared or path.name == "checkpoints"):
            path.rename(earlier / moved / path.name)
    lines: list[str] = []
    config = load_config(runs / "usual.yaml", ["train.batch_size=16"])

    problems = check_experiment(config, earlier, tell=lines.append)

    assert any("train.batch_size" in one for one in problems) == compared
    assert any("not compared" in line for line in lines) != compared


def test_a_party_that_goes_on_keeps_its_seed_of_noise(runs: Path) -> None:
    changed = load_config(runs / "usual.yaml", ["train.noise_seed_for_experiments=3"])

    problems = check_party(changed, "telecom", runs / "usual" / "telecom", connect_s=None, tell=lambda line: None)

    assert any("noise_seed_for_experiments was not fixed and is fixed, " in one for one in problems)
