"""Everything that can be known of an experiment before it is trained: nothing is trained, sent or written.

Where the folder holds a run, that run is taken up as ``train --resume`` or ``party`` takes it up, by the same
functions: what they refuse before the first step, and before anybody is met, is refused here in the same words.

Each step says what it found, or what is wrong; what does not rest on a step that failed is looked at all the same, so
that all is told at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from splitvfl.app.addresses import CHECKING, PREDICTION, AddressBook
from splitvfl.app.beginning import with_ids_of
from splitvfl.app.counting import check_own_limits
from splitvfl.app.data_summary import own_summary_of, summary_of
from splitvfl.app.deployment import Deployment
from splitvfl.app.exchanges import said_before
from splitvfl.app.experiment import Experiment, Workbench, nothing_left
from splitvfl.app.records import OwnData, in_words_of, load_data, own_data
from splitvfl.app.run_folder import (
    already_there,
    check_folder,
    has_checkpoint,
    holds_finished_run,
    is_barely_begun,
)
from splitvfl.app.scoring import check_own_defenses
from splitvfl.app.single_columns import said_of_columns
from splitvfl.app.team_settings import said_in_one_process
from splitvfl.app.workers import shards_not_here, shards_to_try
from splitvfl.config.sections import ExperimentConfig, HookConfig, NetworkConfig
from splitvfl.data.columns import VerticalData
from splitvfl.errors import ConfigError, LinkError, SplitVFLError
from splitvfl.exchange.prediction import unchecked_outputs_on
from splitvfl.learning.glm_losses import GLMLoss
from splitvfl.net.link import Link
from splitvfl.report.rows import counted
from splitvfl.run.replacement import REPLACED, is_unsettled
from splitvfl.run.trainer import Trainer
from splitvfl.system.untrusted_files import refuse_links
from splitvfl.team.team import FirstWorker

"""What parties meet for that only want to know whether the others are there."""


_LOOK_S = 0.05
_SHOWN_WORKERS = 8


@dataclass
class Findings:
    """What was found, as it is found.

    Attributes:
        tell: Told each line as it is known.
        problems: What is wrong, in the order in which it was found.
    """

    tell: Callable[[str], None]
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def step(self, about: str = "") -> Iterator[None]:
        """Take note of what goes wrong in a block, after what it is about, and go on after it."""
        try:
            yield
        except (SplitVFLError, OSError) as error:
            if (said := f"{about}{error}") not in self.problems:
                self.problems.append(said)


def check_experiment(config: ExperimentConfig, folder: Path, *, tell: Callable[[str], None]) -> list[str]:
    """Check an experiment with all parties in one process, and return what is wrong.

    Args:
        config: The experiment.
        folder: Where its run would go.
        tell: Told in a line what was found to be in order.
    """
    found = Findings(tell)
    with found.step():
        config = with_ids_of(config, run_in(folder))
    hooks = _hooks(config.attacks, config.defenses)
    tell(f"file: {config.source}, {len(config.parties)} parties, model {config.model.name}, {hooks}")
    _tell_scorer(config.scorer, config.active, tell)
    _tell_all(tell, said_in_one_process(config))
    data: VerticalData | None = None
    with found.step():
        data = load_data(config)
        with in_words_of(config.data, config.parties):
            _tell_all(tell, summary_of(data))
    place = None
    with found.step():
        place = _checked_folder(folder, config.source, tell, alone=False)
    if data is not None:
        with found.step():
            _try_parts(Experiment(config, Workbench(data, {})), config.train.epochs, tell, going_on=place)
    return found.problems


def _try_parts(experiment: Experiment, epochs: int, tell: Callable[[str], None], *, going_on: Path | None) -> None:
    """Build everything that a run needs, for what objects to what, and take up the run that a folder holds."""
    trainer = experiment.trainer(going_on)
    _tell_all(tell, said_before(trainer.exchange, trainer.active, epochs=epochs))
    _tell_all(tell, list(experiment.few_known(trainer)))
    _tell_all(tell, experiment.noise_notes())
    _tell_all(tell, said_of_columns(experiment.columns_solvable(trainer)))
    _tell_all(tell, experiment.said_of_malicious())
    trainer.training.solvable, said_of_labels = experiment.solving(trainer, experiment.horizons(trainer)[0])
    _tell_all(tell, experiment.said_of_goal(trainer))
    _tell_all(tell, said_of_labels)
    widths = {name: party.data.width for name, party in trainer.passives.items()}
    _tell_all(tell, trainer.exchange.notes(widths, records=trainer.active.data.train.count))
    weights = {
        party.name: sum(weight.numel() for model in party.models for weight in model.parameters())
        for party in (trainer.active, *trainer.passives.values())
    }
    _try_first_logits(trainer)
    tell("models: " + ", ".join(f"{name} {count:,} weights" for name, count in weights.items()))
    length = f"{counted(epochs, 'epoch')} of {counted(len(trainer.batches), 'step')}"
    tell(f"training: {length}, batches of {trainer.batches.batch_size}")
    if going_on is not None:
        tell(
            f"run: {going_on} holds a run; this is checked for train --resume. Without --resume train refuses the "
            "folder, with --overwrite it replaces the run, and --out names another folder"
        )
        trainer.training.notify = tell
        done = experiment.take_up(trainer, going_on)
        on = f"train --resume goes on from step {trainer.step:,}"
        tell(f"run: {on if done is None else nothing_left(going_on, done)}")


def _try_first_logits(trainer: Trainer) -> None:
    """Compute scores of some training records with the first weights, for a loss that takes no logits but its own.

    What noise and steps make of logits is known only by training.
    """
    active, loss = trainer.active, trainer.active.task.loss
    if not isinstance(loss, GLMLoss):
        return
    rows = torch.arange(min(trainer.batches.batch_size, active.data.train.count))
    parts = [party.activate(party.train_batch(rows)).detach() for party in trainer.passives.values()]
    loss.scores(unchecked_outputs_on(active, parts, active.train_batch(rows)))


def check_party(
    config: ExperimentConfig,
    name: str,
    folder: Path,
    *,
    connect_s: float | None,
    tell: Callable[[str], None],
    worker: int | None = None,
) -> list[str]:
    """Check the file of one party of a networked run, and return what is wrong.

    Args:
        config: Its file.
        name: Its name.
        folder: Where its run would go.
        connect_s: How long to wait for partners that do the same, for each worker; ``None``: nobody is called.
        tell: Told in a line what was found to be in order.
        worker: Which of several workers this process stands for; ``None``: for all that one process can.
    """
    found = Findings(tell)
    hooks = _hooks(config.attacks, config.defenses)
    tell(f"file: {config.source}, {name} of {', '.join(config.parties)}, model {config.model.name}, {hooks}")
    _tell_scorer(config.scorer, config.active, tell)
    own: OwnData | None = None
    if name in config.parties:
        with found.step():
            config = with_ids_of(config, run_in(folder))
            shards = shards_to_try(config.data.path, name, count=config.shards)
            own = own_data(config, name, worker=None if shards is None else shards.here)
            if shards is not None:
                own = replace(own, data=own.data.in_shards(shards))
                _tell_all(tell, shards_not_here(config.data.path, name, count=config.shards))
            with in_words_of(config.data, config.parties):
                _tell_all(tell, own_summary_of(own.data, own.task))
    if takes_part_in_training(name, config.parties, config.exchange.factory.third_party):
        with found.step():
            book = AddressBook(config, name)
            book.meeting(tell)
            tell(f"network: {_credentials(config.network)}")
            _tell_all(tell, _addresses(book, config.team.workers))
    with found.step():
        check_own_limits(config.prediction.limits, config.parties, name, source=config.source)
    with found.step():
        check_own_defenses(config, name)
    if config.scorer != config.active:
        with found.step():
            AddressBook(config, name, PREDICTION).meeting(tell)
    if own is not None:
        place = None
        with found.step():
            place = _checked_folder(folder, config.source, tell, alone=True)
        with found.step():
            deployment = Deployment(config, name, own=own, team=FirstWorker(config.team.workers))
            with found.step():
                _try_own_model(deployment, tell)
            _try_own_run(deployment, folder, tell, going_on=place)
    if connect_s is not None and not found.problems:
        book = AddressBook(config, name, CHECKING, worker=worker or 0)
        _connect_workers(book, worker, config.team.workers, connect_s, found)
    return found.problems


def takes_part_in_training(name: str, parties: Collection[str], third_party: str | None) -> bool:
    """Return whether a party does, and not in predictions alone, as a third party that computes the scores may."""
    return name in parties or name == third_party


def _try_own_model(deployment: Deployment, tell: Callable[[str], None]) -> None:
    party = deployment.tried_half()
    if party is not None:
        tell(f"model: {sum(weight.numel() for model in party.models for weight in model.parameters()):,} weights")


def _try_own_run(deployment: Deployment, folder: Path, tell: Callable[[str], None], *, going_on: Path | None) -> None:
    """Make the party's run, and take up what the folder holds."""
    run = deployment.run(going_on or folder)
    _tell_all(tell, deployment.said_of_columns())
    _tell_all(tell, deployment.said_of_solving())
    steps = len(run.settings.batches)
    epochs = counted(run.settings.schedule.epochs, "epoch")
    tell(f"training: {epochs} of {counted(steps, 'step')}, if the others have as many records")
    if going_on is not None:
        tell(
            f"run: {going_on} holds a run; party resumes it. With --overwrite it starts anew, and so must the "
            "others; --out names another folder"
        )
        tried = deployment.take_up(run, notify=tell)
        done = "nothing is left to train" if tried.is_at_its_end else f"party goes on from step {tried.step:,} at most"
        tell(f"run: {done}")


