"""What pages share that list things found all over the book, and the anchors they lead to.

While a page is read, an extension hands what it found there to `keep`; on the page that lists
it stands a directive derived from `Gather`. A list is filled in when its page is written, by
part and in reading order, and its page is made again whenever another page has changed.

Each thing has an anchor on the page it stands on. Two gates, both warnings with file and line, hold
for every page: no anchor stands twice on it, and none that a list leads to is missing from it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from docutils import nodes
from source_line import location
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

logger = logging.getLogger(__name__)

LONGEST = 80  # characters of a slug; a longer text is cut and told apart by its digest


@dataclass(frozen=True)
class Found:
    """Something that stands on a page, at an anchor and on a line of the page's file."""

    anchor: str
    line: int


def slug(text: str) -> str:
    """Return an anchor for a text, always the same one."""
    whole = nodes.make_id(text)
    if len(whole) <= LONGEST:
        return whole
    start = whole[: LONGEST + 1].rpartition("-")[0] or whole[:LONGEST]
    return f"{start}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def part_of(docname: str) -> str:
    """Return the part that a page belongs to; a script's page belongs to its chapter's."""
    return docname.removeprefix("gallery/").partition("/")[0]


def walk(tree: dict[str, Sequence[str]], root: str) -> Iterator[str]:
    """Yield the pages below a page, itself first, as the tables of contents order them."""
    seen: set[str] = set()
    todo = [root]
    while todo:
        page = todo.pop()
        if page not in seen:
            seen.add(page)
            yield page
            todo.extend(reversed(tree.get(page, ())))


def anchors(doctree: nodes.document) -> Iterator[tuple[str, nodes.Node]]:
    """Yield each anchor of a page, and where it stands."""
    for node in doctree.findall():
        if isinstance(node, nodes.raw) and node.get("format") == "html":
            for name in re.findall(r"""<[^>]*\sid=["']([^"']+)""", node.astext()):
                yield name, node
        elif isinstance(node, nodes.Element):
            for name in node["ids"]:
                yield name, node


def reading_order(env: BuildEnvironment) -> list[str]:
    """Return all pages as a reader meets them; those in no table of contents come last."""
    reached = list(walk(env.toctree_includes, env.config.root_doc))
    return [*reached, *sorted(env.found_docs.difference(reached))]


def store(env: BuildEnvironment) -> dict[str, dict[str, list[Any]]]:
    """Return what was found, by kind and page."""
    if not hasattr(env, "gathered"):
        env.gathered = defaultdict(dict)
    return env.gathered


def keep(env: BuildEnvironment, kind: str, found: Iterable[Any]) -> None:
    """Remember what was found on the page that is being read."""
    if items := list(found):
        store(env)[kind][env.docname] = items


def parts(env: BuildEnvironment) -> list[str]:
    """Return the parts in reading order."""
    return list(dict.fromkeys(map(part_of, reading_order(env))))


def by_part(env: BuildEnvironment, kind: str) -> dict[str, list[tuple[str, Any]]]:
    """Return (page, thing found) for each part, all in reading order."""
    found: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for docname in reading_order(env):
        for item in store(env)[kind].get(docname, ()):
            found[part_of(docname)].append((docname, item))
    return dict(found)


class gathered(nodes.General, nodes.Element):
    """Where a list goes; its `kind` says which."""


class Gather(SphinxDirective):
    """Puts the list of one kind at the end of its page."""

    kind: ClassVar[str]

    def run(self) -> list[nodes.Node]:
        """Return the place, and remember that this page has to follow the others."""
        keep(self.env, "lists", [self.kind])
        return [gathered(kind=self.kind)]


def section(anchor: str, *title: nodes.Node, classes: Iterable[str] = ()) -> nodes.section:
    """Return a section with its title."""
    return nodes.section(
        "", nodes.title("", "", *title), ids=[anchor], names=[], classes=list(classes)
    )


def fill(
    app: Sphinx, doctree: nodes.document, kind: str, listed: dict[str, list[nodes.Node]]
) -> None:
    """Replace each place for this kind by a section for each part, with links to them above."""
    for place in [node for node in doctree.findall(gathered) if node["kind"] == kind]:
        links = nodes.bullet_list(classes=["parts"])
        sections = []
        for part, entries in listed.items():
            named = app.env.titles.get(f"{part}/index") or app.env.titles[part]
            title = named.astext()
            link = nodes.reference("", title, refid=slug(part), internal=True)
            links += nodes.list_item("", nodes.paragraph("", "", link))
            sections.append(section(slug(part), nodes.Text(title)))
            sections[-1].extend(node.deepcopy() for node in entries)
        place.replace_self([links, *sections] if len(sections) > 1 else sections)


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what was found on a page that is gone or about to be read again."""
    for pages in store(env).values():
        pages.pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, docnames: set[str], other: BuildEnvironment) -> None:
    """Take over what another reading process found."""
    for kind, pages in store(other).items():
        store(env)[kind].update({doc: items for doc, items in pages.items() if doc in docnames})


def outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Return the pages with a list, which any change may concern."""
    return sorted(store(env)["lists"]) if added | changed | removed else []


def check_anchors(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Warn about an anchor that stands twice on a page, or that a list leads to in vain."""
    there = list(anchors(doctree))
    count = Counter(name for name, _ in there)
    for name, node in dict(there).items():  # the last of each
        if count[name] > 1:
            logger.warning(
                "the anchor `%s` stands %d times on the page %s: reword one of its titles",
                *(name, count[name], docname),
                location=location(node, ""),
                type="anchors",
            )
    for kind, pages in store(app.env).items():
        for item in pages.get(docname, ()):
            if isinstance(item, Found) and item.anchor not in count:
                logger.warning(
                    "the %s leads to `#%s`, which is not on the page: show this to every reader, "
                    "or take it out",
                    *(kind, item.anchor),
                    location=(docname, item.line),
                    type="anchors",
                )


def style(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Add our style to pages with a list."""
    if store(app.env)["lists"].get(pagename):
        app.add_css_file("lists.css")


def setup(app: Sphinx) -> dict[str, Any]:
    """Keep the record through every kind of build, and check each page as it is written."""
    app.add_node(gathered)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("env-get-outdated", outdated)
    app.connect("html-page-context", style)
    app.connect("doctree-resolved", check_anchors, priority=900)  # the page is whole by then
    return {"env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
