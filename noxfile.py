# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2026.4.10"]
#
# [tool.nox]
# script-venv-backend = "virtualenv"
# ///
"""Everything one does with this site: ``nox -l`` lists it, ``nox`` alone checks and builds it."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import nox

nox.needs_version = ">=2026.4.10"
# pip and not uv: pip's configuration (its indexes, its local wheels) decides whether PyTorch comes
# as a CPU build of 200 MB or as a CUDA build of several GB, and uv does not read it.
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
# OpenMP's threads spin while they wait. Beside other work on the same cores (two of them, load six)
# that made a script of small tensor operations eight times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# PyTorch's profiler, which some scripts count with, otherwise reports each start on stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "9")

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml("pyproject.toml")
# The one environment that holds PyTorch. Every session that needs it requires `environment` and
# runs this interpreter, so that PyTorch is installed once and not once a session.
PYTHON = str(ROOT / ".nox/environment" / ("Scripts" if os.name == "nt" else "bin") / "python")
SHARED = ("docs", "tests", "live")
SPHINX = (PYTHON, "-m", "sphinx", "-n", "-T", "-W", "-c", "conf")
HTML = ("-b", "html", "-d", "build/doctrees", "docs", "build/html")
DOCTEST = ("-b", "doctest", "-d", "build/doctest/.doctrees", "docs", "build/doctest")
MADE = "build/downloads"
EPUB = ("-b", "epub", "-d", "build/doctrees", "docs", f"{MADE}/epub")
ANKI = ("-b", "anki", "-d", "build/doctrees", "docs", f"{MADE}/anki")
PACK = ("conf/extensions/downloads.py", "build/html", f"{MADE}/zip/pytorch-answered.zip")
# The zip is of a site without downloads; then the site takes them up.
DOWNLOADS = (
    (*SPHINX[1:], *HTML),
    (*SPHINX[1:], *EPUB),
    (*SPHINX[1:], *ANKI),
    PACK,
    (*SPHINX[1:], *HTML),
)
# How the examples are run by `nox -s sweep`: what the run is called, its environment, its options.
SWEEP = (
    *((f"{n} threads", {"OMP_NUM_THREADS": n}, ()) for n in ("1", "2", "8")),
    *(
        (f"CPU capability {c}", {"ATEN_CPU_CAPABILITY": c}, ())
        for c in ("default", "avx2", "avx512")
    ),
    ("last chapter first", {}, ("-D", "doctest_reversed=1")),
    *((f"run {n} of 10", {}, ()) for n in range(1, 11)),
)
LINKS = ("-b", "linkcheck", "-d", "build/doctrees", "docs", "build/links")


def install(session: nox.Session, *groups: str) -> None:
    """Install dependency groups, with what they depend on held to constraints.txt."""
    session.install("-c", "constraints.txt", *nox.project.dependency_groups(PYPROJECT, *groups))


@nox.session(default=False)
def environment(session: nox.Session) -> None:
    """Install what the other sessions share; they call it, and `nox -R -s docs` skips it."""
    install(session, *SHARED)


@nox.session(venv_backend="none", requires=["environment"])
def doctest(session: nox.Session) -> None:
    """Run every example of the chapters, or of those named: `-- docs/autograd/graph.md`."""
    session.run(*SPHINX, *DOCTEST, *session.posargs)


@nox.session(default=False, venv_backend="none", requires=["environment"])
def sweep(session: nox.Session) -> None:
    """Run every example under other thread counts, CPU capabilities and orders, and ten times."""
    results, failed = [], False
    for name, env, options in SWEEP:
        log = Path("build/sweep", f"{name.replace(' ', '-')}.txt")
        log.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        try:
            with log.open("w", encoding="utf-8") as file:
                session.run(*SPHINX, *options, *DOCTEST, env=env, stdout=file, stderr=file)
            verdict = "passed"
        except nox.command.CommandFailed:
            verdict, failed = f"FAILED, see {log}", True
        results.append(f"{name:32}{time.monotonic() - start:7.1f} s  {verdict}")
    print("", *results, sep="\n")
    if failed:
        session.error("Some examples depend on how they were run.")


@nox.session(venv_backend="none", requires=["environment"])
def docs(session: nox.Session) -> None:
    """Build the site, running every gallery script, and say where it is."""
    session.run(*SPHINX, *HTML, *session.posargs)
    session.log(f"The site is at {(ROOT / 'build/html/index.html').as_uri()}")


@nox.session(default=False, venv_backend="none", requires=["environment"])
def downloads(session: nox.Session) -> None:
    """Build the site with what readers take along: the book, the deck, a zip of the site."""
    shutil.rmtree(MADE, ignore_errors=True)
    for step in DOWNLOADS:
        session.run(PYTHON, *step)


@nox.session(venv_backend="none", requires=["environment"])
def tests(session: nox.Session) -> None:
    """Prove the machinery and the built site, in a real browser too; arguments go to pytest."""
    # A process for each core, up to four, each with a browser, and each file of tests in one of
    # them: what its tests share is made once. `-- -n 0` runs them in this process, for a debugger.
    processes = ("--numprocesses", "logical", "--maxprocesses", "4", "--dist", "loadfile")
    session.run(PYTHON, "-m", "pytest", *processes, *session.posargs)


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Check Python, Markdown, spelling and workflows; `-- --fix` mends what can be mended."""
    install(session, "lint")
    if "--fix" in session.posargs:
        session.run("ruff", "check", "--fix", ".")
        session.run("ruff", "format", ".")
        session.run("rumdl", "fmt", ".")
    session.run("ruff", "check", "--output-format", "concise", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("rumdl", "check", ".")
    session.run("typos", "--format", "brief")
    workflows = [str(path) for path in sorted(Path(".github/workflows").glob("*.yml"))]
    check = ("check-jsonschema", "--builtin-schema")
    session.run(*check, "vendor.github-workflows", *workflows)
    session.run(*check, "vendor.dependabot", ".github/dependabot.yml")
    session.run("zizmor", "--offline", "--quiet", "--pedantic", ".github")


@nox.session(default=False, venv_backend="none", requires=["environment"])
def live(session: nox.Session) -> None:
    """Show the site in the browser and build again whenever a file is saved."""
    watch = ("--watch", "conf", "--watch", "gallery", "--ignore", str(ROOT / "docs/gallery/*"))
    autobuild = (PYTHON, "-m", "sphinx_autobuild", "--open-browser", *watch)
    session.run(*autobuild, "-n", "-T", "-c", "conf", *HTML, *session.posargs)


@nox.session(default=False, venv_backend="none", requires=["environment"])
def links(session: nox.Session) -> None:
    """Ask every other site that a page links to whether the page is there (needs a network)."""
    session.run(*SPHINX, *LINKS, *session.posargs)


@nox.session(default=False, venv_backend="none", requires=["environment"])
def references(session: nox.Session) -> None:
    """Check the inventories of other projects' names; `-- --refresh` fetches them anew."""
    session.run(PYTHON, "conf/extensions/references.py", *(session.posargs or ["--check"]))


@nox.session(default=False, venv_backend="none", requires=["environment"])
def record(session: nox.Session) -> None:
    """Keep what scripts show on this machine's CUDA, for builds without: `-- gallery/...py`."""
    session.run(PYTHON, "conf/extensions/recordings.py", *session.posargs)


@nox.session(default=False, venv_backend="none", requires=["environment"])
def bench(session: nox.Session) -> None:
    """Time the builds and weigh a page, beside the figures aimed at (some minutes)."""
    session.run(PYTHON, "-m", "tests.bench", "figures", *session.posargs)


@nox.session(default=False, venv_backend="none", requires=["docs"])
def lighthouse(session: nox.Session) -> None:
    """Score three pages of the built site as a phone sees them (needs Node and a network)."""
    session.run(PYTHON, "-m", "tests.bench", "lighthouse", *session.posargs)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Write constraints.txt anew, from what the groups of pyproject.toml install today."""
    pinned = nox.project.dependency_groups(PYPROJECT, *SHARED)
    session.install(*pinned)
    leave_out = [f"--exclude={requirement.partition('==')[0]}" for requirement in pinned]
    pip = ("python", "-m", "pip", "--disable-pip-version-check", "list", "--format=freeze")
    frozen = session.run(*pip, "--exclude=pip", *leave_out, silent=True)
    head = "# What the groups of pyproject.toml depend on in turn. Written by `nox -s lock`.\n"
    Path("constraints.txt").write_text(head + str(frozen), encoding="utf-8")


@nox.session(default=False, venv_backend="none")
def clean(session: nox.Session) -> None:
    """Remove what builds and checks leave behind; .nox, where PyTorch is, stays."""
    for path in ("build", "docs/gallery", ".pytest_cache", ".ruff_cache", ".rumdl_cache"):
        session.log(f"Removing {path}")
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    nox.main()
