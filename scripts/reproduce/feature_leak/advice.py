"""What follows for two parties, each sentence from a row."""

from __future__ import annotations

from scripts.reproduce.feature_leak import verdicts
from scripts.reproduce.feature_leak.defended import all_measured
from scripts.reproduce.feature_leak.stronger import Stronger, stronger
from scripts.reproduce.feature_leak.study import Measured, Row
from scripts.reproduce.feature_leak.verdicts import CHEAP, Compared, best, least, passed_over
from scripts.reproduce.feature_leak.ways import UNDEFENDED
from scripts.reproduce.shared.claims import shown, shown_mean, signed
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

WHO = {
    "credit": "A bank with few strong columns",
    "criteo": "An advertiser with many counts",
}
"""By data set, the party that it stands for."""

_MANY = "0.2"


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    found = {one.arrangement.key: one for one in all_measured(settings)}
    told = [_told(who, stronger(found[key], settings)) for key, who in WHO.items() if key in found]
    body = "\n\n".join(told) or "Neither of the two data sets is at hand."
    return [Section(title="What follows for a bank and for an advertiser", body=body)]


def _told(who: str, one: Stronger) -> str:
    """Return what follows for one party, each sentence of a row."""
    found = one.found
    bare, picked = found.rows[UNDEFENDED.label], best(found)
    lines = [
        f"**{who}** ({found.arrangement.title}).",
        f"Without a defense {_read(bare)} is read, at a test AUC of {shown_mean(bare.aucs)}; the label party's own "
        f"columns alone give {shown(found.about['alone'])}, and tell "
        f"{shown_mean(bare.shares(figure='without_messages'))} of the partner's.",
        _advised(found, picked),
        _not_advised(found),
        _by_stronger(one, picked),
        _least(found),
    ]
    return " ".join(line for line in lines if line)


def _read(row: Row) -> str:
    return f"{shown_mean(row.read())} of the variance"


def _advised(found: Measured, picked: Row | None) -> str:
    if picked is None:
        return (
            f"No defense of the activation cost at most {shown(CHEAP, 2)} of the validation AUC without a seed that "
            "collapsed: none is recommended."
        )
    read, cost = verdicts.columns(found, picked), verdicts.utility(found, picked)
    return (
        f"Of what cost at most {shown(CHEAP, 2)} of the AUC on validation records, and under which no seed collapsed, "
        f"{picked.way.label} was read least in the runs by which is chosen: it is the first to try. On the test "
        f"records the AUC is {shown_mean(picked.aucs)}, {signed(cost.middle)} to no defense ({cost.shown_ends}), and "
        f"{_read(picked)} is read, {signed(read.middle)} ({read.shown_ends}; that it is less is {_shown(read)}). Who "
        f"knows 20 % of the records reads {shown_mean(picked.read(_MANY))}."
    )


def _shown(compared: Compared) -> str:
    return "shown" if compared.side == "less" else "not shown"


def _not_advised(found: Measured) -> str:
    """Name what is read less, but under which some seeds collapsed."""
    named = "; ".join(f"{row.way.label} ({_lost(row)})" for row in passed_over(found))
    return f"Read less, and not advised at any cost, as seeds collapsed: {named}." if named else ""


def _lost(row: Row) -> str:
    return (
        f"{len(row.collapsed)} of {len(row.runs)} that are reported, {row.collapsed_in_validation} of "
        f"{len(row.validated)} by which is chosen"
    )


def _by_stronger(one: Stronger, picked: Row | None) -> str:
    """Say what the stronger readers read."""
    if picked is None:
        return ""
    compared = one.less_none(picked)
    bare, behind = one.read[UNDEFENDED.label], one.read[picked.way.label]
    readers = "; ".join(
        f"`{reader}` reads {shown_mean(bare[reader])} without a defense and {shown_mean(read)} behind this one"
        for reader, read in behind.items()
    )
    return (
        f"Of the stronger readers {readers}. Behind this one the most that is read in a run is "
        f"{shown_mean(one.most(picked))} ({signed(compared.middle)}; that it is less is {_shown(compared)}): count on "
        "no smaller figure."
    )


def _least(found: Measured) -> str:
    """Say what hiding most costs."""
    hidden = least(found)
    if hidden is None:
        return ""
    return (
        f"Of all defenses under which no seed collapsed, {hidden.way.label} was read least in the runs by which is "
        f"chosen: {_read(hidden)} here, at a test AUC of {shown_mean(hidden.aucs)}."
    )
