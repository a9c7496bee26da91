"""What the site's templates add to furo's pages."""

from __future__ import annotations

import pytest
from conftest import ROOT, Build

CONF = f"""\
html_theme = "furo"
html_theme_options = {{"top_of_page_buttons": ["edit"]}}
templates_path = [{str(ROOT / "conf" / "templates")!r}]
html_context = {{"repository": "REPOSITORY"}}
"""
PAGES = {"part/page.md": "# Page\n", "gallery/index.md": "# G\n", "gallery/part/script.md": "# S\n"}
PAGES["index.md"] = "# Home\n\n```{toctree}\npart/page\ngallery/index\ngallery/part/script\n```\n"


@pytest.mark.parametrize(
    ("page", "source"),
    [
        ("index", "docs/index.md"),
        ("part/page", "docs/part/page.md"),
        ("gallery/index", "gallery/GALLERY_HEADER.rst"),
        ("gallery/part/script", "gallery/part/script.py"),
    ],
)
def test_pencil_leads_to_the_source(build: Build, page: str, source: str) -> None:
    conf = CONF.replace("REPOSITORY", "https://example.org/book")
    built = build(PAGES, extensions=["accessibility"], conf=conf)
    assert built.status == 0, built.errors
    assert f'href="https://example.org/book/edit/main/{source}"' in built.read(f"{page}.html")


def test_no_pencil_where_the_source_is_not_known(build: Build) -> None:
    built = build(PAGES, extensions=["accessibility"], conf=CONF.replace("REPOSITORY", ""))
    assert "edit-this-page" not in built.read("part/page.html")
