"""The page of all keys is what the code says, whole, valid, and without a word of the library that checks the files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import experiment_keys
from splitvfl.config.keys import experiment_keys as all_keys
from splitvfl.config.keys import flat, options_of
from splitvfl.config.registry import built_in
from splitvfl.config.sections import parse_config

PARTIES = "parties: {clinic: {role: active, columns: 0.5}, lab: {role: passive, columns: rest}}\n"


@pytest.fixture(scope="module")
def page() -> str:
    return experiment_keys.page()


def test_the_page_is_up_to_date(page: str) -> None:
    written = experiment_keys.PAGE.read_text(encoding="utf-8")

    assert written == page, "run python -m scripts.experiment_keys"


def test_every_key_and_option_is_on_it(page: str) -> None:
    for place, key in flat(all_keys()):
        assert f"`{place}`" in page, place
        assert key.meaning in page
    for kind in experiment_keys.KINDS:
        for name, factory in built_in(kind).items():
            assert f"### `{name}`" in page
            for place, key in flat(options_of(kind, factory)):
                assert f"| `{place}` | {key.takes} |" in page, (kind, name, place)


def test_nothing_of_the_insides_is_on_it(page: str) -> None:
    assert not re.search(
        r"pydantic|Annotated|typing|FieldInfo|Validator|NoneType|<class|<function|Optional\[|``(?!`)",
        page.replace("```", ""),
    )
    # A row of a table has as many cells as its head.
    assert {line.count(" | ") for line in page.splitlines() if line.startswith("| ")} == {3}


def test_every_example_is_one(page: str) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)

    assert len(examples) > 40
    for text in examples:
        linear = re.search(r"exchange: \{?(name: )?(residue|taylor|coordinator|oracle|hybrid)|scores_by", text)
        missing = {
            "data:": "data: breast-cancer\n",
            "parties:": PARTIES,
            "model:": "model: logistic-regression\n" if linear else "",
        }
        parse_config(text + "".join(more for key, more in missing.items() if key not in text), source="example.yaml")


def test_it_is_written_where_one_wants_it(tmp_path: Path, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "keys.md"

    assert experiment_keys.main(["--out", str(out)]) == 0

    assert out.read_text(encoding="utf-8") == page
    assert capsys.readouterr().out == f"{out}\n"
