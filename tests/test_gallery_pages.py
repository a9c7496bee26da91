"""What a reader sees of the gallery's index and of a script's page besides the script."""

from __future__ import annotations

import json
import re
from pathlib import Path

from conftest import Build
from gallery_pages import built_with
from test_gallery import HEADER, run, script

SCRIPT = script('print("second")').replace(
    "The claim.", "No. A claim, with ``grad_fn``, ``__call__`` and *stress*. A second sentence."
)


def test_index_lists_scripts_with_a_sentence(build: Build) -> None:
    built = run(build, {"part/one": SCRIPT})
    assert built.status == 0, built.errors
    for name in ("gallery/index.html", "gallery/part/index.html"):
        index = built.read(name)
        link = r'<a class="reference internal" href="[^"]*one\.html">.*?A title.*?</a>'
        sentence = r"No\. A claim, with grad_fn, __call__ and stress\."
        assert re.search(rf"{link}.*?</dt>\s*<dd><p>{sentence}</p>", index, re.DOTALL)
        assert not re.search(r"sphx-glr-thumb|tooltip=|sg-tag-list|<img", index)
    assert "Its scripts." in built.read("gallery/index.html")
    assert not list(built.out.rglob("*thumb*"))


def test_page_keeps_downloads_and_drops_the_rest(build: Build) -> None:
    built = run(build, {"part/one": SCRIPT})
    page = built.read("gallery/part/one.html")
    assert re.findall(r'download="" href="[^"]*/(one\.\w+)"', page) == ["one.ipynb", "one.py"]
    assert not re.search(r"zip|Go to the end|running time|memory usage|Sphinx-Gallery<", page)
    assert re.search(r"first\n</pre>.*second\n</pre>", page, re.DOTALL)


def test_style_comes_to_gallery_pages_alone_and_no_script_for_tags(build: Build) -> None:
    built = run(build, {"part/one": SCRIPT})
    assert "gallery.css" in built.read("gallery/part/one.html")
    assert "gallery.css" in built.read("gallery/index.html")
    assert "gallery.css" not in built.read("index.html")


def test_a_value_left_on_the_last_line_is_not_shown(build: Build) -> None:
    """A page shows what ``python script.py`` prints, and no more."""
    built = run(build, {"part/one": script("answer = 40 + 2", "answer")})
    assert re.findall(r"<pre><span></span>(\w+)\n</pre>", built.read("gallery/part/one.html")) == [
        "first"
    ]


def test_header_of_a_part_opens_its_index(build: Build) -> None:
    built = run(build, {"part/one": SCRIPT})
    title, _, rest = HEADER.partition("\n")
    assert f"<h1>{title}" in built.read("gallery/part/index.html")
    assert rest.split("\n")[2] in built.read("gallery/part/index.html")


def test_footer_says_what_the_scripts_ran_on(tmp_path: Path) -> None:
    assert built_with(tmp_path) == "The gallery's scripts did not run in this build."
    machine = {"torch": "2.13.0+cpu", "python": "3.11.7", "device": "CPU"}
    (tmp_path / "machine.json").write_text(json.dumps(machine))
    assert built_with(tmp_path) == "Built with torch 2.13.0+cpu, Python 3.11.7, CPU."
