"""What a passive party answers for a record that is asked for by its id: always the same, however often it is asked.

Noise that is drawn anew for every answer averages out: whoever asks for one record a hundred times sees a tenth of it.
So the noise of a record's activation is drawn from a generator of its own, whose state follows from a secret key of the
party, the half, the settings of the defenses, the record's id and its columns, bit for bit. A record whose columns
change gets other noise, or the difference of two answers would have none; and so do all when a setting changes, or of
two answers with noise of two scales the activation could be computed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.data.record_index import RecordIndex
from splitvfl.exchange.online import Answers, Standing
from splitvfl.learning.randomness import keyed_generator, keyed_stream
from splitvfl.party.attaching import check_answers
from splitvfl.party.party import PassiveParty

Places = npt.NDArray[np.int64]
Admitted = npt.NDArray[np.bool_]

Admit = Callable[[Places], tuple[Admitted, Admitted]]
"""Counts records that are about to be answered (:meth:`splitvfl.run.ledger.Ledger.admit`), by their places."""

# As many as are scored together in a file-to-file prediction: what an undefended activation is follows from it, to the
# last bit.
_BLOCK = 4096


class RecordAnswers:
    """The answers of one passive party, computed when they are first asked for, and kept while it serves.

    Without a defense they are those of a file-to-file prediction of the same records, bit for bit. With one, each
    record goes through the model and the defenses alone.

    Args:
        party: The party, ready to predict; its test records are those that it answers for.
        index: Where they are.
        key: Its secret of 32 bytes, from which noise is drawn.
        half: What tells this trained half from every other.
        settings: What tells the settings of the defenses, and of all else that an answer depends on, from every other.
        admit: Asked which records that are held may be answered, before they are. Default: all.

    Raises:
        PrivacyError: If a defense cannot be used so.
    """

    def __init__(
        self,
        party: PassiveParty,
        index: RecordIndex,
        *,
        key: bytes,
        half: str,
        settings: bytes,
        admit: Admit | None = None,
    ) -> None:
        check_answers(party)
        self._party, self._index, self._key, self._half = party, index, key, half.encode()
        self._settings, self._admit = settings, admit
        self._records = party.data.test
        self._chain = party.activation["prediction"]
        self._pristine = self._chain.state_dict()
        self._sent: Tensor | None = None
        self._known = np.zeros(self._records.count, bool)

    def __call__(self, asked: Tensor) -> Answers:
        """Return what is answered to digests of ids, ``(n, 32)`` uint8; the model must be in evaluation mode."""
        places = self._index.find(asked.numpy())
        held = places >= 0
        standing = np.where(held, np.uint8(Standing.HELD), np.uint8(Standing.NOT_HELD))
        if self._admit is not None and held.any():
            let, within = self._admit(places[held])
            refused = np.where(within, np.uint8(Standing.REFUSED), np.uint8(Standing.SCORED_ENOUGH))
            standing[held] = np.where(let, np.uint8(Standing.HELD), refused)
        return Answers(torch.from_numpy(standing), self._rows(places[standing == Standing.HELD]))

    def _rows(self, places: Places) -> Tensor:
        """Return what is sent of the records at these places, ``(n, width)``."""
        unknown = np.unique(places[~self._known[places]])
        if len(self._chain):
            for place in unknown.tolist():
                self._compute_alone(place)
        else:
            for block in np.unique(unknown // _BLOCK).tolist():
                self._compute(torch.arange(block * _BLOCK, min((block + 1) * _BLOCK, self._records.count)))
        if self._sent is None:
            return torch.zeros((0, 1))
        return self._sent.index_select(0, torch.from_numpy(places))

    def _compute_alone(self, place: int) -> None:
        """Compute what is sent of one record, with the noise that belongs to it."""
        rows, digest = torch.tensor([place]), self._index.own[place].tobytes()
        columns = self._records.rows(rows).columns
        about = (self._half, self._settings, digest, _bytes(columns.numeric), _bytes(columns.categorical))
        self._chain.load_state_dict(
            {
                label: {
                    **state,
                    "seed": None,
                    "generator": keyed_generator(self._key, label.encode(), *about).get_state(),
                    "keystream": keyed_stream(self._key, label.encode(), *about).state(),
                }
                for label, state in self._pristine.items()
            }
        )
        self._compute(rows)

    def _compute(self, rows: Tensor) -> None:
        with torch.no_grad():
            activation = self._party.activate(self._party.test_batch(rows)).cpu()
            sent = self._party.defend_activation(activation, self._records.rows(rows), 0, "prediction")
        self._keep(rows, sent)

    def _keep(self, rows: Tensor, sent: Tensor) -> None:
        if self._sent is None:
            self._sent = torch.zeros((self._records.count, sent.shape[1]), dtype=sent.dtype)
        self._sent[rows] = sent
        self._known[rows.numpy()] = True


def _bytes(values: Tensor) -> bytes:
    return values.contiguous().numpy().tobytes()
