"""One party of a networked run: from its own file to objects, and from objects to a finished run.

As :mod:`splitvfl.app.experiment` is for all parties in one process, and with the same sections; what belongs to other
parties is left out of the file, or not looked at.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from splitvfl.app.exchanges import exchange_of, task_of
from splitvfl.app.experiment import (
    active_model,
    bottom_of,
    bounded,
    check_folder,
    check_private_top,
    choose_device,
    clear_run,
    describe_hook,
    is_barely_begun,
    load_data,
    measurements_of,
    optimizers_of,
    passive_model,
    private_optimizer_of,
    private_top_notes,
    private_top_of,
    seeded,
    top_of,
    write_config,
)
from splitvfl.app.label_horizon import agreed_horizon, before, rate_of
from splitvfl.app.noise import noise_plan
from splitvfl.app.saved_model import Origin, save_half
from splitvfl.config.sections import (
    ExchangeSection,
    ExperimentConfig,
    NetworkConfig,
    PartyConfig,
)
from splitvfl.data.columns import PartyData, TaskName
from splitvfl.data.encoding import FittedEncoding
from splitvfl.data.party_file import load_party
from splitvfl.data.schema import SCHEMA_FILE, read_party_schema
from splitvfl.data.sets import TABLES
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.data.store import open_party
from splitvfl.errors import ArgumentError, ConfigError, DataError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.coordinator import ThirdParty
from splitvfl.exchange.evaluation import EvaluationPlan
from splitvfl.exchange.handshake import TaskSpec, agreed_settings, terms_of
from splitvfl.exchange.roll_call import UNSIGNED, Vouching
from splitvfl.hooks import Attack, hook_name, moment_of, placed, target_of
from splitvfl.leakage.canaries import check_canaries
from splitvfl.leakage.judging import Leak, known_allowed
from splitvfl.leakage.watching import Watch
from splitvfl.learning.batches import BLOCK_ROWS, Batches
from splitvfl.learning.precision import narrow_dtype
from splitvfl.learning.randomness import PartyRandom, derive_seed, entropic_generator
from splitvfl.learning.schedule import Schedule
from splitvfl.learning.tasks import Task
from splitvfl.net.meeting import Meeting, Partner
from splitvfl.net.signing import CertificateSigner
from splitvfl.net.tls import Identity, Plaintext, identities, split_address
from splitvfl.party.attaching import attach_defense, check_clips
from splitvfl.party.party import SENDING, ActiveParty, Party, PassiveParty
from splitvfl.report.summary import AttackResult, ExchangeTraits, PartyResult, RunSummary, known
from splitvfl.run import checkpoint
from splitvfl.run.coordinator import CoordinatorRun
from splitvfl.run.networked import ActiveRun, PassiveRun, RunSettings
from splitvfl.run.seats import NOTHING_COMES_BACK
from splitvfl.run.training import TrainingProgress
from splitvfl.system.folder_lock import locked
from splitvfl.system.private_folder import close_folder, closed_for_writing, private_folder

LOG_EVERY = 10
MODEL_FOLDER = "model"


@dataclass(frozen=True)
class OwnData:
    """What a party brings.

    Attributes:
        data: Its records.
        task: What is learned; ``None`` at a passive party.
        classes: As in :class:`~splitvfl.data.columns.VerticalData`; 0 at a passive party.
        encoding: How the columns of its own file became numbers.
        tables: The folder of its tables, if they come from there.
    """

    data: PartyData
    task: TaskName | None
    classes: int
    encoding: FittedEncoding | None = None
    tables: Path | None = None


def own_name(config: ExperimentConfig, name: str) -> str:
    """Return a party's name; ``active`` stands for that of the active party.

    Raises:
        ConfigError: If the file has no such party.
    """
    if name in config.parties or name == config.exchange.factory.third_party:
        return name
    if name == "active":
        return config.active
    raise ConfigError(f"{config.source}: parties: there is no {name!r}; there are {', '.join(config.parties)} (--as)")


def own_data(config: ExperimentConfig, name: str) -> OwnData:
    """Return what a party holds: of its own file or table folder, or its part of a set that everybody has.

    Raises:
        DataError: If the data are not what the file says.
        ConfigError: If settings contradict each other.
    """
    data, party = config.data, config.parties[name]
    if data.name == TABLES:
        return _own_tables(config, name)
    if data.name == "table":
        return _own_file(config, name)
    whole = load_data(config)
    active = party.role == "active"
    return OwnData(whole[name], whole.task if active else None, whole.classes if active else 0)


def _own_tables(config: ExperimentConfig, name: str) -> OwnData:
    if config.data.path is None:
        raise ConfigError(f"{config.source}: data: {TABLES} need the path of a folder that `splitvfl ingest` wrote")
    folder = Path(config.data.path)
    if (folder / name / SCHEMA_FILE).exists():
        folder = folder / name
    schema = read_party_schema(folder)
    role = config.parties[name].role
    if (schema.name, schema.role) != (name, role):
        raise ConfigError(
            f"{config.source}: {folder} was ingested for {schema.name} as the {schema.role} party, "
            f"and is to be used by {name} as the {role} one"
        )
    active = role == "active"
    return OwnData(open_party(folder), schema.task if active else None, schema.classes if active else 0, tables=folder)


def _own_file(config: ExperimentConfig, name: str) -> OwnData:
    data, party = config.data, config.parties[name]
    if data.path is None:
        raise ConfigError(f"{config.source}: data: expected the path of a CSV or Parquet file")
    if not party.columns:
        raise ConfigError(
            f"{config.source}: parties.{name}.columns: expected names and patterns of {name}'s columns, or rest, "
            "got none; is this another party's file?"
        )
    active = party.role == "active"
    label = (party.label or data.label) if active else None
    known = {"task", "positive", "drop", "id_column", "test_fraction", "split_seed"}
    known |= {"scale", "missing", "categorical", "categorical_columns", "min_count"}
    given = {key: value for key in known if (value := getattr(data, key)) is not None}
    if data.categorical is None and config.model.recipe.takes_fields:
        given["categorical"] = "index"
    claim = PartyClaim(name, party.role, party.columns)
    try:
        found = load_party(TableSpec(source=data.path, label=label, **given), claim, aligned=data.aligned)
    except ArgumentError as error:
        raise ConfigError(f"{config.source}: data: {error}") from error
    return OwnData(found.data, found.task, found.classes, encoding=found.encoding)


# --- where the parties meet


def meeting_of(
    config: ExperimentConfig, name: str, *, notify: Callable[[str], None], purpose: str = "training"
) -> Meeting:
    """Return where a party meets its partners, and for what.

    Raises:
        ConfigError: If the file does not say how, or a certificate is not as it must be.
    """
    network = config.network
    if network is None:
        raise ConfigError(f"{config.source}: network: where do the parties meet? Say listen and certificates")
    partners = _partners(config, name, network, purpose)
    return Meeting(
        name,
        "active" if name == config.active else "passive",
        partners,
        _identity(config, name, network),
        run=f"{network.run or config.active}, {purpose}",
        listen=network.listen,
        wait_s=network.meeting_s,
        notify=notify,
    )


def _partners(config: ExperimentConfig, name: str, network: NetworkConfig, purpose: str) -> tuple[Partner, ...]:
    places = _places(config)
    wanted = [config.active] if name != config.active else [other for other in places if other != name]
    if purpose != "training":
        wanted = [other for other in wanted if other in config.parties]
    names = identities({other: place.identity for other, place in places.items()})
    _check_address(config, "network.listen", network.listen)
    for other in wanted:
        _check_address(config, f"{_section_of(other, config)}.address", places[other].address)
    waiting = [other for other in wanted if places[other].address is None]
    if waiting and network.listen is None:
        raise ConfigError(
            f"{config.source}: how do {name} and {waiting[0]} meet? Give {_section_of(waiting[0], config)}.address, "
            f"where {waiting[0]} is found, or network.listen, where {waiting[0]} finds {name}"
        )
    return tuple(Partner(other, names[other], places[other].address) for other in wanted)


def _places(config: ExperimentConfig) -> dict[str, PartyConfig | ExchangeSection]:
    """Return where each party is found, and who takes part without data."""
    third = config.exchange.factory.third_party
    return {**config.parties, **({} if third is None else {third: config.exchange})}


def _section_of(name: str, config: ExperimentConfig) -> str:
    return f"parties.{name}" if name in config.parties else "exchange"


def _check_address(config: ExperimentConfig, key: str, address: str | None) -> None:
    if address is None:
        return
    try:
        split_address(f"0.0.0.0{address}" if address.startswith(":") and key == "network.listen" else address)
    except ConfigError as error:
        raise ConfigError(f"{config.source}: {key}: {error}") from error


def _identity(config: ExperimentConfig, name: str, network: NetworkConfig) -> Identity | Plaintext:
    if network.plaintext_on_loopback:
        return Plaintext(plaintext_on_loopback=True)
    files = {"folder": network.certificates, "certificate": network.certificate, "key": network.key}
    if network.certificates is None and None in (network.certificate, network.key, network.roots):
        raise ConfigError(
            f"{config.source}: network.certificates: expected a folder with ca.pem, {name}.pem and {name}.key "
            "(splitvfl certs makes some for trials), or certificate, key and roots one by one"
        )
    places = {key: None if value is None else _beside(config, value) for key, value in files.items()}
    roots = None if network.roots is None else _beside(config, network.roots)
    return Identity.load(name, identity=_places(config)[name].identity, roots=roots, **places)


def vouching_of(config: ExperimentConfig, meeting: Meeting, *, purpose: str = "training") -> Vouching:
    """Return how a party proves that keys which the active party passes on are its own, and whose keys it takes.

    Those that its file names take part, and sign with the keys of their certificates. Without certificates nobody does;
    nor where no keys are passed on, and a file need not name others.

    Raises:
        ConfigError: If the others would not accept what this party signs.
    """
    if not config.exchange.factory.hides_parts:
        return UNSIGNED
    places = _places(config)
    names = identities({other: place.identity for other, place in places.items()})
    members = frozenset(places if purpose == "training" else config.parties) - {config.active}
    if isinstance(meeting.credentials, Plaintext):
        return Vouching(members)
    signers = {member: names[member] for member in members}
    return Vouching(members, CertificateSigner(meeting.credentials, signers, run=meeting.run))


def _beside(config: ExperimentConfig, path: str) -> Path:
    """Return a path as a file means it: beside the file, then in the current folder."""
    given = Path(path).expanduser()
    return next((place / given for place in (config.folder, Path.cwd()) if (place / given).exists()), given)


# --- the run


def party_run(
    config: ExperimentConfig,
    name: str,
    folder: Path,
    *,
    own: OwnData | None = None,
    notify: Callable[[str], None] = lambda line: None,
    progress: TrainingProgress = lambda status: None,
) -> ActiveRun | PassiveRun:
    """Return one party's run, ready to be run.

    Args:
        config: Its file.
        name: Its name.
        folder: Where it keeps its run.
        own: What it brings, if that is loaded.
        notify: Told in one line what happens.
        progress: Told of every step.

    Raises:
        ConfigError: If parts do not fit together.
        DataError: If its data are not what the file says.
    """
    _check_defenses(config, name)
    _check_canaries_here(config, name)
    meeting = meeting_of(config, name, notify=notify)
    own = own or own_data(config, name)
    _check_labels_first(config, own)
    settings = _settings(config, own.data, folder, vouching_of(config, meeting))
    if name != config.active:
        return PassiveRun(
            name,
            config.active,
            settings,
            meeting,
            build=lambda learned: _passive(config, own.data, learned),
            notify=notify,
            progress=progress,
        )
    check_private_top(config)
    assert own.task is not None, "labels say what is learned"
    task = task_of(settings.exchange, own.task, own.classes)
    return ActiveRun(
        name,
        [other for other in config.parties if other != name],
        settings,
        meeting,
        learned=TaskSpec(own.task, task.outputs),
        build=lambda widths: _active(config, own, task, widths, notify),
        notify=notify,
        progress=progress,
    )


def _check_labels_first(config: ExperimentConfig, own: OwnData) -> None:
    """Refuse labels that nothing can be learned from before anybody is met, where no partner is to learn of labels.

    Raises:
        DataError: If they are of one class only, say, or those held out are.
    """
    if own.task is None or not config.exchange.factory.one_way:
        return
    exchange = exchange_of(config.exchange, rows=config.train.batch_size)
    party = ActiveParty(own.data, torch.nn.Identity(), task=task_of(exchange, own.task, own.classes))
    if config.train.early_stopping is not None:
        party.stop_early_by(config.train.early_stopping.settings(), _batches(config, own.data).held_out)


def _settings(config: ExperimentConfig, data: PartyData, folder: Path, vouching: Vouching) -> RunSettings:
    train, network = config.train, config.network
    assert network is not None
    stopping = None if train.early_stopping is None else train.early_stopping.settings()
    batches, noise = _batches(config, data), noise_plan(config, data)
    exchange = exchange_of(config.exchange, rows=train.batch_size, noise=noise, vouching=vouching)
    schedule = Schedule(
        batches,
        train.epochs,
        log_every=LOG_EVERY,
        checkpoint_every=train.checkpoint_every_steps,
        evaluate_every=train.evaluate_every_epochs,
    )
    agreed = agreed_settings(
        batch_size=train.batch_size,
        block_rows=batches.block_rows,
        seed=train.seed,
        evaluate_every=train.evaluate_every_epochs,
        early_stopping=stopping,
        exchange=exchange.terms(),
        autocast=narrow_dtype(train.autocast),
        wire=narrow_dtype(config.exchange.wire),
    )
    agreed |= {
        "epochs": train.epochs,
        "checkpoint every": train.checkpoint_every_steps or 0,
        "clip of activations": config.exchange.activation_clip,
        "clip of gradients": config.exchange.gradient_clip,
        **({} if noise is None else noise.terms()),
        **config.model.recipe.terms(),
        **_rate_terms(config),
    }
    # How a party trains alone is its own business; it is not told, and need not be known to anybody.
    shared = (*exchange.terms(), "autocast", "wire", "clip of activations") if exchange.one_way else tuple(agreed)
    own_terms = {key: value for key, value in agreed.items() if key not in shared}
    terms = terms_of(data, {key: agreed[key] for key in shared})
    return RunSettings(
        batches=batches,
        schedule=schedule,
        evaluation=EvaluationPlan(batches.held_out, data.test.count),
        exchange=exchange,
        terms=terms,
        folder=folder,
        message_s=network.message_s,
        retries=network.retries,
        own_terms=own_terms,
    )


def _rate_terms(config: ExperimentConfig) -> dict[str, object]:
    """Return the rate, which must be alike if a norm is agreed: on both rests what a run says of its labels."""
    return {} if config.model.recipe.row_norm is None else {"rate of plain gradient descent": rate_of(config)}


def _batches(config: ExperimentConfig, data: PartyData) -> Batches:
    train, stopping = config.train, config.train.early_stopping
    return Batches(
        data.train.count,
        train.batch_size,
        seed=train.seed,
        block_rows=train.block_rows or (BLOCK_ROWS if config.data.name == TABLES else 1),
        held_out_every=None if stopping is None else stopping.validation_every,
    )


def _active(
    config: ExperimentConfig, own: OwnData, task: Task, widths: Mapping[str, int], notify: Callable[[str], None]
) -> tuple[ActiveParty, Watch]:
    name = own.data.name
    in_order = [widths[other] for other in config.parties if other != name]
    with _initialised(config, name):
        top = top_of(config, own.data, task, in_order)
    with _initialised(config, name, "private top"):
        private_top = private_top_of(config, own.data, task, in_order)
    party = ActiveParty(
        bounded(config, own.data),
        top,
        private_top=private_top,
        private_optimizer=private_optimizer_of(config.train),
        task=task,
        optimizer=optimizers_of(config.train),
    )
    for other in widths:
        party.connect(other)
    party.widths = dict(widths)
    _prepare(config, party)
    if config.train.early_stopping is not None:
        stopping = config.train.early_stopping.settings()
        party.stop_early_by(stopping, _batches(config, own.data).held_out)
    _place_canaries(config, party)
    _defend(config, party)
    party.plan_run(epochs=config.train.epochs, early_stopping=config.train.early_stopping is not None)
    for line in party.promises(config.train.epochs):
        notify(line)
    return party, _watch(config, party)


def _passive(config: ExperimentConfig, data: PartyData, learned: TaskSpec) -> PassiveParty:
    task = task_of(exchange_of(config.exchange, rows=config.train.batch_size), learned.task, learned.outputs)
    with _initialised(config, data.name):
        bottom = bottom_of(config, data, task)
    party = PassiveParty(bounded(config, data), bottom, optimizer=optimizers_of(config.train))
    _prepare(config, party)
    _defend(config, party)
    return party


@contextmanager
def _initialised(config: ExperimentConfig, *name: str) -> Iterator[None]:
    """Draw first weights from entropy: a partner who knew them could compute what they were multiplied with."""
    seed = config.train.private_seed_for_experiments
    if seed is not None:
        with seeded(derive_seed(seed, "initialisation", *name)):
            yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(entropic_generator(torch.device("cpu")).get_state())
        yield


def _prepare(config: ExperimentConfig, party: Party) -> None:
    train, seed = config.train, config.train.private_seed_for_experiments
    own = secrets.randbits(63) if seed is None else derive_seed(seed, "party", party.name)
    party.prepare(
        seed=own,
        device=choose_device(train.device),
        autocast=narrow_dtype(train.autocast),
        wire=narrow_dtype(config.exchange.wire),
    )
    if seed is None:
        party.random = PartyRandom.entropic(party.device)
        if isinstance(party, ActiveParty) and party.private_top is not None:
            party.private_top.random = PartyRandom.entropic(party.device)


def _check_defenses(config: ExperimentConfig, name: str) -> None:
    """Refuse a defense that a party's own file asks for, and that nobody who reads this file would apply.

    In a file that describes other parties too, it may be one of theirs.
    """
    described = [party.role for other, party in config.parties.items() if other == name or party.columns]
    for hook in config.defenses:
        crossing = hook.found("defenses", config.folder).crossing
        if (role := "passive" if crossing == "activation" else "active") not in described:
            raise ConfigError(
                f"{config.source}: defenses: {hook.name} acts on the {crossing} of the {role} party, and would do "
                f"nothing at {name}, which is {config.parties[name].role}; take it out here (splitvfl list defenses)"
            )


def _defend(config: ExperimentConfig, party: Party) -> None:
    """Attach the defenses of this party's own messages; those of other parties are theirs to attach."""
    for number, hook in enumerate(config.defenses):
        defense = hook.found("defenses", config.folder).make()
        attach_defense(
            party, defense, number=number, noise_seed=config.train.noise_seed_for_experiments, phases=hook.phases
        )
    noise = noise_plan(config, party.data)
    for number, given in enumerate([] if noise is None else noise.defenses(), start=len(config.defenses)):
        defense, phases = placed(given)
        seed = config.train.noise_seed_for_experiments
        attach_defense(party, defense, number=number, noise_seed=seed, phases=phases)
    check_clips(party, activation=config.exchange.activation_clip, gradient=config.exchange.gradient_clip)


