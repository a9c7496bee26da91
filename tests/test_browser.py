"""The built site in a real browser: both themes, phone to desktop, keyboard, search, axe."""

from __future__ import annotations

import difflib
import doctest
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import CHAPTERS, ROOT, Visit
from playwright.sync_api import Browser
from strict_doctest import DigitsChecker

CHAPTER = "autograd/graph.html"
QUESTION = "What is autograd, and how does PyTorch build its graph?"
PAGES = {
    "home": "index.html",
    "part": "autograd/index.html",
    "chapter": CHAPTER,
    "gallery": "gallery/index.html",
    "gallery part": "gallery/autograd/index.html",
    "drill": "drill.html",
    "downloads": "downloads.html",
    "script": "gallery/autograd/graph.html",
    "errors": "errors.html",
    "myths": "myths.html",
    "search": "search.html?q=autograd",
    "404": "404.html",
}
WIDTHS = (360, 768, 1280)


@pytest.mark.parametrize("visit", [(width, "light") for width in WIDTHS], indirect=True)
@pytest.mark.parametrize("name", PAGES.values(), ids=PAGES)
def test_no_sideways_scroll(visit: Visit, name: str) -> None:
    page = visit.open(name)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("visit", [(360, "light")], indirect=True)
def test_no_page_of_the_site_scrolls_sideways_on_a_phone(visit: Visit, site: Path) -> None:
    wide = []
    for path in sorted(site.rglob("*.html")):
        page = visit.open(path.relative_to(site).as_posix())
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            wide.append(page.url)
    assert wide == []


@pytest.mark.parametrize(
    "visit",
    [(width, theme) for width in (360, 1280) for theme in ("light", "dark")],
    indirect=True,
    ids=lambda size: f"{size[0]}-{size[1]}",
)
@pytest.mark.parametrize("name", PAGES.values(), ids=PAGES)
def test_axe_finds_no_violation(visit: Visit, name: str) -> None:
    page = visit.open(name)
    page.evaluate("for (const block of document.querySelectorAll('details')) block.open = true")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("visit", [(1280, "light"), (1280, "dark")], indirect=True)
def test_theme_follows_the_reader(visit: Visit) -> None:
    page = visit.open(CHAPTER)
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    red, green, blue = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    assert (red + green + blue < 150) is dark
    page.locator(".theme-toggle-content button").click()  # from auto to the other theme
    assert page.evaluate("document.body.dataset.theme") == ("light" if dark else "dark")


def test_copy_button_drops_prompts_and_outputs(visit: Visit) -> None:
    page = visit.open(CHAPTER)
    block = page.locator(".highlight-pycon").filter(has_text="double_until_ten").first
    block.hover()
    block.locator("button.copybtn").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("def double_until_ten(x):\n    while x < 10:\n        x = x * 2\n")
    assert ">>>" not in copied
    assert "gradient 2.0" not in copied


def examples(chapter: str) -> list[doctest.Example]:
    """Return a chapter's examples, from its source."""
    source = (ROOT / "docs" / f"{chapter}.md").read_text("utf-8")
    fences = re.findall(r"^ *```\{doctest\}\n(.*?)^ *```$", source, re.DOTALL | re.MULTILINE)
    parser = doctest.DocTestParser()
    return [example for fence in fences for example in parser.get_examples(textwrap.dedent(fence))]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_copied_examples_print_in_a_terminal_what_the_page_shows(
    visit: Visit, chapter: str
) -> None:
    page = visit.open(f"{chapter}.html")
    # Choices of a prediction are closed, and its output is locked until it is answered.
    page.evaluate("""() => document.querySelectorAll("details").forEach((block) => {
        block.open = true;
        block.classList.remove("locked");
    })""")
    copied = ""
    for button in page.locator(".highlight-pycon button.copybtn").all():
        button.click()
        copied += page.evaluate("navigator.clipboard.readText()") + "\n\n"
    done = subprocess.run(
        [sys.executable, "-q", "-i"], input=copied, capture_output=True, text=True, check=False
    )
    said = examples(chapter)
    printed = "".join(example.want for example in said if not example.exc_msg)
    same = DigitsChecker().check_output(printed, done.stdout, doctest.ELLIPSIS)
    assert same, "\n".join(difflib.unified_diff(printed.splitlines(), done.stdout.splitlines()))
    raised = "\n".join(["...", *(example.exc_msg + "..." for example in said if example.exc_msg)])
    # Once a process group exists, torch begins each line of a traceback with the rank.
    shown = re.sub(r"\[rank\d+\]: ?", "", done.stderr)
    assert DigitsChecker().check_output(raised, shown, doctest.ELLIPSIS), done.stderr


def test_follow_up_opens_by_keyboard(visit: Visit) -> None:
    page = visit.open(CHAPTER)
    block = page.locator("details.follow-up").first
    assert not block.evaluate("block => block.open")
    block.locator("summary").focus()
    page.keyboard.press("Enter")
    assert block.evaluate("block => block.open")
    assert block.locator("p").is_visible()


def test_search_finds_a_chapter_by_its_question(visit: Visit) -> None:
    page = visit.open("index.html")
    page.locator(".sidebar-search").fill(QUESTION)
    page.locator(".sidebar-search").press("Enter")
    page.wait_for_selector("#search-results a")
    first = page.locator("#search-results a").first
    assert first.inner_text() == QUESTION


def test_page_reads_without_javascript(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address + CHAPTER)
    assert page.locator("h1").is_visible()
    page.locator("details.follow-up summary").first.click()
    assert page.locator("details.follow-up p").first.is_visible()
    assert page.locator("math").first.is_visible()
    context.close()
