"""The worked example of CONTRIBUTING.md goes from an empty file to green, as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT, sphinx

from noxfile import DOCTEST, HTML

GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CHAPTER = re.search(r"^````markdown\n(.*?)^````$", GUIDE, re.DOTALL | re.MULTILINE)[1]


@pytest.fixture
def written(project: Path) -> Path:
    """Return a copy of the project with the chapter written and listed, as the guide says."""
    (project / "docs/autograd/clone.md").write_text(CHAPTER, "utf-8")
    part = project / "docs/autograd/index.md"
    listed = part.read_text("utf-8").replace("\nclone\n", "\n")  # by one who follows the guide
    part.write_text(listed.replace("\ngraph\n", "\ngraph\nclone\n"), "utf-8")
    return project


def run_chapter(project: Path) -> tuple[int, str]:
    """Run the chapter's examples; return the exit status and the complaints."""
    args = ("-q", *DOCTEST, "docs/autograd/clone.md")
    done = sphinx(*args, cwd=project)
    return done.returncode, done.stderr


def test_chapter_is_green(written: Path) -> None:
    status, complaints = run_chapter(written)
    assert status == 0, complaints
    built = sphinx(*HTML, cwd=written)
    assert built.returncode == 0, built.stderr
    assert "Does clone() cut the graph?" in (written / "build/html/autograd/index.html").read_text()


def test_wrong_value_is_reported_as_the_guide_shows(written: Path) -> None:
    shown = re.search(r"```text\n(.*?)```", GUIDE, re.DOTALL)[1]
    chapter = written / "docs/autograd/clone.md"
    chapter.write_text(CHAPTER.replace("tensor([3., 3.])", "tensor([4., 4.])"), "utf-8")
    status, complaints = run_chapter(written)
    assert status != 0
    assert shown in complaints
