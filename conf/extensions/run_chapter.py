"""A chapter's examples as a script and a notebook, which need torch alone.

Beside ``autograd/graph.html`` the build puts ``graph_examples.py`` and ``graph_examples.ipynb``,
and links to both under the chapter's title. They hold the ``{doctest}`` fences in order, one cell
each, under the page's headings, with what each example prints as comments::

    >>> loss                              show_value(loss)
    tensor(36.)                           # tensor(36.)
    >>> loss.backward()                   try:
    Traceback (most recent call last):        loss.backward()
        ...                               except Exception as error:
    RuntimeError: message                     show_error(error)
                                          # RuntimeError: message

so that a run prints what the page shows. An example that is no Python is a warning with its line.
"""

from __future__ import annotations

import ast
import json
import textwrap
from doctest import DocTestParser, Example
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chapters import chapters_of
from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

logger = logging.getLogger(__name__)

SUFFIXES = (".py", ".ipynb")
PREAMBLE = '''\
import traceback
from sys import __displayhook__ as show_value  # prints a value as the interpreter does

# As at a prompt: the workers of a DataLoader cannot import this file, and so run it again.
globals().pop("__file__", None)


def show_error(error):
    """Print the last line of an error's traceback."""
    print(*traceback.format_exception_only(error), end="")
    error.__traceback__ = None  # lets go of what the call held, such as a DataLoader's workers
'''
OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def shown_values(node: ast.AST) -> Iterator[ast.expr]:
    """Yield each expression whose value the interpreter would print, those of loops included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr):
            function = getattr(child.value, "func", None)
            if not isinstance(function, ast.Name) or function.id != "print":
                yield child.value
        elif not isinstance(child, OWN_SCOPE):
            yield from shown_values(child)


def printing(source: str) -> str:
    """Return an example's source with `show_value()` around each value an interpreter prints."""
    lines = source.encode().splitlines(keepends=True)  # ast counts columns in bytes
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    text = source.encode()
    for value in reversed(list(shown_values(ast.parse(source)))):
        first = starts[value.lineno - 1] + value.col_offset
        last = starts[value.end_lineno - 1] + value.end_col_offset
        call = b"show_value(%b)" % text[first:last]
        if len(ast.parse(call).body[0].value.args) != 1:  # a, b
            call = b"show_value((%b))" % text[first:last]
        text = text[:first] + call + text[last:]
    return text.decode()


def comment(text: str) -> str:
    """Return text as comment lines."""
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def as_code(example: Example) -> str:
    """Return an example as lines of a script, what it prints as comments below.

    Raises SyntaxError if its source is no Python.
    """
    ast.parse(example.source)
    if example.exc_msg is None:
        code = printing(example.source) if example.want else example.source
        printed = example.want
    else:
        code = f"try:\n{textwrap.indent(example.source, '    ')}"
        code += "except Exception as error:\n    show_error(error)\n"
        printed = example.exc_msg
    return code + comment(printed)


def cells(doctree: nodes.document) -> Iterator[tuple[str, str]]:
    """Yield (heading, code) for each fence; the heading is empty if it is that of the last one."""
    heading = ""
    for node in doctree.findall(nodes.Element):
        if isinstance(node, nodes.title):
            heading = " ".join(node.astext().split())
        elif isinstance(node, nodes.literal_block) and node.get("testnodetype") == "doctest":
            examples = DocTestParser().get_examples(node.get("test", node.astext()))
            try:
                yield heading, "".join(map(as_code, examples))
            except SyntaxError as error:
                logger.warning("this example is no Python: %s", error, location=node)
            heading = ""


def introduction(info: dict[str, Any], address: str) -> str:
    """Return what stands at the top: the question, and where it is answered."""
    facts = f"The examples of {address}, which need torch alone.\n{info['label']}"
    return f"{info['question']}\n\n{facts}"


def script(intro: str, found: Iterable[tuple[str, str]]) -> str:
    """Return a script in cells, which editors can run one by one."""
    return f"{comment(intro)}\n{PREAMBLE}" + "".join(
        f"\n\n# %% {heading}".rstrip() + f"\n{code}" for heading, code in found
    )


def notebook(intro: str, found: Iterable[tuple[str, str]]) -> str:
    """Return the same as a Jupyter notebook."""

    def cell(kind: str, source: str) -> dict[str, Any]:
        more = {"execution_count": None, "outputs": []} if kind == "code" else {}
        return {"cell_type": kind, "metadata": {}, "source": source.rstrip("\n"), **more}

    made = [cell("markdown", f"# {intro}"), cell("code", PREAMBLE)]
    for heading, code in found:
        made += [cell("markdown", f"## {heading}")] if heading else []
        made += [cell("code", code)]
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": made, "metadata": {"kernelspec": python}, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(book, ensure_ascii=False, indent=1) + "\n"


def files(app: Sphinx, docname: str) -> list[Path]:
    """Return where a chapter's script and notebook are."""
    page = Path(app.outdir, docname)
    return [page.with_name(f"{page.name}_examples{suffix}") for suffix in SUFFIXES]


def link(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Add links to both to the line under a chapter's title."""
    if app.builder.name != "html" or docname not in chapters_of(app.env):
        return
    line = next(node for node in doctree.findall(nodes.paragraph) if "facts" in node["classes"])
    if next(cells(doctree), None) is None:
        return
    line += nodes.Text(" Run them:")
    for file in files(app, docname):
        line += nodes.Text(" ")
        line += addnodes.download_reference("", "", nodes.Text(file.name), refuri=file.name)


def write(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document
) -> None:
    """Write both beside the chapter's page."""
    info = chapters_of(app.env).get(pagename)
    if app.builder.name != "html" or info is None or not (found := list(cells(doctree))):
        return
    intro = introduction(info, f"{app.config.html_baseurl}{pagename}.html")
    for file, text in zip(files(app, pagename), (script, notebook), strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)  # this comes before the page itself
        file.write_text(text(intro, found), "utf-8")


def remove(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Delete the files of chapters that are gone."""
    if app.builder.name == "html":
        for docname in removed:
            for file in files(app, docname):
                file.unlink(missing_ok=True)
    return []


def setup(app: Sphinx) -> dict[str, Any]:
    """Link and write the files as pages are written."""
    app.setup_extension("chapters")
    app.connect("doctree-resolved", link, priority=600)  # after the line is there
    app.connect("html-page-context", write)
    app.connect("env-get-outdated", remove)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
