// What pages do beyond links and forms: they are kept up to date, count chosen keys, show the values of a plot under the
// pointer, and follow new messages. Every page works without this script. HTML comes from the server only, escaped there.
"use strict";

// "/" focuses the search box, unless a person is typing.
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.getElementById("find")?.focus();
  }
});

// On a phone the navigation is one line that scrolls: the current screen is made visible.
document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

// --- merging ---
// A page that arrives is merged into the one that is shown: elements that are the same in both stay, and only what differs
// in them is changed. So focus, selected text, what was typed or chosen, and how far a table was scrolled stay as they
// are. What a person has opened stays open, and an element with `data-own` is left to this script.

// Two children of an element are the same if they have the same name: their kind and id. Rows, items and cards have no
// id; they are known by where they lead, so that a new row does not turn the others into their neighbours.
function nameOf(node) {
  const id = node.getAttribute?.("id");
  if (id) return `${node.nodeName}#${id}`;
  if (node.hasAttribute?.("data-own")) return `${node.nodeName} own`;
  if (!["TR", "LI", "ARTICLE"].includes(node.nodeName)) return node.nodeName;
  return [node.nodeName, ...[...node.querySelectorAll("a")].map((link) => link.getAttribute("href"))].join(" ");
}

function merge(shown, wanted) {
  if (shown.nodeType !== Node.ELEMENT_NODE) {
    if (shown.data !== wanted.data) shown.data = wanted.data;
  } else if (!shown.hasAttribute("data-own")) {
    mergeAttributes(shown, wanted);
    mergeChildren(shown, wanted);
  }
}

function mergeAttributes(shown, wanted) {
  const kept = (name) => name === "open" && shown.nodeName === "DETAILS";
  for (const { name } of [...shown.attributes]) {
    if (!wanted.hasAttribute(name) && !kept(name)) shown.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (shown.getAttribute(name) !== value && !kept(name)) shown.setAttribute(name, value);
  }
}

function mergeChildren(shown, wanted) {
  const known = new Map(); // the children that are shown, by name; those of one name in their order
  for (const child of shown.childNodes) {
    const name = nameOf(child);
    known.has(name) ? known.get(name).push(child) : known.set(name, [child]);
  }
  const pairs = [...wanted.childNodes].map((child) => [known.get(nameOf(child))?.shift(), child]);
  for (const child of [...known.values()].flat()) child.remove();
  let next = shown.firstChild;
  for (const [same, child] of pairs) {
    if (same) merge(same, child);
    if (same && same === next) next = next.nextSibling;
    else shown.insertBefore(same ?? document.importNode(child, true), next);
  }
}

function mergePage(shown, html) {
  const focused = document.activeElement;
  const arrived = document.createElement("template");
  arrived.innerHTML = html;
  mergeChildren(shown, arrived.content);
  // An element that another one was moved past has lost the focus.
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  chosen();
  point();
}

// --- staying up to date ---
// A page that is visible has an event stream. The console refuses one while too many are open, and cannot be reached while
// it restarts: then the page says so, keeps what it shows, and tries again.
const RETRY_MS = 10000;
const live = document.getElementById("live");
const refused = document.getElementById("live-refused");
let stream = null;

function notLive(why) {
  refused.textContent = `This page is not kept up to date. ${why}`;
  refused.hidden = false;
}

function connect() {
  if (stream || document.hidden) return;
  const opened = (stream = new EventSource(live.dataset.live));
  opened.onopen = () => { refused.hidden = true; };
  opened.onmessage = (event) => mergePage(live, event.data);
  opened.onerror = async () => {
    if (opened.readyState !== EventSource.CLOSED) {
      notLive("The console does not answer."); // the browser itself tries again
      return;
    }
    const why = await whyRefused();
    if (stream !== opened) return;
    stream = null;
    notLive(why);
    setTimeout(connect, RETRY_MS);
  };
}

// Browsers do not tell why an event stream was refused, so the page asks for it once more.
async function whyRefused() {
  const asking = new AbortController();
  try {
    const answer = await fetch(live.dataset.live, { signal: asking.signal });
    const told = answer.status === 503 && answer.headers.get("content-type")?.startsWith("text/plain");
    return told ? await answer.text() : "The console is busy.";
  } catch {
    return "The console does not answer.";
  } finally {
    asking.abort();
  }
}

if (live) {
  connect();
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return connect();
    stream?.close();
    stream = null;
  });
}

// --- age ---
// While the brokers do not answer, nothing arrives: the age of what is shown grows here.
const aged = new WeakMap(); // for each element with an age: what the server said, and when it arrived

