"""Which scripts a page loads."""

from __future__ import annotations

import re

from conftest import Build

PAGE = {"part/page.md": "# Page\n"}


def scripts(text: str) -> set[str]:
    """Return the names of a page's scripts."""
    return set(re.findall(r'<script src="[^"]*?([^/"]+\.js)', text))


def test_pages_load_only_what_they_use(build: Build) -> None:
    bare = scripts(build(PAGE, extensions=[]).read("part/page.html"))
    assert {"doctools.js", "sphinx_highlight.js"} <= bare
    light = build(PAGE, extensions=["light_pages"], options=["-E"])
    assert scripts(light.read("part/page.html")) == {"documentation_options.js"}
