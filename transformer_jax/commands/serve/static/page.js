// The page: translates while one types, and shows what the model thinks of each word.

const $ = (id) => document.getElementById(id);
const TYPING_PAUSE = 250; // ms
const MOST_EXPLAINED = 20; // sentences

let limit = Infinity;
let directions = []; // [source, target] of each
let examples = {}; // language -> sentences
let request = new AbortController(); // of the translation that is under way or shown
let shown = null; // {source, target, gaps, sentences: [{text, translations, chosen, explained}]}
let active = 0; // the sentence whose alternatives are listed
let timer = 0;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function say(message, bad = false) {
  $("status").textContent = message;
  $("status").classList.toggle("bad", bad);
}

async function call(path, fields, signal) {
  const key = $("key").value;
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(key ? { ...fields, api_key: key } : fields),
    signal,
  });
  const answer = await response.json();
  if (!response.ok) {
    throw new Error(answer.error);
  }
  return answer;
}

// ---- translating

function changed() {
  const text = $("text").value;
  $("looks").textContent = text + "\n"; // the copy gives the text its height
  $("count").textContent = Number.isFinite(limit) ? `${text.length} of ${limit} characters` : "";
  $("count").classList.toggle("over", text.length > limit);
  $("snippet").textContent = snippet(text);
  if (location.hash && text !== addressed()) {
    history.replaceState(null, "", location.pathname + location.search);
  }
  offer(text);
  $("words").classList.add("stale");
  closeMenu();
  request.abort();
  clearTimeout(timer);
  timer = setTimeout(translate, TYPING_PAUSE);
}

// The text that the address holds, as in `#text=Hello`; null: none.
const addressed = () => new URLSearchParams(location.hash.slice(1)).get("text");

// Examples are links to such addresses, shown while there is no text.
function offer(text) {
  const source = $("source").value;
  const known = source === "auto" ? Object.values(examples).flat() : examples[source] ?? [];
  $("examples").hidden = Boolean(text) || !known.length;
  $("examples").replaceChildren("Try:", ...known.map((sentence) =>
    element("a", { href: `#${new URLSearchParams({ text: sentence })}`, dir: "auto" }, sentence)));
}

async function translate() {
  request.abort();
  request = new AbortController();
  const { signal } = request;
  const fields = { q: $("text").value, source: $("source").value, target: $("target").value };
  if (!fields.q.trim()) {
    show(null);
    say("");
    return;
  }
  say("Translating …");
  try {
    const answer = await call("page/translate", fields, signal);
    signal.throwIfAborted();
    active = 0;
    show({
      ...answer,
      target: fields.target,
      sentences: answer.sentences.map((each) => ({ ...each, chosen: each.translations[0] })),
    });
    const unseen = [...unseenWords()];
    say((fields.source === "auto" ? `Translated from ${nameOf(answer.source)}` : "Translated")
      + (unseen.length ? `. The model has never seen: ${unseen.join(", ")}` : ""));
    $("spoken").textContent = plain();
    if (answer.explains) {
      for (const sentence of shown.sentences.slice(0, MOST_EXPLAINED)) {
        await explain(sentence, signal);
      }
    }
  } catch (error) {
    if (!signal.aborted) {
      say(error.message, true);
    }
  }
}

async function explain(sentence, signal) {
  const { chosen } = sentence;
  const explained = await call("page/explain", place(sentence, chosen.tokens), signal);
  signal.throwIfAborted();
  if (sentence.chosen === chosen) {
    sentence.explained = explained;
    draw();
  }
}

const place = (sentence, tokens) => ({
  q: sentence.text, source: shown.source, target: shown.target, tokens,
});

function plain() {
  return shown === null
    ? ""
    : shown.gaps.map((gap, i) => gap + (shown.sentences[i]?.chosen.text ?? "")).join("");
}

async function choose(sentence, translation) {
  sentence.chosen = translation;
  sentence.explained = null;
  draw();
  listAlternatives();
  $("spoken").textContent = plain();
  try {
    if (shown.explains) {
      await explain(sentence, request.signal);
    }
  } catch (error) {
    if (!request.signal.aborted) {
      say(error.message, true);
    }
  }
}

// ---- drawing

function show(translated) {
  shown = translated;
  $("words").classList.remove("stale");
  draw();
  listAlternatives();
  look(null);
}

