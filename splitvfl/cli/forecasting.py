"""The command that says what predictions will reveal of features, before anybody gets one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitvfl.cli.column_tables import attack_table, category_table, column_table, plain_table
from splitvfl.cli.console import ExperimentFile, Json, Overrides, output_console, tell, writes_json

if TYPE_CHECKING:
    from rich.table import Table

    from splitvfl.app.activation_forecast import ActivationForecast
    from splitvfl.app.forecast_result import Forecast, ModelForecast, ViewForecast

_ROWS_BEFORE = 6
_COLUMNS = 12
_MANY = 4  # defenses that are not named one by one below their table


def forecast(
    experiment: ExperimentFile,
    as_: Annotated[str, typer.Option("--as", help="Which passive party this is.")],
    overrides: Overrides = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Its trained model part, or its run; further ones add their equations. Default: what is known before "
            "training.",
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(metavar="K", help="Number of classes, if it is known. Default: the model's, or 2, 3, …"),
    ] = None,
    judged: Annotated[int, typer.Option(metavar="N", help="Records on which attacks are run, at most.")] = 2_000,
    json_: Json = None,
) -> None:
    """Estimate offline, as a passive party, how much predictions will reveal of your features. Nothing is sent.

    For a linear model predictions are solved as equations. For others activations are attacked, with first or with
    trained weights.
    """
    from splitvfl.app.activation_forecast import ActivationForecast, forecast_activations
    from splitvfl.app.forecasting import forecast as forecast_of
    from splitvfl.config.sections import load_config
    from splitvfl.errors import ConfigError

    config = load_config(experiment, overrides or [])
    first, further = (model[0], model[1:]) if model else (None, [])
    name = config.own_name(as_)
    found: Forecast | ActivationForecast
    if config.model.recipe.is_linear:
        found = forecast_of(config, name, model=first, also=further, classes=classes, judged=judged)
    elif further or classes is not None:
        raise ConfigError(
            f"{config.source}: model: {config.model.name} is not linear: further models and --classes are of equations "
            "that a linear model's predictions give; leave them out"
        )
    else:
        found = forecast_activations(config, name, model=first, notify=tell)
    # Statistics of the party's columns are in it: nobody else is to read them.
    if writes_json(json_, found.as_json, mode=0o600):
        return
    _print_activations(found) if isinstance(found, ActivationForecast) else _print(found)
    if json_ is not None:
        print(json_)


def _print(found: Forecast) -> None:
    from rich.text import Text

    console = output_console()
    console.print(Text(found.sentence, style="bold"))
    console.print()
    console.print(_before_table(found))
    if found.model is not None:
        for view in _different(found.model):
            model, seen = found.model, _seen(view, found.model)
            title = _attack_title(view, model)
            console.print(attack_table(title, view.attacks, model.baselines, model.commonest, mean_mse=model.mean_mse))
            console.print(column_table(seen, view.best, model.baselines, view.left(model)))
            if view.best.categories:
                console.print(category_table(seen, view.best, model.commonest))
            console.print(_defense_table(view, found.model))
    for note in found.notes:
        console.print(Text(f"note: {note}"))


def _print_activations(found: ActivationForecast) -> None:
    from rich.text import Text

    from splitvfl.report.most_read import MostRead

    console, most = output_console(), found.most
    console.print(Text(found.sentence, style="bold"))
    console.print()
    if most is not None:
        first = "" if found.trained else ", of the draw that reveals most"
        shown = most.columns[:_COLUMNS]
        more = (
            ""
            if len(shown) == len(most.columns)
            else f", the {_COLUMNS} of {len(most.columns)} that are recovered best"
        )
        title = (
            f"{found.party}: {found.records:,} records. Share of each feature's variance that is recovered{first}{more}"
        )
        table = plain_table(title, "feature", "recovered")
        for one in shown:
            table.add_row(Text(one.column), f"{one.share:.0%}")
        table.add_row("(mean of all)", f"{most.share:.0%}", style="dim")
        if (once := MostRead(most, most.columns).each_category_once) is not None:
            table.add_row("(mean, each category once)", f"{once:.0%}", style="dim")
        console.print(table)
    for note in (*found.notes, *([most.note] if most is not None and most.note else [])):
        console.print(Text(f"note: {note}"))


def _different(model: ModelForecast) -> Sequence[ViewForecast]:
    """Return the views that tell different things: of one logit a score and the activation tell the same."""
    return model.views[:1] if model.outputs == 1 else model.views


def _seen(view: ViewForecast, model: ModelForecast) -> str:
    return view.sees if model.outputs > 1 else "scores or activation"


def _equations(view: ViewForecast) -> str:
    return f"{view.equations} equation{'' if view.equations == 1 else 's'}"


def _before_table(found: Forecast) -> Table:
    d = len(found.columns)
    table = plain_table(
        f"{found.party}: {d} column{'' if d == 1 else 's'}, {found.records:,} records. Mean squared error per column "
        f"in the unit box, whatever the weights; ½ alone {found.half_mse:.3f}, means alone {found.mean_mse:.3f}",
        *("classes", "of", "equations", "least squares", "Half*", "means known"),
    )
    rows = list(found.before_training)
    kept = rows if len(rows) <= 2 * _ROWS_BEFORE else [*rows[: 2 * _ROWS_BEFORE - 4], *rows[-4:]]
    for row in kept:
        errors = row.errors
        ranges = (errors.least_squares, errors.half_star, errors.best)
        shown = ["exact"] * 3 if errors.exact else [f"{one.low:.3f}–{one.high:.3f}" for one in ranges]
        table.add_row(str(row.classes), row.sees, str(row.equations), *shown)
    return table


def _attack_title(view: ViewForecast, model: ModelForecast) -> str:
    return (
        f"{_seen(view, model)}, {_equations(view)}: attacks on {model.judged:,} training records. Over all, in closed "
        f"form: least squares {view.least_squares:.4f}, Half* {view.half_star:.4f}, means known "
        f"{view.means_known:.4f}; ½ alone {model.half_mse:.4f}, means alone {model.mean_mse:.4f}"
    )


def _defense_table(view: ViewForecast, model: ModelForecast) -> Table:
    table = plain_table(
        f"{_seen(view, model)}: what defenses would change",
        *("defense", "least squares", "Half*", "RCC2, defense known"),
    )
    for one in view.defenses:
        name = one.defense if one.gain is None else "noise of power 1"
        known = "–" if one.known is None else f"{one.known:.4f}"
        table.add_row(name, f"{one.least_squares:.4f}", f"{one.half_star:.4f}", known)
    against: dict[str, list[str]] = {}
    for one in view.defenses:
        if one.helps_against:
            against.setdefault(one.helps_against, []).append(one.defense)
    who = {whom: " and ".join(names) if len(names) < _MANY else "the others" for whom, names in against.items()}
    table.caption = "; ".join(f"{names}: only against {whom}" for whom, names in who.items())
    table.caption_justify = "left"
    return table
