"""Exercises: the broken version really fails and the solution really passes, as the page says."""

from __future__ import annotations

import pytest
from bs4 import BeautifulSoup
from conftest import Build, Built
from test_strict_doctest import CONF as STRICT

EXTENSIONS = ["strict_doctest", "chapters", "predict", "exercises"]
CONF = STRICT + "checked_examples = 'none.json'\n"
GOOD = """\
# Part

::::{exercise} Mend `double`
It should return twice its argument.

```{doctest}
>>> def double(x):
...     return x + 2
...
>>> def check(double):
...     assert double(3) == 6, f"double(3) is {double(3)}, not 6"
...     return "passed"
...
>>> check(double)
Traceback (most recent call last):
    ...
AssertionError: double(3) is 5, not 6
```

:::{solution}
A product, not a sum.

```{doctest}
>>> def double(x):
...     return x * 2
...
>>> check(double)
'passed'
```
:::
::::
"""


def run(build: Build, page: str, **more: object) -> Built:
    return build({"part/index.md": page}, extensions=EXTENSIONS, conf=CONF, **more)


def test_exercise_is_a_box_with_a_solution_that_opens(build: Build) -> None:
    built = run(build, GOOD)
    assert built.status == 0, built.errors
    page = BeautifulSoup(built.read("part/index.html"), "html.parser")
    box = page.find(id="exercise-mend-double")
    assert box.find(class_="admonition-title").get_text() == "Exercise: Mend double"
    solution = box.find("details", class_="solution")
    assert solution.summary.get_text() == "Solution"
    assert "x * 2" in solution.get_text()
    assert "x + 2" not in solution.get_text()


def test_both_versions_run(build: Build) -> None:
    assert run(build, GOOD, builder="doctest").status == 0
    built = run(build, GOOD.replace("x + 2", "x * 2", 1), builder="doctest")
    assert built.status != 0
    text = built.read("output.txt")
    assert 'index.md", line 14' in text
    built = run(build, GOOD.replace("x * 2", "x + 4"), builder="doctest")
    assert built.status != 0
    assert 'index.md", line 27' in built.read("output.txt")


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("{solution}", "{note}", 3, "0 solutions: write one `:::{solution}`"),
        (
            "Traceback (most recent call last):\n    ...\nAssertionError: double(3) is 5, not 6",
            "'passed'",
            3,
            "nothing fails: let the last example before the solution be a check that raises",
        ),
        (">>> check(double)\n'passed'\n", "", 20, "let it end with the same `check(double)`"),
        (
            "'passed'\n```\n:::",
            "Traceback (most recent call last):\n    ...\nValueError: no\n```\n:::",
            20,
            "the solution fails its check too",
        ),
    ],
)
def test_what_an_exercise_lacks_is_said(
    build: Build, old: str, new: str, line: int, said: str
) -> None:
    assert GOOD.count(old) == 1
    built = run(build, GOOD.replace(old, new))
    assert built.status != 0
    assert f"index.md:{line}: " in built.errors
    assert said in built.errors
