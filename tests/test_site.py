"""The built site seen from outside, as files: what a host would serve.

Each check is a function that returns what it found wrong, so that the tests at the end can hand
it a page with that fault and see it found.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from conftest import CHAPTERS, ROOT, SCRIPTS

TEXT = {".html", ".js", ".css", ".svg", ".xml", ".txt", ".json", ".py", ".ipynb", ".md", ".rst"}


def pages(site: Path) -> dict[str, BeautifulSoup]:
    """Return the parsed pages by their path in the site."""
    return {
        path.relative_to(site).as_posix(): BeautifulSoup(path.read_text("utf-8"), "html.parser")
        for path in sorted(site.rglob("*.html"))
    }


def machine_paths(site: Path) -> Iterator[str]:
    """Yield each file that names a folder of the machine that built it."""
    folders = [str(ROOT), str(Path.home()), sys.prefix, sys.base_prefix]
    folders = [folder for folder in folders if len(Path(folder).parts) > 1]
    for path in sorted(site.rglob("*")):
        if path.suffix in TEXT:
            text = path.read_text("utf-8")
            for folder in folders:
                if folder in text:
                    line = text[: text.index(folder)].count("\n") + 1
                    yield f"{path.relative_to(site)}:{line}: {folder}"


def other_hosts(page: BeautifulSoup) -> Iterator[str]:
    """Yield each address on another host that a browser fetches to show the page."""
    for tag in page.select("script[src], img[src], iframe[src], source[src], link[href], use"):
        address = tag.get("src") or tag.get("href") or tag.get("xlink:href") or ""
        if urlsplit(address).netloc and tag.get("rel") != ["canonical"]:
            yield address
    for style in page.select("style, [style]"):
        yield from re.findall(r"url\((?:https?:)?//[^)]*\)", style.get("style") or style.text)


def broken_links(pages: dict[str, BeautifulSoup], site: Path) -> Iterator[str]:
    """Yield each link inside the site whose file or anchor is not there."""
    anchors = {
        name: {tag["id"] for tag in page.select("[id]")} | {""} for name, page in pages.items()
    }
    for name, page in pages.items():
        if name == "404.html":  # its links hold for the address the site is served from
            continue
        for tag in page.select("a[href], link[href], script[src], img[src]"):
            address = urlsplit(tag.get("href") or tag.get("src"))
            if address.scheme or address.netloc:
                continue
            target = posixpath.normpath(
                posixpath.join(posixpath.dirname(name), unquote(address.path))
                if address.path
                else name
            )
            if not (site / target).is_file():
                yield f"{name}: {tag.get('href') or tag.get('src')}: no such file"
            elif target in anchors and unquote(address.fragment) not in anchors[target]:
                yield f"{name}: {tag.get('href')}: no such anchor"


def repeated(values: dict[str, str | None]) -> list[str]:
    """Return the pages whose value is missing or that of another page."""
    counts = Counter(values.values())
    return [f"{name}: {value}" for name, value in values.items() if not value or counts[value] > 1]


def tracebacks(page: BeautifulSoup) -> list[str]:
    """Return the output blocks of a gallery page that show a traceback."""
    return [
        block.text.strip()
        for block in page.select(".sphx-glr-script-out")
        if "Traceback (most recent call last)" in block.text
    ]


def own(pages: dict[str, BeautifulSoup]) -> dict[str, BeautifulSoup]:
    """Return the pages that are about something, without search, 404 and the like."""
    helpers = {"404.html", "genindex.html", "search.html", "py-modindex.html"}
    return {name: page for name, page in pages.items() if name not in helpers}


@pytest.fixture(scope="module")
def parsed(site: Path) -> dict[str, BeautifulSoup]:
    """Return the site's pages, parsed once."""
    return pages(site)


def test_every_chapter_and_script_has_its_page(parsed: dict[str, BeautifulSoup]) -> None:
    wanted = {f"{name}.html" for name in CHAPTERS} | {f"gallery/{name}.html" for name in SCRIPTS}
    assert wanted, "no chapters found"
    assert wanted - set(parsed) == set()


