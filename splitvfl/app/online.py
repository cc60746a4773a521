"""From the folder of a networked run to one party's part in scoring requests: ``splitvfl serve``."""

from __future__ import annotations

import importlib.util
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from splitvfl.app.addresses import SERVING, AddressBook
from splitvfl.app.counting import Counting, check_own_limits, check_single_answers
from splitvfl.app.http_access import Access, HttpLimits, HttpSettings, access
from splitvfl.app.promised_predictions import NOT_COVERED, AfterTraining, on_request, put_by, was_promised
from splitvfl.app.run_files import CONFIG_FILE, MODEL_FOLDER
from splitvfl.app.saved_model import HALF_FILE, load_half
from splitvfl.app.score_drift import score_shifts, shifts_said
from splitvfl.app.serving import PredictionFiles, defend_predictions, partners_of, records_to_score
from splitvfl.app.serving_noise import (
    KEY_FILE,
    as_bytes,
    drawn_under,
    files_named,
    noise_key,
    noise_settings,
    note_code,
    note_settings,
)
from splitvfl.config.module_sources import Modules, untrusted_run
from splitvfl.config.sections import ExperimentConfig, NetworkConfig, load_config
from splitvfl.data.alignment import read_alignment
from splitvfl.data.columns import NO_RECORDS, PartyData
from splitvfl.data.drift import drift_said
from splitvfl.data.id_column import Case
from splitvfl.data.load import party_of
from splitvfl.data.new_records import NewRecords
from splitvfl.data.record_index import RecordIndex
from splitvfl.errors import ConfigError, PrivacyError
from splitvfl.learning.devices import choose_device
from splitvfl.net.meeting import Meeting
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.answers import Admit, RecordAnswers
from splitvfl.run.ask_limits import AskCounts, AskLimits
from splitvfl.run.online import LabelService, OnlineSettings, RecordService
from splitvfl.system.folder_lock import locked
from splitvfl.system.private_folder import close_folder

if TYPE_CHECKING:
    import uvicorn

    from splitvfl.app.http_service import ScoringApplication

SERVING_FOLDER: Final = "serving"
COUNTS_FILE: Final = "asked.json"

# Partners are waited for again and again, so that a stop need not wait long.
_MEETING_S: Final = 5.0
# What an open request may still take once the service is stopped.
_LAST_REQUESTS_S: Final = 5.0
_LAST_MESSAGE_S: Final = 3.0
# Connections that the kernel keeps until they are taken: while others come in thousands, one that finds no room there
# knocks again after a second. They cost none of the files that the process may open.
_BACKLOG: Final = 1024
_REMEMBERED_LINES: Final = 100
_EXTRA: Final = ("uvicorn", "starlette", "prometheus_client")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """What ``splitvfl serve`` was asked for.

    Attributes:
        http: Where the label party listens for requests; ``None`` at the others.
        records: The party's own records: a file, or tables; the label party can do without.
        id_column: Column that names them. Default: that of the training.
        case: Whether letter case counts in ids. Default: as the alignment of the training says, else it does.
        limits: How many records a passive party looks up.
        most_rows: Records that the label party puts together into one message.
        gather_s: Seconds for which it waits for others to go along.
        timeout_s: Seconds that the partners may take for an answer.
        not_covered: Whether to answer although a training with calculated noise put some by for predictions: it is for
            records that all parties score together.
    """

    http: HttpSettings | None = None
    records: Path | None = None
    id_column: str | None = None
    case: Case | None = None
    limits: AskLimits = field(default_factory=AskLimits)
    most_rows: int = 1024
    gather_s: float = 0.002
    timeout_s: float = 10.0
    not_covered: bool = False


