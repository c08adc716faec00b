// Live updates by server-sent events, and keys. Every page works without it.
"use strict";

// Makes an element like another one, and touches only what differs: focus, selection and scrolling stay.
function morph(old, fresh) {
  for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) {
    if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  }
  const wanted = [...fresh.childNodes];
  wanted.forEach((child, place) => {
    const row = child.dataset?.row;
    let mine = old.childNodes[place];
    if (row !== undefined && mine?.dataset?.row !== row) {
      const found = [...old.children].find((one) => one.dataset.row === row);
      if (found) mine = old.insertBefore(found, mine ?? null);
    }
    if (!mine) old.append(child);
    else if (mine.nodeName !== child.nodeName || mine.dataset?.row !== row) old.insertBefore(child, mine);
    else if (child.nodeType === Node.ELEMENT_NODE) morph(mine, child);
    else if (mine.nodeValue !== child.nodeValue) mine.nodeValue = child.nodeValue;
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

const live = document.getElementById("live");
const mode = document.getElementById("mode");
const usual = mode.textContent;
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
    morph(live, part);
    retitle();
    mode.textContent = usual + ", live";
    mode.classList.remove("lost");
  };
  stream.onerror = () => {
    // A stream that ended is opened again by the browser; only one that stays away is worth a word.
    const lost = stream;
    setTimeout(() => {
      if (stream !== lost || lost.readyState === EventSource.OPEN) return;
      mode.textContent = "not connected";
      mode.classList.add("lost");
      if (lost.readyState === EventSource.CLOSED) watch.later = setTimeout(watch, 5000);
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
