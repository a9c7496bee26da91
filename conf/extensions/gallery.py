"""Run the gallery's scripts while Sphinx builds, so that nothing stale, silent or failed gets by.

sphinx-gallery does the work; this module settles what it leaves open.

- A folder of scripts without a header, a script in a folder too deep, without a title or with
  fewer than two code cells stops the build, with file and line.
- All scripts run again when Python, an installed package, a setting of the gallery or a module
  that takes part in the output changes. What an edited or deleted script left is removed first.
- Parts come in the order in which the home page lists them.
- A script starts with torch, matplotlib, the environment and the warning filters as a fresh
  process has them. A warning that Python would show the reader is an error.
- A script that ends the process by SystemExit stops the build, with file and line. ``os._exit``
  cannot be caught: it ends the build on the spot, and only the missing site shows it.
- A page that shows a path of the machine stops the build.
- What the scripts ran on is kept beside their pages, in machine.json, for the footer.
- ``-b doctest`` reads neither scripts nor generated pages, so nothing left there can disturb it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import shutil
import sysconfig
import traceback
import warnings
from contextlib import ExitStack
from importlib.metadata import distributions
from pathlib import Path
from unittest.mock import patch

import matplotlib
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx_gallery.gen_gallery import DEFAULT_GALLERY_CONF, generate_gallery_rst
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

MODULES = ("gallery", "gallery_pages", "drawings", "inline_svg", "torch_state")
HEADERS = ("GALLERY_HEADER.rst", "README.rst")
RESULTS = {"plot_gallery", "failing_examples", "passing_examples", "stale_examples"}
TITLE = re.compile(r"\s*\S.*\n([=~-])\1{2,}\s*\n")

_undo = ExitStack()  # what puts things back after the script that is running


def problems(source: Path) -> list[str]:
    """Return what is wrong with the layout of the gallery and its scripts, each with its place."""
    found = []
    for script in sorted(source.rglob("*.py")):
        folder, place = script.parent, script.relative_to(source.parent)
        if len(place.parts) > 3:
            found.append(f"{place}:1: scripts lie in {source.name}/<part>/, no deeper; move it up.")
            continue
        if not any((folder / header).is_file() for header in HEADERS):
            found.append(
                f"{place.parent}: no {HEADERS[0]}; write one: a title, its underline, and a "
                "sentence or two on what the scripts of this folder show."
            )
        try:
            docstring = ast.get_docstring(ast.parse(script.read_bytes()), clean=False)
        except SyntaxError as error:
            found.append(f"{place}:{error.lineno}: SyntaxError: {error.msg}")
            continue
        if not TITLE.match(docstring or ""):
            found.append(
                f'{place}:1: no title; begin the script with """, the title on a line of its '
                "own and a line of === under it."
            )
            continue
        cells = [block for block in split_code_and_text_blocks(script)[1] if block.type == "code"]
        if len(cells) < 2:
            line = cells[0].lineno if cells else 1
            found.append(f"{place}:{line}: fewer than two code cells; begin each with a # %% line.")
    return list(dict.fromkeys(found))


def part_order(home: str, examples_dirs: str) -> list[str]:
    """Return the gallery's parts in the order of the home page's ``{chapters}``, then any other."""
    listed = re.search(r"^```\{chapters\}\n(.*?)^```", home, re.DOTALL | re.MULTILINE)
    parts = re.findall(r"^(\w+)/index$", listed[1], re.MULTILINE) if listed else []
    return [*(f"{examples_dirs}/{part}" for part in parts), "*"]


def fingerprint(settings: dict[str, object]) -> str:
    """Return a text of what every page depends on: Python, packages, settings, our modules."""
    packages = {f"{d.metadata['Name']} {d.version}" for d in distributions()}
    modules = [Path(__file__).with_name(f"{name}.py") for name in MODULES]
    lines = [f"Python {platform.python_version()}", *sorted(packages)]
    lines += [f"{key} = {settings[key]!r}" for key in sorted(DEFAULT_GALLERY_CONF.keys() - RESULTS)]
    lines += [f"{m.name} {hashlib.sha256(m.read_bytes()).hexdigest()}" for m in modules]
    return "\n".join(lines) + "\n"


def forget(source: Path, generated: Path, record: str) -> None:
    """Remove from the generated folder whatever does not come from the scripts as they are now.

    Raises ExtensionError if the folder holds files but not the record of an earlier build, since
    then it is not ours to delete.
    """
    file = generated / "fingerprint.txt"
    if not file.exists() and generated.is_dir() and any(generated.iterdir()):
        raise ExtensionError(f"{generated} was not made by this build; move it away or delete it.")
    if not file.exists() or file.read_text("utf-8") != record:
        if generated.exists():
            shutil.rmtree(generated)
        generated.mkdir(parents=True)
        file.write_text(record, "utf-8")
    for part in {copy.parent for copy in generated.glob("*/index.rst")}:
        if not (source / part.name).is_dir():
            shutil.rmtree(part)
    for copy in sorted(generated.rglob("*.py")):
        script = source / copy.relative_to(generated)
        if not script.exists() or script.read_bytes() != copy.read_bytes():
            for left in made_from(copy):
                left.unlink()


