"""The doctest builder: what it must refuse, and what it leaves behind."""

from __future__ import annotations

import json

import pytest
from conftest import Build, Built
from strict_doctest import use_written_digits

EXTENSIONS = ["strict_doctest"]
CONF = (
    "import doctest\n"
    "doctest_default_flags = doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1\n"
    "doctest_test_doctest_blocks = ''\n"
    "doctest_global_setup = 'import torch_state; torch_state.reset()'\n"
)


def run(build: Build, page: str, **more: object) -> Built:
    return build({"part/page.md": page}, extensions=EXTENSIONS, conf=CONF, **more)


def fence(code: str, kind: str = "{doctest}") -> str:
    return f"# Title\n\n```{kind}\n{code}\n```\n"


@pytest.mark.parametrize(
    ("want", "got", "same"),
    [
        ("0.5", "0.5", True),
        ("0.55", "0.5514447", True),  # rounds to what is written
        ("0.56", "0.5514447", False),
        ("0.5", "0.6", False),  # one in the last digit is much with one digit
        ("2.", "3.", False),  # torch's whole floats are exact
        ("2.5", "2.6", False),
        ("0.1966", "0.1967", True),  # the last of torch's four digits
        ("0.1966", "0.1968", False),
        ("1.2500e-03", "1.2501e-03", True),
        ("1.2500e-03", "1.2500e-02", False),
        ("-0.1966", "0.1966", False),
        ("tensor([0.1966, 2.])", "tensor([0.1967, 2.])", True),
        ("tensor([0.1966, 2.])", "tensor([0.1967, 3.])", False),
        ("0.1966 0.5", "0.1966", False),
        ("torch 2.13.0", "torch 2.14.0", False),  # a version is no number
        ("x1.5", "x1.6", False),
        ("nan", "0.0", False),
    ],
)
def test_floats_agree_to_the_digits_written(want: str, got: str, same: bool) -> None:
    assert (use_written_digits(want, got) == want) is same


def test_passing_examples_are_counted_with_what_they_ran_on(build: Build) -> None:
    import torch

    built = run(build, fence(">>> 1 + 1\n2\n>>> x = 3\n>>> x / 7\n0.4286"), builder="doctest")
    assert built.status == 0, built.errors
    record = json.loads(built.read("examples.json"))["part/page"]
    assert record["examples"] == 3
    assert record["torch"] == torch.__version__
    assert len(record["digest"]) == 64


@pytest.mark.parametrize(
    ("code", "line", "says"),
    [
        (">>> 1 + 1\n3", 4, "Expected:\n    3\nGot:\n    2"),
        (">>> x = 1\n>>> x\n1.0", 5, "Got:\n    1"),
        (
            '>>> raise ValueError("the message")\n'
            "Traceback (most recent call last):\n    ...\nValueError: the messag",
            4,
            "ValueError: the message",
        ),
        (">>> import warnings\n>>> warnings.warn('careful')", 5, "UserWarning: careful"),
        (":options: +NORMALIZE_WHITESPACE\n\n>>> 1 + 1\n3", 6, "Got:\n    2"),
    ],
)
def test_failure_names_file_and_line(build: Build, code: str, line: int, says: str) -> None:
    built = run(build, fence(code), builder="doctest")
    assert built.status == 1
    assert f'docs/part/page.md", line {line}, in default' in built.errors
    assert says in built.errors
    assert json.loads(built.read("examples.json")) == {}


def test_line_is_right_inside_a_list_and_a_box(build: Build) -> None:
    page = "# Title\n\n- item\n\n  ```{doctest}\n  >>> 1\n  2\n  ```\n\n:::{note}\n\n"
    page += "```{doctest}\n>>> 1\n3\n```\n\n:::\n"
    built = run(build, page, builder="doctest")
    assert 'page.md", line 6, in default' in built.errors
    assert 'page.md", line 13, in default' in built.errors


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (">>> 1 + 1\n2", "", "`>>>` outside a {doctest} fence is never run"),
        (">>> 1 + 1\n2", "pycon", "`>>>` outside a {doctest} fence is never run"),
        ("x = 1", "python", "Python that nothing runs"),
        ("x = 1", "{code-block} python", "Python that nothing runs"),
        ("x = 1", "{testcode}", "{testcode} is not used here"),
        ("x = 1", "{testsetup}", "{testsetup} is not used here"),
        (":hide:\n\n>>> 1\n1", "{doctest}", "a hidden example proves nothing"),
        (":skipif: True\n\n>>> 1\n2", "{doctest}", "a skipped example is never run"),
        (':pyversion: "> 99"\n\n>>> 1\n2', "{doctest}", "a skipped example is never run"),
        (">>> 1  # doctest: +SKIP\n2", "{doctest}", "a skipped example is never run"),
        ("x = 1", "{doctest}", "a {doctest} fence without `>>>` runs nothing"),
    ],
)
@pytest.mark.parametrize("builder", ["html", "doctest"])
def test_code_that_nothing_runs_is_an_error(
    build: Build, code: str, kind: str, says: str, builder: str
) -> None:
    built = run(build, fence(code, kind), builder=builder)
    assert built.status == 1
    assert "docs/part/page.md:3: WARNING: " + says in built.errors


