"""What follows for two parties, each sentence from a row."""

from __future__ import annotations

from scripts.reproduce.feature_leak import verdicts
from scripts.reproduce.feature_leak.defended import all_measured
from scripts.reproduce.feature_leak.stronger import Stronger, stronger
from scripts.reproduce.feature_leak.study import Measured, Row, less
from scripts.reproduce.feature_leak.verdicts import CHEAP, best
from scripts.reproduce.feature_leak.ways import OF_ACTIVATIONS, UNDEFENDED
from scripts.reproduce.shared.claims import mean, shown, shown_mean, signed
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
        _by_stronger(one, picked),
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
    surely = "shown" if read.side == "less" else "not shown"
    return (
        f"Of what cost at most {shown(CHEAP, 2)} of the AUC on validation records, {picked.way.label} was read least: "
        f"it is the first to try. On the test records the AUC is {shown_mean(picked.aucs)}, {signed(cost.middle)} to "
        f"no defense ({cost.shown_ends}), and {_read(picked)} is read, {signed(read.middle)} ({read.shown_ends}; that "
        f"it is less is {surely}). Who knows 20 % of the records reads {shown_mean(picked.read(_MANY))}."
    )


def _by_stronger(one: Stronger, picked: Row | None) -> str:
    """Say what the stronger reader reads."""
    if picked is None:
        return ""
    apart, ends = one.less_none(picked)
    return (
        f"`inverse-network`, which assumes no more, reads {shown_mean(one.read[UNDEFENDED.label])} without a defense "
        f"and {shown_mean(one.read[picked.way.label])} behind this one ({signed(apart)}; that it is less is "
        f"{'shown' if less(ends) == 'less' else 'not shown'}): count on no smaller figure."
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