def _check_canaries_here(config: ExperimentConfig, name: str) -> None:
    """Refuse canaries in the file of a party that can place none; it may be a file of all parties."""
    if config.canaries is None or name == config.active or config.parties[config.active].columns:
        return
    raise ConfigError(
        f"{config.source}: audit.canaries: the label party, {config.active}, places them, and in its file alone they "
        f"stand; here they do nothing, and tell {name} how many there are; take them out"
    )


def _place_canaries(config: ExperimentConfig, party: ActiveParty) -> None:
    if config.canaries is None:
        return
    batches, seed = _batches(config, party.data), config.train.noise_seed_for_experiments
    try:
        exchange = config.exchange.factory
        check_canaries(party.task.name, audit=config.audited, exchange=exchange.name, read=exchange.shows_gradients())
        party.training_labels.place_canaries(config.canaries, batches, noise_seed_for_experiments=seed)
    except (ArgumentError, ConfigError, DataError) as error:
        raise ConfigError(f"{config.source}: audit.canaries: {error}") from error


def _watch(config: ExperimentConfig, party: ActiveParty) -> Watch:
    """Let the partners' attacks look at what the label party sends, as far as it can know what they would see."""
    watch = Watch(party.cuts)
    exchange = config.exchange.factory
    known = dict(zip(("known_positives", "known_negatives"), _known(config, party), strict=True))
    for name, cut in party.cuts.items():
        for hook in config.attacks:
            attack = hook.found("attacks", config.folder).make()
            reason = _unavailable(attack, party, cut.shows, exchange)
            if reason:
                watch.unavailable[name][hook_name(attack)] = reason
                continue
            watch.add(name, cut.watch(attack, canaries=party.canaries, **known))
        if config.audited and party.task.name == "binary" and exchange.shows_gradients():
            watch.audits[name] = cut.audit(canaries=party.canaries)
    return watch


