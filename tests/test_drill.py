"""The drill: the scheduler beside a published one, and the page in a real browser."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import ROOT, Build, Built, served
from fsrs import Card, Rating, Scheduler, State
from playwright.sync_api import Browser, BrowserContext, Page
from sphinx.cmd.build import build_main

EXTENSIONS = ["strict_doctest", "accessibility", "drill"]
STATIC = ROOT / "conf" / "static"
KEY = "pytorch-answered.drill"
CONF = f"""\
language = "en"
html_theme = "furo"
html_copy_source = html_show_sourcelink = False
html_static_path = [{str(STATIC)!r}]
html_css_files = ["site.css"]
templates_path = ["templates"]
doctest_test_doctest_blocks = ""
checked_examples = "none.json"
"""
TEMPLATE = '{% extends "!page.html" %}{% block body %}{{ accessible(super()) }}{% endblock %}'
INDEX = "# Home\n\n```{toctree}\nbeta/index\nalpha/index\ndrill\n```\n"
DRILL = "---\nno-search: true\n---\n# Drill\n\nThe cards.\n\n```{drill}\n```\n"


def chapter(name: str, level: str = "core") -> str:
    answer = f"Because `{name}` is so. " + "word " * 40
    return (
        f"---\nlevel: {level}\n---\n# Why is `{name}` so?\n\n"
        f":::{{short-answer}}\n{answer}\n:::\n\n"
        ":::{myth} It is not\n:truth: It is.\n\nText.\n:::\n"
        + ":::{follow-up} Why?\nSo.\n:::\n"
        * 3
    )


def part(title: str, *stems: str) -> str:
    return f"# {title}\n\n```{{chapters}}\n" + "\n".join(stems) + "\n```\n"


PAGES = {
    "index.md": INDEX,
    "drill.md": DRILL,
    "beta/index.md": part("The Beta part", "two", "one"),
    "beta/one.md": chapter("b1"),
    "beta/two.md": chapter("b2", "working"),
    "alpha/index.md": part("Alpha & more", "three"),
    "alpha/three.md": chapter("a3"),
}


def run(build: Build, pages: dict[str, str | None] = PAGES, **more: object) -> Built:
    return build(pages, extensions=EXTENSIONS, conf=CONF, **more)


ONCE: list[Built] = []


@pytest.fixture
def built(build: Build, tmp_path: Path) -> Built:
    """Return the good project, built once for all tests that only look at it."""
    if not ONCE:
        template = tmp_path / "conf" / "templates" / "page.html"
        template.parent.mkdir(parents=True)
        template.write_text(TEMPLATE, "utf-8")
        ONCE.append(run(build))
    assert ONCE[0].status == 0, ONCE[0].errors
    return ONCE[0]


@pytest.fixture
def address(built: Built) -> Iterator[str]:
    """Serve the project below a path, and return the drill's address."""
    with served(built.out.parent) as address:
        yield f"{address}{built.out.name}/drill.html"


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Open a phone-sized browser of a reader who wants less motion; no script may fail in it."""
    context = browser.new_context(
        viewport={"width": 360, "height": 740}, reduced_motion="reduce", timezone_id="Asia/Tokyo"
    )
    # Noon, or what is due would depend on when the test runs.
    context.clock.install(time="2026-11-30T12:00:00+09:00")
    problems = []
    context.on("weberror", lambda error: problems.append(error.error))
    yield context
    context.close()
    assert problems == []


@pytest.fixture
def page(context: BrowserContext, address: str) -> Page:
    page = context.new_page()
    page.goto(address)
    return page


def grade(page: Page, name: str) -> None:
    page.get_by_role("button", name="Show the answer").click()
    page.get_by_role("button", name=name).click()


def question(page: Page) -> str:
    return page.locator(".drill-question").inner_text()


def status(page: Page) -> str:
    return page.locator(".drill").get_by_role("status").inner_text()


def message(page: Page) -> str:
    return page.locator(".drill [role=alert]").text_content()


def stored(page: Page) -> dict[str, dict[str, object]]:
    return json.loads(page.evaluate(f"localStorage.getItem('{KEY}')"))["cards"]


def let_pass(page: Page, days: int) -> None:
    """Move all that the browser keeps into the past, and open the page again."""
    page.evaluate(
        """([key, days]) => {
            const data = JSON.parse(localStorage.getItem(key));
            const back = (time) => { const date = new Date(time);
                                     return date.setDate(date.getDate() - days); };
            for (const card of Object.values(data.cards)) {
                card.due = back(card.due);
                card.reviewed = back(card.reviewed);
            }
            localStorage.setItem(key, JSON.stringify(data));
        }""",
        [KEY, days],
    )
    page.reload()


def reset(page: Page) -> None:
    page.get_by_role("button", name="Reset", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    page.wait_for_function("document.querySelector('.drill-status').innerText.includes('reset')")


def export(page: Page, path: Path) -> Path:
    with page.expect_download() as download:
        page.get_by_role("button", name="Export progress").click()
    download.value.save_as(path)
    return path


def bring_in(page: Page, path: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import progress").click()
    chooser.value.set_files(path)


# The scheduler.


def test_scheduler_gives_what_the_published_one_gives(page: Page) -> None:
    step = (timedelta(minutes=10),)
    published = Scheduler(learning_steps=step, relearning_steps=step, enable_fuzzing=False)
    draw = random.Random(0)
    histories = [
        [(draw.randint(1, 4), draw.choice([0, 0, 1, 2, 5, 30, 400])) for _ in range(12)]
        for _ in range(200)
    ]
    ours = page.evaluate(
        """histories => histories.map((history) => {
            let memory = null;
            return history.map(([grade, days]) => (memory = fsrs.review(memory, grade, days)));
        })""",
        histories,
    )
    for history, results in zip(histories, ours, strict=True):
        card, now = Card(), datetime(2026, 1, 1, 12, tzinfo=UTC)
        for (grade, days), got in zip(history, results, strict=True):
            now += timedelta(days=days)
            card, _ = published.review_card(card, Rating(grade), now)
            assert got["stability"] == pytest.approx(card.stability, rel=1e-9)
            assert got["difficulty"] == pytest.approx(card.difficulty, rel=1e-9)
            assert got["learning"] is (card.state != State.Review)
            wait = timedelta(days=got.get("days", 0), minutes=got.get("minutes", 0))
            assert wait == card.due - now


# The page.


def test_cards_stand_in_reading_order_with_their_answers(built: Built) -> None:
    page = built.read("drill.html")
    assert re.findall(r'data-card="([^"]+)" data-level="([^"]+)"', page) == [
        ("beta/two", "working"),
        ("beta/one", "core"),
        ("alpha/three", "core"),
    ]
    code = '<code class="docutils literal notranslate"><span class="pre">{}</span></code>'
    assert f"<summary>Why is {code.format('a3')} so?</summary>" in page
    assert f"<p>Because {code.format('a3')} is so. word word" in page
    assert '<option value="alpha">Alpha &amp; more</option>' in page
    assert 'href="alpha/three.html">Read the chapter</a>' in page


def test_drill_follows_its_chapters(build: Build) -> None:
    assert "renamed" not in run(build).read("drill.html")
    changed = {"index.md": INDEX, "alpha/three.md": chapter("renamed"), "beta/one.md": None}
    changed["beta/index.md"] = part("Beta", "two")
    page = run(build, changed).read("drill.html")
    assert "renamed" in page
    assert "beta/one" not in page
    assert page.count("data-card") == 2


def test_build_without_a_change_writes_no_page_again(build: Build, tmp_path: Path) -> None:
    page = run(build).out / "drill.html"
    before = page.stat().st_mtime_ns
    args = ["-q", "-c", tmp_path / "conf", "-d", tmp_path / "html-doctrees"]
    assert build_main([*map(str, args), str(tmp_path / "docs"), str(page.parent)]) == 0
    assert page.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (":::{short-answer}", ":::{note}", r"alpha/three\.md:4: WARNING: 0 short answers"),
        (
            "Because `a3` is so. " + "word " * 40,
            "```\nno words\n```",
            r"alpha/three\.md:6: .* has 0 w",
        ),
    ],
)
def test_card_without_an_answer_is_an_error_with_file_and_line(
    build: Build, old: str, new: str, says: str
) -> None:
    assert old in PAGES["alpha/three.md"]
    wrong = {"alpha/three.md": PAGES["alpha/three.md"].replace(old, new)}
    done = run(build, {**PAGES, **wrong})
    assert done.status == 1
    assert re.search(says, done.errors), done.errors


def test_other_pages_load_nothing_and_search_holds_no_card_twice(built: Built) -> None:
    assert "_static/drill." in built.read("drill.html")
    assert "_static/drill." not in built.read("alpha/three.html")
    index = json.loads(built.read("searchindex.js").removeprefix("Search.setIndex(").rstrip(")"))
    found = {index["docnames"][number] for number in index["terms"]["word"]}
    assert "alpha/three" in found
    assert "drill" not in found


def test_drill_is_small(built: Built) -> None:
    scripts = b"".join(
        (STATIC / name).read_bytes() for name in ("drill.js", "fsrs.js", "drill.css")
    )
    page = built.read("drill.html")
    cards = page[page.index('class="cards') : page.rindex("</details>")].encode()
    # A hundred chapters, though these three alone compress worse than they would among them.
    assert len(gzip.compress(scripts)) + 33 * len(gzip.compress(cards)) < 60_000


def test_grade_reload_and_come_back(page: Page) -> None:
    assert status(page) == "0 due, 3 new, 0 later."
    assert question(page) == "Why is b2 so?"
    assert not page.locator(".drill-answer").is_visible()
    grade(page, "Good")
    assert status(page) == "Good: comes back in 2 days. 0 due, 2 new, 1 later."
    assert question(page) == "Why is b1 so?"
    page.reload()
    assert status(page) == "0 due, 2 new, 1 later."
    grade(page, "Easy")
    grade(page, "Again")
    # Nothing else is left, so a card of this sitting comes at once.
    assert question(page) == "Why is a3 so?"
    grade(page, "Good")
    assert question(page) == "Nothing is due. The next card comes back tomorrow."
    assert page.evaluate("document.activeElement.className") == "drill-question"
    assert not page.get_by_role("button", name="Show the answer").is_visible()
    let_pass(page, 2)
    assert status(page) == "2 due, 0 new, 1 later."
    page.get_by_role("button", name="Show the answer").click()
    good = page.get_by_role("button", name="Good").inner_text()
    assert int(re.search(r"(\d+) days", good)[1]) > 2


def test_a_known_card_does_not_come_before_its_day(page: Page) -> None:
    """Just before midnight the next day is near, yet what is known waits for it."""
    page.clock.set_fixed_time("2026-11-30T23:50:00+09:00")
    page.reload()
    grade(page, "Good")
    grade(page, "Again")
    grade(page, "Again")
    grade(page, "Good")
    grade(page, "Good")
    assert status(page).endswith("0 due, 0 new, 3 later.")
    assert question(page) == "Nothing is due. The next card comes back in 10 minutes."


def test_cards_come_back_at_the_readers_midnight(page: Page) -> None:
    grade(page, "Good")
    card = stored(page)["beta/two"]
    due = page.evaluate("due => new Date(due).toString()", card["due"])
    assert " 00:00:00 GMT+0900" in due
    days = page.evaluate(
        "card => (card.due - new Date(card.reviewed).setHours(0, 0, 0, 0)) / 864e5", card
    )
    assert days == 2


def test_keyboard_alone(page: Page) -> None:
    page.get_by_role("button", name="Show the answer").focus()
    page.keyboard.press("1")  # no grade before the answer is seen
    assert status(page) == "0 due, 3 new, 0 later."
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.className") == "drill-answer"
    assert "Because b2 is so." in page.locator(".drill-answer").inner_text()
    page.keyboard.press("Control+3")
    page.keyboard.press("9")
    assert status(page) == "0 due, 3 new, 0 later."
    page.keyboard.press("3")
    assert status(page).startswith("Good: comes back in 2 days.")
    page.keyboard.press("Space")  # the next card's button has the focus
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText").startswith("4 Easy"):
            break
    page.keyboard.press("Enter")
    assert status(page).startswith("Easy: comes back in 8 days.")


def test_filters_by_part_and_level_stay_in_the_address(page: Page, address: str) -> None:
    page.get_by_role("combobox", name="Part").select_option("The Beta part")
    assert status(page) == "0 due, 2 new, 0 later."
    page.get_by_role("combobox", name="Level").select_option("core")
    assert question(page) == "Why is b1 so?"
    assert page.url == f"{address}?part=beta&level=core"
    page.reload()
    assert question(page) == "Why is b1 so?"
    page.get_by_role("combobox", name="Level").select_option("internals")
    assert question(page) == "No card: choose another part or level."
    page.goto(f"{address}?part=nonsense")
    assert status(page) == "0 due, 3 new, 0 later."


def test_export_reset_import(page: Page, tmp_path: Path) -> None:
    grade(page, "Good")
    before = stored(page)
    saved = export(page, tmp_path / "saved.json")
    assert re.fullmatch(r"[\x20-\x7e\n]+", saved.read_text("utf-8"))
    page.get_by_role("button", name="Reset", exact=True).click()
    assert "Forget your progress on 1 card?" in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    assert stored(page) == before
    page.get_by_role("button", name="Reset", exact=True).click()
    page.get_by_role("button", name="Keep it").click()
    assert stored(page) == before
    reset(page)
    assert status(page) == "Progress reset. 0 due, 3 new, 0 later."
    bring_in(page, saved)
    page.wait_for_function("document.querySelector('.drill-status').innerText.includes('newer')")
    assert status(page) == "saved.json: 1 of 1 card were newer. 0 due, 2 new, 1 later."
    assert stored(page) == before


def test_import_keeps_what_was_reviewed_last(page: Page, tmp_path: Path) -> None:
    grade(page, "Good")
    old = export(page, tmp_path / "old.json")
    data = json.loads(old.read_text("utf-8"))
    record = data["cards"]["beta/two"]
    data["cards"]["gone/chapter"] = record
    data["cards"]["alpha/three"] = record
    other = tmp_path / "other.json"
    other.write_text(json.dumps(data), "utf-8")
    let_pass(page, 3)
    grade(page, "Good")
    mine = stored(page)["beta/two"]
    # What the file says of this card is older than what the browser keeps.
    data["cards"]["beta/two"] = {**record, "reviewed": 1, "due": 2}
    other.write_text(json.dumps(data), "utf-8")
    bring_in(page, other)
    page.wait_for_function("document.querySelector('.drill-status').innerText.includes('newer')")
    assert status(page).startswith("other.json: 2 of 3 cards were newer.")
    kept = stored(page)
    assert kept["beta/two"] == mine
    assert kept["alpha/three"] == record
    assert kept["gone/chapter"] == record  # perhaps of a newer edition: not ours to drop


GOOD = {"stability": 2.3, "difficulty": 5.0, "learning": False, "reviewed": 1000, "due": 2000}


def progress(cards: object, **more: object) -> str:
    data = {"format": "PyTorch, Answered: drill progress", "version": 1, "cards": cards}
    return json.dumps({**data, **more})


REFUSED = {
    "cut short": (progress({"beta/two": GOOD})[:-9], "it is not JSON, or was cut short"),
    "empty": ("", "it is not JSON, or was cut short"),
    "an image": ("\x89PNG\x00", "it is not JSON, or was cut short"),
    "null": ("null", "it was not exported from this drill"),
    "a list": ("[1]", "it was not exported from this drill"),
    "foreign": ('{"cards": {}}', "it was not exported from this drill"),
    "newer": (progress({}, version=2), "it has version 2, and this page reads version 1"),
    "no cards": (progress([]), "its cards are missing"),
    "no name": (progress({"__proto__": GOOD}), '"__proto__" is no card\'s name'),
    **{
        f"{field} {value!r}": (
            progress({"alpha/three": GOOD, "beta/two": {**GOOD, field: value}}),
            'what it says of "beta/two" is damaged',
        )
        for field, value in [
            ("stability", 0),
            ("stability", "2"),
            ("stability", None),
            ("difficulty", 11),
            ("learning", 1),
            ("reviewed", 1.5),
            ("reviewed", -1),
            ("due", 1e300),
            ("due", 999),
        ]
    },
    "no record": (progress({"beta/two": None}), 'what it says of "beta/two" is damaged'),
}


def test_damaged_and_foreign_files_are_refused_and_nothing_is_lost(
    page: Page, tmp_path: Path
) -> None:
    grade(page, "Good")
    before = stored(page)
    for name, (text, why) in REFUSED.items():
        file = tmp_path / f"{name.replace(' ', '-')}.json"
        file.write_text(text, "utf-8")
        bring_in(page, file)
        page.wait_for_function(
            "name => document.querySelector('.drill-message').innerText.startsWith(name)",
            arg=file.name,
        )
        assert message(page) == f"{file.name} was refused: {why}. Your progress is as it was."
        assert stored(page) == before, name
    large = tmp_path / "large.json"
    large.write_bytes(b" " * 5_000_001)
    bring_in(page, large)
    page.wait_for_function("document.querySelector('.drill-message').innerText.includes('large')")
    assert stored(page) == before
    grade(page, "Good")
    assert message(page) == ""
    assert len(stored(page)) == 2


def test_damaged_store_is_left_as_it_is_until_reset(page: Page, tmp_path: Path) -> None:
    damaged = progress({"beta/two": GOOD})[:-9]
    page.evaluate("([key, text]) => localStorage.setItem(key, text)", [KEY, damaged])
    page.reload()
    assert message(page).startswith(
        "The progress kept in this browser cannot be read: it is not JSON, or was cut short."
    )
    assert not page.get_by_role("button", name="Show the answer").is_visible()
    good = tmp_path / "good.json"
    good.write_text(progress({"alpha/three": GOOD}), "utf-8")
    bring_in(page, good)
    page.wait_for_timeout(200)
    assert message(page).startswith("The progress kept in this browser cannot be read")
    assert page.evaluate(f"localStorage.getItem('{KEY}')") == damaged
    assert export(page, tmp_path / "copy.json").read_text("utf-8") == damaged
    reset(page)
    assert status(page) == "Progress reset. 0 due, 3 new, 0 later."
    assert message(page) == ""
    grade(page, "Good")
    assert list(stored(page)) == ["beta/two"]


def test_two_tabs_stay_consistent(page: Page, context: BrowserContext, address: str) -> None:
    other = context.new_page()
    other.goto(address)
    grade(page, "Good")
    other.wait_for_function(
        "document.querySelector('.drill-question').innerText === 'Why is b1 so?'"
    )
    assert status(other) == "0 due, 2 new, 1 later."
    # A card half done stays, though the other tab goes on with another one.
    page.get_by_role("combobox", name="Part").select_option("Alpha & more")
    other.get_by_role("button", name="Show the answer").click()
    grade(page, "Easy")
    other.wait_for_timeout(200)
    assert other.locator(".drill-answer").is_visible()
    other.get_by_role("button", name="Hard").click()
    assert set(stored(page)) == {"beta/two", "alpha/three", "beta/one"}
    reset(page)
    other.wait_for_function(
        "document.querySelector('.drill-status').innerText === '0 due, 3 new, 0 later.'"
    )


def test_browser_that_keeps_nothing_says_so(browser: Browser, address: str, tmp_path: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    # Such a frame has no storage, like a browser that blocks it.
    page.set_content(f'<iframe sandbox="allow-scripts allow-downloads" src="{address}"></iframe>')
    frame = page.frame_locator("iframe")
    said = frame.locator(".drill-message").text_content()
    assert said.startswith("This browser keeps nothing for this page (SecurityError)")
    frame.get_by_role("button", name="Show the answer").click()
    frame.get_by_role("button", name="Good").click()
    assert frame.get_by_role("status").inner_text().endswith("0 due, 2 new, 1 later.")
    with page.expect_download() as download:
        frame.get_by_role("button", name="Export progress").click()
    download.value.save_as(tmp_path / "saved.json")
    data = json.loads((tmp_path / "saved.json").read_text("utf-8"))
    assert list(data["cards"]) == ["beta/two"]
    context.close()


def test_offline_once_loaded_and_from_an_unzipped_folder(
    page: Page, context: BrowserContext, built: Built, tmp_path: Path
) -> None:
    context.set_offline(True)
    grade(page, "Good")
    export(page, tmp_path / "saved.json")
    folder = context.new_page()
    folder.goto((built.out / "drill.html").as_uri())
    grade(folder, "Good")
    folder.reload()
    assert status(folder) == "0 due, 2 new, 1 later."


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_no_violation_and_nothing_scrolls_sideways(
    page: Page, width: int, theme: str
) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    page.emulate_media(color_scheme=theme)

    def check() -> None:
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    check()
    page.get_by_role("button", name="Show the answer").click()
    page.evaluate("for (const block of document.querySelectorAll('details')) block.open = true")
    check()
    page.get_by_role("button", name="Good").click()
    page.evaluate("document.querySelector('.drill-message').textContent = 'Refused.'")
    page.get_by_role("button", name="Reset", exact=True).click()
    check()


def test_grades_are_seen_on_a_phone_and_large_enough_for_a_thumb(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 560})
    page.get_by_role("button", name="Show the answer").click()
    sizes = [button.bounding_box() for button in page.locator(".drill-grades button").all()]
    assert len(sizes) == 4
    assert min(min(size["width"], size["height"]) for size in sizes) >= 44
    assert max(size["y"] + size["height"] for size in sizes) <= 560


def test_less_motion_is_respected(page: Page) -> None:
    style = "getComputedStyle(document.documentElement).scrollBehavior"
    assert page.evaluate(style) == "auto"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(style) == "smooth"


def test_without_javascript_the_cards_can_be_read(browser: Browser, built: Built) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((built.out / "drill.html").as_uri())
    assert not page.locator(".drill").is_visible()
    assert not page.locator(".cards").get_by_text("Because b1").is_visible()
    page.locator(".cards summary").filter(has_text="b1").click()
    assert page.locator(".cards").get_by_text("Because b1 is so.").is_visible()
    context.close()
