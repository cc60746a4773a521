"""The page of all keys of an experiment file: docs/reference/experiment-keys.md, written from what checks the files.

Run ``python -m scripts.experiment_keys`` after a change of sections, of a constructor that experiments can name, or of
their docstrings; a test compares.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from splitvfl.config.describing import Entry, entry
from splitvfl.config.keys import REQUIRED, Key, experiment_keys, flat, in_file
from splitvfl.config.registry import PluginKind, built_in

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "experiment-keys.md"

INTRODUCTION = """\
# All keys of an experiment file

Written by `python -m scripts.experiment_keys` from the code that checks the files; do not edit it by hand. In a
terminal, `splitvfl list KIND NAME` tells the same of one name. `splitvfl schema --out experiment.schema.json` writes it
for editors, which then complete and check keys while you type: put
`# yaml-language-server: $schema=experiment.schema.json` on the first line of a file.

A file needs `data` and `parties`; everything else has a default. Any key can be set on the command line by its place:
`splitvfl train my.yaml train.epochs=3 defenses.0.detection_error=0.3`. Files are read as YAML 1.2: `1e-3` is a number,
`no` is text; anchors and tags are refused. On the command line a value is one number or text as it is typed
(`network.listen=[::1]:7341`), or a list, a mapping or text in quotes. An unknown key, or a value of another type, is an
error with its line.
"""

# Examples of sections by place; together with the example of each name they show every key that has no default at work.
EXAMPLES = {
    "": """\
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [16, 8]}
train: {epochs: 30, batch_size: 32, seed: 1}
defenses:
  - {name: asymmetric-response, detection_error: 0.4}
attacks: [norm, direction, residual]
known_positives: 20
known_negatives: 20
name: tumours
""",
    "data": """\
data:
  name: table
  path: customers.csv
  id_column: customer
  label: default
  positive: "yes"
  drop: ["internal_*"]
  categorical_columns: [region]
  categorical: onehot
  min_count: 20
  missing: indicator
  scale: standard
  test_fraction: 0.25
  split_seed: 1
""",
    "parties": """\
parties:
  bank: {role: active, columns: [LIMIT_BAL, AGE], label: default}
  telecom: {role: passive, columns: ["PAY_*", "BILL_*"], address: "vfl.telecom.example:7000", identity: telecom.example}
  shop: {role: passive, columns: rest, transform: {name: permute, columns: ["BOUGHT_*"]}}
  insurer: {role: passive, columns: ["CLAIM_*"], penalties: [{name: distance-correlation, weight: 0.5}]}
""",
    "network": """\
network:
  listen: "0.0.0.0:7000"
  certificates: certs
  run: spring
  meeting_s: 3600
  message_s: 120
  retries: 50
  publish_scores: false
""",
    "prediction": """\
prediction:
  scores_by: coordinator
  address: "notary.example:7000"
  identity: notary.example
  per_record: 3 # of a passive party's own
  per_day: 100000
  fewest: 50
""",
    "train": """\
train:
  epochs: 50
  batch_size: 1024
  optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
  seed: 7
  device: cpu
  threads: 4
  early_stopping: {patience: 5, min_delta: 0.001, validation_every: 8}
  evaluate_every_epochs: 2
  checkpoint_every_steps: 500
""",
    "audit": "audit: {twin: true}\n",
}
KINDS: dict[PluginKind, str] = {
    "models": "model",
    "exchanges": "exchange",
    "optimizers": "train.optimizer",
    "embedding_optimizers": "train.embedding_optimizer",
    "losses": "train.loss",
    "defenses": "defenses",
    "penalties": "parties.NAME.penalties",
    "attacks": "attacks",
}
# Of the facts about a name, those that decide whether it is the one to take.
_FACTS = ("Claim", "What it does", "Labels", "Exchanges", "Works with", "Cost", "Also called")


def page() -> str:
    """Return the page."""
    keys = experiment_keys()
    parts = [INTRODUCTION, "## At the top", _table((key.name, key) for key in keys), _example("")]
    for key in keys:
        if key.form in ("section", "parties"):
            place = key.name if key.form == "section" else f"{key.name}.NAME"
            parts += [f"## `{place}`", key.meaning, _table(flat(key.keys, before=f"{place}.")), _example(key.name)]
    for kind, place in KINDS.items():
        parts += _names(kind, place, keys)
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _names(kind: PluginKind, place: str, keys: Iterable[Key]) -> list[str]:
    key = next(key for where, key in flat(keys) if where == place)
    common = [one for one in key.keys if one.name != "name"]
    parts = [f"## `{place}`: {kind.replace('_', ' ')}", key.meaning]
    if common:
        parts += ["Whatever the name:", _table(flat(common))]
    for name in sorted(built_in(kind)):
        parts += _one(name, entry(kind, name), common)
    return parts


def _one(name: str, found: Entry, common: Sequence[Key]) -> list[str]:
    facts = "\n".join(f"- *{heading}*: {text}" for heading, text in found.facts.items() if heading in _FACTS)
    theirs = [key for key in found.options if key.name not in {one.name for one in common}]
    return [
        f"### `{name}`",
        found.summary,
        facts,
        _table(flat(theirs)) if theirs else "",
        f"```yaml\n{found.example}\n```",
    ]


def _table(placed: Iterable[tuple[str, Key]]) -> str:
    rows = [f"| `{place}` | {_cells(key)} |" for place, key in placed]
    return "\n".join(["| key | what may stand there | default | meaning |", "| --- | --- | --- | --- |", *rows])


def _cells(key: Key) -> str:
    default = in_file(key.default).removeprefix("default ")
    return f"{key.takes} | {default if key.default is REQUIRED else f'`{default}`'} | {key.meaning}"


def _example(place: str) -> str:
    return f"```yaml\n{EXAMPLES[place]}```" if place in EXAMPLES else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m scripts.experiment_keys", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="where to; default: where the documentation has it")
    out = parser.parse_args(argv).out
    out.write_text(page(), encoding="utf-8")
    print(out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
