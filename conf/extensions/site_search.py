"""Search that understands a pasted message: the index, and the page that searches it.

A passage is what a result leads to: a section, or a box with an anchor (a myth, a follow-up
question). Its words are weighed by where they stand: a title, a message that is shown (what an
exception says, a warning that is printed), prose, code. The front matter's ``messages`` and
``also_asked`` count for the passage of their page that has most of their words, and
``also_asked`` for the top of the page too. Mention an older wording in the passage it belongs to
where that is not the one.

The build leaves in the output folder, instead of Sphinx's own index::

    search/index.json          the pages, how many passages each has, and all words
    search/words/<number>.json for each of some neighbouring words, the passages it is found in
    search/text/<number>.json  a page's passages: anchor, title and text, for results and excerpts

So a query fetches what its own words and its results need, however long the book is.

site_search.js ranks by BM25, whose part for a word in a passage is worked out here: one digit, 1
to 9. How text becomes words is written once, as the patterns below; they travel in the index, so
they keep to what Python and JavaScript read alike. A number, shape, device number, address or
path is no word: it differs from reader to reader.
"""

from __future__ import annotations

import doctest
import hashlib
import json
import math
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from docutils import nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

PATTERNS = {
    # A stack's frame, an address on the web or in memory, a path, a file.
    "noise": r'File "[^"]*", line \d+(?:, in \S+)?|\w+://\S+|\b0x[0-9a-fA-F]+|'
    r"(?:^|[\s\"'(=])~?(?:[A-Za-z]:)?[\\/][\w.\\/+-]+|[\w./\\-]+\.(?:py|ipynb|cpp|cu|h)\b",
    "word": r"[A-Za-z0-9_]+",
    "part": r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+",
    "stem": r"^([a-z]{3,}?)(?:at(?:ions?|ing|ed|es?)|ings?|ions?|ed|ly|es|e|(?<!s)s)$",
}
NOISE, WORD, PART, STEM = (re.compile(pattern, re.ASCII) for pattern in PATTERNS.values())
# Words that tell nothing; a query made of nothing else finds nothing.
COMMON = frozenset(
    WORD.findall(
        "and are as at be because but by can do does for from had has have how if in into is it "
        "its may must my of on or so some such than that the their them then there these they "
        "this those to was were what when where which while who why will with would you your"
    )
)

WEIGHTS = {"title": 6.0, "asked": 4.0, "said": 4.0, "prose": 1.0, "code": 0.5}
SATURATION, LENGTH = 2.0, 0.5  # BM25's k and b
TOGETHER = 8  # words in one file: a word begun brings its neighbours, one pasted little else
# A line of output says something, and shows no value, if it has so many words and such a share
# of letters.
SENTENCE, PROSE = 4, 0.75


class Passage(NamedTuple):
    """What a result leads to: its anchor ("" for a page's top), and its text by field."""

    anchor: str
    fields: dict[str, list[str]]


def stem(word: str) -> str:
    """Return a word without its ending; a crude one, the same for index and query."""
    found = STEM.match(word)
    return found[1] if found else word


def words(text: str) -> list[str]:
    """Return a text's words: names whole and in parts, all in lower case, without endings."""
    found = []
    for word in WORD.findall(NOISE.sub(" ", text)):
        if word[0].isdigit():
            continue
        whole = word.strip("_").lower()
        parts = [part.lower() for part in PART.findall(word)]
        kept = [item for item in dict.fromkeys([whole, *parts]) if len(item) > 1]
        found += [stem(item) for item in kept if item not in COMMON]
    return found


def said(output: str) -> Iterator[str]:
    """Yield the lines of an output that say something; the others show values."""
    for line in output.splitlines():
        letters = sum(character.isalpha() or character == " " for character in line)
        if len(line.split()) >= SENTENCE and letters > PROSE * len(line):
            yield line


def split_block(text: str) -> Iterator[tuple[str, str]]:
    """Yield (field, text) for the code of a block of examples, and for what they say."""
    for example in doctest.DocTestParser().get_examples(text):
        yield "code", example.source
        if example.exc_msg:
            yield "said", example.exc_msg.strip()
        else:
            yield from (("said", line) for line in said(example.want))


