"""Lists of things from all pages: their order, how they stay true, and the gates on anchors."""

from __future__ import annotations

import re

import pytest
from conftest import Build, Built
from gathered import LONGEST, part_of, slug, walk

EXTENSIONS = ["strict_doctest", "error_index"]
CONF = "doctest_test_doctest_blocks = ''"
INDEX = "# Home\n\n```{toctree}\n:glob:\n\n*\n```\n"
LIST = "# Errors\n\n```{error-index}\n```\n"


def fails(message: str, name: str = "x") -> str:
    """Return a page whose example raises."""
    return (
        f"# Page {name}\n\n```{{doctest}}\n>>> {name}\n"
        f"Traceback (most recent call last):\n    ...\n{message}\n```\n"
    )


def run(build: Build, pages: dict[str, str | None], **more: object) -> Built:
    return build({"index.md": INDEX, **pages}, extensions=EXTENSIONS, conf=CONF, **more)


def listed(built: Built) -> list[str]:
    """Return the entries and parts of the list, in its order."""
    return re.findall(r'<h[23]>(.*?)<a class="headerlink"', built.read("errors.html"))


def test_slug_is_short_and_tells_long_texts_apart() -> None:
    assert slug("ValueError can't optimize a non-leaf Tensor") == (
        "valueerror-can-t-optimize-a-non-leaf-tensor"
    )
    long = "a word " * 20
    one, other = slug(f"{long} one"), slug(f"{long} other")
    assert one != other
    assert one == slug(f"{long} one")
    assert re.fullmatch(r"[a-z-]+-[0-9a-f]{6}", one)
    assert len(one) <= LONGEST + 7


def test_pages_are_walked_as_tables_of_contents_order_them() -> None:
    tree = {"index": ["b/index", "a/index"], "b/index": ["b/2", "b/1"], "b/1": ["index"]}
    assert list(walk(tree, "index")) == ["index", "b/index", "b/2", "b/1", "a/index"]


def test_script_belongs_to_its_chapters_part() -> None:
    assert part_of("autograd/graph") == part_of("gallery/autograd/graph") == "autograd"
    assert part_of("errors") == "errors"


def test_list_follows_its_pages(build: Build) -> None:
    pages = {"errors.md": LIST, "a.md": fails("ValueError: one"), "b.md": fails("ValueError: two")}
    built = run(build, pages)
    assert built.status == 0, built.errors
    assert [entry for entry in listed(built) if ":" in entry] == [
        '<span class="type">ValueError</span>: one',
        '<span class="type">ValueError</span>: two',
    ]
    entries = listed(run(build, {"a.md": fails("ValueError: three"), "b.md": None}))
    assert [entry for entry in entries if ":" in entry] == [
        '<span class="type">ValueError</span>: three'
    ]
    assert "three" in run(build, {}).read("errors.html")


def test_links_to_parts_stand_above_when_there_are_several(build: Build) -> None:
    page = run(build, {"errors.md": LIST, "a.md": fails("ValueError: one")}).read("errors.html")
    assert "Page x" in page
    assert '<ul class="parts' not in page
    page = run(build, {"b.md": fails("ValueError: two", "y")}).read("errors.html")
    links = re.search(r'<ul class="parts.*?</ul>', page, re.DOTALL)[0]
    assert re.findall(r'href="#(.*?)">(.*?)<', links) == [("a", "Page x"), ("b", "Page y")]


def test_reading_in_parallel_finds_the_same(build: Build) -> None:
    pages = {f"p{i}.md": fails(f"ValueError: number {i}", f"x{i}") for i in range(12)}
    alone = run(build, {"errors.md": LIST, **pages}).read("errors.html")
    built = run(build, {}, options=["-E", "-j", "2"])
    assert built.status == 0, built.errors
    assert built.read("errors.html") == alone
    assert alone.count("error-entry") == 12


HIDDEN = (
    "# Page\n\n:::{only} latex\n\n" + fails("ValueError: unseen").partition("\n\n")[2] + ":::\n"
)


@pytest.mark.parametrize(
    ("pages", "file", "line", "says"),
    [
        (
            {"a.md": HIDDEN},
            "a.md",
            6,
            "the error index leads to `#valueerror-unseen`, which is not on the page",
        ),
        (
            {"a.md": fails("ValueError: one!"), "b.md": fails("ValueError: one?")},
            "b.md",
            4,
            "the anchor `valueerror-one` stands 2 times on the page errors",
        ),
        (
            {"a.md": "# Page\n\n## Twice\n\nProse.\n\n<b class='x' id='twice'>raw</b>\n"},
            "a.md",
            7,
            "the anchor `twice` stands 2 times on the page a",
        ),
        (
            {"a.md": '# Page\n\n<b id="raw">1</b>\n\n<b id="raw">2</b>\n'},
            "a.md",
            5,
            "the anchor `raw` stands 2 times on the page a",
        ),
    ],
    ids=["an entry's anchor vanishes", "two entries, one anchor", "raw HTML", "raw HTML twice"],
)
def test_broken_anchor_is_an_error_with_file_and_line(
    build: Build, pages: dict[str, str], file: str, line: int, says: str
) -> None:
    built = run(build, {"errors.md": LIST, **pages})
    assert built.status == 1
    assert re.search(rf"docs/{re.escape(file)}:{line}: WARNING: {re.escape(says)}", built.errors), (
        built.errors
    )
