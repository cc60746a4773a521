"""What was asked for on the command line, and where data files lie."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from pyarrow import ArrowException
from pyarrow.parquet import ParquetFile

from scripts.reproduce.shared.jobs import Cells
from splitvfl.data.sets import DATA_FOLDER
from splitvfl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked for on the command line.

    Attributes:
        out: Folder for results, figures and what is kept between runs.
        quick: Everything on small generated data, in a minute: shows that the command works, and nothing else.
        seeds: Number of seeds on the small data sets.
        rows_of_clicks: Rows of generated clicks; 0 for none.
        workers: Processes.
        keep_stale: Whether results of older code are used as they are.
        alone: Name or label of the only cell to run; empty: all.
        say: Called with a line on what goes on.
    """

    out: Path
    quick: bool = False
    seeds: int = 5
    rows_of_clicks: int = 1_000_000
    workers: int = 2
    keep_stale: bool = False
    alone: str = ""
    say: Callable[[str], None] = print

    @cached_property
    def jobs(self) -> Cells:
        """The finished jobs, and which of them were used."""
        return Cells(self.out / "jobs", keep_stale=self.keep_stale, alone=self.alone)

    @cached_property
    def missing(self) -> dict[str, str]:
        """What is left out, by its name for people: the file that is not there."""
        return {}

    def has(self, title: str, path: Path) -> bool:
        """Return whether a data file is there; without it the data are left out.

        Args:
            title: Of the data.
            path: Of the file.

        Raises:
            DataError: If it is there and is not what its name says: half of it would not be told from none.
        """
        if not path.is_file():
            self.leave_out(title, path)
            return False
        try:
            if path.suffix == ".parquet":
                ParquetFile(path).close()
            elif path.suffix == ".npz":
                ZipFile(path).close()
        except (OSError, ArrowException, BadZipFile) as error:
            raise DataError(f"{path}: cannot be read: {error}") from None
        return True

    def leave_out(self, title: str, path: Path) -> None:
        """Say that a data set is left out as its file is not there, and keep that for the page.

        Args:
            title: Of the data.
            path: Of the file. Its folder is said, and is not kept: it is this machine's.
        """
        if title not in self.missing:
            self.say(f"left out: {title}; there is no {path.name} in {path.parent} ({DATA_FOLDER} may name another)")
        self.missing[title] = path.name


def data_folder() -> Path:
    """Return the folder of the data files that the user holds: ``$SPLITVFL_DATA``, or ``../shared/data``."""
    checkout = Path(__file__).resolve().parents[3]
    return Path(os.environ.get(DATA_FOLDER) or checkout.parent / "shared" / "data")
