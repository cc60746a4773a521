"""What a share of variance looks like: digits beside what is read of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scripts.reproduce.feature_leak.arrangements import TRIAL, shortened
from scripts.reproduce.feature_leak.runs import KNOWN, depict
from scripts.reproduce.feature_leak.ways import OF_ACTIVATIONS, UNDEFENDED
from scripts.reproduce.shared.claims import shown
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.report.drawing import drawing_style, new_figure, svg_file

SHOWN = ("cut of width 16", "cut of width 4", "distance-correlation, weight 1")
WAYS = (UNDEFENDED, *(way for way in OF_ACTIVATIONS if way.label in SHOWN))
"""What is shown."""

PICTURES = 10
_RATE, _EPOCHS, _SEED = 0.003, 20, 0
_SIDE = 8
_BRIGHTEST = 16.0

_FIGURE = "feature-leak-digits"


def depicted(settings: Settings) -> dict[str, Result]:
    """Make the runs, and return what was found, by the label of the way."""
    arrangement = shortened(TRIAL) if settings.quick else TRIAL
    jobs = [
        Job(
            depict,
            {
                "arrangement": arrangement.as_settings(),
                "way": way.as_settings(),
                "rate": _RATE,
                "epochs": 2 if settings.quick else _EPOCHS,
                "seed": _SEED,
                "known_share": KNOWN[1],
                "pictures": PICTURES,
            },
        )
        for way in WAYS
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    return {way.label: one for way, one in zip(WAYS, results, strict=True)}


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    found = depicted(settings)
    shares = ", ".join(f"{words}: {shown(one['share'], 2)}" for words, one in found.items())
    body = f"""
Here the partner holds all 64 pixels of a digit, and the label party none. When one model has been trained, ridge
regression is fitted once to what {100 * KNOWN[1]:g} % of the training records send with it, and estimates the pixels of
all others. The pictures are the first {PICTURES} of these, none chosen by eye, of one run (seed {_SEED}, {_EPOCHS}
epochs, rate {_RATE:g}). The share of the pixels' variance that is read, the mean over pixels: {shares}. A digit that
one recognises is not what the share counts: a blurred one may still tell which digit it is, and the label too. The
digits are those of scikit-learn: Alpaydin and Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning
Repository, CC BY 4.0.
"""
    caption = "Digits as the partner holds them, and what is read of them in its activations."
    return [
        Section(
            title="What that looks like",
            body=body,
            figures={_FIGURE: draw(_FIGURE, found)},
            captions={_FIGURE: caption},
        )
    ]


def draw(name: str, found: Mapping[str, Result]) -> str:
    """Return a row of the pictures themselves, and one of estimates for each way, as the text of an SVG file.

    Args:
        name: Prefix of the ids in the file.
        found: By label, what :func:`~scripts.reproduce.feature_leak.runs.depict` returns, of the same pictures.
    """
    truth: Sequence[Sequence[float]] = next(iter(found.values()))["truth"]
    rows = {"as they are": truth, **{words: one["estimate"] for words, one in found.items()}}
    with drawing_style():
        drawn = new_figure(0.75 * len(rows))
        grid = drawn.subplots(len(rows), len(truth), squeeze=False)
        for line, (words, pictures) in zip(grid, rows.items(), strict=True):
            for axes, pixels in zip(line, pictures, strict=True):
                image = [pixels[first : first + _SIDE] for first in range(0, _SIDE * _SIDE, _SIDE)]
                axes.imshow(image, cmap="Greys", vmin=0.0, vmax=_BRIGHTEST, interpolation="nearest")
                axes.set_xticks([])
                axes.set_yticks([])
            line[0].set_ylabel(words.replace(", ", ",\n"), rotation=0, ha="right", va="center")
        return svg_file(drawn, name)
