"""Predict the output: an example that hides what it prints until the reader has said it.

::

    :::{predict} What does this print?

    ```{doctest}
    >>> x = torch.ones(2, requires_grad=True)
    >>> x.sum().backward()
    >>> x.grad
    tensor([1., 1.])
    ```

    - `tensor([1., 1.])`
    - `tensor([2.])`

      A wrong choice says why it is wrong, and runs what refutes it.

      ```{doctest}
      >>> x.grad.shape
      torch.Size([2])
      ```

    More about the output, shown with it.
    :::

The question may be left out, and so may the list: then the reader types. What may stand before the
fence is always shown. Hidden is what the fence's last example prints. That is also the key, so the
key is checked with every doctest run and marked nowhere: a choice is right if it is that text (of a
traceback, the last line or its exception's type), spaces and the kind of quotes aside.

All fences run, top to bottom, with the chapter's other examples; an example outside the block may
need only its first. Without JavaScript the output and each choice open on a click. ``predict.js``
is loaded only where there is a block.

Errors, with file and line: no fence, an example that prints nothing, not exactly one right choice,
no wrong one, a wrong choice without a reason or without a run.
"""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING, Any

from chapters import depart_details, summary, visit_details
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

QUESTION = "What does this print?"
FORM = """\
<form class="predict-form">
<label>Your prediction {field}</label>
<button>Check</button>
</form>
<p class="predict-verdict" role="status"></p>
"""
FIELD = 'required autocomplete="off" autocapitalize="off" autocorrect="off" spellcheck="false"'


def squeeze(text: str) -> str:
    """Return what of a text is compared: no spaces, one kind of quotes."""
    return "".join(text.split()).replace('"', "'")


def keys(example: doctest.Example) -> set[str]:
    """Return the texts that say what an example prints, squeezed; none if it prints nothing."""
    if example.exc_msg:
        return {squeeze(example.exc_msg), squeeze(example.exc_msg.partition(":")[0])}
    return {squeeze(example.want.replace("<BLANKLINE>", ""))} - {""}


def is_fence(node: nodes.Node) -> bool:
    """Tell whether a node is a ``{doctest}`` fence."""
    return isinstance(node, nodes.literal_block) and node.get("testnodetype") == "doctest"


def is_right(choice: nodes.list_item, right: set[str]) -> bool:
    """Tell whether a choice, the first paragraph of its item, is what the example prints."""
    return bool(len(choice)) and squeeze(choice[0].astext()) in right


def choice_errors(
    choices: list[nodes.list_item], right: set[str]
) -> Iterator[tuple[str, nodes.Node]]:
    """Yield (what to write instead, where) for each mistake in the choices."""
    wrong = [choice for choice in choices if not is_right(choice, right)]
    if (number := len(choices) - len(wrong)) != 1:
        yield (
            f"{number} right choices: write exactly one that is what the example prints, letter "
            "for letter",
            choices[0],
        )
    if not wrong:
        yield "no wrong choice: write one, or drop the list to let the reader type", choices[0]
    for choice in wrong:
        if not any(isinstance(node, nodes.paragraph) for node in choice[1:]):
            yield "a wrong choice without a reason: say below it why it is wrong, indented", choice
        if not any(map(is_fence, choice.findall())):
            yield "a wrong choice that nothing refutes: add a {doctest} fence, indented", choice


def hide_output(fence: nodes.literal_block, example: doctest.Example) -> nodes.literal_block:
    """Cut what the last example prints from what a fence shows, and return it as a block.

    The fence still runs whole: the builder takes its attribute `test` where there is one.
    """
    fence["test"] = fence.get("test", fence.astext())
    lines = fence.astext().splitlines()  # the same lines as in `test`, without doctest's marks
    start = example.lineno + 1
    while lines[start].startswith("..."):
        start += 1
    end = start + example.want.count("\n")
    fence.rawsource = "\n".join(lines[:start])
    fence.children = []
    fence += nodes.Text(fence.rawsource)
    printed = "\n".join(lines[start:end])
    language = "pytb" if example.exc_msg else "output"
    return nodes.literal_block(printed, printed, language=language, force=True)


class fold(nodes.General, nodes.Element):
    """A block that opens on a click; not a follow-up question, which chapters count."""


class form(nodes.General, nodes.Element):
    """Where the reader types."""


class Predict(SphinxDirective):
    """An example whose output is asked for."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the block, and mark the page."""
        content = self.parse_content_to_nodes()
        at = next((place for place, node in enumerate(content) if is_fence(node)), None)
        if at is None:
            raise self.error("a predict block without an example: write a {doctest} fence in it")
        fence = content[at]
        try:
            example = doctest.DocTestParser().get_examples(fence.get("test", fence.astext()))[-1]
        except (ValueError, IndexError) as error:
            wrong = f"the example of a predict block cannot be read: {error}"
            self.warn(wrong, (self.env.docname, fence["first_line"]))
            return content
        if not (right := keys(example)):
            wrong = "a predict block without output: let its example's last line print something"
            self.warn(wrong, (self.env.docname, fence["first_line"] + example.lineno))
            return content
        printed = hide_output(fence, example)

        lists = [node for node in content[at + 1 :] if isinstance(node, nodes.bullet_list)]
        more = [node for node in content[at + 1 :] if node not in lists]
        choices = [choice for found in lists for choice in found]
        for wrong, node in choice_errors(choices, right) if choices else ():
            self.warn(wrong, node)

        question, messages = self.parse_inline(self.arguments[0] if self.arguments else QUESTION)
        block = nodes.container("", classes=["predict"])
        block += nodes.paragraph("", "", *question, classes=["predict-question"])
        block += content[: at + 1]
        if choices:
            made = [self.make_choice(choice, right) for choice in choices if len(choice)]
            block += nodes.container("", *made, classes=["predict-choices"])
        else:
            block += form(lines=printed.astext().count("\n") + 1)
        show = summary("", "Show the output")
        block += fold("", show, printed, *more, classes=["predict-output"])
        # Kept with the page by Sphinx, also between builds and from parallel readers.
        self.env.metadata[self.env.docname]["predict"] = "yes"
        return [block, *messages]

    @staticmethod
    def make_choice(choice: nodes.list_item, right: set[str]) -> fold:
        """Return a choice that opens to what is to be said about it."""
        first, *reason = choice.children
        verdict = "right" if is_right(choice, right) else "wrong"
        return fold(
            "",
            summary("", "", *first.children),
            nodes.paragraph("", "", nodes.strong("", f"{verdict.capitalize()}.")),
            *reason,
            classes=["predict-choice", verdict],
        )

    @staticmethod
    def warn(wrong: str, location: nodes.Node | tuple[str, int]) -> None:
        """Warn about a mistake at its place."""
        logger.warning(wrong, location=location, type="predict")


def add_files(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document
) -> None:
    """Load the script where there is something to predict."""
    if "predict" in app.env.metadata.get(pagename, {}):
        # Not a module: browsers load no module from an unzipped folder that nothing serves.
        app.add_js_file("predict.js", loading_method="defer")


def visit_form(self: HTML5Translator, node: form) -> None:
    """Write the form, which a script answers; an EPUB has none."""
    if self.builder.name != "epub":
        field = f'<input type="text" {FIELD}>'
        if node["lines"] > 1:
            field = f'<textarea rows="{node["lines"]}" {FIELD}></textarea>'
        self.body.append(FORM.format(field=field))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive."""
    app.setup_extension("chapters")
    app.add_node(fold, html=(visit_details, depart_details))
    app.add_node(form, html=(visit_form, None))
    app.add_directive("predict", Predict)
    app.connect("html-page-context", add_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
