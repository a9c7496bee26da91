"""Put an SVG drawing into the page itself, so that it takes the page's colours.

::

    .. inline-svg:: /gallery/autograd/images/graph.svg
       :alt: What the drawing shows, in words.

In HTML the drawing becomes part of the page: black turns into the text colour, white into the
background, and the colours of matplotlib and torchviz into tones that stand out by 3:1 from both
of furo's backgrounds. Its text can be selected and found. A wide drawing scrolls in a box of its
own, which the keyboard can reach. Every other builder gets an ordinary image.

A drawing without ``:alt:``, or a file that is not SVG, is an error at the directive's line.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from docutils import nodes
from docutils.parsers.rst.directives.images import Image
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.logging import getLogger

PAGE_COLOURS = {
    "black": "currentColor",
    "#000000": "currentColor",
    "white": "var(--color-background-primary, white)",
    "#ffffff": "var(--color-background-primary, white)",
    # matplotlib: its greys, and those of its ten line colours that are too light for white
    "#b0b0b0": "#808080",
    "#cccccc": "#808080",
    "#ff7f0e": "#d96b00",
    "#e377c2": "#b3478f",
    "#bcbd22": "#8f9000",
    "#17becf": "#0f8f9d",
}
BOX_COLOURS = {  # torchviz: leaf, output, base of a view, saved tensor, node
    "lightblue": "#1f77b4",
    "#caff70": "#5a8f1e",
    "#a2cd5a": "#5a8f1e",
    "orange": "#d96b00",
    "lightgrey": "#808080",
}
DROPPED = {"metadata", "style", "title", "desc"}
COORDINATES = {"d", "points", "x", "y"}


def inline(svg: str, label: str, prefix: str) -> str:
    """Return the SVG document as an HTML fragment that a screen reader reads as ``label``.

    ``prefix`` begins the ids that the drawing refers to; the other ids go.
    """
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = _local(element.tag)
        for child in list(element):
            if _local(child.tag) in DROPPED:
                element.remove(child)
        if element.tag not in {"text", "tspan"}:
            element.text = None
        element.tail = None
        attributes = {
            _local(name): _value(_local(name), value, prefix)
            for name, value in element.attrib.items()
            if name != "id" or value in used
        }
        if attributes.get("fill") in BOX_COLOURS:
            tone = BOX_COLOURS[attributes["fill"]]
            attributes |= {"fill": tone, "fill-opacity": "0.2", "stroke": tone}
        element.attrib = {name: value for name, value in attributes.items() if value}
    width = root.attrib.get("width", "100%")
    root.attrib |= {"role": "img", "aria-label": label, "fill": "currentColor"}
    root.attrib["style"] = f"--width: {width}"  # the style sheet says how far it may shrink
    drawing = ElementTree.tostring(root, encoding="unicode")
    return f'<div class="inline-svg" tabindex="0" role="group" aria-label="Figure">{drawing}</div>'


def _local(name: str) -> str:
    """Return an element's or attribute's name without its namespace."""
    return name.rpartition("}")[2]


def _value(name: str, value: str, prefix: str) -> str:
    """Return an attribute's value as the page needs it, "" where it needs none."""
    if name in {"space", "version"} or name.startswith("font-family"):
        return ""
    if name in COORDINATES:
        return re.sub(r"(\.\d\d)\d+", r"\1", " ".join(value.split()))
    if name in {"fill", "stroke"}:
        return PAGE_COLOURS.get(value, value)
    if name == "style":
        value = re.sub(r"font-family: [^;]*(; |$)", "", value)
        return re.sub(r"#\w{6}\b", lambda found: PAGE_COLOURS.get(found[0], found[0]), value)
    if name == "id":
        return prefix + value
    return re.sub(r"(^|url\()#", rf"\1#{prefix}", value)


class InlineSvg(Image):
    """The directive: an image that says it may be put inline."""

    def run(self) -> list[nodes.Node]:
        """Return the image, marked, or stop at what is missing."""
        if not self.arguments[0].endswith(".svg"):
            raise self.error("inline-svg takes the name of an .svg file.")
        if not self.options.get("alt", "").strip():
            raise self.error("inline-svg needs :alt:, what the drawing shows, in words.")
        self.options["class"] = ["inline-svg"]
        return super().run()


class PutInline(SphinxPostTransform):
    """Replace the marked images by their drawings."""

    default_priority = 5
    builders = ("html", "dirhtml")

    def run(self, **kwargs: object) -> None:
        """Go through one page; ids are counted from its first drawing."""
        marked = [n for n in self.document.findall(nodes.image) if "inline-svg" in n["classes"]]
        for number, image in enumerate(marked, 1):
            path = Path(self.env.srcdir, image["uri"])
            if not path.is_file():
                continue  # Sphinx has warned of it
            try:
                html = inline(path.read_text("utf-8"), image["alt"], f"drawing-{number}-")
            except ElementTree.ParseError as error:
                getLogger(__name__).warning("%s is not SVG: %s", path, error, location=image)
            else:
                image.parent.replace(image, nodes.raw("", html, format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive and the step that puts its drawings inline."""
    app.add_directive("inline-svg", InlineSvg)
    app.add_post_transform(PutInline)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
