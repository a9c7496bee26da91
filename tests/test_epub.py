"""The EPUB: valid by epubcheck, with formulas and figures, and without pages for a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from conftest import Build, Built

NAMES = ["strict_doctest", "chapters", "mathml", "inline_svg", "epub"]
CONF = """
project = author = project_copyright = "A"
version = "1"
language = "en"
checked_examples = "none.json"
html_math_renderer = "mathml"
html_use_index = False
epub_basename = "book"
epub_identifier = epub_uid = "book"
epub_description = epub_contributor = "A book."
epub_exclude_files = ["drill.xhtml"]
epub_show_urls = "no"
epub_tocscope = "includehidden"
"""
SVG = (
    '<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN"\n'
    ' "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">\n'
    '<svg xmlns="http://www.w3.org/2000/svg" width="9pt" height="9pt"><path d="M 0 0 H 9"/></svg>\n'
)
PAGES = {
    "index.md": ("# Home\n\nAsk {doc}`/drill`.\n\n```{toctree}\ndrill\ngallery/index\n```\n"),
    "drill.md": "# Drill\n\nOnly on the site.\n",
    "gallery/index.md": (
        "# B\n\nHalf is $\\frac{1}{2}$; ask {doc}`/drill`, read {doc}`/gallery/two`.\n\n"
        "```{inline-svg} /gallery/line.svg\n:alt: A line\n```\n\n"
        ":::{follow-up} Why?\nSo.\n:::\n\n```{toctree}\ntwo\n```\n"
    ),
    "gallery/two.md": "# Two\n\nNo formula.\n",
    "gallery/line.svg": SVG,
}


def epubcheck(book: Path) -> str:
    """Return what epubcheck says of a book; its status must agree."""
    program = shutil.which("epubcheck")
    if program is None:
        pytest.fail("no epubcheck found: on Debian, `apt-get install epubcheck`", pytrace=False)
    # Debian's is a bare Java archive, which only some kernels run as it is.
    java = ["java", "-jar"] if Path(program).read_bytes().startswith(b"PK") else []
    command = [*java, program, str(book)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "EPUBCheck completed" in done.stdout + done.stderr
    found = re.findall(r"^(?:FATAL|ERROR|WARNING|USAGE).*", done.stdout + done.stderr, re.MULTILINE)
    assert (done.returncode == 0) is (not found)
    return "\n".join(found)


def made(build: Build, **pages: str) -> Built:
    named = {f"{name}.md": text for name, text in pages.items()}
    return build(PAGES | named, extensions=NAMES, conf=CONF, builder="epub")


def test_book_with_formula_figure_and_fold_is_valid(build: Build) -> None:
    built = made(build)
    assert built.status == 0, built.errors
    assert epubcheck(built.out / "book.epub") == ""
    with zipfile.ZipFile(built.out / "book.epub") as book:
        assert book.infolist()[0].filename == "mimetype"
        page = book.read("gallery/index.xhtml").decode()
        package = book.read("content.opf").decode()
        assert b"DOCTYPE" not in book.read("_images/line.svg")
    assert "<mfrac>" in page
    assert re.search('<img alt="A line" [^>]*src="../_images/line.svg"', page)
    assert re.search("<details.*<summary>Why", page, re.DOTALL)
    assert re.findall(r'href="(\S+)"[^>]*properties="mathml"', package) == ["gallery/index.xhtml"]


def test_what_is_only_for_the_site_stays_out(build: Build) -> None:
    with zipfile.ZipFile(made(build).out / "book.epub") as book:
        names = book.namelist()
        texts = {name: book.read(name).decode() for name in names if name.endswith(("ml", "ncx"))}
    assert "drill.xhtml" not in names
    assert [name for name, text in texts.items() if "drill.xhtml" in text] == []
    assert '<span class="doc">Drill</span>.' in texts["index.xhtml"]
    assert 'href="two.xhtml"' in texts["gallery/index.xhtml"]
    assert 'href="gallery/two.xhtml"' in texts["nav.xhtml"]
    assert [name for name in names if name.startswith("_static/plus")] == []


def test_same_chapters_same_bytes(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first = (made(build).out / "book.epub").read_bytes()
    again = made(build, index=PAGES["index.md"].replace("Ask", "Put to")).out / "book.epub"
    assert again.read_bytes() != first
    assert (made(build).out / "book.epub").read_bytes() == first


def test_broken_link_is_found(build: Build) -> None:
    """What is written as HTML is not looked at by Sphinx."""
    built = made(build, index=PAGES["index.md"] + "\n<a href='search.xhtml'>Search</a>\n")
    assert "search.xhtml" in epubcheck(built.out / "book.epub")


def test_missing_epubcheck_fails_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match="apt-get install epubcheck"):
        epubcheck(Path("book.epub"))
