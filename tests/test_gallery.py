"""The gallery's build: what runs when, what is left over, and what stops it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import runpy
import warnings
from importlib.metadata import version
from pathlib import Path

import matplotlib
import pytest
import torch
import torch_state
from conftest import EXTENSIONS, ROOT, Build, Built
from sphinx.errors import ExtensionError

import gallery

NAMES = ["inline_svg", "gallery", "gallery_pages"]
SETTINGS = runpy.run_path(str(ROOT / "conf" / "conf.py"))["sphinx_gallery_conf"]
HEADER = "Part\n====\n\nIts scripts.\n"
INDEX = "# Home\n\n{doc}`/gallery/part/one`\n\n```{toctree}\ngallery/index\n```\n"


def script(*lines: str) -> str:
    """Return a good script with these lines in its second cell, from line 12 on."""
    opening = '"""\nA title\n=======\n\nThe claim.\n"""\n\nprint("first")\n\n# %%\n# Second.\n'
    return opening + "\n".join(lines) + "\n"


def counted(name: str) -> str:
    """Return a script that notes each of its runs."""
    return script(f'with open("../../runs.txt", "a") as runs:\n    print("{name}", file=runs)')


def run(build: Build, scripts: dict[str, str | None], **more: object) -> Built:
    """Build a project with these scripts in its gallery, by the site's own settings."""
    parts = {name.rpartition("/")[0] for name in scripts} - {""}
    pages = {f"../gallery/{part}/GALLERY_HEADER.rst": HEADER for part in parts}
    pages |= {"../gallery/GALLERY_HEADER.rst": "Gallery\n=======\n"}
    pages |= {"index.md": INDEX} if "part/one" in scripts else {}
    pages |= {f"../gallery/{name}.py": text for name, text in scripts.items()}
    settings, also = SETTINGS | more.pop("settings", {}), more.pop("also", [])
    return build(
        pages,
        extensions=["sphinx.ext.doctest", *NAMES, *also],
        conf=f"sphinx_gallery_conf = {settings!r}",
        **more,
    )


def runs(project: Path) -> list[str]:
    """Return the names of the scripts that ran since the last call."""
    file = project / "runs.txt"
    names = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return names


def test_only_what_changed_runs_again(build: Build, tmp_path: Path) -> None:
    scripts = {"part/one": counted("one"), "part/two": counted("two")}
    assert run(build, scripts).status == 0
    assert runs(tmp_path) == ["one", "two"]
    assert run(build, scripts).status == 0
    assert runs(tmp_path) == []
    assert run(build, scripts | {"part/two": counted("2")}).status == 0
    assert runs(tmp_path) == ["2"]


def test_all_run_again_and_nothing_stays_when_a_setting_changes(
    build: Build, tmp_path: Path
) -> None:
    scripts = {"part/one": counted("one"), "part/two": counted("two")}
    run(build, scripts)
    stale = tmp_path / "docs/gallery/part/images/sphx_glr_one_007.svg"
    stale.write_text("<svg/>")
    runs(tmp_path)
    built = run(build, scripts, settings={"line_numbers": True})
    assert built.status == 0, built.errors
    assert runs(tmp_path) == ["one", "two"]
    assert not stale.exists()


def test_fingerprint_holds_python_packages_settings_and_modules() -> None:
    lines = gallery.fingerprint(gallery.DEFAULT_GALLERY_CONF).splitlines()
    assert f"Python {platform.python_version()}" in lines
    for package in ("torch", "matplotlib", "torchviz", "pygraphviz"):
        assert f"{package} {version(package)}" in lines
    assert "capture_repr = ('_repr_html_', '__repr__')" in lines
    for name in ("gallery", "gallery_pages", "drawings", "inline_svg", "torch_state"):
        text = (EXTENSIONS / f"{name}.py").read_bytes()
        assert f"{name}.py {hashlib.sha256(text).hexdigest()}" in lines


def test_results_are_no_part_of_the_fingerprint() -> None:
    settings = gallery.DEFAULT_GALLERY_CONF
    before = gallery.fingerprint(settings)
    ran = settings | {"plot_gallery": False, "passing_examples": ["a"], "stale_examples": ["b"]}
    assert gallery.fingerprint(ran) == before


def test_what_a_deleted_script_left_goes(build: Build, tmp_path: Path) -> None:
    drawn = script("import graphviz", 'graph = graphviz.Digraph(body=["a -> b"])')
    scripts = {"part/old": drawn, "part/old_more": drawn, "other/two": drawn}
    built = run(build, scripts)
    assert built.status == 0, built.errors
    generated = tmp_path / "docs" / "gallery"
    assert {f.suffix for f in gallery.made_from(generated / "part/old.py")} >= {
        *(".py", ".md5", ".rst", ".ipynb", ".zip", ".svg"),
    }
    other = tmp_path / "gallery" / "other"
    (other / "two.py").unlink()
    (other / "GALLERY_HEADER.rst").unlink()
    other.rmdir()
    built = run(build, {"part/old": None})
    assert built.status == 0, built.errors
    left = [f for root in (generated, built.out) for f in root.rglob("*") if f.is_file()]
    assert not [f for f in left if f.stem.removesuffix(".py") in {"old", "two", "sphx_glr_old_001"}]
    assert not (generated / "other").exists()
    assert (built.out / "gallery/part/old_more.html").is_file()
    assert (generated / "part/images/sphx_glr_old_more_001.svg").is_file()


