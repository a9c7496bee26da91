"""The error index: what counts as an error of the book, and what an entry says."""

from __future__ import annotations

import re
import runpy

import pytest
from bs4 import BeautifulSoup, Tag
from conftest import ROOT, Build, Built
from error_index import Message, OwnErrors, entries, raised
from test_chapters import CONF, GOOD, PART

EXTENSIONS = ["strict_doctest", "chapters", "error_index"]
INDEX = "# Home\n\n```{toctree}\nsecond/index\nfirst/index\nerrors\n```\n"
ERRORS = "# Errors\n\n```{error-index}\n```\n"
EXAMPLE = "```{doctest}\n>>> 1 + 1\n2\n```\n"
TRACEBACK = "Traceback (most recent call last):\n    ...\n"


def chapter(*examples: str, question: str = "Why?", messages: str = "") -> str:
    """Return a good chapter with these examples in fences of their own, the first on line 16."""
    fences = "\n".join(f"```{{doctest}}\n{example}\n```\n" for example in examples)
    assert EXAMPLE in GOOD
    text = GOOD.replace(EXAMPLE, fences).replace("Why does it add up?", question)
    return text.replace("level: core\n", f"level: core\n{messages}")


def run(build: Build, pages: dict[str, str | None], **more: object) -> Built:
    part = "# {}\n\n```{{chapters}}\nchapter\n```\n"
    given = {"index.md": INDEX, "errors.md": ERRORS}
    given |= {f"{name}/index.md": part.format(name.title()) for name in ("first", "second")}
    given |= {f"{name}/chapter.md": chapter(">>> 1\n1") for name in ("first", "second")}
    return build(given | pages, extensions=EXTENSIONS, conf=CONF, **more)


def listed(built: Built) -> list[Tag]:
    """Return the entries of the built index."""
    assert built.status == 0, built.errors
    return BeautifulSoup(built.read("errors.html"), "html.parser").select(".error-entry")


def title(entry: Tag) -> str:
    """Return an entry's title as a reader sees it."""
    return entry.h3.text.removesuffix("¶")


def test_traceback_is_an_entry_that_leads_to_its_example(build: Build) -> None:
    text = f">>> x = 1\n>>> fail()\n{TRACEBACK}a.b.OddError: at 0x...: one <thing> and `...`"
    built = run(build, {"first/chapter.md": chapter(">>> 1\n1", text)})
    (entry,) = listed(built)
    assert title(entry) == "a.b.OddError: at 0x…: one <thing> and `…`"
    assert entry.select_one(".type").text == "a.b.OddError"
    assert [mark.text for mark in entry.select(".varies")] == ["…", "…"]
    assert entry["id"] == "a-b-odderror-at-0x-one-thing-and"
    (link,) = entry.select("ul a")
    assert link["href"] == f"first/chapter.html#{entry['id']}"
    page = BeautifulSoup(built.read("first/chapter.html"), "html.parser")
    block = page.find(id=entry["id"])
    assert "fail()" in block.text
    assert "highlight-pycon" in block["class"]


def test_warning_is_an_entry(build: Build) -> None:
    text = (
        '>>> with warnings.catch_warnings(record=True, action="always") as caught:\n...     f()\n'
        "...\n>>> len(caught)\n1\n>>> print(caught[0].message)\nBeware of ..."
    )
    (entry,) = listed(run(build, {"first/chapter.md": chapter(text)}))
    assert title(entry) == "Warning: Beware of …"
    assert entry["id"] == "warning-beware-of"


def test_message_of_several_lines_is_shown_whole(build: Build) -> None:
    text = f">>> f()\n{TRACEBACK}KeyError: Caught in worker 0.\nOriginal (last):\n...\nKeyError: 0"
    (entry,) = listed(run(build, {"first/chapter.md": chapter(text + "\n<BLANKLINE>")}))
    assert title(entry) == "KeyError: Caught in worker 0."
    assert entry.pre.text.strip() == "Original (last):\n…\nKeyError: 0"


def test_same_message_in_two_chapters_is_one_entry_in_the_part_read_first(build: Build) -> None:
    text = f">>> f()\n{TRACEBACK}ValueError: no"
    pages = {
        "first/chapter.md": chapter(text, question="Why not?"),
        "second/chapter.md": chapter(text, question="Who says no?"),
    }
    (entry,) = listed(run(build, pages))
    assert [(link.text, link["href"]) for link in entry.select("ul a")] == [
        ("Who says no?", "second/chapter.html#valueerror-no"),
        ("Why not?", "first/chapter.html#valueerror-no"),
    ]
    assert entry.parent["id"] == "second"


def test_sorted_by_part_and_by_text(build: Build) -> None:
    fail = f">>> f()\n{TRACEBACK}"
    pages = {
        "first/chapter.md": chapter(f"{fail}ValueError: a"),
        "second/chapter.md": chapter(
            *(f"{fail}TypeError: {text}" for text in ("z", "B")), f"{fail}ValueError: b"
        ),
    }
    assert [title(entry) for entry in listed(run(build, pages))] == [
        *("TypeError: B", "ValueError: b", "TypeError: z"),
        "ValueError: a",
    ]


def test_same_message_again_gets_a_link_for_each_section(build: Build) -> None:
    text = f">>> f()\n{TRACEBACK}ValueError: no"
    page = chapter(text, text).replace(":::{myth}", "## Again\n\n:::{myth}")
    page = page.replace("Prose.\n:::", f"```{{doctest}}\n{text}\n```\n:::")
    (entry,) = listed(run(build, {"first/chapter.md": page}))
    assert [(link.text, link["href"].partition("#")[2]) for link in entry.select("ul a")] == [
        ("Why?", "valueerror-no"),
        ("Why? – Claim: It never adds up", "valueerror-no-2"),
    ]


