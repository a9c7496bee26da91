"""Sphinx's doctest builder, made strict, and a record of what it checked.

Sphinx compares only the type of an exception and lets an example be skipped or never run. Here:

* Exception messages are compared whole, and a warning that an example does not catch is an error.
* A number with k decimals in the expected output matches a printed number that rounds to it. From
  four decimals on (what torch prints) it may differ by one in the last, since that is where
  processors round differently. Whole numbers and all other text match exactly.
* A tab is printed as the spaces a terminal shows, and is written so.
* Failures name the file and the line of the example.
* Code that nothing runs is a warning: ``>>>`` or Python outside a ``{doctest}`` fence, hidden or
  skipped examples, a fence without examples, Sphinx's other test directives. A
  ``{literalinclude}`` may show a file, since a file can be run.
* ``doctest_reversed`` runs the chapters from the last to the first: none may lean on another.
* An example can be pasted into a terminal: a compound statement ends with a bare ``...`` line.

A run leaves ``examples.json`` in its output folder: for each chapter without a failure its number
of examples, the digest of its source, torch, Python and device. A run of some chapters keeps the
records of the others.
"""

from __future__ import annotations

import ast
import doctest
import hashlib
import json
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.ext.doctest import DocTestBuilder, DoctestDirective
from sphinx.util import logging

if TYPE_CHECKING:
    from collections.abc import Set

    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)

RECORDS = "examples.json"

_FLOAT = re.compile(r"(?<![\w.])[+-]?\d+\.(\d+)(?:[eE][+-]?\d+)?(?![\w.])")
COMPOUND = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.AsyncFor),
    *(ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match),
)
_PYTHON = {"python", "python3", "py", "py3", "pycon", "pycon3", "ipython", "ipython3"}


def digest(source: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def read_records(path: Path) -> dict[str, dict[str, Any]]:
    """Return the records of the last run, keyed by docname; none if there was no run."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def write_records(path: Path, records: dict[str, dict[str, Any]]) -> None:
    """Replace the records at once, so that a reader never sees half a file."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n", "utf-8")
    new.replace(path)


def same_number(want: re.Match[str], got: str) -> bool:
    """Tell whether a printed number agrees with a written one to the digits written."""
    exponent = want[0].lower().partition("e")[2]
    unit = 10.0 ** (int(exponent or 0) - len(want[1]))
    allowed = unit if len(want[1]) >= 4 else unit / 2
    return abs(float(want[0]) - float(got)) <= allowed * (1 + 1e-9)


def use_written_digits(want: str, got: str) -> str:
    """Return `got` with each float that agrees with its partner in `want` spelled as there."""
    wanted = list(_FLOAT.finditer(want))
    printed = list(_FLOAT.finditer(got))
    if len(wanted) != len(printed):
        return got
    for want_float, got_float in reversed(list(zip(wanted, printed, strict=True))):
        if same_number(want_float, got_float[0]):
            got = got[: got_float.start()] + want_float[0] + got[got_float.end() :]
    return got


def unfinished(source: str) -> int | None:
    """Return the offset of the first compound statement's last line if no `...` ends it there."""
    lines = source.splitlines()
    for start, line in enumerate(lines):
        if not line.startswith(">>> "):
            continue
        end = start + 1
        while end < len(lines) and re.match(r"\.\.\.( |$)", lines[end]):
            end += 1
        code = "\n".join(text[4:] for text in lines[start:end])
        try:
            statements = ast.parse(code).body
        except SyntaxError:  # the run says so, at its line
            continue
        if statements and isinstance(statements[-1], COMPOUND) and lines[end - 1].rstrip() != "...":
            return end - 1
    return None


def complaint(node: nodes.Element) -> str | None:
    """Return what is wrong with a code block of a page, or None."""
    if isinstance(node, nodes.doctest_block):
        return "`>>>` outside a {doctest} fence is never run: put it in a {doctest} fence"
    kind = node.get("testnodetype")
    if kind is None:
        if "source" in node:  # a literalinclude
            return None
        if ">>>" in node.astext():
            return "`>>>` outside a {doctest} fence is never run: put it in a {doctest} fence"
        if node.get("language") in _PYTHON:
            return (
                "Python that nothing runs: make it a {doctest} fence, or a gallery script shown "
                "with {literalinclude}"
            )
        return None
    if kind != "doctest":
        return f"{{{kind}}} is not used here: write a {{doctest}} fence, which a reader can copy"
    if isinstance(node, nodes.comment):
        return "a hidden example proves nothing to the reader: drop `:hide:`"
    source = node.get("test", node.astext())
    if "skipif" in node or doctest.SKIP in node["options"] or "SKIP" in source:
        return "a skipped example is never run: drop `skipif`, `pyversion` or `+SKIP`"
    if ">>>" not in source:
        return "a {doctest} fence without `>>>` runs nothing: use a plain fence"
    return None


