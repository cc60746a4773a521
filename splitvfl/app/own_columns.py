"""What a passive party's networked run says of its own columns: found by that party alone, when it has trained."""

from __future__ import annotations

from collections.abc import Callable

from splitvfl.app.assembly import Assembly
from splitvfl.app.column_auditing import read_again, thorough_readers
from splitvfl.config.sections import ExperimentConfig, TrainConfig
from splitvfl.hooks import hook_name, reads_activations, reads_steps, reads_whole_model, target_of
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.judging import task_name
from splitvfl.learning.losses import link_of
from splitvfl.metrics import known
from splitvfl.party.attaching import claims_in_words, promised_in_short
from splitvfl.party.party import PassiveParty
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import ExchangeTraits, RunSummary
from splitvfl.run.column_seats import readings_of
from splitvfl.run.feature_seats import own_feature_leaks
from splitvfl.run.feature_systems import LabelParty
from splitvfl.run.networked import PassiveRun
from splitvfl.run.score_seats import NO_WHOLE_MODEL
from splitvfl.run.step_seat import NO_STEPS


def own_summary(
    config: ExperimentConfig,
    assembly: Assembly,
    run: PassiveRun,
    *,
    notify: Callable[[str], None] = lambda line: None,
) -> RunSummary:
    """Return a passive party's run in numbers: what its partner can read of its columns, and nothing else.

    Nothing is sent for it. What could not be looked at is named, with the reason. Of a run that ended before its end it
    says so: of a model that stands still there it reads what it would send with it now.

    Args:
        config: The party's file.
        assembly: What its parts were made by.
        run: Its run.
        notify: Told in a line what is under way, as it may take a while.
    """
    listed = [one for one in assembly.attacks() if target_of(one) == "features"]
    elsewhere = (reads_activations, reads_whole_model, reads_steps)
    attacks = [one for one in listed if not any(reads(one) for reads in elsewhere)]
    readings = readings_of(run.watch, run.name)
    unavailable = dict(run.watch.unavailable[run.name])  # who was never judged among them
    unavailable |= {hook_name(one): NO_WHOLE_MODEL for one in listed if reads_whole_model(one)}
    unavailable |= {hook_name(one): NO_STEPS for one in listed if reads_steps(one)}
    if config.audited:  # whatever could be judged of what was sent
        again, missing = _read_finished(assembly, run.party, notify, active=config.active, settings=config.train)
        readings, unavailable = [*readings, *again], missing | unavailable
    learned = run.learned
    task = assembly.task(learned.task, learned.outputs)
    others = [name for name, party in config.parties.items() if party.role == "passive" and name != run.name]
    seat = _label_party(config.active, others, assembly, run.learned.outputs)
    features = own_feature_leaks(attacks, run.party, seat, unavailable)
    return RunSummary(
        name=config.name,
        seat=run.name,
        data=config.data.name,
        task=task_name(task.classes),
        model=config.model.name,
        defenses=[*map(str, config.defenses)],
        exchange=config.exchange.name,
        exchange_traits=ExchangeTraits.of(config.exchange.factory),
        notes=[*run.party.notes, *run.party.penalties.notes],
        claims=claims_in_words([run.party]),
        promised=promised_in_short([run.party], epochs=config.train.epochs),
        seed=config.train.seed,
        epochs=run.step // len(run.settings.batches),
        steps=run.step,
        batch_size=assembly.batch_size,
        metric=task.metric,
        test_metric=None,
        test_loss=None,
        step_ms=known(run.step_ms),
        known_positives=0,
        label_owner=config.active,
        parties={run.name: PartyResult({}, unavailable=unavailable, features=features, readings=readings)},
        goal=config.goal,
        planned_steps=run.settings.schedule.steps if run.is_broken_off else None,
    )


def _read_finished(
    assembly: Assembly, party: PassiveParty, notify: Callable[[str], None], *, active: str, settings: TrainConfig
) -> tuple[list[ColumnReading], dict[str, str]]:
    """Return what is read of messages of the finished model; a failure is told, as nothing is to be lost by it now."""
    try:
        readers = thorough_readers(assembly, party)
        if readers:
            notify(f"reading what the finished model would send: {', '.join(map(hook_name, readers))}")
        return read_again(assembly, party, readers, active=active, settings=settings)
    except Exception as error:  # whatever it is, the run is over, and its figures are not to be lost
        return [], {"readers of the finished model": f"{type(error).__name__}: {error}"}


def _label_party(name: str, others: list[str], assembly: Assembly, outputs: int) -> LabelParty:
    """Return who sees the party's predictions, as far as its file and the exchange say."""
    recipe, exchange = assembly.recipe, assembly.exchange
    loss = recipe.make_loss()
    readable = loss is None or link_of(loss) is not None
    return LabelParty(
        name=name,
        # A private top, which predicts then, is no sum of the parts that cross; and not all scores are read back.
        logits=outputs if recipe.is_linear and not recipe.private_top and readable else 0,
        others=others,
        all_named=exchange.hides_parts,  # only then a party has to know of all others
        sums=exchange.hides_parts,
    )
