"""An experiment's claims audited, defense by defense: what ``splitvfl audit`` finds.

It asks what defenses claim with the settings that they have here, checks that the experiment meets what a claim rests
on, and puts each claim to the test on inputs that it makes itself (:mod:`splitvfl.audit`). Nothing is trained. What is
not audited is listed, and is no pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from splitvfl.app.assembly import Assembly
from splitvfl.app.attack_auditing import coins_of, seats_of, try_attacks
from splitvfl.app.audit_ceilings import Guarantees, accounted_claim
from splitvfl.app.experiment import Experiment, prepare
from splitvfl.app.hdp_plan import HdpPlan
from splitvfl.app.plan_auditing import NoisyTraining, audit_plan, unmet_by_columns
from splitvfl.app.run_auditing import audit_run, judge
from splitvfl.audit import ClaimAudit, DefenseAudit, Surroundings, Verdict, audit_defense
from splitvfl.audit.attacks import Seat, Trainings
from splitvfl.audit.ceilings import plain
from splitvfl.audit.defense import DRAWS, claims_to_measure
from splitvfl.claims import Claim, DetectionError, Gaussian, GaussianDP, PureDP, claims_of, sentence
from splitvfl.config.sections import ExperimentConfig, TrainConfig
from splitvfl.data.columns import PartyData
from splitvfl.data.schema import Role
from splitvfl.errors import ArgumentError
from splitvfl.hooks import PHASES, Defense, Phase, crossing_of, placed
from splitvfl.party.attaching import label_promises_of_run, promises_of, void_of
from splitvfl.privacy.statement import not_covered
from splitvfl.report.audit_file import FORMAT, VERSION
from splitvfl.run.training import TrainingProgress

CONFIDENCE: Final = 0.95

_LEAST_DRAWS = 400
# Of wider messages so many columns are looked at: a worst pair of rows differs along one direction.
_WIDEST = 16
_WORST: Sequence[Verdict] = ("violated", "not covered", "not refuted", "proven", "no claim")


@dataclass(frozen=True, slots=True)
class ExperimentAudit:
    """What was found of an experiment.

    Attributes:
        experiment: Its name.
        defenses: One audit for each defense in its order, calculated noise last.
        gaps: What was not audited, in whole sentences.
        notes: What claims about single messages come to over the run, in whole sentences.
        draws: Of each world, for each test.
        confidence: Share of audits in which no true claim is called violated.
        party: Whose messages were audited, of a networked run; ``None``: those of all parties.
        learned: What everybody could learn of everybody, after the first, the tenth and the last epoch.
        trainings: Those that attacks were tried on; ``None``: nothing was trained for that.
    """

    experiment: str
    defenses: tuple[DefenseAudit, ...]
    gaps: tuple[str, ...]
    notes: tuple[str, ...]
    draws: int
    confidence: float = CONFIDENCE
    party: str | None = None
    learned: tuple[Seat, ...] = ()
    trainings: Trainings | None = None

    @property
    def claims(self) -> list[ClaimAudit]:
        """All claims of all defenses."""
        return [claim for defense in self.defenses for claim in defense.claims]

    @property
    def passes(self) -> bool:
        """Whether no claim is violated, and none not covered."""
        return not {"violated", "not covered"} & {claim.verdict for claim in self.claims}

    @property
    def sentence(self) -> str:
        """What was found, in a sentence."""
        if not self.defenses:
            return "No defense makes a claim here: nothing is promised, and nothing was audited."
        found = [claim.verdict for claim in self.claims]
        counts = [f"{found.count(verdict)} {_in_words(verdict)}" for verdict in _WORST if verdict in found]
        return sentence(f"{len(found)} {'statement' if len(found) == 1 else 'statements'}: {', '.join(counts)}")

    def as_json(self) -> dict[str, Any]:
        """Return it as what JSON has."""
        return {
            "format": FORMAT,
            "version": VERSION,
            **plain({one.name: getattr(self, one.name) for one in fields(self) if one.name != "defenses"}),
            "defenses": [defense.as_json() for defense in self.defenses],
            "passes": self.passes,
            "sentence": self.sentence,
        }


def _in_words(verdict: Verdict) -> str:
    return "without a promise of privacy" if verdict == "no claim" else verdict


def audit_experiment(
    config: ExperimentConfig,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    canaries: int | None = None,
    released: Sequence[str] = (),
    seeds: int = 0,
    progress: Callable[[int], TrainingProgress | None] = lambda number: None,
) -> ExperimentAudit:
    """Return what was found of the claims that an experiment's defenses make.

    Args:
        config: The experiment.
        draws: Of each world, for each test, at least 400.
        seed: Of all that is drawn.
        canaries: Train, with coins for the labels of so many records, and judge the run as a whole; default: no
            training, or with ``seeds`` as many as the experiment has, or a tenth of the records, 300 at most.
        released: What crossed since the training, and is not covered by what is promised of it, in sentences.
        seeds: Train under so many seeds, and try all attacks that there are; default: no training for that.
        progress: Called with the number of such a training, from 0, for what is told of its steps.

    Raises:
        ArgumentError: If there are fewer draws.
        ConfigError: If the parts of the experiment do not fit together.
        DataError: If its data are not what the file says.
        PrivacyError: If a defense may not be attached where it is.
    """
    check_draws(draws)
    bench = prepare(config)
    # Attached as in a run, so that what does not fit is refused here too.
    trainer = Experiment(config, bench).trainer()
    assembly = Assembly(config, bench.data.active)
    train, active = config.train, trainer.active
    placed_here = [placed(hook.made("defenses", config.folder)) for hook in config.defenses]
    widths = [party.output_width() for party in trainer.passives.values()]
    around = surroundings(train, classes=active.task.classes, receivers=len(widths), width=min(widths))
    around = replace(around, void=void_of(active))
    readable = config.audited and assembly.exchange.shows_gradients()
    coins = coins_of(bench, canaries=canaries, usual=config.canaries, readable=readable)
    judged = canaries is not None or (seeds > 0 and coins > 0)
    # The page errs with what is stated: half of it is the run's, where one is judged.
    each = (1.0 + CONFIDENCE) / 2.0 if judged else CONFIDENCE
    parties = list(bench.data.passives.values())
    audits = list(of_defenses(parties, placed_here, around, draws, seed, each))
    if assembly.noise is not None:
        audits.append(
            audit_plan(
                assembly.noise,
                NoisyTraining(
                    config.active,
                    train,
                    trainer.exchange,
                    [bench.data.active, *parties],
                    roles=("passive", "active"),
                    released=released,
                    seed=seed,
                ),
            )
        )
    claimed = [claim for chain in active.chains().values() for own in chain for claim in claims_of(own)]
    if void_of(active):
        claimed = [claim for claim in claimed if getattr(claim, "per", "message") != "run"]
    # What releases come to where they add up over the run.
    over_a_run = label_promises_of_run(active, train.epochs, own_part=trainer.exchange.own_part)
    claimed += [total for _, total in over_a_run if isinstance(total, PureDP)]
    plan = assembly.noise if isinstance(assembly.noise, HdpPlan) else None
    if plan is not None and not plan.active.void:
        claimed.append(accounted_claim(plan))
    tried = try_attacks(config, bench, seeds=seeds, coins=coins, progress=progress) if seeds else None
    # Where trainings are read at several moments too, that has half of what may be wrong of them.
    halved = (1.0 + each) / 2.0
    if tried is not None and tried.coins and (read := tried.at_the_end()):
        name = "one run, whole" if tried.count == 1 else f"{tried.count} runs, whole"
        audits.append(DefenseAudit(name, "run", tuple(judge(read, claimed, confidence=halved))))
    elif canaries is not None:
        audits.append(audit_run(config, bench, claimed, canaries=canaries, confidence=each))
    gaps = [gap for audit in audits for gap in audit.gaps]
    claims_here = [claim for defense, _ in placed_here for claim in claims_of(defense)]
    gaps += bare(config.exchange.name, audits, claims_here, roles=("active", "passive"))
    if tried is not None:
        gaps += tried.unavailable
    if not judged:
        gaps.append(
            "A whole run, with what several defenses and messages tell together, is not measured without --canaries."
        )
    notes = promises_of(active, train.epochs, own_part=trainer.exchange.own_part)
    guarantees = Guarantees(trainer, audits, plan, epochs=train.epochs)
    learned, trainings = seats_of(trainer, bench, guarantees, tried, confidence=halved)
    return ExperimentAudit(
        config.name, tuple(audits), tuple(dict.fromkeys(gaps)), tuple(notes), draws,
        learned=learned, trainings=trainings,
    )  # fmt: skip


def check_draws(draws: int) -> None:
    """Refuse fewer draws than a test is learned, chosen and judged with."""
    if draws < _LEAST_DRAWS:
        raise ArgumentError(f"--draws: expected at least {_LEAST_DRAWS}, got {draws}")


def surroundings(train: TrainConfig, *, classes: int | None, receivers: int, width: int) -> Surroundings:
    """Return what defenses meet in an experiment.

    Args:
        train: How it is trained.
        classes: Number of classes; ``None``: labels are numbers.
        receivers: Passive parties.
        width: Columns of the narrowest message.
    """
    return Surroundings(
        classes=classes,
        receivers=receivers,
        epochs=train.epochs,
        width=min(_WIDEST, width),
        seeded=train.noise_seed_for_experiments is not None,
    )


def of_defenses(
    parties: Sequence[PartyData],
    defenses: Sequence[tuple[Defense, tuple[Phase, ...]]],
    around: Surroundings,
    draws: int,
    seed: int,
    confidence: float,
) -> Iterator[DefenseAudit]:
    """Yield what is found of each defense.

    Args:
        parties: Data of the passive parties whose rows are sent.
        defenses: The defenses, with the phases in which each acts.
        around: What they meet.
        draws: Of each world, for each test.
        seed: Of all that is drawn.
        confidence: Share of audits in which no true claim of any of them is called violated.
    """
    tests = sum(claims_to_measure(claims_of(defense)) for defense, _ in defenses)
    # Answers stand for the labels in all of them, wherever the file lists the defense that gives them.
    for defense, _ in defenses:
        if crossing_of(defense) == "labels":
            around = replace(around, targets=getattr(defense, "target_values", None) or ())
    for number, (defense, phases) in enumerate(defenses):
        unmet = _unmet(parties, defense, phases, seeded=around.seeded)
        own = replace(around, label_range=getattr(defense, "label_range", None), unmet=tuple(unmet))
        yield audit_defense(
            defense,
            around=own,
            draws=draws,
            seed=seed + number,
            confidence=confidence,
            tests=tests,
        )


def _unmet(parties: Sequence[PartyData], defense: Defense, phases: tuple[Phase, ...], *, seeded: bool) -> list[str]:
    """Return what a defense's claims rest on and the experiment does not have, in whole sentences."""
    claims, found = claims_of(defense), []
    if seeded:
        found.append("seeded noise")
    if crossing_of(defense) == "activation" and phases != PHASES:
        found.append("evaluation")
    lines = [f"{gap.item.capitalize()}: {gap.reason}." for gap in not_covered(*found)]
    if crossing_of(defense) == "activation" and any(isinstance(claim, Gaussian) for claim in claims):
        lines += [line for party in parties if (line := unmet_by_columns(party))]
    return lines


