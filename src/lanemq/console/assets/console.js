// What htmx does not do: the key "/", a refused event stream, choosing keys, the plots, and the live tail. Nothing here
// builds HTML from data.
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

// What a person has opened stays open when the page is brought up to date.
htmx.config.morphIgnore.push("open");

// The event stream of a page is refused while too many are open, or cannot be reached while the console restarts. The
// page says so, keeps what it shows, and tries again.
const RETRY_MS = 10000;
const live = document.getElementById("live");
const refused = document.getElementById("live-refused");
htmx.config.noSwap.push(503);

function notLive(why) {
  refused.textContent = `This page is not kept up to date. ${why}`;
  refused.hidden = false;
}

function connectLater() {
  setTimeout(() => {
    if (!live._htmx?.sse) htmx.ajax("GET", live.getAttribute("hx-sse:connect"), { source: live });
  }, RETRY_MS);
}

live?.addEventListener("htmx:response:error", (event) => {
  const { status, raw } = event.detail.ctx.response;
  if (status !== 503) return;
  notLive(raw.headers.get("content-type")?.startsWith("text/plain") ? event.detail.ctx.text : "The console is busy.");
  connectLater();
});
live?.addEventListener("htmx:error", (event) => {
  if (event.target !== live || live._htmx?.sse) return;
  notLive("The console does not answer.");
  connectLater();
});
// htmx itself tries again after a stream that was open has ended.
live?.addEventListener("htmx:sse:error", (event) => {
  if (event.detail.status === 503) notLive("Too many pages of this console are open.");
});
live?.addEventListener("htmx:sse:after:connection", () => { refused.hidden = true; });

// Choosing keys: all at once, up to the most that one redrive takes, and how many are chosen.
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
document.addEventListener("htmx:sse:after:message", chosen);
addEventListener("pageshow", chosen); // the browser's "back" restores what was chosen

// Plots: drawn once, then given new data.
const plots = new Map();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const SERIES = {
  rates: [["stored", "--accent"], ["finished", "--busy"]],
  late: [["late", "--warn"]],
  behind: [["behind", "--accent"]],
};

function axis(unit) {
  return { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
    font: "12px system-ui, sans-serif", size: unit === "y" ? 52 : 26 };
}

// Steps between the lines of a plot of whole things.
const WHOLE = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));

// Hours and minutes; with seconds if the ticks are less than a minute apart.
function clocks(times) {
  const parts = times.length > 1 && times[1] - times[0] < 60 ? 3 : 2;
  return times.map((seconds) => {
    const when = new Date(seconds * 1000);
    return [when.getHours(), when.getMinutes(), when.getSeconds()].slice(0, parts).map((part) => String(part).padStart(2, "0")).join(":");
  });
}

function draw(element, data) {
  const wanted = SERIES[element.dataset.plot];
  const columns = [data.time, ...wanted.map(([name]) => data[name])];
  const known = plots.get(element);
  if (known) {
    known.setData(columns);
    return;
  }
  if (data.time.length < 2) return;
  element.textContent = "";
  const options = {
    width: element.clientWidth, height: 185, legend: { show: false }, cursor: { show: false }, padding: [10, 28, 0, 0],
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [{ ...axis("x"), space: 70, values: (_, times) => clocks(times) },
      { ...axis("y"), ...(element.dataset.plot === "behind" ? { incrs: WHOLE } : {}) }],
    series: [{}, ...wanted.map(([name, tone]) => ({ label: name, stroke: colour(tone), width: 2, points: { show: false } }))],
  };
  plots.set(element, new uPlot(options, columns, element));
}

async function refreshPlots() {
  const elements = [...document.querySelectorAll("[data-plot]")];
  if (!elements.length || document.hidden) return;
  for (const source of new Set(elements.map((element) => element.dataset.source))) {
    try {
      const answer = await fetch(source);
      if (!answer.ok) continue;
      const data = await answer.json();
      elements.filter((element) => element.dataset.source === source).forEach((element) => draw(element, data));
    } catch {
      // The console is away; the next refresh tries again.
    }
  }
}

if (document.querySelector("[data-plot]")) {
  refreshPlots();
  setInterval(refreshPlots, 2000);
  addEventListener("resize", () => plots.forEach((plot, element) => plot.setSize({ width: element.clientWidth, height: 185 })));
}

// The live tail: rows come from the server, escaped there.
const MAX_TAIL_ROWS = 200;
const tail = document.getElementById("tail");
let stream = null;
tail?.addEventListener("click", () => {
  const state = document.getElementById("tail-state");
  const rows = document.getElementById("rows");
  if (stream) {
    stream.close();
    stream = null;
  } else {
    stream = new EventSource(tail.dataset.tail);
    stream.onmessage = (event) => {
      rows.insertAdjacentHTML("afterbegin", event.data);
      while (rows.rows.length > MAX_TAIL_ROWS) rows.deleteRow(-1);
    };
    stream.onerror = () => {
      if (stream?.readyState !== EventSource.CLOSED) return; // it connects again by itself
      stream = null;
      tail.setAttribute("aria-pressed", "false");
      tail.textContent = "Live tail";
      state.textContent = "The console refused the live tail: too many are open.";
    };
  }
  tail.setAttribute("aria-pressed", String(stream !== null));
  tail.textContent = stream ? "Pause" : "Live tail";
  state.textContent = stream ? "New messages appear at the top." : "Paused.";
});
