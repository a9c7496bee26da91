"""What the extensions write, in a real browser: axe's rules, the keyboard, a narrow page."""

from __future__ import annotations

from pathlib import Path

import pytest
from accessibility import REPAIRS, accessible
from axe_playwright_python.sync_playwright import Axe
from conftest import Build, Built
from mathml import WIDEST_INLINE
from playwright.sync_api import Browser

CONF = """\
html_theme = "furo"
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = False
highlight_language = "none"
language = "en"
templates_path = ["templates"]
"""
TEMPLATE = '{% extends "!page.html" %}\n{% block body %}{{ accessible(super()) }}{% endblock %}\n'
INDEX = "# Home\n\nText.\n\n```{toctree}\n:caption: A part\n\npart/page\n```\n"
LONG = "a line that no phone shows whole, " * 3
WIDE = "=".join("W" * (WIDEST_INLINE // 2 + 1))
PAGE = f"""\
# Page

Text, `code`, and ${WIDE}$ in it.

## Code

```{{code-block}} pycon
>>> print("{LONG}")  # said
```

```
{LONG}
```

## Table

| {" | ".join(["Quantity"] * 9)} |
|{"---|" * 9}
| {" | ".join(["1,234,567"] * 9)} |

## Formula

$$
{" + ".join(["x"] * 60)} = \\frac{{a}}{{b}}
$$

## Details

<details><summary>Why so?</summary>
<pre>{LONG}</pre>
</details>

:::{{note}}
Noted.
:::
"""


@pytest.fixture
def built(build: Build, tmp_path: Path) -> Built:
    template = tmp_path / "conf" / "templates" / "page.html"
    template.parent.mkdir(parents=True)
    template.write_text(TEMPLATE, "utf-8")
    extensions = ["mathml", "accessibility"]
    done = build({"index.md": INDEX, "part/page.md": PAGE}, extensions=extensions, conf=CONF)
    assert done.status == 0, done.errors
    return done


def violations(browser: Browser, out: Path) -> dict[str, set[str]]:
    """Return the rules of axe that pages break, in both themes, narrow and wide."""
    broken: dict[str, set[str]] = {}
    for theme in ("light", "dark"):
        for width in (360, 1280):
            context = browser.new_context(
                viewport={"width": width, "height": 800}, color_scheme=theme
            )
            page = context.new_page()
            for name in ("index", "part/page", "search"):
                page.goto((out / f"{name}.html").as_uri())
                page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
                for found in Axe().run(page).response["violations"]:
                    broken.setdefault(found["id"], set()).add(f"{name} {theme} {width}")
            context.close()
    return broken


def test_axe_finds_nothing(browser: Browser, built: Built) -> None:
    assert violations(browser, built.out) == {}


def test_axe_finds_each_fault_of_bare_furo(browser: Browser, build: Build) -> None:
    """Each repair is needed: without them, axe names the rules they answer."""
    pages = {"index.md": INDEX, "part/page.md": PAGE}
    bare = build(pages, extensions=["mathml"], conf=CONF.replace("templates_path", "unused"))
    assert bare.status == 0, bare.errors
    assert sorted(violations(browser, bare.out)) == [
        "aria-required-attr",
        "landmark-unique",
        "page-has-heading-one",
        "scrollable-region-focusable",
    ]


def test_wide_things_scroll_in_their_own_box_and_take_the_keyboard(
    browser: Browser, built: Built
) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 800})
    page.goto((built.out / "part/page.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    for box in ("#code pre >> nth=0", "#code pre >> nth=1", ".table-wrapper", "div.math"):
        element = page.locator(box)
        wide, shown = element.evaluate("box => [box.scrollWidth, box.clientWidth]")
        assert wide > shown, box
        assert shown <= 360, box
        element.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.activeElement.scrollLeft > 0")
    page.close()


def test_widest_formula_in_a_line_fits_a_phone(browser: Browser, built: Built) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 800})
    page.goto((built.out / "part/page.html").as_uri())
    formula = page.locator("p > math")
    assert len(formula.text_content()) == WIDEST_INLINE
    right = "element => element.getBoundingClientRect().right"
    assert formula.evaluate(right) <= page.locator("article").evaluate(right)
    page.close()


def test_formula_is_not_cut(browser: Browser, built: Built) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 800})
    page.goto((built.out / "part/page.html").as_uri())
    box = page.locator("div.math")
    assert box.evaluate("box => box.scrollHeight <= box.clientHeight")
    page.close()


def test_repairs_are_made_once() -> None:
    for tag in ("<pre>", '<aside class="toc-drawer no-toc">', '<div id="search-results"></div>'):
        once = accessible(tag)
        assert once != tag
        assert accessible(once) == once
    assert accessible("<p>&lt;pre&gt;</p>") == "<p>&lt;pre&gt;</p>"
    assert len(REPAIRS) == 6