function draw() {
  const sentences = shown?.sentences ?? [];
  const focused = document.activeElement?.dataset?.word;
  const parts = [];
  shown?.gaps.forEach((gap, i) => {
    parts.push(gap);
    if (i < sentences.length) {
      parts.push(...drawn(sentences[i], i));
    }
  });
  $("words").replaceChildren(...parts);
  const words = [...$("words").querySelectorAll(".word")];
  words.forEach((word, i) => {
    word.tabIndex = i === 0 ? 0 : -1;
  });
  if (focused) {
    moveTo(words.find((word) => word.dataset.word === focused) ?? words[0]);
  }
  $("hint").hidden = words.length === 0;
  $("copy").disabled = sentences.length === 0;
}

function drawn(sentence, number) {
  if (!sentence.explained) {
    return [sentence.chosen.text];
  }
  return wordsOf(sentence.explained.target).flatMap(({ space, pieces }, i) => {
    const word = element("button", { type: "button", className: "word" });
    word.dataset.word = `${number}.${i}`;
    let least = 1;
    for (const { text, place } of pieces) {
      const probability = Math.exp(sentence.explained.logProbs[place]);
      least = Math.min(least, probability);
      const piece = element("span", { className: "piece" }, text);
      piece.style.setProperty("--doubt", (1 - probability).toFixed(3));
      word.append(piece);
    }
    word.title = `probability ${percent(least)}`;
    word.setAttribute("aria-haspopup", "menu");
    word.addEventListener("pointerenter", () => look(sentence, pieces));
    word.addEventListener("pointerleave", () => look(null));
    word.addEventListener("focus", () => look(sentence, pieces));
    word.addEventListener("blur", () => look(null));
    word.addEventListener("click", () => openMenu(word, sentence, pieces[0].place));
    return space && i ? [space, word] : [word];
  });
}

const percent = (share) => (share < 0.001 ? "< 0.1 %" : `${(100 * share).toPrecision(3)} %`);

// Pieces of a sentence as words: a new one begins at each space, and with each piece of a script
// that is written without spaces.
const SPACELESS = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Khmer}\p{Script=Lao}]/u;

function wordsOf(pieces) {
  const words = [];
  texts(pieces).forEach((text, place) => {
    if (!text) {
      return; // a language token
    }
    const space = text.startsWith(" ") ? " " : "";
    if (!words.length || space || SPACELESS.test(text)) {
      words.push({ space, pieces: [] });
    }
    words.at(-1).pieces.push({ text: text.replace(/^ /, ""), place });
  });
  return words;
}

// The text of each piece. A character that is spelled in bytes belongs to the last of them.
function texts(pieces) {
  const decoder = new TextDecoder();
  return pieces.map((piece, i) => {
    const byte = /^<0x([0-9A-F]{2})>$/.exec(piece);
    if (byte) {
      const more = /^<0x[89AB][0-9A-F]>$/.test(pieces[i + 1] ?? "");
      return decoder.decode(Uint8Array.of(parseInt(byte[1], 16)), { stream: more });
    }
    return piece.replaceAll("▁", " ");
  });
}

// ---- where the model looks

// [start, end) of each source piece in the sentence.
function places(pieces, sentence) {
  let at = 0;
  return texts(pieces).map((text) => {
    while (/\s/.test(sentence[at] ?? "")) {
      at += 1;
    }
    const bare = text.trim();
    const start = sentence.startsWith(bare, at) ? at : sentence.indexOf(bare, at);
    if (start < 0) {
      return [at, at]; // what the sentence does not spell: an unknown piece
    }
    at = start + bare.length;
    return [start, at];
  });
}

const unseenWords = () => new Set((shown?.sentences ?? []).flatMap(({ unseen }) => unseen));

// The text, with the words underlined that the model has never seen in training.
function underlined(text) {
  const unseen = unseenWords();
  return text.split(/(\s+)/).map((part) => (unseen.has(part) ? element("u", {}, part) : part));
}

