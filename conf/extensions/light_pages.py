"""Leave out the scripts that a page does not use, so that its first view is a few small requests.

Sphinx puts its keyboard helper and its highlighter of search words on every page, sphinx-gallery
its script for tags, of which there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

UNUSED = ("doctools.js", "sphinx_highlight.js", "sg-tags.js")


def needed(script: str) -> bool:
    """Tell whether a page uses a script."""
    return not any(name in script for name in UNUSED)


def drop_scripts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Take the scripts out of the page's list."""
    scripts = context.get("script_files", [])
    context["script_files"] = [script for script in scripts if needed(str(script))]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect late, when every extension has added its scripts."""
    app.connect("html-page-context", drop_scripts, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
