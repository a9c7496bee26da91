"""What a reader downloads from the built site runs on its own, in a fresh process and folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import SCRIPTS
from nbclient import NotebookClient


def download(site: Path, name: str, suffix: str, folder: Path) -> Path:
    """Save what the page of a script links to, as a browser would."""
    page = (site / "gallery" / f"{name}.html").read_text("utf-8")
    link = re.search(rf'href="([^"]*/{Path(name).name}\{suffix})"', page)[1]
    source = (site / "gallery" / f"{name}.html").parent / link
    return Path(shutil.copy(source, folder))


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs_alone(site: Path, tmp_path: Path, name: str) -> None:
    script = download(site, name, ".py", tmp_path)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env={**environment, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), "a reader would see a warning or an error"
    assert done.stdout, "the script prints nothing"


@pytest.mark.parametrize("name", SCRIPTS)
def test_notebook_runs_alone(site: Path, tmp_path: Path, name: str) -> None:
    notebook = nbformat.read(download(site, name, ".ipynb", tmp_path), as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(tmp_path))
    assert any(cell.get("outputs") for cell in notebook.cells), "the notebook shows nothing"
