"""The line of a word in its file, where docutils knows only the line its paragraph begins on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docutils.utils import get_source_line

if TYPE_CHECKING:
    from docutils.nodes import Element


def location(node: Element, text: str) -> str:
    """Return ``file:line`` of a node's text, or of its paragraph if the file has no such text."""
    while node.parent is not None and get_source_line(node)[1] is None:
        node = node.parent
    source, first = get_source_line(node)
    if not source or not first or not Path(source).is_file():
        return f"{source or ''}:{first or ''}"
    lines = Path(source).read_text("utf-8").splitlines()[first - 1 :]
    here = (number for number, line in enumerate(lines, start=first) if text in line)
    return f"{source}:{next(here, first)}"
