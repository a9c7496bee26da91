"""Save what a gallery script draws as SVG: matplotlib figures and Graphviz graphs.

Both functions are image scrapers of sphinx-gallery, which calls them after each cell. The files
go into the page through the ``inline-svg`` directive, with a text for readers who do not see them:
a figure's title, or a graph's nodes and edges in words.

A graph is drawn after the cell in which it becomes the value of a name, or of the last expression;
``torchviz.make_dot`` returns such graphs. pygraphviz brings Graphviz with it. A figure without a
title is an error, since nothing else says what it shows.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import graphviz
import matplotlib.pyplot as plt
import pygraphviz
from sphinx_gallery.scrapers import figure_rst, matplotlib_scraper

STYLE = {  # matplotlib: text stays text, ids that do not change, no background, nothing cut off
    "svg.fonttype": "none",
    "svg.hashsalt": "gallery",
    "savefig.transparent": True,
    "savefig.bbox": "tight",
    "figure.figsize": (5.5, 3.5),  # inches; a phone shows most of it
}


def figures(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the open figures and return reST that shows them.

    Raises ValueError, with file and line of the cell, for a figure without a title.
    """
    for figure in map(plt.figure, plt.get_fignums()):
        if not (figure.get_suptitle() or any(axes.get_title() for axes in figure.axes)):
            raise ValueError(
                f"{block_vars['src_file']}:{block.lineno}: a figure of this cell has no title; "
                "its title is also its description for those who do not see it."
            )
    metadata = {"Date": None, "Creator": None}
    rst = matplotlib_scraper(block, block_vars, gallery_conf, format="svg", metadata=metadata)
    return _inline(rst)


def graphs(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Lay out and save the graphs that this cell made and return reST that shows them."""
    drawn = block_vars.setdefault("drawn_graphs", [])
    rst = ""
    for value in list(block_vars["example_globals"].values()):
        if isinstance(value, graphviz.Digraph) and not any(value is graph for graph in drawn):
            drawn.append(value)
            graph = read_dot(value.source)
            path = Path(next(block_vars["image_path_iterator"])).with_suffix(".svg")
            path.write_text(draw(graph), "utf-8")
            rst += _inline(figure_rst([path], gallery_conf["src_dir"], describe(graph)))
    return rst


def _inline(rst: str) -> str:
    """Return sphinx-gallery's reST with its image directives replaced by ours."""
    return re.sub(r"\n +:(srcset|class): .*", "", rst.replace("image-sg::", "inline-svg::"))


def read_dot(source: str) -> pygraphviz.AGraph:
    """Return the graph of a DOT text, ready to be laid out.

    torchviz joins a saved tensor to its node by a line from the node, which would put the tensor
    below it, against the flow; here every such line starts at the tensor.
    """
    graph = pygraphviz.AGraph(string=source)
    graph.graph_attr["bgcolor"] = "transparent"
    for start, end, key in list(graph.edges(keys=True)):
        kept = graph.get_node(end).attr["fillcolor"] in {"lightblue", "orange"}
        if kept and graph.get_edge(start, end, key).attr["dir"] == "none":
            graph.delete_edge(start, end, key)
            graph.add_edge(end, start, key, dir="none")
    return graph


def draw(graph: pygraphviz.AGraph) -> str:
    """Return the graph as an SVG document, without the addresses that torchviz names nodes by."""
    svg = graph.draw(format="svg", prog="dot").decode()
    return re.sub(r"<title>.*?</title>\n|<!--.*?-->\n", "", svg, flags=re.DOTALL)


def describe(graph: pygraphviz.AGraph) -> str:
    """Return the graph in words: how many nodes, its arrows, and what its lines join."""
    texts = [node.attr["label"].replace(r"\N", str(node)) or str(node) for node in graph.nodes()]
    labels = [" ".join(text.split()) for text in texts]
    total, seen, names = Counter(labels), Counter(), {}
    for node, label in zip(graph.nodes(), labels, strict=True):
        seen[label] += 1
        names[node] = f"{label} {seen[label]}" if total[label] > 1 else label
    arrows, lines = [], []
    for edge in graph.edges():
        start, end = (names[node] for node in edge)
        if edge.attr["dir"] == "none":
            lines.append(f"{end} keeps {start}")
        else:
            arrows.append(f"{start} to {end}")
    text = f"Graph of {len(labels)} nodes"
    for heading, items in [("Arrows", arrows), ("Saved tensors", lines)]:
        if items:
            text += f". {heading}: {', '.join(items)}"
    return text + "."
