"""Recordings: a trial is made for real, shown, and each way to spoil it stops the build."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EXTENSIONS, ROOT, Build, Built
from recordings import KEYS, read, uses_cuda
from test_gallery import run

SCRIPT = '''"""
A title
=======

The claim.
"""

import matplotlib.pyplot as plt
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
print("first", 1 + 1)

# %%
# The ``second`` heading
# ----------------------
#
# Prose.

print("on", device)
plt.plot([0, 1])
plt.title("A rising line")

# %%
# More of it.

print("third")
'''


def site(build: Build, scripts: dict[str, str] | None = None) -> Built:
    """Build a project with these scripts in one part of its gallery."""
    named = {f"part/{name}": text for name, text in (scripts or {"one": SCRIPT}).items()}
    return run(build, named, also=["recordings"])


def record(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run what `nox -s record` runs."""
    command = [sys.executable, str(EXTENSIONS / "recordings.py"), *options, str(script)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a trial recording, made in a process of its own."""
    script = tmp_path_factory.mktemp("gallery") / "part" / "one.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    done = record(script, "--any-device")
    assert done.returncode == 0, done.stderr
    return script.with_suffix(".recording")


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    """Return the text of a recording in the miniature project, to be spoilt."""
    folder = tmp_path / "gallery" / "part" / "one.recording"
    shutil.copytree(recorded, folder)
    return folder / "output.txt"


def test_a_trial_holds_what_was_printed_and_drawn(recorded: Path) -> None:
    header, pieces = read((recorded / "output.txt").read_text())
    assert tuple(header) == KEYS
    assert header["script"] == "part/one.py"
    assert header["chip"] == "CPU"
    assert header["torch"].startswith("2.")
    assert [(piece.heading, piece.text) for piece in pieces] == [
        ("A title", "first 2\n"),
        ("The ``second`` heading", "on cpu\n"),
        ("figure 1: A rising line", ""),
        ("The ``second`` heading", "third\n"),
    ]
    assert (recorded / "1.svg").read_bytes().startswith(b"<?xml")


def test_without_cuda_nothing_is_recorded(tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text(SCRIPT)
    done = record(script)
    assert done.returncode == 1
    assert "There is no CUDA here, so nothing was recorded" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["one.py"]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("assert 1 == 2, 'numbers differ'", "AssertionError: numbers differ"),
        ("import warnings\nwarnings.warn('careful')", "UserWarning: careful"),
        ("print('=== a mark')", "one.py:26: this cell prints a line that starts with ==="),
    ],
)
def test_a_script_that_fails_leaves_the_old_recording(
    recorded: Path, tmp_path: Path, cell: str, said: str
) -> None:
    script = tmp_path / "part" / "one.py"
    shutil.copytree(recorded.parent, script.parent)
    before = (script.with_suffix(".recording") / "output.txt").read_bytes()
    script.write_text(SCRIPT + cell + "\n")
    done = record(script, "--any-device")
    assert done.returncode != 0
    assert said in done.stderr
    assert (script.with_suffix(".recording") / "output.txt").read_bytes() == before


def test_page_shows_a_recording_with_its_provenance(build: Build, copy: Path) -> None:
    built = site(build)
    assert built.status == 0, built.errors
    page = built.read("gallery/part/one.html")
    shown = page[page.index("Recorded on CPU") :]
    header = read(copy.read_text()).header
    for fact in (header["torch"], header["python"], header["date"], header["sha256"][:12]):
        assert fact in shown
    assert re.search(r"first 2\n.*on cpu\n.*A rising line.*third\n.*one\.ipynb", shown, re.DOTALL)
    assert 'aria-label="A rising line"' in shown
    assert "no recording" not in page


def test_page_without_a_recording_says_what_is_missing(build: Build) -> None:
    plain = SCRIPT.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"')
    built = site(build, {"one": SCRIPT, "two": plain + "# not on cuda\n"})
    assert built.status == 0, built.errors
    assert "the repository holds no recording" in built.read("gallery/part/one.html")
    assert "no recording" not in built.read("gallery/part/two.html")


def test_a_recording_comes_and_goes_without_another_run(build: Build, copy: Path) -> None:
    folder = copy.parent
    away = folder.with_name("away")
    folder.rename(away)
    assert "Recorded on" not in site(build).read("gallery/part/one.html")
    away.rename(folder)
    assert "Recorded on CPU" in site(build).read("gallery/part/one.html")
    shutil.rmtree(folder)
    built = site(build)
    assert built.status == 0, built.errors
    assert "Recorded on" not in built.read("gallery/part/one.html")
    assert not list(folder.parents[2].glob("docs/gallery/part/images/recorded_*"))


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_header_line_stops_the_build(build: Build, copy: Path, key: str) -> None:
    copy.write_text(re.sub(rf"^{key}: .*\n", "", copy.read_text(), flags=re.MULTILINE))
    built = site(build)
    assert built.status != 0
    line = KEYS.index(key) + 1
    assert f"one.recording/output.txt:{line}: the header line `{key}: ...`" in built.errors
    assert "run `nox -s record`" in built.errors


def test_a_changed_script_stops_the_build(build: Build, copy: Path) -> None:
    built = site(build, {"one": SCRIPT.replace("1 + 1", "1 + 2")})
    assert built.status != 0
    said = "gallery/part/one.recording/output.txt:2: part/one.py has changed since it was recorded"
    assert said in built.errors


def test_a_recording_of_no_script_stops_the_build(build: Build, copy: Path) -> None:
    copy.parent.rename(copy.parent.with_name("two.recording"))
    assert "two.recording/output.txt:1: the script of this folder is part/two.py" in (
        site(build).errors
    )
    text = copy.parent.with_name("two.recording") / "output.txt"
    text.write_text(text.read_text().replace("part/one.py", "part/two.py"))
    assert "two.recording/output.txt:1: there is no script part/two.py" in site(build).errors


def test_a_missing_figure_or_text_stops_the_build(build: Build, copy: Path) -> None:
    (copy.parent / "1.svg").unlink()
    assert "one.recording/output.txt:13: 1.svg is missing" in site(build).errors
    copy.unlink()
    assert "one.recording/output.txt:1: no such file" in site(build).errors


def test_scripts_of_the_site_that_use_cuda_are_known() -> None:
    using = {script.stem for script in (ROOT / "gallery").glob("*/*.py") if uses_cuda(script)}
    assert "out_of_memory" in using
    assert "graph" not in using
