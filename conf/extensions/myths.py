"""The myths: every folk claim that a chapter refutes, with the rule that holds.

::

    ```{myth-list}           lists them, on a page of its own

Both sentences are the chapter's, as is the anchor of an entry; the entry links to the run. A link
in either sentence is a warning, since it would not hold on another page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from docutils import nodes
from gathered import Found, Gather, by_part, fill, keep, section, store
from sphinx.addnodes import pending_xref
from sphinx.util import logging

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)

MYTHS = "list of myths"


@dataclass(frozen=True)
class Refuted(Found):
    """A claim and the rule that holds, as inline text."""

    claim: nodes.inline
    truth: nodes.inline


def links(text: nodes.Node) -> list[nodes.Element]:
    """Return the links in a text."""
    return [n for n in text.findall(nodes.Element) if isinstance(n, pending_xref | nodes.reference)]


def inline_copy(parts: Iterable[nodes.Node]) -> nodes.inline:
    """Return a copy of inline text that belongs to no page, without links."""
    copy = nodes.inline("", "", *(part.deepcopy() for part in parts))
    for link in links(copy):
        link.replace_self(link.children)
    for node in copy.findall():
        node.document = None  # or the record would hold the whole page
    return copy


def find_myths(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the myths of the page."""
    found = []
    for box in doctree.findall(nodes.admonition):
        if "myth" in box["classes"]:
            claim, truth = box.children[0], box.children[-1]  # each begins with its label
            sentences = (inline_copy(claim.children[1:]), inline_copy(truth.children[1:]))
            found.append(Refuted(box["ids"][0], box.line, *sentences))
            if links(claim) or links(truth):
                logger.warning(
                    "a link in a myth's claim or truth, which the list of myths repeats: "
                    "put it in the myth's text",
                    location=box,
                    type="myths",
                )
    keep(app.env, MYTHS, found)


class MythList(Gather):
    """The myths of all parts."""

    kind = MYTHS


def entry_section(app: Sphinx, page: str, docname: str, myth: Refuted) -> nodes.section:
    """Return a claim as a title, the rule that holds, and a link to the run."""
    result = section(myth.anchor, *myth.claim.deepcopy().children, classes=["myth-entry"])
    result.source, result.line = app.env.doc2path(docname), myth.line  # for complaints
    uri = f"{app.builder.get_relative_uri(page, docname)}#{myth.anchor}"
    title = app.env.titles[docname].astext()
    link = nodes.reference("", f"The run that refutes it: {title}", refuri=uri, internal=True)
    result += nodes.paragraph("", "", *myth.truth.deepcopy().children)
    result += nodes.paragraph("", "", link)
    return result


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Fill in the list."""
    if MYTHS not in store(app.env)["lists"].get(docname, ()):
        return
    sections = {
        part: [entry_section(app, docname, page, myth) for page, myth in found]
        for part, found in by_part(app.env, MYTHS).items()
    }
    fill(app, doctree, MYTHS, sections)


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive and what feeds it."""
    app.setup_extension("gathered")
    app.add_directive("myth-list", MythList)
    app.connect("doctree-read", find_myths)
    app.connect("doctree-resolved", resolve)
    return {"env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
