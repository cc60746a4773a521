"""What was asked for on the command line, and where data files lie."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from splitvfl.data.sets import DATA_FOLDER


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked for on the command line.

    Attributes:
        out: Folder for results, figures and what is kept between runs.
        quick: Everything on small generated data, in a minute: shows that the command works, and nothing else.
        seeds: Number of seeds on the small data sets.
        rows_of_clicks: Rows of generated clicks; 0 for none.
        workers: Processes.
        say: Called with a line on what goes on.
    """

    out: Path
    quick: bool = False
    seeds: int = 5
    rows_of_clicks: int = 1_000_000
    workers: int = 2
    say: Callable[[str], None] = print

    @property
    def jobs(self) -> Path:
        """Folder of the finished jobs."""
        return self.out / "jobs"


def data_folder() -> Path:
    """Return the folder of the data files that the user holds: ``$SPLITVFL_DATA``, or ``../shared/data``."""
    checkout = Path(__file__).resolve().parents[3]
    return Path(os.environ.get(DATA_FOLDER) or checkout.parent / "shared" / "data")
