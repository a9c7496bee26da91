"""The site's figures beside the ones aimed at: `nox -s bench`, `nox -s lighthouse`.

Times are medians over fresh processes, in seconds, on a copy of the project in a temporary folder.
Nothing fails for being slow: machines differ, and a test that times out by chance teaches nobody.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.server
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from noxfile import DOCTEST, HTML, ROOT, SPHINX

SUBJECT = "autograd/graph"  # the chapter and the script that are edited, weighed and scored
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
LIGHTHOUSE = "lighthouse@12.2.3"
PHONE = {"width": 360, "height": 740}

# What the build cannot do without: the import, and the scripts one after the other.
SCRIPTS = """
import contextlib, io, json, os, pathlib, runpy, sys, time
begun = time.perf_counter()
import torch
imported = time.perf_counter()
sys.path.insert(0, "conf/extensions")
import torch_state
scripts = sorted(pathlib.Path("gallery").resolve().glob("*/*.py"))
for script in scripts:
    torch_state.reset()
    os.chdir(script.parent)
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(script), run_name="__main__")
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
ended = time.perf_counter()
print(json.dumps([imported - begun, ended - imported, len(scripts)]))
"""


def run(tree: Path, *command: str) -> tuple[float, str]:
    """Run Python in the copied project: seconds and output. A failure ends the bench, explained."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nThis failed, so there is nothing to time.")
    return seconds, done.stdout


def build(tree: Path, *options: str) -> float:
    """Run Sphinx as a session does: seconds."""
    return run(tree, *SPHINX[1:], *options)[0]


