"""Tidy the pages that sphinx-gallery writes.

- An index lists each script with the first sentence of its text, where sphinx-gallery puts a
  thumbnail; the list is plain reST, for every builder.
- A script's page loses the box that points to its own end, and the .zip, which is never the same
  twice. The downloads of the script and the notebook stay.
- The HTML page and the downloads of a script that was deleted go from the output folder as well.
- The footer of every page says what the scripts ran on.
- gallery.css comes to the pages that need it.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

ENTRY = re.compile(
    r"\.\. raw:: html\n\n +<div class=\"sphx-glr-thumbcontainer\".*?tooltip=\"(?P<text>.*?)\">\n"
    r".*?:doc:`(?P<page>.*?)`\n.*?thumbnail-title\">(?P<title>.*?)</div>\n    </div>\n",
    re.DOTALL,
)
FRAME = re.compile(r"\.\. raw:: html\n\n +<(div id='sg-tag-list'.*|div class=\"sphx-.*|/div)>\n")
SENTENCE = re.compile(r"(?<=[^.?]{20}[.?])\s")  # the first one that says something
ESCAPED = re.compile(r"([*`_|\\])")


def tidy_index(text: str) -> str:
    """Return a generated index with each thumbnail replaced by a link and a sentence."""

    def item(entry: re.Match[str]) -> str:
        words = html.unescape(entry["text"])
        sentence = SENTENCE.split(words, maxsplit=1)[0]
        plain = ESCAPED.sub(r"\\\1", sentence)
        return f":doc:`{entry['page']}`\n    {plain}\n"

    return FRAME.sub("", ENTRY.sub(item, text))


def rewrite_index(app: Sphinx, docname: str, content: list[str]) -> None:
    """Tidy the index pages as they are read."""
    if docname.startswith(f"{app.config.sphinx_gallery_conf['gallery_dirs']}/"):
        content[0] = tidy_index(content[0])


def tidy_page(app: Sphinx, doctree: nodes.document) -> None:
    """Take out the box that points to the page's end, and the .zip, which is never the same."""
    for node in list(doctree.findall(nodes.Element)):
        if {"sphx-glr-download-link-note", "sphx-glr-download-zip"} & set(node.get("classes", ())):
            node.parent.remove(node)


def remove_output(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Delete the HTML pages and downloads of documents that are gone."""
    if app.builder.format == "html":
        for docname in removed:
            Path(app.builder.get_outfilename(docname)).unlink(missing_ok=True)
        for users, name in env.dlfiles.values():
            if users <= removed:
                Path(app.outdir, "_downloads", name).unlink(missing_ok=True)
    return []


def built_with(generated: Path) -> str:
    """Return what the scripts ran on, as gallery.py kept it beside their pages."""
    machine = generated / "machine.json"
    if not machine.exists():
        return "The gallery's scripts did not run in this build."
    ran = json.loads(machine.read_text("utf-8"))
    return f"Built with torch {ran['torch']}, Python {ran['python']}, {ran['device']}."


def page_assets(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, object], doctree: object
) -> None:
    """Add our style where it is needed, and fill in the footer."""
    generated = Path(app.srcdir, app.config.sphinx_gallery_conf["gallery_dirs"])
    context["built_with"] = built_with(generated)
    gallery = pagename.startswith(f"{app.config.sphinx_gallery_conf['gallery_dirs']}/")
    if gallery or 'class="inline-svg"' in str(context.get("body")):
        app.add_css_file("gallery.css")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect each of the above to its event."""
    app.connect("source-read", rewrite_index)
    app.connect("doctree-read", tidy_page, priority=400)  # before downloads are collected
    app.connect("env-get-outdated", remove_output)
    app.connect("html-page-context", page_assets)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
