// A small line chart as SVG, with axes, intervals, markers, reference lines and tooltips. It carries its own colours, so
// that it can be saved as it is.

import { absent, draw, number } from "./dom.js";
import { palette, seriesLook } from "./colours.js";
import { hideTip, showTip } from "./panel.js";

export const CHART = { left: 46, right: 12, bottom: 38, legendRow: 17, legendColumn: 190 };

export function marker(kind, x, y, colour, size = 3.5) {
  const s = size,
    far = 1.4 * s,
    filled = { fill: colour },
    stroked = { stroke: colour, "stroke-width": 2, fill: "none" };
  if (kind === "square") return draw("rect", { x: x - s, y: y - s, width: 2 * s, height: 2 * s, ...filled });
  if (kind === "diamond") {
    return draw("path", { d: `M${x} ${y - far}L${x + far} ${y}L${x} ${y + far}L${x - far} ${y}Z`, ...filled });
  }
  if (kind === "triangle") {
    return draw("path", { d: `M${x} ${y - s * 1.2}L${x + s * 1.2} ${y + s}L${x - s * 1.2} ${y + s}Z`, ...filled });
  }
  if (kind === "cross") {
    return draw("path", { d: `M${x - s} ${y - s}L${x + s} ${y + s}M${x - s} ${y + s}L${x + s} ${y - s}`, ...stroked });
  }
  if (kind === "ring") return draw("circle", { cx: x, cy: y, r: s, ...stroked });
  return draw("circle", { cx: x, cy: y, r: s, ...filled });
}

export function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) {
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  }
  return found;
}

export function label(content, at) {
  const font = { "font-family": "system-ui, sans-serif", "font-size": 11, fill: palette().muted };
  return draw("text", { ...font, text: content, ...at });
}

// series: [{name, points: [{x, y, low?, high?, tip?}], line?, marks?, colour?, dash?, marker?}]; rules: [{x | y, name}].
export function lineChart({ width, height, series, x, y, xTicks = null, legend = true, rules = [], label: about }) {
  const looks = series.map(lookAt), frame = framed(width, height, series, x, y, legend);
  const points = series.flatMap((one, i) => one.points.map((p) => ({ ...p, series: one, left: frame.px(p.x, i) })));
  const svg = draw(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about },
    draw("rect", { width, height, fill: palette().paper }),
    axes(frame, x, y, xTicks),
    rules.flatMap((rule) => reference(frame, rule)),
    series.flatMap((one, i) => drawn(frame, one, looks[i], i)),
    legend ? frame.named.flatMap((one, i) => legendEntry(frame, one, looks[series.indexOf(one)], i)) : [],
  );
  follow(svg, frame, points, x, y);
  return svg;
}

function lookAt(one, index) {
  const look = seriesLook(index);
  return { colour: one.colour ?? look.colour, marker: one.marker ?? look.marker, dash: one.dash ?? look.dash };
}

// Where things are: px and py turn values into pixels; series with intervals stand a little beside each other.
function framed(width, height, series, x, y, legend) {
  const named = legend ? series.filter((one) => one.name) : [];
  const columns = Math.max(1, Math.floor((width - CHART.left) / CHART.legendColumn));
  const { left, right, bottom } = CHART, top = 10 + Math.ceil(named.length / columns) * CHART.legendRow;
  const all = series.flatMap((one) => one.points);
  const xs = all.map((p) => p.x), ys = all.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]);
  const [x0, x1] = x.range ?? [Math.min(...xs), Math.max(...xs)];
  const [y0, y1] = y.range ?? padded(Math.min(...ys), Math.max(...ys));
  const spread = all.some((p) => !absent(p.low)) ? 3 : 0, beside = spread * Math.max(0, series.length - 2);
  return {
    ...{ width, height, top, named, columns, x0, x1, y0, y1 },
    px: (value, index = 0) =>
      left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right - 6 - beside) +
      (value === x0 ? 0 : spread * index) -
      (value === x0 ? 0 : spread),
    py: (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom),
  };
}

