// One step, cut out of the map: the score of every key, and the line that a sink must pass.

import { make, number } from "./dom.js";
import { palette } from "./colours.js";
import { canvasFigure } from "./download.js";
import { fitCanvas, hideTip, panel, showTip } from "./panel.js";
import { aliveKeys, isSink, queryCount, scale } from "./rules.js";
import { describe, tipLines } from "./chips.js";
import { niceStep } from "./heat.js";

const BARS_LEFT = 34, BARS_BOTTOM = 20, BARS_HEIGHT = 150;

export function createProfile(app) {
  const picture = make("canvas", { "aria-hidden": "true" });
  const holder = make("div", { class: "holder", role: "img", tabindex: 0 }, picture);
  const frame = panel(
    "profile",
    "This step",
    "Score of every key at the current step; the dashed line is the limit that a sink must pass.",
    holder,
    {
      figure: () =>
        canvasFigure(picture, {
          title: `${app.sample.model}, step ${app.view.step + 1}. ${app.place()}`,
          x: "position",
          y: `score (${app.view.unit})`,
        }),
      rows: () => ({
        names: ["position", "token", `score (${app.view.unit}, ${app.view.group} queries)`, "sink"],
        rows: Array.from({ length: app.sample.positions }, (_, key) => {
          const d = describe(app, app.view.step, key);
          return [key, d.text, d.score, d.sink ? 1 : 0];
        }),
      }),
    },
  );
  let width = 0;
  holder.addEventListener("pointermove", (event) => {
    const key = Math.floor(
      (event.clientX - picture.getBoundingClientRect().left - BARS_LEFT) / (width / app.sample.positions),
    );
    if (key < 0 || key >= app.sample.positions) {
      hideTip();
      return app.point(-1);
    }
    showTip(tipLines(app, app.view.step, key), event.clientX, event.clientY);
    app.point(key);
  });
  holder.addEventListener("pointerleave", () => {
    hideTip();
    app.point(-1);
  });
  return {
    element: frame.element,
    draw() {
      this.step();
    },
    step() {
      const { sample, plane, view, bounds } = app, step = view.step, row = step * sample.positions, colours = palette();
      const factor = scale(view.unit, queryCount(sample, view.group, step), aliveKeys(sample, step));
      width = Math.max(120, (frame.element.clientWidth || 600) - 34 - BARS_LEFT);
      const context = fitCanvas(picture, width + BARS_LEFT, BARS_HEIGHT + BARS_BOTTOM);
      let best = 0;
      for (let key = 0; key < sample.positions; key++) best = Math.max(best, plane.values[row + key]);
      const bound = bounds[step], shown = Number.isFinite(bound) ? bound : 0, top = Math.max(best, shown) * 1.14 || 1;
      const y = (value) => BARS_HEIGHT - (value / top) * (BARS_HEIGHT - 6), cell = width / sample.positions;
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      const every = niceStep(top * factor * 1000, 4) / 1000;
      for (let tick = 0; tick <= top * factor; tick += every) {
        context.strokeStyle = colours.line;
        context.beginPath();
        context.moveTo(BARS_LEFT, Math.round(y(tick / factor)) + 0.5);
        context.lineTo(BARS_LEFT + width, Math.round(y(tick / factor)) + 0.5);
        context.stroke();
        context.fillStyle = colours.muted;
        context.textAlign = "right";
        context.fillText(number(tick, every < 1 ? 1 : 0), BARS_LEFT - 5, Math.max(7, y(tick / factor)));
      }
      for (let key = 0; key < sample.positions; key++) {
        const value = plane.values[row + key],
          x = BARS_LEFT + key * cell,
          sink = isSink(sample, plane, bounds, step, key);
        context.fillStyle = sink ? colours.sink : colours.series[0];
        context.fillRect(
          x + (cell > 4 ? 0.5 : 0),
          y(value),
          Math.max(1, cell - (cell > 4 ? 1 : 0)),
          BARS_HEIGHT - y(value),
        );
        if (sink) {
          context.beginPath();
          context.moveTo(x + cell / 2 - 4, y(value) - 7);
          context.lineTo(x + cell / 2 + 4, y(value) - 7);
          context.lineTo(x + cell / 2, y(value) - 1.5);
          context.fill();
        }
      }
      if (Number.isFinite(bound)) {
        context.strokeStyle = colours.ink;
        context.setLineDash([5, 4]);
        context.beginPath();
        context.moveTo(BARS_LEFT, y(bound));
        context.lineTo(BARS_LEFT + width, y(bound));
        context.stroke();
        context.setLineDash([]);
        context.fillStyle = colours.ink;
        context.textAlign = "right";
        context.fillText(`limit ${number(bound * factor)}`, BARS_LEFT + width, y(bound) - 8);
      }
      context.fillStyle = colours.muted;
      context.textAlign = "center";
      context.textBaseline = "top";
      for (let key = 0; key < sample.positions; key += niceStep(sample.positions, width / 44)) {
        context.fillText(String(key), BARS_LEFT + (key + 0.5) * cell, BARS_HEIGHT + 5);
      }
      holder.setAttribute(
        "aria-label",
        `Score by position at step ${step + 1}: largest ${number(best * factor)} ${view.unit} at position ${
          app.leaders[step]
        }, limit ${number(bound * factor)}, ${app.sinksAt(step).length} sinks.`,
      );
    },
  };
}
