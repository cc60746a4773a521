"""A passive party hands its weights to a partner on purpose: ``splitvfl reveal``.

Elsewhere nobody is told a party's weights: they leave its folder in no message and in no file. Here they are written
into one, as they are or changed as remark 6 has it, and from then on the setting is a white box: whoever has the file
solves what scores show of every record, past and future. What that comes to is said beside the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from splitvfl.app.forecasting import columns_of_training, half_folder
from splitvfl.app.run_files import MODEL_FOLDER
from splitvfl.app.saved_model import SavedHalf, load_half
from splitvfl.app.shown_weights import Changed, as_model_weights, changed_weights
from splitvfl.app.target_columns import TargetColumns
from splitvfl.attacks.error_bounds import guess_error, least_error, least_squares_error
from splitvfl.config.sections import ExperimentConfig, ModelSection
from splitvfl.data.columns import PartyData
from splitvfl.errors import ConfigError
from splitvfl.leakage.estimates import off_by
from splitvfl.leakage.score_equations import RANK_TOLERANCE
from splitvfl.learning.revealed_weights import shifted_error
from splitvfl.party.party import PassiveParty
from splitvfl.run.feature_target import FeatureTarget
from splitvfl.run.half_folder import HALF_FILE
from splitvfl.run.revealed_file import VERSION, RevealedSchema, RevealedWeights, linear_parts, write_revealed


@dataclass(frozen=True)
class RevealedFile:
    """What was written, and what it comes to.

    Attributes:
        path: The file.
        party: Whose weights are in it.
        weights: Whether they are the model's own, or were changed, and how.
        sentences: What whoever has the file can compute.
    """

    path: Path
    party: str
    weights: RevealedWeights
    sentences: tuple[str, ...]


def reveal(
    model: Path,
    out: Path,
    *,
    party: str | None = None,
    changed: str | None = None,
    config: ExperimentConfig | None = None,
) -> RevealedFile:
    """Write a passive party's weights into a new file for a partner, and return what it tells.

    Args:
        model: Folder of its trained half, or of the run that holds it.
        out: The file, which must not be there yet.
        party: Which party, where the run holds the halves of several passive ones.
        changed: ``"rotated"`` or ``"shifted"``: not as they are, but as remark 6 has it. Needs ``config``.
        config: The experiment, or the party's own file: it says where the party's columns are. Without one nothing is
            said of how far estimates are off.

    Raises:
        ConfigError: If there is no such party, or it is the label party; if weights are to be changed that are not
            those of a linear model, or without the party's columns.
        CheckpointError: If there is no trained half, or it is damaged.
        DataError: If the file is there already, or the columns are not those of the model.
        OSError: If the file cannot be written.
    """
    half = load_half(_folder_of(model, party))
    schema = half.schema
    if schema.role != "passive":
        raise ConfigError(
            f"{half.folder} is the half of {schema.party}, which holds the labels: a passive party's weights are what "
            "can be revealed"
        )
    if party is not None and schema.party != party:
        raise ConfigError(f"--as: {half.folder} is the half of {schema.party}, and not of {party}")
    how = _how(changed)
    weights: Mapping[str, Tensor] = half.weights
    sentences = list(_equations(half))
    if how != "true" and config is None:
        raise ConfigError(
            "--transformed-weights: how weights are to be changed follows from your columns: say where they are "
            "(--experiment FILE, the experiment or your own file)"
        )
    if how != "true" and half.transform is not None:
        raise ConfigError(
            f"--transformed-weights: {schema.party} transforms its columns (parties.{schema.party}.transform), so that "
            "its weights are none of the columns themselves already; leave the option out"
        )
    if config is not None:
        name = schema.party
        if name not in config.parties or config.parties[name].role != "passive":
            raise ConfigError(f"--experiment: {config.source} has no passive party {name}, whose half {half.folder} is")
        data = columns_of_training(config, name, half)
        columns = _own_columns(half, data, config.model, needed=how != "true")
        if columns is not None and how == "true":
            sentences.append(_misses(columns))
        elif columns is not None:
            change = changed_weights(columns, how)  # type: ignore[arg-type]  # it is one of the two
            weights = as_model_weights(columns.target, change)
            sentences.append(_misses_when_misled(columns, change.weight))
    described = RevealedSchema(
        version=VERSION,
        party=schema.party,
        run=schema.run,
        step=schema.step,
        epoch=schema.epoch,
        outputs=schema.outputs,
        columns=schema.numeric_names,
        weights=how,
    )
    write_revealed(out, described, {name: value.detach().cpu() for name, value in weights.items()})
    return RevealedFile(out, schema.party, how, tuple(sentences))


def _how(changed: str | None) -> RevealedWeights:
    if changed is None:
        return "true"
    for known in get_args(Changed):
        if changed == known:
            return known  # type: ignore[no-any-return]  # one of the literals
    raise ConfigError(f"--transformed-weights: expected {' or '.join(get_args(Changed))}, got {changed}")


def _folder_of(folder: Path, party: str | None) -> Path:
    """Return the folder of the half that is meant: this one, or that of the only passive party that a run holds."""
    if party is not None:
        return half_folder(folder, party)
    for place in (folder, folder / MODEL_FOLDER):
        if (place / HALF_FILE).is_file():
            return place
        passive = [one for one in _halves(place) if one.schema.role == "passive"]
        if len(passive) == 1:
            return passive[0].folder
        if passive:
            raise ConfigError(
                f"--as: {folder} holds the halves of {', '.join(one.schema.party for one in passive)}: say whose "
                "weights are to be revealed"
            )
    return folder


def _halves(folder: Path) -> list[SavedHalf]:
    return [load_half(path.parent) for path in sorted(folder.glob(f"*/{HALF_FILE}"))]


def _own_columns(half: SavedHalf, data: PartyData, model: ModelSection, *, needed: bool) -> TargetColumns | None:
    """Return the party's columns and weights; ``None`` of a model that is not linear, if it need not be."""
    party = half.party(data, device=torch.device("cpu"), own=model)
    assert isinstance(party, PassiveParty), "its role is passive"
    target = FeatureTarget(party)
    parts = linear_parts(half.weights, half.schema.outputs, len(half.schema.numeric_names))
    if parts is not None and not target.refused:
        return TargetColumns(target)
    if needed:
        why = target.refused or f"sends numbers that are no parts of its {half.schema.outputs} logits"
        raise ConfigError(
            f"--transformed-weights: weights of a linear model can be changed so that its scores stay, and {data.name} "
            f"{why}; leave the option out to reveal them as they are"
        )
    return None


