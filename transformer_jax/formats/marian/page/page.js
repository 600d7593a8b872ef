// The page: hands the text to the engine's worker, and shows the translation of the newest text.

const $ = (id) => document.getElementById(id);
const TYPING_PAUSE = 250; // ms

const worker = new Worker("worker.js");
let ready = false;
let busy = false; // the worker has a text
let waiting = null; // the text that it gets next
let timer = 0;

function say(message, bad = false) {
  $("status").textContent = message;
  $("status").classList.toggle("bad", bad);
}

function nameOf(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code; // not one of a language
  }
}

function changed() {
  $("looks").textContent = $("text").value + "\n"; // the copy gives the text its height
  $("words").classList.add("stale");
  clearTimeout(timer);
  timer = setTimeout(() => {
    waiting = $("text").value;
    next();
  }, TYPING_PAUSE);
}

function next() {
  if (!ready || busy || waiting === null) {
    return;
  }
  const text = waiting;
  waiting = null;
  if (!text.trim()) {
    show("");
    say("Ready");
    return;
  }
  busy = true;
  say("Translating …");
  worker.postMessage(text);
}

function show(translation) {
  $("words").textContent = translation;
  $("words").classList.remove("stale");
}

worker.onmessage = ({ data }) => {
  if (data.error) {
    ready = false;
    say(`${data.error} (load the page again to go on)`, true);
    return;
  }
  if (data.languages) {
    ready = true;
    ["source", "target"].forEach((side, i) => { $(side).textContent = nameOf(data.languages[i]); });
    say("Ready");
  } else {
    busy = false;
    if (waiting === null && data.text === $("text").value) {
      show(data.translation);
      say("Translated");
    }
  }
  next();
};
worker.onerror = () => say("The engine could not be started", true);

$("text").addEventListener("input", changed);
$("clear").addEventListener("click", () => {
  $("text").value = "";
  changed();
  $("text").focus();
});
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText($("words").textContent);
    say("Copied");
  } catch {
    say("This browser does not let pages copy", true);
  }
});

say("Loading the model …");
if ($("text").value) {
  changed(); // what a browser kept from before a reload
}
