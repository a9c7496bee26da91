"""Files offered for download: the page says what is there, and all of them are made and work."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import downloads
import pytest
from conftest import CHAPTERS, ROOT, Build
from playwright.sync_api import Browser
from test_epub import epubcheck

from noxfile import DOWNLOADS, MADE

CONF = 'downloads_folder = "../made"'
PAGE = "# Downloads\n\n```{offer} deck/cards.apkg\n```\n"
SAID = "Not part of this copy of the site"
MAY_24 = 1_716_508_800


def offer(build: Build, pages: dict[str, str] | None = None) -> str:
    """Build, with pages that are new or changed, and return the page with the offer."""
    built = build(pages or {}, extensions=["downloads"], conf=CONF)
    assert built.status == 0, built.errors
    return built.read("a/page.html")


def put(folder: Path, content: bytes | None) -> None:
    file = folder / "made" / "deck" / "cards.apkg"
    if content is None:
        file.unlink()
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    os.utime(file, (MAY_24, MAY_24))


def test_page_says_what_this_build_has(build: Build, tmp_path: Path) -> None:
    copy = tmp_path / "html/_downloads/cards.apkg"
    assert SAID in offer(build, {"a/page.md": PAGE})

    put(tmp_path, b"x" * 1500)
    page = offer(build)
    assert 'href="../_downloads/cards.apkg">cards.apkg</a> (2 kB, 24 May 2024)' in page
    assert SAID not in page
    assert copy.read_bytes() == b"x" * 1500

    put(tmp_path, b"x" * 3_140_000)
    assert "(3.1 MB, 24 May 2024)" in offer(build)
    assert copy.stat().st_size == 3_140_000

    put(tmp_path, None)
    assert SAID in offer(build)
    assert not copy.exists()


def test_page_is_made_again_only_when_a_file_changed(build: Build, tmp_path: Path) -> None:
    put(tmp_path, b"x")
    offer(build, {"a/page.md": PAGE})
    page = tmp_path / "html/a/page.html"
    written = page.stat().st_mtime_ns
    offer(build)
    assert page.stat().st_mtime_ns == written
    put(tmp_path, b"x" * 999)
    offer(build)
    assert page.stat().st_mtime_ns > written


def test_zip_holds_the_site_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(MAY_24))
    for name in ("index.html", "a/page.html", ".buildinfo"):
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    downloads.pack(tmp_path / "site", tmp_path / "zip/book.zip")
    with zipfile.ZipFile(tmp_path / "zip/book.zip") as archive:
        assert archive.namelist() == ["book/a/page.html", "book/index.html"]
        assert {entry.date_time for entry in archive.infolist()} == {(2024, 5, 24, 0, 0, 0)}


# The whole site, as `nox -s downloads` makes it.


@pytest.fixture(scope="module")
def made(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the files, made anew in a copy of the project."""
    copy = tmp_path_factory.mktemp("made") / "project"
    for name in ("conf", "docs", "gallery"):
        shutil.copytree(ROOT / name, copy / name)
    for step in DOWNLOADS:
        done = subprocess.run(
            [sys.executable, *step], cwd=copy, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return copy / MADE


def test_every_offer_is_there(made: Path) -> None:
    site = made.parent / "html"
    page = (site / "downloads.html").read_text("utf-8")
    assert SAID not in page
    links = re.findall(r'href="(_downloads/[^"/]+)">[^<]*</a> \((.*?), (.*?)\)', page)
    assert [name.rpartition(".")[2] for name, _, _ in links] == ["epub", "apkg", "zip"]
    for name, size, _ in links:
        assert downloads.size((site / name).stat().st_size) == size


def test_book_is_valid_and_whole(made: Path) -> None:
    [book] = made.glob("*/*.epub")
    assert epubcheck(book) == ""
    with zipfile.ZipFile(book) as archive:
        assert {f"{name}.xhtml" for name in CHAPTERS} - set(archive.namelist()) == set()


def test_deck_has_a_card_for_each_chapter(made: Path, tmp_path: Path) -> None:
    [deck] = made.glob("*/*.apkg")
    with zipfile.ZipFile(deck) as archive:
        archive.extract("collection.anki2", tmp_path)
    connection = sqlite3.connect(tmp_path / "collection.anki2")
    fields = [row[0].split("\x1f") for row in connection.execute("select flds from notes")]
    connection.close()
    assert all(question and answer for question, answer, _ in fields)
    pages = {re.sub(r".*/(\w+/\w+)\.html", r"\1", page) for _, _, page in fields}
    assert pages == set(CHAPTERS)


def test_unpacked_site_reads_from_a_folder(made: Path, browser: Browser, tmp_path: Path) -> None:
    [packed] = made.glob("*/*.zip")
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path)
    context = browser.new_context()
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("requestfailed", lambda request: problems.append(request.url))
    # A page that is left before it has loaded breaks off its requests, which is no problem of it.
    page.goto((tmp_path / packed.stem / "index.html").as_uri(), wait_until="networkidle")
    page.locator(f'article a[href="{CHAPTERS[0]}.html"]').first.click()
    page.wait_for_url(f"**/{CHAPTERS[0]}.html", wait_until="networkidle")
    assert page.locator(".short-answer").is_visible()
    page.goto((tmp_path / packed.stem / "downloads.html").as_uri(), wait_until="networkidle")
    assert page.get_by_text(SAID).count() == 3
    context.close()
    assert problems == []
