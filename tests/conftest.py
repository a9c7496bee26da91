"""What the tests share: a miniature project, built by a real Sphinx run."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from sphinx.cmd.build import build_main

from noxfile import HTML, SPHINX

ROOT = Path(__file__).parent.parent
EXTENSIONS = ROOT / "conf" / "extensions"

CHAPTERS = sorted(
    path.relative_to(ROOT / "docs").with_suffix("").as_posix()
    for path in (ROOT / "docs").glob("*/*.md")
    if path.stem != "index" and path.parent.name != "gallery"
)
SCRIPTS = sorted(
    path.relative_to(ROOT / "gallery").with_suffix("").as_posix()
    for path in (ROOT / "gallery").glob("*/*.py")
)

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")

INDEX = "# Home\n\n```{toctree}\n:glob:\n\n*/*\n```\n"


class Built(NamedTuple):
    """A finished run: Sphinx's exit status, what it wrote to stderr, and its output folder."""

    status: int
    errors: str
    out: Path

    def read(self, page: str) -> str:
        """Return the text of one file of the output."""
        return (self.out / page).read_text("utf-8")


Build = Callable[..., Built]


@pytest.fixture
def build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Build]:
    """Build a miniature project: ``build({"part/page.md": text}, extensions=[...], builder=...)``.

    ``conf`` is more text for its conf.py. Pages stay between two calls in one test, as in a real
    project that is built again; a page whose text is None is deleted. Warnings are errors.
    """

    def run(
        pages: Mapping[str, str | None],
        *,
        extensions: list[str],
        builder: str = "html",
        conf: str = "",
        options: list[str] | None = None,
        names: list[str] | None = None,
    ) -> Built:
        docs, conf_dir, out = tmp_path / "docs", tmp_path / "conf", tmp_path / builder
        for name, text in {"index.md": INDEX, **pages}.items():
            page = docs / name
            if text is None:
                page.unlink()
                continue
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(textwrap.dedent(text), "utf-8")
        conf_dir.mkdir(exist_ok=True)
        (conf_dir / "conf.py").write_text(
            f"import sys\nsys.path.insert(0, {str(EXTENSIONS)!r})\n"
            f"extensions = {['myst_parser', *extensions]!r}\n"
            "myst_enable_extensions = ['colon_fence', 'dollarmath']\n"
            f"{textwrap.dedent(conf)}\n",
            "utf-8",
        )
        capsys.readouterr()
        args = ["-b", builder, "-n", "-T", "-W", "--keep-going", "-q"]
        args += ["-c", str(conf_dir), "-d", str(tmp_path / f"{builder}-doctrees")]
        args += [*(options or []), str(docs), str(out)]
        args += [str(docs / name) for name in names or []]
        status = build_main(args)
        return Built(status, capsys.readouterr().err, out)

    return run


def sphinx(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Sphinx as the noxfile does, in a project folder."""
    command = [sys.executable, *SPHINX[1:], *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site, brought up to date as `nox -s docs` does.

    The processes of one test run share it: the first builds, the others wait, and no test writes.
    """
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with FileLock(shared / "site.lock"):
        if not (shared / "site.built").exists():
            done = sphinx(*HTML, cwd=ROOT)
            assert done.returncode == 0, done.stdout + done.stderr
            (shared / "site.built").touch()
    return ROOT / "build" / "html"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the Chromium that is installed."""
    path = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if path is None:
        pytest.fail(
            "no Chromium found: install it, on Debian with `apt-get install chromium`",
            pytrace=False,
        )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def copied(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the whole project as built."""
    copy = tmp_path_factory.mktemp("copy") / "project"
    for name in ("conf", "docs", "gallery", "build"):
        shutil.copytree(ROOT / name, copy / name)
    return copy


@pytest.fixture
def project(copied: Path) -> Iterator[Path]:
    """Lend the copy to a test that changes sources; put them back, so that little is rebuilt."""

    def sources() -> dict[Path, bytes]:
        found = [path for part in ("docs", "gallery") for path in (copied / part).rglob("*")]
        generated = copied / "docs" / "gallery"
        return {
            path: path.read_bytes()
            for path in found
            if path.is_file() and generated not in path.parents
        }

    before = sources()
    yield copied
    for path, content in sources().items():
        if path not in before:
            path.unlink()
        elif content != before[path]:
            path.write_bytes(before[path])


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and writes no log."""

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine alone, and give its address."""
    handler = functools.partial(Quiet, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Serve the site and return its address."""
    with served(site) as address:
        yield address


class Visit:
    """One page in its own context, and what went wrong while it was open."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.page: Page = context.new_page()
        self.address = address
        self.problems: list[str] = []
        self.page.on("console", self.heard)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", self.requested)

    def heard(self, message: object) -> None:
        """Keep what the console calls an error or a warning."""
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def requested(self, request: object) -> None:
        """Keep requests to any other host."""
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.problems.append(f"request: {request.url}")

    def open(self, name: str) -> Page:
        """Go to a page of the site."""
        self.page.goto(self.address + name, wait_until="networkidle")
        return self.page


@pytest.fixture
def visit(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """Open a context with the size and theme that a test asks for; nothing may go wrong in it."""
    width, theme = getattr(request, "param", (1280, "light"))
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=theme,
        permissions=["clipboard-read", "clipboard-write"],
    )
    visit = Visit(context, address)
    yield visit
    context.close()
    assert visit.problems == []
