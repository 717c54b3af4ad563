// The logit lens at one position: what each layer would write there, were it the last, step by step.

import { make, number, visible } from "./dom.js";
import { css, ink, shade } from "./colours.js";
import { hideTip, panel, showTip } from "./panel.js";

const ABOUT = "What each layer would write at this position, were it the last: rows are layers, columns are steps, " +
  "darker is more confident. Choose a position here, or point at a token of the canvas.";
const SHOWN = 24; // steps at once: a table of any trace stays small

export function createLens(app) {
  const choice = make("select", { id: "lens-position", onchange: () => choose(Number(choice.value)) });
  const field = make(
    "label",
    { class: "field" },
    make("span", { class: "field-name", text: "Position" }),
    choice,
  );
  const table = make("table", { class: "lens" });
  const holder = make("div", { class: "lens-holder", tabindex: 0, role: "region", "aria-label": "Lens" }, table);
  const frame = panel("lens", "Lens: tokens by layer", ABOUT, make("div", {}, field, holder), {
    wide: true,
    rows: () => ({
      names: ["position", "step", "layer", "choice", "token", "probability"],
      rows: allRows(app, place),
    }),
  });
  let place = 0, known = null, first = -1, cells = [];

  function choose(key) {
    if (!app.sample.lens || key < 0 || key >= app.sample.positions) return;
    place = key;
    choice.value = String(key);
    first = -1;
    fill();
  }

  function offer() {
    const { sample, source } = app, last = sample.steps * sample.positions;
    choice.replaceChildren(...Array.from({ length: sample.positions }, (_, key) => {
      const [text] = sample.vocabulary[source.canvas[last + key]];
      return make("option", { value: key, text: `${key}: ${visible(text, 24)}` });
    }));
    known = sample;
    place = Math.min(sample.promptLength, sample.positions - 1);
    choice.value = String(place);
    first = -1;
  }

  // The steps on screen: a page of them, so that stepping moves a mark and seldom the whole table.
  function fill() {
    const { sample, view } = app, from = Math.floor(view.step / SHOWN) * SHOWN;
    if (from !== first) {
      first = from;
      const steps = Array.from({ length: Math.min(SHOWN, sample.steps - from) }, (_, i) => from + i);
      const head = make(
        "tr",
        {},
        make("th", { scope: "col", text: "layer" }),
        steps.map((step) => make("th", { scope: "col", text: String(step + 1) })),
      );
      cells = [];
      const body = Array.from({ length: sample.layers }, (_, row) => {
        const layer = sample.layers - 1 - row; // the last layer on top
        const made = steps.map((step) => cell(layer, step));
        cells.push(...made);
        return make("tr", {}, make("th", { scope: "row", text: String(layer) }), made.map((one) => one.element));
      });
      table.replaceChildren(make("thead", {}, head), make("tbody", {}, body));
    }
    for (const one of cells) one.element.classList.toggle("now", one.step === view.step);
  }

  function cell(layer, step) {
    const [best] = choices(app, place, layer, step);
    const index = shade(best.probability, 1), known = best.probability > 0;
    const element = make("td", {
      text: known ? visible(best.word, 10) || "∅" : "",
      "aria-label": known ? `${visible(best.word, 40)}, ${number(100 * best.probability, 0)} %` : "not computed",
    });
    if (known) {
      element.style.backgroundColor = css(index);
      element.style.color = ink(index);
    }
    element.addEventListener("pointermove", (event) => {
      const lines = choices(app, place, layer, step).filter((one) => one.probability > 0);
      showTip(
        [
          ["", `Layer ${layer}, step ${step + 1}, position ${place}`],
          ...lines.map((one) => [visible(one.word, 40) || "∅", `${number(100 * one.probability, 1)} %`]),
        ],
        event.clientX,
        event.clientY,
      );
    });
    element.addEventListener("pointerleave", hideTip);
    return { element, step };
  }

  return {
    element: frame.element,
    draw() {
      const has = Boolean(app.sample.lens && app.source.parts?.lensTokens);
      frame.element.hidden = !has;
      if (!has) return;
      if (known !== app.sample) offer();
      first = -1; // colours may have changed
      fill();
    },
    step() {
      if (!frame.element.hidden) fill();
    },
    point(key) {
      if (key >= 0 && key !== place && !frame.element.hidden) choose(key);
    },
  };
}

// The top tokens of a layer at a position and step, the likeliest first.
function choices(app, place, layer, step) {
  const { sample, source } = app, { words, top } = sample.lens;
  const start = ((place * sample.layers + layer) * sample.steps + step) * top;
  return Array.from({ length: top }, (_, i) => ({
    word: words[source.parts.lensTokens[start + i]],
    probability: source.parts.lensSure[start + i] / 255,
  }));
}

function allRows(app, place) {
  const { sample } = app, rows = [];
  for (let step = 0; step < sample.steps; step++) {
    for (let layer = 0; layer < sample.layers; layer++) {
      choices(app, place, layer, step).forEach((one, i) =>
        rows.push([place, step, layer, i, one.word, one.probability])
      );
    }
  }
  return rows;
}