def fields_of(node: nodes.Node) -> Iterator[tuple[str, str]]:
    """Yield (field, text) for a paragraph or block."""
    text = node.astext()
    if isinstance(node, nodes.literal_block | nodes.doctest_block):
        if ">>> " in text:
            yield from split_block(text)
        elif "sphx-glr-script-out" in node["classes"]:
            yield from (("said", line) for line in said(text))
        else:
            yield "code", text
    else:
        yield "prose", " ".join(text.split())


def opens_passage(node: nodes.Node) -> bool:
    """Tell whether a result can lead to a node: a section, or a box that has an anchor."""
    box = isinstance(node, nodes.Admonition) or node.tagname == "details"
    return isinstance(node, nodes.section) or (box and bool(node["ids"]))


def passages(doctree: nodes.document) -> list[Passage]:
    """Return a page's passages in reading order; those that only list links are left out."""
    found: list[Passage] = []

    def fill(element: nodes.Element, passage: Passage | None) -> None:
        for node in element.children:
            if opens_passage(node):
                anchor = node["ids"][0] if passage else ""
                found.append(Passage(anchor, {field: [] for field in WEIGHTS}))
                fill(node, found[-1])
            elif isinstance(node, nodes.raw | nodes.Invisible | nodes.Text) or passage is None:
                continue
            elif isinstance(node, nodes.title) or node.tagname == "summary":
                if not passage.fields["title"]:
                    passage.fields["title"].append(" ".join(node.astext().split()))
            elif isinstance(node, nodes.TextElement):
                for field, text in fields_of(node):
                    passage.fields[field].append(text)
            else:
                fill(node, passage)

    fill(doctree, None)
    return [
        passage
        for passage in found
        if passage.fields["title"] != ["See also"]
        and (passage.fields["prose"] or passage.fields["code"] or not passage.anchor)
    ]


def tally(passage: Passage) -> Counter[str]:
    """Return how much each word counts in a passage, before saturation."""
    counts: Counter[str] = Counter()
    for field, texts in passage.fields.items():
        for text in texts:
            for word in words(text):
                counts[word] += WEIGHTS[field]
    return counts


def rarity(number: int, total: int) -> float:
    """Return BM25's weight of a word found in so many of all passages: the rarer, the more."""
    return math.log(1 + (total - number + 0.5) / (number + 0.5))


def saturated(tallies: list[Counter[str]]) -> list[dict[str, float]]:
    """Return BM25's part, below 1, for each word in each passage: long ones count less."""
    sizes = [sum(counts.values()) for counts in tallies]
    mean = sum(sizes) / max(len(sizes), 1)
    slopes = [SATURATION * (1 - LENGTH + LENGTH * size / mean) for size in sizes]
    return [
        {word: count / (count + slope) for word, count in counts.items()}
        for counts, slope in zip(tallies, slopes, strict=True)
    ]


def give_to_nearest(texts: Iterable[str], candidates: list[Passage]) -> None:
    """Add each text, as asked, to the passage that it finds among a page's passages."""
    parts = saturated([tally(passage) for passage in candidates])
    found = Counter(word for passage in parts for word in passage)
    for text in texts:
        rare = {word: rarity(found[word], len(parts)) for word in set(words(text))}
        near = [  # a sum that does not depend on the order of a set
            math.fsum(rare[word] * passage[word] for word in rare.keys() & passage.keys())
            for passage in parts
        ]
        candidates[near.index(max(near))].fields["asked"].append(text)


def postings(listed: Iterable[Passage]) -> dict[str, list[int]]:
    """Return, for each word in order, where it is found: 10 x steps from the one before + digit."""
    found: dict[str, list[int]] = defaultdict(list)
    last: Counter[str] = Counter()
    for number, parts in enumerate(saturated([tally(passage) for passage in listed])):
        for word, part in parts.items():
            found[word].append((number - last[word]) * 10 + max(1, round(9 * part)))
            last[word] = number
    return dict(sorted(found.items()))