def test_no_page_without_its_source(parsed: dict[str, BeautifulSoup]) -> None:
    parts = {name.partition("/")[0] for name in CHAPTERS}
    found = {
        name.removesuffix(".html").removeprefix("gallery/")
        for name in parsed
        if name.count("/") - name.startswith("gallery/") == 1 and not name.endswith("/index.html")
    }
    assert found == set(CHAPTERS) | set(SCRIPTS)
    assert parts >= {name.partition("/")[0] for name in SCRIPTS}


def test_a_script_belongs_to_the_chapter_of_its_part_and_name() -> None:
    assert set(SCRIPTS) - set(CHAPTERS) == set()


@pytest.mark.parametrize("name", SCRIPTS)
def test_chapter_and_script_link_to_each_other(parsed: dict[str, BeautifulSoup], name: str) -> None:
    chapter, script = parsed[f"{name}.html"], parsed[f"gallery/{name}.html"]
    assert chapter.select(f'article a[href$="gallery/{name}.html"]')
    assert script.select(f'article a[href="../../{name}.html"]')


def test_no_path_of_the_building_machine(site: Path) -> None:
    assert list(machine_paths(site)) == []


def test_no_unexpected_traceback(parsed: dict[str, BeautifulSoup]) -> None:
    assert {name: tracebacks(page) for name, page in parsed.items() if tracebacks(page)} == {}


def test_nothing_is_fetched_from_another_host(parsed: dict[str, BeautifulSoup]) -> None:
    assert {name: list(other_hosts(page)) for name, page in parsed.items()} == {
        name: [] for name in parsed
    }


def test_links_and_anchors_resolve(parsed: dict[str, BeautifulSoup], site: Path) -> None:
    assert list(broken_links(parsed, site)) == []


def test_titles_and_descriptions_are_there_and_unique(parsed: dict[str, BeautifulSoup]) -> None:
    titles = {name: page.title and page.title.text for name, page in own(parsed).items()}
    assert repeated(titles) == []
    descriptions = {
        name: tag and tag["content"]
        for name, page in own(parsed).items()
        for tag in [page.select_one('meta[name="description"]')]
    }
    assert repeated(descriptions) == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_chapter_carries_its_question_and_answer_as_data(
    parsed: dict[str, BeautifulSoup], name: str
) -> None:
    page = parsed[f"{name}.html"]
    data = json.loads(page.select_one('script[type="application/ld+json"]').string)
    assert (data["@context"], data["@type"]) == ("https://schema.org", "QAPage")
    question = data["mainEntity"]
    assert question["@type"] == "Question"
    assert question["name"] + "¶" == page.h1.text
    assert question["acceptedAnswer"]["@type"] == "Answer"
    shown = " ".join(page.select_one(".short-answer p:not(.admonition-title)").text.split())
    assert question["acceptedAnswer"]["text"] == shown


# What code of the pages raises itself, which no reader meets elsewhere.
OWN_ERRORS = (
    "torch.OutOfMemoryError: out of memory: ",
    "torch.OutOfMemoryError: tried ",
    "ValueError: not loaded: ",
)


def test_every_error_of_the_chapters_is_in_the_index(parsed: dict[str, BeautifulSoup]) -> None:
    there = {
        entry.h3.text.removesuffix("¶")
        for entry in parsed["errors.html"].select(".error-entry")
        if entry.select('ul a:not([href^="gallery/"])')  # scripts show errors of their own
    }
    pattern = r"^ *Traceback .*\n *\.\.\.\n *(\S.*)|^ *>>> print\(\w+\[-?\d+\]\.message\)\n *(.*)"
    wanted, own = set(), dict.fromkeys(OWN_ERRORS, 0)
    for path in (ROOT / "docs").glob("*/*.md"):
        if path.parent.name == "gallery":
            continue
        for raised, warning in re.findall(pattern, path.read_text("utf-8"), re.MULTILINE):
            text = (raised or f"Warning: {warning}").replace("...", "…").strip()
            if made := next(filter(text.startswith, OWN_ERRORS), None):
                own[made] += 1
            elif path.stem != "index" or not text.startswith("AssertionError: "):  # an exercise's
                wanted.add(text)
    assert all(own.values()), f"a page that raises its own error is gone, drop what has 0: {own}"
    assert wanted == {text.strip() for text in there}