def test_a_script_put_back_after_a_failure_shows_no_trace_of_it(
    build: Build, tmp_path: Path
) -> None:
    good = script('print("good output")')
    run(build, {"part/one": good})
    assert run(build, {"part/one": script("assert False, 'broken'")}).status != 0
    built = run(build, {"part/one": good})
    assert built.status == 0, built.errors
    page = built.read("gallery/part/one.html")
    assert "good output" in page
    assert "broken" not in page


def test_a_folder_of_other_origin_is_not_deleted(build: Build, tmp_path: Path) -> None:
    kept = tmp_path / "docs" / "gallery" / "notes.md"
    kept.parent.mkdir(parents=True)
    kept.write_text("# Notes\n")
    built = run(build, {"part/one": script("print(1)")})
    assert built.status != 0
    assert "docs/gallery was not made by this build; move it away or delete it." in built.errors
    assert kept.is_file()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["assert 1 + 1 == 3, 'wrong sum'"], "AssertionError: wrong sum"),
        (["1 / 0"], "ZeroDivisionError"),
        (["x = (1,"], "SyntaxError"),
        (["import warnings", "warnings.warn('look out')"], "UserWarning: look out"),
        (["import warnings", "warnings.warn('old', DeprecationWarning)"], "DeprecationWarning"),
        (["import torch", "torch.ones(2, requires_grad=True).sum().mul(1).grad"], "non-leaf"),
        (["import sys", "sys.exit(0)"], "the script ended the process (SystemExit: 0)"),
        (["import argparse", "argparse.ArgumentParser().parse_args(['--no'])"], "(SystemExit: 2)"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("default")  # pytest's own setting would raise the warnings as well
def test_a_script_that_fails_stops_the_build_and_names_its_line(
    build: Build, tmp_path: Path, lines: list[str], says: str
) -> None:
    torch_state.reset()  # what it imports the first time sets variables too
    environment = dict(os.environ)
    built = run(build, {"part/bad": script(*lines)})
    assert built.status != 0
    assert says in built.errors
    line = 11 + len(lines)
    named = (f'gallery/part/bad.py", line {line}', f"gallery/part/bad.py:{line}:")
    assert any(name in built.errors for name in named), built.errors
    assert dict(os.environ) == environment
    with warnings.catch_warnings(record=True) as caught:
        warnings.warn("after the build it is no error", stacklevel=1)
    assert caught


def test_what_python_hides_from_the_reader_is_no_error(build: Build) -> None:
    quiet = [
        "import warnings",
        "from distutils.version import LooseVersion  # a deprecation in a module",
        "warnings.warn_explicit('old', DeprecationWarning, 'lib.py', 1, module='lib')",
        "import matplotlib.pyplot as plt",
        "plt.show()",
    ]
    built = run(build, {"part/one": script(*quiet)})
    assert built.status == 0, built.errors


@pytest.mark.filterwarnings("default")
def test_nothing_leaks_from_script_to_script(build: Build) -> None:
    leak = [
        "import os, warnings, matplotlib.pyplot as plt, torch",
        "os.environ['LEFT'] = 'behind'",
        "os.chdir('/')",
        "plt.rcParams['font.size'] = 3",
        "torch.set_default_dtype(torch.float64)",
        "torch.set_grad_enabled(False)",
        "warnings.simplefilter('ignore')",
    ]
    check = [
        "import os, warnings, matplotlib.pyplot as plt, torch",
        "assert 'LEFT' not in os.environ",
        "assert os.path.basename(os.getcwd()) == 'part'",
        "assert plt.rcParams['font.size'] == 10",
        "assert plt.rcParams['svg.fonttype'] == 'none'",
        "assert torch.ones(1).dtype is torch.float32",
        "assert torch.is_grad_enabled()",
        "try:",
        "    warnings.warn('seen')",
        "except UserWarning:",
        "    print('as in a fresh process')",
    ]
    built = run(build, {"part/a": script(*leak), "part/b": script(*check)})
    assert built.status == 0, built.errors
    assert "as in a fresh process" in built.read("gallery/part/b.html")
    assert matplotlib.rcParams["svg.fonttype"] == "path"
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("bare/one.py", script("1"), "gallery/bare: no GALLERY_HEADER.rst; write one: a title"),
        ("part/deep/one.py", script("1"), "gallery/part/deep/one.py:1: scripts lie in gallery/<p"),
        ("part/one.py", 'print("no title")\n\n# %%\n1\n', "gallery/part/one.py:1: no title; begin"),
        ("part/one.py", '"""Only prose."""\n1\n\n# %%\n1\n', "gallery/part/one.py:1: no title;"),
        (
            "part/one.py",
            '"""\nA\n===\n"""\n\nx = 1\n',
            "gallery/part/one.py:5: fewer than two code",
        ),
        (
            "part/one.py",
            '"""\nA\n===\n"""\n\nx = (\n',
            "gallery/part/one.py:6: SyntaxError: '(' was n",
        ),
    ],
)
def test_a_mistake_in_the_layout_names_its_place(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    source = tmp_path / "gallery"
    (source / name).parent.mkdir(parents=True)
    (source / "part").mkdir(exist_ok=True)
    (source / "part" / "GALLERY_HEADER.rst").write_text(HEADER)
    (source / name).write_text(text)
    (found,) = gallery.problems(source)
    assert found.startswith(says)


def test_a_mistake_in_the_layout_stops_the_build(build: Build, tmp_path: Path) -> None:
    built = run(build, {"part/one": '"""\nA\n===\n"""\n\nx = 1\n'})
    assert built.status != 0
    assert "gallery/part/one.py:5: fewer than two code cells" in built.errors


def test_a_page_that_shows_a_path_of_the_machine_stops_the_build(build: Build) -> None:
    built = run(build, {"part/one": script("import os", "print(os.getcwd())")})
    assert built.status != 0
    assert "gallery/part/one.py: its page shows a path of this machine" in built.errors


def test_doctests_neither_run_nor_touch_the_gallery(build: Build, tmp_path: Path) -> None:
    scripts = {"part/one": counted("one")}
    fresh = run(build, scripts, builder="doctest")
    assert fresh.status == 0, fresh.errors
    assert runs(tmp_path) == []
    assert not (tmp_path / "docs" / "gallery").exists()
    assert run(build, scripts).status == 0
    assert runs(tmp_path) == ["one"]
    generated = tmp_path / "docs" / "gallery"
    before = {file: file.stat().st_mtime_ns for file in generated.rglob("*")}
    changed = run(build, {"part/one": counted("two")}, builder="doctest")
    assert changed.status == 0, changed.errors
    assert runs(tmp_path) == []
    assert {file: file.stat().st_mtime_ns for file in generated.rglob("*")} == before


def test_doctests_read_again_only_what_changed(build: Build, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "part" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("---\norphan: true\n---\n# A page\n", "utf-8")
    read = tmp_path / "doctest-doctrees" / "part" / "page.doctree"
    times = []
    for _ in range(2):
        built = run(build, {"part/one": counted("one")}, builder="doctest")
        assert built.status == 0, built.errors
        times.append(read.stat().st_mtime_ns)
    assert times[0] == times[1]


def test_doctests_are_not_disturbed_by_what_a_failed_script_left(
    build: Build, tmp_path: Path
) -> None:
    broken = {"part/one": counted("one"), "part/two": script("raise SystemExit")}
    assert run(build, broken).status != 0
    done = run(build, {"part/one": counted("one"), "part/two": None}, builder="doctest")
    assert done.status == 0, done.errors


def test_pages_are_the_same_twice(build: Build, tmp_path: Path) -> None:
    lines = [
        "import graphviz, matplotlib.pyplot as plt",
        "nodes = [object() for _ in range(4)]",
        "graph = graphviz.Digraph()",
        "for node in nodes:",
        "    graph.node(str(id(node)), 'same')",
        "    graph.edge(str(id(node)), str(id(nodes[0])))",
        "figure = plt.figure()",
        "plt.plot([1, 2])",
        "title = plt.title('Twice')",
    ]
    scripts = {"part/one": script(*lines)}

    def contents() -> dict[str, bytes]:
        built = run(build, scripts)
        assert built.status == 0, built.errors
        generated = tmp_path / "docs" / "gallery" / "part"
        files = [*generated.glob("*.[pir]*"), *generated.rglob("*.svg"), *built.out.rglob("*.html")]
        files += built.out.glob("_downloads/*/*")
        return {f.relative_to(tmp_path).as_posix(): f.read_bytes() for f in files}

    first = contents()
    assert {Path(name).suffix for name in first} >= {".html", ".svg", ".ipynb", ".py", ".rst"}
    for folder in (tmp_path / "docs" / "gallery", tmp_path / "html", tmp_path / "html-doctrees"):
        gallery.shutil.rmtree(folder)
    assert contents() == first


def test_forget_refuses_a_folder_without_record(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "page.rst").write_text("Page\n")
    with pytest.raises(ExtensionError, match="was not made by this build"):
        gallery.forget(tmp_path / "gallery", tmp_path / "made", "record")
    assert (tmp_path / "made" / "page.rst").is_file()


def test_parts_come_in_the_order_of_the_home_page(site: Path) -> None:
    home = "# Home\n\n```{chapters}\nb/index\na/index\n```\n\n```{toctree}\nc/index\n```\n"
    assert gallery.part_order(home, "../gallery") == ["../gallery/b", "../gallery/a", "*"]
    assert gallery.part_order("# Home\n", "../gallery") == ["*"]
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    wanted = [part.rpartition("/")[2] for part in gallery.part_order(home, "../gallery")]
    page = (site / "gallery" / "index.html").read_text("utf-8")
    shown = re.findall(r'toctree-l2[^>]*><a[^>]* href="(\w+)/index', page)
    assert shown == [part for part in wanted if (ROOT / "gallery" / part).is_dir()]