def passages_of(env: BuildEnvironment) -> dict[str, list[Passage]]:
    """Return the passages of each page, by docname."""
    if not hasattr(env, "passages"):
        env.passages = {}
    return env.passages


def keep_passages(app: Sphinx, doctree: nodes.document) -> None:
    """Keep a page's passages as it is read."""
    passages_of(app.env)[app.env.docname] = passages(doctree)


def forget_passages(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop a page that is gone or about to be read again."""
    passages_of(env).pop(docname, None)


def merge_passages(
    app: Sphinx, env: BuildEnvironment, docnames: Iterable[str], other: BuildEnvironment
) -> None:
    """Take over what another reading process found."""
    passages_of(env).update(
        {doc: found for doc, found in passages_of(other).items() if doc in docnames}
    )


def leave_out_own_index(app: Sphinx) -> None:
    """Keep Sphinx from making and shipping its own index and search page."""
    app.builder.search = False


def listed(text: str | None) -> list[str]:
    """Return a list of the front matter, kept as JSON; none where chapters.py refuses it."""
    try:
        data = json.loads(text or "[]")
    except ValueError:
        return []
    return [item for item in data if isinstance(item, str)] if isinstance(data, list) else []


def write_json(path: Path, data: object) -> str:
    """Write a file of JSON, as short as it can be, and return its text."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return text


def write(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Write the index and the texts, and yield the search page, for a site and not for a book."""
    if app.builder.name != "html":
        return
    folder = Path(app.outdir, "search")
    shutil.rmtree(folder, ignore_errors=True)
    Path(app.outdir, "searchindex.js").unlink(missing_ok=True)  # of a build before this one
    pages: list[list[Any]] = []
    listed_passages: list[Passage] = []
    digest = hashlib.sha256()
    for docname, kept in sorted(passages_of(app.env).items()):
        found = [Passage(anchor, {**fields, "asked": []}) for anchor, fields in kept]
        if not found:
            continue
        given = app.env.metadata[docname]
        if {"nosearch", "no-search"} & given.keys():  # as Sphinx has it: the title alone
            found = found[:1]
            found[0].fields.update(said=[], prose=[], code=[])
        also_asked = listed(given.get("also_asked"))
        give_to_nearest([*listed(given.get("messages")), *also_asked], found)
        top = found[0].fields["asked"]
        top += [text for text in also_asked if text not in top]
        shown = [
            [anchor, fields["title"][0], "\n".join(fields["said"] + fields["prose"])]
            for anchor, fields in found
        ]
        written = write_json(folder / "text" / f"{len(pages)}.json", shown)
        digest.update(written.encode())
        pages.append([app.builder.get_relative_uri("search", docname), shown[0][1], len(found)])
        listed_passages += found
    where = postings(listed_passages)
    found_in = list(where.values())
    for number, start in enumerate(range(0, len(found_in), TOGETHER)):
        some = found_in[start : start + TOGETHER]
        digest.update(write_json(folder / "words" / f"{number}.json", some).encode())
    index = {
        "patterns": PATTERNS,
        "common": sorted(COMMON),
        "together": TOGETHER,
        "pages": pages,
        "words": list(where),
    }
    digest.update(write_json(folder / "index.json", index).encode())
    version = digest.hexdigest()[:8]
    yield "search", {"search_version": version}, "search.html"


def page_assets(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Bring the search page its script and style."""
    if app.builder.name == "html" and pagename == "search":
        app.add_js_file("site_search.js", type="module")
        app.add_css_file("site_search.css")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect each of the above to its event."""
    app.connect("builder-inited", leave_out_own_index)
    app.connect("doctree-read", keep_passages)
    app.connect("env-purge-doc", forget_passages)
    app.connect("env-merge-info", merge_passages)
    app.connect("html-collect-pages", write)
    app.connect("html-page-context", page_assets, priority=400)  # before others copy the list
    return {"env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
