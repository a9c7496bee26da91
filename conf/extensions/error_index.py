"""The error index: every exception and warning that an example of the book raises.

::

    ```{error-index}         lists them, on a page of its own

Nothing is written for the index. It takes

* the last line of each traceback that a ``{doctest}`` fence expects;
* the output of each example that is ``print(caught[0].message)``, whatever the list of caught
  warnings is called. Any other way to show a ``.message`` is a warning;
* each line of a gallery script's output that begins with the type, as in ``RuntimeError: message``;
* the front matter's ``messages``, listed after their part's entries.

A message that the page's own code raises, with ``raise X("...")``, ``assert ..., "..."`` or a class
of its own, is left out: no reader meets it elsewhere.

One entry stands for one type and message. It stands in the part that raises it first, sorted by
text, and links to the first example in each section that raises it. An entry's anchor is made from
its type and message alone; the example has the same one on its page, numbered from the second on.
"""

from __future__ import annotations

import ast
import doctest
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from chapters import front_matter, is_chapter, page_title
from docutils import nodes
from gathered import Found, Gather, by_part, fill, keep, part_of, parts, section, slug, store
from sphinx.util import logging

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)

ERRORS, WORDINGS = "error index", "other wordings"  # kinds of things found

SHOWS_WARNING = re.compile(r"print\(\w+\[-?\d+\]\.message\)")
PRINTED = re.compile(
    r"^(?P<type>(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning)): (?P<message>.+)$", re.MULTILINE
)


class Message(NamedTuple):
    """An error as it is printed, with `...` for what varies."""

    type: str
    text: str


@dataclass(frozen=True)
class Raised(Found):
    """A message that an example raises, and the title of the section it stands in."""

    message: Message
    section: str


class Entry(NamedTuple):
    """A message, and the pages and anchors of the examples that raise it."""

    message: Message
    anchor: str
    places: list[tuple[str, Raised]]


def split(printed: str) -> Message:
    """Return a traceback's last line, or lines, as type and text."""
    kind, _, text = printed.replace("<BLANKLINE>", "").strip().partition(":")
    return Message(kind, text.strip())


def anchor(message: Message) -> str:
    """Return the anchor of a message."""
    return slug(f"{message.type} {message.text}")


def raised(text: str) -> Iterator[tuple[int, Message]]:
    """Yield each message that a fence expects, with the offset of its example's line."""
    for example in doctest.DocTestParser().get_examples(text):
        if example.exc_msg:
            yield example.lineno, split(example.exc_msg)
        elif SHOWS_WARNING.fullmatch(example.source.strip()):
            yield example.lineno, Message("Warning", example.want.strip())


def hidden_warnings(text: str) -> Iterator[int]:
    """Yield the offset of each example that shows a warning in a way the index cannot read."""
    for example in doctest.DocTestParser().get_examples(text):
        if not SHOWS_WARNING.fullmatch(example.source.strip()):
            tree = parse(example.source)
            if any(isinstance(n, ast.Attribute) and n.attr == "message" for n in ast.walk(tree)):
                yield example.lineno


def parse(code: str) -> ast.Module:
    """Return the syntax tree of some code, an empty one if it is none."""
    try:
        return ast.parse(code)
    except SyntaxError:  # whoever runs it says so
        return ast.Module([], [])


