// Ranks passages for what a reader types or pastes, and shows them as they type.
// conf/extensions/site_search.py makes the index and says what is in it.

const STACK = /Traceback \(most recent call last\)|File "[^"]*", line \d+/;
const RAISED = /\b[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit)\b/g;
const BEFORE = 0.2; // what a word counts that stands before the last exception of a traceback
const TYPED = 12; // a query of more words was pasted, so its unknown words are the reader's names
const PAGE = 0.3; // the share of its first passage's score that every passage of a page gets
const EXCERPT = 240; // letters of an excerpt, of which so many before the first marked word:
const LEAD = 60;
const PAUSE = 300; // milliseconds without a key, before results are announced
const LONGEST = 1500; // letters of a query kept in the address

/** Returns an index made ready for `terms` and `rank`. */
export function prepare(index) {
  const { noise, word, part, stem } = index.patterns;
  index.noise = new RegExp(noise, "g");
  index.word = new RegExp(word, "g");
  index.part = new RegExp(part, "g");
  index.stem = new RegExp(stem);
  index.ignored = new Set(index.common);
  index.known = new Map(index.words.map((word, number) => [word, number]));
  index.beginning = new Map();
  for (const word of index.words) {
    if (!index.beginning.has(word[0])) index.beginning.set(word[0], []);
    index.beginning.get(word[0]).push(word);
  }
  index.firsts = []; // each page's first passage
  index.pageOf = []; // each passage's page
  for (const [page, [, , count]] of index.pages.entries()) {
    index.firsts.push(index.pageOf.length);
    for (let i = 0; i < count; i++) index.pageOf.push(page);
  }
  return index;
}

/** Returns a text's words, as `words` in site_search.py does. */
export function words(index, text) {
  const found = [];
  for (const [word] of text.replace(index.noise, " ").matchAll(index.word)) {
    if (/\d/.test(word[0])) continue;
    const whole = word.replace(/^_+|_+$/g, "").toLowerCase();
    const parts = (word.match(index.part) ?? []).map((part) => part.toLowerCase());
    for (const item of new Set([whole, ...parts])) {
      if (item.length < 2 || index.ignored.has(item)) continue;
      found.push(index.stem.exec(item)?.[1] ?? item);
    }
  }
  return found;
}

/** Returns what each word of a query counts; in a traceback, the message at its end counts most. */
export function weigh(index, query) {
  const raised = [...query.matchAll(RAISED)].at(-1)?.index ?? 0;
  const end = STACK.test(query) ? raised : 0;
  const weights = new Map();
  for (const [text, weight] of [[query.slice(0, end), BEFORE], [query.slice(end), 1]]) {
    for (const word of words(index, text)) {
      weights.set(word, Math.max(weight, weights.get(word) ?? 0));
    }
  }
  return weights;
}

/** Returns how many letters to change, add, drop or swap to make one word of the other, up to 3. */
export function distance(a, b) {
  if (Math.abs(a.length - b.length) > 2) return 3;
  let [before, last] = [[], Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      row[j] = Math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] !== b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        row[j] = Math.min(row[j], before[j - 2] + 1);
      }
    }
    if (Math.min(...row) > 2) return 3;
    [before, last] = [last, row];
  }
  return Math.min(last[b.length], 3);
}

/** Returns the known words an unknown one may stand for: what it begins, or else misspells. */
function meant(index, unknown) {
  const all = index.beginning.get(unknown[0]) ?? [];
  const begun = all.filter((word) => word.startsWith(unknown));
  if (begun.length || unknown.length < 4) return begun;
  const most = unknown.length < 7 ? 1 : 2;
  const near = all.map((word) => [word, distance(word, unknown)]).filter(([, far]) => far <= most);
  const least = Math.min(...near.map(([, far]) => far));
  return near.filter(([, far]) => far === least).map(([word]) => word);
}

/** Returns what each known word counts for a query; an unknown one may stand for several. */
export function terms(index, query) {
  const weights = weigh(index, query);
  const counts = new Map();
  for (const [word, weight] of weights) {
    const known = index.known.has(word);
    const others = known ? [word] : weights.size <= TYPED ? meant(index, word) : [];
    for (const other of others) {
      counts.set(other, (counts.get(other) ?? 0) + weight / Math.sqrt(others.length));
    }
  }
  return counts;
}

/** Returns the number of the file that says where a word is found. */
export function fileOf(index, word) {
  return Math.floor(index.known.get(word) / index.together);
}

/** Returns the best passages, best first, and what each word tells; `files` are those of `terms`. */
export function rank(index, counts, files, limit = 10) {
  const scores = new Float64Array(index.pageOf.length);
  const found = new Map();
  for (const [word, count] of counts) {
    const postings = files.get(fileOf(index, word))[index.known.get(word) % index.together];
    const number = postings.length;
    const tells = count * Math.log(1 + (scores.length - number + 0.5) / (number + 0.5));
    let passage = 0;
    for (const posting of postings) {
      passage += Math.floor(posting / 10);
      scores[passage] += tells * (posting % 10);
    }
    found.set(word, tells);
  }
  const total = (passage) => scores[passage] + PAGE * scores[index.firsts[index.pageOf[passage]]];
  const passages = [...scores.keys()]
    .filter((passage) => scores[passage] > 0)
    .sort((a, b) => total(b) - total(a) || a - b)
    .slice(0, limit);
  return { passages, words: found };
}

/** Returns where a text has words that were found: [start, end, word] each. */
export function marks(index, text, found) {
  const places = [];
  for (const match of text.matchAll(index.word)) {
    const word = words(index, match[0]).find((item) => found.has(item));
    if (word) places.push([match.index, match.index + match[0].length, word]);
  }
  return places;
}

