"""A party of several workers: what its file may ask for, who has which folder, and who begins."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from splitvfl.app.records import shard_folder
from splitvfl.config.sections import ExperimentConfig
from splitvfl.data.columns import Shards
from splitvfl.data.digests import SCHEMA
from splitvfl.data.shards import ShardFacts, checked_sizes, facts_of, lie_apart, shard_path
from splitvfl.errors import ConfigError
from splitvfl.hooks import batch_mixing_layer, hook_name
from splitvfl.learning.devices import choose_device
from splitvfl.party.party import ActiveParty, Party
from splitvfl.party.recipe import Recipe
from splitvfl.run.shared_state import collect_json
from splitvfl.team.divided import sharded_tables
from splitvfl.team.team import Alone, Team

# So long one worker may still score when another is done. One that is gone is noticed at once.
_SCORING_S: Final = 7 * 86_400.0
_NO_BOTTOM: Final = "{} has no bottom model, and its workers hold all of what it trains"
# Where a machine has its files.
_PLACES = frozenset({"path", "aligned", "ranges", "matrix", "certificates"})


@contextmanager
def team_of(
    config: ExperimentConfig,
    name: str,
    *,
    notify: Callable[[str], None] = lambda line: None,
    work_s: float | None = None,
) -> Iterator[Team]:
    """Join the workers of a party, of which this process is one; alone, if it is the only one.

    Args:
        config: The party's file.
        name: Its name.
        notify: Told in one line which workers are waited for, if they do not come soon.
        work_s: Seconds for which one worker may work while others wait for it. ``None``: as long as in training, where
            they meet in every step.

    Raises:
        ConfigError: If the file and who started this process do not say the same number of workers.
    """
    workers, started = config.team.workers, os.environ.get("WORLD_SIZE", "1")
    if workers == 1:
        if started != "1":
            raise ConfigError(
                f"{config.source}: team.workers: {started} workers were started, and each party is one process; write "
                f"team: {{workers: {started}}}, alike at all parties, or start it without torchrun"
            )
        yield Alone()
        return
    # Imported late: who trains alone has no use for torch.distributed.
    from splitvfl.team.workers import Workers

    network = config.network
    # A worker may wait for its partners to appear, and then for some messages of each, before it comes to the others.
    wait_s = 3600.0 if network is None else network.meeting_s + 8 * network.message_s * len(config.parties)
    work_s = wait_s if work_s is None else work_s
    with Workers(workers, party=name, environment=os.environ, wait_s=wait_s, work_s=work_s, notify=notify) as team:
        _take_device(team, config.train.device, notify)
        yield team


def _take_device(team: Team, wanted: str, notify: Callable[[str], None]) -> None:
    """Have this worker compute where the file says: on a GPU of its own, as far as its machine has one for each."""
    # As late as the workers themselves.
    from splitvfl.team.gpus import take_gpu

    try:
        device = choose_device(wanted)
        if device.type == "cuda":
            device = take_gpu(os.environ)
    except ConfigError as error:
        team.refuse(str(error), final=True)
        raise
    carried = team.compute_on(device)
    if device.type == "cuda":
        notify(f"worker {team.rank} computes on {device}; gradients are added up by {carried}")


@contextmanager
def team_of_prediction(config: ExperimentConfig, name: str) -> Iterator[Team]:
    """Join the workers of a party for a prediction; alone, if this process was not started as one of several.

    What several workers have trained, one process can score with.

    Raises:
        ConfigError: If several were started, and not as many as the file says.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield Alone()
        return
    with team_of(config, name, work_s=_SCORING_S) as team:
        yield team


