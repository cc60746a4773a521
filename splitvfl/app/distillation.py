"""A model that needs no partner: a student of the label party's own columns, trained on the joint model's scores.

Beside it stands a model of the same columns that was trained on labels, in the same way: what a student adds to it is
all that there is to be gained. Both are saved as halves, of a label party with nobody beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from splitvfl.app.run_files import ALONE_FOLDER, DISTILLATION_FILE, STUDENT_FOLDER
from splitvfl.app.saved_model import SavedHalf
from splitvfl.app.teacher import teacher_of
from splitvfl.config.module_sources import Modules
from splitvfl.config.sections import MODEL
from splitvfl.data.columns import PartyData, Provenance
from splitvfl.errors import ConfigError, DataError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.learning.bootstrap import Figure, difference, measure_of, paired_bootstrap, units_of
from splitvfl.learning.devices import choose_device
from splitvfl.learning.tasks import Task
from splitvfl.party.party import ActiveParty
from splitvfl.run.half_folder import Origin, save_halves
from splitvfl.run.student import Choice, Lesson, Option, outputs_alone
from splitvfl.system.untrusted_files import write_whole

ALONE, STUDENT, JOINT = "own columns alone", "student", "joint"

_HIDDEN: tuple[tuple[int, ...], ...] = ((), (32,), (64, 32))
_DEEP: tuple[tuple[int, ...], ...] = ((16,), (32,), (64, 32))
_DECAYS = (0.0, 0.1)
_EMBEDDING = 8


@dataclass(frozen=True)
class Distilled:
    """A student beside what it is to be compared with.

    Attributes:
        metric: Name of the test figure.
        figures: By name, :data:`ALONE`, :data:`STUDENT` and, if the scores of the test records are known,
            :data:`JOINT`: on the test records, with 95 % bootstrap intervals.
        gain: The student's figure less that of own columns alone, with its interval over the same draws.
        choices: What held-out records decided for the two models of own columns, by name.
        folder: The run.
        party: The label party's name.
    """

    metric: str
    figures: Mapping[str, Figure]
    gain: Figure
    choices: Mapping[str, Choice]
    folder: Path
    party: str

    @property
    def student_folder(self) -> Path:
        """Where the student was saved."""
        return self.folder / STUDENT_FOLDER

    @property
    def alone_folder(self) -> Path:
        """Where the model of own columns was saved."""
        return self.folder / ALONE_FOLDER

    def verdict(self) -> str:
        """Return in a sentence which of the two to take."""
        said = f"{self.gain.value:+.3f} ({self.gain.low:+.3f} to {self.gain.high:+.3f})"
        if self.gain.low > 0:
            return f"The student is better than own columns alone: {said}."
        if self.gain.high < 0:
            return f"The student is worse than own columns alone: {said}. Take {self.alone_folder}."
        return (
            f"The student is no better than own columns alone, as far as these test records tell: {said}. "
            f"{self.alone_folder} learned from labels and has nothing of the partners' in it."
        )


def distill(
    folder: Path,
    *,
    scores: Path | None = None,
    modules: Modules = None,
    seed: int = 0,
    notify: Callable[[str], None] = lambda line: None,
) -> Distilled:
    """Train a student of a run's label party, save it, and compare it.

    Architecture, weight decay and the number of epochs are chosen on training records that are held out, in the same
    way for the student and for own columns alone; then both learn from all training records. Test records are looked
    at once, in the end.

    Args:
        folder: The run's folder: of a run in one process, which scores its records itself; or the label party's of a
            run over a network.
        scores: Over a network: the joint model's scores of the training records, as ``splitvfl predict`` wrote them.
        modules: Where classes of your own are defined, as :func:`splitvfl.load_run` takes them.
        seed: Decides first weights, the order of records, and the draws of the intervals.
        notify: Told in one line what happens.

    Raises:
        ConfigError: If the label party has no columns of its own, or scores are given where none are needed.
        DataError: If the run's data have changed, or a training record has no score.
        CheckpointError: If there are no trained halves.
    """
    teacher = teacher_of(folder, scores, modules, notify)
    data, task = teacher.data, teacher.half.task
    if not data.column_names:
        raise ConfigError(
            f"{data.name} has no columns of its own (parties.{data.name}.columns), so that a student would have "
            "nothing to go by"
        )
    targets = _targets(teacher.train_scores(), data, task)
    options = _options(data, teacher.half.learned)
    found = {}
    for name, learned_from in ((ALONE, None), (STUDENT, targets)):
        lesson = Lesson(data, task, learned_from, seed=seed, device=choose_device(teacher.device))
        notify(f"{name}: learning from {'labels' if learned_from is None else 'joint scores'}")
        choice = lesson.choose(options, tell=notify)
        found[name] = (choice, lesson.learned(choice))
    figures, gain = _compared({name: party for name, (_, party) in found.items()}, teacher.test_scores(), task, seed)
    choices = {name: choice for name, (choice, _) in found.items()}
    distilled = Distilled(task.metric, figures, gain, choices, folder, data.name)
    for name, target in ((ALONE, distilled.alone_folder), (STUDENT, distilled.student_folder)):
        save_halves(target, {data.name: (found[name][1], _origin(teacher.half, data, choices[name]))})
    _write(distilled, task, seed)
    return distilled


def _options(data: PartyData, learned: TaskSpec) -> list[Option]:
    """Return what is tried: from a linear model to two hidden layers, with and without weight decay."""
    if data.field_sizes:
        sections = [MODEL.default("wide-deep", bottom=deep, embedding_dim=_EMBEDDING, sparse=False) for deep in _DEEP]
    else:
        sections = [MODEL.default("mlp", top_hidden=hidden) for hidden in _HIDDEN]
    return [Option(section, section.recipe, decay) for section, decay in product(sections, _DECAYS)]


def _targets(scores: Tensor, data: PartyData, task: Task) -> Tensor:
    """Return the scores of the training records as the task's usual loss takes them.

    Raises:
        DataError: If they are no probabilities where they are to be.
    """
    real = slice(None) if data.train.real is None else data.train.real
    counted = scores[real]
    if not torch.isfinite(counted).all():
        raise DataError("joint scores hold NaN or infinite values")
    if task.name != "regression" and not ((counted >= 0) & (counted <= 1)).all():
        raise DataError(
            "joint scores are no probabilities: they go from "
            f"{counted.min():g} to {counted.max():g}; a student learns from probabilities, of which the usual loss and "
            "most others make scores"
        )
    return scores.float()


def _compared(
    models: Mapping[str, ActiveParty], joint: Tensor | None, task: Task, seed: int
) -> tuple[dict[str, Figure], Figure]:
    """Return the test figure of each, with its interval, and the difference of student and own columns alone."""
    (test,) = {id(party.data): party.data.test for party in models.values()}.values()
    assert test.labels is not None
    counted = torch.arange(test.count) if test.real is None else test.real.nonzero()[:, 0]
    labels = test.labels[counted].cpu()
    outputs = {name: outputs_alone(party, test).cpu()[counted] for name, party in models.items()}
    if joint is not None:
        outputs[JOINT] = joint.reshape(test.count, -1)[counted]

    units = units_of(task, labels)
    measures = {name: measure_of(task, of, labels) for name, of in outputs.items()}
    found = paired_bootstrap(measures, len(counted), units=units, seed=seed)
    gain = difference(found[ALONE], found[STUDENT], units=units)
    return {name: figure for name, (figure, _) in found.items()}, gain


def _origin(teacher: SavedHalf, data: PartyData, choice: Choice) -> Origin:
    own = data.provenance or Provenance()
    return Origin(
        learned=teacher.learned,
        model=choice.option.model,
        run=teacher.schema.run,
        step=0,
        epoch=choice.epochs,
        encoding=own.encoding,
        id_column=own.id_column,
        id_rule=own.id_rule,
        tables=own.tables,
        score_shifts=teacher.schema.score_shifts or (),
    )


def _write(distilled: Distilled, task: Task, seed: int) -> None:
    content = {
        "metric": distilled.metric,
        "seed": seed,
        "loss": type(task.loss).__name__,
        "intervals": "95 %, expanded percentiles of a bootstrap over the test records, the same draws for all",
        "figures": {name: _numbers(figure) for name, figure in distilled.figures.items()},
        "student less own columns alone": _numbers(distilled.gain),
        "chosen on held-out training records": {
            name: {
                "model": choice.option.model.model_dump(mode="json"),
                "weight decay": choice.option.weight_decay,
                "epochs": choice.epochs,
                "held-out loss": choice.loss,
            }
            for name, choice in distilled.choices.items()
        },
    }
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_whole(distilled.folder / DISTILLATION_FILE, text.encode())


def _numbers(figure: Figure) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in asdict(figure).items()}
