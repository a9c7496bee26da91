"""Recordings: what a script prints and draws on hardware that most builds do not have.

A recording is a folder beside its script, ``gallery/memory/budget.recording`` for
``gallery/memory/budget.py``. It holds the figures, ``1.svg`` and so on, and ``output.txt``::

    script: memory/budget.py
    sha256: of the script that ran
    chip: NVIDIA H200
    driver: 580.95.05
    torch: 2.13.0+cu130
    python: 3.11.7
    date: 2026-12-01

    === The heading above a cell
    What the cell printed.
    === figure 1: its title

``nox -s record`` runs each script that uses CUDA, in a process of its own, and writes its
recording whole or not at all. Without CUDA it says so and writes nothing.

A build without CUDA shows the recording at the end of the script's page, with where it comes from.
A script that uses CUDA and has no recording says there what is missing. A recording with a header
line missing, a digest of another text, no script or no figure stops the build, with file and line.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sphinx.errors import ExtensionError
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

GALLERY = Path(__file__).parents[2] / "gallery"
KEYS = ("script", "sha256", "chip", "driver", "torch", "python", "date")
MARK = "=== "
FIGURE = re.compile(r"figure (?P<number>\d+): (?P<title>.+)")
USES_CUDA = re.compile(r"torch\.cuda\.|[\"']cuda[\"']")
AGAIN = "run `nox -s record` on a machine with CUDA, or delete the recording"


class Piece(NamedTuple):
    """A heading of the script and what was printed under it, or a figure's line."""

    heading: str
    text: str


class Recording(NamedTuple):
    """The header by key, and the pieces in order."""

    header: dict[str, str]
    pieces: list[Piece]


def folder_of(script: Path) -> Path:
    """Return the folder of a script's recording."""
    return script.with_suffix(".recording")


def digest(script: Path) -> str:
    """Return the SHA-256 of a script's text, in hexadecimal digits."""
    return hashlib.sha256(script.read_bytes()).hexdigest()


def uses_cuda(script: Path) -> bool:
    """Tell whether a script's code, not its prose, has something to do on CUDA."""
    blocks = split_code_and_text_blocks(script)[1]
    return any(kind == "code" and USES_CUDA.search(code) for kind, code, _ in blocks)


def read(text: str) -> Recording:
    """Return what an output.txt holds.

    Raises ValueError, with the line's number and what is wrong there, for a bad header.
    """
    lines = text.splitlines()
    header = {}
    for number, key in enumerate(KEYS, 1):
        line = lines[number - 1] if number <= len(lines) else ""
        found, colon, value = line.partition(": ")
        if found != key or not colon or not value.strip():
            raise ValueError(f"{number}: the header line `{key}: ...` is missing; {AGAIN}.")
        header[key] = value.strip()
    if lines[len(KEYS) : len(KEYS) + 1] != [""]:
        raise ValueError(f"{len(KEYS) + 1}: no empty line after the header; {AGAIN}.")
    pieces = re.split(rf"^{MARK}", "\n".join([*lines[len(KEYS) + 1 :], ""]), flags=re.MULTILINE)
    if pieces[0].strip():
        raise ValueError(
            f"{len(KEYS) + 2}: text before the first line that begins with `{MARK}`; {AGAIN}."
        )
    return Recording(header, [Piece(*piece.split("\n", 1)) for piece in pieces[1:]])


def problems(source: Path) -> Iterator[str]:
    """Yield what is wrong with the recordings of a gallery, each with file and line."""
    for folder in sorted(source.glob("*/*.recording")):
        file = folder / "output.txt"
        place = file.relative_to(source.parent)
        script = f"{folder.parent.name}/{folder.stem}.py"
        if not file.is_file():
            yield f"{place}:1: no such file; {AGAIN}."
            continue
        try:
            recording = read(file.read_text("utf-8"))
        except ValueError as error:
            yield f"{place}:{error}"
            continue
        header = recording.header
        if header["script"] != script:
            yield f"{place}:1: the script of this folder is {script}; {AGAIN}."
        elif not (source / script).is_file():
            yield f"{place}:1: there is no script {script}; {AGAIN}."
        elif header["sha256"] != digest(source / script):
            yield f"{place}:2: {script} has changed since it was recorded; {AGAIN}."
        for line, text in enumerate(file.read_text("utf-8").splitlines(), 1):
            figure = FIGURE.fullmatch(text.removeprefix(MARK)) if text.startswith(MARK) else None
            if figure and not (folder / f"{figure['number']}.svg").is_file():
                yield f"{place}:{line}: {figure['number']}.svg is missing; {AGAIN}."