# --- in words


def _equations(half: SavedHalf) -> list[str]:
    """Return how many equations of a record whoever has the weights gets, where the model is linear."""
    names, outputs = half.schema.numeric_names, half.schema.outputs
    parts = linear_parts(half.weights, outputs, len(names))
    if parts is None:
        return [
            "The model is not linear: whoever has these weights computes what it sends of any columns, and can search "
            "for columns that fit what it saw. How far that comes is not calculated here."
        ]
    weight = parts[0].double()
    A = torch.diff(weight, dim=0) if len(weight) > 1 else weight
    of_scores, of_parts = (int(torch.linalg.matrix_rank(one, rtol=RANK_TOLERANCE)) for one in (A, weight))
    own = f"your {_counted(len(names), 'column')}"
    seen = f"{_counted(of_scores, 'equation')} in {own} of every record that it sees the scores of"
    more = f"{seen}, and {of_parts} where it gets your part of the logits" if of_parts > of_scores else seen
    end = (
        "As many equations as columns are every value, exactly."
        if of_parts == len(names)
        else "Equations of models that are trained again add up."
    )
    who = "Whoever has this file" + ("" if half.transform is None else " and knows your transform of columns")
    return [f"{who} knows {more}: of records that were scored before as of new ones. {end}"]


def _misses(columns: TargetColumns) -> str:
    """Return how far off estimates are by who has a party's own weights, and gets its part of the logits."""
    target = columns.target
    if target.party.data.transform is not None:
        aware = target.with_transform_known()
        if aware.refused:
            return f"How far off estimates are is not calculated: {aware.refused}."
        columns = TargetColumns(aware)
    A, moments = columns.weight, columns.moments
    means = guess_error(moments, moments.mean)
    return (
        f"With your part of the logits it misses your columns by {off_by(least_squares_error(A, moments))} of their "
        f"range (least squares), or by {off_by(least_error(A, moments))} if it knows their means, which alone miss "
        f"them by {off_by(means)}."
    )


def _misses_when_misled(columns: TargetColumns, shift: Tensor) -> str:
    """Return how far off least squares on scores is by who takes changed weights for the model's own."""
    weight, moments = columns.weight, columns.moments
    flat = len(weight) == 1
    A = weight if flat else torch.diff(weight, dim=0)
    own, moved = (weight[0], shift[0]) if flat else (weight, shift)
    misled = shifted_error(own, moved, moments.around(0.0), moments.mean, misled="least-squares")
    return (
        f"Who takes these weights for the model's own misses your columns by {off_by(misled)} of their range from "
        f"scores (least squares), where the true ones leave {off_by(least_squares_error(A, moments))}. That protects "
        "from nobody else: the file says that the weights were changed, and whoever knows the columns of as many "
        "records as there are columns, and one more, finds the true ones."
    )


def _counted(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"