def test_quoted_prompt_in_a_block_quote_is_an_error(build: Build) -> None:
    built = run(build, "# Title\n\n```{eval-rst}\n>>> 1\n2\n```\n")
    assert built.status == 1
    assert "page.md:4: WARNING: `>>>` outside a {doctest} fence" in built.errors


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (">>> x = [\n...     1,\n... ]\n>>> for i in x:\n...     i\n1", 8),
        (">>> if True: 1\n1", 4),
        (">>> @staticmethod\n... def f():\n...     pass\n>>> 1\n1", 6),
    ],
)
def test_compound_statement_ends_as_in_a_terminal(build: Build, code: str, line: int) -> None:
    built = run(build, fence(code))
    assert built.status == 1
    assert f"page.md:{line}: WARNING: end this compound statement with a `...`" in built.errors
    lines = code.splitlines()
    lines.insert(line - 3, "...")
    built = run(build, fence("\n".join(lines)), builder="doctest")
    assert built.status == 0, built.errors


def test_other_languages_and_included_files_are_fine(build: Build, tmp_path: object) -> None:
    page = "# Title\n\n```sh\nls\n```\n\n```{literalinclude} code.py\n:language: python\n```\n"
    built = build(
        {"part/code.py": "x = 1\n", "part/page.md": page}, extensions=EXTENSIONS, conf=CONF
    )
    assert built.status == 0, built.errors


def test_run_of_one_chapter_keeps_the_records_of_the_others(build: Build) -> None:
    pages = {"part/a.md": fence(">>> 1\n1"), "part/b.md": fence(">>> 2\n2")}
    first = build(pages, extensions=EXTENSIONS, conf=CONF, builder="doctest")
    assert set(json.loads(first.read("examples.json"))) == {"part/a", "part/b"}
    second = build(
        {"part/a.md": fence(">>> 1\n1\n>>> 3\n3")},
        extensions=EXTENSIONS,
        conf=CONF,
        builder="doctest",
        names=["part/a.md"],
    )
    records = json.loads(second.read("examples.json"))
    assert {doc: record["examples"] for doc, record in records.items()} == {
        "part/a": 2,
        "part/b": 1,
    }
    third = build(
        {"part/b.md": None},
        extensions=EXTENSIONS,
        conf=CONF,
        builder="doctest",
        names=["part/a.md"],
    )
    assert set(json.loads(third.read("examples.json"))) == {"part/a"}


def test_torch_state_does_not_leak_from_one_page_to_the_next(build: Build) -> None:
    leak = (
        ">>> import torch\n>>> torch.set_default_dtype(torch.float64)\n"
        ">>> torch.set_printoptions(precision=1)\n>>> handle = torch.set_grad_enabled(False)\n"
        ">>> torch.use_deterministic_algorithms(True)\n>>> torch.set_default_device('meta')"
    )
    clean = (
        ">>> import torch\n>>> x = torch.tensor(0.125, requires_grad=True)\n>>> x, x.device\n"
        "(tensor(0.1250, requires_grad=True), device(type='cpu'))\n>>> (x * 1).requires_grad\n"
        "True\n>>> torch.are_deterministic_algorithms_enabled()\nFalse\n>>> torch.rand(1)\n"
        "tensor([0.4963])"
    )
    built = build(
        {"part/a.md": fence(leak), "part/b.md": fence(clean)},
        extensions=EXTENSIONS,
        conf=CONF,
        builder="doctest",
    )
    assert built.status == 0, built.errors


def test_chapters_run_in_either_order(build: Build) -> None:
    """A chapter that leans on the one before it fails as soon as it comes first."""
    pages = {
        "part/a.md": fence(">>> import builtins\n>>> builtins.left_behind = 3"),
        "part/b.md": fence(">>> left_behind\n3"),
    }

    def status(*options: str) -> Built:
        return build(
            pages, extensions=EXTENSIONS, conf=CONF, builder="doctest", options=list(options)
        )

    assert status().status == 0
    import builtins

    del builtins.left_behind
    turned = status("-D", "doctest_reversed=1")
    assert turned.status != 0
    assert "name 'left_behind' is not defined" in turned.out.joinpath("output.txt").read_text()
    del builtins.left_behind


def test_a_tab_is_written_as_the_spaces_it_shows(build: Build) -> None:
    """Of the message of load_state_dict, for one; doctest itself never matches such a line."""
    raised = ">>> raise ValueError('one\\n\\ttwo')\nTraceback (most recent call last):\n    ...\n"
    right = fence(raised + "ValueError: one\n        two\n>>> print('a\\tb')\na       b")
    assert run(build, right, builder="doctest").status == 0
    wrong = fence(">>> print('a\\tb')\na  b")
    assert run(build, wrong, builder="doctest").status != 0