def _addresses(book: AddressBook, workers: int) -> list[str]:
    """Return in words where each of several workers is found; of many the first and the last."""
    if workers == 1:
        return []
    shown = range(workers) if workers <= _SHOWN_WORKERS else (0, workers - 1)
    return [f"worker {worker}: {', '.join(replace(book, worker=worker).where())}" for worker in shown]


def _connect_workers(book: AddressBook, worker: int | None, workers: int, wait_s: float, found: Findings) -> None:
    """Meet the partners as each worker that this process can stand for, one after the other.

    Args:
        book: Where they are found who check whether they find each other.
        worker: Which worker is meant; ``None``: all of them.
        workers: How many there are.
        wait_s: How long to wait for partners.
        found: What is found.
    """
    tried = book.workers_here if worker is None else range(worker, worker + 1)
    several = workers > 1
    for one in tried:
        said = f"worker {one}: " if several else ""
        with found.step(said):
            _connect(replace(book, worker=one), wait_s, partial(_tell_about, found, said))
    if several and worker is None and len(tried) < workers:
        found.tell(
            f"only worker 0 was tried: each worker of {book.name} listens on a machine of its own; start the command "
            "there with the variables of that worker (RANK, WORLD_SIZE)"
        )


def _tell_about(found: Findings, said: str, line: str) -> None:
    found.tell(f"{said}{line}")


