"""Files that a reader takes along, offered with size and date, if this build has them.

::

    ```{offer} epub/pytorch-answered.epub
    ```

The file lies in ``downloads_folder`` (a setting, relative to the pages), where ``nox -s downloads``
puts it. Then the page links to a copy that is published with it, else it says that the file is not
part of this build. A file that comes, changes or goes makes the page again.

As a command, this module packs a built site for reading offline::

    python conf/extensions/downloads.py build/html build/downloads/zip/pytorch-answered.zip
"""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archive import moment, write_zip
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

PUBLISHED = "_downloads"  # beside what sphinx-gallery offers


def size(number: int) -> str:
    """Return a number of bytes as a reader wants to know it."""
    return f"{number / 1e6:.1f} MB" if number >= 1e6 else f"{number / 1e3:.0f} kB"


def facts(file: Path) -> str:
    """Return a file's size and day, as in "312 kB, 1 December 2026"; nothing if it is not there."""
    if not file.is_file():
        return ""
    stat = file.stat()
    day = datetime.fromtimestamp(stat.st_mtime, UTC)
    return f"{size(stat.st_size)}, {day.day} {day:%B %Y}"


def offered(env: BuildEnvironment, name: str) -> Path:
    """Return where a file that a page offers is made."""
    return Path(env.srcdir, env.config.downloads_folder, name)


def offers(env: BuildEnvironment) -> Iterator[tuple[str, str, str]]:
    """Yield (page, file, what the page says of it) for each file that a page offers."""
    for docname, data in env.metadata.items():
        for name, said in data.get("offers", {}).items():
            yield docname, name, said


class Offer(SphinxDirective):
    """A link to a file that may not be there."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the link, or the sentence in its place."""
        name = self.arguments[0]
        said = facts(offered(self.env, name))
        self.env.metadata[self.env.docname].setdefault("offers", {})[name] = said
        if not said:
            command = nodes.literal("", "nox -s downloads")
            missing = nodes.Text("Not part of this copy of the site: ")
            return [nodes.paragraph("", "", missing, command, nodes.Text(" makes it."))]
        file = name.rpartition("/")[2]
        address = "../" * self.env.docname.count("/") + f"{PUBLISHED}/{file}"
        link = nodes.reference("", file, refuri=address, internal=True)
        return [nodes.paragraph("", "", link, nodes.Text(f" ({said})"))]


def outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Return the pages that no longer say what is true."""
    wrong = {page for page, name, said in offers(env) if facts(offered(env, name)) != said}
    return sorted(wrong - removed)


def publish(app: Sphinx, error: Exception | None) -> None:
    """Put the files beside the pages, and remove those that are no longer offered."""
    if app.builder.name != "html" or error:
        return
    folder = Path(app.outdir, PUBLISHED)
    for _, name, said in offers(app.env):
        copy = folder / name.rpartition("/")[2]
        if said:
            folder.mkdir(exist_ok=True)
            shutil.copy2(offered(app.env, name), copy)
        else:
            copy.unlink(missing_ok=True)


def pack(site: Path, target: Path) -> None:
    """Write a built site, without Sphinx's own notes, as a zip with one folder in it."""
    files = sorted(file for file in site.rglob("*") if file.is_file() and file.name[0] != ".")
    target.parent.mkdir(parents=True, exist_ok=True)
    named = ((f"{target.stem}/{f.relative_to(site).as_posix()}", f.read_bytes()) for f in files)
    write_zip(target, named, moment())


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive and what keeps it true."""
    app.add_config_value("downloads_folder", "", "env", types=frozenset({str}))
    app.add_directive("offer", Offer)
    app.connect("env-get-outdated", outdated)
    app.connect("build-finished", publish)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
