"""Split learning in the clear: the activation goes to the label party, and its gradient comes back.

Source: Vepakomma et al., arXiv:1812.00564; the setting of Li et al., ICLR 2022, arXiv:2102.08504.
"""

from __future__ import annotations

from splitvfl.cut.chain import DefenseChain
from splitvfl.data.columns import Records
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange, Side
from splitvfl.exchange.noise import HdpNoiseSettings
from splitvfl.exchange.receiver_clips import NO_CLIPS, ReceiverClips
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.messaging.conversation import Half
from splitvfl.party.own_part import OwnPart, check_own_part
from splitvfl.party.party import ActiveParty, PassiveParty


class Split(Exchange):
    """Activations one way and gradients the other, in the clear: split learning with any model.

    Works with: every model, task and defense.

    Cost: in every step a row of the cut's width each way for each record, in float32; half of that with ``wire: bf16``.

    In a file: ``exchange: {name: split, wire: bf16}``

    Args:
        own_part: What the active party's own weights learn from, of linear models: ``exact`` residues, or what is
            ``sent`` in their place, so that labels move nothing but through that.
        receiver_clips: Bounds that receivers put on what they receive, before use. A statement of privacy rests on them
            where noise is large; ``null``: what arrives is used as it is.
        noise: Noise that is calculated for a privacy loss, of linear models. An experiment attaches it, and sets
            ``receiver_clips`` by it, and nothing else does; ``null``: no noise but that of defenses.
    """

    name = "split"
    in_headings = False
    # Of an exchange of one's own that sets neither.
    receiver_clips: ReceiverClips = NO_CLIPS
    noise: HdpNoiseSettings | None = None
    seen = ("each passive party's logits", "a residue per record")
    has_private_top = True

    def __init__(
        self,
        *,
        own_part: OwnPart = "exact",
        receiver_clips: ReceiverClips | None = None,
        noise: HdpNoiseSettings | None = None,
    ) -> None:
        self.own_part = own_part
        self.noise = noise
        self.receiver_clips = receiver_clips or NO_CLIPS

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party: what receivers clip, if they do."""
        clips = self.receiver_clips
        return super().terms() | ({} if clips == NO_CLIPS else clips.terms())

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
        return _Passive(party, active, self.receiver_clips)

    def _check_noise(self, party: ActiveParty | PassiveParty, *chains: DefenseChain) -> None:
        if self.noise is None or (self.receiver_clips != NO_CLIPS and all(map(len, chains))):
            return
        raise ConfigError(
            f"exchange {self.name}: noise is agreed on, and nothing has attached it at {party.name}, so that what it "
            "sends would be protected by nothing: only an experiment's file calculates noise; take "
            "splitvfl.app.experiment, or leave noise out and give defenses and receiver_clips of your own"
        )


class ActiveSide(Side):
    """The active party's side, whatever passive parties do with their gradients."""

    def __init__(self, party: ActiveParty, own_part: OwnPart = "exact", clips: ReceiverClips = NO_CLIPS) -> None:
        super().__init__()
        self._party, self._own_part, self._clips = party, own_part, clips

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of :func:`active_step`."""
        return active_step(self._party, batch, step, own_part=self._own_part, clips=self._clips)


class _Passive(Side):
    def __init__(self, party: PassiveParty, active: str, clips: ReceiverClips) -> None:
        super().__init__()
        self._party, self._active, self._clips = party, active, clips

    def step(self, batch: Records, step: int) -> Half:
        return passive_step(self._party, batch, step, active=self._active, clips=self._clips)