def prepare_service(
    run: Path,
    name: str | None,
    settings: ServeSettings,
    *,
    overrides: tuple[str, ...] = (),
    modules: Modules = None,
    notify: Callable[[str], None] = lambda line: None,
) -> HttpService | PartyService:
    """Return one party's service, ready to be run: everything that can be wrong on its own side has been looked at.

    Args:
        run: The folder of the party's networked run.
        name: The party's name, or ``active``. Default: whose run it is.
        settings: What was asked for.
        overrides: Settings of the run to change.
        modules: Where classes of your own are defined that the run names, as :func:`splitvfl.load_run` takes them.
        notify: Told in one line what happens.

    Raises:
        ConfigError: If settings do not go together, or what is asked for cannot be served.
        PrivacyError: If a defense cannot act on single records.
        DataError: If the records are not as the training records were.
        CheckpointError: If there is no trained half, or it is damaged.
    """
    with untrusted_run(run, modules):
        return _Preparation(run, name, settings, overrides, notify).service()


class OnceEach:
    """Says a line once until the parties are linked again: who waits for a day is not told so every five seconds."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._said: set[str] = set()

    def __call__(self, line: str) -> None:
        """Say a line, unless it has been said."""
        if line.startswith("linked with"):
            self._said.clear()
        if line not in self._said:
            self._said = {*self._said, line} if len(self._said) < _REMEMBERED_LINES else {line}
            self._notify(line)


class _Preparation:
    def __init__(
        self,
        run: Path,
        name: str | None,
        settings: ServeSettings,
        overrides: tuple[str, ...],
        notify: Callable[[str], None],
    ) -> None:
        self.run, self.settings, self.notify = run, settings, OnceEach(notify)
        self.config = _config_of(run, overrides)
        self.half = load_half(_half_folder(run))
        self.name = self.half.schema.party if name is None else self.config.own_name(name)
        self.partners = partners_of(self.half, self.name, self.config.parties, self.config.source)
        self._check_exchange()
        check_own_limits(self.config.prediction.limits, self.config.parties, self.name, source=self.config.source)
        if self.config.train.threads is not None:
            torch.set_num_threads(self.config.train.threads)

    def service(self) -> HttpService | PartyService:
        return self._passive() if self.half.schema.role == "passive" else self._active()

    def _check_exchange(self) -> None:
        section = self.config.exchange
        if section.factory.hides_parts:
            raise ConfigError(
                f"{self.config.source}: exchange {section.name}: {self.name} cannot be served: its parties hide their "
                "parts under masks that are for one use, for records that all of them hold; score files together with "
                "`splitvfl predict`"
            )
        if self.config.scorer != self.config.active:
            raise ConfigError(
                f"{self.config.source}: prediction.scores_by: {self.config.scorer} computes the scores, and requests "
                "are answered by the label party: score files together with `splitvfl predict`, or agree on "
                "prediction.scores_by: active"
            )

    # --- the label party

    def _active(self) -> HttpService:
        if self.settings.http is None:
            raise ConfigError(f"--http: {self.name} is the label party: say where requests come, as in 127.0.0.1:8080")
        _check_installed()
        from splitvfl.app.http_metrics import HttpMetrics
        from splitvfl.app.http_service import ScoringApplication

        door, own = access(self.settings.http), self._records(needed=self.half.schema.encoding is None)
        party = self._party(self._empty_data() if own is None else own.data)
        assert isinstance(party, ActiveParty)
        for line in () if own is None else drift_said({self.name: own.drift}):
            self.notify(line)
        shifts = score_shifts(
            party, self.half, self.config.found_defenses, private_top=self.config.model.recipe.private_top
        )
        for line in shifts_said(shifts):
            self.notify(line)
        model: dict[str, object] = {"run": self.half.schema.run, "step": self.half.schema.step}
        metrics = HttpMetrics(self.name, self.partners, self.half.schema.encoding)
        service = LabelService(
            party,
            self._common(),
            self._meeting(),
            most_rows=self.settings.most_rows,
            gather_s=self.settings.gather_s,
            notify=self.notify,
            observer=metrics,
        )
        application = ScoringApplication(
            service,
            self._reader(party, own),
            door,
            metrics,
            model=model | ({"scores_are_probabilities": False} if shifts else {}),
            timeout_s=1.5 * self.settings.timeout_s,
        )
        return HttpService(self.run, service, application, door, self.notify, self._after(self.partners))

    def _reader(self, party: ActiveParty, own: NewRecords | None) -> Any:
        from splitvfl.app.http_records import OwnRecords, RequestReader

        schema = self.half.schema
        return RequestReader(
            schema.encoding,
            run=schema.run,
            row_norm=party.data.test.row_norm,
            case=self._case,
            id_column=self._id_column,
            own=None if own is None else OwnRecords(party.data.test, self._index(own)),
        )

    def _empty_data(self) -> PartyData:
        """Return the columns that the half was trained on, without a record."""
        from splitvfl.app.http_records import empty_table

        encoding = self.half.schema.encoding
        assert encoding is not None, "without an encoding there are records"
        encoded = encoding.apply(empty_table(encoding), source="no records")
        columns = tuple(fitted.column for fitted in encoding.columns)
        return party_of(self.name, columns, encoded, NO_RECORDS, NO_RECORDS)

    # --- a passive party

    def _passive(self) -> PartyService:
        if self.settings.http is not None:
            raise ConfigError(f"--http: requests come to {self.config.active}, the label party; leave it out here")
        check_single_answers(self.config.prediction.fewest, source=self.config.source)
        own = self._records(needed=True)
        assert own is not None
        party = self._party(own.data)
        assert isinstance(party, PassiveParty)
        folder = self.run / SERVING_FOLDER
        close_folder(folder)
        files = files_named(self.config.found_defenses, "activation")
        settings = drawn_under(folder, self._noise_settings(), {"files": files})
        note_settings(folder, settings, self.notify)
        note_code(folder, self.config.found_defenses, "activation", self.notify)
        answers = RecordAnswers(
            party,
            self._index(own),
            key=noise_key(folder / KEY_FILE, self.notify),
            half=f"{self.name}/{self.half.schema.digest}",
            settings=as_bytes(settings),
            admit=self._admission(own),
        )
        counts = AskCounts(self.settings.limits, folder / COUNTS_FILE)
        for column, rows in own.unknown.items():
            self.notify(f"{column}: {rows} records have a value that training did not know")
        for line in drift_said({self.name: own.drift}):
            self.notify(line)
        limits = self.settings.limits
        self.notify(
            f"{self.config.active} may ask for any id, and is told which of them {self.name} holds: "
            f"{limits.per_minute} records a minute and {limits.per_day} a day at most (--per-minute, --per-day); "
            f"counts are kept in {folder / COUNTS_FILE}"
        )
        if self.config.prediction.limits:
            scored = ", ".join(f"{name}: {limit}" for name, limit in self.config.prediction.limits.items())
            self.notify(f"{self.name} limits what is scored, files and requests together (prediction): {scored}")
        service = RecordService(
            party,
            self.config.active,
            self._common(),
            self._meeting(),
            answers=answers,
            counts=counts,
            notify=self.notify,
        )
        return PartyService(self.run, service, counts, self.notify, self._after([self.name]))

    def _admission(self, own: NewRecords) -> Admit:
        counting = Counting.of(self.config, self.half, self.run, self.notify)
        return counting.admission(own.names, own.named_by)

    def _after(self, passives: Sequence[str]) -> AfterTraining:
        promised = was_promised(self.run, self.config.exchange)
        if promised and put_by(self.run, self.config.exchange) is not None and not self.settings.not_covered:
            raise PrivacyError(
                f"{self.run}: its noise was put by for predictions with splitvfl predict (exchange.noise.predictions), "
                f"and answers on request have none of it: give up what is promised of the training with {NOT_COVERED}"
            )
        released = [on_request(passives, self.config.active)] if promised and passives else []
        return AfterTraining(self.run, released, notify=self.notify)

    def _noise_settings(self) -> dict[str, object]:
        named = self.half.schema.encoding is not None
        return noise_settings(
            self.config.found_defenses,
            source=self.config.source,
            activation_clip=self.config.exchange.activation_clip,
            id_column=self._id_column if named else None,
            case=self._case,
        )

    # --- what both have

    def _records(self, *, needed: bool) -> NewRecords | None:
        """Return the party's own records; ``None`` where it has none, and they come with the requests."""
        given = self.settings.records
        if given is None and not needed:
            return None
        files = PredictionFiles(model=self.half.folder, records=given, id_column=self._id_column)
        if self.half.schema.encoding is not None and self._id_column is None:
            raise ConfigError(f"--id: which column of {given} names the records? Requests ask for them by it")
        return records_to_score(self.config, self.name, self.half, files)

    @property
    def _id_column(self) -> str | None:
        aligned = self.config.data.aligned
        own = self.settings.id_column or self.half.schema.id_column or self.config.id_column_of(self.name)
        return read_alignment(aligned).schema.id_column if own is None and aligned is not None else own

    @property
    def _case(self) -> Case:
        aligned = self.config.data.aligned
        if self.settings.case is not None or aligned is None:
            return self.settings.case or "kept"
        return read_alignment(aligned).schema.case

    def _index(self, own: NewRecords) -> RecordIndex:
        run = self.half.schema.run
        if self.half.schema.encoding is None:
            return RecordIndex.of_numbers(own.data.test.ids.cpu().numpy(), run=run)
        source = f"id column {own.name_column!r} of {self.settings.records}"
        rule = self.half.schema.rule_of_ids
        return RecordIndex.of(own.names, run=run, case=self._case, source=source, rule=rule)

    def _party(self, data: PartyData) -> ActiveParty | PassiveParty:
        config = self.config
        device = choose_device(config.train.device)
        party = self.half.party(data, device=device, own=config.model, own_loss=config.train.loss)
        defend_predictions(party, config.defenses, config.folder, activation_clip=config.exchange.activation_clip)
        return party

    def _common(self) -> OnlineSettings:
        schema = self.half.schema
        network = self.config.network or NetworkConfig()
        return OnlineSettings(
            learned=self.half.learned,
            run=schema.run,
            step=schema.step,
            epoch=schema.epoch,
            case=self._case,
            answer_s=self.settings.timeout_s,
            meeting_s=min(network.message_s, 60.0),
        )

    def _meeting(self) -> Meeting:
        network = self.config.network
        if network is not None:
            short = network.model_copy(update={"meeting_s": min(network.meeting_s, _MEETING_S)})
            self.config = self.config.model_copy(update={"network": short})
        return AddressBook(self.config, self.name, SERVING).meeting(self.notify)


