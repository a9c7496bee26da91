"use strict";

/* The drill: asks the cards listed on the page, keeps progress in this browser, and moves it to and
 * from files. Progress is one JSON text under one key, the same text that a file holds; it is read
 * anew before each change, so two tabs do not undo each other. Text that this page cannot read is
 * never written over: it can be exported as it is, and only a reset ends it. */

{
  const KEY = "pytorch-answered.drill";
  const FORMAT = "PyTorch, Answered: drill progress";
  const VERSION = 1;
  const LARGEST_FILE = 5_000_000;
  const MINUTE = 60_000;
  const AHEAD = 20 * MINUTE; // a card of this sitting need not wait when nothing else is left
  const GRADES = ["Again", "Hard", "Good", "Easy"];

  // Progress: from text and back.

  const isObject = (value) =>
    typeof value === "object" && value !== null && !Array.isArray(value);
  const isTime = (value) => Number.isInteger(value) && value > 0 && value < 8.64e15;
  const isRecord = (value) =>
    isObject(value) &&
    Number.isFinite(value.stability) && value.stability > 0 &&
    Number.isFinite(value.difficulty) && value.difficulty >= 1 && value.difficulty <= 10 &&
    typeof value.learning === "boolean" &&
    isTime(value.reviewed) && isTime(value.due) && value.due > value.reviewed;

  /** Return the records in a progress text, by card; an Error says what is wrong with it. */
  function parse(text) {
    let data;
    try {
      data = JSON.parse(text);
    } catch {
      throw new Error("it is not JSON, or was cut short");
    }
    if (!isObject(data) || data.format !== FORMAT) {
      throw new Error("it was not exported from this drill");
    }
    if (data.version !== VERSION) {
      throw new Error(`it has version ${data.version}, and this page reads version ${VERSION}`);
    }
    if (!isObject(data.cards)) throw new Error("its cards are missing");
    for (const [id, record] of Object.entries(data.cards)) {
      if (!/^[\w-]+\/[\w-]+$/.test(id)) throw new Error(`"${id}" is no card's name`);
      if (!isRecord(record)) throw new Error(`what it says of "${id}" is damaged`);
    }
    return data.cards;
  }

  const write = (cards) =>
    JSON.stringify({ format: FORMAT, version: VERSION, cards }, null, 1) + "\n";

  /** Return what was reviewed last here or there, and how many cards that was there. */
  function merge(here, there) {
    const newer = Object.entries(there).filter(
      ([id, record]) => !here[id] || record.reviewed > here[id].reviewed,
    );
    return { cards: { ...here, ...Object.fromEntries(newer) }, taken: newer.length };
  }

  // Days begin at the reader's midnight, so that tomorrow's cards are there in the morning.

  const midnight = (time) => new Date(time).setHours(0, 0, 0, 0);
  const daysBetween = (from, to) =>
    Math.max(0, Math.round((midnight(to) - midnight(from)) / (24 * 60 * MINUTE)));

  function dueAfter(now, { minutes, days }) {
    if (minutes) return now + minutes * MINUTE;
    const date = new Date(midnight(now));
    return date.setDate(date.getDate() + days);
  }

  const count = (number, unit) => `${number} ${unit}${number === 1 ? "" : "s"}`;
  const interval = ({ minutes, days }) =>
    minutes ? count(minutes, "minute") : count(days, "day");

  function wait(now, due) {
    const days = daysBetween(now, due);
    const minutes = Math.ceil((due - now) / MINUTE);
    if (days === 0 || minutes < 60) return `in ${count(minutes, "minute")}`;
    return days === 1 ? "tomorrow" : `in ${days} days`;
  }

  // The page.

  const find = (name) => document.querySelector(`.drill-${name}`);
  const part = find("part");
  const level = find("level");
  const status = find("status");
  const message = find("message");
  const question = find("question");
  const reveal = find("reveal");
  const answer = find("answer");
  const grades = find("grades");
  const buttons = [...grades.querySelectorAll("button")];
  const file = document.querySelector(".drill input[type=file]");
  const ask = find("ask");
  const cards = [...document.querySelectorAll("[data-card]")];

  let unkept = null; // progress where the browser keeps nothing for a page
  let shown = null; // {card, record} in question, the record as it was when the card came up
  let timer = 0;

  const stored = () => {
    if (unkept !== null) return unkept;
    try {
      return localStorage.getItem(KEY);
    } catch (error) {
      return doWithout(error, write({}));
    }
  };

  function store(text) {
    if (unkept === null) {
      try {
        localStorage.setItem(KEY, text);
        return;
      } catch (error) {
        doWithout(error, text);
      }
    }
    unkept = text;
  }

  function doWithout(error, text) {
    unkept = text;
    say(`This browser keeps nothing for this page (${error.name}): export before you close it.`);
    return text;
  }

  /** Return all records, or null if they cannot be read, after saying so. */
  function progress() {
    const text = stored();
    try {
      return text === null ? {} : parse(text);
    } catch (error) {
      say(
        `The progress kept in this browser cannot be read: ${error.message}. It was left as it ` +
          "is. Export it to keep a copy, then reset to begin anew.",
      );
      return null;
    }
  }

  const say = (text) => {
    message.textContent = text;
  };

  const asked = () =>
    cards.filter(
      (card) =>
        (!part.value || card.dataset.card.startsWith(`${part.value}/`)) &&
        (!level.value || card.dataset.level === level.value),
    );

  /** Sort the cards asked for into due (longest first), new (reading order) and later. */
  function sort(records, now) {
    const record = (card) => records[card.dataset.card];
    const byDue = (one, other) => record(one).due - record(other).due;
    const known = asked().filter(record).sort(byDue);
    return {
      due: known.filter((card) => record(card).due <= now),
      fresh: asked().filter((card) => !record(card)),
      later: known.filter((card) => record(card).due > now),
    };
  }

  /** Show the next card, or say when there is one; `before` is said first. */
  function next(before = "") {
    clearTimeout(timer);
    shown = null;
    const records = progress();
    status.textContent = "";
    if (records === null) return rest("No card: the progress cannot be read.");
    const now = Date.now();
    const { due, fresh, later } = sort(records, now);
    const soonest = later.length ? records[later[0].dataset.card].due : Infinity;
    const early = later.find((waiting) => {
      const { learning, due: time } = records[waiting.dataset.card];
      return learning && time <= now + AHEAD; // a card that is known keeps to its day
    });
    const card = due[0] ?? fresh[0] ?? early;
    status.textContent = `${before}${due.length} due, ${fresh.length} new, ${later.length} later.`;
    if (card) return show(card, records[card.dataset.card]);
    if (!later.length) return rest("No card: choose another part or level.");
    rest(`Nothing is due. The next card comes back ${wait(now, soonest)}.`);
    timer = setTimeout(refresh, Math.min(soonest - now + 1, 60 * MINUTE));
  }

  function show(card, record = null) {
    shown = { card, record };
    const copy = card.cloneNode(true);
    question.replaceChildren(...copy.querySelector("summary").childNodes);
    copy.querySelector("summary").remove();
    answer.replaceChildren(...copy.childNodes);
    answer.hidden = grades.hidden = true;
    reveal.hidden = false;
  }

  function rest(why) {
    question.textContent = why;
    reveal.hidden = answer.hidden = grades.hidden = true;
  }

  /** Move the focus within the card, and the page so that the whole card is seen. */
  function focus(element) {
    element.focus({ preventScroll: true });
    find("card").scrollIntoView({ block: "nearest" });
  }

  const review = (now, grade) =>
    fsrs.review(shown.record, grade, shown.record ? daysBetween(shown.record.reviewed, now) : 0);

  function showAnswer() {
    const now = Date.now();
    buttons.forEach((button, index) => {
      button.querySelector("small").textContent = interval(review(now, index + 1));
    });
    answer.hidden = grades.hidden = false;
    reveal.hidden = true;
    focus(answer);
  }

  function grade(number) {
    const records = progress();
    if (records === null) return next();
    const now = Date.now();
    const { stability, difficulty, learning, ...delay } = review(now, number);
    records[shown.card.dataset.card] = {
      stability, difficulty, learning, reviewed: now, due: dueAfter(now, delay),
    };
    say("");
    store(write(records));
    next(`${GRADES[number - 1]}: comes back in ${interval(delay)}. `);
    focus(shown ? reveal : question);
  }

  /** Follow what another tab did, or the time that went by; a card half done stays. */
  function refresh() {
    const records = progress();
    if (records && shown) {
      const record = records[shown.card.dataset.card];
      if (record?.reviewed === shown.record?.reviewed) return;
    }
    say("");
    next();
  }

  function exportProgress() {
    const link = document.createElement("a");
    const text = stored() ?? write({});
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = `pytorch-answered-drill-${new Date().toISOString().slice(0, 10)}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), MINUTE);
  }

  async function importProgress(chosen) {
    try {
      if (chosen.size > LARGEST_FILE) throw new Error("it is too large");
      const there = parse(await chosen.text());
      const here = progress();
      if (here === null) return;
      const { cards: merged, taken } = merge(here, there);
      say("");
      store(write(merged));
      next(`${chosen.name}: ${taken} of ${count(Object.keys(there).length, "card")} were newer. `);
    } catch (error) {
      say(`${chosen.name} was refused: ${error.message}. Your progress is as it was.`);
    }
  }

  function reset() {
    unkept = unkept === null ? null : write({});
    try {
      localStorage.removeItem(KEY);
    } catch {
      // Then nothing was kept.
    }
    say("");
    next("Progress reset. ");
    focus(shown ? reveal : question);
  }

  // What the reader does.

  reveal.addEventListener("click", showAnswer);
  buttons.forEach((button, index) => button.addEventListener("click", () => grade(index + 1)));
  find("card").addEventListener("keydown", (event) => {
    const number = Number(event.key);
    const plain = !(event.ctrlKey || event.altKey || event.metaKey || event.repeat);
    if (plain && !grades.hidden && number >= 1 && number <= 4) grade(number);
  });
  find("export").addEventListener("click", exportProgress);
  find("import").addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    const [chosen] = file.files;
    file.value = ""; // so that the same file can be chosen again
    if (chosen) importProgress(chosen);
  });
  find("reset").addEventListener("click", () => {
    const known = Object.keys(progress() ?? {}).length;
    document.getElementById("drill-ask").textContent =
      `Forget your progress${known ? ` on ${count(known, "card")}` : ""}? Export it first if you ` +
      "may want it back.";
    ask.returnValue = "keep";
    ask.showModal();
  });
  ask.addEventListener("close", () => {
    if (ask.returnValue === "reset") reset();
  });

  // Filters are part of the address, so a page can link to the drill of one part.
  const address = new URL(location.href);
  for (const [name, choice] of Object.entries({ part, level })) {
    choice.value = address.searchParams.get(name) ?? "";
    if (choice.selectedIndex < 0) choice.value = "";
    choice.addEventListener("change", () => {
      if (choice.value) address.searchParams.set(name, choice.value);
      else address.searchParams.delete(name);
      history.replaceState(null, "", address);
      next();
    });
  }

  addEventListener("storage", (event) => {
    if (event.key === KEY || event.key === null) refresh();
  });
  addEventListener("pageshow", (event) => {
    if (event.persisted) refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });

  next();
}
