// Step × position as a picture: what every key received, the sinks, the path of the largest key, blocks and prompt.

import { make, number } from "./dom.js";
import { css, palette, shade, table } from "./colours.js";
import { fitCanvas } from "./panel.js";
import { isSink, queryCount, scale, UNITS } from "./rules.js";

export const HEAT = { left: 46, bottom: 36 };

// 1, 2, 5, 10 … so that about `wanted` ticks fit.
export function niceStep(count, wanted) {
  const rough = Math.max(1, count / Math.max(1, wanted)), power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

// Numbers below the ends of a colour scale, and the scale itself.
export function colourScale(low, high) {
  const bar = make("span", { class: "ramp", "aria-hidden": "true" });
  const stops = Array.from({ length: 9 }, (_, i) => css(Math.round((255 * i) / 8)));
  bar.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
  return [make("span", { text: low }), bar, make("span", { text: high })];
}

// The largest value on the picture, in the view's unit.
export function topInUnit({ sample, plane, view }) {
  return plane.top * scale(view.unit, queryCount(sample, view.group, 0), sample.positions);
}

export function heatLegend(scene) {
  const names = [["key-sink", "sink"], ["key-path", "largest key"], ["key-prompt", "end of prompt"]];
  if (blocksOf(scene.sample).length > 1) names.push(["key-block", "block"]);
  const unit = UNITS[scene.view.unit].label;
  return [
    ...colourScale("0", `${number(topInUnit(scene), 1)} ${unit} (shade: power 0.6)`),
    ...names.map(([kind, text]) => make("span", { class: kind, text })),
  ];
}

// The blocks of block-wise decoding as rectangles of the picture: {start, stop, from, to}; one if there are no blocks.
export function blocksOf(sample) {
  if (sample.causal) return [];
  const found = [];
  sample.blocks.forEach(([start, stop], step) => {
    const last = found.at(-1);
    if (last && last.start === start && last.stop === stop) last.to = step + 1;
    else found.push({ start, stop, from: step, to: step + 1 });
  });
  return found.length > sample.steps / 2 ? [] : found;
}

// Draw a scene; returns where things are: {cell, line, width, height, dots}, in CSS pixels beside HEAT.left.
export function paintHeat(canvas, scene, width, height) {
  const { sample, plane } = scene,
    geometry = { width, height, cell: width / sample.positions, line: height / sample.steps };
  const context = fitCanvas(canvas, width + HEAT.left, height + HEAT.bottom);
  context.imageSmoothingEnabled = false;
  context.drawImage(shaded(sample, plane), HEAT.left, 0, width, height);
  blocks(context, sample, geometry);
  trail(context, scene.leaders, geometry);
  geometry.dots = sinks(context, scene, geometry);
  const colours = palette();
  context.strokeStyle = colours.line;
  context.strokeRect(HEAT.left + 0.5, 0.5, width - 1, height - 1);
  if (sample.promptLength > 0 && sample.promptLength < sample.positions) prompt(context, sample, geometry);
  axes(context, sample, geometry);
  return geometry;
}

function shaded(sample, plane) {
  const pixels = new ImageData(sample.positions, sample.steps), lookup = table();
  for (let i = 0; i < plane.values.length; i++) {
    const index = 3 * shade(plane.values[i], plane.top);
    pixels.data.set([lookup[index], lookup[index + 1], lookup[index + 2], 255], 4 * i);
  }
  const small = new OffscreenCanvas(sample.positions, sample.steps);
  small.getContext("2d").putImageData(pixels, 0, 0);
  return small;
}

function blocks(context, sample, { cell, line }) {
  const found = blocksOf(sample);
  if (found.length < 2) return;
  context.strokeStyle = palette().muted;
  context.lineWidth = 1;
  for (const { start, stop, from, to } of found) {
    context.strokeRect(
      HEAT.left + start * cell + 0.5,
      from * line + 0.5,
      (stop - start) * cell - 1,
      (to - from) * line - 1,
    );
  }
}

function trail(context, keys, { cell, line }) {
  for (const [colour, wide] of [[palette().paper, 4], [palette().path, 1.75]]) {
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.lineJoin = "round";
    context.beginPath();
    keys.forEach((key, step) => context.lineTo(HEAT.left + (key + 0.5) * cell, (step + 0.5) * line));
    context.stroke();
  }
  context.lineWidth = 1;
}

function sinks(context, { sample, plane, bounds }, { cell, line }) {
  const dots = [], colours = palette(), size = Math.max(1.5, Math.min(7, Math.min(cell, line) * 0.55));
  for (let step = 0; step < sample.steps; step++) {
    for (let key = 0; key < sample.positions; key++) {
      if (isSink(sample, plane, bounds, step, key)) dots.push([step, key]);
    }
  }
  for (const [colour, extra] of [[colours.paper, size > 3 ? 2 : 0], [colours.sink, 0]]) {
    const side = size + extra;
    context.fillStyle = colour;
    for (const [step, key] of dots) {
      context.fillRect(HEAT.left + (key + 0.5) * cell - side / 2, (step + 0.5) * line - side / 2, side, side);
    }
  }
  return dots.length;
}

function prompt(context, sample, { cell, height }) {
  context.strokeStyle = palette().ink;
  context.setLineDash([3, 3]);
  context.beginPath();
  context.moveTo(HEAT.left + sample.promptLength * cell, 0);
  context.lineTo(HEAT.left + sample.promptLength * cell, height);
  context.stroke();
  context.setLineDash([]);
}

function axes(context, sample, { cell, line, width, height }) {
  context.fillStyle = palette().muted;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  const every = niceStep(sample.steps, height / 26), across = niceStep(sample.positions, width / 44);
  for (let step = every - 1; step < sample.steps; step += every) {
    context.fillText(String(step + 1), HEAT.left - 5, Math.max(6, (step + 0.5) * line));
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (let key = 0; key < sample.positions; key += across) {
    context.fillText(String(key), HEAT.left + (key + 0.5) * cell, height + 5);
  }
  context.fillText("position", HEAT.left + width / 2, height + 21);
  context.save();
  context.translate(4, height / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(sample.causal ? "step (token)" : "denoising step", 0, 0);
  context.restore();
}
