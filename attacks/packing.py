"""Label attack of a party that deviates from an encrypted protocol: it reads residues of single records."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.active_packing import PackingEngine
from splitvfl.hooks import View


class PackingAttack:
    """Score every record by minus the residue that a deviating party has unpacked; 0 where it has unpacked none.

    A party that has sums decrypted packs single values into its request (:class:`~splitvfl.attacks.PackingEngine`).
    Name it in the experiment, ``malicious: {lab: packing}``, under an encrypted exchange: that party then asks for as
    many sums as a batch takes, up to ``exchange.encryption.most_columns``, and the run judges what it reads. It also
    says what whole plaintexts would have told, as the published protocol returns them. Here only the bits of the agreed
    sums come back. Under ``attacks`` alone it has nothing to read.

    In a file: ``attacks: [packing]``

    Also called: active packing, packing attack.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, section 5.2, the active packing attack.
    """

    name: ClassVar[str] = "packing"
    explanation: ClassVar[str] = (
        "Deviates from the protocol: asks for single values in place of sums, as many as fit into the bits that come "
        "back. A residue's sign is its record's label. Records that it did not read are guessed."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"packed_values"})
    signed: ClassVar[bool] = True

    @staticmethod
    def engine() -> PackingEngine:
        """Return what a party computes with that deviates so."""
        return PackingEngine()

    def __call__(self, view: View, /) -> Tensor:
        """Return minus the values that were unpacked.

        Args:
            view: Its ``packed_values`` ``(n,)`` are read.

        Returns:
            ``(n,)``, float64.
        """
        values = view.packed_values.double()
        return torch.where(values.isnan(), 0.0, -values)