def _known(config: ExperimentConfig, party: ActiveParty) -> tuple[int, int]:
    """Return how many records of each class an attacker is told of."""
    return known_allowed(party.training_labels.judged_records, config.known_positives, config.known_negatives)


def _unavailable(attack: Attack, party: ActiveParty, shows: frozenset[str], exchange: type[Exchange]) -> str:
    """Return why the label party cannot run a partner's attack in its place, or nothing."""
    if target_of(attack) == "features":
        return "it attacks features, with what only an experiment in one process has"
    if party.task.name != "binary":
        return f"needs binary labels, the task is {party.task.name}"
    if moment_of(attack) == "after-training":
        return "needs the partner's model"
    if exchange.one_way:
        return NOTHING_COMES_BACK
    missing = sorted(Leak(attack).needs - shows)
    if exchange.sums_only and not missing:
        return "the partner gets no gradient per record"
    return f"needs the partner's {' and '.join(missing)}" if missing else ""


def coordinator_run(config: ExperimentConfig, *, notify: Callable[[str], None] = lambda line: None) -> CoordinatorRun:
    """Return the run of the party that has the key and no data, ready to be run.

    Args:
        config: Its file, in which data are not looked at.
        notify: Told in one line what happens.

    Raises:
        ConfigError: If parts do not fit together.
    """
    name = config.exchange.factory.third_party
    assert name is not None, "else it is not run"
    meeting, network = meeting_of(config, name, notify=notify), config.network
    vouching = vouching_of(config, meeting)
    exchange = exchange_of(config.exchange, rows=config.train.batch_size, vouching=vouching)
    side = exchange.third_parties(config.active)[name]
    assert isinstance(side, ThirdParty)
    assert network is not None, "else nobody meets"
    return CoordinatorRun(side, meeting, message_s=network.message_s, retries=network.retries, notify=notify)