function agoText(seconds) {
  if (seconds < 60) return `${seconds} s ago`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ago` : `${Math.floor(seconds / 3600)} h ago`;
}

setInterval(() => {
  for (const element of document.querySelectorAll("[data-age]")) {
    const known = aged.get(element);
    if (known?.told !== element.dataset.age) aged.set(element, { told: element.dataset.age, since: performance.now() });
    else element.textContent = agoText(Number(known.told) + Math.floor((performance.now() - known.since) / 1000));
  }
}, 1000);

// --- choosing keys ---
// All at once, up to the most that one redrive takes, and how many are chosen.
function chosen() {
  const form = document.querySelector("[data-choosing]");
  if (!form) return;
  const boxes = [...form.querySelectorAll('input[name="lane"]')];
  const most = Number(form.dataset.choosing);
  const count = boxes.filter((box) => box.checked).length;
  const all = document.getElementById("choose-all");
  all.checked = count > 0 && count >= Math.min(boxes.length, most);
  all.indeterminate = count > 0 && !all.checked;
  all.closest("[hidden]")?.removeAttribute("hidden");
  const text = `${count} of ${boxes.length} chosen${boxes.length > most ? `, at most ${most} at a time` : ""}`;
  const said = document.getElementById("chosen");
  if (said.textContent !== text) said.textContent = text; // a screen reader reads it each time that it is set
}

document.addEventListener("change", (event) => {
  if (event.target.id === "choose-all") {
    const form = event.target.form;
    form.querySelectorAll('input[name="lane"]').forEach((box, number) => {
      box.checked = event.target.checked && number < Number(form.dataset.choosing);
    });
  }
  chosen();
});
addEventListener("pageshow", chosen); // the browser's "back" restores what was chosen

// --- plots ---
// The server draws them. Here is only the line under the pointer, and the values of the nearest sample. A sample is its
// place from 0 to 1000, its time, and its values.
let pointer = null; // the plot under the pointer, and where in it

function point() {
  if (!pointer) return;
  const { plot, share } = pointer;
  const area = plot.querySelector(".area");
  const samples = (area?.dataset.points ?? "").split(";").map((sample) => sample.split(" "));
  const distance = ([place]) => Math.abs(place / 1000 - share);
  const [place, time, ...values] = samples.reduce((best, sample) => (distance(sample) < distance(best) ? sample : best));
  const lines = [...plot.querySelectorAll("[data-said]")];
  const text = `${time}: ${values.map((value, number) => `${value} ${lines[number]?.dataset.said}`).join(", ")}`;
  plot.querySelector("p.pointed").textContent = text;
  for (const end of ["x1", "x2"]) plot.querySelector("line.pointed").setAttribute(end, `${place / 10}%`);
}

function leave() {
  if (!pointer) return;
  const line = pointer.plot.querySelector("line.pointed");
  for (const end of ["x1", "x2"]) line?.removeAttribute(end);
  pointer.plot.querySelector("p.pointed")?.replaceChildren();
  pointer = null;
}

for (const kind of ["pointermove", "pointerdown"]) {
  document.addEventListener(kind, (event) => {
    const area = event.target.closest?.(".plot")?.querySelector(".area");
    if (!area) return leave();
    if (pointer && pointer.plot !== area.parentElement) leave();
    const box = area.getBoundingClientRect();
    pointer = { plot: area.parentElement, share: (event.clientX - box.left) / box.width };
    point();
  });
}
document.documentElement.addEventListener("pointerleave", leave);

// --- live tail ---
const MAX_TAIL_ROWS = 200;
const tail = document.getElementById("tail");
let followed = null;
tail?.addEventListener("click", () => {
  const state = document.getElementById("tail-state");
  const rows = document.getElementById("rows");
  if (followed) {
    followed.close();
    followed = null;
  } else {
    followed = new EventSource(tail.dataset.tail);
    followed.onmessage = (event) => {
      rows.insertAdjacentHTML("afterbegin", event.data);
      while (rows.rows.length > MAX_TAIL_ROWS) rows.deleteRow(-1);
    };
    followed.onerror = () => {
      if (followed?.readyState !== EventSource.CLOSED) return; // it connects again by itself
      followed = null;
      tail.setAttribute("aria-pressed", "false");
      tail.textContent = "Live tail";
      state.textContent = "The console refused the live tail: too many are open.";
    };
  }
  tail.setAttribute("aria-pressed", String(followed !== null));
  tail.textContent = followed ? "Pause" : "Live tail";
  state.textContent = followed ? "New messages appear at the top." : "Paused.";
});
