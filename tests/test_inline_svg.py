"""SVG inside the page: its colours, its ids, and the directive that asks for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Build
from inline_svg import BOX_COLOURS, PAGE_COLOURS, inline

BACKGROUNDS = {"light": "#ffffff", "dark": "#131416"}
TEXT = {"light": "#000000", "dark": "#cfd0d0"}  # furo's own
CYCLE = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"]  # C0 to C5
SVG = (
    '<?xml version="1.0"?><!-- made by hand --><svg xmlns="http://www.w3.org/2000/svg" '
    'xmlns:xlink="http://www.w3.org/1999/xlink" width="90pt" height="9pt" viewBox="0 0 90 9">'
    "<metadata>when</metadata><style>*{stroke-linejoin: round}</style><title>12345</title>"
    '<defs><path id="tick" d="M 0.123456 0&#10;L 1 1"/></defs>'
    '<g id="unused" style="stroke: #000000; font-family: Arial, serif; fill: none">'
    '<use xlink:href="#tick"/><g clip-path="url(#clip)"/></g><clipPath id="clip"/>'
    '<polygon fill="lightblue" stroke="black"/><rect fill="white"/><text>two words</text></svg>'
)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def mixed(colour: str, share: float, ground: str) -> str:
    pairs = [(int(colour[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


@pytest.mark.parametrize("theme", BACKGROUNDS)
@pytest.mark.parametrize("colour", sorted({*CYCLE, *BOX_COLOURS.values(), "#b0b0b0"}))
def test_lines_stand_out_in_both_themes(theme: str, colour: str) -> None:
    assert contrast(PAGE_COLOURS.get(colour, colour), BACKGROUNDS[theme]) >= 3


@pytest.mark.parametrize("theme", BACKGROUNDS)
@pytest.mark.parametrize("tone", sorted({*BOX_COLOURS.values()}))
def test_text_in_a_box_can_be_read_in_both_themes(theme: str, tone: str) -> None:
    (share,) = re.findall(r'fill-opacity="([\d.]+)"', inline(SVG, "", ""))
    assert contrast(TEXT[theme], mixed(tone, float(share), BACKGROUNDS[theme])) >= 4.5


def test_the_drawing_takes_the_colours_of_the_page() -> None:
    drawing = inline(SVG, "Words", "p-")
    assert 'style="stroke: currentColor; fill: none"' in drawing
    assert '<polygon fill="#1f77b4" stroke="#1f77b4" fill-opacity="0.2" />' in drawing
    assert '<rect fill="var(--color-background-primary, white)" />' in drawing
    assert "Arial" not in drawing


def test_nothing_but_the_drawing_is_left() -> None:
    drawing = inline(SVG, "Words", "p-")
    assert not re.search("metadata|<style|<title|12345|<!--|xmlns|xlink|unused", drawing)
    assert "<text>two words</text>" in drawing
    assert 'd="M 0.12 0 L 1 1"' in drawing


def test_ids_are_those_in_use_and_belong_to_one_drawing() -> None:
    drawing = inline(SVG, "Words", "p-")
    assert re.findall(r' id="([^"]*)"', drawing) == ["p-tick", "p-clip"]
    assert 'href="#p-tick"' in drawing
    assert 'clip-path="url(#p-clip)"' in drawing


def test_words_and_keyboard() -> None:
    drawing = inline(SVG, 'Says "a < b"', "p-")
    assert drawing.startswith('<div class="inline-svg" tabindex="0" role="group" aria-label="Fig')
    assert 'role="img" aria-label="Says &quot;a &lt; b&quot;"' in drawing


def page(*directives: str) -> str:
    return "# Page\n\n" + "\n\n".join(f"```{{inline-svg}} {text}\n```" for text in directives)


def drawn(build: Build, tmp_path: Path, *directives: str, svg: str = SVG, builder: str = "html"):
    (tmp_path / "docs" / "part").mkdir(parents=True, exist_ok=True)
    (tmp_path / "docs" / "part" / "drawing.svg").write_text(svg)
    pages = {"part/page.md": page(*directives)}
    return build(pages, extensions=["inline_svg"], builder=builder)


def test_two_drawings_on_a_page(build: Build, tmp_path: Path) -> None:
    words = [f"drawing.svg\n:alt: {alt}" for alt in ("The first.", "The second.")]
    built = drawn(build, tmp_path, *words)
    assert built.status == 0, built.errors
    html = built.read("part/page.html")
    assert re.findall(r'role="img" aria-label="([^"]*)"', html) == ["The first.", "The second."]
    ids = re.findall(r' id="(drawing[^"]*)"', html)
    assert len(ids) == len(set(ids)) == 4
    assert "<img" not in html


def test_other_builders_get_an_image_with_its_words(build: Build, tmp_path: Path) -> None:
    built = drawn(build, tmp_path, "drawing.svg\n:alt: The words.", builder="text")
    assert built.status == 0, built.errors
    assert "[image: The words.][image]" in built.read("part/page.txt")
    built = drawn(build, tmp_path, "drawing.svg\n:alt: The words.", builder="epub")
    assert '<img alt="The words." class="inline-svg" src="../_images/drawing.svg" />' in built.read(
        "part/page.xhtml"
    )


@pytest.mark.parametrize(
    ("directive", "svg", "says"),
    [
        ("drawing.svg", SVG, "inline-svg needs :alt:, what the drawing shows, in words."),
        ("drawing.svg\n:alt:", SVG, "inline-svg needs :alt:"),
        ("drawing.png\n:alt: Words.", SVG, "inline-svg takes the name of an .svg file."),
        ("missing.svg\n:alt: Words.", SVG, "image file not readable: part/missing.svg"),
        ("drawing.svg\n:alt: Words.", "<svg><g></svg>", "drawing.svg is not SVG: mismatched tag"),
    ],
)
def test_a_mistake_stops_the_build_at_its_line(
    build: Build, tmp_path: Path, directive: str, svg: str, says: str
) -> None:
    built = drawn(build, tmp_path, directive, svg=svg)
    assert built.status != 0
    assert re.search(rf"docs/part/page\.md:3: .*{re.escape(says)}", built.errors), built.errors
