"""A party's weights, handed over on purpose: what is in the file, who takes it, and that nothing else holds them."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import safetensors
import safetensors.torch
import torch

from splitvfl.app.reconstruction import reconstruct
from splitvfl.app.saved_model import load_half
from splitvfl.app.saved_run import load_run
from splitvfl.cli import main
from splitvfl.errors import ConfigError, DataError
from splitvfl.leakage.reconstruction import ReconstructedView, Reconstruction
from splitvfl.run import revealed_file
from splitvfl.run.revealed_file import FORMAT, read_revealed
from tests.builders import linear_trainer
from tests.weights_in_bytes import holds_weights

EXPERIMENT = """
data: {{name: table, path: {path}, id_column: customer, scale: {scale}, task: {task}, drop: [{drop}]}}
parties:
  bank: {{role: active, columns: [age], label: {label}}}
  telecom: {{role: passive, columns: [calls, hours, plan]{more}}}
  shop: {{role: passive, columns: [visits, loud, same]}}
model: {model}
train: {{epochs: 2, batch_size: 32, device: cpu, seed: {seed}, optimizer: {{name: adam, lr: 0.05}}}}
audit: false
attacks: []
"""
CASES: dict[str, dict[str, Any]] = {
    "four": {},
    "again": {"seed": 1},
    "two": {"task": "binary", "label": "default", "drop": "class"},
    "deep": {"model": "mlp"},
    "turned": {"more": ", transform: orthonormal"},
}
SECRETS = {"telecom": "calls=", "shop": "visits="}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, and a finished run of each case."""
    place = tmp_path_factory.mktemp("revealed")
    draw = np.random.default_rng(5)
    count = 160
    numbers = {name: draw.random(count).round(6) for name in ("age", "calls", "hours", "loud")}
    numbers |= {"visits": draw.integers(0, 9, count), "same": np.ones(count)}
    plan = draw.choice(["a", "b", "c"], count)
    score = numbers["calls"] + numbers["hours"] - numbers["loud"] + (plan == "a") + draw.normal(0, 0.2, count)
    labels = {"default": (score > 0.8).astype(int), "class": np.digitize(score, [0.3, 0.8, 1.3])}
    names = [f"c{number:03d}" for number in range(count)]
    pd.DataFrame({"customer": names, **numbers, "plan": plan, **labels}).to_csv(place / "all.csv", index=False)
    usual = {"task": "multiclass", "label": "class", "drop": "default", "more": "", "seed": 0, "scale": "standard"}
    for name, changed in CASES.items():
        settings = {**usual, "model": "logistic-regression", "path": place / "all.csv", **changed}
        (place / f"{name}.yaml").write_text(EXPERIMENT.format(**settings))
        with redirect_stdout(io.StringIO()):
            assert main(["train", str(place / f"{name}.yaml"), "--out", str(place / name)]) == 0
    return place


def revealed(folder: Path, out: Path, *more: str, case: str = "four", party: str = "telecom") -> Path:
    """Return a file that the command wrote."""
    with redirect_stdout(io.StringIO()):
        assert main(["reveal", str(folder / case), "--as", party, "--out", str(out), *more]) == 0
    return out