def _connect(book: AddressBook, wait_s: float, tell: Callable[[str], None]) -> None:
    """Meet the partners, who do the same, and part again: who they are is proven, nothing else is said."""
    with book.waiting(wait_s).meeting(tell) as meeting, meeting.meet() as links:
        if book.name != book.active:  # who has the labels meets everybody, and leaves last
            _wait_until_gone(links[book.active], wait_s)
        tell(f"connected: {', '.join(map(book.described, links))}")


def _wait_until_gone(link: Link, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while link.ended is None:
        if time.monotonic() > deadline:
            raise LinkError(f"{link.peer} is there, but has not met the others within {wait_s:g} s")
        time.sleep(_LOOK_S)


def _tell_scorer(scorer: str, active: str, tell: Callable[[str], None]) -> None:
    if scorer != active:
        tell(
            f"scores: {scorer} computes them once the model is trained; while it is trained, {active} "
            "receives parts of the logits as without it"
        )


def _hooks(attacks: Sequence[HookConfig], defenses: Sequence[HookConfig]) -> str:
    count = len(attacks)
    return f"{', '.join(map(str, defenses)) or 'no defense'}, {count or 'no'} {'attack' if count == 1 else 'attacks'}"


def _credentials(network: NetworkConfig | None) -> str:
    if network is not None and network.plaintext_on_loopback:
        return "no certificates, on this machine only"
    return "certificates are valid, carry the right names, and belong to their keys"


def _checked_folder(folder: Path, source: str, tell: Callable[[str], None], *, alone: bool) -> Path | None:
    """Return where the run lies that the next start goes on with; ``None``: it begins one, or there is nothing to do.

    Args:
        folder: The run's folder, in which nothing is changed.
        source: What the file is called in messages.
        tell: Told in a line how it is.
        alone: Whether it is that of one party, which goes on without being asked to.

    Raises:
        ConfigError: If the folder may not be written to.
    """
    if is_unsettled(folder):
        unless = "unless it has --overwrite" if alone else "with --resume"
        tell(
            f"run: {folder}, where a replacement ended before its first checkpoint: the next start brings the earlier "
            f"run back, and resumes it {unless}"
        )
        refuse_links(folder, ConfigError)
        place = run_in(folder)
        if place is None:
            tell(
                f"run: the files of the earlier run were being moved when that start ended; these settings are not "
                f"compared with it. Start it {'without --overwrite' if alone else 'with --resume'}, or check after that"
            )
        return place
    if has_checkpoint(folder):
        check_folder(folder, source, resume=True, overwrite=False)
        return folder
    if not alone and holds_finished_run(folder):
        tell(f"run: {already_there(folder)}")
        return None
    check_folder(folder, source, resume=False, overwrite=is_barely_begun(folder))
    tell(f"run: {folder}")
    return None


def run_in(folder: Path) -> Path | None:
    """Return where the run lies whole that the next start in a folder goes on with; ``None``: there is none."""
    place = folder
    if is_unsettled(folder):
        place = folder / REPLACED
    return place if has_checkpoint(place) else None


def _tell_all(tell: Callable[[str], None], lines: list[str] | tuple[str, ...]) -> None:
    for line in lines:
        tell(line)
