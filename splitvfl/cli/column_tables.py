"""Tables of what attacks find of columns: a forecast's, and a reconstruction's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from splitvfl.leakage.estimates import JudgedAttack, OwnColumn

# Of many columns these are shown: those that are recovered best. JSON has all.
_MOST_SHOWN = 12
_LONGEST_NAME = 24


def plain_table(title: str, *headers: str) -> Table:
    """Return a table with a title; all columns but the first are numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for place, header in enumerate(headers):
        table.add_column(header, justify="left" if place == 0 else "right", overflow="fold")
    return table


def attack_table(
    title: str,
    attacks: Sequence[JudgedAttack],
    baselines: Sequence[OwnColumn],
    commonest: Mapping[str, float],
    *,
    mean_mse: float,
    beside: tuple[str, Mapping[str, float], float] | None = None,
) -> Table:
    """Return attacks with their figures, and below them what the columns' means alone tell.

    Args:
        title: Its title.
        attacks: The best first.
        baselines: The columns.
        commonest: Share of the commonest category, by column.
        mean_mse: Mean squared error of answering the means.
        beside: A second error of each attack, under this header, by name, and of answering the means.
    """
    more = () if beside is None else (beside[0],)
    # Names of attacks are long, and a terminal may have eighty columns.
    right = "categories" if beside is None else "right"
    table = plain_table(title, "attack", "MSE", *more, "within .05", right, "bits left")
    for one in attacks:
        extra = () if beside is None else (_error(beside[1].get(one.attack)),)
        table.add_row(
            one.attack, _error(one.mse), *extra, f"{one.near:.0%}", _mean(one.categories), f"{one.bits_left:.2f}"
        )
    bits = sum(one.bits for one in baselines) / len(baselines)
    near = sum(one.near_mean for one in baselines) / len(baselines)
    extra = () if beside is None else (_error(beside[2]),)
    table.add_row(
        "(means alone)", _error(mean_mse), *extra, f"{near:.0%}", _mean(commonest), f"{bits:.2f}", style="dim"
    )
    return table


def _error(mse: float | None) -> str:
    return "–" if mse is None else f"{mse:.4f}"


def _mean(shares: Mapping[str, float]) -> str:
    return "–" if not shares else f"{sum(shares.values()) / len(shares):.0%}"


def column_table(what: str, best: JudgedAttack, baselines: Sequence[OwnColumn], left: Mapping[str, float]) -> Table:
    """Return the columns that an attack reads best, with what knowing nothing gives.

    Args:
        what: The view, which stands first in the title.
        best: The attack.
        baselines: The columns.
        left: By column, the share of its variance that is left; columns that are not there come last.
    """
    order = sorted(range(len(best.columns)), key=lambda place: left.get(best.columns[place].column, float("inf")))
    more = "" if len(order) <= _MOST_SHOWN else f", the {_MOST_SHOWN} of {len(order)} that are recovered best"
    table = plain_table(f"{what}, by {best.attack}{more}", "column", "MSE", "mean", "½", "within .05", "bits left")
    for place in order[:_MOST_SHOWN]:
        one, own = best.columns[place], baselines[place]
        errors = (one.mse, own.mean_mse, own.half_mse)
        table.add_row(
            _short(one.column),
            *(f"{error:.4f}" for error in errors),
            f"{one.near:.0%}",
            f"{one.bits_left:.1f} of {own.bits:.1f}",
        )
    return table


def category_table(what: str, best: JudgedAttack, commonest: Mapping[str, float]) -> Table:
    """Return which share of records' categories an attack gets right, and which the commonest one alone."""
    table = plain_table(f"{what}, by {best.attack}: categories right", "category", "right", "the commonest alone")
    order = sorted(best.categories, key=lambda column: commonest[column] - best.categories[column])
    for column in order[:_MOST_SHOWN]:
        table.add_row(_short(column), f"{best.categories[column]:.0%}", f"{commonest[column]:.0%}")
    return table


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
