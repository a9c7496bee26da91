"""A chapter's examples as a script and a notebook: made from its fences, and run by a reader."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import CHAPTERS, Build, Built
from nbclient import NotebookClient
from run_chapter import as_code, printing
from strict_doctest import DigitsChecker
from test_browser import examples

NAMES = ["strict_doctest", "chapters", "run_chapter"]
CONF = "checked_examples = 'none.json'\nhtml_baseurl = 'https://a.example/'"
ANSWER = "One two three four five. " * 9
PAGE = f"""\
---
level: core
---
# What is one and one?

:::{{short-answer}}
{ANSWER}
:::

## It is two

```{{doctest}}
>>> one = 1
>>> one + one, "ünï"
(2, 'ünï')
```

Some text.

```{{doctest}}
>>> for n in range(2):
...     n
...
0
1
>>> 1 / 0
Traceback (most recent call last):
    ...
ZeroDivisionError: division by zero
```

:::{{myth}} It is three
:truth: It is two.

```{{doctest}}
>>> print(one + one)
2
```
:::

""" + "".join(f":::{{follow-up}} Why?\n{n}.\n:::\n\n" for n in range(3))


def made(build: Build, text: str = PAGE) -> Built:
    return build({"part/page.md": text}, extensions=NAMES, conf=CONF)


def test_script_holds_the_fences_under_their_headings(build: Build) -> None:
    built = made(build)
    assert built.status == 0, built.errors
    opening, *cells = built.read("part/page_examples.py").split("\n\n\n# %%")
    assert opening.startswith(
        "# What is one and one?\n#\n"
        "# The examples of https://a.example/part/page.html, which need torch alone.\n"
        "# Examples not checked in this build.\n\nimport "
    )
    assert cells == [
        " It is two\none = 1\nshow_value((one + one, \"ünï\"))\n# (2, 'ünï')",
        "\nfor n in range(2):\n    show_value(n)\n# 0\n# 1\n"
        "try:\n    1 / 0\nexcept Exception as error:\n    show_error(error)\n"
        "# ZeroDivisionError: division by zero",
        " Claim: It is three\nprint(one + one)\n# 2\n",
    ]


def test_page_links_to_both(build: Build) -> None:
    page = made(build).read("part/page.html")
    for name in ("page_examples.py", "page_examples.ipynb"):
        assert f'download="" href="{name}">{name}</a>' in page


def test_notebook_is_valid_and_prints_the_same(build: Build) -> None:
    book = nbformat.reads(made(build).read("part/page_examples.ipynb"), as_version=4)
    nbformat.validate(book)
    headings = [cell.source.partition("\n")[0] for cell in book.cells if cell.cell_type != "code"]
    assert headings == ["# What is one and one?", "## It is two", "## Claim: It is three"]
    NotebookClient(book, timeout=60, kernel_name="python3").execute()
    printed = ["".join(o.text for o in cell.outputs) for cell in book.cells if "outputs" in cell]
    assert printed == ["", "(2, 'ünï')\n", "0\n1\nZeroDivisionError: division by zero\n", "2\n"]


def test_a_chapter_edited_or_gone_takes_its_files_along(build: Build) -> None:
    made(build)
    built = made(build, PAGE.replace("one = 1", "one = 2 - 1"))
    assert "one = 2 - 1" in built.read("part/page_examples.py")
    assert "one = 2 - 1" in built.read("part/page_examples.ipynb")
    pages = {"part/page.md": None, "part/other.md": PAGE}
    built = build(pages, extensions=NAMES, conf=CONF)
    assert sorted(f.name for f in built.out.glob("part/*_examples*")) == [
        "other_examples.ipynb",
        "other_examples.py",
    ]


def test_example_that_is_no_python_is_named(build: Build) -> None:
    built = made(build, PAGE.replace(">>> one = 1\n", ">>> one = = 1\n"))
    assert built.status != 0
    assert "page.md:12: WARNING: this example is no Python: invalid syntax" in built.errors


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ("x\n", "show_value(x)\n"),
        ("x, y  # both\n", "show_value((x, y))  # both\n"),
        ("(x, y)\n", "show_value((x, y))\n"),
        ("(x), (y)\n", "show_value(((x), (y)))\n"),
        ("f(\n    x,\n)\n", "show_value(f(\n    x,\n))\n"),
        ("'ü', x\n", "show_value(('ü', x))\n"),
        ("print(x)\n", "print(x)\n"),
        ("with a:\n    x; y\n", "with a:\n    show_value(x); show_value(y)\n"),
        ("def f():\n    x\n", "def f():\n    x\n"),
        ("class A:\n    x\n", "class A:\n    x\n"),
        ("x = y\n", "x = y\n"),
    ],
)
def test_what_the_interpreter_prints_is_shown(source: str, printed: str) -> None:
    assert printing(source) == printed


def test_error_keeps_its_whole_message() -> None:
    error = doctest.Example("f()\n", "", exc_msg="ValueError: one\ntwo\n")
    assert as_code(error).endswith("show_error(error)\n# ValueError: one\n# two\n")


# What torch logs beside its exceptions: a level, a date, a place in its source.
TORCH_LOG = re.compile(r"(\[rank\d+\]:)?\[?[WE]\d{4} [\d:.]+ .*\.(py|cpp):\d+\]")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_script_prints_what_the_page_shows(site: Path, tmp_path: Path, chapter: str) -> None:
    script = site / f"{chapter}_examples.py"
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if not TORCH_LOG.match(line)]
    assert (done.returncode, said) == (0, [])
    shown = "".join(example.exc_msg or example.want for example in examples(chapter))
    assert DigitsChecker().check_output(shown, done.stdout, doctest.ELLIPSIS), done.stdout


def test_notebooks_have_the_cells_of_the_scripts(site: Path) -> None:
    for chapter in CHAPTERS:
        book = json.loads((site / f"{chapter}_examples.ipynb").read_text("utf-8"))
        code = ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code"]
        script = (site / f"{chapter}_examples.py").read_text("utf-8")
        assert all(f"\n{cell}\n" in script for cell in code), chapter
        assert len(code) == 1 + script.count("\n# %%")
