// Live updates by server-sent events, and keys. Every page works without it.
"use strict";

// Makes an element like another one, and touches only what differs: focus, selection and scrolling stay.
function morph(old, fresh) {
  for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) {
    if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  }
  // A row is found by its key, wherever it is now; anything else by its place.
  const rows = new Map([...old.children].filter((one) => one.dataset.row !== undefined).map((one) => [one.dataset.row, one]));
  let place = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const row = child.dataset?.row;
    while (child.nodeType === Node.ELEMENT_NODE && place?.nodeType === Node.TEXT_NODE) place = dropped(place);
    const mine = row === undefined ? place : rows.get(row);
    if (!mine || mine.nodeName !== child.nodeName || mine.dataset?.row !== row) {
      old.insertBefore(child, place);
      continue;
    }
    rows.delete(row);
    if (mine === place) place = place.nextSibling;
    else old.insertBefore(mine, place);
    if (child.nodeType === Node.ELEMENT_NODE) morph(mine, child);
    else if (mine.nodeValue !== child.nodeValue) mine.nodeValue = child.nodeValue;
  }
  while (place) place = dropped(place);
}

// Removes a node, and returns the one after it.
function dropped(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

const live = document.getElementById("live");
const mode = document.getElementById("mode");
const modeText = mode.textContent;
let stream = null;

function retitle() {
  const title = live?.querySelector("[data-title]");
  if (title) document.title = title.dataset.title;
}

function watch() {
  stream?.close();
  stream = null;
  mode.classList.remove("lost");
  if (!live || document.hidden) return;
  stream = new EventSource(live.dataset.events);
  stream.onmessage = (event) => {
    const fresh = new DOMParser().parseFromString("<div>" + JSON.parse(event.data) + "</div>", "text/html");
    const part = fresh.body.firstElementChild;
    for (const name of live.getAttributeNames()) part.setAttribute(name, live.getAttribute(name));
    const focused = document.activeElement;
    morph(live, part);
    if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true }); // it moved
    retitle();
    mode.textContent = modeText + ", live";
    mode.classList.remove("lost");
  };
  stream.onerror = () => {
    // A stream that ended is opened again by the browser; only one that stays away is worth a word.
    const lost = stream;
    setTimeout(() => {
      if (stream !== lost || lost.readyState === EventSource.OPEN) return;
      mode.textContent = "not connected";
      mode.classList.add("lost");
      if (lost.readyState === EventSource.CLOSED) setTimeout(watch, 5000);
    }, 3000);
  };
}
document.addEventListener("visibilitychange", watch);
watch();
retitle();

const help = document.getElementById("help");
const button = document.getElementById("keys");
button.hidden = false;
button.addEventListener("click", () => help.showModal());

function step(by) {
  const links = [...document.querySelectorAll("[data-row]")]
    .map((row) => (row.matches("a") ? row : row.querySelector("a")))
    .filter(Boolean);
  const next = links[links.indexOf(document.activeElement) + by] ?? (by > 0 ? links[0] : links.at(-1));
  next?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input, textarea, select");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    return;
  }
  if (help.open) return;
  const target = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "r") location.reload();
  else if (event.key === "?") help.showModal();
  else if (event.key === "u" && !target) document.querySelector('[data-key="g"]').click();
  else if (target?.matches("a")) target.click();
  else if (target) target.focus();
  else return;
  event.preventDefault();
});
