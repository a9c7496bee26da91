"""The anatomy of a chapter: front matter, short answer, myths, follow-up questions.

A chapter is a page in a part's folder, other than its index. Its front matter has ``level``
(core, working or internals) and may have ``also_asked`` and ``messages`` (lists of text).

::

    :::{short-answer}        once, 40 to 80 words of plain text, right after the title
    :::{myth} The claim      at least once; its option ``:truth:`` is the rule that holds
    :::{follow-up} Question? three to six; opens on a click
    ```{chapters}            lists a part's chapters, or on the home page the parts

Whatever breaks this is a warning with file and line that says what to write instead. From the
short answer the build derives the page's description, its schema.org question and answer, and its
line in the list of chapters. Each chapter says how many of its examples the last doctest run
checked, if that run had this very text; a script's page links to the chapter of its name.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.directives.other import TocTree
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from strict_doctest import digest, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sphinx.application import Sphinx
    from sphinx.builders import Builder
    from sphinx.environment import BuildEnvironment
    from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

LEVELS = ("core", "working", "internals")
KEYS = ("level", "also_asked", "messages")
WORDS = range(40, 81)
FOLLOW_UPS = range(3, 7)


def is_chapter(docname: str) -> bool:
    """Tell whether a page is a chapter: in a part's folder, and not its index."""
    part, _, stem = docname.partition("/")
    return bool(stem) and stem != "index" and part != "gallery"


