"""Graphs and figures of a script's cells, as SVG and in words."""

from __future__ import annotations

import re

import pytest
import torch
from conftest import Build
from drawings import describe, draw, read_dot
from test_gallery import run, script
from torchviz import make_dot

# torchviz compares versions with distutils, which setuptools keeps alive.
pytestmark = pytest.mark.filterwarnings("ignore:distutils Version classes")

GRAPH = ["import graphviz", "graph = graphviz.Digraph(body=['a -> b'])"]


@pytest.fixture
def saved_graph() -> str:
    """Return the DOT text of a small autograd graph with its saved tensors."""
    x = torch.tensor(2.0, requires_grad=True)
    y = x.exp() * x
    return make_dot(y, params={"x": x, "y": y}, show_saved=True).source


def test_graph_in_words(saved_graph: str) -> None:
    assert describe(read_dot(saved_graph)) == (
        "Graph of 7 nodes. Arrows: MulBackward0 to y (), x () to AccumulateGrad, "
        "ExpBackward0 to MulBackward0, AccumulateGrad to MulBackward0, "
        "AccumulateGrad to ExpBackward0. "
        "Saved tensors: MulBackward0 keeps x (), MulBackward0 keeps self (), "
        "ExpBackward0 keeps result ()."
    )


def test_nodes_of_one_name_are_told_apart() -> None:
    dot = 'digraph { 1 [label="Mul"]; 2 [label="Mul"]; 1 -> 2 }'
    assert describe(read_dot(dot)) == "Graph of 2 nodes. Arrows: Mul 1 to Mul 2."


def test_saved_tensors_are_drawn_above_their_nodes(saved_graph: str) -> None:
    svg = draw(read_dot(saved_graph))
    height = {
        name: float(re.search(rf'y="(-[\d.]+)"[^>]*>{name}<', svg)[1])
        for name in ("x", "self", "MulBackward0", "y")
    }
    assert height["x"] < height["MulBackward0"] < height["y"]
    assert height["self"] < height["MulBackward0"]


def test_addresses_do_not_show(saved_graph: str) -> None:
    (address, *_) = re.findall(r"\d{10,}", saved_graph)
    assert address not in draw(read_dot(saved_graph))


def test_a_graph_is_drawn_once_where_it_first_has_a_name(build: Build) -> None:
    cells = "\n\n# %%\nagain = graph\n\n# %%\ngraphviz.Digraph(body=['b -> c'])\n"
    built = run(build, {"part/one": script(*GRAPH) + cells})
    assert built.status == 0, built.errors
    page = built.read("gallery/part/one.html")
    words = re.findall(r'role="img" aria-label="([^"]*)"', page)
    assert words == ["Graph of 2 nodes. Arrows: a to b.", "Graph of 2 nodes. Arrows: b to c."]
    assert page.index("a to b") < page.index("again") < page.index("b to c")


def test_figure_keeps_its_text_and_is_described_by_its_title(build: Build) -> None:
    figure = ["import matplotlib.pyplot as plt", "plt.plot([1, 2])", "t = plt.title('It rises')"]
    built = run(build, {"part/one": script(*figure)})
    assert built.status == 0, built.errors
    page = built.read("gallery/part/one.html")
    assert 'role="img" aria-label="It rises"' in page
    assert re.search(r"<text [^>]*>It rises</text>", page)


def test_figure_without_title_stops_the_build(build: Build) -> None:
    figure = ["import matplotlib.pyplot as plt", "lines = plt.plot([1, 2])"]
    built = run(build, {"part/one": script(*figure)})
    assert built.status != 0
    assert re.search(r"gallery/part/one\.py:\d+: a figure of this cell has no title", built.errors)


def test_figure_of_a_failed_script_does_not_reach_the_next(build: Build) -> None:
    figure = ["import matplotlib.pyplot as plt", "lines = plt.plot([1, 2])"]
    built = run(build, {"part/a": script(*figure), "part/b": script("print(2)")})
    assert "gallery/part/b.py" not in built.errors
    assert 'role="img"' not in built.read("gallery/part/b.html")
