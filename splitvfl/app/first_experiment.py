"""A first experiment out of a user's files: what was guessed, said once in comments and once in the terminal."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from splitvfl.app.records import in_words_of, load_data
from splitvfl.config.registry import built_in
from splitvfl.config.sections import CELL_SETTINGS, ExperimentConfig, parse_config
from splitvfl.config.yaml import to_yaml
from splitvfl.data.columns import VerticalData
from splitvfl.data.encoding import Encoding
from splitvfl.data.guesses import RARE, Guesses, OpenFile
from splitvfl.data.ingest.words import claims_of
from splitvfl.data.labels import left_out
from splitvfl.data.partition import REST, ColumnClaim
from splitvfl.errors import ConfigError, printable
from splitvfl.hooks import tasks_of
from splitvfl.learning.defaults import suggested_batch_size, suggested_epochs
from splitvfl.report.verdict import half_width

_WIDTH = 116
_COLUMNS_NAMED = 8
_PARTNER, _OTHER_PARTNER = "partner", "other"
_ATTACKS = ("norm", "direction", "residual")
# With fewer canaries the interval of an excess leakage is wider than ±0.10.
_FEWEST_CANARIES = 200
# The range may not be guessed: where it ends at the largest label, it tells that label.
_NO_DEFENSE_OF_NUMBERS = (
    "No defense yet: gradients reveal labels to partners. The one below adds noise to each "
    "label, once for each record. It needs the least and the largest label that there can be, by what is known of "
    "such labels and not by a look at these, which would reveal them: put both in, and take the # away. "
    "record-gaussian is another. With exchange: one-way nothing flows back to a partner. See splitvfl list defenses."
)
_DEFENSE_OF_NUMBERS = """\
# defenses:
#   - {name: gaussian-targets, detection_error: 0.4, label_range: [LEAST, LARGEST]}
"""


@dataclass(frozen=True, eq=False)
class FirstExperiment:
    """An experiment that was made of guesses.

    Attributes:
        text: The file.
        said: Every guess, a sentence each.
        config: What the file says.
        data: The data, as it reads them.
    """

    text: str
    said: tuple[str, ...]
    config: ExperimentConfig
    data: VerticalData


def first_experiment(
    files: Sequence[OpenFile],
    guesses: Guesses,
    path: Path,
    *,
    command: str,
    active: str | None = None,
    passive: Sequence[str] = (),
) -> FirstExperiment:
    """Return an experiment on some files that trains as it is.

    Args:
        files: The files: one of each party, or one that is to be divided.
        guesses: What they hold.
        path: Where it will be written; nothing is written here.
        command: What wrote it, for its first line.
        active: Of a single file, who holds the labels, and what else: ``"bank=AGE,SEX"``.
        passive: Of a single file, the other parties and their columns: ``"telecom=PAY_*"``.

    Raises:
        ConfigError: If files cannot be divided as asked.
        DataError: If they do not hold what was guessed.
    """
    parties, division = _parties(files, guesses, path, active, passive)
    draft = _Draft(files, guesses, path, command, parties, division)
    # Only when the data are read is it known how many records all parties have, and of them the training part.
    with_all = parse_config(draft.text(guesses.records), source=path)
    with in_words_of(with_all.data, with_all.parties):
        data = load_data(with_all)
    text = draft.text(data.active.train.count, canaries=_affordable(data))
    return FirstExperiment(text, tuple(map(printable, draft.said())), parse_config(text, source=path), data)


def _affordable(data: VerticalData) -> int:
    """Return how many canaries cost a model nothing that shows: 6 % of the records, and 5 % of the rarer class.

    Measured: nothing significant on credit default with 6 %; with 300 of 5,000 at 6.7 % positives 0.018 AUC.
    """
    train = data.active.train
    most = train.count * 6 // 100
    if data.task == "regression" or train.labels is None:
        return most
    rarer = int(torch.bincount(train.labels.to(torch.int64), minlength=data.classes).min())
    return min(most, rarer * 5 // 100)


def _parties(
    files: Sequence[OpenFile], guesses: Guesses, path: Path, active: str | None, passive: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the section on parties, and how columns were divided between them."""
    if len(files) == 1:
        return _divided(files[0], guesses, active, passive)
    if active or passive:
        raise ConfigError(
            "--active and --passive divide the columns of one file; here each party has a file of its own"
        )
    names = [file.party for file in files]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ConfigError(f"two files are called {repeated[0]}, and parties are called as their files: rename one")
    owner = guesses.label.party
    sections = {
        file.party: {
            "role": "active" if file.party == owner else "passive",
            "path": os.path.relpath(file.path.resolve(), path.resolve().parent),
            **({"id_column": guesses.own_ids[file.party]} if guesses.own_ids else {}),
            **({"label": guesses.label.column} if file.party == owner else {}),
            **_cells(file),
        }
        for file in sorted(files, key=lambda file: file.party != owner)
    }
    return sections, f"{owner} has the label column and is the active party; each party holds the columns of its file"


