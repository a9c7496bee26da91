"""Predict the output: what is refused, what runs, and what a reader sees in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from conftest import ROOT, Build, Built
from playwright.sync_api import Browser, Page
from predict import squeeze

EXTENSIONS = ["sphinx_copybutton", "strict_doctest", "accessibility", "predict"]
CONF = f"""\
language = "en"
html_theme = "furo"
html_copy_source = html_show_sourcelink = False
highlight_language = "none"
html_static_path = [{str(ROOT / "conf" / "static")!r}]
html_css_files = ["site.css"]
templates_path = ["templates"]
import doctest
doctest_test_doctest_blocks = ""
doctest_default_flags = doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1
doctest_global_setup = "import torch_state; torch_state.reset()"
checked_examples = "none.json"
copybutton_prompt_text = r">>> |\\.\\.\\. |\\.\\.\\.$"
copybutton_prompt_is_regexp = True
"""
TEMPLATE = '{% extends "!page.html" %}{% block body %}{{ accessible(super()) }}{% endblock %}'

TYPED = """\
:::{predict} What is `y` now?
Think of `x` first.

```{doctest}
>>> x = [1]
>>> x
[1]
>>> y = {"a": x}
>>> y
{'a': [1]}
```

`y` holds `x` itself.

```{doctest}
>>> y["a"] is x
True
```
:::
"""
CHOICES = """\
:::{predict}
```{doctest}
>>> z = [x] * 2
>>> z[0] += [2]
>>> z
[[1, 2], [1, 2]]
```

- `[[1, 2], [1]]`

  Both items are one list.

  ```{doctest}
  >>> z[0] is z[1]
  True
  ```

- `[[1, 2], [1, 2]]`

  As said.
:::
"""
ERROR = """\
:::{predict}
```{doctest}
>>> x + 1
Traceback (most recent call last):
    ...
TypeError: can only concatenate list (not "int") to list
```
:::
"""
LINES = """\
:::{predict}
```{doctest}
>>> for _ in range(1):
...     print("a\\n\\nb", id(x))
...
a
<BLANKLINE>
b ...
```
:::
"""
PAGE = f"# Title\n\n{TYPED}\n{CHOICES}\n{ERROR}\n{LINES}"


def run(build: Build, page: str = PAGE, **more: object) -> Built:
    pages = {"index.md": "# Home\n\n```{toctree}\npage\n```\n", "page.md": page}
    return build(pages, extensions=EXTENSIONS, conf=CONF, **more)


ONCE: list[Built] = []


@pytest.fixture
def built(build: Build, tmp_path: Path) -> Built:
    """Return the good project, built once for all tests that only look at it."""
    if not ONCE:
        template = tmp_path / "conf" / "templates" / "page.html"
        template.parent.mkdir(parents=True)
        template.write_text(TEMPLATE, "utf-8")
        ONCE.append(run(build))
    assert ONCE[0].status == 0, ONCE[0].errors
    return ONCE[0]


@pytest.fixture
def page(browser: Browser, built: Built) -> Page:
    """Open the page as a reader of an unzipped copy does: from a file, at a phone's width."""
    context = browser.new_context(
        viewport={"width": 360, "height": 740},
        permissions=["clipboard-read", "clipboard-write"],
    )
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(error))
    page.goto((built.out / "page.html").as_uri())
    yield page
    context.close()
    assert problems == []


def test_every_example_of_a_block_runs(build: Build) -> None:
    done = run(build, builder="doctest")
    assert done.status == 0, done.errors
    assert "11 tests\n    0 failures in tests" in done.read("output.txt")


def line_of(page: str, text: str) -> int:
    """Return the number of the line that a text, found once, begins on."""
    assert page.count(text) == 1
    return page[: page.index(text)].count("\n") + 1


