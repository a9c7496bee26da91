"""What Sphinx's EPUB lacks to be valid, the same each time, and without loose ends.

- The package names the pages that hold MathML; drawings lose the document type that points to
  another host; style sheets and images that no page uses are left out.
- A link to a page of ``epub_exclude_files``, which makes sense only on the site, becomes text, and
  tables of contents do without it.
- Every file in it has one time, `archive.moment`.

``-b epub`` writes the book; tests/test_epub.py hands it to epubcheck.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archive import moment, write_zip
from docutils import nodes
from sphinx import addnodes
from sphinx.builders.epub3 import Epub3Builder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

PAGE = re.compile(r'id="epub-\d+" href="([^"]+)" media-type="application/xhtml\+xml"')
USED = re.compile(r'(?:href="|src="|url\(["\']?)([^"\'()#?]+)')


def used(page: str, text: str) -> set[str]:
    """Return the files that a page or style sheet refers to, as paths in the book."""
    folder = posixpath.dirname(page)
    return {posixpath.normpath(posixpath.join(folder, name)) for name in USED.findall(text)}


def without_doctype(svg: str) -> str:
    """Return a drawing without its document type."""
    return re.sub(r"<!DOCTYPE[^>]*>\s*", "", svg, count=1)


class BookBuilder(Epub3Builder):
    """Sphinx's builder, mended."""

    def unused(self) -> Iterator[Path]:
        """Yield the static files that no page and no style sheet refers to."""
        root = Path(self.outdir)
        texts = [*root.rglob("*.xhtml"), *root.glob("_static/*.css")]
        names = {file.relative_to(root).as_posix(): file.read_text("utf-8") for file in texts}
        wanted = {name for page, text in names.items() for name in used(page, text)}
        for file in root.glob("_static/**/*"):
            if file.is_file() and file.relative_to(root).as_posix() not in wanted:
                yield file

    def build_content(self) -> None:
        """Write the package, with only what belongs in it."""
        for name in self.config.epub_exclude_files:
            Path(self.outdir, name).unlink(missing_ok=True)
        for file in list(self.unused()):
            file.unlink()
        for file in Path(self.outdir).rglob("*.svg"):
            file.write_text(without_doctype(file.read_text("utf-8")), "utf-8")
        super().build_content()
        package = Path(self.outdir, "content.opf")
        package.write_text(PAGE.sub(self.with_properties, package.read_text("utf-8")), "utf-8")

    def with_properties(self, item: re.Match[str]) -> str:
        """Return a page's entry, which says whether it holds MathML."""
        math = "<math" in Path(self.outdir, item[1]).read_text("utf-8")
        return f'{item[0]} properties="mathml"' if math else item[0]

    def build_epub(self) -> None:
        """Write the book."""
        first = ("mimetype", "META-INF/container.xml", "content.opf", "toc.ncx")
        files = ((name, Path(self.outdir, name).read_bytes()) for name in (*first, *self.files))
        write_zip(Path(self.outdir, f"{self.config.epub_basename}.epub"), files, moment())


def leave_out(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Take pages that are not in the book out of its tables of contents and its links."""
    if app.builder.name != "epub":
        return
    left_out = app.config.epub_exclude_files
    for contents in doctree.findall(addnodes.toctree):
        contents["entries"] = [
            (title, page) for title, page in contents["entries"] if f"{page}.xhtml" not in left_out
        ]
    folder = posixpath.dirname(docname)
    for link in list(doctree.findall(nodes.reference)):
        address = link.get("refuri", "").partition("#")[0]
        if posixpath.normpath(posixpath.join(folder, address)) in left_out:
            link.replace_self(link.children)


def setup(app: Sphinx) -> dict[str, Any]:
    """Replace Sphinx's builder, and look at the links of each page."""
    app.add_builder(BookBuilder, override=True)
    app.connect("doctree-resolved", leave_out, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