def section(recording: Recording, images: str) -> str:
    """Return a recording as a section of reST; `images` begins the names of its figures."""
    title = f"Recorded on {recording.header['chip']}"
    lines = [
        title,
        "-" * len(title),
        "",
        "This build had no CUDA. What follows was recorded elsewhere, on {date}, with driver "
        "{driver}, torch {torch} and Python {python}, by the script above, "
        "whose SHA-256 begins with ``{sha}``.".format(
            sha=recording.header["sha256"][:12], **recording.header
        ),
        "",
    ]
    for piece in recording.pieces:
        if figure := FIGURE.fullmatch(piece.heading):
            lines += [f".. inline-svg:: {images}{figure['number']}.svg"]
            lines += [f"   :alt: {figure['title']}", ""]
        else:
            lines += [f".. rubric:: {piece.heading}", "", ".. rst-class:: sphx-glr-script-out", ""]
            lines += [".. code-block:: none", ""]
            lines += [f"    {line}".rstrip() for line in piece.text.rstrip().splitlines()]
            lines += [""]
    return "\n".join(lines)


MISSING = """.. note::

    This script runs on CUDA where there is one, and shows more there.
    This build had none, and the repository holds no recording of such a run.
"""


def additions(source: Path, generated: str) -> dict[str, str]:
    """Return what the page of each script gets in a build without CUDA, by the page's name."""
    added = {}
    for script in sorted(source.glob("*/*.py")):
        part, stem = script.parent.name, script.stem
        file = folder_of(script) / "output.txt"
        if file.exists():
            images = f"/{generated}/{part}/images/recorded_{stem}_"
            added[f"{generated}/{part}/{stem}"] = section(read(file.read_text("utf-8")), images)
        elif uses_cuda(script):
            added[f"{generated}/{part}/{stem}"] = MISSING
    return added


def copy_figures(source: Path, generated: Path) -> None:
    """Bring the recorded figures to where pages may show them, and remove those that are gone."""
    wanted = {
        generated / f.parent.parent.name / "images" / f"recorded_{f.parent.stem}_{f.name}": f
        for f in source.glob("*/*.recording/*.svg")
    }
    for old in set(generated.glob("*/images/recorded_*.svg")) - wanted.keys():
        old.unlink()
    for target, figure in wanted.items():
        if not target.exists() or target.read_bytes() != figure.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(figure, target)


def check(app: Sphinx) -> None:
    """Stop at what is wrong, and decide what each page gets."""
    if app.builder.name == "doctest":
        return
    conf = app.config.sphinx_gallery_conf
    source = Path(os.path.normpath(app.srcdir / conf["examples_dirs"]))
    generated = Path(app.srcdir, conf["gallery_dirs"])
    if found := list(problems(source)):
        raise ExtensionError("\n".join(found))
    machine = generated / "machine.json"
    ran_on = json.loads(machine.read_text("utf-8"))["device"] if machine.exists() else "CPU"
    copy_figures(source, generated)
    shown = additions(source, conf["gallery_dirs"]) if ran_on == "CPU" else {}
    app.recorded = shown  # type: ignore[attr-defined]


def outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Read the pages again whose addition is another one than when they were last read."""
    if not hasattr(app, "recorded"):
        return []
    before = getattr(env, "recorded", {})
    env.recorded = app.recorded  # type: ignore[attr-defined]
    differ = {name for name, _ in before.items() ^ app.recorded.items()}
    return sorted(differ & set(env.all_docs) - removed)


def append(app: Sphinx, docname: str, content: list[str]) -> None:
    """Put what a script's page gets before its downloads."""
    if addition := getattr(app, "recorded", {}).get(docname):
        body, mark, downloads = content[0].partition("\n.. _sphx_glr_download_")
        content[0] = f"{body}\n\n{addition}\n{mark}{downloads}"


def run(script: Path) -> tuple[str, list[bytes]]:
    """Run a script; return its pieces as text, and its figures as SVG.

    Warnings are errors, as in a build. Raises whatever the script raises.
    """
    import matplotlib  # here, since a build only reads recordings
    import torch_state
    from drawings import STYLE, plt

    heading, last, text, figures = script.stem, "", "", []
    names: dict[str, Any] = {"__name__": "__main__"}
    torch_state.reset()
    with (
        matplotlib.rc_context(STYLE),
        warnings.catch_warnings(),
        contextlib.chdir(script.parent),
    ):
        torch_state.raise_warnings()
        for kind, code, line in split_code_and_text_blocks(script)[1]:
            if kind == "text":
                titles = re.findall(r"^(\S.*)\n([=~-])\2{2,}$", code, re.MULTILINE)
                heading = titles[-1][0] if titles else heading
                continue
            printed = io.StringIO()
            tree = ast.increment_lineno(ast.parse(code), line - 1)
            with contextlib.redirect_stdout(printed):
                exec(compile(tree, str(script), "exec"), names)
            if f"\n{MARK}" in f"\n{printed.getvalue()}":
                raise ValueError(
                    f"{script}:{line}: this cell prints a line that starts with {MARK}"
                )
            if printed.getvalue():
                text += f"{MARK}{heading}\n" * (heading != last) + printed.getvalue()
                last = heading
            for figure in map(plt.figure, plt.get_fignums()):
                drawn = io.BytesIO()
                figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
                figures.append(drawn.getvalue())
                title = figure.get_suptitle() or figure.axes[0].get_title()
                text += f"{MARK}figure {len(figures)}: {title}\n"
                last = ""
            plt.close("all")
    return text, figures


def machine() -> dict[str, str]:
    """Return chip, driver, torch and Python of this machine, and today's date."""
    import torch_state

    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    about = torch_state.describe()
    cuda = about["device"] != "CPU"
    return {
        "chip": about["device"],
        "driver": subprocess.check_output(query, text=True).strip() if cuda else "none",
        "torch": about["torch"],
        "python": about["python"],
        "date": datetime.now(UTC).date().isoformat(),
    }


def record(script: Path) -> Path:
    """Run a script, write its recording and return the folder; an old one stays until then."""
    text, figures = run(script)
    header = {"script": f"{script.parent.name}/{script.name}", "sha256": digest(script)} | machine()
    lines = "".join(f"{key}: {header[key]}\n" for key in KEYS)
    folder = folder_of(script)
    new = folder.with_suffix(".recording-new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    (new / "output.txt").write_text(f"{lines}\n{text}", "utf-8")
    for number, figure in enumerate(figures, 1):
        (new / f"{number}.svg").write_bytes(figure)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the scripts named, or all that use CUDA."""
    import torch

    parser = argparse.ArgumentParser(prog="record", description=main.__doc__)
    parser.add_argument("--any-device", action="store_true", help="record without CUDA, as a trial")
    parser.add_argument("scripts", nargs="*", type=Path, metavar="gallery/<part>/<name>.py")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() and not options.any_device:
        sys.exit("There is no CUDA here, so nothing was recorded (--any-device records a trial).")
    scripts = options.scripts or [s for s in sorted(GALLERY.glob("*/*.py")) if uses_cuda(s)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as process:
        for script in scripts:
            folder = process.submit(record, script.resolve()).result()
            print(f"{script} recorded in {os.path.relpath(folder)}", flush=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Check after the gallery has run, then see to the pages."""
    app.connect("builder-inited", check, priority=600)
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", append)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    main()
