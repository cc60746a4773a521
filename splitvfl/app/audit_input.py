"""What ``splitvfl audit`` is given: an experiment, one party's own file, or the folder of a run of either kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from splitvfl.app.run_files import CONFIG_FILE, MODEL_FOLDER
from splitvfl.config.module_sources import Modules, own_folder, untrusted_run
from splitvfl.config.sections import DataConfig, ExperimentConfig, PartyConfig, kept_text, load_config, parse_config
from splitvfl.errors import ConfigError
from splitvfl.report.releases import releases, said_of
from splitvfl.run.half_folder import is_half, read_half_schema


@dataclass(frozen=True)
class AuditInput:
    """What is audited.

    Attributes:
        config: The settings: those of the file, or those that a run kept.
        party: Whose messages; ``None``: those of all parties, in one process.
        folder: Where what is found is kept.
        released: What has crossed since the training of a run with calculated noise, in sentences.
    """

    config: ExperimentConfig
    party: str | None
    folder: Path
    released: tuple[str, ...] = ()


def read_input(path: Path, party: str | None, overrides: Sequence[str] = (), *, modules: Modules = None) -> AuditInput:
    """Return what is to be audited.

    Args:
        path: An experiment, a party's own file, or the folder of a run.
        party: Whose file it is, by name or as ``active``; default: nobody's, or that of the run's half.
        overrides: Settings to change.
        modules: Where classes of your own are defined that a run names, as :func:`splitvfl.load_run` takes them.

    Raises:
        ConfigError: If it is none of these, is damaged, or it is not said whose file it is.
        CheckpointError: If the trained half in the folder is damaged.
    """
    if path.is_dir():
        return _of_run(path, party, overrides, modules)
    if modules:
        raise ConfigError(f"--modules: {path} is an experiment, whose classes are looked for beside it; leave it out")
    config = load_config(path, overrides)
    return AuditInput(config, _whose(config, party, of=str(path)), Path())


def _of_run(folder: Path, party: str | None, overrides: Sequence[str], modules: Modules) -> AuditInput:
    """Return what a run's folder says."""
    path = folder / CONFIG_FILE
    text = kept_text(path)
    if text is None:
        raise ConfigError(
            f"expected an experiment, a YAML file, or the folder of a run, as splitvfl train and splitvfl party write "
            f"it (runs/NAME, runs/NAME-PARTY), got {folder}: there is no {CONFIG_FILE} in it"
        )
    with untrusted_run(folder, modules):
        config = parse_config(text, source=path, overrides=overrides, folder=own_folder(modules))
    half = folder / MODEL_FOLDER
    trained = read_half_schema(half).party if is_half(half) else None
    named = None if party is None else config.own_name(party)
    if trained is not None and named not in (None, trained):
        raise ConfigError(f"--as: {folder} is the folder of {trained}'s run, got {named}; leave it out")
    released = tuple(said_of(releases(folder)))
    return AuditInput(config, _whose(config, trained or named, of=str(folder)), folder, released)


def _whose(config: ExperimentConfig, party: str | None, *, of: str) -> str | None:
    if party is not None:
        return config.own_name(party)
    if config.network is not None and _is_of_one_party(config.data, config.parties):
        raise ConfigError(
            f"--as: {of} describes the columns of one party of a networked run, and not those of all; say whose it is: "
            f"splitvfl audit {of} --as {' or '.join(config.parties)}"
        )
    return None


def _is_of_one_party(data: DataConfig, parties: Mapping[str, PartyConfig]) -> bool:
    """Return whether a file leaves out what other parties have, so that their data cannot be looked at."""
    if data.name != "table":
        return False
    described = [party for party in parties.values() if party.columns or party.path is not None]
    own = next(party.label for party in parties.values() if party.role == "active")
    labelled = (own or data.label) is not None
    passives = [party for party in parties.values() if party.role == "passive"]
    return not labelled or any(party not in described for party in passives)
