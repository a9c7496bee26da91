"""Mistakes planted in a copy of the whole project: each must end red and name file and line.

The extensions' own tests plant theirs in miniature projects. These go through the real
configuration, so they also see a setting that switches a gate off.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from conftest import sphinx

from noxfile import DOCTEST, HTML

CHAPTER = "docs/autograd/graph.md"
SCRIPT = "gallery/autograd/canary.py"
TITLE = "# What is autograd, and how does PyTorch build its graph?"

UNSEEN = (
    ":::{only} latex\n\n```{doctest}\n>>> fail\nTraceback (most recent call last):\n    ...\n"
    "NameError: name 'fail' is not defined\n```\n\n:::"
)


def script(*lines: str) -> str:
    """Return a good script with these lines in its second cell, from line 12 on."""
    opening = '"""\nA canary\n========\n\nIt says what it shows.\n"""\n\n'
    return opening + 'print("first")\n\n# %%\n# Second.\n' + "\n".join(lines) + "\n"


def line_of(text: str, part: str) -> int:
    """Return the line on which a part of a text begins."""
    return text[: text.index(part)].count("\n") + 1


def html_complaints(project: Path) -> str:
    """Build the copy, see it fail, and return what it complains of."""
    done = sphinx(*HTML, cwd=project)
    assert done.returncode != 0, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("old", "new", "complains_at", "says"),
    [
        ("tensor(36., grad_fn", "tensor(37., grad_fn", ">>> loss\n", "Got:\n    tensor(36., grad"),
        ("Guard failed: x.size()", "Guard failure: x.size()", ">>> program.module()", "failed: x"),
    ],
    ids=["wrong expected value", "wrong word in an error message"],
)
def test_wrong_example_fails_the_doctests(
    project: Path, old: str, new: str, complains_at: str, says: str
) -> None:
    chapter = project / CHAPTER
    text = chapter.read_text("utf-8")
    assert text.count(old) == 1
    chapter.write_text(text.replace(old, new), "utf-8")
    done = sphinx("-q", *DOCTEST, CHAPTER, cwd=project)
    assert done.returncode != 0
    assert f'File "{CHAPTER}", line {line_of(text, complains_at)}, in default' in done.stderr
    assert says in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "complains_at", "says"),
    [
        (TITLE, f"{TITLE}\n\n```\n>>> 1\n```", "```\n>>> 1\n", "outside a {doctest} fence"),
        ("level: core", "level: core\nauthor: me", "author", "unknown key `author`"),
        ("level: core", "level: expert", "level", "level `expert` does not exist"),
        (":::{short-answer}", ":::{note}", TITLE, "0 short answers"),
        ("{doc}`/autograd/detach`", "{doc}`/autograd/nowhere`", "", "unknown document"),
        ("{func}`torch.compile`", "{func}`torch.compiler_of`", "", "torch.compiler_of"),
        ("## What a node saves", "![An image](none.svg)", "![An image]", "image file not readable"),
        ("What a node saves\n", "What a node saves\n\n$\\oops$\n", "$\\oops$", "oops"),
        (TITLE, f"{TITLE}\n\n{UNSEEN}", ">>> fail", "leads to `#nameerror-name-fail-is-not-defin"),
        (TITLE, f'{TITLE}\n\n<b id="when-it-breaks">B</b>', "## When it breaks", "stands 2 times"),
    ],
    ids=[
        "prompt in a plain fence",
        "unknown front-matter key",
        "level that does not exist",
        "missing short answer",
        "broken cross-reference",
        "torch name that does not exist",
        "missing image",
        "formula that cannot be rendered",
        "error whose example no reader sees",
        "anchor that stands twice",
    ],
)
def test_wrong_chapter_stops_the_build(
    project: Path, old: str, new: str, complains_at: str, says: str
) -> None:
    chapter = project / CHAPTER
    text = chapter.read_text("utf-8").replace(old, new, 1)
    chapter.write_text(text, "utf-8")
    line = line_of(text, complains_at or new)
    assert re.search(
        rf"{re.escape(CHAPTER)}:{line}: (WARNING|ERROR): .*{re.escape(says)}",
        html_complaints(project),
    )


def test_chapter_in_no_toctree_stops_the_build(project: Path) -> None:
    chapter = project / "docs/autograd/left_out.md"
    shutil.copy(project / CHAPTER, chapter)
    complaints = html_complaints(project)
    assert re.search(r"docs/autograd/left_out\.md: WARNING: .*toctree", complaints)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["assert 1 + 1 == 3, 'it does not add up'"], "it does not add up"),
        (["import warnings", "warnings.warn('careful')"], "careful"),
        (["import sys", "sys.exit(0)"], "SystemExit"),
    ],
    ids=["assert fails", "warns", "exits"],
)
def test_wrong_script_stops_the_build(project: Path, lines: list[str], says: str) -> None:
    (project / SCRIPT).write_text(script(*lines), "utf-8")
    complaints = html_complaints(project)
    assert says in complaints
    assert re.search(rf"{re.escape(SCRIPT)}\D{{1,20}}{11 + len(lines)}\b", complaints), complaints


def test_script_folder_without_header_stops_the_build(project: Path) -> None:
    folder = project / "gallery/headless"
    folder.mkdir()
    (folder / "canary.py").write_text(script("print(2)"), "utf-8")
    complaints = html_complaints(project)
    assert "gallery/headless" in complaints
    assert "GALLERY_HEADER.rst" in complaints
