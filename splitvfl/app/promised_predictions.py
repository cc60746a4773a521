"""What predicting does to what was promised of a training: said when it happens, and kept with the run.

Noise that was calculated for a training covers what crosses in it. Whatever is predicted with the weights afterwards
shows them: a label party that holds parts of logits solves them for a partner's weights, as good as exactly, and these
depend on the rows that were trained on. Nobody is kept from predicting; it is said, and counted in the run's folder.

Where a training put noise by for predictions (``exchange.noise.prediction_share``), they have noise too, and cost
nothing more until so many records were scored. More are refused, unless that is asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from splitvfl.app.run_files import CONFIG_FILE, kept_settings
from splitvfl.config.registry import built_in
from splitvfl.config.sections import ExchangeSection
from splitvfl.errors import PrivacyError
from splitvfl.party.attaching import attach_defense
from splitvfl.party.party import PassiveParty
from splitvfl.report.releases import Release, Reserve, note_release, reserve_of, use_reserve

NOT_COVERED: Final = "--not-covered"
"""Option with which predictions are made that nothing covers, though noise was put by for some."""


@dataclass
class AfterTraining:
    """What crosses after a training with calculated noise, not yet or already counted.

    Attributes:
        folder: The run's folder, where it is counted.
        released: What crosses; nothing where nothing was promised.
        reserve: What the training put by for predictions; ``None``: nothing.
        beyond: Whether more than that is asked for by name.
        notify: Told in one line what that does to what was promised.
    """

    folder: Path
    released: Sequence[Release]
    reserve: Reserve | None = None
    beyond: bool = False
    notify: Callable[[str], None] = lambda line: None
    _begun: bool = field(default=False, init=False)

    def check(self) -> None:
        """Refuse, before anybody is met, what would be refused then.

        Raises:
            PrivacyError: If more crosses than noise was put by for.
        """
        if self.reserve is not None and self._records > self.reserve.left:
            self._refuse(self.reserve)

    def begin(self) -> None:
        """Count what is about to cross, once, however often links break and it crosses again.

        Raises:
            CheckpointError: If it cannot be counted; nothing may cross then.
            PrivacyError: If more crosses than noise was put by for.
        """
        if self._begun:
            return
        covered = self._use() if self.reserve is not None and self._records else False
        for release in self.released:
            if not (covered and release.is_scored_together):
                note_release(self.folder, release)
                self.notify(f"{release.in_words} It is counted in {self.folder}.")
        self._begun = True

    @property
    def _records(self) -> int:
        return sum(release.records or 0 for release in self.released if release.is_scored_together)

    def _use(self) -> bool:
        """Count records against what was put by, and return whether there was enough."""
        left = use_reserve(self.folder, self._records)
        if left is None:
            self._refuse(reserve_of(self.folder))
            return False
        self.notify(
            f"{self._records:,} records with noise of σ {left.sigma:.3g}, which was put by for them: what is promised "
            f"of the training covers their parts of the logits; {left.left:,} of {left.records:,} are left"
        )
        return True

    def _refuse(self, found: Reserve) -> None:
        if not self.beyond:
            raise PrivacyError(
                f"noise was put by for predictions of {found.records:,} records (exchange.noise.predictions), "
                f"{found.left:,} are left, and {self._records:,} are to be scored; nothing was sent. Score fewer, "
                f"train anew with more, or give up what is promised of the training: {NOT_COVERED}"
            )


def folder_of(model: Path) -> Path:
    """Return the folder of the run that a trained half belongs to; its own, where somebody took it elsewhere.

    Whatever it is called by: through a link, or from within. One of the halves of a run in one process that is used
    over a network has a folder of its own: its own.
    """
    own = model.resolve()
    # As it was named, where that is the same place: people read it.
    parent, same = model.parent, model.parent.resolve() == own.parent
    if (own.parent / CONFIG_FILE).is_file():
        return parent if same else own.parent
    return model if same else own


def was_promised(folder: Path, exchange: ExchangeSection | None) -> bool:
    """Return whether noise was calculated for a training: as its folder says, or the settings at hand.

    Raises:
        ConfigError: If the folder's settings are damaged.
    """
    return getattr(exchange, "noise", None) is not None or bool(_noise_of(folder))


def put_by(folder: Path, exchange: ExchangeSection | None) -> Reserve | None:
    """Return what a training put by for predictions; ``None``: nothing.

    Raises:
        CheckpointError: If it put some by, and nobody knows how much is left.
        ConfigError: If the folder's settings are damaged.
    """
    own = getattr(exchange, "noise", None)
    if getattr(own, "prediction_share", 0.0) or _noise_of(folder).get("prediction_share"):
        return reserve_of(folder)
    return None


def _noise_of(folder: Path) -> dict[str, Any]:
    """Return what the settings in a run's folder say of calculated noise; nothing where there is none."""
    exchange = kept_settings(folder).get("exchange")
    noise = exchange.get("noise") if isinstance(exchange, dict) else None
    return noise if isinstance(noise, dict) else {}


def add_noise(party: PassiveParty, reserve: Reserve, *, number: int) -> None:
    """Let a passive party add the noise that was put by to what it sends in predictions.

    Args:
        party: The party, ready to predict.
        reserve: What was put by.
        number: The noise's place among the party's defenses.
    """
    noise = built_in("defenses")["gaussian-ir"](clip=reserve.clip, sigma=reserve.sigma)
    attach_defense(party, noise, number=number, noise_seed=None, phases=("prediction",))


def parts_of_logits(passives: Sequence[str], active: str, records: int) -> Release:
    """Return what passive parties send of records that are scored."""
    return Release("parts of logits", tuple(passives), (active,), records)


def published(active: str, passives: Sequence[str], records: int) -> Release:
    """Return what the label party tells the others of records that are scored."""
    return Release("published scores", (active,), tuple(passives), records)


def on_request(passives: Sequence[str], active: str) -> Release:
    """Return what passive parties answer, as long as they are asked."""
    return Release("answers on request", tuple(passives), (active,), None)