def said_of(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert set(metadata) == {FORMAT}
    found: dict[str, Any] = json.loads(metadata[FORMAT])
    return found


def view_of(found: Reconstruction, sees: str, part: str, party: str, weights: str = "true") -> ReconstructedView:
    views = found.parties[party]
    return next(view for view in views if (view.sees, view.part, view.weights) == (sees, part, weights))


# --- the file


def test_the_file_holds_the_weights_and_says_of_which_model(folder: Path, tmp_path: Path) -> None:
    path = revealed(folder, tmp_path / "telecom.safetensors")
    half = load_half(folder / "four/model/telecom")
    said = said_of(path)

    tensors = safetensors.torch.load_file(path)
    assert tensors.keys() == half.weights.keys()
    assert all(torch.equal(tensors[name], half.weights[name]) for name in tensors)
    assert path.stat().st_mode & 0o777 == 0o600
    assert said["weights"] == "true"
    assert said["columns"] == ["calls", "hours", "plan=a", "plan=b", "plan=c"]
    named = {name: getattr(half.schema, name) for name in ("party", "run", "step", "epoch", "outputs")}
    assert {name: said[name] for name in named} == named
    assert "a white box" in said["meaning"]
    assert set(said) == {"version", "weights", "columns", "meaning", "digest", *named}


def test_neither_ranges_nor_values_of_columns_are_in_the_file(folder: Path, tmp_path: Path) -> None:
    content = revealed(folder, tmp_path / "telecom.safetensors").read_bytes()
    encoding = json.loads((folder / "four/model/telecom/half.json").read_text())["encoding"]
    numbers = [value for value in _leaves(encoding) if isinstance(value, float) and value not in (0.0, 1.0)]

    assert numbers, "the encoding has means and deviations"
    assert not any(repr(value).encode() in content for value in numbers)
    assert not any(np.array(value, dtype=kind).tobytes() in content for value in numbers for kind in ("<f4", "<f8"))


def test_a_partys_transform_is_not_in_the_file(folder: Path, tmp_path: Path) -> None:
    path = revealed(folder, tmp_path / "w", case="turned")
    secret = safetensors.torch.load_file(folder / "turned/model/telecom/transform.safetensors")["matrix"]
    assert said_of(path)["weights"] == "true"
    assert not holds_weights(path.read_bytes(), secret)
    assert "transform" not in path.read_bytes().decode("latin-1")


def test_changed_weights_say_so(folder: Path, tmp_path: Path) -> None:
    more = ("--experiment", str(folder / "four.yaml"), "--transformed-weights", "rotated")
    path = revealed(folder, tmp_path / "w", *more)
    assert said_of(path)["weights"] == "rotated"
    assert not holds_weights(path.read_bytes(), load_half(folder / "four/model/telecom").weights["weight"])


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in _leaves(inner)]
    return [leaf for inner in value for leaf in _leaves(inner)] if isinstance(value, list) else [value]