def made_from(copy: Path) -> list[Path]:
    """Return every file that sphinx-gallery makes from a script, given the copy it made of it."""
    images, stem = copy.parent / "images", copy.stem
    return [
        *copy.parent.glob(f"{stem}.*"),
        *images.glob(f"sphx_glr_{stem}_[0-9][0-9][0-9].*"),
        *images.glob(f"thumb/sphx_glr_{stem}_thumb.*"),
    ]


def reset(gallery_conf: dict[str, object], fname: str, when: str) -> None:
    """Before a script: a fresh start, warnings as errors. After it: everything as it was."""
    _undo.close()
    if when == "after":
        return
    import torch_state  # here, because a build that runs no script can do without torch
    from drawings import STYLE, plt

    torch_state.reset()
    machine = Path(gallery_conf["src_dir"], gallery_conf["gallery_dirs"], "machine.json")
    if not machine.exists():
        machine.write_text(json.dumps(torch_state.describe()), "utf-8")
    plt.close("all")
    _undo.enter_context(patch.dict(os.environ))
    _undo.enter_context(matplotlib.rc_context(STYLE))
    _undo.enter_context(warnings.catch_warnings())
    torch_state.raise_warnings()
    # plt.show() is no mistake.
    warnings.filterwarnings("ignore", message=".*is non-interactive, and thus cannot be shown")


def paths_shown(generated: Path, source: Path, failing: set[str]) -> list[str]:
    """Return the pages that show where this machine keeps the project, Python or its packages."""
    roots = (str(source.parent), sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"))
    return [
        f"{source.name / page.relative_to(generated).with_suffix('.py')}: its page shows a path of "
        f"this machine, which a reader has no use for: {line.strip()}"
        for page in sorted(generated.rglob("*.rst"))
        if page.stem not in failing
        for line in page.read_text("utf-8").splitlines()
        if any(root in line for root in roots)
    ]


def excuse(_app: Sphinx, config: Config) -> None:
    """Let the home page name the gallery where a build leaves it out."""
    config.suppress_warnings = [*config.suppress_warnings, "toc.excluded"]


def leave_out(app: Sphinx, pages: str) -> None:
    """Leave the gallery's pages out of a build.

    The setting is as before while Sphinx stores it with what it has read: the next run would find
    it changed, and read every page again.
    """
    config = app.config
    before = config.exclude_patterns
    without = [*before, pages]
    config.exclude_patterns = without

    def put_back(_app: Sphinx, _env: BuildEnvironment) -> None:
        config.exclude_patterns = before

    def leave_out_again(_app: Sphinx, _env: BuildEnvironment) -> None:
        config.exclude_patterns = without

    app.connect("env-updated", put_back, priority=1000)  # the last, since others read then
    app.connect("env-check-consistency", leave_out_again, priority=0)


def build(app: Sphinx) -> None:
    """Check the scripts, remove what is stale and let sphinx-gallery run what is left to run."""
    conf = app.config.sphinx_gallery_conf
    if app.builder.name == "doctest":
        leave_out(app, f"{conf['gallery_dirs']}/**")
        return
    source = Path(os.path.normpath(app.srcdir / conf["examples_dirs"]))
    generated = Path(app.srcdir, conf["gallery_dirs"])
    if found := problems(source):
        raise ExtensionError("\n".join(found))
    home = app.srcdir / f"{app.config.root_doc}.md"
    conf["subsection_order"] = part_order(home.read_text("utf-8"), conf["examples_dirs"])
    forget(source, generated, fingerprint(conf))
    try:
        generate_gallery_rst(app)
    except SystemExit as leaving:
        calls = traceback.extract_tb(leaving.__traceback__)
        call = [call for call in calls if call.filename.startswith(f"{source}{os.sep}")][-1]
        raise ExtensionError(
            f"{os.path.relpath(call.filename, source.parent)}:{call.lineno}: the script ended the "
            f"process (SystemExit: {leaving.code}); let it run to its end."
        ) from leaving
    finally:
        _undo.close()
    failing = {Path(script).stem for script in conf["failing_examples"]}
    if found := paths_shown(generated, source, failing):
        raise ExtensionError("\n".join(found))


def setup(app: Sphinx) -> dict[str, bool]:
    """Load sphinx-gallery and put build() in the place of its own start."""
    app.setup_extension("sphinx_gallery.gen_gallery")
    for listener in list(app.events.listeners["builder-inited"]):
        if listener.handler is generate_gallery_rst:  # build() calls it
            app.disconnect(listener.id)
    app.connect("config-inited", excuse)
    app.connect("builder-inited", build)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
