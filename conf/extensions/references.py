"""References to Python, NumPy and torch, checked when the site is built, without a network.

The names are in conf/inventories, in the plain text of Sphinx's inventory version 1: a line is
``name kind page``, and the anchor ``#name`` is understood. In a chapter::

    {func}`torch.autograd.grad`      {meth}`torch.Tensor.backward`    {class}`torch.nn.Module`
    {attr}`torch.Tensor.grad`        {exc}`RuntimeError`              {mod}`multiprocessing`

A name that no inventory holds is a warning with file and line (under ``nitpicky``, which conf.py
sets). It says whether the installed package has such a name, and what to write instead or which
line to add; packages are imported only for that. Inventories of version 1 hold no labels, so notes
and guides are linked as Markdown does. As a command, this module checks or renews the inventories::

    python conf/extensions/references.py --check      # each name imports; sorted; no name twice
    python conf/extensions/references.py --refresh    # takes kinds and pages from the sites
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import difflib
import importlib
import inspect
import os
import platform
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from source_line import location
from sphinx.util import logging
from sphinx.util.inventory import InventoryFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docutils.nodes import Element
    from sphinx.application import Sphinx
    from sphinx.config import Config
    from sphinx.domains import Domain

    Inventory = dict[str, tuple[str, str]]

logger = logging.getLogger(__name__)

HEADER = 3  # lines
INVENTORIES = Path(__file__).parents[1] / "inventories"
SITES = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "torch": "https://docs.pytorch.org/docs/2.13/",
}
ROLES = {"function": "func", "method": "meth", "attribute": "attr", "property": "attr"}
ROLES |= {"class": "class", "exception": "exc", "data": "data", "mod": "mod"}
# torch's names have a page each, except these, and the members of classes not named below.
SHARED_PAGES = {
    "torch.backends.": "backends.html",
    "torch.export.": "user_guide/torch_compiler/export/api_reference.html",
    "torch.library.": "library.html",
    "torch.nn.init.": "nn.init.html",
    "torch.profiler.": "profiler.html",
    "torch.random.": "random.html",
    "torch.testing.": "testing.html",
    "torch.utils.benchmark.": "benchmark_utils.html",
    "torch.utils.checkpoint.": "checkpoint.html",
    "torch.utils.data.": "data.html",
}
A_PAGE_FOR_EACH_MEMBER = ("Tensor", "Optimizer", "Function", "FunctionCtx", "Node")


def read(path: Path) -> Inventory:
    """Return an inventory's names, each with its kind and page."""
    lines = path.read_text(encoding="utf-8").splitlines()[HEADER:]
    return {name: (kind, page) for name, kind, page in map(str.split, lines)}


def find(name: str) -> Any:
    """Import what a full name stands for. Raises LookupError if there is no such thing."""
    parts = name.split(".")
    owner, rest = builtins, parts
    for end in range(len(parts), 0, -1):
        try:
            owner, rest = importlib.import_module(".".join(parts[:end])), parts[end:]
            break
        except ImportError:
            continue
    for part in rest:
        if not hasattr(owner, part):
            raise LookupError(name)
        owner = getattr(owner, part)
    return owner


def project_of(name: str) -> str | None:
    """Return the project that a full name belongs to, if it is one of those referred to."""
    root, dot, _ = name.partition(".")
    if root in SITES or not dot or root in sys.stdlib_module_names or hasattr(builtins, root):
        return root if root in SITES else "python"
    return None


def installed(project: str) -> str:
    """Return a project's name and installed version, as in "torch 2.13.0"."""
    number = platform.python_version() if project == "python" else version(project)
    return f"{project} {number.partition('+')[0]}"


def line_for(name: str) -> str:
    """Return a name's inventory line, its page by the rule of its project's site."""
    owner_name, _, last = name.rpartition(".")
    owner, thing = find(owner_name) if owner_name else builtins, find(name)
    if inspect.ismodule(thing):
        kind = "mod"
    elif inspect.isclass(thing):
        kind = "exception" if issubclass(thing, BaseException) else "class"
    elif inspect.isclass(owner):
        is_property = isinstance(inspect.getattr_static(owner, last), property)
        kind = "property" if is_property else "method" if callable(thing) else "attribute"
    else:
        kind = "function" if callable(thing) else "data"

    project = project_of(name)
    if project == "numpy":
        page = f"reference/generated/{name}.html"
    elif project == "python":
        module = name if kind == "mod" else owner_name
        page = {"function": "functions", "exception": "exceptions"}.get(kind, "stdtypes")
        page = f"library/{module}.html" if module else f"builtins/{page}.html"
    elif kind == "mod":
        page = f"{name.removeprefix('torch.')}.html"
    else:
        member = inspect.isclass(owner) and owner.__name__ not in A_PAGE_FOR_EACH_MEMBER
        page = f"generated/{owner_name if member else name}.html"
        page = next((p for prefix, p in SHARED_PAGES.items() if name.startswith(prefix)), page)
    return f"{name} {kind} {page}"


