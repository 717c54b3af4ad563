// One decode: its canvas as it fills, its heads, and, when it is done, what was removed and how to repeat it.

import { make, visible } from "../dom.js";
import { createGrid } from "./grid.js";
import { stream } from "./stream.js";

const PACE = 45; // milliseconds for which each step is shown at least, so that fast models can be watched

export function createColumn(asked, title, hooks) {
  const state = { vocabulary: {}, events: [], shown: null, done: null, prompt: 0, chosen: null };
  const stopper = new AbortController();
  const strip = make("div", { class: "tokens", role: "group", "aria-label": "Canvas" });
  const status = make("p", { class: "status", role: "status", text: "waiting…" });
  const facts = make("div", { class: "outcome" });
  const grid = createGrid((layer, head) => {
    state.chosen = { layer, head };
    paint(state.shown);
    hooks.head(element, layer, head);
  });
  grid.name((key) => textAt(key));
  const element = make(
    "section",
    { class: "panel column", "aria-label": title },
    make("h2", { text: visible(title, 80) }),
    status,
    strip,
    grid.element,
    facts,
  );
  const chips = [];

  function textAt(key) {
    const token = state.shown?.canvas[key];
    return visible(state.vocabulary[token]?.[0] ?? "", 20);
  }

  function chip(key) {
    while (chips.length <= key) {
      const place = chips.length;
      const one = make("button", { type: "button", class: "token", onclick: () => hooks.token(element, place) });
      chips.push(one);
      strip.append(one);
    }
    return chips[key];
  }

  function paint(event) {
    if (!event) return;
    const most = Math.max(...event.share, 1e-6);
    event.canvas.forEach((token, key) => {
      const one = chip(key), [text, kind] = state.vocabulary[token] ?? ["", "unknown"];
      const share = event.share[key] ?? 0, sinks = event.sinks[key] ?? 0;
      const open = kind === "mask", label = open ? "▒" : visible(text, 16) || "·";
      if (one.textContent !== label) one.textContent = label;
      one.style.setProperty("--share", (share / most).toFixed(3));
      one.classList.toggle("open", open);
      one.classList.toggle("sink", sinks > 0);
      const of = `receives ${(100 * share).toFixed(1)} % on average`;
      one.title = `position ${key}: ${label}, ${of}, sink of ${sinks} heads`;
      one.setAttribute("aria-label", one.title);
      one.setAttribute("aria-pressed", String(state.token === key));
    });
    grid.paint(event, state.chosen);
    element.dataset.step = event.step;
    if (!state.done) status.textContent = `step ${event.step + 1}`;
  }

  let drawn = 0;
  function show() {
    if (!state.events.length) return;
    const late = state.events.length > 120 ? state.events.length - 120 : 1;
    for (let i = 0; i < late; i++) state.shown = state.events.shift();
    paint(state.shown);
    drawn++;
    element.dataset.drawn = drawn;
    if (state.events.length) setTimeout(show, PACE);
    else if (state.result) finish();
    else state.idle = true;
  }

  function take(event) {
    Object.assign(state.vocabulary, event.vocabulary);
    if (event.loading) status.textContent = `loading ${visible(event.loading, 60)}…`;
    else if (event.error) fail(event.error);
    else if (event.stopped) fail("stopped");
    else if (event.done) {
      state.result = event;
      if (state.idle || !state.shown) finish();
    } else {
      state.events.push(event);
      if (state.idle) {
        state.idle = false;
        show();
      }
    }
  }
  state.idle = true;

  function fail(text) {
    status.textContent = visible(text, 300);
    element.dataset.state = "failed";
  }

  function finish() {
    const done = state.done = state.result;
    if (state.shown) paint({ ...state.shown, canvas: done.tokens });
    const removed = done.removed === null || done.removed === undefined
      ? ""
      : `, ${(100 * done.removed).toFixed(1)} % of the attention removed`;
    status.textContent = `${done.steps} steps in ${done.seconds} s${removed}`;
    const python = make("pre", { text: done.python, tabindex: 0 });
    const copy = make("button", {
      type: "button",
      text: "Copy",
      onclick: () => navigator.clipboard?.writeText(done.python),
    });
    const links = make(
      "p",
      { class: "links" },
      make("a", { href: `trace/${done.trace}/`, target: "_blank", rel: "noopener", text: "Open in the explorer" }),
      make("a", {
        href: `trace/${done.trace}/data/0/file`,
        download: `decode-${done.trace + 1}.safetensors`,
        text: "Save the trace",
      }),
    );
    facts.replaceChildren(
      links,
      make("details", {}, make("summary", { text: "The same in Python" }), python, copy),
    );
    element.dataset.state = "done";
    hooks.done(element);
  }

  const column = {
    element,
    asked,
    get done() {
      return state.done;
    },
    // Tokens of the answer that differ from another decode's are marked; how many.
    compare(other) {
      if (!other?.done || !state.done || other === column) return 0;
      let count = 0;
      state.done.tokens.forEach((token, key) => {
        const differs = key >= state.done.prompt && other.done.tokens[key] !== token;
        chips[key]?.classList.toggle("differs", differs);
        count += differs;
      });
      if (!status.textContent.includes("differ")) status.textContent += `; ${count} tokens differ from the first`;
      return count;
    },
    choose(key) {
      state.token = key;
      paint(state.done && state.shown ? { ...state.shown, canvas: state.done.tokens } : state.shown);
    },
    stop: () => stopper.abort(),
    async run() {
      element.dataset.state = "running";
      try {
        await stream(asked, stopper.signal, take);
      } catch (error) {
        fail(error.name === "AbortError" ? "stopped" : error.message);
      }
    },
  };
  return column;
}
