r"""Math as MathML, written when the site is built: no script, no font, no other host.

Formulas are TeX: ``$...$`` and ``{math}`` in a line, ``$$...$$`` on a line of their own. The
converter turns some constructs into something wrong without a word, and browsers draw only the core
of MathML. So a formula may use only what is listed here, which was looked at once in a browser::

    letters, digits, + - * / = < > ( ) [ ] , . : ; ! '
    \text{...} \mathbf{x} \mathbb{R} \mathcal{L}, and what `ALLOWED` names
    \begin{...} and \end{...} of `ENVIRONMENTS`, with & and \\ between them

Anything else is a warning with file and line that says what is not allowed; so is a formula that is
incomplete, or too wide for a phone where it stands in a line. The renderer's name is ``mathml``.
"""

from __future__ import annotations

import html
import re
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert_to_element
from source_line import location
from sphinx.util import logging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

LIMITS = {"lim", "max", "min", "sup", "inf", "argmax", "argmin"}
ALLOWED = r"""
alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau
upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega
frac sqrt sum prod int partial nabla infty ell top circ odot otimes oplus cdot times pm mp
le leq ge geq ne neq ll gg approx equiv sim propto in notin subset cup cap forall exists land lor
neg to gets rightarrow leftarrow Rightarrow mapsto dots ldots cdots vdots ddots mid
left right lfloor rfloor lceil rceil langle rangle hat bar tilde dot vec
exp log ln sin cos tan sinh cosh tanh bmod quad qquad , ; : ! { } | % \
"""
COMMANDS = LIMITS.union(ALLOWED.split())
ENVIRONMENTS = ("matrix", "pmatrix", "bmatrix", "cases")
LIST = "conf/extensions/mathml.py lists what is allowed"
INSTEAD = {
    **dict.fromkeys(("mathrm", "operatorname", "textrm", "mbox"), r"write \text{...}"),
    **dict.fromkeys(("aligned", "align", "align*", "split"), "write one $$ formula a line"),
    "|": r"write \left| ... \right| or \mid",
    "arg": r"write \argmin or \argmax",
}
TOKEN = re.compile(
    r"\\(?:left|right)\||\\text\{[^{}\\$]*\}"  # these two lines: whole, with what is inside
    r"|\\(?:mathbf\{[A-Za-z]|math(?:bb|cal)\{[A-Z])\}"
    r"|\\(?P<edge>begin|end)\{(?P<environment>\w+\*?)\}"
    r"|\\(?P<command>[A-Za-z]+|.)"
    r"|(?P<other>[{}&%#~$|]|[^\x00-\x7f])"
)
OPERATORS = {"±": "±", "~": "∼", ":": ":"}
CHILDREN = {"mfrac": 2, "msub": 2, "msup": 2, "mover": 2, "munder": 2, "mroot": 2}
CHILDREN |= {"msubsup": 3, "munderover": 3}
# A box that scrolls sideways also cuts what stands above its first line, so it has room there.
SCROLL = "overflow-x: auto; padding: 0.5em 0"
# So many signs fit the 328 px of text on a phone, even if each is as wide as a W or a =.
WIDEST_INLINE = 17


def not_allowed(tex: str) -> Iterator[str]:
    """Say of each construct outside the list what it is, and what to write instead."""
    open_braces, open_environments = 0, 0
    for token in TOKEN.finditer(tex):
        environment, command, other = token["environment"], token["command"], token["other"]
        name = environment or command
        if environment:
            open_environments += 1 if token["edge"] == "begin" else -1
        if (environment or command) and name not in COMMANDS.union(ENVIRONMENTS):
            yield f"`{token[0]}` is not allowed; {INSTEAD.get(name, LIST)}"
        elif (command == "\\" or other == "&") and not open_environments:
            yield f"`{token[0]}` is allowed only between \\begin and \\end"
        elif other in {"{", "}"}:
            open_braces += 1 if other == "{" else -1
            if open_braces < 0:
                break
        elif other and other != "&":
            instead = INSTEAD.get(other, r"write a command, or put it in \text{...}")
            yield f"`{other}` is not allowed; {instead}"
    if open_braces:
        yield "the braces do not pair up"


def mend(parent: ElementTree.Element) -> None:
    """Space what the converter takes for a letter, and set limits below their operator."""
    for child, following in pairwise([*parent, None]):
        name = child[0] if child.tag in {"msub", "msup", "msubsup"} else child
        text = (name.text or "").replace("\u2009", "")
        if name.tag == "mi" and text in OPERATORS:
            name.tag, name.text = "mo", OPERATORS[text]
        elif name.tag in {"mi", "mo"} and text.isascii() and text.isalpha() and len(text) > 1:
            applied = following is not None and following.text == "("
            name.tag = "mo"
            name.attrib |= {"form": "prefix", "lspace": "0.17em"}
            name.attrib |= {"rspace": "0" if applied else "0.17em", "movablelimits": "true"}
            if child.tag == "msub" and text in LIMITS:
                child.tag = "munder"
        mend(child)


def to_mathml(tex: str, display: str = "inline") -> ElementTree.Element:
    """Return a formula's MathML; `display` is "inline" or "block".

    Raises ValueError, with a sentence for the author, if it is not allowed or not complete.
    """
    if problems := list(not_allowed(tex)):
        raise ValueError("; ".join(dict.fromkeys(problems)))
    try:
        math = convert_to_element(tex, display=display)
    except Exception as error:  # the converter has no class of its own for its errors
        name = re.sub(r"(?<!^)(?=[A-Z])", " ", type(error).__name__).lower()
        raise ValueError(f"incomplete: {name.removesuffix(' error')}") from error
    for element in math.iter():
        element.text = html.unescape(element.text or "") or None
        if element.attrib.pop("columnalign", None) == "left":  # browsers know only the style
            element.set("style", "text-align: left")
        if len(element) != CHILDREN.get(element.tag, len(element)):
            raise ValueError(f"incomplete: <{element.tag}> has {len(element)} part(s)")
    width = len("".join("".join(math.itertext()).split()))
    if display == "inline" and width > WIDEST_INLINE:
        raise ValueError(f"too wide for a phone ({width} signs); set it off with $$ ... $$")
    mend(math)
    return math


def markup(tex: str, display: str) -> str:
    """Return a formula's MathML as text, well-formed in HTML and XHTML."""
    return ElementTree.tostring(to_mathml(tex, display), encoding="unicode")


def check(app: Sphinx, doctree: nodes.document) -> None:
    """Warn of each formula that is not allowed, and show its TeX in its place."""
    for node in [*doctree.findall(nodes.math), *doctree.findall(nodes.math_block)]:
        inline = isinstance(node, nodes.math)
        try:
            to_mathml(node.astext(), "inline" if inline else "block")
        except ValueError as error:
            where = location(node, node.astext().partition("\n")[0])
            logger.warning("math `%s`: %s", node.astext(), error, location=where, type="math")
            stand_in = nodes.literal if inline else nodes.literal_block
            node.replace_self(stand_in(node.astext(), node.astext()))


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula that stands in a line."""
    self.body.append(markup(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula that stands alone, in a box that scrolls if the page is narrow."""
    box = {"role": "group", "aria-label": "Formula", "tabindex": "0", "style": SCROLL}
    self.body.append(self.starttag(node, "div", CLASS="math", **box))
    self.body.append(markup(node.astext(), "block") + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer; conf.py chooses it with ``html_math_renderer = "mathml"``."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("doctree-read", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
