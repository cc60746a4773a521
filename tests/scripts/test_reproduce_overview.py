"""The overview of all claims, and the committed pages that it is made of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from scripts.reproduce import __main__ as everything
from scripts.reproduce.shared.claims import VERDICTS, Claim, Verdict, claims_table
from scripts.reproduce.shared.overview import NAME, Row, made_of, overview, rows_of
from scripts.reproduce.shared.papers import PAPERS
from scripts.reproduce.shared.statements import NOT_JUDGED, Statement, statements_table
from splitvfl.errors import ArgumentError

HEAD = "| claim | published | ours | seeds | verdict | why |"

ODD = Claim(
    claim="‖a | b‖ is small, E |x|",
    published=0.5,
    ours=-0.01,
    interval=(-0.02, 0.0),
    seeds=3,
    verdict="only with a variant",
    why="with | in it |",
)


@pytest.fixture
def results(checkout: Path) -> Path:
    return checkout / "docs" / "results"


# The committed pages


def test_the_overview_is_up_to_date(results: Path) -> None:
    assert (results / NAME).read_text(encoding="utf-8") == overview(results), "run python -m scripts.reproduce overview"


@pytest.mark.parametrize("paper", PAPERS, ids=lambda entry: entry.name)
def test_the_overview_has_every_row_of_the_pages_and_no_other(results: Path, paper: object) -> None:
    page, section = _page_and_section(results, paper)
    table = {line for line in section.splitlines() if line.startswith("|")}

    # Another way than the code's: the last column is cut off from the right.
    rows = {line.rsplit(" | ", 1)[0] + " |" for line in _claim_lines(page)} | _numbered_lines(page)

    assert table - rows <= {"| claim | published | ours | seeds | verdict |", "| --- | ---: | ---: | ---: | --- |"}
    assert rows <= table


def _page_and_section(results: Path, paper: object) -> tuple[str, str]:
    title, name = paper.title, paper.page  # type: ignore[attr-defined]
    path = results / f"{name}.md"
    text = (results / NAME).read_text(encoding="utf-8")
    section = text[text.index(f"## {title}\n") + 3 :].partition("\n## ")[0]
    return path.read_text(encoding="utf-8") if path.is_file() else "", section


def _claim_lines(page: str) -> list[str]:
    tables = re.findall(rf"^{re.escape(HEAD)}\n\|[ :|-]+\|\n((?:\|.*\n)*)", page + "\n", flags=re.MULTILINE)
    return [line for table in tables for line in table.splitlines()]


def _numbered_lines(page: str) -> set[str]:
    """Rows of numbered claims as they stand on the overview."""
    head = re.escape("| number | what it says | shown by | verdict | variant, why |")
    tables = re.findall(rf"^{head}\n\|[ :|-]+\|\n((?:\|.*\n)*)", page + "\n", flags=re.MULTILINE)
    lines = [line.split(" | ") for table in tables for line in table.splitlines()]
    return {f"{number}: {says} | – | – | – | {verdict} |" for number, says, _, verdict, *_ in lines}


def test_no_committed_page_has_another_verdict(results: Path) -> None:
    """Of any table with a column of that name, whatever the others are."""
    for path in results.glob("*.md"):
        column, heading = None, ""
        for line in path.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
            if not line.startswith("|"):
                column = None
            elif column is None:
                column, heading = cells.index("verdict") if "verdict" in cells else -1, line
            elif column > 0 and not set(cells[column]) <= set(":-"):
                # Of a numbered statement whose words are not at hand a table may say so.
                numbered = "shown by" in heading or path.name == NAME
                allowed = {*VERDICTS, NOT_JUDGED} if numbered else VERDICTS
                assert cells[column] in allowed, (path.name, line)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda entry: entry.name)
def test_a_row_that_names_a_bound_reproduces_by_its_whole_interval(results: Path, paper: object) -> None:
    """Of claims that something is above a figure; the pages say in words where a verdict is about a mean."""
    page, _ = _page_and_section(results, paper)
    for line in _claim_lines(page):
        claim, _, ours, _, verdict, why = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        bound = re.search(r"\babove (\.\d+)", claim)
        ends = re.search(r"\((-?[.\d]+) to (-?[.\d]+)\)", ours)
        if bound and ends and verdict == "reproduces":
            assert float(ends[1]) > float(bound[1]), line
        if (
            ends
            and re.search(r"\b(AUC|accuracy)\b", claim)
            and not re.search(r"less|differ|gain|rises|falls", claim + why)
        ):
            assert float(ends[2]) <= 1.0, line


def test_no_committed_page_is_of_a_quick_run_or_of_some_parts(results: Path) -> None:
    for paper in PAPERS:
        page, _ = _page_and_section(results, paper)
        assert "quick run on little data" not in "".join(made_of(page)), paper.page
        assert "Without these parts" not in "".join(made_of(page)), paper.page


def test_verdicts_are_defined_once(results: Path) -> None:
    text = (results / NAME).read_text(encoding="utf-8")

    assert tuple(VERDICTS) == get_args(Verdict)
    assert re.findall(r"^- \*([^*]+)\*: ", text, flags=re.MULTILINE) == list(VERDICTS)


# Reading pages


def test_rows_are_read_as_they_were_written() -> None:
    page = f"# A page\n\n| data | size |\n| --- | --- |\n| x | y |\n\n{claims_table([ODD, ODD])}\n\nMore.\n"

    assert (
        rows_of(page + page)
        == [Row("‖a \\| b‖ is small, E \\|x\\|", ".500", "-.010 (-.020 to .000)", "3", "only with a variant")] * 4
    )
    assert rows_of("# Nothing\n") == []


def test_numbered_claims_are_rows_without_figures() -> None:
    proved = Statement(number="lemma 1", says="|a| ≤ b", tests=("tests/x.py::test_y",), verdict="reproduces", why="so")
    unseen = Statement(number="lemma 2", says="", verdict=None, why="")

    assert rows_of(statements_table([proved, unseen])) == [
        Row("lemma 1: \\|a\\| ≤ b", "–", "–", "–", "reproduces"),
        Row("lemma 2: ", "–", "–", "–", NOT_JUDGED),
    ]
    with pytest.raises(ArgumentError, match="not judged"):
        rows_of(statements_table([proved]).replace("reproduces", "never"))


def test_other_verdicts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = claims_table([ODD]).replace("only with a variant", "partly")
    with pytest.raises(ArgumentError, match=r"expected a verdict of reproduces, .*, got 'partly'"):
        rows_of(page)
    with pytest.raises(ArgumentError, match="expected 6 cells, got 5"):
        rows_of(claims_table([ODD]).replace("| 3 ", ""))

    (tmp_path / f"{PAPERS[0].page}.md").write_text(page, encoding="utf-8")
    assert everything.main(["overview", "--pages", str(tmp_path)]) == 2
    assert "got 'partly'" in capsys.readouterr().err
    assert not (tmp_path / NAME).exists()


def test_how_a_page_was_made_is_taken_over(tmp_path: Path) -> None:
    bullets = [
        "- **Without rows of census**: there was no `c`.",
        "- 8 cells, runs: 9 s.",
        "- No cell is of older code.",
    ]
    page = "\n".join(["# A page", "", "- 3 cells.", "", "## How this page was made", "", *bullets, "- What else."])
    (tmp_path / f"{PAPERS[1].page}.md").write_text(page + f"\n\n{claims_table([ODD])}\n", encoding="utf-8")

    text = overview(tmp_path)

    assert made_of(page) == bullets
    assert "\n".join(bullets) in text
    assert "What else" not in text
    assert f"| {PAPERS[1].title} | 1 | 0 | 1 | 0 |" in text
    assert text.count("There is no page yet") == len(PAPERS) - 1


@pytest.mark.parametrize("what", ["nothing", "a file"])
def test_pages_that_are_not_there_are_named(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "pages"
    if what == "a file":
        place.write_text("mine")

    assert everything.main(["overview", "--pages", str(place)]) == 2

    assert capsys.readouterr().err == f"overview: {place}: expected a folder with pages, there is none\n"
    assert not place.is_dir()


def test_the_command_writes_it_where_the_pages_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert everything.main(["overview", "--pages", str(tmp_path)]) == 0

    assert (tmp_path / NAME).read_text(encoding="utf-8") == overview(tmp_path)
    assert str(tmp_path / NAME) in capsys.readouterr().out