function look(sentence, pieces) {
  const text = $("text").value;
  if (!sentence?.explained?.looks[0]?.length) {
    $("looks").replaceChildren(...underlined(text), "\n");
    return;
  }
  const { source, looks } = sentence.explained;
  const shares = source.map((_, column) =>
    pieces.reduce((sum, { place }) => sum + looks[place][column], 0));
  const most = Math.max(...shares, 1e-9);
  let start = 0;
  for (const [i, each] of shown.sentences.entries()) {
    start += shown.gaps[i].length;
    if (each === sentence) {
      break;
    }
    start += each.text.length;
  }
  const parts = [text.slice(0, start)];
  let at = start;
  places(source, sentence.text).forEach(([from, to], i) => {
    parts.push(text.slice(at, start + from));
    const mark = element("mark", {}, text.slice(start + from, start + to));
    mark.style.setProperty("--share", (shares[i] / most).toFixed(3));
    parts.push(mark);
    at = start + to;
  });
  $("looks").replaceChildren(...parts, text.slice(at) + "\n");
  if (active !== shown.sentences.indexOf(sentence)) {
    active = shown.sentences.indexOf(sentence);
    listAlternatives();
  }
}

// ---- other words

let opener = null;

async function openMenu(word, sentence, position) {
  closeMenu();
  const { signal } = request;
  const tokens = sentence.chosen.tokens.slice(0, position);
  opener = word;
  word.classList.add("current");
  const menu = $("menu");
  menu.replaceChildren(element("p", {}, "Looking for other words …"));
  menu.hidden = false;
  beside(word, menu);
  try {
    const found = await call("page/choices", place(sentence, tokens), signal);
    if (opener !== word) {
      return;
    }
    const before = sentence.explained.target.slice(0, position);
    const items = alternativesAt(texts(before).join("").trimStart(), found).map((item) => {
      const button = element("button", { type: "button", tabIndex: -1 },
        element("strong", { dir: "auto" }, item.word),
        element("span", { className: "rest", dir: "auto" }, item.rest),
        element("span", { className: "number" }, percent(item.probability)));
      button.setAttribute("role", "menuitem");
      button.addEventListener("click", () => {
        closeMenu(true);
        choose(sentence, item.translation);
      });
      return button;
    });
    menu.replaceChildren(...items);
    beside(word, menu);
    items[0]?.focus();
  } catch (error) {
    closeMenu();
    if (!signal.aborted) {
      say(error.message, true);
    }
  }
}

// The word at the place, and what follows it, of each different translation.
function alternativesAt(before, found) {
  const items = new Map();
  for (const translation of found) {
    const { text } = translation;
    const after = text.startsWith(before) ? text.slice(before.length).trim() : text;
    const cut = SPACELESS.test(after[0] ?? "") ? 1 : (after + " ").search(/\s/);
    if (!items.has(text)) {
      const probability = translation.probability;
      items.set(text, { word: after.slice(0, cut), rest: after.slice(cut), probability, translation });
    }
  }
  return [...items.values()];
}

function beside(word, menu) {
  const box = word.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - menu.offsetWidth - 16);
  menu.style.left = `${Math.max(left, 8) + scrollX}px`;
  menu.style.top = `${box.bottom + scrollY + 4}px`;
}

function closeMenu(focusBack = false) {
  if (opener === null) {
    return;
  }
  const word = opener;
  opener = null;
  $("menu").hidden = true;
  word.classList.remove("current");
  if (focusBack) {
    moveTo(word);
  }
}

function listAlternatives() {
  const sentence = shown?.sentences[active];
  $("alternatives").hidden = !sentence || sentence.translations.length < 2;
  if ($("alternatives").hidden) {
    return;
  }
  const several = shown.sentences.length > 1;
  $("alternatives-title").textContent =
    several ? `Alternatives for sentence ${active + 1}` : "Alternatives";
  const known = sentence.translations;
  const all = known.includes(sentence.chosen) ? known : [...known, sentence.chosen];
  const hadFocus = $("list").contains(document.activeElement);
  $("list").replaceChildren(...all.map((translation) => {
    const score = known.includes(translation) ? translation.score.toFixed(2) : "your words";
    const button = element("button", { type: "button" },
      element("span", { className: "text", dir: "auto" }, translation.text),
      element("span", { className: "number" }, score));
    button.setAttribute("aria-pressed", translation === sentence.chosen);
    button.addEventListener("click", () => choose(sentence, translation));
    return element("li", {}, button);
  }));
  if (hadFocus) {
    $("list").querySelector("[aria-pressed=true]").focus();
  }
}

// ---- keyboard

