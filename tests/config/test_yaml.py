from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitvfl.config.yaml import DEEPEST, Document, parse_override, place_in, to_yaml
from splitvfl.errors import ConfigError


def read(text: str) -> dict[str, Any]:
    document = Document(text, source="file.yaml")
    document.raise_problems()
    return document.tree


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


# The spellings of the YAML 1.2 core schema (section 10.3.2 of its specification) that differ from YAML 1.1 or are close
# to those that do.
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-.5", -0.5),
        ("3.", 3.0),
        ("-.inf", float("-inf")),
        ("0123", 123),
        ("+7", 7),
        ("-0", 0),
        ("10_000", "10_000"),
        ("1:30", "1:30"),
        ("2024-01-31", "2024-01-31"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("True", True),
        ("false", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("'1e-3'", "1e-3"),
        ('"true"', "true"),
        ("=", "="),
        ("1e", "1e"),
        (".", "."),
    ],
)
def test_scalars_are_those_of_yaml_1_2(written: str, value: object) -> None:
    found = read(f"key: {written}")["key"]

    assert found == value
    assert type(found) is type(value)


def test_merge_keys_are_keys_like_others() -> None:
    assert read("<<: {a: 1}") == {"<<": {"a": 1}}


TRICKY = st.sampled_from(
    ["1e-3", "yes", "~", "null", "True", ".inf", "-", "a: b", "# no", "", "1:2", "<<", "&a", "*", "\x85"]
)
WORDS = TRICKY | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.none() | st.booleans() | st.integers()


def trees(words: st.SearchStrategy[str], numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    inside = st.recursive(words | numbers, lambda inner: st.lists(inner) | st.dictionaries(words, inner), max_leaves=6)
    return st.dictionaries(words, inside, min_size=1, max_size=4)


@settings(max_examples=60)
@given(trees(WORDS, NUMBERS | st.floats(allow_nan=False)))
def test_what_is_written_reads_back_the_same(tree: dict[str, Any]) -> None:
    # Compared as text too, which tells 1, 1.0 and True apart.
    assert repr(read(to_yaml(tree))) == repr(tree)


# JSON spells a character beyond 0xFFFF as two halves, which YAML does not join.
JSON_WORDS = TRICKY | st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF), max_size=20)


@settings(max_examples=60)
@given(trees(JSON_WORDS, NUMBERS | st.floats(allow_nan=False, allow_infinity=False)))
def test_json_means_the_same_in_a_file_and_on_the_command_line(tree: dict[str, Any]) -> None:
    written = json.dumps(tree)

    assert repr(read(written)) == repr(tree)
    assert repr(parse_override(f"some.key={written}")) == repr((("some", "key"), tree))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: [1, 2\nc: 3", "file.yaml:3:2: not YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("a:\n\t- 1", "file.yaml:2:1: not YAML"),
        ("a:\n\t- 1", "indent with spaces"),
        ("a: 1\n---\nb: 2", "file.yaml:2:1: not YAML: expected a single document in the stream"),
        ("a: 1\nb: \x01", "file.yaml:2: not YAML: special characters are not allowed, U+0001"),
        ("a: &x [1]\nb: *x", "file.yaml:1:4: not YAML: anchors and aliases are not supported"),
        ("a: *x", "file.yaml:1:4: not YAML: anchors and aliases are not supported"),
        ("a: " + "[" * 5000, "nested more than"),
        ("", "file.yaml: the file is empty"),
        ("# only a comment", "file.yaml: the file is empty"),
        ("- a\n- b", "file.yaml: expected keys with values, such as `data:`, got a list"),
        ("train", "file.yaml: expected keys with values, such as `data:`, got 'train'"),
        ("a: 1\n\nb: {c: 1, c: 2}", "file.yaml:3: b.c: given twice, first on line 3"),
        ("a: 1\nb: 2\na: 3", "file.yaml:3: a: given twice, first on line 1"),
        ("3: a", "file.yaml:1: 3: expected text as a key; put it in quotes"),
        ("[1, 2]: a", "expected text as a key"),
        ("a: !!python/name:os.getcwd x", "the tag !!python/name:os.getcwd is not supported"),
        ("a:\n- !!binary aGk=", "file.yaml:2: a.0: the tag !!binary is not supported"),
        ("a: !mine 3", "the tag !mine is not supported"),
        ('"\\ud800": 1', "file.yaml:1: \ud800: '\\ud800' cannot be read as str"),
        ("a: !!int ten", "file.yaml:1: a: 'ten' cannot be read as int"),
        ('a: "\\ud800"', "file.yaml:1: a: '\\ud800' cannot be read as str"),
    ],
)
def test_what_is_not_understood_is_told_with_its_place(text: str, told: str) -> None:
    assert told in problem(text)


def test_tags_on_lists_and_mappings_run_nothing() -> None:
    assert read("a: !!python/object/apply:os.abort []\nb: !!set {c: 1}") == {"a": [], "b": {"c": 1}}


def test_every_problem_is_told_in_the_order_of_the_text() -> None:
    lines = problem("b: 1\na: 2\nb: 3\n4: 5\na: 6").splitlines()

    assert [line.split(":")[1] for line in lines] == ["3", "4", "5"]


