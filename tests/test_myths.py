"""The list of myths: both sentences as the chapter has them, and a link to the run."""

from __future__ import annotations

import re

import pytest
from bs4 import BeautifulSoup
from conftest import Build, Built
from test_chapters import CONF, GOOD, MYTH

EXTENSIONS = ["strict_doctest", "chapters", "myths"]
INDEX = "# Home\n\n```{toctree}\npart/index\nmyths\n```\n"
MYTHS = "# Myths\n\n```{myth-list}\n```\n"
PART = "# Part\n\n```{chapters}\nb\na\n```\n"


def run(build: Build, a: str, b: str) -> Built:
    pages = {"index.md": INDEX, "myths.md": MYTHS, "part/index.md": PART}
    return build(pages | {"part/a.md": a, "part/b.md": b}, extensions=EXTENSIONS, conf=CONF)


def test_every_myth_is_listed_in_reading_order_with_its_truth_and_run(build: Build) -> None:
    two = ":::{myth} One and one\n:truth: It is $x$.\n\nProse.\n:::\n"
    built = run(build, GOOD.replace(MYTH, f"{two}\n{MYTH}"), GOOD.replace("`never`", "`seldom`"))
    assert built.status == 0, built.errors
    entries = BeautifulSoup(built.read("myths.html"), "html.parser").select(".myth-entry")
    assert [entry.h3.text.removesuffix("¶") for entry in entries] == [
        *("It seldom adds up", "One and one", "It never adds up"),
    ]
    assert entries[0].h3.code.text == "seldom"
    assert str(entries[0].p) == "<p>It <em>always</em> adds up.</p>"
    assert entries[1].p.text == r"It is \(x\)."
    for entry, page in zip(entries, ("part/b.html", "part/a.html", "part/a.html"), strict=True):
        (link,) = entry.select("p a")
        assert link["href"] == f"{page}#{entry['id']}"
        box = BeautifulSoup(built.read(page), "html.parser").find(id=entry["id"])
        assert "myth" in box["class"]


def test_list_follows_the_chapters(build: Build) -> None:
    assert run(build, GOOD, GOOD.replace("`never`", "`seldom`")).status == 0
    built = run(build, GOOD.replace("*always*", "mostly"), GOOD.replace("`never`", "`seldom`"))
    assert "It mostly adds up." in built.read("myths.html")


def test_claim_that_stands_already_is_an_error_with_file_and_line(build: Build) -> None:
    built = run(build, GOOD, GOOD)
    assert built.status == 1
    line = GOOD[: GOOD.index(MYTH)].count("\n") + 1
    assert re.search(
        rf"docs/part/a\.md:{line}: WARNING: the anchor `myth-it-never-adds-up` stands 2 times",
        built.errors,
    ), built.errors


def test_myth_that_no_reader_sees_is_an_error_with_file_and_line(build: Build) -> None:
    hidden = "::::{only} latex\n\n" + MYTH.replace("`never`", "hardly") + "::::\n"
    page = GOOD.replace(MYTH, f"{MYTH}\n{hidden}")
    built = run(build, page, GOOD.replace("`never`", "`seldom`"))
    assert built.status == 1
    line = page[: page.index(":::{myth} It hardly")].count("\n") + 1
    assert re.search(
        rf"docs/part/a\.md:{line}: WARNING: the list of myths leads to `#myth-it-hardly-adds-up`",
        built.errors,
    ), built.errors


@pytest.mark.parametrize("link", ["{doc}`/part/b`", "<https://example.org>"])
def test_link_in_claim_or_truth_is_an_error_with_file_and_line(build: Build, link: str) -> None:
    good = GOOD.replace("`never`", "`seldom`")
    for old in ("*always*", "`never`"):
        built = run(build, GOOD.replace(old, link), good)
        assert built.status == 1
        line = GOOD[: GOOD.index(MYTH)].count("\n") + 1
        says = f"docs/part/a.md:{line}: WARNING: a link in a myth's claim or truth"
        assert says in built.errors
