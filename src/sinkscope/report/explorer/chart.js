// A small line chart as SVG, with axes, intervals, markers and direct labels; it carries its own colours, so that it can be saved as it is.

import { draw, number } from "./dom.js";
import { DASHES, MARKERS, palette } from "./colours.js";

function marker(kind, x, y, colour, size = 3.5) {
  const s = size;
  if (kind === "square") return draw("rect", { x: x - s, y: y - s, width: 2 * s, height: 2 * s, fill: colour });
  if (kind === "diamond") {
    return draw("path", {
      d: `M${x} ${y - s * 1.4}L${x + s * 1.4} ${y}L${x} ${y + s * 1.4}L${x - s * 1.4} ${y}Z`,
      fill: colour,
    });
  }
  if (kind === "triangle") {
    return draw("path", { d: `M${x} ${y - s * 1.2}L${x + s * 1.2} ${y + s}L${x - s * 1.2} ${y + s}Z`, fill: colour });
  }
  if (kind === "cross") {
    return draw("path", {
      d: `M${x - s} ${y - s}L${x + s} ${y + s}M${x - s} ${y + s}L${x + s} ${y - s}`,
      stroke: colour,
      "stroke-width": 2,
      fill: "none",
    });
  }
  if (kind === "ring") return draw("circle", { cx: x, cy: y, r: s, fill: "none", stroke: colour, "stroke-width": 2 });
  return draw("circle", { cx: x, cy: y, r: s, fill: colour });
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

export const CHART = { left: 46, right: 12, bottom: 38 };

// series: [{name, points: [{x, y, low?, high?}], line?, marks?, colour?, dash?, marker?}]
export function lineChart({ width, height, series, x, y, xTicks = null, legend = true, label }) {
  const colours = palette(),
    text = (content, at) =>
      draw("text", {
        "font-family": "system-ui, sans-serif",
        "font-size": 11,
        fill: colours.muted,
        text: content,
        ...at,
      });
  const named = legend ? series.filter((s) => s.name) : [];
  const columns = Math.max(1, Math.floor((width - 50) / 150)), rows = Math.ceil(named.length / columns);
  const { left, right, bottom } = CHART, top = 10 + rows * 17;
  const all = series.flatMap((s) => s.points);
  const xs = all.map((p) => p.x), ys = all.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]);
  const [x0, x1] = x.range ?? [Math.min(...xs), Math.max(...xs)],
    [y0, y1] = y.range ?? padded(Math.min(...ys), Math.max(...ys));
  const px = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const py = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const parts = [];
  for (const tick of ticks(y0, y1, Math.max(2, (height - top - bottom) / 34))) {
    parts.push(
      draw("line", {
        x1: left,
        x2: width - right,
        y1: py(tick),
        y2: py(tick),
        stroke: colours.line,
        "stroke-width": tick === 0 ? 1.5 : 1,
      }),
      text(y.format ? y.format(tick) : number(tick, Math.abs(y1 - y0) < 5 ? 1 : 0), {
        x: left - 6,
        y: py(tick) + 4,
        "text-anchor": "end",
      }),
    );
  }
  for (const tick of xTicks ?? ticks(x0, x1, Math.max(2, (width - left - right) / 60))) {
    parts.push(
      text(x.format ? x.format(tick) : number(tick, Number.isInteger(tick) ? 0 : 1), {
        x: px(tick),
        y: height - bottom + 16,
        "text-anchor": "middle",
      }),
    );
  }
  parts.push(
    text(x.label, { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }),
    text(y.label, { transform: `translate(11 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }),
  );
  series.forEach((one, index) => {
    const colour = one.colour ?? colours.series[index % 6], kind = one.marker ?? MARKERS[index % 6];
    for (const p of one.points) {
      if (p.low === undefined || p.low === null) continue;
      parts.push(
        draw("path", {
          d: `M${px(p.x)} ${py(p.low)}V${py(p.high)}M${px(p.x) - 3} ${py(p.low)}h6M${px(p.x) - 3} ${py(p.high)}h6`,
          stroke: colour,
          "stroke-width": 1.25,
          fill: "none",
          opacity: 0.75,
        }),
      );
    }
    if (one.line !== false) {
      parts.push(draw("polyline", {
        points: one.points.map((p) => `${px(p.x).toFixed(1)},${py(p.y).toFixed(1)}`).join(" "),
        fill: "none",
        stroke: colour,
        "stroke-width": one.wide ?? 2,
        "stroke-dasharray": one.dash ?? DASHES[index % 6],
        "stroke-linejoin": "round",
      }));
    }
    if (one.marks !== false) {
      for (const p of one.points) parts.push(marker(kind, px(p.x), py(p.y), colour, one.size));
    }
  });
  named.forEach((one, index) => {
    const at = series.indexOf(one),
      colour = one.colour ?? colours.series[at % 6],
      cx = left + (index % columns) * 150,
      cy = 9 + Math.floor(index / columns) * 17;
    if (one.line !== false) {
      parts.push(
        draw("line", {
          x1: cx,
          x2: cx + 22,
          y1: cy,
          y2: cy,
          stroke: colour,
          "stroke-width": 2,
          "stroke-dasharray": one.dash ?? DASHES[at % 6],
        }),
      );
    }
    parts.push(
      marker(one.marker ?? MARKERS[at % 6], cx + 11, cy, colour, 3),
      text(one.name.length > 20 ? `${one.name.slice(0, 19)}…` : one.name, { x: cx + 28, y: cy + 4, fill: colours.ink }),
    );
  });
  return draw(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    draw("rect", { width, height, fill: colours.paper }),
    parts,
  );
}

function padded(low, high) {
  const room = (high - low || 1) * 0.06;
  return [low - room, high + room];
}
