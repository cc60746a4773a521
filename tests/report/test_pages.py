"""What all pages have in common: a policy for the browser, links that lead to files and to nothing else, plain text."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

import pytest

from splitvfl.errors import CheckpointError, printable
from splitvfl.report.audit_file import read_audit
from splitvfl.report.audit_page import audit_page, write_audit_page
from splitvfl.report.drawing import drawing_style, inline_svg, new_figure
from splitvfl.report.pages import POLICY, link_from
from splitvfl.report.report import write_report
from tests.report.test_audit_page import PROMISED, Texts, audit
from tests.report.test_report import Outline, outline, page_of, run, stored

FOLDERS = [
    "javascript:alert(1)",
    "data:text,hi",
    "file:",
    "C:",
    "a:b@c",
    r"\\host\share",
    "two words",
    "run#1",
    "what?now=1&a=2",
    "100%25",
    "%2e%2e%2fup",
    "q\"uo'te<b>",
    "line\nbreak\ttab",
    "Zoë-Ωmega",
    "turned\u202etxt",
    "\x1b[2J",
    "n" * 255,
    "\udcff.not-utf-8",
]
LOADS = {"src", "href", "xlink:href", "action", "formaction", "srcset", "data", "poster", "ping"}
HOSTILE = "a\u202eb\x1b[2J\u2066c\x00d\n\u200be"
STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def led_to(link: str, page: Path) -> Path:
    """The file that a browser opens for a link on a page, by RFC 3986."""
    parts = urlsplit(link)
    assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("", "", "", "")
    return page.parent / os.fsdecode(unquote_to_bytes(parts.path))


def links(page: str) -> list[str]:
    """Every target of anything on a page that a browser could load or go to, but for places in the page itself."""
    found = [value or "" for _, attributes in outline(page).tags for name, value in attributes.items() if name in LOADS]
    return [link for link in found if not link.startswith("#")]


def audited(folder: Path) -> Path:
    """A run with an audit and its page, as the command writes them."""
    stored(folder, run())
    found = audit(PROMISED).as_json()
    (folder / "audit.json").write_text(json.dumps(found), encoding="utf-8")
    write_audit_page(found, folder / "audit.html")
    return folder


def test_a_link_leads_to_its_file_whatever_folders_are_called(tmp_path: Path) -> None:
    inbox, page = tmp_path / "inbox", tmp_path / "inbox" / "report.html"
    files = [audited(inbox / name) / "audit.html" for name in FOLDERS]
    found = links(write_report([inbox], page, title="t").read_text("utf-8"))
    quoted = re.compile(r"\./(?:[\w.~-]|%[0-9A-F]{2})+/audit\.html", re.ASCII)
    assert [link for link in found if not quoted.fullmatch(link)] == [], "nothing but a path, quoted"
    assert sorted(led_to(link, page).stat().st_ino for link in found) == sorted(file.stat().st_ino for file in files)


def test_a_link_leads_up_and_down_again(tmp_path: Path) -> None:
    file = audited(tmp_path / "runs" / "two words") / "audit.html"
    for beside in FOLDERS:
        place = tmp_path / "pages" / beside
        place.mkdir(parents=True)
        link = link_from(place, file)
        assert link.startswith("./../")
        assert led_to(link, place / "report.html").samefile(file)
    assert links(write_report([file.parent], place / "report.html", title="t").read_text("utf-8")) == [link]


def test_a_link_to_a_file_beside_the_page_begins_with_a_dot() -> None:
    assert link_from(Path("x"), Path("x/javascript:1")) == "./javascript%3A1"
    assert link_from(Path("x"), Path("x/.../a")) == "./.../a"


def policies(page: str) -> list[str]:
    """The policies that a browser finds on a page."""
    tags = outline(page).tags
    at = next(place for place, (tag, _) in enumerate(tags) if tag == "head")
    tag, attributes = tags[at + 1]
    assert (tag, attributes["http-equiv"]) == ("meta", "Content-Security-Policy"), "nothing comes before it"
    return [one["content"] or "" for tag, one in tags if tag == "meta" and "http-equiv" in one]


@pytest.mark.usefixtures("drawn")
def test_pages_forbid_the_browser_all_that_they_do_not_need(tmp_path: Path) -> None:
    pages = [page_of(tmp_path, run(), run("max-norm")), audit_page(audit(PROMISED).as_json())]
    for page in pages:
        (policy,) = policies(page)
        allowed = {key: values for key, *values in map(str.split, policy.split(";"))}
        assert allowed == {
            "default-src": ["'none'"],
            "style-src": ["'unsafe-inline'"],
            "img-src": ["data:"],
            "base-uri": ["'none'"],
            "form-action": ["'none'"],
        }
        assert policy == POLICY
        # What the policy would stop is not there to begin with.
        tags = outline(page).tags
        assert {"script", "iframe", "object", "embed", "form", "base", "link"}.isdisjoint(tag for tag, _ in tags)
        assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
        assert page.index("charset") < 1024, "browsers look no further for it"


@pytest.mark.usefixtures("drawn")
def test_every_target_on_a_page_is_in_it_or_a_quoted_path(tmp_path: Path) -> None:
    folder = audited(tmp_path / "javascript:alert(1)")
    plain = stored(tmp_path / "other", run("max-norm"))
    page = write_report([folder, plain], tmp_path / "report.html", title="t").read_text(encoding="utf-8")
    assert {link for link in links(page) if not link.startswith("data:image/")} == {
        "./javascript%3Aalert%281%29/audit.html"
    }
    assert re.search(r"""@import|url\(["']?(?!#)""", page) is None


# --- a page that somebody else has put there


def test_an_audit_page_that_is_not_made_of_the_audit_is_named_and_not_linked(tmp_path: Path) -> None:
    folder = audited(tmp_path / "run")
    (folder / "audit.html").write_text("<script>alert(3)</script>", encoding="utf-8")
    page = write_report([folder], tmp_path / "report.html", title="t").read_text(encoding="utf-8")
    assert links(page) == []
    assert "audit.html" in "".join(outline(page).text), "that it is there is said"
    (folder / "audit.html").unlink()
    page = write_report([folder], tmp_path / "report.html", title="t").read_text(encoding="utf-8")
    assert "audit.html" not in "".join(outline(page).text)


def test_an_audit_page_of_another_audit_is_not_linked(tmp_path: Path) -> None:
    folder = audited(tmp_path / "run")
    write_audit_page(audit(PROMISED, gaps=("Nothing at all.",)).as_json(), folder / "audit.html")
    assert links(write_report([folder], tmp_path / "report.html", title="t").read_text("utf-8")) == []


def test_an_audit_page_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = audited(tmp_path / "run")
    (folder / "audit.html").rename(tmp_path / "elsewhere.html")
    (folder / "audit.html").symlink_to(tmp_path / "elsewhere.html")
    with pytest.raises(CheckpointError, match=r"audit\.html is a link"):
        write_report([folder], tmp_path / "report.html", title="t")


def test_a_page_beside_an_audit_of_which_none_can_be_made_is_not_linked(tmp_path: Path) -> None:
    folder = audited(tmp_path / "run")
    changed = json.loads((folder / "audit.json").read_text("utf-8"))
    del changed["notes"]
    (folder / "audit.json").write_text(json.dumps(changed), encoding="utf-8")
    page = write_report([folder], tmp_path / "report.html", title="t").read_text(encoding="utf-8")
    assert links(page) == []
    assert "It is not linked" in "".join(outline(page).text)


# --- text that steers


def test_no_text_on_a_page_turns_or_hides_what_stands_beside_it(tmp_path: Path) -> None:
    found = audit(PROMISED, experiment=HOSTILE, gaps=(HOSTILE,), notes=(HOSTILE,)).as_json()
    hostile = run(HOSTILE, attack=HOSTILE, name=HOSTILE, data=HOSTILE, model=HOSTILE)
    folder = stored(tmp_path / HOSTILE.replace("\x00", ""), hostile, settings=f"name: {json.dumps(HOSTILE)}\n")
    (folder / "experiment.yaml").write_text(f'name: a\u202eb # {HOSTILE!r}\nx: "\u2066"\n', encoding="utf-8")
    (folder / "audit.json").write_text(json.dumps(found), encoding="utf-8")
    write_audit_page(found, folder / "audit.html")
    page = write_report([folder], tmp_path / "report.html", title=HOSTILE).read_text(encoding="utf-8")
    assert not STEERING.search(page)
    assert not STEERING.search(audit_page(found))
    assert printable(HOSTILE) in "".join(outline(page).text)
    assert printable(HOSTILE) in Texts(audit_page(found)).shown
    assert len(links(page)) == 1, "and the page of the audit is known again"
    assert not STEERING.search(json.dumps(read_audit(folder), ensure_ascii=False))


@pytest.mark.usefixtures("drawn")
def test_names_in_drawings_are_text_and_never_ids_or_colours() -> None:
    name, parsed = 'id="x" href="#y" url(#z) #010203 <b>', Outline()
    with drawing_style():
        drawn = new_figure(1.0)
        drawn.subplots().set_title(name, parse_math=False)
        parsed.feed(inline_svg(drawn, "first"))
    assert name in "".join(parsed.text)