class OwnErrors:
    """The types that some code defines, and the messages that it raises."""

    def __init__(self, code: Iterable[str]) -> None:
        self.types: set[str] = set()
        self.messages: list[tuple[str, re.Pattern[str]]] = []
        for node in (node for piece in code for node in ast.walk(parse(piece))):
            if isinstance(node, ast.ClassDef):
                self.types.add(node.name)
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                self.add(ast.unparse(node.exc.func), node.exc.args[0])
            elif isinstance(node, ast.Assert) and node.msg:
                self.add("AssertionError", node.msg)

    def add(self, kind: str, argument: ast.expr) -> None:
        """Remember a message, if some of its text stands in the code."""
        pieces = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
        texts = [piece.value if isinstance(piece, ast.Constant) else None for piece in pieces]
        if any(isinstance(text, str) and text.strip() for text in texts):
            pattern = "".join(".*" if text is None else re.escape(str(text)) for text in texts)
            self.messages.append((base(kind), re.compile(pattern, re.DOTALL)))

    def __contains__(self, message: Message) -> bool:
        """Tell whether the code itself makes this message."""
        return base(message.type) in self.types or any(
            kind == base(message.type) and pattern.fullmatch(message.text)
            for kind, pattern in self.messages
        )


def base(kind: str) -> str:
    """Return a type's name without its module."""
    return kind.rpartition(".")[2]


def number(name: str, taken: dict[str, int]) -> str:
    """Return an anchor for one more block that raises the same."""
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}-{taken[name]}"


def entries(found: dict[str, list[tuple[str, Raised]]]) -> dict[str, list[Entry]]:
    """Return the entries by part: those it raises first, sorted by text."""
    places: dict[Message, list[tuple[str, Raised]]] = defaultdict(list)
    for docname, item in (pair for pairs in found.values() for pair in pairs):
        places[item.message].append((docname, item))
    listed: dict[str, list[Entry]] = defaultdict(list)
    for message, where in places.items():
        listed[part_of(where[0][0])].append(Entry(message, anchor(message), where))
    for part in listed.values():
        part.sort(key=lambda entry: (entry.message.text.casefold(), entry.message))
    return dict(listed)


def blocks(doctree: nodes.document) -> Iterator[tuple[nodes.literal_block, str, int]]:
    """Yield each {doctest} fence with its text and first line."""
    for node in doctree.findall(nodes.literal_block):
        if node.get("testnodetype") == "doctest":
            yield node, node.get("test", node.astext()), node.get("first_line", node.line or 1)


def find_errors(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the messages that the page's examples raise, and give their blocks anchors."""
    docname = app.env.docname
    if docname.startswith("gallery/"):
        found, code = in_script(doctree)
    else:
        found, code = in_chapter(doctree, docname)
    own = OwnErrors(code)
    taken: dict[str, int] = {}
    items: dict[tuple[str, Message], Raised] = {}  # one for each section and message
    for block, line, message in found:
        title = heading(block)
        if message not in own and (title, message) not in items:
            name = number(anchor(message), taken)
            block["ids"].append(name)
            items[title, message] = Raised(name, line, message, title)
    keep(app.env, ERRORS, items.values())
    if is_chapter(docname):
        keep(app.env, WORDINGS, other_wordings(Path(app.env.doc2path(docname))))


FoundIn = tuple[list[tuple[nodes.literal_block, int, Message]], list[str]]


def in_chapter(doctree: nodes.document, docname: str) -> FoundIn:
    """Return the messages of a page's examples, and the examples' code."""
    found, code = [], []
    for block, text, first in blocks(doctree):
        found += [(block, first + offset, message) for offset, message in raised(text)]
        code += [example.source for example in doctest.DocTestParser().get_examples(text)]
        for offset in hidden_warnings(text):
            logger.warning(
                "the error index cannot read this warning: show it with "
                "`print(caught[0].message)` alone",
                location=(docname, first + offset),
                type="error_index",
            )
    return found, code


def in_script(doctree: nodes.document) -> FoundIn:
    """Return the messages that a script's output names with their types, and the code."""
    found, code = [], []
    for block in doctree.findall(nodes.literal_block):
        if "sphx-glr-script-out" in block["classes"]:
            for match in PRINTED.finditer(block.astext()):
                found.append((block, block.line or 1, Message(match["type"], match["message"])))
        elif block.get("language", "").lower() == "python":
            code.append(block.astext())
    return found, code


def heading(node: nodes.Node) -> str:
    """Return the title of the box or section a node stands in, empty for the page itself."""
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.section | nodes.admonition):
            title = node.next_node(nodes.title)
            return "" if title is page_title(node.document) else title.astext()
    return ""