# --- from beginning to end


def run_party(
    config: ExperimentConfig,
    name: str,
    folder: Path,
    *,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda line: None,
    progress: TrainingProgress = lambda status: None,
) -> tuple[ActiveRun | PassiveRun, RunSummary | None]:
    """Train as one party, go on where an earlier run in the folder left off, and write the trained half.

    The folder is this process's own meanwhile.

    Args:
        config: The party's file.
        name: Its name.
        folder: Where it keeps its run.
        overwrite: Start anew, and replace what the folder holds; all parties must.
        notify: Told in one line what happens.
        progress: Told of every step.

    Returns:
        The finished run, and at the active party its summary.

    Raises:
        ConfigError: If parts do not fit together, or the folder holds something else, or is in use.
        Interrupted: At Ctrl-C, after a checkpoint.
        SplitVFLError: As :meth:`splitvfl.run.networked.PartyRun.run`.
    """
    with locked(folder), closed_for_writing():
        return _run_in(folder, config, name, overwrite=overwrite, notify=notify, progress=progress)


def _run_in(
    folder: Path,
    config: ExperimentConfig,
    name: str,
    *,
    overwrite: bool,
    notify: Callable[[str], None],
    progress: TrainingProgress,
) -> tuple[ActiveRun | PassiveRun, RunSummary | None]:
    going_on = not overwrite and checkpoint.latest(folder / "checkpoints") is not None
    check_folder(folder, config, resume=going_on, overwrite=overwrite or is_barely_begun(folder))
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    own = own_data(config, name)
    noise = noise_plan(config, own.data)
    known = [] if noise is None else noise.notes()
    for line in [*known, *before(None, agreed_horizon(config, own.data.train.count, task=own.task))]:
        notify(line)
    run = party_run(config, name, folder, own=own, notify=notify, progress=progress)
    (private_folder if going_on else close_folder)(folder)
    if not going_on:
        clear_run(folder)
    write_config(folder, config)
    run.run()
    _keep_half(config, own, run, folder / MODEL_FOLDER)
    if not isinstance(run, ActiveRun):
        return run, None
    summary = summarise_run(config, run)
    summary.save(folder)
    return run, summary


