"""The parties: each holds its own columns, its own model, its own optimiser and its own randomness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from splitvfl.claims import LabelRelease, RunPlan, releases_of
from splitvfl.cut.chain import ActivationDefenses, DefenseChain
from splitvfl.cut.layer import CutLayer, Cuts, responses_of
from splitvfl.cut.split_model import refuse_width
from splitvfl.cut.views import GRADIENTS, Shown, ViewSource, is_linear
from splitvfl.data.columns import PartyData, Records
from splitvfl.data.transform import transform_of
from splitvfl.errors import ArgumentError, ConfigError, ProtocolError
from splitvfl.hooks import (
    Defense,
    Penalty,
    Phase,
    View,
    Weighed,
    all_finite,
    notes_of,
    running_totals_of,
    shifts_scores_of,
)
from splitvfl.learning.best_weights import BestWeights
from splitvfl.learning.losses import Logistic, Loss, link_of
from splitvfl.learning.optimizers import OptimizerFactory, check_factory
from splitvfl.learning.randomness import PartyRandom
from splitvfl.learning.sampled import sampled_layers
from splitvfl.learning.schedule import EarlyStopping, Patience
from splitvfl.learning.tasks import Binary, Task
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import Message
from splitvfl.party.memoised import MemoisedNoise
from splitvfl.party.penalties import NO_PENALTIES_OF_WORKERS, NO_STATE, Penalties
from splitvfl.party.refusals import Refusals
from splitvfl.party.top_model import PrivateTop, TopModel, own_input
from splitvfl.party.training_labels import TrainingLabels
from splitvfl.party.weights import PartyWeights
from splitvfl.system.gpu_copies import to_device
from splitvfl.system.pickling import NotPickled
from splitvfl.team.divided import replicated_state
from splitvfl.team.team import Alone, Team

if TYPE_CHECKING:
    from splitvfl.crypto.sum_masks import SumMasks

MAX_WIDTH = 1 << 16

SENDING = "sending/"
"""Before the names of figures of the top that sends, where a private top predicts."""

# Of an activation, before the parties have agreed on one.
_ANY_WIDTH = range(1, MAX_WIDTH + 1)


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Return Adam at learning rate 1e-3: the default optimiser."""
    return torch.optim.Adam(parameters, lr=1e-3)


class Observer(Protocol):
    """Something at a passive party that looks at what it received: an attack, in an experiment."""

    needs: frozenset[str]

    def __call__(self, view: View, /) -> None:
        """Look."""
        ...


class Tally(Protocol):
    """Something that counts the records of which a passive party sends parts of scores, before it does."""

    def begin(self) -> None:
        """Count the records of a prediction, which begins, or begins again.

        Raises:
            LimitError: If the party lets no more of them be scored; nothing is to be sent then.
        """
        ...

    def leaving(self, records: int) -> None:
        """Let parts of so many records go.

        Raises:
            PrivacyError: If they were not counted.
        """
        ...


def _ignored(message: Message) -> None: ...


