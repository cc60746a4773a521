"""The interface of an exchange: how parties take a training step together, and what they must agree on for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from splitvfl.cut.views import GRADIENTS, Shown
from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.exchange.evaluation import Evaluation, EvaluationPlan, active_evaluation
from splitvfl.exchange.noise import HdpNoiseSettings, NoiseSettings, SumNoiseSettings
from splitvfl.learning.losses import Approximation
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.party.attaching import label_promises_of_run
from splitvfl.party.own_part import OwnPart
from splitvfl.party.party import ActiveParty, PassiveParty

if TYPE_CHECKING:
    from splitvfl.crypto.engine import Engine
    from splitvfl.crypto.owner import Owner
    from splitvfl.exchange.selection import SecretBatch

KEPT_FOLDER = "kept"
"""In the folder of a run: what a side keeps of all that crossed before the first step."""

NO_PRIVATE_TOP = (
    "trains no private top: it is a second head on the activation of each record, beside the one whose gradients "
    "cross in the clear; take exchange split, or leave it out"
)

NO_PENALTIES = (
    "has no place for penalties: they are added to a gradient for each record of what a party's own bottom model puts "
    "out, which it does not hand to the party in every step; take exchange split, or leave them out"
)
NO_PENALTIES_BESIDE_NOISE = (
    "what exchange.noise is calculated for is stated of training without penalties; leave one of the two out"
)


def check_words(*, approximation: str = "exact", own_part: str = "exact") -> None:
    """Check settings that are one of a few words.

    Raises:
        ArgumentError: If one is another word.
    """
    for name, given, known in (("approximation", approximation, Approximation), ("own_part", own_part, OwnPart)):
        if given not in get_args(known):
            raise ArgumentError(f"expected {name} one of {', '.join(get_args(known))}, got {given!r}")


class Side(ABC):
    """One party's part in the steps of a run: its halves, and what it keeps between them (keys, say).

    Attributes:
        shown: What attacks of a passive party are shown of a step. A gradient for each record unless it says otherwise.
        columns: At the active party, how many sums each passive party asks for at each step, one for each of its
            columns, once it is opened; empty where none are summed.
    """

    shown: ClassVar[Shown] = GRADIENTS
    columns: Mapping[str, int] = MappingProxyType({})

    def open(self) -> Half:
        """Return its half of what comes before the first step; it may come again, after a link broke."""
        yield Outbox()

    def notes(self) -> list[str]:
        """Return what is to be said before the first step, once it is opened, in sentences; nothing as a rule."""
        return []

    @abstractmethod
    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one training step; its result is the batch's loss at the active party, else ``None``."""

    def drain(self) -> Half:
        """Return its half of what brings to an end what is under way; it comes before evaluations and checkpoints.

        By default nothing is: what a step begins it ends. All parties come to it after the same steps, those that the
        schedule names; whoever is interrupted alone does not, and saves no checkpoint while something is under way.
        """
        yield from ()

    @property
    def under_way(self) -> bool:
        """Whether a step that is done has left something to come, which no checkpoint may hold; as a rule none has."""
        return False

    def look_ahead(self, counts: Sequence[int]) -> None:  # noqa: B027 - most sides are never a step behind
        """Say, before a step, how many records the next ones have that may begin before it has ended.

        Args:
            counts: As many as the exchange has batches in flight, or as come before the next :meth:`drain`.
        """

    def keep_in(self, folder: Path | None) -> None:  # noqa: B027 - most sides keep no files
        """Say in which folder it may keep what lasts between halves; it is told before it is opened.

        Args:
            folder: The run's folder; ``None``: it keeps nothing on disk.
        """

    def evaluation(self, plan: EvaluationPlan, *, epoch: int) -> Evaluation | None:
        """Return an evaluation if the active party can make one alone; ``None``: the parties make it together.

        Args:
            plan: What is evaluated.
            epoch: Number of the epoch that has ended, from 1.
        """
        return None

    def reopen(self) -> None:
        """Go on without the others, with what it kept of them; only an exchange that is one-way can."""
        raise NotImplementedError(f"{type(self).__name__} needs the others in every step")

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it: tensors, numbers, texts, lists and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None:  # noqa: B027 - most sides have no state
        """Take back what :meth:`state_dict` returned."""

    def leave(self) -> Half:
        """Return its half of what comes after the last step of a run."""
        yield from ()

    def owner_of(self, modulus: int) -> Owner | None:
        """Return the owner of the key of a modulus, if it is its own; a side has none as a rule."""
        return None

    def serve(self) -> Half:
        """Return the half of a whole run; only a party without data has one, who ends when the others say so."""
        raise NotImplementedError(f"{type(self).__name__} takes the steps of a schedule")

    def close(self) -> None:  # noqa: B027 - most sides keep nothing
        """Let go of what it keeps, until it is opened again; the second time does nothing."""


