// Fetches the page periodically and updates the differences in place: scroll position, focus,
// selection and input are preserved. Without this script the browser reloads the page.
"use strict";

const LEAST_MS = 1000;
const clock = () => new Date().toLocaleTimeString("en-GB");
let failingSince = null, shown = 0;

const keyOf = (node) => (node.nodeType === 1 ? node.dataset.key || node.id : "");

// Whether text in the node is selected.
function selected(node) {
  const selection = document.getSelection();
  return !selection.isCollapsed && selection.containsNode(node, true);
}

function sameAttributes(old, fresh) {
  // The reader opens and closes details, not the server.
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
}

function morph(old, fresh) {
  if (old.nodeType !== 1) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (keyOf(old) && old.isEqualNode(fresh)) return; // most of a large page
  if (old.hasAttribute("data-tail")) return morphTail(old, fresh);
  sameAttributes(old, fresh);
  morphChildren(old, fresh);
}

// A log: not updated during a selection; stays at its end if it is scrolled there.
function morphTail(old, fresh) {
  if (old.textContent === fresh.textContent || selected(old)) return;
  const atEnd = old.scrollHeight - old.scrollTop - old.clientHeight < 8;
  old.textContent = fresh.textContent;
  if (atEnd) old.scrollTop = old.scrollHeight;
}

function morphChildren(old, fresh) {
  const freshKeys = new Set([...fresh.childNodes].map(keyOf));
  const keyed = new Map();
  for (const child of [...old.childNodes]) {
    const key = keyOf(child);
    if (key && !freshKeys.has(key)) child.remove();
    else if (key) keyed.set(key, child);
  }
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const key = keyOf(next);
    const found = key ? keyed.get(key) : at;
    keyed.delete(key);
    if (!found || found.nodeName !== next.nodeName || (!key && keyOf(found))) {
      old.insertBefore(next, at);
      continue;
    }
    if (found !== at) old.insertBefore(found, at);
    morph(found, next);
    at = found.nextSibling;
  }
  while (at) {
    const rest = at.nextSibling;
    at.remove();
    at = rest;
  }
}

function show(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const focused = document.activeElement;
  document.title = fresh.title;
  morph(document.body, document.adoptNode(fresh.body));
  // Moved elements lose the focus.
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

function showFailure() {
  failingSince ??= clock();
  document.body.classList.add("stale");
  const live = document.getElementById("live");
  live.className = "bad";
  live.textContent = `no response from this page's server since ${failingSince}`;
}

async function refresh() {
  const url = location.href.split("#")[0];
  try {
    const response = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(20000) });
    const text = await response.text();
    if (!response.headers.get("Content-Type")?.startsWith("text/html")) throw new Error(text);
    if (url !== location.href.split("#")[0]) return; // the response to an earlier query
    failingSince = null;
    show(text);
    document.documentElement.dataset.shown = ++shown;
  } catch {
    showFailure();
  }
}

let timer = 0, running = false, again = false;

async function loop() {
  clearTimeout(timer);
  if (running) {
    again = true;
    return;
  }
  running = true;
  const began = performance.now();
  do {
    again = false;
    await refresh();
  } while (again);
  running = false;
  // A page that takes long, as of a large cluster, is fetched less often.
  const pause = Math.max(LEAST_MS, 3 * (performance.now() - began));
  if (!document.hidden) timer = setTimeout(loop, pause);
}

// The query is part of the address, so that it can be shared and bookmarked.
function find() {
  const query = new URLSearchParams(new FormData(document.getElementById("find")));
  for (const [name, value] of [...query]) if (!value) query.delete(name);
  history.replaceState(null, "", query.size ? `/?${query}` : "/");
  loop();
}

document.addEventListener("visibilitychange", () => document.hidden || loop());
document.addEventListener("input", (event) => event.target.closest("#find") && find());
document.addEventListener("submit", (event) => {
  if (event.target.id !== "find") return;
  event.preventDefault();
  find();
});
document.addEventListener("keydown", (event) => {
  const words = document.getElementById("words");
  if (event.key !== "/" || !words || event.target.closest("input, select") || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  words.focus();
});
for (const log of document.querySelectorAll("[data-tail]")) log.scrollTop = log.scrollHeight;
timer = setTimeout(loop, LEAST_MS);