def test_a_file_that_is_there_stays(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "telecom.safetensors"
    path.write_text("precious")
    link = tmp_path / "link.safetensors"
    link.symlink_to(tmp_path / "nowhere")
    for target in (path, link):
        assert main(["reveal", str(folder / "four/model/telecom"), "--out", str(target)]) == 2
        assert "is there already, and is left alone" in capsys.readouterr().err
    assert path.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_what_the_receiver_can_compute_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["reveal", str(folder / "four/model/telecom"), "--experiment", str(folder / "four.yaml"), "--out"]
    assert main([*arguments, str(tmp_path / "a.safetensors")]) == 0
    told = capsys.readouterr().out
    assert main([*arguments, str(tmp_path / "b.safetensors"), "--transformed-weights", "rotated"]) == 0
    own, changed = (" ".join(said.split()) for said in (told, capsys.readouterr().out))

    # Categories of a row sum to one, and so no weights of four classes are worth more than four equations.
    assert "knows 3 equations in your 5 columns of every record that it sees the scores of, and 4 where" in own
    view = view_of(
        reconstruct(folder / "four", attacks="least-squares", views=["activation"]), "activation", "train", "telecom"
    )
    missed = 100 * view.best.mse**0.5
    assert f"misses your columns by {missed:.1f} % of their range (least squares)" in own
    assert "Who takes these weights for the model's own misses" in changed
    assert max(map(len, told.splitlines()[1:])) <= 80, "sentences are wrapped, and the path above them is whole"
    assert "the file says that the weights were changed" in changed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["four"], "--as: RUN/four holds the halves of shop, telecom"),
        (["four", "--as", "bank"], "is the half of bank, which holds the labels"),
        (["four/model/shop", "--as", "telecom"], "is the half of shop, and not of telecom"),
        (["four", "--as", "telecom", "--transformed-weights", "rotated"], "(--experiment FILE"),
        (["four", "--as", "telecom", "--transformed-weights", "bent"], "expected rotated or shifted, got bent"),
        (["nowhere"], "expected a trained half"),
        (
            ["deep", "--as", "telecom", "--transformed-weights", "rotated", "--experiment", "RUN/deep.yaml"],
            "weights of a linear model can be changed",
        ),
        (
            ["turned", "--as", "telecom", "--transformed-weights", "shifted", "--experiment", "RUN/turned.yaml"],
            "telecom transforms its columns",
        ),
    ],
)
def test_what_cannot_be_revealed_is_refused_and_nothing_written(
    folder: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [one.replace("RUN", str(folder)) for one in arguments[1:]]
    assert main(["reveal", str(folder / arguments[0]), "--out", str(tmp_path / "out.safetensors"), *given]) == 2
    error = capsys.readouterr().err
    assert message.replace("RUN", str(folder)) in " ".join(error.split())
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_not_linear_is_revealed_as_it_is(folder: Path, tmp_path: Path) -> None:
    path = revealed(folder, tmp_path / "deep.safetensors", case="deep")
    assert safetensors.torch.load_file(path).keys() == load_half(folder / "deep/model/telecom").weights.keys()
    with pytest.raises(DataError, match="expected one matrix"):
        read_revealed(path)


# --- a reconstruction with it


@pytest.mark.parametrize(
    ("case", "how"),
    [("two", "shifted"), pytest.param("four", "rotated", marks=pytest.mark.slow(reason="two reconstructions more"))],
)
def test_changed_weights_of_a_file_mislead_like_those_of_the_reconstruction(
    folder: Path, tmp_path: Path, how: str, case: str
) -> None:
    """The file has weights of the columns as the model takes them, the other way round those of the unit box."""
    experiment = str(folder / f"{case}.yaml")
    files = [
        revealed(
            folder, tmp_path / party, "--experiment", experiment, "--transformed-weights", how, case=case, party=party
        )
        for party in SECRETS
    ]
    options: dict[str, Any] = {"attacks": "least-squares,rcc2", "plots": False, "records": 40}
    by_file = reconstruct(folder / case, revealed=files, **options)
    by_option = reconstruct(folder / case, weights=how, **options)  # type: ignore[arg-type]
    for party in SECRETS:
        for sees in ("scores", "activation"):
            one = view_of(by_file, sees, "test", party, "revealed")
            other = view_of(by_option, sees, "test", party, how)
            plain = view_of(by_option, sees, "test", party)
            assert [found.attack for found in one.attacks] == [found.attack for found in other.attacks]
            assert [found.mse for found in one.attacks] == pytest.approx(
                [found.mse for found in other.attacks], rel=1e-6
            )
            assert view_of(by_file, sees, "test", party).best == plain.best
            assert one.knowledge == ", revealed weights"
    assert any(f"holds {how} weights of telecom" in note for note in by_file.notes)


def test_least_squares_with_a_file_is_that_computed_by_hand(folder: Path, tmp_path: Path) -> None:
    """Who has a file solves what it received for the columns, with the file's weights, in the columns' range."""
    path = revealed(
        folder, tmp_path / "w", "--experiment", str(folder / "four.yaml"), "--transformed-weights", "shifted"
    )
    found = reconstruct(folder / "four", attacks="least-squares", revealed=[path], plots=False, views=["activation"])
    tensors = safetensors.torch.load_file(path)
    weight, bias = tensors["weight"].numpy(), tensors["bias"].numpy()
    own = load_half(folder / "four/model/telecom").weights["weight"].double().numpy()
    frame = pd.read_csv(folder / "all.csv")
    # Standardised by what the encoding learned: any affine map of a column leaves its unit box as it is.
    plain = np.column_stack([frame["calls"], frame["hours"], *(frame["plan"] == one for one in "abc")]).astype(float)
    train = load_run(folder / "four").beside_own_records().passives["telecom"].data.train
    rows = train.columns.numeric.double().numpy()
    assert np.allclose(np.corrcoef(rows[:, 0], plain[train.ids.numpy(), 0])[0, 1], 1)
    low, high = rows.min(axis=0), rows.max(axis=0)
    sent = rows @ own.T
    estimate = (sent - bias - weight @ low) @ np.linalg.pinv(weight * (high - low)).T
    missed = ((estimate - (rows - low) / (high - low)) ** 2).mean()

    assert view_of(found, "activation", "train", "telecom", "revealed").best.mse == pytest.approx(missed, rel=1e-3)
    assert "revealed weights: those of shop are taken to be known as they are" in found.notes


def test_the_models_own_weights_are_what_is_shown_anyway(folder: Path, tmp_path: Path) -> None:
    path = revealed(folder, tmp_path / "w")
    with redirect_stdout(io.StringIO()) as printed:
        run = tmp_path / "four"
        shutil.copytree(folder / "four", run)
        assert main(["reconstruct", str(run), "--attacks", "half", "--no-plots", "--revealed", str(path)]) == 0
    assert "holds the model's own weights: what its receiver finds is what is shown" in " ".join(
        printed.getvalue().split()
    )
    found = reconstruct(folder / "four", attacks="half", revealed=[path], plots=False)
    assert {view.weights for view in found.parties["telecom"]} == {"true"}


# --- files that others wrote


def _changed(path: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> Path:
    """Return a forged file with a digest that is right."""
    said, tensors = said_of(path), safetensors.torch.load_file(path)
    change(said, tensors)
    schema = msgspec.convert(said, revealed_file.RevealedSchema)
    forged = path.with_name("forged.safetensors")
    forged.unlink(missing_ok=True)
    revealed_file.write_revealed(forged, schema, tensors)
    return forged


FORGERIES: dict[str, tuple[Callable[[dict[str, Any], dict[str, torch.Tensor]], object], str]] = {
    "another run": (lambda said, tensors: said.update(run="0" * 32), "those of another model (run:"),
    "another step": (lambda said, tensors: said.update(step=99), "those of another model (step:"),
    "another party": (lambda said, tensors: said.update(party="gym\x1b[2J"), "got those of gym\\x1b[2J"),
    "the label party": (lambda said, tensors: said.update(party="bank"), "expected weights of telecom or shop"),
    "other weights": (lambda said, tensors: tensors["weight"].mul_(2), "and these are others"),
    "one column less": (
        lambda said, tensors: (
            said.update(columns=said["columns"][1:]),
            tensors.update(weight=tensors["weight"][:, 1:].clone()),
        ),
        "got (4, 4) of 4 columns",
    ),
    "other names": (
        lambda said, tensors: said.update(columns=[*said["columns"][:4], "secret"]),
        "of other columns",
    ),
    "a NaN": (lambda said, tensors: tensors["weight"][0].fill_(torch.nan), "NaN or infinite"),
    "an infinite bias": (lambda said, tensors: tensors.update(bias=torch.full((4,), torch.inf)), "NaN or infinite"),
    "three tensors": (
        lambda said, tensors: tensors.update(bias=torch.zeros(4), more=torch.zeros(4)),
        "got 3 tensors",
    ),
    "no tensor": (lambda said, tensors: tensors.clear(), "got 0 tensors: none"),
    "whole numbers": (
        lambda said, tensors: tensors.update(weight=tensors["weight"].long()),
        "expected weights in F32 or F64, got I64",
    ),
    "half precision": (lambda said, tensors: tensors.update(weight=tensors["weight"].half()), "got F16"),
    "another version": (lambda said, tensors: said.update(version=2), "has version 2, expected 1; get it anew"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_file_is_refused_in_a_line(
    folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = FORGERIES[name]
    forged = _changed(revealed(folder, tmp_path / "w"), change)
    run = str(folder / "four")
    before = sorted(path.name for path in (folder / "four").iterdir())

    assert main(["reconstruct", run, "--attacks", "half", "--revealed", str(forged)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert "\x1b" not in error
    assert sorted(path.name for path in (folder / "four").iterdir()) == before


def _with_header(header: bytes, rest: bytes = b"", *, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + rest


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": b"1234567",
    "a header of 2^63 bytes": _with_header(b"{}", length=1 << 63),
    "a product of lengths that takes hours": _with_header(
        b'{"w":{"dtype":"F32","shape":[' + b",".join([b"9223372036854775807"] * 400_000) + b'],"data_offsets":[0,4]}}',
        bytes(4),
    ),
    "a length that no memory holds": _with_header(
        b'{"w":{"dtype":"F32","shape":[0,' + b"9" * 4000 + b'],"data_offsets":[0,0]}}'
    ),
    "a header longer than the file": _with_header(b"{}", length=4096),
    "a header of nothing": _with_header(b""),
    "no JSON": _with_header(b"not json"),
    "a list": _with_header(b"[]"),
    "deep JSON": _with_header(b"[" * 100_000),
    "not UTF-8": _with_header(b'{"\xff\xfe": {}}'),
    "a huge tensor": _with_header(
        b'{"weight":{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,8]}}', b"12345678"
    ),
    "a shape below zero": _with_header(b'{"weight":{"dtype":"F32","shape":[-1,-2],"data_offsets":[0,8]}}', b"12345678"),
    "offsets beyond": _with_header(b'{"weight":{"dtype":"F32","shape":[2],"data_offsets":[0,4096]}}', b"12345678"),
    "a pickle": b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "weights without a word": safetensors.torch.save({"weight": torch.zeros(4, 5)}),
    "other metadata": safetensors.torch.save({"weight": torch.zeros(4, 5)}, metadata={FORMAT: "{}", "more": "1"}),
    "metadata that are no JSON": safetensors.torch.save({"weight": torch.zeros(4, 5)}, metadata={FORMAT: "{"}),
    "metadata that are deep": safetensors.torch.save(
        {"weight": torch.zeros(1)}, metadata={FORMAT: '{"version":' + "[" * 90_000}
    ),
    "a version alone": safetensors.torch.save({"weight": torch.zeros(4, 5)}, metadata={FORMAT: '{"version": 1}'}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_such_file_is_refused_by_its_reader(tmp_path: Path, name: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(DataError, match="holds no revealed weights of a linear model") as refused:
        read_revealed(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_no_memory_is_taken_for_a_file_of_any_size(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(_with_header(b"{}"))
    os.truncate(path, 1 << 40)  # a file with a hole: of a terabyte, and no space
    with pytest.raises(DataError, match="larger than 272 MiB"):
        read_revealed(path)


def test_pipes_and_folders_are_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match="is no file"):
        read_revealed(pipe)
    with pytest.raises(DataError, match="is no file"):
        read_revealed(tmp_path)


def test_a_file_with_one_byte_changed_is_refused_or_says_the_same(folder: Path, tmp_path: Path) -> None:
    path = revealed(folder, tmp_path / "w")
    whole = path.read_bytes()
    true = read_revealed(path)
    draw = np.random.default_rng(0)
    taken = 0
    for place, byte in enumerate(whole):
        new = (int(draw.integers(256)), byte ^ 1, 0x20)[place % 3]
        if new == byte:
            continue
        path.write_bytes(whole[:place] + bytes([new]) + whole[place + 1 :])
        try:
            found = read_revealed(path)
        except DataError:
            continue
        taken += 1
        assert found.schema == true.schema
        assert torch.equal(found.weight, true.weight)
    assert taken < 10, "blanks at the end of the header"


def test_one_file_of_each_party_and_of_a_run(folder: Path, tmp_path: Path) -> None:
    path = revealed(folder, tmp_path / "w")
    with pytest.raises(ConfigError, match="expected one file of telecom, got two"):
        reconstruct(folder / "four", attacks="half", revealed=[path, path])
    with pytest.raises(DataError, match="those of another model"):
        reconstruct(folder / "again", attacks="half", revealed=[path])
    with pytest.raises(ConfigError, match="of a finished run"):
        reconstruct(linear_trainer(features=2), attacks="half", revealed=[path])


# --- nothing else holds them


def test_nothing_that_the_commands_write_for_others_holds_a_partys_weights(folder: Path, tmp_path: Path) -> None:
    """But for the party's own half and weights, and checkpoints, which in one process are of all parties."""
    run = tmp_path / "four"
    shutil.copytree(folder / "four", run)
    experiment = str(folder / "four.yaml")
    given = tmp_path / "given"
    given.mkdir()
    with redirect_stdout(io.StringIO()) as printed:
        for command in (
            ["report", str(run), "--out", str(given / "report.html")],
            ["predict", str(run), "--out", str(given / "scores.csv")],
            [
                "forecast",
                experiment,
                "--as",
                "telecom",
                "--model",
                str(run),
                "--json",
                str(given / "forecast.json"),
                "--judged",
                "5",
            ],
            ["reconstruct", str(run), "--attacks", "least-squares,rcc1", "--json", str(given / "told.json")],
            ["schema", "--out", str(given / "schema.json")],
        ):
            assert main(command) == 0, command
    (given / "printed.txt").write_text(printed.getvalue())
    own = [*run.glob("model/telecom"), *run.glob("model/shop"), run / "checkpoints"]
    own += [run / f"weights/{party}.safetensors" for party in SECRETS]
    files = [path for place in (run, given) for path in place.rglob("*") if path.is_file()]
    partners = [path for path in files if not any(path.is_relative_to(one) for one in own)]
    kept = [path for path in files if path not in partners]
    assert len(partners) > 12
    for party in SECRETS:
        weight = load_half(run / "model" / party).weights["weight"]
        assert any(holds_weights(path.read_bytes(), weight) for path in kept), "the search finds weights where they are"
        assert not [path for path in partners if holds_weights(path.read_bytes(), weight)]
