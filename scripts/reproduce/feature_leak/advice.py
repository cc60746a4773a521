"""What follows for two parties, each sentence from a row."""

from __future__ import annotations

from scripts.reproduce.feature_leak import verdicts
from scripts.reproduce.feature_leak.defended import all_measured
from scripts.reproduce.feature_leak.study import Measured, Row
from scripts.reproduce.feature_leak.verdicts import CHEAP, best
from scripts.reproduce.feature_leak.ways import OF_ACTIVATIONS, UNDEFENDED
from scripts.reproduce.shared.claims import mean, shown, shown_mean
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
    told = [_told(who, found[key]) for key, who in WHO.items() if key in found]
    body = "\n\n".join(told) or "Neither of the two data sets is at hand."
    return [Section(title="What follows for a bank and for an advertiser", body=body)]


def _told(who: str, found: Measured) -> str:
    """Return what follows for one party, each sentence of a row."""
    bare, picked = found.rows[UNDEFENDED.label], best(found)
    lines = [
        f"**{who}** ({found.arrangement.title}).",
        f"Without a defense {_read(bare)} is read, at a test AUC of {shown_mean(bare.aucs)}; the label party's own "
        f"columns alone give {shown(found.about['alone'])}, and tell "
        f"{shown_mean(bare.shares(figure='without_messages'))} of the partner's.",
        _advised(found, picked),
        _least(found),
    ]
    return " ".join(line for line in lines if line)


def _read(row: Row) -> str:
    return f"{shown_mean(row.read())} of the variance"


def _advised(found: Measured, picked: Row | None) -> str:
    if picked is None:
        return (
            f"No defense of the activation cost at most {shown(CHEAP, 2)} of the validation AUC: none is recommended."
        )
    read, cost = verdicts.columns(found, picked), verdicts.utility(found, picked)
    surely = "which is shown" if read.side == "less" else "which is not shown"
    return (
        f"Of what cost at most {shown(CHEAP, 2)} of the AUC on validation records, {picked.way.label} was read least: "
        f"take it. On the test records the AUC is {shown_mean(picked.aucs)}, {read.shown.strip('*')} is read "
        f"compared with no defense ({read.shown_ends}; {surely}), and {_read(picked)} is left. The AUC differs by "
        f"{cost.shown.strip('*')} ({cost.shown_ends}). Who knows 20 % of the records reads "
        f"{shown_mean(picked.read(_MANY))}."
    )


def _least(found: Measured) -> str:
    """Say what hiding most costs."""
    hidden = min((row for row in found.rows.values() if row.way in OF_ACTIVATIONS), key=lambda row: mean(row.read()))
    lost = mean(hidden.aucs) <= found.about["alone"]
    worth = "no more than the label party has alone" if lost else "more than the label party has alone"
    return (
        f"Of all defenses {hidden.way.label} was read least, {_read(hidden)}, at a test AUC of "
        f"{shown_mean(hidden.aucs)}: {worth}."
    )
