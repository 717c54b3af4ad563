// The canvas as text: masks as masks, shade = attention received, a triangle and a ring on every sink.

import { make, number, visible } from "./dom.js";
import { css, ink, shade } from "./colours.js";
import { hideTip, panel, showTip } from "./panel.js";
import { aliveKeys, isSink, queryCount, scale } from "./rules.js";
import { halfTable } from "./decode.js";

export function describe(app, step, key) {
  const { sample, plane, view, source } = app;
  const [text, kind] = sample.vocabulary[source.canvas[step * sample.positions + key]];
  const queries = queryCount(sample, view.group, step), keys = aliveKeys(sample, step);
  const score = plane.values[step * sample.positions + key] * scale(view.unit, queries, keys);
  const committed = sample.committedAt[key];
  const confidence = halfTable()[source.confidence[step * sample.positions + key]];
  return {
    text,
    kind,
    score,
    committed,
    confidence,
    sink: isSink(sample, plane, app.bounds, step, key),
    there: key < keys,
    part: key < sample.promptLength ? "prompt" : kind === "mask" ? "masked" : "committed",
  };
}

export function tipLines(app, step, key) {
  const about = describe(app, step, key), { view } = app;
  return [
    ["", visible(about.text, 120)],
    ["kind", about.kind],
    ["position", String(key)],
    ["step", String(step + 1)],
    ["received", `${number(about.score, 3)} ${view.unit} from ${view.group} queries`],
    ["sink", about.sink ? "yes" : "no"],
    ["on canvas as", about.part],
    about.committed >= 0 ? ["committed", `at step ${about.committed + 1}`] : null,
    Number.isNaN(about.confidence) ? null : ["confidence", number(about.confidence, 3)],
  ].filter(Boolean);
}

// Chips have 36 shades: finer ones cannot be told apart on words, and every change is a word painted anew.
function chipShade(index) {
  return Math.min(255, Math.round(index / 7) * 7);
}

export function createStrip(app) {
  const list = make("ol", { class: "strip", "aria-label": "Tokens on the canvas", tabindex: 0 });
  let chips = [], past = [], last = 0;
  const frame = panel("strip", "Canvas", "", list, {
    wide: true,
    rows: () => ({
      names: ["step", "position", "token", "kind", `score (${app.view.unit}, ${app.view.group} queries)`, "sink"],
      rows: chips.map((_, key) => {
        const d = describe(app, app.view.step, key);
        return [app.view.step, key, d.text, d.kind, d.score, d.sink ? 1 : 0];
      }),
    }),
  });
  const at = (event) => {
    const chip = event.target.closest("li");
    return chip ? Number(chip.dataset.key) : -1;
  };
  list.addEventListener("pointermove", (event) => {
    const key = at(event);
    if (key < 0) hideTip();
    else {
      showTip(tipLines(app, app.view.step, key), event.clientX, event.clientY);
      app.point(key);
    }
  });
  list.addEventListener("pointerleave", () => {
    hideTip();
    app.point(-1);
  });
  return {
    element: frame.element,
    draw() {
      if (chips.length !== app.sample.positions || list.dataset.sample !== String(app.view.sample)) {
        list.dataset.sample = app.view.sample;
        chips = Array.from(
          { length: app.sample.positions },
          (_, key) => make("li", { class: "chip", "data-key": key }, make("span", {})),
        );
        past = chips.map(() => ({}));
        chips[app.sample.promptLength]?.classList.add("first");
        list.replaceChildren(...chips);
      }
      past.forEach((state) => {
        state.shade = -1;
      });
      this.step();
    },
    step() {
      const { sample, source, plane, view } = app,
        step = view.step,
        row = step * sample.positions,
        alive = aliveKeys(sample, step);
      const now = performance.now(), calm = now - last > 110; // fading in is for eyes that can follow
      last = now;
      for (let key = 0; key < chips.length; key++) {
        const chip = chips[key],
          state = past[key],
          token = source.canvas[row + key],
          index = chipShade(shade(plane.values[row + key], plane.top));
        if (state.token !== token) {
          const [text, kind] = sample.vocabulary[token], masked = kind === "mask";
          chip.firstChild.textContent = masked ? "▢" : visible(text) || "∅";
          chip.classList.toggle("masked", masked);
          chip.classList.toggle(
            "fresh",
            calm && state.token !== undefined && !masked && sample.committedAt[key] === step - 1,
          );
          chip.setAttribute("aria-label", masked ? "mask" : visible(text));
          state.token = token;
        }
        const there = key < alive;
        if (state.there !== there) {
          chip.classList.toggle("absent", !there);
          state.there = there;
        }
        if (state.shade !== index) {
          chip.style.backgroundColor = css(index);
          chip.style.color = ink(index);
          state.shade = index;
        }
        const sink = isSink(sample, plane, app.bounds, step, key);
        if (state.sink !== sink) {
          chip.classList.toggle("sink", sink);
          state.sink = sink;
        }
      }
      const names = app.sinksAt(step).slice(0, 6).map((key) =>
        `${visible(sample.vocabulary[source.canvas[row + key]][0], 14)} at ${key}`
      );
      frame.note.textContent = `${app.place()} Sinks: ${names.length ? names.join(", ") : "none at this ε"}.`;
    },
  };
}
