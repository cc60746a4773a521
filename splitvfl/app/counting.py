"""Which ledger a passive party counts in, under which limits, and what its records are called there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from splitvfl.app.saved_model import SavedHalf
from splitvfl.config.sections import ExperimentConfig, FoundDefense, PartyConfig
from splitvfl.data.new_records import NamedBy
from splitvfl.errors import ConfigError
from splitvfl.run.answers import Admit, Places
from splitvfl.run.ledger import Admitted, CountedCall, Ledger, ScoredFor, ScoreLimits
from splitvfl.run.ledger_file import LEDGER_FOLDER
from splitvfl.run.record_counts import Marks, record_forms

_NO_IDS: Mapping[NamedBy, str] = {
    "rows": "no ids, only numbers of rows, and how often one was scored cannot be counted; name their column (--id, or "
    "data.id_column; of tables, ingest them with --id)",
    "alignment": "numbers that their alignment drew, and the next one draws others, so that how often one was scored "
    "cannot be counted; score CSV or Parquet files with --aligned, whose own ids are counted, or take per_record out",
    "unknown": "numbers, and no schema.json lies beside their folder that says whether these are ids; score the folder "
    "that `splitvfl ingest` wrote whole, or take per_record out",
}
"""What stands in the way of counting each record."""


def check_own_limits(limits: Mapping[str, int], parties: Mapping[str, PartyConfig], name: str, *, source: str) -> None:
    """Refuse limits in a file that only the label party reads: it sends nothing that they are about.

    Args:
        limits: Those of the file.
        parties: The parties that it names.
        name: Whose file it is.
        source: What it is called in messages.

    Raises:
        ConfigError: If there are any.
    """
    described = {other for other, party in parties.items() if other == name or party.columns}
    if name not in parties or parties[name].role != "active" or len(described) > 1 or not limits:
        return
    named = ", ".join(limits)
    raise ConfigError(
        f"{source}: prediction: {named}: a passive party limits what it lets be scored, in its own file, and at "
        f"{name}, the label party, it would do nothing; take it out here"
    )


def check_single_answers(fewest: int | None, *, source: str) -> None:
    """Refuse a least number of records where single ones are answered.

    Raises:
        ConfigError: If there is one.
    """
    if fewest is not None:
        raise ConfigError(
            f"{source}: prediction.fewest: {fewest}: answers on request are for one record or a few, and a "
            "least number cannot be kept there; score files together with `splitvfl predict`, or take it out"
        )


@dataclass(frozen=True)
class Counting:
    """One passive party's counting.

    Attributes:
        half: Its trained half.
        run: The folder of the run, in which its ledger is.
        partner: The label party.
        scorer: Who computes the scores.
        limits: How much it lets be scored.
        defenses: Those of its file.
        notify: Told in one line what an interrupted process has left behind.
    """

    half: SavedHalf
    run: Path
    partner: str
    scorer: str
    limits: ScoreLimits = field(default_factory=ScoreLimits)
    defenses: Sequence[FoundDefense] = ()
    notify: Callable[[str], None] = lambda line: None

    @classmethod
    def of(
        cls, config: ExperimentConfig, half: SavedHalf, run: Path, notify: Callable[[str], None] = lambda line: None
    ) -> Counting:
        """Return that of a party with a file, which says how much it lets be scored."""
        limits = ScoreLimits(**config.prediction.limits)
        return cls(half, run, config.active, config.scorer, limits, config.found_defenses, notify)

    def ledger(self) -> Ledger:
        """Return the ledger, open.

        Raises:
            CheckpointError: If it is damaged, another's, or cannot be read or written.
        """
        schema = self.half.schema
        where = self.run / LEDGER_FOLDER / schema.party  # several, where one process has all parties
        return Ledger(where, party=schema.party, run=schema.run, limits=self.limits, notify=self.notify)

    def about(self, asked: Literal["predict", "serve"]) -> ScoredFor:
        """Return what stands beside the records."""
        named = tuple(self._defenses())
        return ScoredFor(
            partner=self.partner, asked=asked, model=self.half.schema.digest, defenses=named, scorer=self.scorer
        )

    def _defenses(self) -> list[str]:
        """Return the names of those that act on what this party sends: its part, and scores that it computes."""
        mine = {"activation"} | ({"scores"} if self.scorer == self.half.schema.party else set())
        return [
            hook.name
            for hook, found in self.defenses
            if found.crossing in mine and (found.crossing == "scores" or "prediction" in hook.phases)
        ]

    def marks(self, ledger: Ledger, names: pa.Array, named_by: NamedBy) -> Marks:
        """Return the marks of records by their names.

        Raises:
            ConfigError: If each record is to be scored so often at most, and nobody knows which is which.
        """
        if named_by != "ids" and ledger.limits.per_record is not None:
            raise ConfigError(
                f"prediction.per_record: {ledger.limits.per_record}: the records of {self.half.schema.party} have "
                f"{_NO_IDS[named_by]}"
            )
        return ledger.marks(record_forms(names, rows=named_by != "ids"))

    def admission(self, names: pa.Array, named_by: NamedBy) -> Admit:
        """Return what counts records that are asked for, by their places among these, before they are answered."""
        ledger, about = self.ledger(), self.about("serve")
        marks = self.marks(ledger, names, named_by)

        def admit(places: Places) -> tuple[Admitted, Admitted]:
            return ledger.admit(marks[places], about)

        return admit

    def call(self, names: pa.Array, named_by: NamedBy, *, records: int) -> CountedCall:
        """Return the tally of one prediction.

        Args:
            names: The ids of its records.
            named_by: What these names are.
            records: How many parts leave.
        """
        ledger = self.ledger()
        # What this party sends is the same again to the bit. But who else computes scores may have forgotten what it
        # answered: with another part of the label party's, that is another look.
        again = self.scorer not in (self.partner, self.half.schema.party)
        marks = self.marks(ledger, names, named_by)
        return CountedCall(ledger, marks, self.about("predict"), records=records, again=again)