function axes({ width, height, top, x0, x1, y0, y1, px, py }, x, y, xTicks) {
  const { left, right, bottom } = CHART, parts = [], { line } = palette();
  for (const tick of ticks(y0, y1, Math.max(2, (height - top - bottom) / 34))) {
    const across = { x1: left, x2: width - right, y1: py(tick), y2: py(tick) };
    parts.push(draw("line", { ...across, stroke: line, "stroke-width": tick === 0 ? 1.5 : 1 }));
    const name = y.format ? y.format(tick) : number(tick, Math.abs(y1 - y0) < 5 ? 1 : 0);
    parts.push(label(name, { x: left - 6, y: py(tick) + 4, "text-anchor": "end" }));
  }
  for (const tick of xTicks ?? ticks(x0, x1, Math.max(2, (width - left - right) / 60))) {
    const name = x.format ? x.format(tick) : number(tick, Number.isInteger(tick) ? 0 : 1);
    parts.push(label(name, { x: px(tick), y: height - bottom + 16, "text-anchor": "middle" }));
  }
  const down = `translate(11 ${(top + height - bottom) / 2}) rotate(-90)`;
  parts.push(label(x.label, { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }));
  parts.push(label(y.label, { transform: down, "text-anchor": "middle" }));
  return parts;
}

function reference({ width, height, top, px, py }, { x, y, name }) {
  const { left, right, bottom } = CHART, look = { stroke: palette().ink, "stroke-dasharray": "4 3" };
  if (!absent(x)) {
    const at = { x: px(x) + 4, y: height - bottom - 6, fill: palette().ink };
    return [draw("line", { x1: px(x), x2: px(x), y1: top, y2: height - bottom, ...look }), label(name, at)];
  }
  const at = { x: width - right, y: py(y) + 13, "text-anchor": "end", fill: palette().ink };
  return [draw("line", { x1: left, x2: width - right, y1: py(y), y2: py(y), ...look }), label(name, at)];
}

function drawn({ px, py }, one, look, index) {
  const parts = [];
  for (const p of one.points) {
    if (absent(p.low)) continue;
    const at = px(p.x, index),
      d = `M${at} ${py(p.low)}V${py(p.high)}M${at - 3} ${py(p.low)}h6M${at - 3} ${py(p.high)}h6`;
    parts.push(draw("path", { d, stroke: look.colour, "stroke-width": 1.25, fill: "none", opacity: 0.75 }));
  }
  if (one.line !== false && one.points.length > 1) {
    parts.push(draw("polyline", {
      points: one.points.map((p) => `${px(p.x, index).toFixed(1)},${py(p.y).toFixed(1)}`).join(" "),
      fill: "none",
      stroke: look.colour,
      "stroke-width": one.wide ?? 2,
      "stroke-dasharray": look.dash || null,
      "stroke-linejoin": "round",
    }));
  }
  if (one.marks === false) return parts;
  return [...parts, ...one.points.map((p) => marker(look.marker, px(p.x, index), py(p.y), look.colour, one.size))];
}

function legendEntry({ columns }, one, look, index) {
  const x = CHART.left + (index % columns) * CHART.legendColumn;
  const y = 9 + Math.floor(index / columns) * CHART.legendRow, parts = [];
  if (one.line !== false) {
    const stroke = { stroke: look.colour, "stroke-width": 2, "stroke-dasharray": look.dash || null };
    parts.push(draw("line", { x1: x, x2: x + 22, y1: y, y2: y, ...stroke }));
  }
  const name = one.name.length > 28 ? `${one.name.slice(0, 27)}…` : one.name;
  return [
    ...parts,
    marker(look.marker, x + 11, y, look.colour, 3),
    label(name, { x: x + 28, y: y + 4, fill: palette().ink }),
  ];
}

// The nearest point says what it is.
function follow(svg, { py }, points, x, y) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), at = [event.clientX - box.left, event.clientY - box.top];
    let best = null, least = 22;
    for (const p of points) {
      const far = Math.hypot(p.left - at[0], py(p.y) - at[1]);
      if (far < least) [best, least] = [p, far];
    }
    if (!best) return hideTip();
    const span = absent(best.low) ? "" : ` [${number(best.low, 1)}, ${number(best.high, 1)}]`;
    showTip(
      [
        ["", best.series.name ?? ""],
        [x.label, number(best.x, Number.isInteger(best.x) ? 0 : 1)],
        [y.label, `${number(best.y, 1)}${span}`],
        ...(best.tip ?? []),
      ],
      event.clientX,
      event.clientY,
    );
  });
  svg.addEventListener("pointerleave", hideTip);
}

function padded(low, high) {
  const room = (high - low || 1) * 0.06;
  return [low - room, high + room];
}