/** Returns the stretch of a text, [start, end], whose words tell the most. */
export function stretch(text, places, found) {
  let [best, most] = [0, 0];
  for (const [start] of places) {
    const inside = places.filter(([from, to]) => from >= start && to <= start + EXCERPT);
    const told = [...new Set(inside.map(([, , word]) => word))];
    const sum = told.reduce((all, word) => all + found.get(word), 0);
    if (sum > most) [best, most] = [start, sum];
  }
  const line = text.lastIndexOf("\n", best) + 1;
  const start = best - line < LEAD ? line : text.indexOf(" ", best - LEAD) + 1;
  const space = text.lastIndexOf(" ", start + EXCERPT);
  return [start, text.length <= start + EXCERPT || space <= start ? text.length : space];
}

/** Fills an element with a text, its marked words in <mark>. */
function fill(element, text, places, [start, end] = [0, text.length]) {
  const parts = [start > 0 ? "… " : ""];
  let at = start;
  for (const [from, to] of places.filter(([from, to]) => from >= start && to <= end)) {
    const mark = document.createElement("mark");
    mark.textContent = text.slice(from, to);
    parts.push(text.slice(at, from), mark);
    at = to;
  }
  element.replaceChildren(...parts, text.slice(at, end), end < text.length ? " …" : "");
}

/** Makes the search page work: its form, its results, and what a screen reader says of them. */
async function start(form) {
  const box = form.elements.q;
  const status = document.querySelector("#search-status");
  const results = document.querySelector("#search-results");
  const asked = new Map(); // what was asked of the server, by path
  let index;
  let pause;
  let latest = 0;
  let shown; // settles once the results of the latest query are there

  const fetchJson = (path) => {
    if (!asked.has(path)) {
      const answer = fetch(`${form.dataset.folder}${path}?v=${form.dataset.version}`).then((got) => {
        if (!got.ok) throw new Error(`${got.status} ${got.url}`);
        return got.json();
      });
      answer.catch(() => asked.delete(path)); // the next key asks again
      asked.set(path, answer);
    }
    return asked.get(path);
  };
  const fetchAll = async (folder, numbers) => {
    const unique = [...new Set(numbers)];
    const files = await Promise.all(unique.map((number) => fetchJson(`${folder}/${number}.json`)));
    return new Map(unique.map((number, at) => [number, files[at]]));
  };

  /** Returns a result: its link, and at once what of its text says most. */
  const item = (passage, texts, found) => {
    const page = index.pageOf[passage];
    const [address, pageTitle] = index.pages[page];
    const [anchor, title, text] = texts.get(page)[passage - index.firsts[page]];
    const [entry, link, where, excerpt] = ["li", "a", "p", "p"].map((tag) =>
      document.createElement(tag),
    );
    link.href = anchor ? `${address}#${anchor}` : address;
    fill(link, title, marks(index, title, found));
    where.className = "where";
    where.textContent = anchor ? pageTitle : "";
    excerpt.className = "excerpt";
    const places = marks(index, text, found);
    fill(excerpt, text, places, stretch(text, places, found));
    entry.append(link, where, excerpt);
    return entry;
  };

  const answer = async (query) => {
    const counts = terms(index, query);
    const files = await fetchAll("words", [...counts.keys()].map((word) => fileOf(index, word)));
    const { passages, words: found } = rank(index, counts, files);
    const texts = await fetchAll("text", passages.map((passage) => index.pageOf[passage]));
    return passages.map((passage) => item(passage, texts, found));
  };

  const show = async (wait) => {
    const query = box.value;
    const mine = ++latest;
    results.setAttribute("aria-busy", "true");
    let entries;
    try {
      entries = await answer(query);
    } catch (error) {
      if (mine !== latest) return;
      status.textContent = `The results did not load (${error.message}). Try once more.`;
      return;
    }
    if (mine !== latest) return; // a later key has asked for something else
    results.replaceChildren(...entries);
    results.setAttribute("aria-busy", "false");
    clearTimeout(pause);
    pause = setTimeout(() => {
      const first = entries.length && entries[0].querySelector("a").textContent;
      status.textContent = entries.length
        ? `${entries.length} result${entries.length > 1 ? "s" : ""}. First: ${first}`
        : query.trim() && "Nothing found. Try fewer words, or the last line of the traceback.";
      const address = new URL(location.href);
      address.search = query ? new URLSearchParams({ q: query.slice(-LONGEST) }) : "";
      history.replaceState(null, "", address);
    }, wait);
  };

  const move = (event) => {
    const links = [...results.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") box.focus();
    else if (step && at >= 0) (links[at + step] ?? (step < 0 ? box : links[at])).focus();
    else return;
    event.preventDefault();
  };

  const leave = async (event) => {
    const end = box.selectionStart === box.value.length;
    const go = (event.key === "Enter" && !event.shiftKey) || (event.key === "ArrowDown" && end);
    if (!go || event.isComposing) return;
    event.preventDefault();
    const query = box.value;
    await shown; // a fast reader presses Enter before the results of the last key are there
    if (box.value === query) results.querySelector("a")?.focus();
  };

  results.addEventListener("keydown", move);
  box.addEventListener("keydown", leave);
  form.addEventListener("submit", (event) => event.preventDefault());
  box.value ||= new URLSearchParams(location.search).get("q") ?? "";
  if (!box.value) box.focus();
  try {
    index = prepare(await fetchJson("index.json"));
  } catch (error) {
    status.textContent = `The index did not load (${error.message}). Load the page again.`;
    return;
  }
  box.addEventListener("input", () => (shown = show(PAUSE)));
  if (box.value) shown = show(0);
}

const form = globalThis.document?.querySelector("#site-search");
if (form) start(form);
