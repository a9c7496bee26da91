"""Exercises: code that fails a check, to be mended by the reader, and a solution that passes it.

::

    ::::{exercise} Title
    What the code should do, and a {doctest} fence with the code. Its last example is the check,
    and raises.

    :::{solution}
    A {doctest} fence with the mended code. It ends with the same check, which passes.
    :::
    ::::

The doctest run proves both: that the broken version fails and that the solution does not. An
exercise whose check does not raise, or whose solution does not run the same check and pass it, is
a warning, with file and line.
"""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING, Any

from chapters import labelled_box, summary
from docutils import nodes
from predict import fold, is_fence
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)


def examples(node: nodes.Element) -> list[doctest.Example]:
    """Return the examples of a block's fences, those of its solutions left out."""
    found = []
    for child in node.children:
        if is_fence(child):
            found += doctest.DocTestParser().get_examples(child.get("test", child.astext()))
        elif isinstance(child, nodes.Element) and "solution" not in child.get("classes", ()):
            found += examples(child)
    return found


def mistakes(exercise: nodes.Element) -> Iterator[tuple[str, nodes.Node]]:
    """Yield (what to write instead, where) for what an exercise lacks."""
    solutions = [n for n in exercise.findall(fold) if "solution" in n["classes"]]
    broken = examples(exercise)
    if len(solutions) != 1:
        yield f"{len(solutions)} solutions: write one `:::{{solution}}` in the exercise", exercise
    elif not broken or not broken[-1].exc_msg:
        wrong = "nothing fails: let the last example before the solution be a check that raises"
        yield wrong, exercise
    else:
        solved = examples(solutions[0])
        if not solved or solved[-1].source != broken[-1].source:
            check = broken[-1].source.strip()
            yield f"the solution is not checked: let it end with the same `{check}`", solutions[0]
        elif solved[-1].exc_msg:
            yield "the solution fails its check too", solutions[0]


class Exercise(SphinxDirective):
    """A task with its broken code."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the box, which can be linked to."""
        box, messages = labelled_box(self, "exercise", "Exercise")
        for wrong, node in mistakes(box):
            logger.warning(wrong, location=node, type="exercises")
        return [box, *messages]


class Solution(SphinxDirective):
    """The mended code, which opens on a click."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the block."""
        block = fold("", summary("", "Solution"), classes=["solution"])
        self.set_source_info(block)
        block += self.parse_content_to_nodes()
        return [block]


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives."""
    app.setup_extension("predict")
    app.add_directive("exercise", Exercise)
    app.add_directive("solution", Solution)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
