"""What programs read: llms.txt, Markdown beside the pages, structured data of the right shape."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup
from conftest import CHAPTERS, Build, Built
from for_machines import contents
from test_chapters import CONF, GOOD, PART

EXTENSIONS = ["strict_doctest", "chapters", "for_machines"]
INDEX = "# The book\n\nIt answers\nquestions.\n\nMore.\n\n```{toctree}\npart/index\nabout\n```\n"

# schema.org's properties of these types, as far as they are used, and what each may hold.
SHAPES: dict[str, dict[str, type | str]] = {
    "QAPage": {"mainEntity": "Question"},
    "Question": {
        "name": str,
        "alternateName": list,
        "answerCount": int,
        "acceptedAnswer": "Answer",
    },
    "Answer": {"text": str},
}
NEEDED = {
    "QAPage": {"mainEntity"},
    "Question": {"name", "answerCount", "acceptedAnswer"},
    "Answer": {"text"},
}


def run(build: Build, pages: dict[str, str | None] | None = None) -> Built:
    first = {"index.md": INDEX, "about.md": "# About [this]\n", "part/index.md": PART}
    first |= {"part/chapter.md": GOOD}
    return build({**first, **(pages or {})}, extensions=EXTENSIONS, conf=CONF)


def shape_errors(thing: dict[str, object], kind: str) -> list[str]:
    """Return what keeps a thing from being one of schema.org's of this type."""
    if thing.get("@type") != kind:
        return [f"{thing.get('@type')} where a {kind} belongs"]
    given = thing.keys() - {"@type", "@context"}
    wrong = [f"{kind} has no {name}" for name in sorted(NEEDED[kind] - given)]
    for name in sorted(given):
        wanted, value = SHAPES[kind].get(name), thing[name]
        if wanted is None:
            wrong.append(f"{kind}.{name} does not exist")
        elif isinstance(wanted, str):
            wrong += shape_errors(value, wanted)
        elif not isinstance(value, wanted) or value in ("", []):
            wrong.append(f"{kind}.{name} is {value!r}")
    return wrong


def test_llms_txt_lists_parts_chapters_and_other_pages(build: Build) -> None:
    built = run(build)
    assert built.status == 0, built.errors
    title, summary, how, *lines = built.read("llms.txt").split("\n\n")
    assert title == "# The book"
    assert summary == "> It answers questions."
    assert "`{doctest}`" in how
    assert lines == [
        *("## Part", "- [Why does it add up?](part/chapter.md): It adds up."),
        *("## Optional", "- [About \\[this\\]](about.html)\n"),
    ]


def test_markdown_beside_the_page_is_the_source(build: Build, tmp_path: Path) -> None:
    built = run(build)
    source = (tmp_path / "docs/part/chapter.md").read_bytes()
    assert (built.out / "part/chapter.md").read_bytes() == source
    page = BeautifulSoup(built.read("part/chapter.html"), "html.parser")
    (link,) = page.select('link[rel="alternate"][type="text/markdown"]')
    assert link["href"] == "chapter.md"
    assert not (built.out / "about.md").exists()
    assert "text/markdown" not in built.read("about.html")


def test_both_follow_the_chapters(build: Build) -> None:
    more = {"part/index.md": PART.replace("chapter\n", "chapter\nother\n"), "part/other.md": GOOD}
    assert (run(build, more).out / "part/other.md").exists()
    built = run(build, {"part/other.md": None})
    assert not (built.out / "part/other.md").exists()
    assert "other" not in built.read("llms.txt")
    built = run(build, {"part/chapter.md": GOOD.replace("It adds up. Then", "It sums. Then")})
    assert ": It sums." in built.read("llms.txt")
    assert "It sums. Then" in built.read("part/chapter.md")


def test_sitemap_names_every_page_also_after_a_build_that_wrote_one(build: Build) -> None:
    conf = f"{CONF}\nhtml_baseurl = 'https://example.org/a&b/'"
    pages = {"index.md": INDEX, "about.md": "# About\n", "part/index.md": PART}
    pages |= {"part/chapter.md": GOOD}
    whole = build(pages, extensions=EXTENSIONS, conf=conf).read("sitemap.xml")
    assert [loc.text for loc in ElementTree.fromstring(whole).findall(".//{*}loc")] == [
        f"https://example.org/a&b/{page}.html"
        for page in ("about", "index", "part/chapter", "part/index")
    ]
    again = build({"about.md": "# About us\n"}, extensions=EXTENSIONS, conf=conf)
    assert again.read("sitemap.xml") == whole


def test_contents_without_other_pages() -> None:
    text = contents("T", "S", [("P", [("Q?", "p/q.md", "A.")])])
    assert text.startswith("# T\n\n> S\n\n")
    assert text.endswith("\n\n## P\n\n- [Q?](p/q.md): A.\n")


@pytest.mark.parametrize("name", CHAPTERS)
def test_structured_data_has_schema_orgs_shape(site: Path, name: str) -> None:
    page = (site / f"{name}.html").read_text("utf-8")
    scripts = re.findall(r'<script type="application/ld\+json">(.*?)</script>', page, re.DOTALL)
    assert len(scripts) == 1
    data = json.loads(scripts[0])
    assert data["@context"] == "https://schema.org"
    assert shape_errors(data, "QAPage") == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"Answer"', '"Reply"', "Reply where a Answer belongs"),
        ('"text": "A."', '"text": ""', "Answer.text is ''"),
        ('"text": "A."', '"txt": "A."', "Answer has no text"),
        ('"answerCount": 1', '"answerCount": "1"', "Question.answerCount is '1'"),
        ('"answerCount": 1', '"answers": 1', "Question.answers does not exist"),
    ],
)
def test_wrong_shape_is_found(old: str, new: str, says: str) -> None:
    good = (
        '{"@type": "QAPage", "mainEntity": {"@type": "Question", "name": "Q?", "answerCount": 1, '
        '"acceptedAnswer": {"@type": "Answer", "text": "A."}}}'
    )
    assert shape_errors(json.loads(good), "QAPage") == []
    assert old in good
    assert says in shape_errors(json.loads(good.replace(old, new)), "QAPage")