def _config_of(run: Path, overrides: tuple[str, ...]) -> ExperimentConfig:
    path = run / CONFIG_FILE
    if not path.is_file():
        raise ConfigError(
            f"expected the folder of a networked run, as `splitvfl party` writes it (runs/NAME-PARTY), got {run}: "
            f"there is no {CONFIG_FILE} in it"
        )
    return load_config(path, overrides)


def _half_folder(run: Path) -> Path:
    folder = run / MODEL_FOLDER
    together = sorted(path.parent.name for path in folder.glob(f"*/{HALF_FILE}"))
    if together and not (folder / HALF_FILE).exists():
        raise ConfigError(
            f"{run} was trained in one process, and holds the halves of {' and '.join(together)}: serving takes the "
            "run of one party, as `splitvfl party` writes it"
        )
    return folder


def _check_installed() -> None:
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f'serving needs {", ".join(missing)}: pip install "splitvfl[serve]"')


@dataclass(frozen=True, eq=False)
class PartyService:
    """A passive party's service.

    Attributes:
        run_folder: Its run; nobody else works there meanwhile.
        service: Its part.
        counts: What it was asked.
        notify: Told in one line what happens.
        after: What it does to what was promised of the training.
    """

    run_folder: Path
    service: RecordService
    counts: AskCounts
    notify: Callable[[str], None]
    after: AfterTraining

    def run(self) -> None:
        """Answer until Ctrl-C or SIGTERM, which is the usual end.

        Raises:
            SplitVFLError: As :meth:`splitvfl.run.online.RecordService.run`.
        """
        with locked(self.run_folder), suppress(KeyboardInterrupt), self.service.meeting:
            self.after.begin()
            self.service.run()
        today = self.counts.today
        self.notify(
            f"stopped; today {today.asked} records were asked for: {today.held} answered, {today.not_held} not held, "
            f"{today.refused + today.limited} refused"
        )


