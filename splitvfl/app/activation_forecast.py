"""What activations will tell of a passive party's columns, computed by that party alone: ``splitvfl forecast``.

Of a model that is not linear nobody can say beforehand what training makes of it. But its first activations are known:
those of a bottom model with weights as they are drawn. The party reads them as it does when a networked run is over
(:mod:`splitvfl.app.column_auditing`), for several draws, and with a trained half those that it would send again.
Nothing is sent and nobody is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch

from splitvfl.app.assembly import Assembly
from splitvfl.app.column_auditing import read_again, thorough_readers
from splitvfl.app.forecasting import ENCODED_OTHERWISE, check_half, columns_of_training, encoded_alike, half_folder
from splitvfl.app.saved_model import SavedHalf, load_half
from splitvfl.config.sections import ExperimentConfig, ModelSection, TrainConfig
from splitvfl.data.columns import PartyData
from splitvfl.errors import ConfigError
from splitvfl.hooks import hook_name
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.learning.precision import narrow_dtype
from splitvfl.learning.randomness import derive_seed
from splitvfl.learning.tasks import task_for
from splitvfl.party.party import PassiveParty
from splitvfl.report.read_words import counting, of_variance, too_many, with_share

VERSION: Final = 1
_BOTTOMS: Final = {"random": "random weights", "pca": "principal components", "trained": "weights of its own"}
DRAWS: Final = 3
"""How many first weights are drawn."""


@dataclass(frozen=True, slots=True)
class ActivationForecast:
    """What a passive party's activations tell of its columns.

    Attributes:
        party: Its name.
        records: Number of its training records.
        width: Of its activations.
        trained: Whether they are those of its trained half; else of first weights, drawn several times.
        untrained: In words, of what they are if nothing ever trains this bottom model; empty: it is trained.
        readings: What was read, for each draw; of attacks that read nothing there is none.
        unavailable: Attacks that could not be run, with the reason.
        notes: What else is to be known, in sentences.
    """

    party: str
    records: int
    width: int
    trained: bool
    readings: tuple[ColumnReading, ...]
    unavailable: dict[str, str]
    notes: tuple[str, ...]
    untrained: str = ""

    @property
    def most(self) -> ColumnReading | None:
        """The reading that recovers most of all."""
        return max(self.readings, key=lambda one: one.share, default=None)

    @property
    def sentence(self) -> str:
        """What it comes to, in words."""
        most = self.most
        if most is None:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.unavailable.items())
            return f"What activations reveal of the features of {self.party} was not measured. {why}".strip()
        knows = "its model part and " if most.knows_model else ""
        once = "once, " if self.untrained else ""
        of = self.untrained or ("its trained model part" if self.trained else "first weights")
        shares = sorted(one.share for one in self.readings if one.attack == most.attack)
        span = (
            f"{shares[0]:.0%}" if f"{shares[0]:.0%}" == f"{shares[-1]:.0%}" else f"{shares[0]:.0%} to {shares[-1]:.0%}"
        )
        return (
            f"From what {self.party} sends {once}with {of}, {self.width} numbers a record, {most.attack} recovers "
            f"{span} of {of_variance(most)}its {len(most.columns)} features{counting(most)}. It knows {knows}the "
            f"features of {most.known_share:.0%} of the records, and recovers more than half of "
            f"{most.told or 'none'} of the others', most of {with_share(most.columns[0])}.{too_many(most)}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {"format": "splitvfl activation forecast", "version": VERSION, **asdict(self), "sentence": self.sentence}


def forecast_activations(
    config: ExperimentConfig,
    name: str,
    *,
    model: Path | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> ActivationForecast:
    """Return what activations will tell of a passive party's columns.

    Args:
        config: The experiment, or the party's own file.
        name: The party.
        model: Folder of its trained half, or of the run that holds it. Default: first weights, drawn anew each time.
        notify: Told in a line what is under way, as it may take a while.

    Raises:
        ConfigError: If the party is not a passive one, or its activations are shown to nobody record by record.
        DataError: If the data are not what the file says.
        CheckpointError: If there is no trained half, or it is damaged.
    """
    if name not in config.parties or config.parties[name].role != "passive":
        passives = ", ".join(other for other, party in config.parties.items() if party.role == "passive")
        raise ConfigError(f"--as: a forecast is of a passive party's columns, and {name} is none; there are {passives}")
    if not config.exchange.factory.shows_activations:
        raise ConfigError(
            f"{config.source}: exchange: in {config.exchange.name} the active party does not receive each record's "
            "activation, and there is nothing to forecast of a model that is not linear"
        )
    if config.train.threads is not None:  # many small products: more threads wait for each other
        torch.set_num_threads(config.train.threads)
    half = None if model is None else load_half(half_folder(model, name))
    if half is not None:
        check_half(half, name)
    data = columns_of_training(config, name, half)
    assembly = Assembly(config, data)
    models = _parties(assembly, data, half, config.model, config.train, config.exchange.wire)
    found: list[ColumnReading] = []
    unavailable: dict[str, str] = {}
    width = 0
    for draw, party in enumerate(models, start=1):
        width, readers = party.output_width(), thorough_readers(assembly, party)
        of = f"first weights, draw {draw} of {_draws(assembly)}" if half is None else "the trained model part"
        notify(f"{of}: {', '.join(map(hook_name, readers)) or 'no reader'}")
        read, missing = read_again(assembly, party, readers, active=config.active, settings=config.train)
        found += read
        unavailable |= missing
    return ActivationForecast(
        party=name,
        records=data.train.count,
        width=width,
        trained=half is not None,
        readings=tuple(found),
        unavailable=unavailable,
        notes=tuple(_notes(data, half, one_way=assembly.exchange.one_way)),
        untrained=_BOTTOMS[assembly.exchange.bottom] if assembly.exchange.one_way else "",
    )


def _parties(
    assembly: Assembly,
    data: PartyData,
    half: SavedHalf | None,
    model: ModelSection,
    train: TrainConfig,
    wire: Literal["bf16"] | None,
) -> Iterator[PassiveParty]:
    """Yield the party with each of its models, and the defenses of its file."""
    if half is not None:
        party = half.party(data, device=torch.device("cpu"), own=model)
        assert isinstance(party, PassiveParty), "that was looked at before"
        assembly.defend(party)
        yield party
        return
    for draw in range(_draws(assembly)):
        seed = derive_seed(train.seed, "forecast", name := data.name, draw)
        # Of what is learned a bottom depends on its outputs alone, if on anything: of two classes as good as of more.
        made = assembly.passive(data, task_for("binary", 1), seed=seed)
        made.prepare(
            seed=derive_seed(seed, "party", name),
            device=torch.device("cpu"),
            autocast=narrow_dtype(train.autocast),
            wire=narrow_dtype(wire),
        )
        assembly.defend(made)
        yield made


def _draws(assembly: Assembly) -> int:
    """Return how many first weights are drawn; principal components are not."""
    return 1 if assembly.exchange.bottom == "pca" else DRAWS


def _notes(data: PartyData, half: SavedHalf | None, *, one_way: bool) -> Iterator[str]:
    if one_way:
        yield (
            "in exchange one-way nothing trains this bottom model, and each record is sent once: the run reveals as "
            "much of features as this, whatever the labels are"
        )
    elif half is None:
        yield (
            f"first weights were drawn {DRAWS} times; training changes what activations reveal, to more or less: "
            "the run itself shows it live (feature_leak in TensorBoard), and --model RUN of the trained model part"
        )
    if half is not None and not encoded_alike(data, half):
        yield ENCODED_OTHERWISE
    yield "another reader may find more: this is no upper bound"
