// A claim's values as a small chart: what was measured as a heading, a line per model, dots with intervals.

import { absent, draw, number, visible } from "../dom.js";
import { marker } from "../chart.js";
import { palette } from "../colours.js";
import { hideTip, showTip } from "../panel.js";
import { lookOf } from "./series.js";

const DOTS = { line: 13, head: 16, left: 104, right: 36, lines: 6 };
const CONTROL = /^(.*), (count|mass)-matched random$/;

function interval({ value, low, high }) {
  return absent(low) ? number(value) : `${number(value)} [${number(low)}, ${number(high)}]`;
}

// "model: what, count-matched random" → the model, what was measured, and whether it is a control.
function told(one) {
  const found = CONTROL.exec(String(one.label ?? "")), text = found ? found[1] : String(one.label ?? "");
  const [model, ...what] = text.split(": ");
  return { ...one, model, what: what.join(": "), role: found ? found[2] : "sinks" };
}

// Groups by what was measured, each with its models' lines: [[what, [[model, values], …]], …].
export function groupsOf(values) {
  const groups = new Map();
  for (const one of values.filter((value) => !absent(value.value)).map(told)) {
    const lines = groups.get(one.what) ?? groups.set(one.what, new Map()).get(one.what);
    (lines.get(one.model) ?? lines.set(one.model, []).get(one.model)).push(one);
  }
  const found = [...groups].map(([what, lines]) => [what, [...lines]]);
  return found.length > 2 && found.every(([, lines]) => lines.length === 1) ? turned(found) : found;
}

const UNIT = / ?\(([^()]+)\)$/;

// One model under many headings reads better the other way round: the model as heading, what was measured as lines.
function turned(groups) {
  const found = new Map();
  for (const [what, [[model, some]]] of groups) {
    const title = `${model}${UNIT.exec(what)?.[0] ?? ""}`;
    (found.get(title) ?? found.set(title, []).get(title)).push([what.replace(UNIT, ""), some]);
  }
  return [...found];
}

// As many whole groups as fit; the first one always.
function chosen(groups, all) {
  if (all) return groups;
  const kept = [];
  let lines = 0;
  for (const [what, some] of groups) {
    if (kept.length && lines + some.length > DOTS.lines) break;
    kept.push([what, some.slice(0, DOTS.lines)]);
    lines += some.length;
  }
  return kept;
}

// Values of one unit share one axis, which has 0 on it; the unit is what stands in brackets at the end.
function axesOf(groups, width) {
  const units = new Map();
  const unitOf = (what) => UNIT.exec(what)?.[1] ?? "";
  for (const [what, lines] of groups) {
    const numbers = lines.flatMap(([, some]) => some.flatMap((one) => [one.value, one.low, one.high]));
    units.set(unitOf(what), [0, ...(units.get(unitOf(what)) ?? []), ...numbers.filter((value) => !absent(value))]);
  }
  return (what) => {
    const numbers = units.get(unitOf(what)), low = Math.min(...numbers), high = Math.max(...numbers);
    return (value) => DOTS.left + 8 + ((value - low) / (high - low || 1)) * (width - DOTS.left - DOTS.right - 14);
  };
}

// all: every group, however many there are.
export function dotsFigure(values, width, all = false) {
  const every = groupsOf(values), groups = chosen(every, all), colours = palette(), axis = axesOf(groups, width);
  const parts = [], rows = [];
  const text = (content, at) =>
    draw("text", { "font-size": 11, "font-family": "system-ui, sans-serif", text: content, ...at });
  let y = 0;
  for (const [what, lines] of groups) {
    if (what) {
      const title = visible(what, 44);
      parts.push(text(title, { x: 0, y: y + 12, fill: colours.ink }));
      y += DOTS.head;
    }
    const x = axis(what), top = y;
    parts.push(
      draw("line", {
        x1: x(0),
        x2: x(0),
        y1: top,
        y2: top + DOTS.line * lines.length,
        stroke: colours.muted,
        "stroke-width": 1,
      }),
    );
    for (const [model, some] of lines) {
      const middle = y + DOTS.line / 2;
      parts.push(
        text(visible(model, 18), { x: DOTS.left, y: middle + 4, "text-anchor": "end", fill: colours.muted }),
      );
      for (const one of some) {
        const look = lookOf(one.role);
        if (!absent(one.low)) {
          const ends = `M${x(one.low)} ${middle - 3}v6M${x(one.high)} ${middle - 3}v6`;
          const d = `M${x(one.low)} ${middle}H${x(one.high)}${ends}`;
          parts.push(draw("path", { d, stroke: look.colour, "stroke-width": 1.5 }));
        }
        parts.push(marker(look.marker, x(one.value), middle, look.colour, 3));
      }
      const main = some.find((one) => one.role === "sinks");
      if (main) {
        parts.push(
          text(number(main.value), { x: width, y: middle + 4, "text-anchor": "end", fill: colours.muted }),
        );
      }
      rows.push({ from: y, to: y + DOTS.line, title: what ? `${model}: ${what}` : model, some });
      y += DOTS.line;
    }
    y += 3;
  }
  if (every.length > groups.length) {
    parts.push(text(`and ${every.length - groups.length} more: open “why”`, { x: 0, y: y + 11, fill: colours.muted }));
    y += DOTS.head;
  }
  const label = groups.flatMap(([, lines]) => lines.flatMap(([, some]) => some))
    .map((one) => `${visible(one.label ?? "", 80)} ${interval(one)}`).join("; ");
  const about = { width, height: y, viewBox: `0 0 ${width} ${y}`, role: "img", "aria-label": label, class: "small" };
  const svg = draw("svg", about, parts);
  svg.addEventListener("pointermove", (event) => {
    const at = event.clientY - svg.getBoundingClientRect().top;
    const row = rows.find(({ from, to }) => at >= from && at < to);
    if (!row) return hideTip();
    const lines = row.some.map((one) => [
      one.role === "sinks" ? "value" : `${one.role}-matched`,
      `${interval(one)}${absent(one.n) ? "" : `, n = ${one.n}`}`,
    ]);
    showTip([["", visible(row.title, 70)], ...lines], event.clientX, event.clientY);
  });
  svg.addEventListener("pointerleave", hideTip);
  return svg;
}
