"""``-b anki`` writes the chapters as a deck of cards for Anki.

A card asks a chapter's title and answers with its short answer and a link to the page; its tags are
the part and the level, as in ``part::autograd level::core``. New cards come in reading order.

Anki knows a card again by ids that never change: that of the note type, below, and for each note
one made from the name of its chapter. So a learner who imports a later deck keeps the history of
each card and gets its new text, as long as the fields of the note type stay the same. Renaming a
chapter makes a new card. What is later is told by `archive.moment`.
"""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from contextlib import closing
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import genanki
from archive import moment, write_zip
from chapters import chapters_of
from gathered import reading_order
from sphinx.builders import Builder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

    from sphinx.application import Sphinx

DECK_ID = 1_764_560_001
MODEL_ID = 1_764_560_002
FIELDS = ("Question", "Answer", "Page")
FRONT = "{{Question}}"
BACK = '{{FrontSide}}<hr id="answer">{{Answer}}<p><a href="{{Page}}">Read the chapter</a></p>'
CSS = ".card { font: 20px/1.4 sans-serif; margin: 1em auto; max-width: 36em; }"


def guid(docname: str) -> str:
    """Return the id of a chapter's note, the same for ever."""
    return genanki.guid_for("pytorch-answered", docname)


def deck(name: str, cards: Iterable[tuple[str, dict[str, Any]]], address: str) -> genanki.Deck:
    """Return the deck of (chapter, what is known of it); `address` is where the pages are."""
    model = genanki.Model(
        MODEL_ID,
        f"{name}: question",
        fields=[{"name": field} for field in FIELDS],
        templates=[{"name": "Question", "qfmt": FRONT, "afmt": BACK}],
        css=CSS,
    )
    made = genanki.Deck(DECK_ID, name)
    for place, (docname, info) in enumerate(cards, 1):
        question, answer = (escape(info[key], quote=False) for key in ("question", "answer"))
        fields = [question, answer, f"{address}{docname}.html"]
        tags = [f"part::{docname.partition('/')[0]}", f"level::{info['level']}"]
        note = genanki.Note(model, fields, tags=tags, guid=guid(docname), due=place)
        made.add_note(note)
    return made


def write_package(made: genanki.Deck, target: Path, when: int) -> None:
    """Write the file that Anki imports; genanki's own would hold the time it was written."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "collection.anki2")
        with closing(sqlite3.connect(database)) as connection:
            ids = itertools.count(when * 1000)
            genanki.Package(made).write_to_db(connection.cursor(), when, ids)
            connection.commit()
        write_zip(target, [(database.name, database.read_bytes()), ("media", b"{}")], when)


class AnkiBuilder(Builder):
    """Write the deck."""

    name = "anki"
    epilog = "The deck is in %(outdir)s."

    def get_outdated_docs(self) -> str:
        """Say what is written."""
        return "the deck"

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """Return nothing: a deck has no pages."""
        return ""

    def prepare_writing(self, docnames: Set[str]) -> None:
        """Do nothing: a deck has no pages."""

    def cards(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the chapters in reading order."""
        known = chapters_of(self.env)
        return ((name, known[name]) for name in reading_order(self.env) if name in known)

    def write_documents(self, docnames: Set[str]) -> None:
        """Write all cards, whatever was outdated."""
        made = deck(self.config.project, self.cards(), self.config.html_baseurl)
        write_package(made, Path(self.outdir, f"{self.config.epub_basename}.apkg"), moment())


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the builder."""
    app.setup_extension("chapters")
    app.add_builder(AnkiBuilder)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
