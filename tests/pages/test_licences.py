"""docs/licences.md names every package that is needed, under the licence that its metadata states."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from scripts.lock import CUDA, CUDA_PARTS, DEVELOPMENT, NO_PHE, RUNNING, normal
from tests.scripts.test_locks import asked_for, lock, needed

# Where the metadata has no SPDX expression: what its licence line or its classifiers must say, if the page says this.
SAID = {
    "Apache-2.0": r"Apache",
    "BSD-2-Clause": r"BSD",
    "BSD-3-Clause": r"BSD",
    "GPL-3.0-or-later": r"GPLv3",
    "ISC": r"ISC",
    "LicenseRef-Matplotlib": r"agreement for matplotlib",
    "MIT": r"MIT",
    "MPL-2.0": r"MPL.2\.0",
}
# Licences that ask for no more than notices. A package under any other is named in the page's text, which says what
# that asks for.
PERMISSIVE = {
    *(
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "PSF-2.0",
    ),
    *("Zlib", "Apache-2.0 WITH LLVM-exception"),
}


def tables(checkout: Path) -> dict[str, dict[str, str]]:
    """Return the licences of each table by normal name, under the table's heading."""
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for line in (checkout / "docs" / "licences.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif heading in ("Running", "Development", "PyTorch built for CUDA") and line.startswith("| "):
            name, licence, _ = (cell.strip() for cell in line.strip("|").split("|"))
            if name not in ("package", "---"):
                assert normal(name) not in found.setdefault(heading, {}), f"{name} stands twice under {heading}"
                found[heading][normal(name)] = licence
    return found


def stated(package: str) -> str:
    """Return what a package's metadata says of its licence: an expression, or a text's first line and classifiers."""
    about = metadata.metadata(package)
    classifiers = [line for line in about.get_all("Classifier", []) if line.startswith("License")]
    return about.get("License-Expression") or " ".join([(about.get("License") or "").partition("\n")[0], *classifiers])


def test_the_tables_name_what_is_needed_and_nothing_else(checkout: Path) -> None:
    running = {name for name in needed(asked_for(checkout, RUNNING)[1:]) if not name.startswith(CUDA_PARTS)}
    development = {
        name for name in needed(asked_for(checkout, DEVELOPMENT)) if not name.startswith(CUDA_PARTS)
    } - running
    on_page = tables(checkout)

    assert on_page["Running"].keys() == running
    assert on_page["Development"].keys() == development
    assert on_page["PyTorch built for CUDA"].keys() == lock(checkout, CUDA).keys()


def test_the_build_backend_is_what_pyproject_lists_first(checkout: Path) -> None:
    # What the test above takes away from the running packages.
    assert asked_for(checkout, RUNNING)[0].name == "hatchling"


@pytest.mark.parametrize("heading", ["Running", "Development"])
def test_a_licence_is_the_one_that_the_metadata_states(checkout: Path, heading: str) -> None:
    for package, licence in tables(checkout)[heading].items():
        says = stated(package)
        if metadata.metadata(package).get("License-Expression"):
            assert licence == says, package
        else:
            assert re.search(SAID[licence], says), f"{package} is {licence} on the page, and says {says!r}"


def test_what_asks_for_more_than_notices_is_spoken_of_in_the_text(checkout: Path) -> None:
    text = (checkout / "docs" / "licences.md").read_text(encoding="utf-8").partition("\n## Running")[0]

    for heading in ("Running", "Development"):
        for package, licence in tables(checkout)[heading].items():
            parts = set(re.split(r" AND | OR ", licence))
            assert parts <= PERMISSIVE or f"`{package}`" in text or package == "phe", f"{package} is {licence}"


def test_phe_is_the_only_package_under_the_gpl(checkout: Path) -> None:
    licences = {**tables(checkout)["Running"], **tables(checkout)["Development"]}

    assert [package for package, licence in licences.items() if re.search(r"(?<!L)GPL", licence)] == ["phe"]


def test_the_way_without_phe_names_the_lock_file_and_the_check_of_the_image(checkout: Path) -> None:
    page = (checkout / "docs" / "licences.md").read_text(encoding="utf-8")
    image = (checkout / "docs" / "examples" / "kubernetes" / "Dockerfile").read_text(encoding="utf-8")

    assert f"-r {NO_PHE}" in page
    # tests/pages/test_several_machines_page.py runs the image's.
    (check,) = re.findall(r"\$ (pip check > .*)", page)
    assert check in image


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_page_can_be_found(checkout: Path, page: str) -> None:
    assert "licences" in (checkout / page).read_text(encoding="utf-8")
