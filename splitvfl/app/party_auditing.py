"""One party's messages of a networked run audited, out of its own file: ``splitvfl audit FILE --as NAME``.

A party knows its own hooks and what the plan attaches at it, and needs nothing of the others to put these to the test.
What the others send is theirs to audit: it is listed by name, and is no pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from splitvfl.app.auditing import CONFIDENCE, ExperimentAudit, bare, check_draws, of_defenses, surroundings
from splitvfl.app.deployment import Deployment
from splitvfl.app.plan_auditing import NoisyTraining, audit_plan
from splitvfl.app.workers import shards_to_try
from splitvfl.audit.defense import DRAWS
from splitvfl.claims import claims_of, not_applying
from splitvfl.config.sections import ExperimentConfig, FoundDefense, PartyConfig
from splitvfl.data.schema import Role
from splitvfl.errors import ConfigError
from splitvfl.hooks import Crossing, crossing_of, placed
from splitvfl.party.attaching import promises_of
from splitvfl.party.party import ActiveParty, Party, PassiveParty, label_releases_of
from splitvfl.team.team import FirstWorker

_UNKNOWN_WIDTH: Final = 2  # where nobody here has a bottom model


def audit_party(
    config: ExperimentConfig, name: str, *, draws: int = DRAWS, seed: int = 0, released: Sequence[str] = ()
) -> ExperimentAudit:
    """Return what was found of the claims that one party's defenses make: of its own messages and no others.

    Nobody is called, and nothing is trained or sent.

    Args:
        config: The party's file.
        name: Its name.
        draws: Of each world, for each test, at least 400.
        seed: Of all that is drawn.
        released: What has crossed since the training, in sentences: what calculated noise does not cover.

    Raises:
        ArgumentError: If there are fewer draws.
        ConfigError: If the file does not fit together, or the party sends no message that a defense could act on.
        DataError: If its data are not what the file says.
        PrivacyError: If a defense may not be attached where it is.
    """
    check_draws(draws)
    if name not in config.parties:
        raise ConfigError(
            f"{config.source}: {name} has a key and no data (exchange {config.exchange.name}): no defense acts on what "
            f"it sends, and there is nothing to audit; name one of {', '.join(config.parties)} (--as)"
        )
    team, shards = FirstWorker(config.team.workers), shards_to_try(config.data.path, name, count=config.shards)
    deployment = Deployment(config, name, team=team, shards=shards)
    own, noise = deployment.own, deployment.assembly.noise
    # Attached as in a run, so that what does not fit is refused here too.
    party = deployment.tried_half()
    role: Role = "passive" if own.task is None else "active"
    defenses = [placed(hook.made("defenses", config.folder)) for hook in config.defenses]
    here = [(defense, phases) for defense, phases in defenses if _sender(crossing_of(defense)) == role]
    around = surroundings(
        config.train,
        classes=2 if own.task is None else deployment.assembly.task(own.task, own.classes).classes,
        receivers=len(config.parties) - 1,
        width=_width(party),
    )
    rows = [own.data] if role == "passive" else []
    if own.task is not None:
        task = deployment.assembly.task(own.task, own.classes)
        releases = label_releases_of(own.data, task, early_stopping=config.train.early_stopping is not None)
        around = replace(around, void=not_applying(releases))
    audits = [*of_defenses(rows, here, around, draws, seed, CONFIDENCE)]
    if noise is not None:
        exchange = deployment.assembly.exchange
        trained = NoisyTraining(
            config.active, config.train, exchange, [own.data], roles=(role,), released=released, seed=seed
        )
        audits.append(audit_plan(noise, trained))
    claimed = [claim for defense, _ in here for claim in claims_of(defense)]
    gaps = [gap for audit in audits for gap in audit.gaps]
    gaps += bare(config.exchange.name, audits, claimed, roles=(role,))
    gaps += _beyond(config.parties, config.found_defenses, name)
    if role == "active":
        gaps.append(_of_widths(around.width, tried=party is not None))
    notes = (
        [] if party is None else promises_of(party, config.train.epochs, own_part=deployment.assembly.exchange.own_part)
    )
    return ExperimentAudit(config.name, tuple(audits), tuple(dict.fromkeys(gaps)), tuple(notes), draws, party=name)


def _sender(crossing: Crossing) -> Role:
    """Return who sends a message, and defends it."""
    return "passive" if crossing == "activation" else "active"


def _width(party: Party | None) -> int:
    """Return how wide the rows are that cross, as far as one party can know before it has met the others."""
    match party:
        case PassiveParty():
            return party.output_width()
        case ActiveParty():
            return min(party.widths.values())
        case _:
            return _UNKNOWN_WIDTH


def _of_widths(width: int, *, tried: bool) -> str:
    attached = "" if tried else " Without columns there is no model to attach them at: that they fit is not checked."
    return (
        "Widths: how wide the rows are that cross is told when parties meet; here they are taken to be as wide as "
        f"{width}."
        f"{attached}"
    )


def _beyond(parties: Mapping[str, PartyConfig], defenses: Sequence[FoundDefense], name: str) -> Iterator[str]:
    """Say of each other party what of it is not audited, and why."""
    active = next(other for other, party in parties.items() if party.role == "active")
    for other, party in parties.items():
        if other == name:
            continue
        senders = [(str(hook), _sender(found.crossing)) for hook, found in defenses]
        listed = [hook for hook, sender in senders if sender == party.role != parties[name].role]
        which = f" ({', '.join(listed)})" if listed else ""
        yield (
            f"{other}: what it sends is changed where it is, by the defenses of its own file{which}, and cannot be "
            f"tried out of {name}'s; there: splitvfl audit FILE --as {other}."
        )
    yield (
        "A whole run is not measured here: that takes the columns of all parties in one process. In the networked run "
        f"itself canaries tell what its messages give away ({active}'s file: audit: {{canaries: 300}})."
    )
