// Lines from queries to keys at one step: of one query, each key that it looks at; of all, each one's largest key.

import { draw, visible } from "./dom.js";
import { palette } from "./colours.js";

const LINKS = { top: 20, bottom: 96, height: 118, most: 12, least: 0.02 };

function rowOf(codes, size, query) {
  return Array.from({ length: size }, (_, key) => ({ key, weight: (codes[query * size + key] / 255) ** 2 }));
}

// codes: a map as the page holds it (square roots, 0 … 255), [query, key]; query −1 shows every query's largest key.
export function linksFigure({ sample, canvas, codes, step, query, width }) {
  const size = sample.positions, colours = palette(), parts = [], x = (place) => ((place + 0.5) * width) / size;
  const word = (place) => visible(sample.vocabulary[canvas[step * size + place]][0], 12) || "∅";
  const text = (content, at) =>
    draw("text", { "font-family": "system-ui, sans-serif", "font-size": 11, fill: colours.ink, text: content, ...at });
  const anchor = (place) => (x(place) < 40 ? "start" : x(place) > width - 40 ? "end" : "middle");
  const line = (from, { key, weight }, colour) =>
    draw("line", {
      x1: x(from),
      y1: LINKS.top,
      x2: x(key),
      y2: LINKS.bottom,
      stroke: colour,
      "stroke-width": 0.6 + 5 * weight,
      opacity: 0.3 + 0.6 * Math.min(1, weight * 2),
    });
  for (let place = 0; place < size; place++) {
    const tick = {
      width: Math.max(1, width / size - 1),
      height: 4,
      fill: colours.line,
      x: x(place) - width / size / 2,
    };
    parts.push(draw("rect", { ...tick, y: LINKS.top - 4 }), draw("rect", { ...tick, y: LINKS.bottom }));
  }
  if (query < 0) {
    for (let from = 0; from < size; from++) {
      const best = rowOf(codes, size, from).reduce((a, b) => (b.weight > a.weight ? b : a));
      if (best.weight >= LINKS.least) parts.push(line(from, best, colours.series[0]));
    }
    parts.push(
      text("queries", { x: 0, y: 10, fill: colours.muted }),
      text("keys", { x: 0, y: 114, fill: colours.muted }),
    );
  } else {
    const ranked = rowOf(codes, size, query).sort((a, b) => b.weight - a.weight);
    const seen = ranked.filter(({ weight }) => weight >= LINKS.least).slice(0, LINKS.most), labelled = [];
    seen.forEach((one) => parts.push(line(query, one, colours.sink)));
    parts.push(text(`${word(query)} (${query})`, { x: x(query), y: 11, "text-anchor": anchor(query) }));
    for (const { key, weight } of seen) {
      if (labelled.length >= 5 || labelled.some((other) => Math.abs(x(other) - x(key)) < 86)) continue;
      labelled.push(key);
      const label = `${word(key)} (${key}) ${Math.round(100 * weight)} %`;
      parts.push(text(label, { x: x(key), y: 114, "text-anchor": anchor(key) }));
    }
  }
  const about = query < 0 ? "each query’s largest key" : `what query ${query} looks at`;
  return draw("svg", {
    width,
    height: LINKS.height,
    viewBox: `0 0 ${width} ${LINKS.height}`,
    role: "img",
    "aria-label": `Lines from queries to keys at step ${step + 1}: ${about}`,
  }, parts);
}
