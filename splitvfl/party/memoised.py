"""Noise on scores that is drawn once for each value, and is the same whenever that value is scored again.

Noise that is drawn anew for every prediction averages out: the mean of m answers has a share 1/m of its variance, and
of a coin two answers that differ tell the middle. Memoised noise is a pseudo-random function of a secret key, the
defenses with their settings, and the record's logits, bit for bit. So the same logits have the same scores, in every
prediction, under whatever id, in whatever order and number of records, under whatever name of the model; and other
logits, be they of the same record, have other noise: with the same, the difference of two answers would have none.

Why the logits and nothing else. Ids are not what a record is known by: a third party has none, those of files without
an id column are row numbers, every alignment draws new ones, and one record can be asked for under two. A model's name
is what the label party says it is: trained on at a rate of zero, the same weights would be another look at every
record. The logits are what the noise hides.

What is not promised. Two records with the same logits have the same answer, and everybody who gets the answers sees
that; a claim about a record for itself would be false, and defenses that make one are refused. Who can change the
logits, as the label party can by its own part of them, gets other noise for every change, and may take the mean over
these: such looks can be counted, and not be told from a record that has changed. Whoever has the key can check guesses
of the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from splitvfl.claims import NoPromise, claims_of
from splitvfl.cut.chain import DefenseChain
from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.hooks import hook_name
from splitvfl.learning.randomness import keyed_generator, keyed_stream
from splitvfl.system.gpu_copies import bytes_of

KEY_BYTES: Final = 32


@dataclass(frozen=True, repr=False)
class MemoisedNoise:
    """What memoised noise follows from, beside the values that it is for.

    Attributes:
        key: A secret of 32 bytes of who adds the noise.
        settings: What tells the defenses with their settings from all others: under two settings and one noise, two
            answers would tell both.

    Raises:
        ArgumentError: If the key has another length.
    """

    key: bytes
    settings: bytes = b""

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ArgumentError(f"expected a key of {KEY_BYTES} bytes, got {len(self.key)}")

    def about(self, more: bytes) -> MemoisedNoise:
        """Return the noise of the same key and settings, and of one more that was learned later."""
        framed = b"".join(len(part).to_bytes(8, "big") + part for part in (self.settings, more))
        return MemoisedNoise(self.key, framed)

    def sources(self, label: str, value: Tensor) -> dict[str, Any]:
        """Return what one defense draws from for a value, as :meth:`DefenseChain.load_state_dict` takes it."""
        # Adding zero makes one of the two zeros, which are equal and differ in a bit.
        content = bytes(bytes_of(value.detach().cpu() + 0.0))
        about = (b"scores", label.encode(), self.settings, str(value.dtype).encode(), content)
        return {
            "seed": None,
            "generator": keyed_generator(self.key, *about).get_state(),
            "keystream": keyed_stream(self.key, *about).state(),
        }


def check_memoised(chain: DefenseChain) -> None:
    """Check that the noise of defenses can be memoised.

    Raises:
        PrivacyError: If one keeps a state, so that it would answer otherwise the second time; or claims something of
            each record for itself, which is false where the same logits have the same noise.
    """
    for defense in chain:
        reason = ""
        if hasattr(defense, "state_dict"):
            reason = "it has a state of its own, and would answer otherwise when a value is scored again"
        elif any(not isinstance(claim, NoPromise) for claim in claims_of(defense)):
            reason = "what it claims of one record is false where records with the same logits have the same noise"
        if reason:
            raise PrivacyError(
                f"{chain.party} cannot memoise the noise of {hook_name(defense)}: {reason}; take another defense of "
                "scores, or draw noise anew for every prediction (prediction.score_noise: fresh)"
            )


def defended_scores(
    chain: DefenseChain,
    noise: MemoisedNoise | None,
    logits: Tensor,
    scores_of: Callable[[Tensor], Tensor],
    *,
    step: int,
    ids: Tensor | None,
) -> Tensor:
    """Return the scores of logits after their defenses, ``(n,)`` or ``(n, k)``.

    Args:
        chain: The defenses of scores.
        noise: Memoised noise, under which each record goes through the defenses alone; ``None``: they draw anew.
        logits: ``(n, k)``.
        scores_of: Makes scores of logits.
        step: Number of the conversation.
        ids: Of the records, ``(n,)``; ``None``: they are not known.

    Raises:
        PrivacyError: If noise is to be memoised and cannot be; nothing is returned.
    """
    if noise is None or not len(chain):
        return chain.apply(scores_of(logits), step=step, ids=ids, labels=None)
    check_memoised(chain)
    before = chain.state_dict()
    found = []
    for row in range(len(logits)):
        own = logits[row : row + 1]
        chain.load_state_dict({label: {**state, **noise.sources(label, own)} for label, state in before.items()})
        # The number of the conversation is nothing that a value is known by.
        found.append(chain.apply(scores_of(own), step=0, ids=None if ids is None else ids[row : row + 1], labels=None))
    chain.load_state_dict(before)
    return torch.cat(found)