@dataclass(frozen=True, eq=False)
class HttpService:
    """The label party's service: HTTP in front, the partners behind, each in a thread of its own.

    Attributes:
        run_folder: Its run; nobody else works there meanwhile.
        service: Its part.
        application: What answers requests.
        access: Where it listens.
        notify: Told in one line what happens.
        after: What it does to what was promised of the training.
        limits: How many connections it takes, and how long they may take.
    """

    run_folder: Path
    service: LabelService
    application: ScoringApplication
    access: Access
    notify: Callable[[str], None]
    after: AfterTraining
    limits: HttpLimits = field(default_factory=HttpLimits)

    def server(self) -> uvicorn.Server:
        """Return the web server; it is stopped by its ``should_exit``, or a signal."""
        import uvicorn

        from splitvfl.app.http_server import LimitedServer

        return LimitedServer(
            uvicorn.Config(
                self.application,
                http="h11",
                log_config=None,
                access_log=False,  # paths hold no ids, but nobody is to rely on it
                server_header=False,
                proxy_headers=False,
                ws="none",
                lifespan="off",
                # Of connections there are fewer anyway. It counts requests too: of each connection the one that was
                # answered just now, the next one, and those whose clients have gone.
                limit_concurrency=4 * self.limits.connections,
                timeout_keep_alive=self.limits.idle_s,
                timeout_graceful_shutdown=int(_LAST_REQUESTS_S),
                ssl_certfile=self.access.certificate,
                ssl_keyfile=self.access.key,
            ),
            self.limits,
        )

    def run(self, server: uvicorn.Server | None = None) -> None:
        """Answer until Ctrl-C or SIGTERM, which is the usual end.

        Args:
            server: The web server, if it is made already.

        Raises:
            ConfigError: If the address cannot be listened at, a certificate cannot be used, or another process works in
                the folder.
            SplitVFLError: As :meth:`splitvfl.run.online.LabelService.run`.
        """
        server = server or self.server()
        with locked(self.run_folder), self._listening() as listening, self.service.meeting:
            self._load(server)
            self.after.begin()
            partners = threading.Thread(target=self._ask_partners, args=(server,), name="splitvfl-serve", daemon=True)
            partners.start()
            try:
                with suppress(KeyboardInterrupt):
                    server.run(sockets=[listening])
            finally:
                self.service.stop()
                partners.join(_LAST_MESSAGE_S + self.service.settings.answer_s)
        if self.service.failed is not None:
            raise self.service.failed
        self.notify("stopped; every request that had come was answered")

    @contextmanager
    def _listening(self) -> Iterator[socket.socket]:
        """Take the address, before anybody is met."""
        host, port = self.access.host, self.access.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(f"--http: cannot listen at {host}:{port}: {error.strerror or error}") from error
        with listening:
            # asyncio does it only for sockets that name their protocol, which these do not. Head and body of an answer
            # are two packets, and the second would wait 40 ms for the client to acknowledge the first.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            scheme = "http" if self.access.certificate is None else "https"
            name = f"[{host}]" if ":" in host else host
            self.notify(f"requests: {scheme}://{name}:{listening.getsockname()[1]}/score")
            yield listening

    def _load(self, server: uvicorn.Server) -> None:
        try:
            server.config.load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"--tls-certificate, --tls-key: {self.access.certificate} and {self.access.key} cannot be used "
                f"together: {error}"
            ) from error

    def _ask_partners(self, server: uvicorn.Server) -> None:
        # What went wrong is kept in the service, and raised where the server has ended.
        with suppress(Exception):
            self.service.run()
        server.should_exit = True