def test_section_named_after_the_message_is_not_named_again(build: Build) -> None:
    fence = f"```{{doctest}}\n>>> f()\n{TRACEBACK}ValueError: no way back\n```\n"
    page = chapter(">>> 1\n1").replace(":::{myth}", f"## no way\n\n{fence}\n:::{{myth}}")
    (entry,) = listed(run(build, {"first/chapter.md": page}))
    assert [link.text for link in entry.select("ul a")] == ["Why?"]


def test_other_wordings_are_listed_with_their_chapter(build: Build) -> None:
    messages = 'messages:\n  - "ValueError: nay <x>"\n  - "in other words"\n'
    page = chapter(f">>> f()\n{TRACEBACK}ValueError: no", messages=messages)
    built = run(build, {"first/chapter.md": page})
    assert len(listed(built)) == 1
    section = BeautifulSoup(built.read("errors.html"), "html.parser").find(
        id="first-other-wordings"
    )
    assert [item.get_text(" ", strip=True) for item in section.select("li")] == [
        "in other words Why?",
        "ValueError: nay <x> Why?",
    ]
    assert section.li.a["href"] == "first/chapter.html"


OWN = ">>> def f(x):\n...     {}\n...\n>>> f(1)\n" + TRACEBACK


@pytest.mark.parametrize(
    ("code", "message", "own"),
    [
        ('raise ValueError(f"{x:.2f} is too {x} much")', "ValueError: 1.0 is too ... much", True),
        ('raise torch.OutOfMemoryError("full")', "torch.OutOfMemoryError: full", True),
        ('assert x, "never"', "AssertionError: never", True),
        ('raise ValueError("mine")', "ValueError: not mine", False),
        ('raise ValueError("mine")', "TypeError: mine", False),
        ("raise ValueError(x)", "ValueError: theirs", False),
        ('raise ValueError(f"{x}")', "ValueError: theirs", False),
    ],
)
def test_what_a_chapter_raises_itself_is_left_out(
    build: Build, code: str, message: str, own: bool
) -> None:
    page = chapter(OWN.format(code) + message)
    assert len(listed(run(build, {"first/chapter.md": page}))) == (not own)


def test_class_of_the_chapters_own_is_left_out() -> None:
    own = OwnErrors(["class Mine(Exception): pass\n", "not python\n"])
    assert Message("__main__.Mine", "anything") in own
    assert Message("ValueError", "anything") not in own


def test_script_names_an_error_by_a_line_that_begins_with_its_type(build: Build) -> None:
    lines = (
        'try:\n    float("x")\nexcept ValueError as error:\n'
        '    print(f"{type(error).__name__}: {error}")\n'
        'print("plain   RuntimeError: in a table")\n'
        'print("RuntimeError")\n'
        'try:\n    raise TypeError("our own")\nexcept TypeError as error:\n'
        '    print(f"TypeError: {error}")\n'
    )
    text = f'"""\nA script\n========\n\nThe claim.\n"""\n\nprint(1)\n\n# %%\n# Second.\n\n{lines}'
    settings = runpy.run_path(str(ROOT / "conf" / "conf.py"))["sphinx_gallery_conf"]
    pages = {
        "index.md": INDEX.replace("errors", "errors\ngallery/index"),
        "../gallery/GALLERY_HEADER.rst": "Gallery\n=======\n",
        "../gallery/first/GALLERY_HEADER.rst": "First\n=====\n",
        "../gallery/first/chapter.py": text,
        "errors.md": ERRORS,
        "first/index.md": PART.replace("Part", "First"),
        "first/chapter.md": chapter(">>> 1\n1"),
        "second/index.md": PART.replace("Part", "Second"),
        "second/chapter.md": chapter(">>> 1\n1"),
    }
    built = build(
        pages,
        extensions=["inline_svg", "gallery", "gallery_pages", *EXTENSIONS],
        conf=f"{CONF}\nsphinx_gallery_conf = {settings!r}",
    )
    (entry,) = listed(built)
    assert title(entry) == "ValueError: could not convert string to float: 'x'"
    assert entry.parent["id"] == "first"
    (link,) = entry.select("ul a")
    assert link.text == "Script: A script"
    page, _, name = link["href"].partition("#")
    assert page == "gallery/first/chapter.html"
    block = BeautifulSoup(built.read(page), "html.parser").find(id=name)
    assert "could not convert" in block.text
    assert "sphx-glr-script-out" in block["class"]


@pytest.mark.parametrize(
    "source",
    [
        ">>> str(caught[0].message)\n'no'",
        ">>> print(str(caught[0].message))\nno",
        ">>> for warning in caught:\n...     print(warning.message)\n...\nno",
        ">>> print(1, caught[0].message)\n1 no",
    ],
)
def test_warning_shown_in_another_way_is_an_error(build: Build, source: str) -> None:
    page = chapter(f">>> 1\n1\n{source}")
    built = run(build, {"first/chapter.md": page})
    assert built.status == 1
    line = page[: page.index(source)].count("\n") + 1
    assert re.search(
        rf"docs/first/chapter\.md:{line}: WARNING: the error index cannot read this warning: "
        r"show it with `print\(caught\[0\]\.message\)` alone",
        built.errors,
    ), built.errors


def test_what_is_read_from_a_fence() -> None:
    text = f">>> 1\n1\n>>> f()\n{TRACEBACK}StopIteration\n>>> print(w[-1].message)\nno"
    assert list(raised(text)) == [(2, Message("StopIteration", "")), (6, Message("Warning", "no"))]


def test_no_errors_no_entries() -> None:
    assert entries({}) == {}
