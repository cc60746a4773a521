"""The trainer as users import it: with noise that is calculated for a privacy loss, where an exchange agrees on it."""

from __future__ import annotations

from splitvfl.run import trainer
from splitvfl.run.calculated_noise import CalculatedNoise, Given


class Trainer(trainer.Trainer):
    """A :class:`splitvfl.run.trainer.Trainer`, whose arguments it has, that calculates noise for a privacy loss.

    >>> from functools import partial
    >>> from splitvfl import ActiveParty, PassiveParty, load
    >>> from splitvfl.exchange.noise import HdpNoiseSettings
    >>> from splitvfl.exchange.split import Split
    >>> from splitvfl.learning.optimizers import sgd
    >>> from splitvfl.models import Linear, LinearTop
    >>> data = load("breast-cancer", active=0.5, passive={"lab": "rest"})
    >>> own, other = data.active.with_row_norm(1.0), data["lab"].with_row_norm(1.0)
    >>> steps = partial(sgd, lr=0.1)
    >>> bank = ActiveParty(own, LinearTop(1, active_inputs=own.width, init="zero"), optimizer=steps)
    >>> lab = PassiveParty(other, Linear(other.width, init="zero"), optimizer=steps)
    >>> noise = HdpNoiseSettings(epsilon=1.0, delta=1e-3)
    >>> trainer = Trainer(bank, {"lab": lab}, exchange=Split(noise=noise), epochs=5)
    >>> print(trainer.noise_notes[1].partition(": ")[2])
    all that the party sends in the training is (1, 0.001)-differentially private, towards active.
    """

    @staticmethod
    def calculate(given: Given) -> CalculatedNoise:
        """Return the noise for what was given; it knows models and defenses, and is imported where there is some."""
        from splitvfl.app.python_noise import calculated

        return calculated(given)