@pytest.mark.parametrize(
    ("example", "old", "new"),
    [
        (">>> y\n", "{'a': [1]}", "{'a': [2]}"),
        ('>>> y["a"] is x', "is x\nTrue", "is x\nFalse"),
        (">>> z[0] is z[1]", "z[1]\n  True", "z[1]\n  False"),
        (">>> x + 1", '(not "int")', '(not "float")'),
        (">>> for _ in range(1)", "b ...", "c ..."),
    ],
)
def test_wrong_key_or_refutation_fails_at_its_line(
    build: Build, example: str, old: str, new: str
) -> None:
    assert old in PAGE
    done = run(build, PAGE.replace(old, new), builder="doctest")
    assert done.status == 1
    assert f'page.md", line {line_of(PAGE, example)}, in default' in done.read("output.txt")


WRONG = CHOICES[CHOICES.index("- `[[1, 2], [1]]`") : CHOICES.index("- `[[1, 2], [1, 2]]`")]
RUN = "  ```{doctest}\n  >>> z[0] is z[1]\n  True\n  ```\n"


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        (
            CHOICES,
            ":::{predict} Why\nText.\n:::\n",
            ":::{predict} Why",
            "a predict block without an ex",
        ),
        ("z\n[[1, 2], [1, 2]]\n", "z\n", ">>> z\n", "a predict block without output"),
        ("- `[[1, 2], [1, 2]]`", "- `[[1], [1]]`", WRONG, "0 right choices: write exactly one"),
        (
            "- `[[1, 2], [1]]`",
            "- `[[1,2],[1,2]]`",
            "- `[[1,2]",
            "2 right choices: write exactly one",
        ),
        (WRONG, "", "- `[[1, 2], [1, 2]]`", "no wrong choice: write one"),
        ("  Both items are one list.\n\n", "", "- `[[1, 2], [1]]`", "a wrong choice without a rea"),
        (RUN, "", "- `[[1, 2], [1]]`", "a wrong choice that nothing refutes: add a {doctest}"),
        (
            ">>> z = [x]",
            ">>>z = [x]",
            ">>>z = [x]",
            "the example of a predict block cannot be read",
        ),
        (RUN, RUN.replace(">>> ", ""), "```{doctest}\n  z[0]", "a {doctest} fence without `>>>`"),
    ],
)
def test_mistake_is_an_error_with_file_and_line(
    build: Build, old: str, new: str, at: str, says: str
) -> None:
    assert old in PAGE
    page = PAGE.replace(old, new)
    done = run(build, page)
    assert done.status == 1
    found = re.search(rf"docs/page\.md:(\d+): \w+: {re.escape(says)}", done.errors)
    assert found, done.errors
    assert int(found[1]) == line_of(page, at), done.errors


def test_code_and_output_part_where_the_example_ends(built: Built) -> None:
    soup = BeautifulSoup(built.read("page.html"), "html.parser")
    for block, source in zip(soup.select(".predict"), (TYPED, CHOICES, ERROR, LINES), strict=True):
        fence = source.split("```")[1].removeprefix("{doctest}\n").replace("<BLANKLINE>", "")
        shown, output = block.pre.get_text(), block.select_one(".predict-output pre").get_text()
        assert shown.splitlines() + output.splitlines() == fence.splitlines()
        assert shown.splitlines()[-1].startswith((">>>", "..."))


def test_other_pages_load_nothing(built: Built) -> None:
    assert "_static/predict." in built.read("page.html")
    assert "_static/predict." not in built.read("index.html")


def test_text_is_compared_without_spaces_and_kinds_of_quotes() -> None:
    assert squeeze("{'a':\n [1]}") == squeeze('{"a": [1]}')
    assert squeeze("tensor([4.])") != squeeze("tensor([4])")


def test_output_is_out_of_reach_until_the_reader_has_typed(page: Page) -> None:
    block = page.locator(".predict").nth(0)
    output = block.locator(".predict-output")
    assert ">>> y\n" in block.locator("pre").first.inner_text() + "\n"
    assert "{'a': [1]}" not in block.inner_text()
    assert not output.locator("summary").is_visible()
    block.get_by_label("Your prediction").press("Enter")  # nothing typed
    assert not output.locator("pre").first.is_visible()
    block.get_by_label("Your prediction").fill("{'a': 1}")
    block.get_by_label("Your prediction").press("Enter")
    assert block.get_by_role("status").inner_text() == "Not what it prints: compare."
    assert output.locator("pre").first.inner_text().strip() == "{'a': [1]}"
    assert output.get_by_text("holds").is_visible()