def test_entries_lead_to_the_examples_that_raise_them(parsed: dict[str, BeautifulSoup]) -> None:
    links = [
        (entry, *link["href"].split("#"))
        for entry in parsed["errors.html"].select(".error-entry")
        for link in entry.select("ul a")
    ]
    assert links
    for entry, page, anchor in links:
        block = parsed[page].find(id=anchor)
        block = block if "highlight-pycon" in block.get("class", []) else block.parent
        block = block.find_parent(class_="predict") or block  # where the output is apart
        text = entry.h3.text.removesuffix("¶").removeprefix("Warning: ")
        assert text.partition("…")[0].strip() in block.text


def test_every_myth_is_listed_and_leads_to_its_run(parsed: dict[str, BeautifulSoup]) -> None:
    entries = parsed["myths.html"].select(".myth-entry")
    boxes = sum(len(parsed[f"{name}.html"].select(".admonition.myth")) for name in CHAPTERS)
    assert len(entries) == boxes > 0
    for entry in entries:
        page, _, anchor = entry.select("a")[-1]["href"].partition("#")
        assert "myth" in parsed[page].find(id=anchor)["class"]


def test_llms_txt_names_every_chapter_and_every_link_resolves(site: Path) -> None:
    links = re.findall(r"\]\((.*?)\)", (site / "llms.txt").read_text("utf-8"))
    assert {f"{name}.md" for name in CHAPTERS} - set(links) == set()
    assert [link for link in links if not (site / link).is_file()] == []
    for name in CHAPTERS:
        source = ROOT / "docs" / f"{name}.md"
        assert (site / f"{name}.md").read_bytes() == source.read_bytes()


def test_a_shared_link_has_a_title_a_picture_and_an_address(
    parsed: dict[str, BeautifulSoup], site: Path
) -> None:
    for name, page in own(parsed).items():
        said = {tag["property"]: tag["content"] for tag in page.select('meta[property^="og:"]')}
        assert said["og:url"].endswith(name), name
        assert said["og:title"] in page.title.text, name
        assert said["og:type"] == "website", name
        assert (site / "_static" / said["og:image"].rpartition("/")[2]).is_file(), name


def test_sitemap_names_every_page(parsed: dict[str, BeautifulSoup], site: Path) -> None:
    named = set(re.findall(r"<loc>https?://[^/]+/(.*?)</loc>", (site / "sitemap.xml").read_text()))
    assert set(own(parsed)) - named == set()


# Each check above, seen to fail.


def soup(body: str) -> BeautifulSoup:
    return BeautifulSoup(body, "html.parser")


def test_machine_path_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(f"<p>\n{ROOT}/docs/a.md</p>")
    assert next(machine_paths(tmp_path)).startswith("a.html:2: ")


@pytest.mark.parametrize(
    "body",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<img src="http://example.org/pixel.gif">',
        "<style>@import url(https://fonts.example/css);</style>",
        '<p style="background: url(//example.org/a.png)">',
    ],
)
def test_other_host_is_found(body: str) -> None:
    assert len(list(other_hosts(soup(body)))) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('<a href="b.html">', "b.html: no such file"),
        ('<a href="#x">', "#x: no such anchor"),
        ('<a href="a.html#x">', "a.html#x: no such anchor"),
        ('<img src="a.svg">', "a.svg: no such file"),
    ],
)
def test_broken_link_is_found(tmp_path: Path, body: str, says: str) -> None:
    (tmp_path / "a.html").write_text(body)
    assert list(broken_links(pages(tmp_path), tmp_path)) == [f"a.html: {says}"]


def test_repeated_or_missing_title_is_found() -> None:
    assert repeated({"a": "T", "b": "T", "c": "U", "d": None}) == ["a: T", "b: T", "d: None"]


def test_traceback_is_found() -> None:
    body = '<div class="sphx-glr-script-out"><pre>Traceback (most recent call last)</pre></div>'
    assert len(tracebacks(soup(body))) == 1
