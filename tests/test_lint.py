"""The lint session, run for real on a copy of the settings, finds each kind of mistake."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

SETTINGS = ("pyproject.toml", "noxfile.py", "constraints.txt", ".github", "gallery/ruff.toml")
FILES = {
    "conf/extensions/example.py": '"""An extension."""\n\nANSWER = 42\n',
    "gallery/part/example.py": '"""\nA title\n=======\n\nA claim.\n"""\n\nprint("a line")\n',
    "docs/part/example.md": "---\nlevel: core\n---\n# A question?\n\nA sentence.\nAnother one.\n",
}
WORKFLOW = ".github/workflows/site.yml"
DEPENDABOT = ".github/dependabot.yml"
MODULE, SCRIPT, CHAPTER = FILES
# What is wrong: the file, what stands there, what is put in its place, what lint says of the file.
MISTAKES = {
    "unused import": (MODULE, "ANSWER", "import os\n\nANSWER", r":3:8: F401"),
    "not formatted": (MODULE, "ANSWER = 42", "ANSWER=42", r":3:"),
    "no docstring": (MODULE, "ANSWER = 42", "def answer() -> None: ...", r":3:5: D103"),
    "misspelt docstring": (MODULE, "An extension", "A seperate module", r":1:6: .*separate"),
    "script too wide": (SCRIPT, "a line", "a line " * 12, r":8:89: E501"),
    "two sentences a line": (CHAPTER, "A sentence.\n", "A sentence. ", r":6:1: \[MD013\]"),
    "fence without language": (CHAPTER, "A sentence.", "```\ntext\n```", r":6:1: \[MD040\]"),
    "misspelt prose": (CHAPTER, "A sentence", "The paramter", r":6:5: .*parameter"),
    "unknown workflow key": (WORKFLOW, "runs-on:", "runs_on:", r"::\$\.jobs\.lint: .*runs_on"),
    "too many permissions": (WORKFLOW, "permissions: {}", "permissions: write-all", r":12:\d+"),
    "movable pin": (WORKFLOW, "@3d3c42e5aac5ba805825da76410c181273ba90b1", "@v7", r":\d+:15"),
    "code injection": (WORKFLOW, "nox -s lint", "nox -s ${{ github.head_ref }}", r":\d+:25"),
    "unknown interval": (DEPENDABOT, "interval: monthly", "interval: hourly", r"::\$\.updates"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a small project with this one's settings, in which lint finds nothing."""
    for name in SETTINGS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def lint(tree: Path) -> tuple[int, str]:
    """Run `nox -s lint` with the tools of this environment: exit status and output."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "nox", "--no-venv", "--no-install", "-s", "lint"],
        cwd=tree,
        env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_nothing_is_found_where_nothing_is_wrong(tree: Path) -> None:
    status, output = lint(tree)
    assert status == 0, output


@pytest.mark.parametrize(("name", "old", "new", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_found_with_file_and_place(
    tree: Path, name: str, old: str, new: str, says: str
) -> None:
    text = (tree / name).read_text("utf-8")
    assert old in text
    (tree / name).write_text(text.replace(old, new, 1), "utf-8")
    status, output = lint(tree)
    assert status == 1
    assert re.search(re.escape(name) + says, output), output