def front_matter(source: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a page's front matter, and the line of each of its keys.

    Raises ValueError if it is not a YAML mapping.
    """
    block = re.match(r"---\n(.*?\n)?---\n", source, re.DOTALL)
    if block is None:
        return {}, {}
    try:
        data = yaml.safe_load(block[1] or "") or {}
    except yaml.YAMLError as error:
        raise ValueError(f"front matter is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("front matter is not a mapping of keys to values")
    lines = block[0].splitlines()
    return data, {
        key: number
        for key in data
        for number, line in enumerate(lines, 1)
        if line.startswith(f"{key}:")
    }


def front_matter_errors(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, what to write instead) for each mistake in a chapter's front matter."""
    for key, value in data.items():
        if key not in KEYS:
            yield key, f"unknown key `{key}` in the front matter: use {', '.join(KEYS)}"
        elif key == "level" and value not in LEVELS:
            yield key, f"level `{value}` does not exist: use {', '.join(LEVELS)}"
        elif key != "level" and not (
            isinstance(value, list) and value and all(isinstance(item, str) for item in value)
        ):
            yield key, f'`{key}` is a list of text: write `- "..."` lines below it, or drop it'
    if "level" not in data:
        yield (
            "",
            f"no `level` in the front matter: add `level: {LEVELS[0]}`, {' or '.join(LEVELS[1:])}",
        )


def first_sentence(text: str) -> str:
    """Return the first sentence: up to a full stop, question mark or exclamation mark."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", text, maxsplit=1)[0]


def question_and_answer(question: str, answer: str, also_asked: Iterable[str]) -> dict[str, Any]:
    """Return the page as schema.org's QAPage."""
    entity: dict[str, Any] = {
        "@type": "Question",
        "name": question,
        "answerCount": 1,
        "acceptedAnswer": {"@type": "Answer", "text": answer},
    }
    if also_asked:
        entity["alternateName"] = list(also_asked)
    return {"@context": "https://schema.org", "@type": "QAPage", "mainEntity": entity}


def page_title(doctree: nodes.document) -> nodes.title | None:
    """Return the page's title; boxes have titles too, but are no sections."""
    found = (
        node for node in doctree.findall(nodes.title) if isinstance(node.parent, nodes.section)
    )
    return next(found, None)


def checked(record: dict[str, Any] | None, source_digest: str) -> str:
    """Return what a chapter says about its examples, from its record of the last doctest run."""
    if record is None or record["digest"] != source_digest:
        return "Examples not checked in this build."
    number = record["examples"]
    return (
        f"{number} example{'s' if number != 1 else ''} checked with torch {record['torch']}, "
        f"Python {record['python']}, {record['device']}."
    )


class details(nodes.General, nodes.Element):
    """A block that opens on a click."""


class summary(nodes.General, nodes.TextElement):
    """The line of a details block that is always seen."""


class chapter_list(nodes.General, nodes.Element):
    """Where the list of a part's chapters goes."""


def labelled_box(
    directive: SphinxDirective, kind: str, label: str
) -> tuple[nodes.admonition, list[nodes.system_message]]:
    """Return a directive's content in a box with its argument as title, which can be linked to."""
    title, messages = directive.parse_inline(directive.arguments[0])
    before = nodes.inline("", f"{label}: ", classes=["label"])
    box = nodes.admonition("", nodes.title("", "", before, *title), classes=[kind])
    box["names"].append(nodes.fully_normalize_name(f"{kind} {directive.arguments[0]}"))
    directive.set_source_info(box)
    directive.state.document.note_explicit_target(box, box)
    box += directive.parse_content_to_nodes()
    return box, messages


class ShortAnswer(SphinxDirective):
    """What you would say in thirty seconds."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the box."""
        title = nodes.title("", "Short answer")
        box = nodes.admonition("", title, classes=["short-answer"])
        self.set_source_info(box)
        box += self.parse_content_to_nodes()
        return [box]


class Myth(SphinxDirective):
    """A folk claim, run to the point where it breaks, and the rule that holds."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"truth": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the box, which can be linked to."""
        if not self.options.get("truth"):
            raise self.error("a myth needs the rule that holds: add `:truth: One sentence.`")
        box, messages = labelled_box(self, "myth", "Claim")
        truth, more = self.parse_inline(self.options["truth"])
        label = nodes.strong("", "What holds: ")
        box += nodes.paragraph("", "", label, *truth, classes=["truth"])
        return [box, *messages, *more]


class FollowUp(SphinxDirective):
    """A question an interviewer asks next, with an answer that opens on a click."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the block."""
        self.assert_has_content()
        question, messages = self.parse_inline(self.arguments[0])
        block = details("", summary("", "", *question), classes=["follow-up"])
        block["names"].append(nodes.fully_normalize_name(f"follow-up {self.arguments[0]}"))
        self.state.document.note_implicit_target(block, block)
        self.set_source_info(block)
        block += self.parse_content_to_nodes()
        return [block, *messages]


class Chapters(TocTree):
    """A part's table of contents, shown with each chapter's level and answer."""

    def run(self) -> list[nodes.Node]:
        """Return the hidden toctree and the place for the list."""
        self.options["hidden"] = True
        return [*super().run(), chapter_list()]


def check_chapter(app: Sphinx, doctree: nodes.document) -> None:
    """Warn about what a chapter lacks, and keep what other pages derive from it."""
    env = app.env
    if not is_chapter(env.docname):
        return
    try:
        data, lines = front_matter(env.doc2path(env.docname).read_text("utf-8"))
    except ValueError as error:
        data, lines = {"level": LEVELS[0]}, {}
        logger.warning("%s", error, location=(env.docname, 1), type="chapters")
    for key, wrong in front_matter_errors(data):
        logger.warning(wrong, location=(env.docname, lines.get(key, 1)), type="chapters")

    boxes = {
        kind: [n for n in doctree.findall(nodes.admonition) if kind in n["classes"]]
        for kind in ("short-answer", "myth")
    }
    title = page_title(doctree)
    for wrong, node in anatomy_errors(title, boxes, list(doctree.findall(details))):
        logger.warning(wrong, location=node or (env.docname, 1), type="chapters")
    if title is not None and boxes["short-answer"]:
        answer = " ".join(p.astext() for p in boxes["short-answer"][0].findall(nodes.paragraph))
        chapters_of(env)[env.docname] = {
            "question": title.astext(),
            "answer": " ".join(answer.split()),
            "level": data.get("level", ""),
            "also_asked": data.get("also_asked") or [],
            "label": label(app, env.docname),
        }


def anatomy_errors(
    title: nodes.title | None, boxes: dict[str, list[nodes.Element]], follow_ups: list[details]
) -> Iterator[tuple[str, nodes.Node | None]]:
    """Yield (what to write instead, where) for each thing that a chapter lacks."""
    if title is None:
        yield "no title: begin with `# The question?`", None
    answers = boxes["short-answer"]
    if len(answers) != 1:
        yield (
            f"{len(answers)} short answers: write one `:::{{short-answer}}` after the title",
            title,
        )
    else:
        text = " ".join(p.astext() for p in answers[0].findall(nodes.paragraph))
        if (words := len(text.split())) not in WORDS:
            yield f"the short answer has {words} words: write {WORDS[0]} to {WORDS[-1]}", answers[0]
    if not boxes["myth"]:
        yield "no myth: write at least one `:::{myth} The claim`", title
    if len(follow_ups) not in FOLLOW_UPS:
        yield (
            f"{len(follow_ups)} follow-up questions: write {FOLLOW_UPS[0]} to {FOLLOW_UPS[-1]} "
            "`:::{follow-up} Question?`",
            follow_ups[-1] if follow_ups else title,
        )


def chapters_of(env: BuildEnvironment) -> dict[str, dict[str, Any]]:
    """Return what is known of each chapter, by docname."""
    if not hasattr(env, "chapters"):
        env.chapters = {}
    return env.chapters


def forget_chapter(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop a chapter that is gone or about to be read again."""
    chapters_of(env).pop(docname, None)


def merge_chapters(
    app: Sphinx, env: BuildEnvironment, docnames: Iterable[str], other: BuildEnvironment
) -> None:
    """Take over what another reading process found."""
    chapters_of(env).update(
        {doc: info for doc, info in chapters_of(other).items() if doc in docnames}
    )


def label(app: Sphinx, docname: str) -> str:
    """Return what a chapter says about its examples in this build."""
    records = read_records(Path(app.confdir, app.config.checked_examples))
    return checked(records.get(docname), digest(Path(app.env.doc2path(docname))))


def outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Return the pages to make again though their own text is the same.

    These are chapters whose examples were checked, or went stale, since the last build, and pages
    that name a chapter that was changed.
    """
    stale = {
        doc
        for doc, info in chapters_of(env).items()
        if doc in env.found_docs and info.get("label") != label(app, doc)
    }
    touched = set(filter(is_chapter, added | changed | removed | stale))
    listing = {f"{doc.partition('/')[0]}/index" for doc in touched}
    listing |= {f"gallery/{doc}" for doc in touched}
    listing |= {app.config.root_doc} if listing else set()
    return sorted(stale | (listing & env.found_docs))


def list_chapters(
    env: BuildEnvironment, builder: Builder, page: str, listed: str
) -> nodes.bullet_list:
    """Return what the table of contents of `listed` names, with links as seen from `page`.

    A part's own page shows its chapters' answers; the home page shows parts, and their questions.
    """
    items = nodes.bullet_list(classes=["chapter-list"])
    for entry in env.toctree_includes.get(listed, []):
        info = chapters_of(env).get(entry)
        if info is None and not any(map(is_chapter, env.toctree_includes.get(entry, []))):
            continue  # a page beside the chapters, such as the gallery
        title = info["question"] if info else env.titles[entry].astext()
        uri = builder.get_relative_uri(page, entry)
        line = nodes.paragraph("", "", nodes.reference("", title, refuri=uri, internal=True))
        item = nodes.list_item("", line)
        if info is None:
            item += list_chapters(env, builder, page, entry)
        else:
            line += [nodes.Text(" "), nodes.inline("", info["level"], classes=["level"])]
            if page == listed:
                item += nodes.paragraph("", first_sentence(info["answer"]))
        items += item
    return items


def put_under_title(doctree: nodes.document, *parts: nodes.Node) -> None:
    """Insert a line of facts below the page's title."""
    title = page_title(doctree)
    line = nodes.paragraph("", "", *parts, classes=["facts"])
    title.parent.insert(title.parent.index(title) + 1, line)


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Fill in lists of chapters, and what stands under the title of a chapter or its script."""
    for place in list(doctree.findall(chapter_list)):
        place.replace_self(list_chapters(app.env, app.builder, docname, docname))
    if (info := chapters_of(app.env).get(docname)) is not None:
        level = nodes.inline("", info["level"], classes=["level"])
        put_under_title(doctree, level, nodes.Text(f" {info['label']}"))
    chapter = docname.removeprefix("gallery/")
    if docname != chapter and (info := chapters_of(app.env).get(chapter)) is not None:
        uri = app.builder.get_relative_uri(docname, chapter)
        link = nodes.reference("", info["question"], refuri=uri, internal=True)
        put_under_title(doctree, nodes.Text("Chapter: "), link)


def describe_page(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document
) -> None:
    """Give a chapter its description and its schema.org data."""
    if (info := chapters_of(app.env).get(pagename)) is None:
        return
    description = first_sentence(info["answer"])
    escaped = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    data = question_and_answer(info["question"], info["answer"], info["also_asked"])
    script = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    context["metatags"] += (
        f'<meta name="description" content="{escaped}" />\n'
        f'<script type="application/ld+json">{script}</script>\n'
    )
    context["meta"] = {**(context["meta"] or {}), "og:description": description}


def visit_details(self: HTML5Translator, node: details) -> None:
    """Open the block."""
    self.body.append(self.starttag(node, "details"))


def depart_details(self: HTML5Translator, node: details) -> None:
    """Close the block."""
    self.body.append("</details>\n")


def visit_summary(self: HTML5Translator, node: summary) -> None:
    """Open the line."""
    self.body.append(self.starttag(node, "summary", suffix=""))


def depart_summary(self: HTML5Translator, node: summary) -> None:
    """Close the line."""
    self.body.append("</summary>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives, their checks, and what is derived from them."""
    app.add_config_value("checked_examples", "", "env", types=frozenset({str}))
    app.add_node(details, html=(visit_details, depart_details))
    app.add_node(summary, html=(visit_summary, depart_summary))
    app.add_node(chapter_list)
    app.add_directive("short-answer", ShortAnswer)
    app.add_directive("myth", Myth)
    app.add_directive("follow-up", FollowUp)
    app.add_directive("chapters", Chapters)
    app.connect("doctree-read", check_chapter)
    app.connect("env-purge-doc", forget_chapter)
    app.connect("env-merge-info", merge_chapters)
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-resolved", resolve)
    # Before sphinxext-opengraph, which writes a description only where there is none yet.
    app.connect("html-page-context", describe_page, priority=400)
    return {"version": "1", "parallel_read_safe": True}