def test_the_deepest_nesting_that_is_allowed_is_read() -> None:
    assert read("a: " + "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1))


@pytest.mark.parametrize("text", ["train", "=3", "a..b=3", ".a=3", "a.=3", ""])
def test_an_override_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected key=value, such as train\.epochs=3, got"):
        parse_override(text)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("[::1]:7341", "[::1]:7341"),
        ("[fe80::1%eth0]:7341", "[fe80::1%eth0]:7341"),
        *((text, text) for text in ("on", "no", "12:30", "2024-01-31", "1_000", "0x10", "*", "*.csv", "@x", "`x", "%")),
        *(
            (text, text)
            for text in ("a: b", "a:", "a: b: c", "x: [", "- x", "-", "?", ": x", "|", ">", ",", "&x", "!x")
        ),
        *((text, text) for text in ("price #1", "5 # five", "# x", "---", "...", "]", "it's", "a\nb")),
        ("1e5", 1e5),
        (" 3 ", 3),
        ("true", True),
        ("null", None),
        ("", None),
        ("[Age]", ["Age"]),
        ("['[::1]:7341']", ["[::1]:7341"]),
        ("'1'", "1"),
        ('"[Age"', "[Age"),
        ("{name: sgd}", {"name": "sgd"}),
    ],
)
def test_an_override_is_read_as_it_is_typed(written: str, value: object) -> None:
    assert repr(parse_override(f"a.b={written}")) == repr((("a", "b"), value))


@pytest.mark.parametrize("value", ["[Age", "{", "'x", '"x', "[price [EUR]]", "['a' b]", "[a, *b]", "[::1]"])
def test_what_opens_and_is_not_closed_is_refused_with_how_to_write_it(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^a\.b:1:\d+: not YAML.*in quotes"):
        parse_override(f"a.b={value}")


@pytest.mark.parametrize("value", ["[a] # b", "'x' # y"])
def test_nothing_comes_after_a_list_or_text_in_quotes(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^a\.b: expected nothing after"):
        parse_override(f"a.b={value}")


@pytest.mark.parametrize("value", ["x\x01", "[x\x01]"])
def test_what_no_text_may_hold_is_refused_in_an_override(value: str) -> None:
    with pytest.raises(ConfigError, match="special characters are not allowed, U\\+0001"):
        parse_override(f"a.b={value}")


@pytest.mark.parametrize(("value", "told"), [("[1", "not YAML"), ("{a: 1, a: 2}", "given twice")])
def test_a_value_that_is_not_yaml_is_refused_with_its_key(value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"^a\.b.*{told}"):
        parse_override(f"a.b={value}")


@pytest.mark.parametrize(
    ("keys", "value", "expected"),
    [
        ("a", 5, {"a": 5, "b": [1, {"c": 2}]}),
        ("b.0", 5, {"a": 1, "b": [5, {"c": 2}]}),
        ("b.1.c", 5, {"a": 1, "b": [1, {"c": 5}]}),
        ("b.1.d", 5, {"a": 1, "b": [1, {"c": 2, "d": 5}]}),
        ("d.e.f", 5, {"a": 1, "b": [1, {"c": 2}], "d": {"e": {"f": 5}}}),
    ],
)
def test_assign_changes_one_place(keys: str, value: object, expected: object) -> None:
    document = Document("a: 1\nb: [1, {c: 2}]", source="file.yaml")

    document.assign(keys.split("."), value)

    assert document.tree == expected


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("a.b", "a.b: no such key: a is 1"),
        ("a.b.c", "a.b: no such key: a is 1"),
        ("b.2", "b.2: expected one of the 2 items of b, counted from 0"),
        ("b.first", "b.first: expected one of the 2 items of b, counted from 0"),
        ("b.-1", "b.-1: expected one of the 2 items of b, counted from 0"),
        ("d.0.name", "d: there is no list yet; give all of it, as in d=[...]"),
    ],
)
def test_assign_refuses_places_that_do_not_exist(keys: str, told: str) -> None:
    document = Document("a: 1\nb: [1, {c: 2}]", source="file.yaml")

    with pytest.raises(ConfigError) as caught:
        document.assign(keys.split("."), 5)

    assert str(caught.value) == told


def test_problems_of_assigned_values_are_told_as_of_the_command_line() -> None:
    document = Document("a: {b: 1,\n  c: 2}\nd:\n  - 1", source="file.yaml")
    document.assign(["a", "c"], {"e": 1})

    for place in (("a", "b"), ("a", "c", "e"), ("a",), ("a", "x"), ("d", 0), ()):
        document.report(place, "wrong")

    with pytest.raises(ConfigError) as caught:
        document.raise_problems()
    assert str(caught.value).splitlines() == [
        "file.yaml: wrong",
        "file.yaml:1: a.b: wrong",
        "file.yaml:1 + command line: a: wrong",
        "file.yaml:1 + command line: a.x: wrong",
        "file.yaml:4: d.0: wrong",
        "file.yaml + command line: a.c.e: wrong",
    ]


def test_an_error_beyond_the_end_of_a_list_is_at_the_list() -> None:
    # As of a pair of which one number is given.
    tree = {"range": [1]}

    assert place_in(("range", 1), tree) == ("range",)
    assert place_in(("range", 0), tree) == ("range", 0)