def worker_started(workers: int, source: str) -> int | None:
    """Return which of the party's workers this process was started as; ``None`` if nothing says so.

    Args:
        workers: How many the file asks for.
        source: What the file is called in messages.

    Raises:
        ConfigError: If the file and who started this process do not say the same number of workers.
    """
    started, rank = (os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK"))
    if not rank:
        return None
    if started != str(workers) or not rank.isdecimal() or int(rank) >= workers:
        raise ConfigError(
            f"{source}: team.workers is {workers}, and this process was started as worker {rank} of "
            f"{started or '?'} (RANK, WORLD_SIZE)"
        )
    return int(rank)


def said_of_team(team: Team, environment: Mapping[str, str]) -> list[str]:
    """Return what is to be said before several workers begin, in sentences.

    Args:
        team: The workers.
        environment: Where the launcher's variables are.
    """
    if team.size == 1:
        return []
    lines = [f"{team.size} workers, each with a shard of the records; this one is worker {team.rank}"]
    host = environment.get("MASTER_ADDR", "")
    if is_public(host):
        lines.append(
            f"MASTER_ADDR {host} is a public address: between workers nothing is encrypted, and whoever reaches them "
            "reads and changes weights; join them in a private network"
        )
    return lines


def is_public(host: str) -> bool:
    """Return whether a host has an address that anybody can reach; not of one whose name says nothing here."""
    try:
        found = socket.getaddrinfo(host, None) if host else []
    except OSError:
        return False
    return any(ipaddress.ip_address(str(one[4][0]).partition("%")[0]).is_global for one in found)


def check_replicable(party: Party, source: str) -> None:
    """Refuse a model whose replicas would not stay equal, as that of a file which is called so in messages.

    Raises:
        ConfigError: If a layer of it keeps something of the records of a batch, of which each worker has others; or a
            defense draws what the top learns from, of which each worker has a part.
    """
    layer = next(filter(None, map(batch_mixing_layer, party.models)), None)
    if layer is not None:
        raise ConfigError(
            f"{source}: model: {layer} mixes the records of a batch, and each worker of {party.name} has its "
            "part of it only, so that workers would no longer be equal; LayerNorm or GroupNorm keep records apart"
        )
    if party.weights.divides and getattr(party.weights.optimizer, "radius", None) is not None:
        raise ConfigError(
            f"{source}: model.dense: sharded: train.optimizer.radius bounds all weights of {party.name} "
            "together, of which each worker has a part; leave one of them out"
        )
    for cut in party.cuts.values() if isinstance(party, ActiveParty) else ():
        if cut.gradient.draws_at_output:
            raise ConfigError(
                f"{source}: defenses: one of {', '.join(map(hook_name, cut.gradient))} draws what the top "
                "learns from, of which each worker has a part only; take per: message, or train in one process"
            )


def said_of_divided(party: Party, recipe: Recipe) -> list[str]:
    """Return what is to be said of the weights that one worker of several holds a part of, in sentences."""
    lines = []
    tables = [table for model in party.models for table in sharded_tables(model).values()]
    if tables:
        held, count = sum(len(table.rows) for table in tables), sum(table.count for table in tables)
        lines.append(f"tables are divided: this worker holds {held:,} of {count:,} rows")
    elif recipe.tables == "sharded":
        lines.append(f"model.tables: sharded: {party.name} has no table with a sparse gradient, and nothing is divided")
    if recipe.dense == "sharded":
        said = "each worker keeps a part of every weight of the bottom model"
        lines.append(f"model.dense: sharded: {said if party.weights.divides else _NO_BOTTOM.format(party.name)}")
    return lines


def alike(config: ExperimentConfig, data: Mapping[str, str], *, overwrite: bool) -> dict[str, str]:
    """Return what must be the same at all workers of a party: every section of its file, its data, and versions.

    Args:
        config: The file.
        data: Digests of the party's data, of which a shard that lies apart has its own but for the schema's.
        overwrite: Whether it starts anew.
    """
    if lie_apart(config.data.path):
        data = {key: digest for key, digest in data.items() if key == SCHEMA}
    sections = config.model_dump(mode="json")
    found = {key: json.dumps(_placeless(section), sort_keys=True) for key, section in sections.items()}
    found |= {f"digest of {key}": digest for key, digest in data.items()}
    found |= {"--overwrite": str(overwrite), "version of torch": str(torch.__version__)}
    found["instructions of the processor"] = torch.backends.cpu.get_cpu_capability()
    with suppress(PackageNotFoundError):  # in a tree that was never installed
        found["version of splitvfl"] = version("splitvfl")
    return found


def _placeless(section: Any) -> Any:
    """Return a section without where files lie, which machines need not have alike; what is in them is compared."""
    if not isinstance(section, dict):
        return section
    return {key: _placeless(value) for key, value in section.items() if key not in _PLACES}


def shards_of(path: str | None, name: str, team: Team, *, source: str) -> Shards | None:
    """Return how many training records each worker's shard has, and which this one's is; ``None``: they are one table.

    Args:
        path: That of the data, ``{worker}`` and all.
        name: The party's name.
        team: Its workers.
        source: What the file is called in messages.

    Raises:
        DataError: If a shard is missing, has no training records, is encoded otherwise, or is there twice.
    """
    if team.size == 1:
        return None
    own = asdict(facts_of(shard_folder(path, name, team.rank))) if lie_apart(path) else None
    apart = own is not None
    said = collect_json(team, own)  # of those whose files say otherwise, too
    others = [rank for rank, one in enumerate(said) if (one is None) == apart]
    if others:
        raise ConfigError(
            f"{source}: data.path: worker {team.rank} of {name} has {'a shard' if apart else 'the whole table'},"
            f" and worker {', '.join(map(str, others))} not; give all workers one file"
        )
    if not apart:
        return None
    return replace(checked_sizes([ShardFacts(**one) for one in said]), here=team.rank)


def shards_to_try(path: str | None, name: str, *, count: int) -> Shards | None:
    """Return shards for a trial by one process that trains on none; ``None``: records are one table.

    Of shards that are on other machines it takes each to be as large as the first that is here.

    Args:
        path: That of the data, ``{worker}`` and all.
        name: The party's name.
        count: How many shards there are.

    Raises:
        DataError: If none is here, or those that are here are no parts of one table.
    """
    if not lie_apart(path):
        return None
    here = next((shard for shard in range(count) if shard_path(path, shard).exists()), 0)
    folders = [shard_folder(path, name, shard) for shard in range(count)]
    if all(folder.exists() for folder in folders):
        return replace(checked_sizes([facts_of(folder) for folder in folders]), here=here)
    own = facts_of(folders[here])
    return Shards((own.rows,) * count, (own.tests,) * count, here)


def shards_not_here(path: str | None, name: str, *, count: int) -> list[str]:
    """Return in words which shards are not on this machine, where they lie apart and any are not."""
    missing = [str(one) for one in range(count) if lie_apart(path) and not shard_folder(path, name, one).exists()]
    if not missing:
        return []
    return [
        f"shards: {', '.join(missing)} of {count} are not on this machine ({path}) and were not "
        "looked at; they are taken to be as large as the first that is"
    ]


def folder_of(folder: Path, team: Team) -> Path:
    """Return where a worker keeps what is its own: worker 0 in the run's folder, every other one within it."""
    return folder if team.rank == 0 else folder / f"worker-{team.rank}"


@contextmanager
def leaving_together(team: Team) -> Iterator[None]:
    """Leave a block when all workers do: until worker 0 has written what is left, all may have to come back."""
    yield
    if not team.lost:  # whoever ended without its partners has nobody to wait for
        team.collect(b"")


@contextmanager
def after_worker_0(team: Team) -> Iterator[None]:
    """Begin a block when worker 0 has made the run's folder (:func:`begin_others`)."""
    if team.rank:
        team.collect(b"")
    yield


def begin_others(team: Team) -> None:
    """Let the other workers begin: the run's folder is there."""
    if team.rank == 0:
        team.collect(b"")
