"""Scores that another party computes than the one with the labels: whose defenses act, and a third party's part."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from splitvfl.app.addresses import PREDICTION, AddressBook
from splitvfl.app.saved_model import SavedHalf
from splitvfl.app.serving_noise import (
    KEY_FILE,
    OF_SCORES,
    as_bytes,
    drawn_under,
    files_named,
    noise_key,
    note_code,
    note_settings,
    score_noise_settings,
)
from splitvfl.config.named import NamedSection
from splitvfl.config.sections import ExperimentConfig, FoundDefense, ModelSection
from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.exchange.scoring import COORDINATOR
from splitvfl.learning.tasks import task_for
from splitvfl.net.meeting import Meeting
from splitvfl.party.attaching import attach_score_defense
from splitvfl.party.direction import check_awaited
from splitvfl.party.memoised import MemoisedNoise, check_memoised
from splitvfl.party.recipe import Recipe
from splitvfl.party.scorer import Scorer
from splitvfl.run.prediction import MOST_RETRIES
from splitvfl.run.scoring import CoordinatorPrediction, CoordinatorSettings
from splitvfl.run.session import Session
from splitvfl.system.private_folder import close_folder

SCORE_NOISE_FOLDER: Final = "score-noise"


def memoised_noise(
    defenses: Sequence[FoundDefense],
    run: Path,
    notify: Callable[[str], None] = lambda line: None,
    *,
    loss: str,
    source: str,
) -> MemoisedNoise:
    """Return memoised noise on the scores that a party computes.

    The key is made at the first time, in ``score-noise`` of the party's own folder.

    Args:
        defenses: Those of its file.
        run: The folder of its run.
        notify: Told in one line that records are seen once more, as settings have changed.
        loss: In words, with which scores are made of logits: of the same logits under two losses, two scores with the
            same noise would tell the logits.
        source: What the file is called in messages.

    Raises:
        CheckpointError: If the key or what is kept beside it is damaged, or cannot be read or written.
    """
    folder = run / SCORE_NOISE_FOLDER
    close_folder(folder)
    beside = {"loss": loss, "files": files_named(defenses, "scores")}
    settings = drawn_under(folder, score_noise_settings(defenses, source=source), beside)
    note_settings(folder, settings, notify, what=OF_SCORES)
    note_code(folder, defenses, "scores", notify)
    return MemoisedNoise(noise_key(folder / KEY_FILE, notify), as_bytes(settings))


def scorer_of(
    config: ExperimentConfig,
    name: str,
    learned: TaskSpec,
    *,
    recipe: Recipe | None = None,
    noise: MemoisedNoise | None = None,
) -> Scorer:
    """Return a party's place as the one that computes scores, with the defenses of scores of its own file.

    Noise is drawn from entropy, as in all predictions, or memoised.

    Args:
        config: Its file.
        name: The party's.
        learned: What was learned, as the label party says.
        recipe: That of the trained model; default: that of the file.
        noise: Memoised noise; ``None``: it is drawn anew.

    Raises:
        ConfigError: If the loss or a defense is for other labels, or a direction of noise is awaited that nobody sends,
            or sent to nobody who awaits it.
        PrivacyError: If noise is to be memoised, and a defense does not allow it.
    """
    of_model = (recipe or config.model.recipe).make_loss()
    loss = config.train.loss.make() if of_model is None and config.train.loss is not None else of_model
    try:
        scorer = Scorer(name, task_for(learned.task, learned.outputs, loss), noise=noise)
    except ArgumentError as error:
        raise ConfigError(f"{config.source}: train.loss: {error}") from error
    for number, (_, found) in enumerate(config.found_defenses):
        if found.crossing == "scores":
            attach_score_defense(scorer, found.make(), number=number, noise_seed=None)
    if noise is not None:
        check_memoised(scorer.scores)
    check_awaited(scorer.scores, config.prediction.direction_by)
    return scorer


def loss_in_words(recipe: Recipe, described: Mapping[str, Any] | None) -> str:
    """Return what tells the loss of a model from others, with its settings: it says what scores are.

    Args:
        recipe: The model's; some bring a loss.
        described: The section that names another; ``None``: there is none.
    """
    if recipe.make_loss() is not None:
        settings = {name: value for name, value in recipe.terms().items() if "loss" in name}
        return json.dumps(settings, sort_keys=True)
    return json.dumps(described, sort_keys=True) if described else "the usual one"


def loss_of_half(half: SavedHalf, *, model: ModelSection, own: NamedSection | None) -> str:
    """Return in words the loss with which a half predicts; of a passive party's, as its own file says.

    Args:
        half: The half.
        model: The model of its party's own file.
        own: The loss of it.
    """
    described = half.schema.loss if isinstance(half.schema.loss, dict) else None
    if described is None and own is not None and half.schema.role == "passive":
        described = own.model_dump(mode="json")
    return loss_in_words(half.recipe(model), described)


def check_own_defenses(config: ExperimentConfig, name: str) -> None:
    """Refuse defenses of scores in a file that only a party reads that computes none, as another than the active does.

    Raises:
        ConfigError: If there are any.
    """
    if config.scorer == config.active:
        return
    described = {other for other, party in config.parties.items() if other == name or party.columns}
    if config.scorer in described or len(described) > 1:
        return
    for hook, found in config.found_defenses:
        if found.crossing == "scores":
            raise ConfigError(
                f"{config.source}: defenses: {hook.name} acts on the scores, which {config.scorer} computes "
                f"(prediction.scores_by), and would do nothing at {name}; take it out here, and let it stand in the "
                f"file of {config.scorer}"
            )


@dataclass(frozen=True, eq=False)
class CoordinatorService:
    """A third party's prediction, prepared.

    Attributes:
        active: The label party.
        made: Makes its place as the one that computes scores, of what was learned.
        session: Where it meets the label party.
        settings: What is agreed.
    """

    active: str
    made: Callable[[TaskSpec], Scorer]
    session: Session[Meeting]
    settings: CoordinatorSettings

    def run(self, progress: Callable[[int], None] = lambda done: None) -> int:
        """Compute the scores, and return of how many records.

        Args:
            progress: Told how many records are scored.

        Raises:
            SplitVFLError: As :meth:`splitvfl.run.scoring.CoordinatorPrediction.run`.
        """
        with self.session.place:
            return CoordinatorPrediction(self.active, self.made, self.settings, self.session, progress=progress).run()


def prepare_coordinator(
    config: ExperimentConfig, *, run: Path | None = None, notify: Callable[[str], None] = lambda line: None
) -> CoordinatorService:
    """Return a third party's prediction, ready to be run.

    Args:
        config: Its file; data and columns are not looked at, nor anything of the training but model and loss.
        run: The folder of what it keeps: the key of memoised noise. Default: ``runs/NAME-coordinator``.
        notify: Told in one line what happens.

    Raises:
        ConfigError: If it computes no scores, or settings do not go together.
        CheckpointError: If the key of memoised noise cannot be read or written.
    """
    if config.scorer != COORDINATOR:
        raise ConfigError(
            f"{config.source}: prediction.scores_by: {config.scorer} computes the scores, and {COORDINATOR} takes no "
            f"part; write {COORDINATOR} at all parties, if it is to"
        )
    if config.prediction.limits:
        named = ", ".join(config.prediction.limits)
        raise ConfigError(
            f"{config.source}: prediction: {named}: a passive party limits what it lets be scored, in its own file; at "
            f"{COORDINATOR}, which has no records, it would do nothing: take it out here"
        )
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    addresses = AddressBook(config, COORDINATOR, PREDICTION)
    session = addresses.session(notify, most_retries=MOST_RETRIES)
    section = config.train.loss
    loss = loss_in_words(config.model.recipe, None if section is None else section.model_dump(mode="json"))
    settings = CoordinatorSettings(
        loss=loss,
        memoised=config.prediction.memoised,
        direction_by=config.prediction.direction_by,
        vouching=addresses.vouching(session.place),
    )
    noise: MemoisedNoise | None = None
    if config.prediction.memoised:
        folder = run or Path("runs") / f"{config.name}-{COORDINATOR}"
        noise = memoised_noise(config.found_defenses, folder, notify, loss=loss, source=config.source)
    made = partial(scorer_of, config, COORDINATOR, noise=noise)
    return CoordinatorService(config.active, made, session, settings)