class Party(NotPickled, ABC):
    """The common part of both kinds of party.

    Attributes:
        autocast: The dtype in which its model runs under :class:`torch.autocast`, bfloat16; ``None``: as it is.
        wire: The dtype in which activations and gradients cross, bfloat16; ``None``: as they were computed.
        weights: What it trains, with the optimiser.
        one_by_one: Whether it computes its part in scores record by record: the same to the bit in any batch.
        remember: Told what is under the masks of messages that are new each time they are sent: what must be the same
            whenever a step is taken again.
        refusals: Sums that it has refused in this run.
        team: The workers that it consists of, of which this process is one.
        share: What share this process has of the records of the step under way: its loss, a mean over its own records,
            counts for so much.
    """

    def __init__(self, data: PartyData, module: nn.Module, optimizer: OptimizerFactory) -> None:
        self.name = data.name
        self.data = data
        self.module = module
        self.device = torch.device("cpu")
        self.autocast: torch.dtype | None = None
        self.wire: torch.dtype | None = None
        self.weights = PartyWeights(data.name, module, optimizer)
        self.one_by_one = False
        self.remember: Callable[[Message], None] = _ignored
        self.refusals = Refusals(self.name)
        self.random = PartyRandom(0)
        self.team: Team = Alone()
        self.share = 1.0

    def __repr__(self) -> str:
        """Return its name, its model, and how much it holds."""
        weights = sum(weight.numel() for weight in self.module.parameters())
        return (
            f"<{type(self).__name__} {self.name}: {type(self.module).__name__} of {weights:,} weights, {self.data!r}>"
        )

    def why_not_pickled(self) -> str:
        """Return why a party is not."""
        return (
            f"party {self.name} is not pickled: a pickle would hold its records, and what its hooks remember. Keep "
            "module.state_dict() of its models, and make the party again where it is needed"
        )

    @property
    def models(self) -> tuple[nn.Module, ...]:
        """The models that it trains: first that from which its training messages come, last the one that predicts."""
        return (self.module,)

    def prepare(
        self,
        *,
        seed: int,
        device: torch.device,
        autocast: torch.dtype | None = None,
        wire: torch.dtype | None = None,
    ) -> None:
        """Move to a device, and set the randomness and the precisions, before the first step."""
        self.device, self.autocast, self.wire = device, autocast, wire
        self.module.to(device)
        self.weights.start_optimizer()
        self.random = PartyRandom(seed)
        if device.type == "cuda":
            self.random.use_cuda()

    def computing(self) -> AbstractContextManager[object]:
        """Return the block in which its model is called; no message is waited for inside it."""
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, dtype=self.autocast)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put its models into evaluation mode within a block."""
        # Layer by layer: a layer that its owner froze in evaluation mode stays there.
        modes = [(layer, layer.training) for model in self.models for layer in model.modules()]
        for model in self.models:
            model.eval()
        try:
            yield
        finally:
            for layer, mode in modes:
                layer.training = mode

    def narrowed(self, tensor: Tensor) -> Tensor:
        """Return an activation or a gradient as it crosses, after its defenses."""
        return tensor if self.wire is None else tensor.to(self.wire)

    def received(self, payload: Tensor) -> Tensor:
        """Return what crossed on its own device, and as float32 where it was narrowed on the way."""
        payload = to_device(payload, self.device)
        return payload if self.wire is None else payload.float()

    def train_batch(self, rows: Tensor) -> Records:
        """Return its training records at these positions."""
        return self.data.train.rows(rows).to(self.device)

    def test_batch(self, rows: Tensor) -> Records:
        """Return its test records at these positions."""
        return self.data.test.rows(rows).to(self.device)

    def join(self, team: Team) -> None:
        """Become one worker of several: what is defended as a whole is defended by them together from now on."""
        self.team = self.weights.team = team
        for chain in self.chains().values():
            chain.team = team

    def share_with_workers(self) -> None:
        """Give all workers what worker 0 has drawn at random: its weights; of divided tables each draws its own rows.

        Not those of which each holds a part by now (:meth:`splitvfl.party.weights.PartyWeights.divide`).

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """
        self.team.share([state for model in self.models for state in replicated_state(model).values()])

    def hook_state(self) -> dict[str, Any]:
        """Return the state of its defenses: for its owner only."""
        return {"defenses": {name: chain.state_dict() for name, chain in self.chains().items()}}

    def load_hook_state(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`hook_state` returned."""
        for name, chain in self.chains().items():
            chain.load_state_dict(state["defenses"][name])

    @abstractmethod
    def chains(self) -> dict[str, DefenseChain]:
        """Return the defenses of everything that it sends, by a name for each."""

    @property
    @abstractmethod
    def measurements(self) -> dict[str, float]:
        """Measurements of its defenses in the last training step: ``whose message/defense/measurement``."""

    @property
    def penalised(self) -> dict[str, float]:
        """What each of its penalties was in the last training step, before the weight: ``party/penalty``."""
        return {}

    @property
    def running_totals(self) -> frozenset[str]:
        """Names of what its defenses log that are totals so far."""
        found = (running_totals_of(defense) for chain in self.chains().values() for defense in chain)
        return frozenset().union(*found)

    @property
    def notes(self) -> list[str]:
        """Sentences of its defenses beside the figures of a run, each once."""
        said = [note for chain in self.chains().values() for defense in chain for note in notes_of(defense)]
        return list(dict.fromkeys(said))

    def state_dict(self) -> dict[str, Any]:
        """Return weights as trained and the best ones, optimiser, random state, and the transform of its columns."""
        return {
            **self.weights.state_dict(),
            "random": self.random.state_dict(),
            **({} if self.data.transform is None else {"transform": self.data.transform.tensors()}),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        # Of a party that draws its transform at random, the one that it was trained with so far.
        self.data = self.data.with_transform(transform_of(state["transform"]) if "transform" in state else None)
        self.weights.load_state_dict(state)
        self.random.load_state_dict(state["random"])


class SentActivation(NamedTuple):
    """An activation as it is sent: what :meth:`PassiveParty.send_to_watchers` tells of."""

    message: Tensor
    batch: Records
    step: int
    phase: Phase
    piece: int


class LinearStep(NamedTuple):
    """What the label party holds of one step with linear models: what :attr:`ActiveParty.told_of_steps` is told.

    Attributes:
        batch: Its records.
        columns: What partners' parts of the logits were multiplied with before they were opened, ``(n, k)``, float64;
            ``(n, 0)``: parts came as they are.
        received: Sums ``(k,)``, or parts ``(n,)``, by partner; without those of whom nothing is known apart.
        of_all: The same sums of all partners together, where these are added to what was sent; else empty.
        sent: What each partner gets of each record, ``(n,)``, float64: of the gradient of the mean loss.
        part_weight: What parts are multiplied by that are added to it.
    """

    batch: Records
    columns: Tensor
    received: Mapping[str, Tensor]
    of_all: Tensor
    sent: Mapping[str, Tensor]
    part_weight: float


class PassiveParty(Party):
    """A party with columns and a bottom model, and no labels.

    Args:
        data: Its columns.
        bottom: Its model; input as wide as its columns.
        optimizer: Makes its optimiser out of parameters, or is a :class:`~splitvfl.learning.optimizers.PerParameter`.
            Default: Adam, 1e-3.
        penalties: What it adds to the gradients that its bottom learns from (:mod:`splitvfl.party.penalties`); with a
            weight other than 1 as :class:`~splitvfl.hooks.Weighed`.

    Attributes:
        activation: Defenses of what it sends.
        penalties: What it adds to received gradients.
        observers: Its own attacks on what it receives.
        sent_to: Told of every activation as it is sent to the label party in the clear.
        shown: What its own attacks are shown of a step, as its side of the exchange says.
        one_way: Whether nothing ever comes back to it, so that no attack of its own has anything to look at.
        masks: What hides its part in what it sends for evaluations and scores; ``None``: nothing does.
        tally: What counts the records that it lets be scored; ``None``, as in an experiment: nothing does.

    Raises:
        ArgumentError: If what is to make its optimiser cannot be called.
        HookError: If a penalty needs what no passive party holds.
        ConfigError: If a penalty needs what this one has none of, or the bottom has no weight to be trained.
    """

    def __init__(
        self,
        data: PartyData,
        bottom: nn.Module,
        *,
        optimizer: OptimizerFactory = adam,
        penalties: Sequence[Penalty | Weighed] = (),
    ) -> None:
        super().__init__(data, bottom, optimizer)
        self.bottom = bottom
        self.penalties = Penalties(data, draws=bool(sampled_layers(bottom)))
        if penalties and not any(weight.requires_grad for weight in bottom.parameters()):
            raise ConfigError(
                f"penalties of {self.name}: its bottom model has no weight to be trained, and penalties would change "
                "nothing; take them out"
            )
        for penalty in penalties:
            self.penalties.attach(penalty)
        self.activation = ActivationDefenses(self.name)
        self.observers: list[Observer] = []
        self.sent_to: list[Callable[[SentActivation], None]] = []
        self.shown: Shown = GRADIENTS
        self.one_way = False
        self.masks: SumMasks | None = None
        self.tally: Tally | None = None
        self.batch_ids: Tensor | None = None

    @property
    def shows(self) -> frozenset[str]:
        """View fields that its attacks can have."""
        return self.shown.fields(linear=self.is_linear)

    @property
    def is_linear(self) -> bool:
        """Whether its bottom is one linear layer, on numeric columns."""
        return is_linear(self.bottom) and self.data.train.columns.categorical.shape[1] == 0

    def activate(self, batch: Records) -> Tensor:
        """Return the bottom's output, ``(n, width)``.

        Raises:
            ArgumentError: If it is no matrix of one row per record, or the bottom takes more columns or fewer.
        """
        self.batch_ids = batch.ids
        columns = batch.columns.module_input()
        try:
            with self.computing():
                output: Tensor = self.weights.jointly(lambda: self.bottom(columns))
        except RuntimeError as error:
            refuse_width(f"bottom model of {self.name}", self.bottom, {self.name: columns}, error)
            raise
        if output.dim() != 2 or output.shape[0] != batch.count:
            raise ArgumentError(
                f"the bottom model of {self.name} must put out one row per record: "
                f"expected ({batch.count}, width), got {tuple(output.shape)}"
            )
        return output

    def defend_activation(self, activation: Tensor, batch: Records, step: int, phase: Phase = "training") -> Tensor:
        """Return what is sent instead of the activation, narrowed if it crosses so.

        Raises:
            ProtocolError: If the activation holds NaN or infinite values: nothing is sent.
        """
        if not all_finite(activation):
            raise ProtocolError(
                f"the activation of step {step} of {self.name} holds NaN or infinite values, and was not sent: its "
                "weights are spoiled, by too high a learning rate or by gradients that it was sent"
            )
        chain = self.activation[phase]
        return self.narrowed(chain.apply_together(activation, step=step, ids=batch.ids, labels=None))

    def send_to_watchers(
        self, message: Tensor, batch: Records, step: int, phase: Phase = "training", piece: int = 0
    ) -> None:
        """Tell of an activation that is sent to the label party in the clear.

        Args:
            message: What is sent, after its defenses.
            batch: The records.
            step: Number of the step; in an evaluation of steps done, in a prediction of the message.
            phase: What it is sent for.
            piece: Number of the message in an evaluation or a prediction, from 0.
        """
        for told in self.sent_to:
            told(SentActivation(message, batch, step, phase, piece))

    def awaited_gradient(self, activation: Tensor, step: int, active: str) -> Expected:
        """Return what is awaited of the active party for an activation: a gradient of its shape."""
        return Expected(active, "gradient", step, (self.wire or activation.dtype,), tuple(activation.shape))

    def output_width(self) -> int:
        """Return the width of its activations, which its bottom model shows on one record."""
        part = self.data.train if self.data.train.count else self.data.test
        with self.evaluating(), torch.no_grad():
            return self.activate(part.rows(torch.zeros(1, dtype=torch.int64)).to(self.device)).shape[1]

    def view_source(self, activation: Tensor, batch: Records) -> ViewSource:
        """Return what its own attacks may be shown of a step besides what it receives."""
        return ViewSource(self.bottom, batch.columns.module_input(), activation)

    def attacks_read(self, field: str) -> bool:
        """Return whether one of its own attacks reads this view field."""
        return any(field in observer.needs for observer in self.observers)

    def observe(
        self,
        activation: Tensor,
        batch: Records,
        step: int,
        *,
        source: ViewSource | None = None,
        **received: Tensor,
    ) -> None:
        """Let its observers look at what it received in a step, given by view field, and at what it holds itself.

        Args:
            activation: What the bottom put out.
            batch: The records.
            step: Number of the step.
            source: What it held when the activation was made, if it holds something else now.
            received: What it received.
        """
        if not self.observers:
            return
        source = self.view_source(activation, batch) if source is None else source
        for observer in self.observers:
            observer(self.shown.view(observer.needs, source, received, party=self.name, step=step, ids=batch.ids))

    def learn(
        self,
        activation: Tensor,
        gradient: Tensor,
        batch: Records,
        step: int,
        *,
        used: Tensor | None = None,
        source: ViewSource | None = None,
        share: float | None = None,
    ) -> None:
        """Run the bottom's backward on a received gradient and its penalties', and let its observers look.

        Args:
            activation: What the bottom put out.
            gradient: What was received.
            batch: The records.
            step: Number of the step.
            used: What of the gradient is used, if not all of it.
            source: What it held when the activation was made, if it holds something else now.
            share: What share of that step's records these are, if another step is under way now.

        Raises:
            HookError: If a penalty breaks its contract.
        """
        self.observe(activation, batch, step, source=source, gradient=gradient)
        if activation.requires_grad:  # a frozen bottom, or one without parameters, has nothing to learn
            totals = self.penalties.add_to(
                gradient if used is None else used, activation, batch, step, self.share if share is None else share
            )
            # All at once: what was drawn goes back through what it was drawn from.
            self.weights.jointly(lambda: torch.autograd.backward([*totals], [*totals.values()]))

    def learn_sum(self, activation: Tensor, total: Tensor, batch: Records, step: int) -> None:
        """Take the gradient of a linear bottom's weight, ``(d, width)``, and let its observers look."""
        self.observe(activation, batch, step, aggregated_gradient=total)
        (weight,) = self.bottom.parameters()
        if weight.requires_grad:
            weight.grad = total.T.to(weight.dtype)

    def chains(self) -> dict[str, DefenseChain]:
        """Return the defenses of its activation, by phase."""
        return self.activation.chains()

    @property
    def measurements(self) -> dict[str, float]:
        """Measurements of its activation's defenses in the last training step."""
        return _named(self.name, self.activation["training"])

    @property
    def penalised(self) -> dict[str, float]:
        """What each of its penalties was in the last training step, before the weight: ``party/penalty``."""
        return {f"{self.name}/{name}": value for name, value in self.penalties.values.items()}

    def join(self, team: Team) -> None:
        """Become one worker of several, as :meth:`Party.join`.

        Raises:
            ConfigError: If it has penalties of a batch as a whole.
        """
        if team.size > 1 and (whole := self.penalties.of_a_whole_batch):
            raise ConfigError(
                f"penalties of {self.name}: {', '.join(whole)}: {NO_PENALTIES_OF_WORKERS}; train in one process, or "
                "take it out"
            )
        super().join(team)

    def hook_state(self) -> dict[str, Any]:
        """Return the state of its defenses and of its penalties: for its owner only."""
        return super().hook_state() | {"penalties": self.penalties.state_dict()}

    def load_hook_state(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`hook_state` returned.

        Raises:
            ValueError: If it has other penalties than it had then.
        """
        super().load_hook_state(state)
        self.penalties.load_state_dict(state.get("penalties", NO_STATE))  # runs that began before there were any


def label_releases_of(
    data: PartyData, task: Task | None, *, early_stopping: bool = False, device: torch.device | str = "cpu"
) -> tuple[LabelRelease, ...]:
    """Return what partners of a training see beside messages that is made from labels.

    Args:
        data: The data of a party.
        task: The task whose loss trains what sends; ``None``: a label defense computes that loss.
        early_stopping: Whether labels decide when training ends.
        device: Where the loss computes.
    """
    classes = None if task is None else task.classes
    return releases_of(
        early_stopping=early_stopping,
        selected_by_label=data.selected_by_label,
        stratified=data.seems_stratified,
        class_weights=task is not None
        and classes is not None
        and task.loss.weighs_classes(classes, outputs=task.outputs, device=torch.device(device)),
    )


class ActiveParty(Party):
    """The party that holds the labels and the top model, with or without columns of its own.

    Args:
        data: Its labels, and its columns if it has any.
        top: Its model, which receives the activations of the passive parties and its own columns.
        task: The loss. Default: binary.
        private_top: A second model, called as the first is, which learns from true labels over the same activations
            and columns, sends nothing, and predicts in its place (:mod:`splitvfl.party.top_model`). It shares no
            weight with the first, which alone decides what crosses. ``None``: the first predicts.
        private_optimizer: Makes the private top's optimiser, likewise; only beside one. ``None``: Adam, 1e-2.
        optimizer: Makes its optimiser out of parameters, or is a :class:`~splitvfl.learning.optimizers.PerParameter`.
            Default: Adam, 1e-3.

    Attributes:
        private_top: The second model, with what belongs to it; ``None`` without one.
        sending: Its top, as it is run.
        cuts: One cut layer per passive party, by name.
        widths: Width of what each passive party sends, once they have agreed on it.
        patience: Its judgement of evaluations, where training stops early.
        labels: Defenses that act before the loss.
        scores: Defenses of the predictions that it publishes.
        score_noise: Their noise, if it is memoised; ``None``: it is drawn anew.
        saturated: Fraction of test records whose score was exactly 0 or 1 at the last evaluation; ``None`` before one.
        training_labels: The labels of its training records, and the coins in the place of some.
        told_of_steps: Told what it holds of each step with linear models, before its weights move; nobody as a rule.
        zeros: Ids of the records of the step under way whose residue it sends as a zero, ``(j,)``, where the exchange
            uses some records of a step only; ``None``: it uses all. A secret of its own, by which attacks are judged.

    Raises:
        DataError: If there are no labels, or they are not what the task needs. A party without a training record only
            predicts, and needs none.
        ArgumentError: If the private top shares weights or buffers with the first, or there is an optimiser for one and
            no private top; or what is to make an optimiser cannot be called.
    """

    def __init__(
        self,
        data: PartyData,
        top: nn.Module,
        *,
        private_top: nn.Module | None = None,
        private_optimizer: OptimizerFactory | None = None,
        task: Task | None = None,
        optimizer: OptimizerFactory = adam,
    ) -> None:
        if private_optimizer is not None and private_top is None:
            raise ArgumentError(
                f"private_optimizer: {data.name} has no private top to be trained; give a private_top, or leave it out"
            )
        if private_optimizer is not None:
            check_factory(f"private_optimizer of {data.name}", private_optimizer)
        super().__init__(data, top, optimizer)
        self.top = top
        self.task = task or Binary()
        self.training_labels = TrainingLabels(self)
        self.private_top: PrivateTop | None = None
        self.sending = TopModel(top, self.task, self.computing)
        if private_top is not None:
            self.private_top = PrivateTop(
                private_top, private_optimizer, task=self.task, computing=self.computing, sending=top
            )
            # Of one epoch: the private top is of use only with the bottoms that it learned with.
            self.weights.best = BestWeights(nn.ModuleDict({"top": top, "private_top": private_top}))
        self.cuts = Cuts()
        self.widths: dict[str, int] = {}
        self.patience: Patience | None = None
        self.sums_parts = False
        self.zeros: Tensor | None = None
        self.told_of_steps: list[Callable[[LinearStep], None]] = []
        self.labels = DefenseChain("labels", self.name)
        self.scores = DefenseChain("scores", self.name)
        self.score_noise: MemoisedNoise | None = None
        self.saturated: float | None = None

    def prepare(self, *, seed: int, device: torch.device, **precisions: torch.dtype | None) -> None:
        """Move to a device, and set the randomness and the precisions, as :meth:`Party.prepare`."""
        super().prepare(seed=seed, device=device, **precisions)
        if self.private_top is not None:
            self.private_top.prepare(seed=seed, device=device)
        for cut in self.cuts.values():
            cut.wire = self.wire

    @property
    def learned_shifts(self) -> tuple[str, ...]:
        """Why what was learned are no probabilities of the labels, in sentences; none: they are estimates of these.

        Neither defenses of gradients and activations nor penalties are asked: they change what the bottom models learn,
        and the top learns labels from that. A private top learns true labels whatever defenses make of them.
        """
        return _shifts(self.task, self.labels if self.private_top is None else (), self.task.loss.shifts_scores)

    @property
    def published_shifts(self) -> tuple[str, ...]:
        """Why the scores that it publishes are no probabilities of the labels, though what was learned may be."""
        return _shifts(self.task, self.scores, "")

    @property
    def models(self) -> tuple[nn.Module, ...]:
        """Its top, and its private top if it has one."""
        return (self.top,) if self.private_top is None else (self.top, self.private_top.module)

    @property
    def judged_by(self) -> str:
        """Name of the figure by which evaluations are judged: of the top that sends, as the verdict crosses."""
        return self.task.metric if self.private_top is None else f"{SENDING}{self.task.metric}"

    @property
    def label_releases(self) -> tuple[LabelRelease, ...]:
        """What partners see beside messages that is made from labels: each voids a guarantee for the whole run."""
        task = self.task if self.labels.with_own_loss is None else None
        return label_releases_of(self.data, task, early_stopping=self.patience is not None, device=self.device)

    def connect(self, passive: str) -> CutLayer:
        """Return a new cut layer towards a passive party."""
        self.cuts[passive] = CutLayer(passive, active=self.name)
        self.cuts[passive].wire, self.cuts[passive].gradient.team = self.wire, self.team
        self.cuts[passive].show_received()
        self.cuts[passive].show_top(self.top)
        return self.cuts[passive]

    def stop_early_by(self, settings: EarlyStopping, held_out: range) -> None:
        """Judge every evaluation from now on by the training records at these positions, which are not trained on.

        Raises:
            DataError: If their labels are not fit to judge by: one class only, say.
        """
        self.training_labels.check_held_out(settings, held_out, self.team)
        self.patience = Patience(settings)

    def tell_of_step(self, batch: Records, received: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> None:
        """Tell of a step in the clear: parts of the logits as they are used, and gradients as they are sent.

        Args:
            batch: Its records.
            received: By partner, ``(n, width)``.
            sent: Likewise.
        """
        numbers = [
            {name: values.detach().double().squeeze(1) for name, values in each.items() if values.shape[1] == 1}
            for each in (received, sent)
        ]
        nothing = torch.zeros(batch.count, 0, dtype=torch.float64, device=batch.ids.device)
        for told in self.told_of_steps:
            told(LinearStep(batch, nothing, numbers[0], nothing[0], numbers[1], 0.0))

    def zeros_among(self, ids: Tensor) -> Tensor | None:
        """Return whose residues are zeros by design in the step under way, ``(n,)``, bool; ``None``: nobody's."""
        return None if self.zeros is None else torch.isin(ids.cpu(), self.zeros.cpu())

    def train_batch(self, rows: Tensor) -> Records:
        """Return its training records at these positions, with the labels that are trained on."""
        return self.training_labels.trained_on(super().train_batch(rows), rows)

    def await_activations(self, kind: str, step: int, count: int) -> tuple[Expected, ...]:
        """Return what is awaited of every passive party: a row for each of so many records."""
        if self.wire is not None:
            dtypes: tuple[torch.dtype, ...] = (self.wire,)
        else:
            dtypes = self.sending.dtypes if self.autocast is None else (torch.float32, self.autocast)
        return tuple(
            Expected(name, kind, step, dtypes, (count, self.widths.get(name, _ANY_WIDTH))) for name in self.cuts
        )

    def await_parts(self, kind: str, number: int, count: int) -> tuple[Expected, ...]:
        """Return what is awaited of every passive party for an evaluation or for scores."""
        awaited = self.await_activations(kind, number, count)
        if not self.sums_parts:
            return awaited
        return tuple(replace(one, dtypes=(torch.int64,)) for one in awaited)

    def run_top(self, activations: list[Tensor], batch: Records) -> Tensor:
        """Return the top's outputs, ``(n, k)``; in float32 where the model computes in half precision.

        Raises:
            ArgumentError: If they have not the shape that the task needs.
        """
        columns = own_input(batch)
        try:
            return self.sending.run(activations, columns)
        except RuntimeError as error:
            parts: dict[str, Any] = dict(zip(self.cuts, activations, strict=False))
            refuse_width("top model", self.top, parts if columns is None else {**parts, self.name: columns}, error)
            raise

    def answer(self, batch: Records, step: int) -> tuple[Tensor, Tensor | None]:
        """Return the loss's targets, and what later defenses get in place of the labels (``None``: the labels)."""
        assert batch.labels is not None
        if not len(self.labels):
            # Dummies have a label to train on and to be hidden like the others', and none to be judged by.
            return batch.labels, None if batch.real is None else batch.labels
        targets = self.labels.apply_together(batch.labels, step=step, ids=batch.ids, labels=batch.labels)
        responses = responses_of(targets)
        if self.training_labels.canaries is not None:
            self.training_labels.canaries.note_answers(batch.ids, responses)
        return targets, responses

    def plan_run(self, *, epochs: int) -> None:
        """Tell its defenses what the run will be, before the first step; ``Exchange.plan_run`` does.

        Raises:
            ConfigError: If one of them cannot keep then what it promises of a run.
        """
        values = self.labels.target_values(self.task.classes)
        plan = RunPlan(epochs=epochs, releases=self.label_releases, values=values)
        moved = values if _moved_by_targets(values, self.labels, self.task.loss) else None
        for chain in self.chains().values():
            chain.take_targets(moved)
            chain.plan_run(plan)

    def chains(self) -> dict[str, DefenseChain]:
        """Return the defenses of labels, of scores, and of each passive party's gradient."""
        gradients = {f"gradient/{name}": cut.gradient for name, cut in self.cuts.items()}
        return {"labels": self.labels, "scores": self.scores, **gradients}

    @property
    def measurements(self) -> dict[str, float]:
        """Last measurements of its defenses; those of a gradient under the name of the party that it is for."""
        found = _named(self.name, self.labels) | _named(self.name, self.scores)
        for name, cut in self.cuts.items():
            found |= _named(name, cut.gradient)
        return found

    def share_with_workers(self) -> None:
        """Give all workers what worker 0 has drawn at random: its weights, and its canaries if there are any.

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """
        super().share_with_workers()
        self.training_labels.share_canaries(self.team)

    def hook_state(self) -> dict[str, Any]:
        """Return the state of its defenses, and its canaries: for its owner only."""
        return super().hook_state() | {"canaries": self.training_labels.state_dict()}

    def load_hook_state(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`hook_state` returned.

        Raises:
            ValueError: If the number of canaries is another.
        """
        super().load_hook_state(state)
        self.training_labels.load_state_dict(state["canaries"])

    def state_dict(self) -> dict[str, Any]:
        """Return what any party has, the figures that evaluations are compared with, and what a private top has."""
        patience = None if self.patience is None else self.patience.state_dict()
        private = {} if self.private_top is None else {"private top": self.private_top.state_dict()}
        return {**super().state_dict(), "patience": patience, **private}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If one of the two, this party or that which was saved, has a private top and the other has not.
        """
        if ("private top" in state) != (self.private_top is not None):
            had, has = ("a private top", "none") if "private top" in state else ("no private top", "one")
            raise ValueError(f"it was made with {had} at {self.name}, and this run has {has}")
        super().load_state_dict(state)
        if self.patience is not None:
            self.patience.load_state_dict(state["patience"])
        if self.private_top is not None:
            self.private_top.load_state_dict(state["private top"])


def _shifts(task: Task, defenses: Iterable[Defense], of_loss: str) -> tuple[str, ...]:
    if task.name == "regression" or link_of(task.loss) == "identity":
        return ()
    return tuple(dict.fromkeys(filter(None, [*map(shifts_scores_of, defenses), of_loss])))


def _moved_by_targets(values: tuple[float, ...] | None, labels: DefenseChain, loss: Loss) -> bool:
    """Return whether a label moves its record's row as it moves the target, below a linear model."""
    if values is None or labels.with_own_loss is not None:
        return False
    # What an approximation makes of targets that are no labels need not be linear in them.
    return type(loss) is Logistic or set(values) <= {0.0, 1.0}


def _named(party: str, chain: DefenseChain) -> dict[str, float]:
    return {f"{party}/{name}": value for name, value in chain.measurements.items()}
