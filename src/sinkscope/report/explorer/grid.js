// Layer × head: how strong each head's largest key is on average over the steps (the paper's Figure 5). Click a cell to look at that head.

import { make, number } from "./dom.js";
import { css, ink, palette, shade } from "./colours.js";
import { canvasFigure } from "./download.js";
import { fitCanvas, hideTip, panel, showTip } from "./panel.js";
import { aliveKeys, limit, queryCount, scale } from "./rules.js";

const GRID_LEFT = 26, GRID_TOP = 16;
const SIGNS = { static: "●", moving: "→", left: "←", wander: "↔", flash: "✦", split: "◐", none: "" };

export function createGrid(app) {
  const picture = make("canvas", { "aria-hidden": "true" });
  const holder = make("div", {
    class: "holder grid",
    role: "application",
    tabindex: 0,
    "aria-roledescription": "grid of heads",
  }, picture);
  const live = make("p", { class: "quiet", "aria-live": "polite" });
  const key = make("p", {
    class: "legend",
    text: "● static  → moving right  ← moving left  ↔ wandering  ✦ flash  ◐ split by kind of query",
  });
  const frame = panel(
    "grid",
    "Layers and heads",
    "Score of each head’s largest key, averaged over the steps. Choose a cell to see that head; choose it again for the layer’s mean.",
    make("div", {}, holder, live, key),
    {
      figure: () =>
        canvasFigure(picture, {
          title: `${app.sample.model}: largest key of each head`,
          x: "head",
          y: "layer (downwards)",
        }),
      rows: () => ({
        names: [
          "layer",
          "head",
          `mean score of the largest key (${app.view.unit}, ${app.view.group} queries)`,
          "share of steps with a sink",
          "class",
        ],
        rows: cells.map((
          cell,
          i,
        ) => [Math.floor(i / app.sample.heads), i % app.sample.heads, cell.mean, cell.present, sign(i).name]),
      }),
    },
  );
  let cells = [], size = 20, version = 0;

  const sign = (index) => {
    const entry = app.sample.classes?.[index];
    if (!entry) return { name: "", mark: "" };
    const [name, way] = entry;
    return {
      name: way ? `${name} ${way}` : name,
      mark: name === "moving" ? SIGNS[way === "right" ? "moving" : way] ?? "→" : SIGNS[name],
    };
  };

  function measure(paths) {
    const { sample, view } = app, { steps, layers, heads } = sample;
    return Array.from({ length: layers * heads }, (_, index) => {
      let sum = 0, count = 0, sinks = 0;
      for (let step = 0; step < steps; step++) {
        const queries = queryCount(sample, view.group, step), keys = aliveKeys(sample, step);
        if (!queries) continue;
        const score = paths.scores[index * steps + step];
        const total = paths.totals ? paths.totals(index, step) : queries; // every query gives away exactly 1
        sum += score * scale(view.unit, queries, keys);
        sinks += score > limit(total, view.epsilon, view.unit, queries, keys);
        count++;
      }
      return { mean: count ? sum / count : 0, present: count ? sinks / count : 0 };
    });
  }

  function paint() {
    const { sample, view } = app, { layers, heads } = sample, colours = palette();
    const room = Math.max(120, (frame.element.clientWidth || 320) - 34 - GRID_LEFT);
    size = Math.max(6, Math.min(64, Math.floor(room / heads)));
    const high = Math.max(6, Math.min(size, 34, Math.floor(480 / layers)));
    const context = fitCanvas(picture, GRID_LEFT + size * heads + 2, GRID_TOP + high * layers + 2);
    const top = Math.max(...cells.map((cell) => cell.mean), 1e-9);
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    cells.forEach((cell, index) => {
      const layer = Math.floor(index / heads), head = index % heads, tone = shade(cell.mean, top);
      context.fillStyle = css(tone);
      context.fillRect(GRID_LEFT + head * size, GRID_TOP + layer * high, size - 1, high - 1);
      if (size >= 13 && high >= 12) {
        context.fillStyle = ink(tone);
        context.fillText(sign(index).mark, GRID_LEFT + (head + 0.5) * size, GRID_TOP + (layer + 0.5) * high);
      }
    });
    context.fillStyle = colours.muted;
    for (let head = 0; head < heads; head += size < 16 ? 4 : 1) {
      context.fillText(String(head), GRID_LEFT + (head + 0.5) * size, 7);
    }
    context.textAlign = "right";
    for (let layer = 0; layer < layers; layer += high < 11 ? 4 : 1) {
      context.fillText(String(layer), GRID_LEFT - 5, GRID_TOP + (layer + 0.5) * high);
    }
    context.strokeStyle = colours.sink;
    context.lineWidth = 2.5;
    if (view.layer >= 0) {
      const [from, wide] = view.head >= 0 ? [view.head, 1] : [0, heads];
      context.strokeRect(GRID_LEFT + from * size, GRID_TOP + view.layer * high, wide * size - 1, high - 1);
    }
    picture.dataset.size = size;
    picture.dataset.high = high;
    const chosen = view.layer >= 0 && view.head >= 0 ? view.layer * heads + view.head : -1;
    live.textContent = chosen >= 0
      ? `Layer ${view.layer}, head ${view.head}: largest key ${
        number(cells[chosen].mean)
      } ${view.unit} on average; a sink in ${Math.round(100 * cells[chosen].present)} % of the steps${
        sign(chosen).name ? `; ${sign(chosen).name}` : ""
      }.`
      : "No single head chosen.";
    holder.setAttribute(
      "aria-label",
      `Grid of ${layers} layers by ${heads} heads. Arrow keys choose a head, Escape goes back to the mean. ${live.textContent}`,
    );
  }

  const at = (event) => {
    const box = picture.getBoundingClientRect(), high = Number(picture.dataset.high);
    const head = Math.floor((event.clientX - box.left - GRID_LEFT) / size),
      layer = Math.floor((event.clientY - box.top - GRID_TOP) / high);
    return head >= 0 && head < app.sample.heads && layer >= 0 && layer < app.sample.layers ? { layer, head } : null;
  };
  holder.addEventListener("click", (event) => {
    const cell = at(event), { view } = app;
    if (cell) app.set(cell.layer === view.layer && cell.head === view.head ? { head: -1 } : cell);
  });
  holder.addEventListener("pointermove", (event) => {
    const cell = at(event);
    if (!cell || !cells.length) return hideTip();
    const index = cell.layer * app.sample.heads + cell.head;
    showTip(
      [
        ["", `Layer ${cell.layer}, head ${cell.head}`],
        ["largest key", `${number(cells[index].mean)} ${app.view.unit} on average`],
        ["has a sink", `${Math.round(100 * cells[index].present)} % of steps`],
        ...(sign(index).name ? [["class", sign(index).name]] : []),
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
      const mine = ++version, paths = await app.source.paths(app.view.group);
      if (mine !== version) return;
      cells = measure(paths);
      paint();
    },
    step() {},
  };
}
