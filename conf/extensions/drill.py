"""The drill: a page that asks each chapter's question and has the reader grade the answer.

::

    ```{drill}               once, on a page of its own

A card is a chapter's title and short answer. The page lists all cards in reading order, each
opening on a click, which works without JavaScript. From that list ``drill.js`` takes the cards it
asks, so no text is there twice; ``fsrs.js`` says when a card comes back. Progress stays in the
browser. Neither script, nor ``drill.css``, is loaded on any other page.

A chapter without a title or a short answer has no card, and is a warning in ``chapters``.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from chapters import LEVELS, chapters_of, page_title, summary
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sphinx.application import Sphinx
    from sphinx.builders import Builder
    from sphinx.environment import BuildEnvironment
    from sphinx.writers.html5 import HTML5Translator

# The marks are replaced by the options of the two choices.
PANEL = """\
<noscript><p>With JavaScript this page asks the cards; without, read them below.</p></noscript>
<div class="drill">
<p class="drill-filters">
<label>Part <select class="drill-part"><option value="">all</option>@parts@</select></label>
<label>Level <select class="drill-level"><option value="">all</option>@levels@</select></label>
</p>
<p class="drill-status" role="status"></p>
<div class="drill-card" role="group" aria-label="Card">
<p class="drill-question" id="drill-question" tabindex="-1"></p>
<button type="button" class="drill-reveal" aria-describedby="drill-question">
Show the answer
</button>
<div class="drill-answer" role="group" aria-label="Answer" tabindex="-1" hidden></div>
<div class="drill-grades" role="group" aria-label="How well did you know it?" hidden>
<button type="button"><kbd>1</kbd> Again <small></small></button>
<button type="button"><kbd>2</kbd> Hard <small></small></button>
<button type="button"><kbd>3</kbd> Good <small></small></button>
<button type="button"><kbd>4</kbd> Easy <small></small></button>
</div>
</div>
<p class="drill-progress">
<button type="button" class="drill-export">Export progress</button>
<button type="button" class="drill-import">Import progress</button>
<button type="button" class="drill-reset">Reset</button>
<input type="file" accept=".json,application/json" aria-label="Progress file" hidden>
</p>
<p class="drill-message" role="alert"></p>
<dialog class="drill-ask" aria-labelledby="drill-ask">
<form method="dialog">
<p id="drill-ask"></p>
<button value="keep">Keep it</button> <button value="reset">Reset</button>
</form>
</dialog>
</div>
"""


def options(values: Iterable[tuple[str, str]]) -> str:
    """Return HTML options from pairs of value and text."""
    return "".join(
        f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in values
    )


def plain(element: nodes.Element) -> list[nodes.Node]:
    """Return an element's text: code stays code, and all else is plain."""
    return [
        nodes.literal("", text) if isinstance(text.parent, nodes.literal) else nodes.Text(text)
        for text in element.findall(nodes.Text)
    ]


def reading_order(env: BuildEnvironment) -> list[str]:
    """Return the chapters in the order of the tables of contents."""
    return [doc for doc in env.collect_relations() if doc in chapters_of(env)]


class drill(nodes.General, nodes.Element):
    """Where the drill goes; filled in, the panel that asks."""


class card(nodes.General, nodes.Element):
    """One question, which opens to its answer."""


class Drill(SphinxDirective):
    """The panel that asks, and the list of all cards."""

    def run(self) -> list[nodes.Node]:
        """Return the place for both, and mark the page."""
        # Kept with the page by Sphinx, also between builds and from parallel readers.
        self.env.metadata[self.env.docname]["drill"] = "yes"
        return [drill()]


def make_card(env: BuildEnvironment, builder: Builder, page: str, chapter: str) -> card:
    """Return a chapter's card, with its link as seen from `page`."""
    doctree = env.get_doctree(chapter)
    answer = next(
        node for node in doctree.findall(nodes.admonition) if "short-answer" in node["classes"]
    )
    link = nodes.reference(
        "", "Read the chapter", refuri=builder.get_relative_uri(page, chapter), internal=True
    )
    return card(
        "",
        summary("", "", *plain(page_title(doctree))),
        *(nodes.paragraph("", "", *plain(text)) for text in answer.findall(nodes.paragraph)),
        nodes.paragraph("", "", link),
        chapter=chapter,
        level=chapters_of(env)[chapter]["level"],
    )


def fill_in(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the cards on the page."""
    env = app.env
    for place in list(doctree.findall(drill)):
        parts: dict[str, list[nodes.Node]] = {}
        for chapter in reading_order(env):
            made = make_card(env, app.builder, docname, chapter)
            parts.setdefault(chapter.partition("/")[0], []).append(made)
        titles = {
            part: env.titles[index].astext() if (index := f"{part}/index") in env.titles else part
            for part in parts
        }
        place["parts"] = list(titles.items())
        cards = nodes.container("", classes=["cards"])
        for part, made in parts.items():
            cards += [nodes.rubric("", titles[part], **{"heading-level": 3}), *made]
        heading = nodes.rubric("", "All cards", **{"heading-level": 2})
        place.parent.insert(place.parent.index(place) + 1, [heading, cards])


def outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Return the page to make again, since its cards or their order may have changed."""
    pages = [doc for doc, data in env.metadata.items() if "drill" in data and doc not in removed]
    return sorted(pages) if added | changed | removed else []


def add_files(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document
) -> None:
    """Load the scripts and the style where the drill is."""
    if "drill" in app.env.metadata.get(pagename, {}):
        app.add_css_file("drill.css")
        # Not modules: browsers load no module from an unzipped folder that nothing serves.
        app.add_js_file("fsrs.js", loading_method="defer")
        app.add_js_file("drill.js", loading_method="defer")


def visit_drill(self: HTML5Translator, node: drill) -> None:
    """Write the panel; in an EPUB the list of cards is all there is."""
    if self.builder.name != "epub":
        levels = [(level, level) for level in LEVELS]
        panel = PANEL.replace("@parts@", options(node["parts"]))
        self.body.append(panel.replace("@levels@", options(levels)))
    raise nodes.SkipNode


def visit_card(self: HTML5Translator, node: card) -> None:
    """Open the card."""
    data = {"data-card": node["chapter"], "data-level": node["level"]}
    self.body.append(self.starttag(node, "details", **data))


def depart_card(self: HTML5Translator, node: card) -> None:
    """Close the card."""
    self.body.append("</details>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive and fill it in once all chapters are read."""
    app.setup_extension("chapters")
    app.add_node(drill, html=(visit_drill, None))
    app.add_node(card, html=(visit_card, depart_card))
    app.add_directive("drill", Drill)
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-resolved", fill_in)
    app.connect("html-page-context", add_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
