"""Which data sets there are, how they are divided, and the numbers of epochs that are tried on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scripts.reproduce.better_defense.study import Setting, describe
from scripts.reproduce.shared.claims import grouped, markdown_table
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.settings import Settings, data_folder

VALIDATION_SEED = 5
"""Nothing that is compared is measured with this seed: epochs, rates and the best of several are chosen by it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A setting, and what is tried on it.

    Attributes:
        setting: Data and model.
        epochs: The numbers of epochs that are tried, ascending.
        silent_epochs: The same where nothing comes back to the partner.
        seeds: The seeds that it is measured with.
    """

    setting: Setting
    epochs: tuple[int, ...]
    silent_epochs: tuple[int, ...] = (3, 8, 20)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    @property
    def key(self) -> str:
        """Short name."""
        return self.setting.key

    @property
    def title(self) -> str:
        """Name for people."""
        return self.setting.title

    @property
    def overlap(self) -> float:
        """Test records for each training record, where each seed divides the same records anew; 0: all test on one set.

        By it intervals of gains are wider: see :func:`scripts.reproduce.better_defense.estimates.jackknife`.
        """
        return 0.0 if self.setting.kind == "images" else 1.0 / 9.0


_CREDIT_OWN = ("age", "DebtRatio", "MonthlyIncome", "NumberRealEstateLoansOrLines", "NumberOfDependents")
_BANK_OWN = ("age", "job", "marital", "education", "default", "housing", "loan")
_CREDIT = {"name": "give-me-some-credit"}
_BANK = {"name": "bank-marketing", "drop": ["duration"]}

# By the file that they need: steps of 135 000 records are larger, as an epoch has so many of them.
_WITH_FILES: tuple[tuple[str, Case], ...] = (
    (
        "criteo_random_46k_20cols.parquet",
        Case(
            setting=Setting(key="criteo-46k", title="Criteo, random 46k", arguments={"name": "criteo"}),
            epochs=(1, 3, 10),
        ),
    ),
    (
        "criteo_head_10k.parquet",
        Case(
            setting=Setting(key="criteo-10k", title="Criteo, first 10k", arguments={"name": "criteo"}),
            epochs=(1, 4, 15),
            silent_epochs=(3, 10, 30),
        ),
    ),
    (
        "give_me_some_credit.parquet",
        Case(
            setting=Setting(key="credit", title="Give Me Some Credit", arguments=_CREDIT, batch_size=2048),
            epochs=(2, 4, 8),
            silent_epochs=(2, 6, 15),
        ),
    ),
    (
        "bank_marketing_additional_full.parquet",
        Case(setting=Setting(key="bank", title="bank marketing", arguments=_BANK), epochs=(2, 5, 10)),
    ),
    (
        "give_me_some_credit.parquet",
        Case(
            setting=Setting(
                key="credit-divided",
                title="Give Me Some Credit, columns divided",
                arguments=_CREDIT,
                kind="mlp",
                own=_CREDIT_OWN,
                widths=(64, 32),
                batch_size=2048,
            ),
            epochs=(2, 5, 10),
            silent_epochs=(2, 6, 15),
        ),
    ),
    (
        "bank_marketing_additional_full.parquet",
        Case(
            setting=Setting(
                key="bank-divided",
                title="bank marketing, columns divided",
                arguments=_BANK,
                kind="mlp",
                own=_BANK_OWN,
                widths=(64, 32),
                batch_size=1024,
            ),
            epochs=(2, 6, 15),
        ),
    ),
    (
        "mnist.npz",
        Case(
            setting=Setting(key="mnist", title="MNIST, odd or even", kind="images", widths=(128, 64)),
            epochs=(2, 8, 20),
            silent_epochs=(5, 15, 40),
        ),
    ),
)

# On data that need no file.
_QUICK = (
    Case(
        setting=Setting(
            key="breast-cancer", title="breast cancer", arguments={"name": "breast-cancer"}, widths=(16,), batch_size=64
        ),
        epochs=(1, 2, 3),
        silent_epochs=(1, 2, 3),
        seeds=(0, 1),
    ),
    Case(
        setting=Setting(
            key="digits",
            title="digits, is it an 8, columns divided",
            arguments={"name": "digits", "digit": 8},
            kind="mlp",
            own=tuple(f"pixel_{row}_{column}" for row in range(3) for column in range(8)),
            widths=(16,),
            batch_size=128,
        ),
        epochs=(1, 2, 3),
        silent_epochs=(1, 2, 3),
        seeds=(0, 1),
    ),
)


def cases(settings: Settings) -> list[Case]:
    """Return the cases whose data are at hand; what is missing is said, and left out."""
    if settings.quick:
        return list(_QUICK)
    folder = data_folder()
    found = []
    for name, case in _WITH_FILES:
        if not (folder / name).is_file():
            settings.leave_out(case.title, folder / name)
            continue
        arguments = {**case.setting.arguments, "path": str(folder / name)}
        found.append(
            replace(case, setting=replace(case.setting, arguments=arguments), seeds=case.seeds[: settings.seeds])
        )
    return found


def settings_table(settings: Settings) -> str:
    """Return the data sets, who holds what, and what is tried, as a Markdown table."""
    chosen = cases(settings)
    jobs = [Job(describe, {"setting": case.setting.as_settings(), "seed": case.seeds[0]}) for case in chosen]
    found = run_jobs(jobs, settings.jobs, workers=settings.workers)
    rows = [
        (
            case.title,
            grouped(result["records"]),
            grouped(result["test"]),
            f"{100 * result['positives'] / result['records']:.1f} %",
            f"{result['own']} / {result['partner']}",
            _layers(case.setting.widths),
            grouped(case.setting.batch_size),
            ", ".join(map(str, case.epochs)),
            grouped(result["canaries"]),
            str(len(case.seeds)),
        )
        for case, result in zip(chosen, found, strict=True)
    ]
    headings = (
        "setting",
        "training records",
        "test",
        "positives",
        "columns: label party / partner",
        "partner's layers",
        "batch",
        "epochs tried first",
        "canaries",
        "seeds",
    )
    return markdown_table(headings, rows)


def _layers(widths: Sequence[int]) -> str:
    return " – ".join(map(str, widths))