def _of_labels(claims: Sequence[Claim]) -> bool:
    return any(isinstance(claim, PureDP | GaussianDP | DetectionError) for claim in claims)


# --- what nobody claims


def bare(
    exchange: str, audits: Sequence[DefenseAudit], claimed: Sequence[Claim], *, roles: Sequence[Role]
) -> Iterator[str]:
    """Yield what no defense promises anything of, and what the exchange hides, in whole sentences.

    Args:
        exchange: Name of the experiment's exchange.
        audits: Of its defenses.
        claimed: What they claim.
        roles: Whose messages were audited: labels are protected by the active party, columns by a passive one.
    """
    plan = any(audit.crossing == "exchange" for audit in audits)
    if not plan and "active" in roles and not _of_labels(claimed):
        yield (
            "Labels: no defense promises anything of them. What attacks read of them, splitvfl train measures (audit: "
            "{canaries: 300} without what columns predict)."
        )
    bounded = any(isinstance(claim, Gaussian) and claim.hides_rows for claim in claimed)
    if not plan and "passive" in roles and not bounded:
        yield "Columns: no defense promises anything of them; what scores tell, splitvfl reconstruct measures."
    if exchange != "split":
        yield (
            f"Exchange {exchange}: what it hides, by encryption, by masks or as nothing comes back, is not "
            "audited here."
        )


def shown(value: float | None) -> str:
    """Return a figure of a table."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.3g}"
