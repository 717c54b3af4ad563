// Step × position: what every key received at every step (the paper's Figure 1), with sinks and the path of the largest.

import { make, number } from "./dom.js";
import { css, palette, shade, table } from "./colours.js";
import { canvasFigure } from "./download.js";
import { fitCanvas, hideTip, panel, showTip } from "./panel.js";
import { aliveKeys, isSink, queryCount, scale } from "./rules.js";
import { tipLines } from "./strip.js";

const MAP_LEFT = 34, MAP_BOTTOM = 22;

export function createMap(app) {
  const picture = make("canvas", { "aria-hidden": "true" }),
    row = make("div", { class: "over", "aria-hidden": "true" }),
    column = make("div", { class: "over", "aria-hidden": "true", hidden: true });
  const holder = make("div", { class: "holder", tabindex: 0, role: "img" }, picture, row, column);
  const legend = make("div", { class: "legend" });
  const body = make("div", {}, holder, legend);
  let geometry = null, pointed = -1;
  const frame = panel("map", "Attention received, step by step", "Down: denoising steps. Across: positions.", body, {
    figure: () =>
      canvasFigure(picture, {
        title: `${app.sample.model}: attention received. ${app.place()}`,
        x: "position",
        y: "step (downwards)",
      }),
    rows: () => {
      const { sample, plane, view } = app, rows = [];
      for (let step = 0; step < sample.steps; step++) {
        const factor = scale(view.unit, queryCount(sample, view.group, step), aliveKeys(sample, step));
        for (let key = 0; key < sample.positions; key++) {
          rows.push([
            step,
            key,
            plane.values[step * sample.positions + key] * factor,
            isSink(sample, plane, app.bounds, step, key) ? 1 : 0,
          ]);
        }
      }
      return { names: ["step", "position", `score (${view.unit}, ${view.group} queries)`, "sink"], rows };
    },
  });
  const place = (event) => {
    const box = picture.getBoundingClientRect(), { sample } = app;
    const key = Math.floor((event.clientX - box.left - MAP_LEFT) / geometry.cell),
      step = Math.floor((event.clientY - box.top) / geometry.line);
    return key >= 0 && key < sample.positions && step >= 0 && step < sample.steps ? { key, step } : null;
  };
  holder.addEventListener("pointermove", (event) => {
    const at = geometry && place(event);
    if (!at) {
      hideTip();
      return app.point(-1);
    }
    showTip(tipLines(app, at.step, at.key), event.clientX, event.clientY);
    app.point(at.key);
    if (event.buttons) app.set({ step: at.step });
  });
  holder.addEventListener("pointerleave", () => {
    hideTip();
    app.point(-1);
  });
  holder.addEventListener("pointerdown", (event) => {
    const at = geometry && place(event);
    if (at) {
      app.pause();
      app.set({ step: at.step });
    }
  });

  function axes(context, width, height) {
    const { sample } = app, { cell, line } = geometry, colours = palette();
    context.fillStyle = colours.muted;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = niceStep(sample.steps, height / 26), across = niceStep(sample.positions, width / 44);
    for (let step = 0; step < sample.steps; step += every) {
      context.fillText(String(step + 1), MAP_LEFT - 5, Math.max(6, (step + 0.5) * line));
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    for (let key = 0; key < sample.positions; key += across) {
      context.fillText(String(key), MAP_LEFT + (key + 0.5) * cell, height + 5);
    }
  }

  return {
    element: frame.element,
    draw() {
      const { sample, plane, bounds } = app,
        colours = palette(),
        width = Math.max(120, (frame.element.clientWidth || 600) - 34 - MAP_LEFT);
      const cell = width / sample.positions;
      const height = Math.round(Math.min(520, Math.max(220, sample.steps * Math.max(3, Math.min(14, cell)))));
      geometry = { cell, line: height / sample.steps };
      const pixels = new ImageData(sample.positions, sample.steps), lookup = table(), dots = [];
      for (let i = 0; i < plane.values.length; i++) {
        const index = 3 * shade(plane.values[i], plane.top);
        pixels.data.set([lookup[index], lookup[index + 1], lookup[index + 2], 255], 4 * i);
      }
      const small = new OffscreenCanvas(sample.positions, sample.steps);
      small.getContext("2d").putImageData(pixels, 0, 0);
      const context = fitCanvas(picture, width + MAP_LEFT, height + MAP_BOTTOM);
      context.imageSmoothingEnabled = false;
      context.drawImage(small, MAP_LEFT, 0, width, height);
      for (let step = 0; step < sample.steps; step++) {
        for (let key = 0; key < sample.positions; key++) {
          if (isSink(sample, plane, bounds, step, key)) dots.push([step, key]);
        }
      }
      trail(context);
      const size = Math.max(1.5, Math.min(7, Math.min(cell, geometry.line) * 0.55));
      for (const [colour, extra] of [[colours.paper, size > 3 ? 2 : 0], [colours.sink, 0]]) {
        context.fillStyle = colour;
        const side = size + extra;
        for (const [step, key] of dots) {
          context.fillRect(
            MAP_LEFT + (key + 0.5) * cell - side / 2,
            (step + 0.5) * geometry.line - side / 2,
            side,
            side,
          );
        }
      }
      context.strokeStyle = colours.line;
      context.strokeRect(MAP_LEFT + 0.5, 0.5, width - 1, height - 1);
      if (sample.promptLength > 0 && sample.promptLength < sample.positions) {
        context.strokeStyle = colours.muted;
        context.setLineDash([3, 3]);
        context.beginPath();
        context.moveTo(MAP_LEFT + sample.promptLength * cell, 0);
        context.lineTo(MAP_LEFT + sample.promptLength * cell, height);
        context.stroke();
        context.setLineDash([]);
      }
      axes(context, width, height);
      row.style.width = `${width}px`;
      row.style.height = `${Math.max(3, geometry.line)}px`;
      column.style.width = `${Math.max(3, cell)}px`;
      column.style.height = `${height}px`;
      holder.setAttribute(
        "aria-label",
        `Map of attention received: ${sample.steps} steps by ${sample.positions} positions, ${dots.length} sinks marked. ${app.place()}`,
      );
      const unitTop = plane.top *
        (app.view.unit === "sum" ? 1 : scale(app.view.unit, queryCount(sample, app.view.group, 0), sample.positions));
      const bar = make("span", { class: "ramp", "aria-hidden": "true" });
      bar.style.background = `linear-gradient(90deg, ${
        Array.from({ length: 9 }, (_, i) => css(Math.round((255 * i) / 8))).join(", ")
      })`;
      legend.replaceChildren(
        make("span", { text: "0" }),
        bar,
        make("span", { text: `${number(unitTop, 1)} ${app.view.unit} (shade: power 0.6)` }),
        make("span", { class: "key-sink", text: "sink" }),
        make("span", { class: "key-path", text: "largest key" }),
        make("span", { class: "key-prompt", text: "end of prompt" }),
      );
      this.step();
    },
    step() {
      if (!geometry) return;
      // Moved by the compositor: nothing is painted anew when the step changes.
      row.style.transform = `translate(${MAP_LEFT}px, ${app.view.step * geometry.line}px)`;
      column.hidden = pointed < 0;
      if (pointed >= 0) column.style.transform = `translate(${MAP_LEFT + pointed * geometry.cell}px, 0)`;
    },
    point(key) {
      if (key !== pointed) {
        pointed = key;
        this.step();
      }
    },
  };

  function trail(context) {
    const { cell, line } = geometry, keys = app.leaders;
    for (const [colour, wide] of [[palette().paper, 4], [palette().path, 1.75]]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.lineJoin = "round";
      context.beginPath();
      keys.forEach((key, step) => context.lineTo(MAP_LEFT + (key + 0.5) * cell, (step + 0.5) * line));
      context.stroke();
    }
    context.lineWidth = 1;
  }
}

// 1, 2, 5, 10 … so that about `wanted` ticks fit.
export function niceStep(count, wanted) {
  const rough = Math.max(1, count / Math.max(1, wanted)), power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}
