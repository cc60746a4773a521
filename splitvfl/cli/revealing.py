"""The command that hands weights to a partner on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitvfl.cli.console import output_console

_TRANSFORMED = ("rotated", "shifted")


def reveal(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder of the passive party's model part, or of its run.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The new file, .safetensors; one that is there stays.")],
    as_: Annotated[
        str | None, typer.Option("--as", help="Which passive party, where the run holds the model parts of several.")
    ] = None,
    transformed: Annotated[
        str | None,
        typer.Option(
            "--transformed-weights",
            metavar="HOW",
            autocompletion=lambda: list(_TRANSFORMED),
            help="Not the weights as they are: rotated (W Hᵀ) or shifted (W + Δ). The file says which.",
        ),
    ] = None,
    experiment: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The experiment or the party's own file, YAML: where its columns are, for --transformed-weights and "
            "to say how far estimates are off.",
        ),
    ] = None,
) -> None:
    """Write a passive party's weights into a file for a partner, who can then solve for its columns."""
    from rich.text import Text

    from splitvfl.app.revealing import reveal as reveal_weights
    from splitvfl.config.sections import load_config

    config = None if experiment is None else load_config(experiment, [])
    found = reveal_weights(model, out, party=as_, changed=transformed, config=config)
    how = "as they are" if found.weights == "true" else found.weights
    print(f"{found.path}: the weights of {found.party}, {how}. This cannot be taken back.")
    console = output_console()
    for sentence in found.sentences:
        console.print(Text(sentence))
