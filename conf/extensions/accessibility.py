"""What furo's pages lack for a keyboard or a screen reader, put in as each page is written.

``conf/templates/page.html`` passes the page through `accessible`::

    {% block body %}{{ accessible(super()) }}{% endblock %}

Each repair answers a rule of axe that bare furo breaks; tests/test_accessibility.py runs axe in a
browser, both themes, narrow and wide. An example's own text is safe: its ``<`` is escaped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

REPAIRS = (
    # aria-required-attr: the caption of a list of pages is a heading of no level.
    (r'<p class="caption" role="heading">', r'<p class="caption" role="heading" aria-level="2">'),
    # landmark-unique: two sidebars without a name.
    (r'<aside class="sidebar-drawer">', r'<aside class="sidebar-drawer" aria-label="All pages">'),
    (r'<aside class="(toc-drawer[^"]*)">', r'<aside class="\1" aria-label="On this page">'),
    # scrollable-region-focusable: a box that scrolls must be reachable without a mouse.
    (r"<pre(?=[ >])(?![^>]*tabindex)", r'<pre tabindex="0"'),
    (
        r'<div class="(table-wrapper[^"]*)">',
        r'<div class="\1" role="group" aria-label="Table" tabindex="0">',
    ),
    # page-has-heading-one: the search page begins with its results.
    (r'(?<!</h1>\n)<div id="search-results">', r'<h1>Search</h1>\n<div id="search-results">'),
)


def accessible(body: str) -> str:
    """Return a page's body with every repair made; a second time changes nothing."""
    for broken, whole in REPAIRS:
        body = re.sub(broken, whole, body)
    return body


def hand_to_template(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Give the template the function."""
    context["accessible"] = accessible


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to the event that fills a page's template."""
    app.connect("html-page-context", hand_to_template)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
