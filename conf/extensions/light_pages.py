"""Leave out the scripts that a page does not use, so that its first view is a few small requests.

Sphinx puts its keyboard helper and its highlighter of search words on every page, sphinx-gallery
its script for tags, of which there are none. Only the search page keeps Sphinx's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SEARCH_ONLY = ("doctools.js", "sphinx_highlight.js")
UNUSED = ("sg-tags.js",)


def needed(script: str, page: str) -> bool:
    """Tell whether a page uses a script."""
    unused = UNUSED if page == "search" else (*UNUSED, *SEARCH_ONLY)
    return not any(name in script for name in unused)


def drop_scripts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Take the scripts out of the page's list."""
    scripts = context.get("script_files", [])
    context["script_files"] = [script for script in scripts if needed(str(script), page)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect late, when every extension has added its scripts."""
    app.connect("html-page-context", drop_scripts, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
