"""The anatomy of a chapter: what is refused, and what is derived."""

from __future__ import annotations

import json
import re

import pytest
from chapters import checked, first_sentence, front_matter
from conftest import Build, Built

EXTENSIONS = ["strict_doctest", "chapters"]
CONF = "checked_examples = '../doctest/examples.json'\ndoctest_test_doctest_blocks = ''"

ANSWER = "It adds up. Then " + "word " * 40
MYTH = ":::{myth} It `never` adds up\n:truth: It *always* adds up.\n\nProse.\n:::\n"
FOLLOW_UP = ":::{follow-up} Why so?\nBecause of `x`.\n:::\n"
GOOD = (
    "---\nlevel: core\nalso_asked:\n  - Does it add up?\n---\n# Why does it add up?\n\n"
    f":::{{short-answer}}\n{ANSWER}\n:::\n\n"
    "```{doctest}\n>>> 1 + 1\n2\n```\n\n" + MYTH + "\n" + FOLLOW_UP * 3
)
PART = "# Part\n\n```{chapters}\nchapter\n```\n"
INDEX = "# Home\n\n```{toctree}\npart/index\n```\n"


def run(build: Build, chapter: str, **more: object) -> Built:
    pages = {"index.md": INDEX, "part/index.md": PART, "part/chapter.md": chapter}
    return build(pages, extensions=EXTENSIONS, conf=CONF, **more)


def test_good_chapter_builds(build: Build) -> None:
    built = run(build, GOOD)
    assert built.status == 0, built.errors
    page = built.read("part/chapter.html")
    assert '<span class="level">core</span> Examples not checked in this build.' in page
    assert '<details class="follow-up"' in page
    assert "<summary>Why so?</summary>" in page
    assert 'id="myth-it-never-adds-up"' in page
    assert "<strong>What holds: </strong>It <em>always</em> adds up." in page


def test_part_page_lists_level_and_first_sentence(build: Build) -> None:
    part = run(build, GOOD).read("part/index.html")
    assert re.search(
        r'<a class="reference internal" href="chapter.html">Why does it add up\?</a>', part
    )
    assert '<span class="level">core</span>' in part
    assert "<p>It adds up.</p>" in part


def test_home_page_lists_parts_and_their_questions(build: Build) -> None:
    pages = {"index.md": "# Home\n\n```{chapters}\npart/index\n```\n"}
    pages |= {"part/index.md": PART, "part/chapter.md": GOOD}
    home = build(pages, extensions=EXTENSIONS, conf=CONF).read("index.html")
    assert re.search(r'href="part/index.html">Part</a></p>\s*<ul class="chapter-list', home)
    assert 'href="part/chapter.html">Why does it add up?</a>' in home
    assert "<p>It adds up.</p>" not in home


def test_page_of_a_script_links_to_its_chapter(build: Build) -> None:
    index = INDEX.replace("part/index\n", "part/index\ngallery/part/chapter\n")
    pages = {"index.md": index, "part/index.md": PART, "part/chapter.md": GOOD}
    pages["gallery/part/chapter.md"] = "# A script\n"
    page = build(pages, extensions=EXTENSIONS, conf=CONF).read("gallery/part/chapter.html")
    assert 'Chapter: <a class="reference internal" href="../../part/chapter.html">Why' in page


def test_part_page_follows_its_chapters(build: Build) -> None:
    run(build, GOOD)
    part = run(build, GOOD.replace("It adds up. Then", "It sums. Then")).read("part/index.html")
    assert "<p>It sums.</p>" in part


def test_description_and_structured_data_come_from_the_short_answer(build: Build) -> None:
    page = run(build, GOOD).read("part/chapter.html")
    assert '<meta name="description" content="It adds up." />' in page
    data = json.loads(re.search(r'<script type="application/ld\+json">(.*?)</script>', page)[1])
    question = data["mainEntity"]
    assert data["@type"] == "QAPage"
    assert question["name"] == "Why does it add up?"
    assert question["acceptedAnswer"]["text"] == " ".join(ANSWER.split())
    assert question["alternateName"] == ["Does it add up?"]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("level: core", "level: expert", 2, "level `expert` does not exist: use core, working"),
        ("level: core\n", "", 1, "no `level` in the front matter: add `level: core`"),
        ("level: core", "level: core\nauthor: me", 3, "unknown key `author` in the front matter"),
        ("- Does it add up?", "Does it add up?", 3, "`also_asked` is a list of text"),
        ("level: core", "level: [", 1, "front matter is not YAML"),
        (":::{short-answer}", ":::{note}", 6, "0 short answers: write one"),
        (ANSWER, "Too short.", 8, "the short answer has 2 words: write 40 to 80"),
        (ANSWER, "word " * 81, 8, "the short answer has 81 words: write 40 to 80"),
        (MYTH, "", 6, "no myth: write at least one"),
        (":truth: It *always* adds up.\n", "", 17, "a myth needs the rule that holds"),
        (FOLLOW_UP * 3, FOLLOW_UP * 2, 26, "2 follow-up questions: write 3 to 6"),
        (FOLLOW_UP * 3, FOLLOW_UP * 7, 41, "7 follow-up questions: write 3 to 6"),
        ("# Why does it add up?\n", "", 1, "no title: begin with"),
    ],
)
def test_mistake_is_an_error_with_file_and_line(
    build: Build, old: str, new: str, line: int, says: str
) -> None:
    assert old in GOOD
    built = run(build, GOOD.replace(old, new))
    assert built.status == 1
    found = re.search(rf"docs/part/chapter\.md:(\d+): \w+: {re.escape(says)}", built.errors)
    assert found, built.errors
    assert int(found[1]) == line


def test_pages_outside_parts_and_part_pages_need_no_anatomy(build: Build) -> None:
    assert run(build, GOOD).status == 0
    built = build(
        {"about.md": "---\norphan: true\n---\n# About\n"}, extensions=EXTENSIONS, conf=CONF
    )
    assert built.status == 0, built.errors


def test_chapter_says_what_was_checked_only_of_this_text(build: Build) -> None:
    assert "Examples not checked" in run(build, GOOD).read("part/chapter.html")
    assert run(build, GOOD, builder="doctest").status == 0
    assert re.search(
        r"1 example checked with torch 2\.\S+, Python 3\.\S+, \w+\.",
        run(build, GOOD).read("part/chapter.html"),
    )
    assert "Examples not checked" in run(build, GOOD + "\nMore.\n").read("part/chapter.html")


def test_checked_is_plural_and_honest() -> None:
    record = {"digest": "d", "examples": 2, "torch": "2.13.0", "python": "3.11.7", "device": "CPU"}
    assert checked(record, "d") == "2 examples checked with torch 2.13.0, Python 3.11.7, CPU."
    assert checked(record, "e") == "Examples not checked in this build."
    assert checked(None, "d") == "Examples not checked in this build."


def test_first_sentence_ends_at_the_stop_before_a_capital() -> None:
    assert first_sentence("Since 2.0 it is `None`, e.g. after a step. Then more.") == (
        "Since 2.0 it is `None`, e.g. after a step."
    )
    assert first_sentence("One only.") == "One only."


def test_front_matter_that_is_no_mapping_is_refused() -> None:
    assert front_matter("# No front matter\n") == ({}, {})
    with pytest.raises(ValueError, match="not a mapping"):
        front_matter("---\n- a\n---\n")
