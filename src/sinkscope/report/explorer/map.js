// Step × position: what every key received at every step (the paper's Figure 1), with sinks and the path of the largest.

import { make } from "./dom.js";
import { tipLines } from "./chips.js";
import { canvasFigure } from "./download.js";
import { HEAT, heatLegend, paintHeat } from "./heat.js";
import { hideTip, panel, showTip } from "./panel.js";
import { aliveKeys, isSink, queryCount, scale } from "./rules.js";

export function createMap(app) {
  const picture = make("canvas", { "aria-hidden": "true" });
  const row = make("div", { class: "over", "aria-hidden": "true" });
  const column = make("div", { class: "over", "aria-hidden": "true", hidden: true });
  const holder = make("div", { class: "holder", tabindex: 0, role: "img" }, picture, row, column);
  const legend = make("div", { class: "legend" });
  const body = make("div", {}, holder, legend);
  let geometry = null, pointed = -1;
  const frame = panel("map", "Attention received, step by step", "Down: denoising steps. Across: positions.", body, {
    figure: () =>
      canvasFigure(picture, { title: `${app.sample.model}: attention received. ${app.place()}`, x: "", y: "" }),
    rows: () => {
      const { sample, plane, view } = app, rows = [];
      for (let step = 0; step < sample.steps; step++) {
        const factor = scale(view.unit, queryCount(sample, view.group, step), aliveKeys(sample, step));
        for (let key = 0; key < sample.positions; key++) {
          const score = plane.values[step * sample.positions + key] * factor;
          rows.push([step, key, score, isSink(sample, plane, app.bounds, step, key) ? 1 : 0]);
        }
      }
      return { names: ["step", "position", `score (${view.unit}, ${view.group} queries)`, "sink"], rows };
    },
  });

  const place = (event) => {
    const box = picture.getBoundingClientRect(), { sample } = app;
    const key = Math.floor((event.clientX - box.left - HEAT.left) / geometry.cell);
    const step = Math.floor((event.clientY - box.top) / geometry.line);
    return key >= 0 && key < sample.positions && step >= 0 && step < sample.steps ? { key, step } : null;
  };
  const leave = () => {
    hideTip();
    app.point(-1);
  };
  holder.addEventListener("pointermove", (event) => {
    const at = geometry && place(event);
    if (!at) return leave();
    showTip(tipLines(app, at.step, at.key), event.clientX, event.clientY);
    app.point(at.key);
    if (event.buttons) app.set({ step: at.step });
  });
  holder.addEventListener("pointerleave", leave);
  holder.addEventListener("pointerdown", (event) => {
    const at = geometry && place(event);
    if (!at) return;
    app.pause();
    app.set({ step: at.step });
  });

  return {
    element: frame.element,
    draw() {
      const { sample } = app, width = Math.max(120, (frame.element.clientWidth || 600) - 34 - HEAT.left);
      const wanted = sample.steps * Math.max(3, Math.min(14, width / sample.positions));
      geometry = paintHeat(picture, app, width, Math.round(Math.min(520, Math.max(220, wanted))));
      row.style.width = `${width}px`;
      row.style.height = `${Math.max(3, geometry.line)}px`;
      column.style.width = `${Math.max(3, geometry.cell)}px`;
      column.style.height = `${geometry.height}px`;
      const size = `${sample.steps} steps by ${sample.positions} positions, ${geometry.dots} sinks marked`;
      holder.setAttribute("aria-label", `Map of attention received: ${size}. ${app.place()}`);
      legend.replaceChildren(...heatLegend(app));
      this.step();
    },
    step() {
      if (!geometry) return;
      // Moved by the compositor: nothing is repainted when the step changes.
      row.style.transform = `translate(${HEAT.left}px, ${app.view.step * geometry.line}px)`;
      column.hidden = pointed < 0;
      if (pointed >= 0) column.style.transform = `translate(${HEAT.left + pointed * geometry.cell}px, 0)`;
    },
    point(key) {
      if (key === pointed) return;
      pointed = key;
      this.step();
    },
  };
}