function moveTo(word) {
  // The words may have been drawn again since this one was.
  const same = word && $("words").querySelector(`[data-word="${word.dataset.word}"]`);
  if (same) {
    for (const each of $("words").querySelectorAll(".word")) {
      each.tabIndex = -1;
    }
    same.tabIndex = 0;
    same.focus();
  }
}

function arrows(event, items, move) {
  const at = items.indexOf(document.activeElement);
  const back = getComputedStyle(items[0] ?? document.body).direction === "rtl" ? 1 : -1;
  const steps = { ArrowRight: -back, ArrowLeft: back, ArrowDown: 1, ArrowUp: -1 };
  const to = { Home: 0, End: items.length - 1 }[event.key] ?? at + (steps[event.key] ?? NaN);
  if (items[to]) {
    event.preventDefault();
    move(items[to]);
  }
}

$("words").addEventListener("keydown", (event) =>
  arrows(event, [...$("words").querySelectorAll(".word")], moveTo));

$("menu").addEventListener("keydown", (event) => {
  if (event.key === "Escape" || event.key === "Tab") {
    event.preventDefault();
    closeMenu(true);
  } else {
    arrows(event, [...$("menu").querySelectorAll("button")], (item) => item.focus());
  }
});

document.addEventListener("pointerdown", (event) => {
  if (!$("menu").contains(event.target) && event.target.closest(".word") !== opener) {
    closeMenu();
  }
});

window.addEventListener("resize", () => closeMenu());

// ---- settings

const nameOf = (code) =>
  [...$("source").options, ...$("target").options].find((each) => each.value === code)?.text ?? code;

function fillTargets() {
  const source = $("source").value;
  const before = $("target").value;
  for (const option of $("target").options) {
    option.disabled = !directions.some(([from, to]) =>
      to === option.value && (source === "auto" || from === source));
  }
  const possible = [...$("target").options].filter((option) => !option.disabled);
  $("target").value = (possible.find((option) => option.value === before) ?? possible[0]).value;
  $("swap").disabled = !directions.some(([from, to]) =>
    from === $("target").value && to === source);
}

function snippet(text) {
  const fields = { q: text || "Hello", source: $("source").value, target: $("target").value };
  const body = JSON.stringify(fields).replaceAll("'", "'\\''");
  return `curl ${location.origin}/translate \\\n  -H 'Content-Type: application/json' \\\n  -d '${body}'`;
}

async function start() {
  const [languages, settings, offered] = await Promise.all(
    ["languages", "frontend/settings", "page/examples"].map(
      async (path) => (await fetch(path)).json()));
  examples = offered;
  limit = settings.charLimit;
  $("key-form").hidden = !settings.keyRequired;
  const option = ({ code, name }) => element("option", { value: code }, name);
  const sources = languages.filter(({ targets }) => targets.length);
  const targets = languages.filter(({ code }) => languages.some((l) => l.targets.includes(code)));
  directions = sources.flatMap(({ code, targets }) => targets.map((target) => [code, target]));
  $("source").append(...sources.map(option));
  if (sources.length > 1) {
    $("source").append(element("option", { value: "auto" }, "Detect the language"));
  }
  $("target").append(...targets.map(option));
  $("source").value = settings.language.source.code;
  $("target").value = settings.language.target.code;
  fillTargets();
  $("text").value = addressed() ?? $("text").value;
  changed();
}

window.addEventListener("hashchange", () => {
  $("text").value = addressed() ?? "";
  changed();
  $("text").focus();
});
$("text").addEventListener("input", changed);
$("key").addEventListener("input", changed);
$("key-form").addEventListener("submit", (event) => event.preventDefault());
$("source").addEventListener("change", () => { fillTargets(); changed(); });
$("target").addEventListener("change", () => { fillTargets(); changed(); });
$("swap").addEventListener("click", () => {
  const text = plain();
  [$("source").value, $("target").value] = [$("target").value, $("source").value];
  $("text").value = text;
  fillTargets();
  changed();
});
$("clear").addEventListener("click", () => {
  $("text").value = "";
  changed();
  $("text").focus();
});
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(plain());
    say("Copied");
  } catch {
    say("The browser does not allow copying: select the text", true);
  }
});
$("shade").addEventListener("change", () =>
  $("words").classList.toggle("shaded", $("shade").checked));
$("words").classList.add("shaded");
start().catch((error) => say(`The server cannot be reached: ${error.message}`, true));