def _cells(file: OpenFile) -> dict[str, Any]:
    """Return the settings that say how the cells of a file are written."""
    settings = {name: getattr(file.cells.written, name) for name in CELL_SETTINGS}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items() if value}


def _divided(
    file: OpenFile, guesses: Guesses, active: str | None, passive: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return how the columns of one file are divided: as asked, or in halves."""
    label = guesses.label.column
    if active is not None or passive:
        others = passive or [f"{_PARTNER}={REST}"]
        claims = claims_of(active or f"{file.party}={REST}", others, label)
        sections = {
            claim.name: {
                "role": claim.role,
                "columns": _plain(claim.columns),
                **({"label": label} if claim.role == "active" else {}),
            }
            for claim in claims
        }
        return sections, "columns are divided as you said"
    columns = guesses.features[file.party]
    if len(columns) < 2:
        raise ConfigError(f"{file.path} has one column to learn from, {columns[0]!r}, and two parties need one each")
    first = columns[: len(columns) // 2]
    partner = _PARTNER if file.party != _PARTNER else _OTHER_PARTNER
    return {
        file.party: {"role": "active", "columns": list(first), "label": label},
        partner: {"role": "passive", "columns": REST},
    }, (
        f"who holds which columns cannot be seen in one file: {file.party} got the first {len(first)}, {partner} the "
        f"other {len(columns) - len(first)}; change the lists, or say --active and --passive"
    )


def _plain(claim: ColumnClaim) -> str | float | list[str]:
    return claim if isinstance(claim, str | int | float) else list(claim)


@dataclass(frozen=True, eq=False)
class _Draft:
    """What a file is written from."""

    files: Sequence[OpenFile]
    guesses: Guesses
    path: Path
    command: str
    parties: Mapping[str, Mapping[str, Any]]
    division: str

    def said(self) -> Iterator[str]:
        """Yield every guess in a sentence."""
        yield self._label()
        yield self._ids()
        yield self.division
        yield from self._columns()

    def text(self, records: int, *, canaries: int = 0) -> str:
        """Return the file, its batches and epochs for so many training records, of which so many may be canaries."""
        batch, epochs = suggested_batch_size(records), suggested_epochs(records)
        blocks = [
            *_comment(f"Written by `{self.command}`. Every guess is said above what it led to: correct what is wrong."),
            *_comment(f"Then: splitvfl check {self.path.name}, splitvfl train {self.path.name}."),
            "",
            *_comment(*self._label_and_columns()),
            to_yaml({"data": self._data()}),
            *_comment(self.division),
            to_yaml({"parties": self.parties}),
            *_comment(*self._about_model()),
            to_yaml({"model": self._model()}),
            *_comment(f"Batch size and epochs go with the {records:,} training records."),
            to_yaml({"train": self._training(batch, epochs)}),
            *self._protection(),
            *self._canaries(canaries),
        ]
        return "\n".join(block.rstrip("\n") if block.startswith("#") else block for block in blocks).rstrip() + "\n"

    def _label_and_columns(self) -> Iterator[str]:
        yield self._label()
        yield self._ids()
        yield from self._columns()

    def _label(self) -> str:
        label = self.guesses.label
        positive = "" if label.positive is None else f", of which {label.positive!r} is the positive one"
        return f"label: {label.column} ({label.why}{positive}), so the task is {label.task}{left_out(label.unlabelled)}"

    def _ids(self) -> str:
        if self.guesses.own_ids:
            named = [f"{column} of {party}" for party, column in self.guesses.own_ids.items()]
            return f"ids: {' and '.join(named)} ({self.guesses.id_why})"
        if self.guesses.id_column is None:
            return "ids: no column names the records; they are numbered"
        return f"ids: {self.guesses.id_column or 'the column without a name'} ({self.guesses.id_why})"

    def _columns(self) -> Iterator[str]:
        guesses = self.guesses
        for file in self.files:
            yield from file.cells.why
        for name, why in guesses.dropped.items():
            yield f"left out: {name} ({why})"
        if guesses.categories:
            named = [f"{name} ({why})" for name, why in guesses.categories.items()]
            yield f"numbers taken for categories: {_some(named)}"
        if guesses.gaps:
            yield f"missing numbers in {_some(guesses.gaps)}: the median is filled in, and the gap marked"
        if guesses.many:
            yield f"many categories in {_some(guesses.many)}: those of fewer than {RARE} records are put together"
        if guesses.text:
            yield f"read as text, as ids beyond 64 bits: {_some(guesses.text)}"

    def _data(self) -> dict[str, Any]:
        guesses, label = self.guesses, self.guesses.label
        path = os.path.relpath(self.files[0].path.resolve(), self.path.resolve().parent)
        found: dict[str, Any] = {
            "name": "table",
            "path": path if len(self.files) == 1 else None,
            "task": label.task,
            "positive": label.positive,
            "unlabelled": "drop" if label.unlabelled else None,
            "id_column": guesses.id_column,
            "drop": list(guesses.dropped) or None,
            "categorical_columns": list(guesses.categories) or None,
            "missing": "indicator" if guesses.gaps else None,
            "min_count": RARE if guesses.many else None,
            "text": list(guesses.text) or None,
            "scale": Encoding().scale,
            **(_cells(self.files[0]) if len(self.files) == 1 else {}),
        }
        return {key: value for key, value in found.items() if value is not None}

    def _about_model(self) -> Iterator[str]:
        yield "Each passive party has a bottom, the active party a top over what the bottoms send and its own features."
        if self.guesses.label.task == "regression":
            yield "The top puts out standard deviations of the labels from their mean."
        else:
            yield "A private top learns from true labels and sends nothing: it wins back much of what a defense costs."

    def _model(self) -> dict[str, Any]:
        more = {"label_scale": True} if self.guesses.label.task == "regression" else {"private_top": True}
        return {"name": "mlp", "bottom": [64, 32], **more}

    def _training(self, batch: int, epochs: int) -> dict[str, Any]:
        return {"epochs": epochs, "batch_size": batch, "optimizer": {"name": "adam", "lr": 0.001}, "seed": 0}

    def _protection(self) -> Iterator[str]:
        task = self.guesses.label.task
        if task == "regression":
            yield from _comment(_NO_DEFENSE_OF_NUMBERS)
            yield _DEFENSE_OF_NUMBERS
        else:
            yield from _comment(
                "Without a defense, partners read the labels off the gradients. This one lies about some, once for "
                "each record; true labels never enter what is sent. Compare: splitvfl compare."
            )
            yield to_yaml({"defenses": [self._defense()]})
        yield from _comment("What partners could try; the auditor, who knows the labels, tries as well.")
        known = built_in("attacks")
        yield to_yaml({"attacks": [name for name in _ATTACKS if task in tasks_of(known[name])]})

    def _canaries(self, most: int) -> Iterator[str]:
        yield from _comment(
            f"Excess leakage: splitvfl train {self.path.name} --audit-twin measures what messages reveal beyond the "
            "prediction, on a second model that is thrown away. The kept model pays nothing."
        )
        if most >= _FEWEST_CANARIES:
            yield from _comment(
                f"A networked run has no such twin. There, {most:,} records of this model can be canaries, with random "
                f"labels: the 95 % CI is about ±{half_width(most):.2f}. So few (6 % of the records, 5 % of the rarer "
                "class) cost no significant test AUC on credit default."
            )
            yield f"# audit: {{canaries: {most}}}\n"

    def _defense(self) -> dict[str, Any]:
        if self.guesses.label.task == "binary":
            return {"name": "asymmetric-response", "detection_error": 0.4}
        owner = next(file for file in self.files if file.party == self.guesses.label.party)
        classes = len(set(owner.table[self.guesses.label.column].to_pylist()))
        return {"name": "randomised-response", "epsilon": 2.0, "classes": classes}


def _some(names: Sequence[str]) -> str:
    more = len(names) - _COLUMNS_NAMED
    return ", ".join(names[:_COLUMNS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _comment(*sentences: str) -> Iterator[str]:
    for sentence in sentences:
        # A column's name may hold anything; a comment ends with its line.
        plain = printable(" ".join(sentence.split()))
        lines = textwrap.wrap(plain, _WIDTH, break_long_words=False, break_on_hyphens=False)
        yield "\n".join(f"# {line}" if number == 0 else f"#   {line}" for number, line in enumerate(lines))