def check_code_blocks(app: Sphinx, doctree: nodes.document) -> None:
    """Warn about each code block of a chapter that nothing runs."""
    if app.env.docname.startswith("gallery/"):  # sphinx-gallery ran what these pages show
        return
    for node in doctree.findall(
        lambda n: (
            isinstance(n, nodes.literal_block | nodes.doctest_block)
            or (isinstance(n, nodes.comment) and "testnodetype" in n)
        )
    ):
        if wrong := complaint(node):
            logger.warning(wrong, location=node, type="strict_doctest")
        elif (offset := unfinished(node.get("test", node.astext()))) is not None:
            logger.warning(
                "end this compound statement with a `...` line, as the interpreter does: "
                "pasted into a terminal it does not run without",
                location=(app.env.docname, node["first_line"] + offset),
                type="strict_doctest",
            )


class DigitsChecker(doctest.OutputChecker):
    """Compare output as doctest does, and floats to the digits written."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Tell whether `got` is what the example expects; doctest expands the tabs of `want`."""
        got = use_written_digits(want, got.expandtabs())
        return super().check_output(want, got, optionflags)


class LineDirective(DoctestDirective):
    """A doctest fence that remembers the line its code begins on."""

    def run(self) -> list[nodes.Node]:
        """Return the code block."""
        found = super().run()
        # Counted from the directive's own line: its options stand between that and the code.
        found[0]["first_line"] = self.lineno + self.block_text_offset()
        return found

    def block_text_offset(self) -> int:
        """Return how many lines after the directive's line its code begins."""
        lines = self.block_text.splitlines()
        return lines.index(self.content[0]) if self.content and self.content[0] in lines else 1


class StrictDocTestBuilder(DocTestBuilder):
    """Run every example of the chapters, and record what was checked."""

    def init(self) -> None:
        """Read the records of earlier runs, and import torch only now that it is needed."""
        import torch_state

        super().init()
        self.records = read_records(Path(self.outdir, RECORDS))
        self.machine = torch_state.describe()

    def get_filename_for_node(self, node: nodes.Node, docname: str) -> str:
        """Return the file as the reader of the message can open it."""
        return os.path.relpath(node.source or self.env.doc2path(docname))

    @staticmethod
    def get_line_number(node: nodes.Node) -> int | None:
        """Return the line before the first line of the code, which doctest counts from."""
        return node.get("first_line", node.line or 1) - 1

    def test_group(self, group: Any) -> bool:
        """Run one group of examples with the stricter comparison."""
        import torch_state

        self.test_runner._checker = DigitsChecker()
        with warnings.catch_warnings():
            torch_state.raise_warnings()
            return super().test_group(group)

    def write_documents(self, docnames: Set[str]) -> None:
        """Run the chapters in alphabetical order, or from the last to the first."""
        for docname in sorted(docnames, reverse=self.config.doctest_reversed):
            self.test_doc(docname, self.env.get_doctree(docname))

    def test_doc(self, docname: str, doctree: nodes.Node) -> bool:
        """Run the examples of one page and record them if all passed."""
        success = super().test_doc(docname, doctree)
        self.records.pop(docname, None)
        if success and self.test_runner.tries:
            self.records[docname] = {
                "digest": digest(Path(self.env.doc2path(docname))),
                "examples": self.test_runner.tries,
                **self.machine,
            }
        return success

    def finish(self) -> None:
        """Write the records, without those of pages that are gone."""
        super().finish()
        kept = {doc: record for doc, record in self.records.items() if doc in self.env.found_docs}
        write_records(Path(self.outdir, RECORDS), kept)


def setup(app: Sphinx) -> dict[str, Any]:
    """Replace Sphinx's doctest builder and fence, and watch for code that nothing runs."""
    app.setup_extension("sphinx.ext.doctest")
    app.add_directive("doctest", LineDirective, override=True)
    app.add_config_value("doctest_reversed", False, "", bool)
    app.add_builder(StrictDocTestBuilder, override=True)
    app.connect("doctree-read", check_code_blocks)
    return {"version": "1", "parallel_read_safe": True}
