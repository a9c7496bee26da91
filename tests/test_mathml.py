"""Formulas: what is written for them, and what is refused."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from conftest import Build
from mathml import COMMANDS, ENVIRONMENTS, WIDEST_INLINE, markup, to_mathml

EXTENSIONS = ["mathml"]
CONF = "html_math_renderer = 'mathml'"
NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"

# Commands that say nothing without an argument or a partner.
FORMULAS = {
    "frac": r"x \frac{a}{b}",
    "left": r"x \left( a \right)",
    "right": r"x \left( a \right)",
    "\\": r"\begin{matrix} x \\ a \end{matrix}",
}


def parts(tex: str, display: str = "inline") -> list[str]:
    """Return the tags and texts of a formula, in order."""
    tree = to_mathml(tex, display)
    return [element.tag + (f" {element.text}" if element.text else "") for element in tree.iter()]


def test_page_has_mathml_and_no_script(build: Build) -> None:
    text = "# Page\n\nA $\\frac{a}{b}$, {math}`x < y`.\n\n$$\n\\sum_i x_i\n$$\n"
    built = build({"part/page.md": text}, extensions=EXTENSIONS, conf=CONF)
    assert built.status == 0, built.errors
    page = built.read("part/page.html")
    formulas = re.findall(r"<math.*?</math>", page)
    assert [ElementTree.fromstring(f).get("display") for f in formulas] == [
        "inline",
        "inline",
        "block",
    ]
    assert "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi></mrow></mfrac>" in formulas[0]
    assert "mathjax@" not in page
    box = re.search(r'<div [^>]*class="math"[^>]*>', page)[0]
    assert 'tabindex="0"' in box
    assert "overflow-x: auto" in box


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_each_command_allowed_is_converted(command: str) -> None:
    shown = "".join(to_mathml(FORMULAS.get(command, rf"x \{command} a")).itertext())
    assert shown.startswith("x")
    assert "a" in shown[1:]
    assert f"\\{command}" not in shown


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_each_environment_allowed_is_a_table(environment: str) -> None:
    tex = rf"\begin{{{environment}}} a & b \\ c & d \end{{{environment}}}"
    table = to_mathml(tex, "block").find(".//mtable")
    assert [["".join(cell.itertext()) for cell in row] for row in table] == [
        ["a", "b"],
        ["c", "d"],
    ]


def test_converter_is_mended() -> None:
    assert "munder" in parts(r"\max_i x", "block")
    assert parts(r"a \pm b \sim c")[2:] == ["mi a", "mo ±", "mi b", "mo ∼", "mi c"]
    spaces = [e.get("rspace") for e in to_mathml(r"\log(x) + \log x").iter("mo") if e.text == "log"]
    assert spaces == ["0", "0.17em"]
    assert 'style="text-align: left"' in markup(r"\begin{cases} a & b \end{cases}", "block")


def test_text_is_escaped() -> None:
    tree = ElementTree.fromstring(markup(r"\text{a < b & c}", "inline"))
    assert tree.find(f".//{NAMESPACE}mtext").text == "a\xa0<\xa0b\xa0&\xa0c"


@pytest.mark.parametrize(
    ("tex", "said"),
    [
        (r"\foo{x}", r"`\foo` is not allowed; conf/extensions/mathml.py lists what is allowed"),
        (r"\mathrm{d}x", r"`\mathrm` is not allowed; write \text{...}"),
        (r"\operatorname*{arg\,min}_x", r"`\operatorname` is not allowed; write \text{...}"),
        (r"\mathbf{xy}", r"`\mathbf` is not allowed"),
        (r"\mathbb{1}", r"`\mathbb` is not allowed"),
        (r"\color{red} x", r"`\color` is not allowed"),
        (r"\begin{aligned} a &= b \end{aligned}", "write one $$ formula a line"),
        (r"a \\ b", r"`\\` is allowed only between \begin and \end"),
        ("a & b", r"`&` is allowed only between \begin and \end"),
        ("|x|", r"`|` is not allowed; write \left| ... \right| or \mid"),
        ("a ≤ b", r"`≤` is not allowed; write a command, or put it in \text{...}"),
        ("x % y", "`%` is not allowed"),
        (r"\frac{a}", "incomplete: <mfrac> has 1 part(s)"),
        ("{a", "the braces do not pair up"),
        ("a}{b", "the braces do not pair up"),
        (r"\left( x", "incomplete: extra left or missing right"),
        ("x_1_2", "incomplete: double subscripts"),
        (r"\sqrt", "incomplete: no available tokens"),
        ("W" * (WIDEST_INLINE + 1), "too wide for a phone (18 signs); set it off with $$ ... $$"),
    ],
)
def test_what_is_refused_stops_the_build(build: Build, tex: str, said: str) -> None:
    text = f"# Page\n\nA paragraph begins.\nHere is ${tex}$ in it.\n"
    built = build({"part/page.md": text}, extensions=EXTENSIONS, conf=CONF)
    assert built.status == 1
    assert f"part/page.md:4: WARNING: math `{tex}`: " in built.errors
    assert said in built.errors


def test_what_is_refused_stands_alone_too(build: Build) -> None:
    text = "# Page\n\nText.\n\n$$\na \\\\\nb\n$$\n"
    built = build({"part/page.md": text}, extensions=EXTENSIONS, conf=CONF)
    assert built.status == 1
    assert "part/page.md:6: WARNING: math `a \\\\\nb`: " in built.errors
    assert "<math" not in built.read("part/page.html")
