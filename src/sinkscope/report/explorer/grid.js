// Layer × head: how strong each head's largest key is on average (the paper's Figure 5) and what its sinks do, for the
// ε, unit and kind of query on screen. Click a cell to look at that head.

import { make, number } from "./dom.js";
import { css, ink, palette, shade } from "./colours.js";
import { className, classSign } from "./classes.js";
import { canvasFigure } from "./download.js";
import { colourScale } from "./heat.js";
import { fitCanvas, hideTip, panel, showTip } from "./panel.js";
import { UNITS } from "./rules.js";

const GRID = { left: 40, top: 32 };
const KEY = "● static  → moving right  ← moving left  ↔ wandering  ✦ flash  ◐ split by kind of query";
const ABOUT = "Score of each head’s largest key, averaged over the steps, and what its sinks do at this ε. " +
  "Choose a cell to see that head; choose it again for the layer’s mean.";

export function createGrid(app) {
  const picture = make("canvas", { "aria-hidden": "true" });
  const holder = make("div", {
    class: "holder grid",
    role: "application",
    tabindex: 0,
    "aria-roledescription": "grid of heads",
  }, picture);
  const live = make("p", { class: "quiet", "aria-live": "polite" });
  const legend = make("div", { class: "legend" }), key = make("p", { class: "legend", text: KEY });
  const jump = ["moving", "static"].map((name) =>
    make("button", { type: "button", class: "jump", text: `Next ${name} head`, onclick: () => app.nextHead(name) })
  );
  const said = make("span", { class: "about", role: "status" });
  const body = make("div", {}, make("div", { class: "jumps" }, jump, said), holder, live, legend, key);
  const frame = panel("grid", "Layers and heads", ABOUT, body, {
    figure: () => canvasFigure(picture, { title: `${app.sample.model}: largest key of each head`, x: "", y: "" }),
    rows: () => ({
      names: [
        "layer",
        "head",
        `mean score of the largest key (${app.view.unit}, ${app.view.group} queries)`,
        "share of steps with a sink",
        `class (ε = ${app.view.epsilon})`,
      ],
      rows: cells.map((cell, i) => [
        Math.floor(i / app.sample.heads),
        i % app.sample.heads,
        cell.mean,
        cell.present,
        className(cell),
      ]),
    }),
  });
  let cells = [], size = 20, version = 0;

  function paint() {
    const { sample, view } = app, { layers, heads } = sample;
    const room = Math.max(120, (frame.element.clientWidth || 320) - 34 - GRID.left);
    size = Math.max(6, Math.min(64, Math.floor(room / heads)));
    const high = Math.max(6, Math.min(size, 34, Math.floor(480 / layers)));
    const context = fitCanvas(picture, GRID.left + size * heads + 2, GRID.top + high * layers + 2);
    const top = Math.max(...cells.map((cell) => cell.mean), 1e-9);
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    cells.forEach((cell, index) => {
      const layer = Math.floor(index / heads), head = index % heads, tone = shade(cell.mean, top);
      context.fillStyle = css(tone);
      context.fillRect(GRID.left + head * size, GRID.top + layer * high, size - 1, high - 1);
      if (size >= 13 && high >= 12) {
        context.fillStyle = ink(tone);
        context.fillText(classSign(cell), GRID.left + (head + 0.5) * size, GRID.top + (layer + 0.5) * high);
      }
    });
    axes(context, size, high);
    context.strokeStyle = palette().sink;
    context.lineWidth = 2.5;
    if (view.layer >= 0) {
      const [from, wide] = view.head >= 0 ? [view.head, 1] : [0, heads];
      context.strokeRect(GRID.left + from * size, GRID.top + view.layer * high, wide * size - 1, high - 1);
    }
    picture.dataset.size = size;
    picture.dataset.high = high;
    picture.dataset.left = GRID.left;
    picture.dataset.top = GRID.top;
    legend.replaceChildren(...colourScale("0", `${number(top, 1)} ${UNITS[view.unit].label}, mean of the largest key`));
    key.textContent = cells.some((cell) => cell.rough)
      ? `${KEY} (from each head’s largest key alone: this file keeps no more)`
      : KEY;
    speak();
  }

  function axes(context, wide, high) {
    const { layers, heads } = app.sample;
    context.fillStyle = palette().muted;
    context.font = "11px system-ui, sans-serif";
    for (let head = 0; head < heads; head += wide < 16 ? 4 : 1) {
      context.fillText(String(head), GRID.left + (head + 0.5) * wide, 23);
    }
    context.fillText("head", GRID.left + (heads * wide) / 2, 8);
    context.textAlign = "right";
    for (let layer = 0; layer < layers; layer += high < 11 ? 4 : 1) {
      context.fillText(String(layer), GRID.left - 5, GRID.top + (layer + 0.5) * high);
    }
    context.save();
    context.translate(9, GRID.top + (layers * high) / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText("layer", 0, 0);
    context.restore();
  }

  function speak() {
    const { sample, view } = app, { layers, heads } = sample;
    const cell = view.layer >= 0 && view.head >= 0 ? cells[view.layer * heads + view.head] : null;
    live.textContent = cell
      ? `Layer ${view.layer}, head ${view.head}: largest key ${number(cell.mean)} ${
        UNITS[view.unit].label
      } on average; ` +
        `a sink in ${Math.round(100 * cell.present)} % of the steps${cell.name ? `; ${className(cell)}` : ""}.`
      : "No single head chosen.";
    holder.setAttribute(
      "aria-label",
      `Grid of ${layers} layers by ${heads} heads. Arrow keys choose a head, Escape goes back to the mean. ${live.textContent}`,
    );
  }

  const at = (event) => {
    const box = picture.getBoundingClientRect(), high = Number(picture.dataset.high);
    const head = Math.floor((event.clientX - box.left - GRID.left) / size);
    const layer = Math.floor((event.clientY - box.top - GRID.top) / high);
    return head >= 0 && head < app.sample.heads && layer >= 0 && layer < app.sample.layers ? { layer, head } : null;
  };
  holder.addEventListener("click", (event) => {
    const cell = at(event), { view } = app;
    if (cell) app.set(cell.layer === view.layer && cell.head === view.head ? { head: -1 } : cell);
  });
  holder.addEventListener("pointermove", (event) => {
    const place = at(event);
    if (!place || !cells.length) return hideTip();
    const cell = cells[place.layer * app.sample.heads + place.head];
    showTip(
      [
        ["", `Layer ${place.layer}, head ${place.head}`],
        ["largest key", `${number(cell.mean)} ${UNITS[app.view.unit].label} on average`],
        ["has a sink", `${Math.round(100 * cell.present)} % of steps`],
        ...(cell.name ? [["class", className(cell)]] : []),
      ],
      event.clientX,
      event.clientY,
    );
  });
  holder.addEventListener("pointerleave", hideTip);
  holder.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") app.set({ layer: -1, head: -1 });
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    const { view, sample } = app, clamp = (value, top) => Math.min(top - 1, Math.max(0, value));
    app.set(
      view.layer < 0 || view.head < 0
        ? { layer: Math.max(0, view.layer), head: 0 }
        : { layer: clamp(view.layer + move[0], sample.layers), head: clamp(view.head + move[1], sample.heads) },
    );
  });
  return {
    element: frame.element,
    async draw() {
      const mine = ++version, found = await app.source.heads(app.view);
      if (mine !== version) return;
      cells = found;
      said.textContent = app.notice;
      paint();
    },
    step() {},
  };
}
