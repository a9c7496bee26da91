"""What programs read: ``llms.txt``, each chapter's Markdown beside its page, and the sitemap.

``llms.txt`` is the book's contents in the form of llmstxt.org: the home page's title and first
paragraph, then each part with its chapters' questions and the first sentence of each answer. All
links are relative to it, so they hold wherever the site is served from. ``part/name.md`` is the
chapter's source, byte for byte; ``part/name.html`` names it as its alternate. ``sitemap.xml`` names
every page, whichever of them this build had to write, below ``html_baseurl``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape as escape_xml

from chapters import chapters_of, first_sentence, is_chapter
from docutils import nodes
from gathered import part_of, reading_order

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

HOW_TO_READ = (
    "Each chapter below is MyST Markdown. Every `{doctest}` block in it was run, and its outputs "
    "and error messages were compared with what torch printed. ``{doc}`/part/name` `` stands for "
    "a link to `part/name.md`."
)


def contents(
    title: str, summary: str, sections: Iterable[tuple[str, list[tuple[str, str, str]]]]
) -> str:
    """Return llms.txt; each section has a title and (text, address, notes) for its links."""
    lines = [f"# {title}", "", f"> {summary}", "", HOW_TO_READ]
    for heading, links in sections:
        lines += ["", f"## {heading}", ""]
        lines += [
            f"- [{escape(text)}]({address})" + (f": {notes}" if notes else "")
            for text, address, notes in links
        ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Return a link's text with its brackets escaped."""
    return text.replace("[", r"\[").replace("]", r"\]")


def first_paragraph(doctree: nodes.document) -> str:
    """Return a page's first paragraph, on one line."""
    found = next(iter(doctree.findall(nodes.paragraph)), None)
    return " ".join(found.astext().split()) if found is not None else ""


def sections(env: BuildEnvironment) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return the parts with their chapters, then the other pages of the home page's contents."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for docname in reading_order(env):
        if (info := chapters_of(env).get(docname)) is not None:
            found.setdefault(part_of(docname), []).append(
                (info["question"], f"{docname}.md", first_sentence(info["answer"]))
            )
    parts = [(env.titles[f"{part}/index"].astext(), links) for part, links in found.items()]
    others = [
        (env.titles[docname].astext(), f"{docname}.html", "")
        for docname in env.toctree_includes.get(env.config.root_doc, ())
        if part_of(docname) not in found
    ]
    return [*parts, ("Optional", others)] if others else parts


def sitemap(addresses: Iterable[str]) -> str:
    """Return sitemap.xml."""
    urls = "".join(f"<url><loc>{escape_xml(address)}</loc></url>\n" for address in addresses)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{urls}</urlset>\n'
    )


def write_files(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt, the chapters' Markdown and the sitemap."""
    if error is not None or app.builder.format != "html" or app.builder.name == "epub":
        return
    env, out = app.env, Path(app.outdir)
    root = env.config.root_doc
    summary = first_paragraph(env.get_doctree(root))
    text = contents(env.titles[root].astext(), summary, sections(env))
    (out / "llms.txt").write_text(text, "utf-8")
    for docname in chapters_of(env):
        (out / f"{docname}.md").write_bytes(Path(env.doc2path(docname)).read_bytes())
    if base := app.config.html_baseurl:
        pages = sorted(map(app.builder.get_target_uri, env.found_docs))
        text = sitemap(f"{base.rstrip('/')}/{page}" for page in pages)
        (out / "sitemap.xml").write_text(text, "utf-8")


def remove_files(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Delete the Markdown of chapters that are gone."""
    for docname in filter(is_chapter, removed):
        Path(app.outdir, f"{docname}.md").unlink(missing_ok=True)
    return []


def name_alternate(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Say on a chapter's page where its Markdown is."""
    if pagename in chapters_of(app.env):
        name = f"{pagename.rpartition('/')[2]}.md"
        context["metatags"] += f'<link rel="alternate" type="text/markdown" href="{name}" />\n'


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the events."""
    app.connect("html-page-context", name_alternate)
    app.connect("env-get-outdated", remove_files)
    app.connect("build-finished", write_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
