"""References to other projects: where they lead, and what is said of those that lead nowhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import references
from conftest import Build, served
from references import INVENTORIES, find, line_for, main, problems, read, refreshed

EXTENSIONS = ["references"]
TORCH = "https://docs.pytorch.org/docs/2.13/"
PINNED = f"torch {version('torch').partition('+')[0]}"
HEADER = "# Sphinx inventory version 1\n# Project: P\n# Version: 1\n"


@pytest.mark.parametrize(
    ("reference", "address"),
    [
        ("{func}`torch.autograd.grad`", TORCH + "generated/torch.autograd.grad.html"),
        ("{meth}`torch.Tensor.backward`", TORCH + "generated/torch.Tensor.backward.html"),
        ("{attr}`torch.Tensor.grad`", TORCH + "generated/torch.Tensor.grad.html"),
        ("{class}`torch.no_grad`", TORCH + "generated/torch.no_grad.html"),
        ("{meth}`torch.nn.Module.eval`", TORCH + "generated/torch.nn.Module.html"),
        ("{class}`torch.utils.data.DataLoader`", TORCH + "data.html"),
        ("{exc}`RuntimeError`", "https://docs.python.org/3/builtins/exceptions.html"),
        (
            "{class}`numpy.ndarray`",
            "https://numpy.org/doc/stable/reference/generated/numpy.ndarray.html",
        ),
    ],
)
def test_reference_leads_to_the_name_on_its_page(
    build: Build, reference: str, address: str
) -> None:
    built = build({"part/page.md": f"# Page\n\n{reference}\n"}, extensions=EXTENSIONS)
    assert built.status == 0, built.errors
    name = reference.partition("`")[2].rstrip("`")
    assert f'href="{address}#{name}"' in built.read("part/page.html")


def test_module_and_title_of_its_own(build: Build) -> None:
    text = "{mod}`pickle` and {class}`torch.nn.Parameter <torch.nn.parameter.Parameter>`"
    built = build({"part/page.md": f"# Page\n\n{text}\n"}, extensions=EXTENSIONS)
    assert built.status == 0, built.errors
    page = built.read("part/page.html")
    assert 'href="https://docs.python.org/3/library/pickle.html#module-pickle"' in page
    assert ">torch.nn.Parameter</span>" in page


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (
            "{func}`torch.autograd.grads`",
            f"{PINNED} has no `torch.autograd.grads`; did you mean `torch.autograd.grad`?",
        ),
        ("{func}`torch.foo.bar`", f"{PINNED} has no `torch.foo.bar`"),
        # Known to the package alone, so the guess must come from there.
        (
            "{func}`torch.nanmedians`",
            f"{PINNED} has no `torch.nanmedians`; did you mean `torch.nanmedian`?",
        ),
        ("{meth}`backward`", "has no `backward`; did you mean `torch.Tensor.backward`?"),
        ("{func}`torch.no_grad`", "`torch.no_grad` is a class: write {class}`torch.no_grad`"),
        (
            "{class}`torch.nn.Parameter`",
            "write {class}`torch.nn.Parameter <torch.nn.parameter.Parameter>`",
        ),
        (
            "{func}`torch.median`",
            "`torch.median` exists; add it to conf/inventories/torch.inv: "
            "`torch.median function generated/torch.median.html`",
        ),
        ("{exc}`RuntimError`", "has no `RuntimError`; did you mean `RuntimeError`?"),
        ("{func}`flask.render_template`", "only python, numpy, torch have an inventory"),
    ],
)
def test_reference_that_leads_nowhere_is_explained(build: Build, reference: str, said: str) -> None:
    text = f"# Page\n\nA paragraph begins.\nHere is {reference}.\n"
    built = build({"part/page.md": text}, extensions=EXTENSIONS)
    assert built.status == 1
    assert "part/page.md:4: WARNING: " in built.errors
    assert said in built.errors
    assert built.errors.count("WARNING") == 1


def test_known_names_import_no_package(build: Build, tmp_path: Path) -> None:
    conf = "def setup(app):\n    app.connect('build-finished', lambda *_: print(*sys.modules))"
    text = "# Page\n\n{func}`torch.autograd.grad` {class}`numpy.ndarray`\n"
    assert build({"part/page.md": text}, extensions=EXTENSIONS, conf=conf).status == 0
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-c", "conf", "docs", "again"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert "references" in modules
    assert not {"torch", "numpy"} & set(modules)


@pytest.mark.parametrize(
    "line",
    [
        "torch.Tensor.detach method generated/torch.Tensor.detach.html",
        "torch.autograd.graph.Node.next_functions property "
        "generated/torch.autograd.graph.Node.next_functions.html",
        "torch.cuda.OutOfMemoryError exception generated/torch.cuda.OutOfMemoryError.html",
        "torch.nn.Module.eval method generated/torch.nn.Module.html",
        "torch.optim mod optim.html",
        "torch.utils.data.Dataset class data.html",
        "RuntimeError exception builtins/exceptions.html",
        "copy.deepcopy function library/copy.html",
        "numpy.ndarray.strides attribute reference/generated/numpy.ndarray.strides.html",
    ],
)
def test_line_offered_is_the_line_held(line: str) -> None:
    name = line.split()[0]
    held = {**read(INVENTORIES / "python.inv"), **read(INVENTORIES / "numpy.inv")}
    held |= read(INVENTORIES / "torch.inv")
    assert line_for(name) == line == " ".join([name, *held[name]])


def test_find_is_exact() -> None:
    assert find("torch.Tensor.backward").__name__ == "backward"
    for name in ("torch.Tensor.backwards", "no_such_module.name", "no_such_builtin"):
        with pytest.raises(LookupError):
            find(name)


def test_inventories_of_the_repository_are_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert capsys.readouterr().err.strip() == ""


def test_check_names_each_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "torch.inv"
    names = ("torch.Tensor", "torch.Tensor", "torch.Generator", "torch.gone")
    path.write_text(HEADER + "".join(f"{name} class page.html\n" for name in names), "utf-8")
    assert list(problems(path)) == [
        "torch.inv:5: `torch.Tensor` after `torch.Tensor`; sort them, each name once",
        "torch.inv:6: `torch.Generator` after `torch.Tensor`; sort them, each name once",
        f"torch.inv:7: {PINNED} has no `torch.gone`",
    ]


@pytest.fixture
def documentation(build: Build, tmp_path: Path) -> Iterator[str]:
    """Build the documentation of a small project, serve it, and return its address."""
    page = "# P\n\n```{py:function} torch.moved\n```\n\n```{py:class} torch.same\n```\n"
    built = build({"part/page.md": page}, extensions=[])
    assert built.status == 0, built.errors

    with served(built.out) as address:
        yield address


LINES = "torch.gone class old.html\ntorch.moved class old.html\ntorch.same class part/page.html\n"


def test_refresh_takes_kind_and_page_from_the_site(documentation: str) -> None:
    text, missing = refreshed(HEADER + LINES, documentation)
    assert text == HEADER + LINES.replace("moved class old", "moved function part/page")
    assert missing == ["torch.gone"]


def test_refresh_writes_shows_the_difference_and_fails_on_what_is_gone(
    documentation: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "torch.inv"
    path.write_text(HEADER + LINES, "utf-8")
    monkeypatch.setattr(references, "SITES", {"torch": documentation})
    assert main(["--refresh"], tmp_path) == 1
    said = capsys.readouterr()
    assert "-torch.moved class old.html\n+torch.moved function part/page.html\n" in said.out
    assert f"torch.inv: {documentation} does not document `torch.gone`" in said.err
    assert "torch.moved function part/page.html" in path.read_text("utf-8")