def other_wordings(path: Path) -> list[str]:
    """Return the messages that a chapter's front matter lists; chapters.py checks them."""
    try:
        listed = front_matter(path.read_text("utf-8"))[0].get("messages")
    except ValueError:
        return []
    return [text for text in listed if isinstance(text, str)] if isinstance(listed, list) else []


class ErrorIndex(Gather):
    """The entries of all parts."""

    kind = ERRORS


def marked(text: str) -> Iterator[nodes.Node]:
    """Yield a message's text, with what varies as an element of its own."""
    for number, piece in enumerate(re.split(r"\.\.\.", text)):
        if number:
            yield nodes.inline("", "…", classes=["varies"])
        if piece:
            yield nodes.Text(piece)


def link_text(app: Sphinx, docname: str, item: Raised) -> str:
    """Return what a link to an example says: its page, and its section unless that repeats."""
    title = app.env.titles[docname].astext()
    if docname.startswith("gallery/"):
        title = f"Script: {title}"
    repeats = item.message.text.startswith(item.section.removesuffix("."))
    return title if repeats else f"{title} – {item.section}"


def entry_section(app: Sphinx, page: str, entry: Entry) -> nodes.section:
    """Return an entry: the message as its title, what it says further, links to the examples."""
    first, _, rest = entry.message.text.partition("\n")
    kind = nodes.inline("", entry.message.type, classes=["type"])
    text = [nodes.Text(": "), *marked(first)] if first else []
    result = section(entry.anchor, kind, *text, classes=["error-entry"])
    docname, item = entry.places[0]
    result.source, result.line = app.env.doc2path(docname), item.line  # for complaints
    if rest:
        result += nodes.literal_block("", rest.replace("...", "…"), language="none")
    places = nodes.bullet_list()
    for docname, item in entry.places:
        uri = f"{app.builder.get_relative_uri(page, docname)}#{item.anchor}"
        link = nodes.reference("", link_text(app, docname, item), refuri=uri, internal=True)
        places += nodes.list_item("", nodes.paragraph("", "", link))
    result += places
    return result


def wordings_section(
    app: Sphinx, page: str, part: str, wordings: list[tuple[str, str]]
) -> nodes.section:
    """Return the other wordings that lead to a part's chapters."""
    result = section(slug(f"{part} other wordings"), nodes.Text("Older and other wordings"))
    items = nodes.bullet_list(classes=["wordings"])
    for docname, text in sorted(wordings, key=lambda found: (found[1].casefold(), found)):
        uri = app.builder.get_relative_uri(page, docname)
        title = app.env.titles[docname].astext()
        link = nodes.reference("", title, refuri=uri, internal=True)
        line = nodes.paragraph("", "", nodes.inline("", text, classes=["message"]))
        items += nodes.list_item("", line, nodes.paragraph("", "", link))
    result += items
    return result


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Fill in the index."""
    if ERRORS not in store(app.env)["lists"].get(docname, ()):
        return
    wordings = by_part(app.env, WORDINGS)
    listed = entries(by_part(app.env, ERRORS))
    sections: dict[str, list[nodes.Node]] = {}
    for part in (part for part in parts(app.env) if part in listed or part in wordings):
        sections[part] = [entry_section(app, docname, entry) for entry in listed.get(part, ())]
        if part in wordings:
            sections[part].append(wordings_section(app, docname, part, wordings[part]))
    fill(app, doctree, ERRORS, sections)


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive and what feeds it."""
    app.setup_extension("gathered")
    app.add_directive("error-index", ErrorIndex)
    app.connect("doctree-read", find_errors)
    app.connect("doctree-resolved", resolve)
    return {"env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