@pytest.mark.parametrize(
    ("number", "said", "right"),
    [
        (0, '{"a":[1]}', True),
        (0, "{'a': [1]}", True),
        (0, "[1]", False),
        (2, "TypeError", True),
        (2, "TypeError: can only concatenate list (not 'int') to list", True),
        (2, "Error", False),
        (2, "Traceback", False),
        (3, "a\n\nb 140", True),
        (3, "a\nb", True),
        (3, "ab", True),
        (3, "b", False),
        (3, ".*", False),
    ],
)
def test_what_the_reader_types_is_compared_with_the_output(
    page: Page, number: int, said: str, right: bool
) -> None:
    block = page.locator(".predict").nth(number)
    block.get_by_label("Your prediction").fill(said)
    block.get_by_role("button", name="Check").click()
    verdict = "Right." if right else "Not what it prints: compare."
    assert block.get_by_role("status").inner_text() == verdict


def test_wrong_choice_says_why_and_leaves_another_try(page: Page) -> None:
    block = page.locator(".predict").nth(1)
    output = block.locator(".predict-output")
    assert "one list" not in block.inner_text()
    assert not output.locator("summary").is_visible()
    block.locator("summary").nth(0).focus()
    page.keyboard.press("Enter")
    assert "Wrong." in block.inner_text()
    assert "Both items are one list." in block.inner_text()
    assert "z[0] is z[1]" in block.inner_text()
    page.wait_for_function("!document.querySelectorAll('.predict-output')[1].matches('.locked')")
    assert not output.evaluate("output => output.open")
    page.keyboard.press("Tab")  # the copy button or the code, then the next choice
    block.locator("summary").nth(1).focus()
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelectorAll('.predict-output')[1].open")
    assert "Right.\n\nAs said." in block.inner_text()
    assert output.locator("pre").inner_text().strip() == "[[1, 2], [1, 2]]"


def test_copy_button_gives_code_that_a_terminal_takes(page: Page) -> None:
    buttons = page.locator(".predict").nth(0).locator(".highlight-pycon .copybtn")
    buttons.first.click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.splitlines() == ["x = [1]", "x", 'y = {"a": x}', "y"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_and_nothing_scrolls_sideways(page: Page, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    for opened in (False, True):
        if opened:
            for block in page.locator(".predict").all():
                for choice in block.locator(".predict-choice > summary").all():
                    choice.click()
                for field in block.get_by_label("Your prediction").all():
                    field.fill("?")
                    block.get_by_role("button", name="Check").click()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    box = page.locator(".predict").first
    assert box.bounding_box()["x"] + 8 < box.locator("pre").first.bounding_box()["x"]


def test_nothing_in_the_text_moves_while_the_page_loads(page: Page) -> None:
    moved = page.evaluate("""() => new Promise(done => {
        const inText = (source) => source.node?.parentElement?.closest("article");
        const observer = new PerformanceObserver((list) =>
            done(list.getEntries().filter((entry) => entry.sources.some(inText)).length));
        observer.observe({ type: "layout-shift", buffered: true });
        setTimeout(() => done(0), 500);
    })""")
    assert moved == 0


def test_without_javascript_output_and_choices_open_on_a_click(
    browser: Browser, built: Built
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((built.out / "page.html").as_uri())
    assert not page.get_by_text("Your prediction").first.is_visible()
    block = page.locator(".predict").nth(1)
    assert not block.get_by_text("Both items").is_visible()
    block.locator("summary").nth(0).click()
    assert block.get_by_text("Both items").is_visible()
    block.get_by_text("Show the output").click()
    assert block.locator(".predict-output pre").is_visible()
    context.close()