def _keep_half(config: ExperimentConfig, own: OwnData, run: ActiveRun | PassiveRun, folder: Path) -> None:
    alone = run.settings.exchange.one_way  # how long it trained, and which epoch was best, is told to nobody later
    learned, passive = run.learned, isinstance(run, PassiveRun)
    task = task_of(run.settings.exchange, learned.task, learned.outputs)
    origin = Origin(
        learned=learned,
        model=passive_model(config, own.data, task) if passive else active_model(config),
        run=run.number,
        step=0 if alone else run.step,
        epoch=0 if alone else run.party.best.epoch or math.ceil(run.step / len(run.settings.batches)),
        encoding=own.encoding,
        id_column=config.data.id_column,
        tables=own.tables,
    )
    save_half(folder, run.party, origin)


def summarise_run(config: ExperimentConfig, run: ActiveRun) -> RunSummary:
    """Return the label party's finished run in numbers: what it could see of its own messages, and of nothing else."""
    party, watch, train = run.party, run.watch, config.train
    noise = noise_plan(config, party.data)
    figures = run.kept or run.figures
    known_positives, known_negatives = _known(config, party)
    parties = {}
    for name in watch.leaks:
        parties[name] = PartyResult(
            attacks={attack: AttackResult.of(found) for attack, found in watch.summaries(name).items()},
            unavailable=dict(watch.unavailable[name]),
            measurements=measurements_of(run.measurements, name),
            canaries=watch.canaries(name),
        ).audited(watch.audits.get(name))
    return RunSummary(
        name=config.name,
        data=config.data.name,
        task=party.task.name,
        model=config.model.name,
        defenses=[*map(describe_hook, config.defenses), *([] if noise is None else [noise.name])],
        exchange=config.exchange.name,
        exchange_traits=ExchangeTraits.of(config.exchange.factory),
        notes=[
            *([] if noise is None else noise.notes()),
            *private_top_notes(party),
            *party.promises(train.epochs),
            *party.notes,
            *watch.notes,
        ],
        seed=train.seed,
        epochs=run.step // len(run.settings.batches),
        planned_epochs=train.epochs if train.early_stopping else None,
        kept_epoch=party.best.epoch,
        validation_metric=known(figures.get(f"validation/{party.judged_by}", math.nan)),
        sending_metric=known(figures.get(f"test/{SENDING}{party.task.metric}", math.nan)),
        steps=run.step,
        batch_size=train.batch_size,
        metric=party.task.metric,
        test_metric=known(figures[f"test/{party.task.metric}"]),
        test_loss=known(figures["test/loss"]),
        step_ms=known(run.step_ms),
        known_positives=known_positives,
        known_negatives=known_negatives,
        parties=parties,
        measurements=measurements_of(run.measurements, party.name),
        canaries=watch.worst_canaries,
        private_top=party.private_top is not None,
    )
