"""Split learning in the clear: the activation goes to the label party, and its gradient comes back.

Source: Vepakomma et al., arXiv:1812.00564; the setting of Li et al., ICLR 2022, arXiv:2102.08504.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from splitvfl.cut.chain import DefenseChain
from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.exchange.base import Exchange, Side, check_words
from splitvfl.exchange.in_flight import PassiveInFlight
from splitvfl.exchange.noise import HdpNoiseSettings, checked_noise
from splitvfl.exchange.receiver_clips import NO_CLIPS, ReceiverClips
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.messaging.conversation import Half
from splitvfl.party.own_part import OwnPart, check_own_part
from splitvfl.party.party import ActiveParty, PassiveParty

MOST_IN_FLIGHT = 16
"""How many batches may be under way: each takes memory for an activation, its graph and a copy of weights."""


class Split(Exchange):
    """Activations one way and gradients the other, in the clear: split learning with any model.

    Works with: every model, task and defense.

    Cost: in every step a row of the cut's width each way for each record, in float32; half of that with ``wire: bf16``.

    In a file: ``exchange: {name: split, wire: bf16}``

    Also called: SplitNN, split learning.

    Args:
        own_part: What the active party's own weights learn from, of linear models: ``exact`` residues, or what is
            ``sent`` in their place, so that labels move nothing but through that.
        receiver_clips: Bounds that receivers put on what they receive, before use. A statement of privacy rests on them
            where noise is large; ``null``: what arrives is used as it is.
        noise: Noise that is calculated for a privacy loss, of linear models. An experiment attaches it, and sets
            ``receiver_clips`` by it, as :class:`~splitvfl.app.trainer.Trainer` does with ``epochs``, and nothing else;
            ``null``: no noise but that of defenses.
        in_flight: How many batches may be under way when a passive party begins the next, so that it computes while
            messages travel: its activation of a step comes from weights that have not seen the gradients of so many
            steps before (:mod:`splitvfl.exchange.in_flight`). 0: it waits for each gradient. Not with ``noise``.
    """

    name = "split"
    in_headings = False
    # Of an exchange of one's own that sets neither.
    receiver_clips: ReceiverClips = NO_CLIPS
    noise: HdpNoiseSettings | None = None
    in_flight: int = 0
    seen = ("each passive party's logits", "a residue per record")
    shows_activations = True
    has_private_top = True
    adds_penalties = True

    def __init__(
        self,
        *,
        own_part: OwnPart = "exact",
        receiver_clips: ReceiverClips | None = None,
        noise: HdpNoiseSettings | None = None,
        in_flight: Annotated[int, Field(ge=0, le=MOST_IN_FLIGHT)] = 0,
    ) -> None:
        check_words(own_part=own_part)
        self.noise = checked_noise("noise", noise, HdpNoiseSettings)
        if not 0 <= in_flight <= MOST_IN_FLIGHT:
            raise ArgumentError(f"in_flight must be 0 to {MOST_IN_FLIGHT} batches, got {in_flight}")
        if in_flight and noise is not None:
            raise ConfigError(
                "in_flight: what noise is calculated for is stated of steps that end before the next one begins; leave "
                "in_flight out, or give defenses of your own in the place of noise"
            )
        self.in_flight = in_flight
        self.own_part = own_part
        self.receiver_clips = receiver_clips or NO_CLIPS

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party: what receivers clip, and how many batches are in flight, if any."""
        clips = {} if self.receiver_clips == NO_CLIPS else self.receiver_clips.terms()
        return super().terms() | clips | ({"batches in flight": self.in_flight} if self.in_flight else {})

    def check_shards(self, shards: int) -> None:
        """Check that nothing that is agreed on counts records of a batch.

        Raises:
            ConfigError: If something does, and there are several shards.
        """
        counts = "noise" if self.noise is not None else "receiver_clips" if self.receiver_clips != NO_CLIPS else ""
        if shards > 1 and counts:
            raise ConfigError(
                f"exchange.{counts}: is calculated for batches of one size, and those of {shards} shards differ; leave "
                "it out, or train in one shard"
            )

    def active(self, party: ActiveParty) -> Side:
        """Return the active party's side.

        Raises:
            ConfigError: If it is to learn from what is sent, and its model does not add up logits; or noise was agreed
                on, and none is attached.
        """
        check_own_part(party, self.own_part, self.name)
        self._check_noise(party, *(cut.gradient for cut in party.cuts.values()))
        return ActiveSide(party, self.own_part, self.receiver_clips)

    def passive(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side.

        Raises:
            ConfigError: If noise was agreed on, and none is attached.
        """
        self._check_noise(party, party.activation["training"])
        if self.in_flight:
            return PassiveInFlight(party, active, self.receiver_clips, self.in_flight)
        return _Passive(party, active, self.receiver_clips)

    def _check_noise(self, party: ActiveParty | PassiveParty, *chains: DefenseChain) -> None:
        if self.noise is None or (self.receiver_clips != NO_CLIPS and all(map(len, chains))):
            return
        raise ConfigError(
            f"exchange {self.name}: noise is agreed on, and nothing has attached it at {party.name}, so that what it "
            "sends would be protected by nothing: Trainer(exchange=..., epochs=...) calculates it, and an experiment's "
            "file; take one of them, or leave noise out and give defenses and receiver_clips of your own"
        )


class ActiveSide(Side):
    """The active party's side, whatever passive parties do with their gradients."""

    def __init__(self, party: ActiveParty, own_part: OwnPart = "exact", clips: ReceiverClips = NO_CLIPS) -> None:
        super().__init__()
        self._party, self._own_part, self._clips = party, own_part, clips
        self._coming: tuple[int, ...] = ()

    def look_ahead(self, counts: Sequence[int]) -> None:
        """Take note of how many records the next steps have, whose activations may come during the next one."""
        self._coming = tuple(counts)

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of :func:`active_step`."""
        return active_step(self._party, batch, step, own_part=self._own_part, clips=self._clips, coming=self._coming)


class _Passive(Side):
    def __init__(self, party: PassiveParty, active: str, clips: ReceiverClips) -> None:
        super().__init__()
        self._party, self._active, self._clips = party, active, clips

    def step(self, batch: Records, step: int) -> Half:
        return passive_step(self._party, batch, step, active=self._active, clips=self._clips)
