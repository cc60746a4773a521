"""What a party read that deviates from an encrypted protocol: single values in place of the sums that were agreed on.

Its countermeasure stands beside it: the owner of a key returns the low bits of each plaintext that the agreed sums
take, and no more, and an agreement bounds how many sums a party may ask for. The figure says what the deviation read in
a run as it is, and what it would have read if whole plaintexts came back, as in the published protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

from splitvfl.metrics import leak_auc

Strength = Literal["agreed bits", "whole plaintexts"]
"""What comes back of each plaintext: the low bits that agreed sums take, or all of it, as in the published protocol."""

STRENGTHS: Final[tuple[Strength, ...]] = ("agreed bits", "whole plaintexts")

# Of parts of logits, in float32 and fixed point.
_RIGHT: Final = 1e-3


class PackedValues(NamedTuple):
    """What was read of one request: the values of the first records of a batch.

    Attributes:
        modulus: That of the key under which they were encrypted.
        received: Number of values that were received encrypted.
        agreed: Those that the agreed bits returned, ``(k,)``, float64.
        whole: Those that whole plaintexts would have returned, ``(k,)``, float64.
        slots: u, values in a whole plaintext.
        ciphertexts: d, ciphertexts that are decrypted.
        bits: Low bits that come back of all of them together.
    """

    modulus: int
    received: int
    agreed: Tensor
    whole: Tensor
    slots: int
    ciphertexts: int
    bits: int


@dataclass(frozen=True, slots=True)
class PackedReading:
    """What a deviating party read in a run.

    Attributes:
        party: Its name.
        owner: Whose values.
        reads: ``labels`` in residues, or ``parts`` of logits.
        strength: What came back of each plaintext.
        batch_size: Largest number of values that it received encrypted in a step.
        per_step: Most that it read of one step.
        slots: u, values in a whole plaintext.
        ciphertexts: d, ciphertexts that are decrypted in a step.
        records: Training records of which it read a value at least once.
        of: Training records.
        right: Share of what it read that is right: of labels the sign, of parts the number to within 0.001 of the
            largest.
        auc: Of labels the AUC over all training records, of which those that were not read are guessed; else ``None``.
        most_columns: How many sums a party may ask for, as agreed.
        sent: Training records of which it received a value at least once; ``None`` in an older summary.
    """

    party: str
    owner: str
    reads: Literal["labels", "parts"]
    strength: Strength
    batch_size: int
    per_step: int
    slots: int
    ciphertexts: int
    records: int
    of: int
    right: float
    auc: float | None
    most_columns: int
    sent: int | None = None

    @property
    def happened(self) -> bool:
        """Whether it was read in this run, and not only in the published protocol."""
        return self.strength == "agreed bits"

    def sentences(self) -> list[str]:
        """Return it in words, the conclusion first."""
        what = "labels" if self.reads == "labels" else f"{self.owner}'s parts of the logits"
        auc = "" if self.auc is None else f"; leak AUC {self.auc:.4f} over all {self.of:,} records"
        if auc and self.sent is not None and self.sent < self.of:
            auc += f", of which {self.sent:,} were sent to it (the leak of attack packing is over these alone)"
        right = f"{self.right:.1%} of what it reads is right"
        if self.happened:
            return [
                f"{self.party} deviates (packing) and reads {what} of {self.records:,} of {self.of:,} training "
                f"records{auc}; {right}.",
                f"In a step it reads {self.per_step:,} of {self.batch_size:,} values: of each plaintext only the bits "
                "that the agreed sums take come back.",
                f"A party may ask for {self.most_columns:,} sums (exchange.encryption.most_columns); set it to the "
                "features that your partner has.",
            ]
        return [
            f"If whole plaintexts came back, as in the published protocol, {self.party} would read {what} of "
            f"{self.records:,} of {self.of:,}{auc}; {right}.",
            f"A plaintext has {self.slots:,} slots, and a step decrypts {self.ciphertexts:,}: {self.per_step:,} of "
            f"{self.batch_size:,} values.",
        ]


class PackedScores:
    """What was read of one owner's values at one strength, added up over a run.

    Args:
        records: Training records.
    """

    def __init__(self, records: int) -> None:
        self._sums = torch.zeros(records, dtype=torch.float64)
        self._read = torch.zeros(records, dtype=torch.bool)
        self._sent = torch.zeros(records, dtype=torch.bool)
        self._right = self._values = 0
        self._most: tuple[int, int, int, int] = (0, 0, 0, 0)

    def add(
        self, packed: PackedValues, values: Tensor, places: Tensor, truth: Tensor, *, labels: bool, sent: Tensor
    ) -> None:
        """Add the values of a step.

        Args:
            packed: The request.
            values: What was read of its first records, ``(k,)``.
            places: Where these are among the training records, ``(k,)``.
            truth: Their labels in {0, 1}, or their parts of the logits.
            labels: Whether values are residues, whose negative sign is the label; 0 says nothing.
            sent: Where all records of the step are, read or not, ``(n,)``.
        """
        self._sent[sent] = True
        if labels:
            told = values != 0
            right = (values < 0) == (truth == 1)
        else:
            told = torch.ones_like(values, dtype=torch.bool)
            right = (values - truth).abs() <= _RIGHT * truth.abs().max().clamp_min(_RIGHT)
        self._sums.index_add_(0, places[told], -values[told])
        self._read[places[told]] = True
        self._right += int((right & told).sum())
        self._values += int(told.sum())
        sizes = (packed.received, len(values), packed.slots, packed.ciphertexts)
        self._most = tuple(map(max, self._most, sizes))  # type: ignore[assignment]

    def reading(self, labels: Tensor | None, **named: Any) -> PackedReading | None:
        """Return the figure; ``None`` where nothing was read.

        Args:
            labels: Of all training records, where residues were read.
            named: Fields of the figure that are not counted here.
        """
        if not self._values:
            return None
        received, most, slots, ciphertexts = self._most
        return PackedReading(
            batch_size=received,
            per_step=most,
            slots=slots,
            ciphertexts=ciphertexts,
            records=int(self._read.sum()),
            of=len(self._read),
            right=self._right / self._values,
            auc=None if labels is None else leak_auc(self._sums, labels),
            sent=int(self._sent.sum()),
            **named,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all sums."""
        counts = {"right": self._right, "values": self._values, "most": list(self._most)}
        return {"sums": self._sums, "read": self._read, "sent": self._sent, **counts}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._sums, self._read, self._sent = (state[name].clone() for name in ("sums", "read", "sent"))
        self._right, self._values = state["right"], state["values"]
        self._most = tuple(state["most"])