def evaluation_of(side: Side, party: ActiveParty, plan: EvaluationPlan, *, step: int, epoch: int) -> Half:
    """Return the active party's half of an evaluation, which it makes alone if its side can.

    Args:
        side: Its side.
        party: The active party.
        plan: What is evaluated.
        step: Number of training steps done.
        epoch: Number of the epoch that has ended, from 1.
    """
    alone = side.evaluation(plan, epoch=epoch)
    if alone is not None:
        return alone
    return (yield from active_evaluation(party, plan, step=step, epoch=epoch))


def checked_side(made: object, exchange: Exchange) -> Side:
    """Return what an exchange made for a party, if it is a side of a step.

    Raises:
        ConfigError: If it is not.
    """
    if not isinstance(made, Side):
        raise ConfigError(
            f"exchange {type(exchange).__name__}: active and passive must each return a Side, got {type(made).__name__}"
        )
    return made


class Exchange(ABC):
    """One way of taking a training step: the same object, or an equal one, at every party.

    One of one's own is named ``module:Class`` in an experiment; its options are the arguments of its constructor. Those
    that are called as in :data:`splitvfl.config.registry.SUPPLIED` no file gives.

    Attributes:
        name: What it is called in experiments, and what parties compare.
        gone: What is said of options that it does not have, and that somebody may expect of it, by option.
        multiplied_by: Which roles multiply with their columns what others have encrypted, and could pack it instead.
        sums_only: Whether a passive party learns only the sum of residue times row, not a gradient per record; it is
            logistic regression then.
        hides_parts: Whether a passive party's part of the logits stays hidden among the others', in scores too.
        shows_activations: Whether the active party receives the activation of each record in the clear, in every
            training step or once in place of all; its side tells
            :meth:`~splitvfl.party.party.PassiveParty.send_to_watchers` of each.
        has_private_top: Whether the active party may train a second top (:mod:`splitvfl.party.top_model`).
        adds_penalties: Whether a passive party learns by :meth:`~splitvfl.party.party.PassiveParty.learn`, which adds
            its penalties to the gradient (:mod:`splitvfl.party.penalties`).
        one_way: Whether everything that crosses crosses before the first step, and nothing comes back: passive parties
            take their leave then, and the active party trains alone.
        draws_records: Whether the active party draws which records of a batch are used, and keeps that secret. A step
            that is taken again uses the same ones, and takes the same messages only: with others, its answers would
            tell which they are.
        third_party: Name of a party without data that takes part; the options ``address`` and ``identity`` say where it
            is found.
        limits_values: Whether what crosses has to keep within agreed limits, which noise of a defense exceeds.
        in_headings: Whether headings of reports name it: all but the usual way of training.
        seen: Of logistic regression, what the active party and what a passive party sees of a step, in words; ``None``
            if it trains other models only.
        approximation: The sigmoid's in the loss whose gradient it computes.
        own_part: What the active party's own weights of a linear model learn from.
        secret_batch: How the active party draws which records of a batch are used; ``None``: it takes them all.
        noise: What is agreed on noise that is calculated for a privacy loss.
        sum_noise: The same, of noise on the sums that the active party opens.
        noise_is_planned: Whether noise was calculated from that.
        bottom: What becomes of the passive parties' bottoms: they are trained, stay as they are initialised
            (``random``), or are principal components (``pca``).
        width: Width of the activations; ``None`` takes the model's.
        most_sums: Largest number of encrypted sums that a party may ask for at each step; 0: none are encrypted.
        in_flight: Batches that may be under way when a step is done (:mod:`splitvfl.exchange.in_flight`).
    """

    name: ClassVar[str]
    gone: ClassVar[Mapping[str, str]] = {}
    multiplied_by: ClassVar[frozenset[Literal["active", "passive"]]] = frozenset()
    sums_only: ClassVar[bool] = False
    hides_parts: ClassVar[bool] = False
    shows_activations: ClassVar[bool] = False
    has_private_top: ClassVar[bool] = False
    adds_penalties: ClassVar[bool] = False
    one_way: ClassVar[bool] = False
    draws_records: ClassVar[bool] = False
    third_party: ClassVar[str | None] = None
    limits_values: ClassVar[bool] = False
    in_headings: ClassVar[bool] = True
    seen: ClassVar[tuple[str, str] | None] = None
    approximation: Approximation = "exact"
    own_part: OwnPart = "exact"
    secret_batch: SecretBatch | None = None
    noise: NoiseSettings | HdpNoiseSettings | None = None
    sum_noise: SumNoiseSettings | None = None
    noise_is_planned: bool = False
    bottom: Literal["trained", "random", "pca"] = "trained"
    width: int | None = None
    most_sums: int = 0
    in_flight: int = 0

    @classmethod
    def shows_gradients(cls) -> bool:
        """Return whether a passive party gets a gradient for each record."""
        return not cls.sums_only and not cls.one_way

    def repeatable(self, seed: int) -> Exchange:
        """Return it with secrets of an experiment, in one process, that follow from a seed: itself, if it draws none.

        Args:
            seed: That of the noise of the experiment (``noise_seed_for_experiments``).
        """
        return self

    def with_engine(self, engine: Engine) -> Exchange:
        """Return it with what one party of an experiment computes with, which deviates: itself, if it encrypts nothing.

        Args:
            engine: In the place of the agreed one.
        """
        return self

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party, by the names under which it is compared."""
        return {"exchange": self.name}

    def notes(self, columns: Mapping[str, int], *, records: int) -> list[str]:
        """Return what it does not hide from passive parties, in sentences; nothing is said as a rule.

        Args:
            columns: How many columns each of them has, by name.
            records: Training records.
        """
        return []

    def check_private_top(self, party: ActiveParty) -> None:
        """Check that a private top, if the active party has one, would be trained.

        Raises:
            ConfigError: If it would not.
        """
        if party.private_top is not None and not self.has_private_top:
            raise ConfigError(f"exchange {self.name} {NO_PRIVATE_TOP} ({party.name} has one)")

    def check_penalties(self, party: PassiveParty) -> None:
        """Check that penalties, if a passive party has any, would act, and void nothing.

        Raises:
            ConfigError: If they would not.
        """
        why = self.refuses_penalties(noise=self.noise is not None)
        if len(party.penalties) and why:
            raise ConfigError(f"penalties of {party.name}: {why}")

    @classmethod
    def refuses_penalties(cls, *, noise: bool) -> str:
        """Return why no party can have penalties; empty if it can.

        Args:
            noise: Whether noise is calculated for a privacy loss.
        """
        if not cls.adds_penalties:
            return f"exchange {cls.name} {NO_PENALTIES}"
        return NO_PENALTIES_BESIDE_NOISE if noise else ""

    @classmethod
    def why_not_malicious(cls, name: str, *, active: str, names: Sequence[str]) -> str:
        """Return why a party cannot deviate by packing; empty if it can.

        Args:
            name: The party's name.
            active: The active party's.
            names: All parties.
        """
        if name not in names:
            return f"expected a party of this experiment, {', '.join(names)}"
        if cls.third_party is not None and name == active:
            return (
                f"in exchange {cls.name} the label party need not pack: it can ask the {cls.third_party} for single "
                "parts, in steps that nobody else takes; name a passive party, or take exchange taylor"
            )
        if cls.multiplied_by & {"active" if name == active else "passive"}:
            return ""
        if cls.multiplied_by:
            return (
                f"in exchange {cls.name} the label party multiplies nothing that others have encrypted, so that it "
                "has nothing to pack; name a passive party, or take exchange taylor"
            )
        return (
            f"exchange {cls.name} encrypts nothing, and packing is of ciphertexts; take exchange residue, taylor or "
            "hybrid"
        )

    def check_shards(self, shards: int) -> None:
        """Check that it takes steps over records that are divided into shards, as those of several workers are.

        Raises:
            ConfigError: If it does not, and there are several: none does but exchange split, as a rule.
        """
        if shards > 1:
            raise ConfigError(
                f"exchange {self.name}: takes no shards: what it counts of a step is of one batch, and under "
                "encryption W workers would open W sums a step, W times as many equations about what is encrypted; "
                "take exchange split"
            )

    def plan_run(self, party: ActiveParty, *, epochs: int) -> None:
        """Tell the defenses of the active party what the run will be, and check what they add, before the first step.

        Args:
            party: The active party.
            epochs: Epochs of the whole run.

        Raises:
            ConfigError: If a defense cannot keep what it promises of the run, or the agreed limit is too low for it.
        """
        party.plan_run(epochs=epochs)
        self.check_noise(party, epochs=epochs)
        totals = label_promises_of_run(party, epochs, own_part=self.own_part)
        if any(isinstance(total, str) for _, total in totals):  # releases of residues that come to no guarantee
            for cut in party.cuts.values():
                cut.gradient.run_void = True

    def check_noise(self, party: ActiveParty, *, epochs: int) -> None:  # noqa: B027 - most have no limit
        """Check that what crosses can hold the noise of defenses at the active party, as far as they tell its size.

        Args:
            party: The active party.
            epochs: Epochs of the whole run.

        Raises:
            ConfigError: If the agreed limit is lower.
        """

    @abstractmethod
    def active(self, party: ActiveParty) -> Side:
        """Return the active party's side.

        Raises:
            ConfigError: If its model or its task is not one that this exchange can train.
        """

    @abstractmethod
    def passive(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side.

        Args:
            party: The party.
            active: Name of the active party.

        Raises:
            ConfigError: If its model is not one that this exchange can train.
        """

    def third_parties(self, active: str) -> Mapping[str, Side]:
        """Return the sides of those that take part without data, by name; nobody does as a rule.

        Args:
            active: Name of the active party.
        """
        return {}
