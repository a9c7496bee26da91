"""The deck for Anki: what is in the file, and what happens to a learner who imports it."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from pathlib import Path

import anki_deck
import pytest
from anki.collection import Collection, ImportAnkiPackageRequest
from conftest import Build

NAMES = ["strict_doctest", "chapters", "anki_deck"]
CONF = """
project = "A, B & C"
smartquotes = False
checked_examples = "none.json"
html_baseurl = "https://a.example/"
epub_basename = "book"
"""
INDEX = "# Home\n\n```{toctree}\nb/index\n```\n"
PART = "# B\n\n```{chapters}\nlate\nearly\n```\n"
WORDS = "It is `x < y` & more. " * 9
LATER = 86400


def chapter(question: str, level: str, words: str = WORDS) -> str:
    follow_ups = "".join(f":::{{follow-up}} Why?\n{n}.\n:::\n\n" for n in range(3))
    return (
        f"---\nlevel: {level}\n---\n# {question}\n\n:::{{short-answer}}\n{words}\n:::\n\n"
        f":::{{myth}} It is not\n:truth: It is.\n\nSee.\n:::\n\n{follow_ups}"
    )


PAGES = {
    "index.md": INDEX,
    "b/index.md": PART,
    "b/late.md": chapter("Is `x` < y?", "core"),
    "b/early.md": chapter("Who's?", "internals"),
}


@pytest.fixture
def deck(build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def make(when: int = 1_700_000_000, **pages: str) -> Path:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(when))
        changed = {f"b/{name}.md": text for name, text in pages.items()}
        built = build(PAGES | changed, extensions=NAMES, conf=CONF, builder="anki")
        assert built.status == 0, built.errors
        return (built.out / "book.apkg").rename(tmp_path / f"{when}.apkg")

    return make


def rows(package: Path, query: str) -> list[tuple[object, ...]]:
    """Ask the SQLite database inside a package."""
    database = package.with_suffix(".db")
    with zipfile.ZipFile(package) as archive:
        assert archive.namelist() == ["collection.anki2", "media"]
        database.write_bytes(archive.read("collection.anki2"))
    connection = sqlite3.connect(database)
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def test_each_chapter_is_a_card_in_reading_order(deck) -> None:
    package = deck()
    found = rows(package, "select flds, tags, due from notes join cards on nid = notes.id")
    answer = "It is x &lt; y &amp; more. " * 9
    assert found == [
        (
            f"Is x &lt; y?\x1f{answer.strip()}\x1fhttps://a.example/b/late.html",
            " part::b level::core ",
            1,
        ),
        (
            f"Who's?\x1f{answer.strip()}\x1fhttps://a.example/b/early.html",
            " part::b level::internals ",
            2,
        ),
    ]
    [(decks,)] = rows(package, "select decks from col")
    assert json.loads(decks)[str(anki_deck.DECK_ID)]["name"] == "A, B & C"


def test_ids_are_those_that_learners_have(deck) -> None:
    """Another number here makes every learner start again."""
    package = deck()
    assert rows(package, "select guid, mid from notes") == [
        (anki_deck.guid("b/late"), 1_764_560_002),
        (anki_deck.guid("b/early"), 1_764_560_002),
    ]
    assert anki_deck.guid("autograd/graph") == "JmB7J?A3Aw"
    [(models,)] = rows(package, "select models from col")
    [model] = json.loads(models).values()
    assert [field["name"] for field in model["flds"]] == ["Question", "Answer", "Page"]


def test_a_later_deck_keeps_the_history_and_brings_the_new_text(deck, tmp_path: Path) -> None:
    first = deck()
    changed = chapter("Is `x` < y?", "core", "Now it says this. " * 11)
    second = deck(1_700_000_000 + LATER, late=changed)
    collection = Collection(str(tmp_path / "learner.anki2"))
    collection.import_anki_package(ImportAnkiPackageRequest(package_path=str(first)))
    collection.decks.select(collection.decks.id_for_name("A, B & C"))
    card = collection.sched.getCard()
    assert "Is x &lt; y?" in card.question()
    collection.sched.answerCard(card, 3)
    studied = "select cid, ease from revlog", "select id, reps, due, ivl from cards order by id"
    before = [collection.db.all(query) for query in studied]

    log = collection.import_anki_package(ImportAnkiPackageRequest(package_path=str(second))).log
    assert (len(log.new), len(log.updated)) == (0, 2)
    assert [collection.db.all(query) for query in studied] == before
    assert before[0] == [[card.id, 3]]
    answer = collection.get_card(card.id).answer()
    collection.close()
    assert "Now it says this." in answer
    assert '<a href="https://a.example/b/late.html">Read the chapter</a>' in answer


def test_same_chapters_same_bytes(deck) -> None:
    first = deck().read_bytes()
    assert deck().read_bytes() == first


def test_chapter_without_an_answer_makes_no_deck(build: Build) -> None:
    silent = PAGES["b/late.md"].replace(WORDS, "")
    built = build(PAGES | {"b/late.md": silent}, extensions=NAMES, conf=CONF, builder="anki")
    assert built.status != 0
    assert "late.md:6: WARNING: the short answer has 0 words: write 40 to 80" in built.errors