def edit(path: Path, comment: str) -> None:
    """Change a file's text and nothing that a reader sees."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{comment}\n")


def times(tree: Path, repeat: int) -> dict[str, list[float]]:
    """Measure each step as often as asked."""
    seconds: dict[str, list[float]] = defaultdict(list)
    run(tree, "-c", SCRIPTS)  # files read for the first time are the disk's time, not ours
    for turn in range(repeat):
        print(f"Round {turn + 1} of {repeat}", flush=True)
        imported, ran, _ = json.loads(run(tree, "-c", SCRIPTS)[1])
        seconds["import"].append(imported)
        seconds["scripts"].append(ran)
        for made in ("build", "docs/gallery"):
            shutil.rmtree(tree / made, ignore_errors=True)
        seconds["cold"].append(build(tree, *HTML))
        seconds["unchanged"].append(build(tree, *HTML))
        edit(tree / f"docs/{SUBJECT}.md", f"% edited {turn}")
        seconds["chapter"].append(build(tree, *HTML))
        edit(tree / f"gallery/{SUBJECT}.py", f"# edited {turn}")
        seconds["script"].append(build(tree, *HTML))
        seconds["doctest"].append(build(tree, *DOCTEST))
    return seconds


class Compressed(http.server.SimpleHTTPRequestHandler):
    """Serves files as a web host does: text compressed, and no log."""

    def do_GET(self) -> None:
        """Answer with the file, compressed unless it is a picture or a font."""
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        if not path.is_file():
            return self.send_error(404)
        body = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(path))
        self.send_header("Cache-Control", "max-age=600")
        if path.suffix not in {".png", ".woff2", ".zip", ".jpg"}:
            body = gzip.compress(body, mtime=0)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on this machine alone while the block runs: its address."""
    handler = partial(Compressed, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def chromium() -> str:
    """Return the path of the browser that is installed."""
    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    return found or sys.exit("No Chromium found: on Debian, apt-get install chromium")


def weigh(site: Path, page: str) -> tuple[int, int, set[str]]:
    """Open a page for the first time on a phone: bytes received, requests, hosts asked."""
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    received: list[int] = []
    with served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        view = browser.new_context(viewport=PHONE).new_page()
        wire = view.context.new_cdp_session(view)
        wire.send("Network.enable")
        wire.on("Network.requestWillBeSent", lambda event: asked.append(event["request"]["url"]))
        wire.on(
            "Network.loadingFinished", lambda event: received.append(event["encodedDataLength"])
        )
        view.goto(address + page, wait_until="networkidle")
        browser.close()
    asked = [url for url in asked if not url.startswith("data:")]
    return sum(received), len(asked), {urlsplit(url).netloc for url in asked}


def table(rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as they need."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        print(name.ljust(widths[0]), *numbers, sep="   ")


def figures(repeat: int) -> None:
    """Print how long builds take and what a page weighs."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        tree = Path(folder) / "project"
        unwanted = shutil.ignore_patterns(".*", "build", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=unwanted)
        shutil.rmtree(tree / "docs/gallery", ignore_errors=True)
        middle = {step: statistics.median(all_) for step, all_ in times(tree, repeat).items()}
        size, requests, hosts = weigh(tree / "build/html", f"{SUBJECT}.html")
        scripts = len(list(tree.glob("gallery/*/*.py")))
        chapters = len([p for p in tree.glob("docs/*/*.md") if p.stem != "index"])

    def row(name: str, step: str, aim: float | None = None) -> tuple[str, str, str]:
        return name, f"{middle[step]:.1f} s", "" if aim is None else f"{aim:.1f} s"

    middle["rest"] = middle["cold"] - middle["import"] - middle["scripts"]
    least = middle["import"] + middle["scripts"]
    print()
    table(
        [
            ("", "measured", "at most"),
            row(f"html, cold, with {scripts} scripts", "cold", 1.5 * least),
            row("  of it: importing torch", "import"),
            row("  of it: the scripts' own time", "scripts"),
            row("  of it: Sphinx and drawing", "rest"),
            row("html, nothing changed", "unchanged", 5),
            row("html, one chapter edited", "chapter", 6),
            row("html, one script edited", "script"),
            row(f"examples of {chapters} chapters", "doctest", 30),
            ("a chapter's first view, compressed", f"{size / 1000:.1f} kB", "60.0 kB"),
            ("  requests", str(requests), "12"),
            ("  hosts", str(len(hosts)), "1"),
        ]
    )


def lighthouse() -> None:
    """Print Lighthouse's scores of the site that `nox -s docs` built, on its phone setting."""
    npx = shutil.which("npx")
    if npx is None:
        sys.exit("No Node found, which runs Lighthouse: on Debian, apt-get install nodejs npm")
    kinds = ("performance", "accessibility", "best-practices", "seo")
    command = [npx, "--yes", LIGHTHOUSE, "--quiet", "--output=json"]
    command += [f"--only-categories={','.join(kinds)}"]
    command += [f"--chrome-flags=--headless=new {' '.join(FLAGS)}"]
    rows = [("", *kinds), ("aimed at", "99", "100", "100", "100")]
    faults = []
    with served(ROOT / "build/html") as address:
        pages = ("index", SUBJECT, f"gallery/{SUBJECT}", "errors", "drill")
        for page in (f"{name}.html" for name in pages):
            done = subprocess.run(
                [*command, address + page],
                env={**os.environ, "CHROME_PATH": chromium()},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            report = json.loads(done.stdout)
            scores = [report["categories"][kind] for kind in kinds]
            rows.append((page, *(f"{100 * score['score']:.0f}" for score in scores)))
            for part in (part for score in scores for part in score["auditRefs"] if part["weight"]):
                audit = report["audits"][part["id"]]
                if audit["score"] is not None and audit["score"] < 0.9:
                    faults.append(f"{page}: {audit['title']} {audit.get('displayValue', '')}")
    table(rows)
    print(*faults, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("figures", "lighthouse"))
    parser.add_argument("--repeat", type=int, default=3, help="rounds to take the median of")
    options = parser.parse_args()
    figures(options.repeat) if options.what == "figures" else lighthouse()