def explain(role: str, name: str, inventories: dict[str, Inventory]) -> str:
    """Say why a reference leads nowhere, and what to write instead."""
    project = project_of(name)
    if project is None:
        return f"`{name}`: only {', '.join(SITES)} have an inventory; link to it as Markdown does"
    known = inventories[project]
    if name in known:
        kind = known[name][0]
        return f"`{name}` is a {kind}: write {{{ROLES[kind]}}}`{name}`"
    try:
        thing = find(name)
    except LookupError:
        owner, _, last = name.rpartition(".")
        names = [n for inventory in inventories.values() for n in inventory]
        with contextlib.suppress(LookupError):
            names += [f"{owner}.{member}" for member in dir(find(owner))] if owner else []
        full_names = [n for n in names if n.endswith(f".{last}")]
        guess = [*difflib.get_close_matches(name, names, n=1, cutoff=0.8), *full_names][:1]
        hint = f"; did you mean `{guess[0]}`?" if guess else ""
        return f"{installed(project)} has no `{name}`{hint}"
    for other in known:
        if other.rpartition(".")[2] == name.rpartition(".")[2] and find(other) is thing:
            return f"{project} documents `{name}` elsewhere: write {{{role}}}`{name} <{other}>`"
    line = line_for(name)
    return (
        f"`{name}` exists; add it to conf/inventories/{project}.inv: `{line}` "
        f"(look whether {SITES[project]}{line.split()[2]} has it)"
    )


def problems(path: Path) -> Iterator[str]:
    """Name each line of an inventory that is out of order, double, or no longer imports."""
    previous = ""
    for number, line in enumerate(
        path.read_text(encoding="utf-8").splitlines()[HEADER:], HEADER + 1
    ):
        name = line.split()[0]
        if name <= previous:
            yield f"{path.name}:{number}: `{name}` after `{previous}`; sort them, each name once"
        previous = name
        try:
            find(name)
        except LookupError:
            yield f"{path.name}:{number}: {installed(path.stem)} has no `{name}`"


def refreshed(text: str, site: str) -> tuple[str, list[str]]:
    """Return an inventory with kinds and pages as a site has them, and the names it lacks."""
    with urllib.request.urlopen(site + "objects.inv") as answer:
        documented = InventoryFile.loads(answer.read(), uri="").data
    lines, missing = text.splitlines()[:HEADER], []
    for line in text.splitlines()[HEADER:]:
        name = line.split()[0]
        for kind, items in documented.items():
            page, _, anchor = items[name].uri.partition("#") if name in items else ("", "", "")
            if kind.startswith("py:") and anchor in {name, f"module-{name}"}:
                kind = kind.removeprefix("py:").replace("module", "mod")
                lines.append(f"{name} {kind} {page}")
                break
        else:
            lines.append(line)
            missing.append(name)
    return "\n".join(lines) + "\n", missing


def main(arguments: list[str] | None = None, folder: Path = INVENTORIES) -> int:
    """Check or renew the inventories in a folder; return 1 if something is to be done by hand."""
    parser = argparse.ArgumentParser(description="Check or renew the inventories.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="against the installed packages")
    action.add_argument("--refresh", action="store_true", help="from the sites; needs a network")
    refresh = parser.parse_args(arguments).refresh
    found = []
    for project, site in SITES.items():
        path = folder / f"{project}.inv"
        if refresh:
            before = path.read_text(encoding="utf-8")
            after, missing = refreshed(before, site)
            found += [f"{path.name}: {site} does not document `{name}`" for name in missing]
            path.write_text(after, encoding="utf-8")
            diff = difflib.unified_diff(
                before.splitlines(), after.splitlines(), path.name, lineterm=""
            )
            print(*diff, sep="\n")
        found += problems(path)
    print(*found, sep="\n", file=sys.stderr)
    return int(bool(found))


def use_inventories(app: Sphinx, config: Config) -> None:
    """Point intersphinx to the inventories of the repository."""
    where = os.path.relpath(INVENTORIES, app.srcdir)
    config.intersphinx_mapping = {n: (site, f"{where}/{n}.inv") for n, site in SITES.items()}


def warn(app: Sphinx, domain: Domain | None, node: Element) -> bool | None:
    """Explain a reference to Python code that leads nowhere; leave other kinds to Sphinx."""
    if domain is None or domain.name != "py":
        return None
    inventories = {name: read(INVENTORIES / f"{name}.inv") for name in SITES}
    message = explain(node["reftype"], node["reftarget"], inventories)
    where = location(node, node["reftarget"])
    logger.warning(message, location=where, type="ref", subtype=node["reftype"])
    return True


def setup(app: Sphinx) -> dict[str, bool]:
    """Set intersphinx up, and what is said when a name is missing."""
    app.setup_extension("sphinx.ext.intersphinx")
    app.connect("config-inited", use_inventories, priority=400)  # intersphinx reads them at 800
    app.connect("warn-missing-reference", warn)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    sys.exit(main())
