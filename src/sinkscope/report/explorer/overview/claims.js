// The paper's claims against this run: a badge, the figure, and the values with their intervals on a small chart.

import { absent, draw, make, number, visible } from "../dom.js";
import { marker } from "../chart.js";
import { palette } from "../colours.js";
import { hideTip, panel, showTip } from "../panel.js";
import { lookOf } from "./series.js";

const BADGES = {
  agrees: ["yes", "✓"],
  "agrees in part": ["part", "◐"],
  disagrees: ["no", "✕"],
  undecided: ["open", "?"],
};
const SMALL = { width: 190, row: 15, left: 70, lines: 6 };

function badge(verdict) {
  const [kind, sign] = BADGES[verdict] ?? ["open", "?"];
  return make(
    "span",
    { class: `badge ${kind}` },
    make("span", { "aria-hidden": "true", text: `${sign} ` }),
    visible(verdict, 30),
  );
}

function interval({ value, low, high }) {
  return absent(low) ? number(value) : `${number(value)} [${number(low)}, ${number(high)}]`;
}

// Values in lines: a model's value, and on the same line those of its random controls.
function linesOf(values) {
  const lines = new Map();
  for (const one of values) {
    const text = String(one.label ?? ""), found = /^(.*), (count|mass)-matched random$/.exec(text);
    const name = found ? found[1] : text;
    if (!lines.has(name)) lines.set(name, []);
    lines.get(name).push({ ...one, role: found ? found[2] : "sinks" });
  }
  return [...lines].slice(0, SMALL.lines);
}

// Dots with intervals on one common axis; a line at 0.
function smallChart(lines) {
  const colours = palette(), all = lines.flatMap(([, some]) => some), height = SMALL.row * lines.length + 4;
  const numbers = all.flatMap((one) => [one.value, one.low, one.high]).filter((value) => !absent(value));
  const low = Math.min(0, ...numbers), high = Math.max(0, ...numbers);
  const x = (v) => SMALL.left + 6 + ((v - low) / (high - low || 1)) * (SMALL.width - SMALL.left - 14);
  const parts = [draw("line", { x1: x(0), x2: x(0), y1: 0, y2: height, stroke: colours.line, "stroke-width": 1.5 })];
  const font = { "text-anchor": "end", "font-size": 11, "font-family": "system-ui, sans-serif", fill: colours.muted };
  lines.forEach(([name, some], i) => {
    const y = SMALL.row * i + SMALL.row / 2 + 2;
    parts.push(draw("text", { x: SMALL.left, y: y + 4, ...font, text: visible(name.split(":")[0], 11) }));
    for (const one of some) {
      const look = lookOf(one.role);
      if (!absent(one.low)) {
        const d = `M${x(one.low)} ${y}H${x(one.high)}M${x(one.low)} ${y - 3}v6M${x(one.high)} ${y - 3}v6`;
        parts.push(draw("path", { d, stroke: look.colour, "stroke-width": 1.5 }));
      }
      parts.push(marker(look.marker, x(one.value), y, look.colour, 3));
    }
  });
  const label = all.map((one) => `${visible(one.label ?? "", 60)} ${interval(one)}`).join("; ");
  const attributes = { width: SMALL.width, height, viewBox: `0 0 ${SMALL.width} ${height}`, role: "img" };
  const svg = draw("svg", { ...attributes, "aria-label": label, class: "small" }, parts);
  svg.addEventListener("pointermove", (event) => {
    const row = lines[Math.floor((event.clientY - svg.getBoundingClientRect().top - 2) / SMALL.row)];
    if (!row) return hideTip();
    const tip = row[1].map((one) => [
      one.role === "sinks" ? "value" : `${one.role}-matched`,
      `${interval(one)}${absent(one.n) ? "" : `, n = ${one.n}`}`,
    ]);
    showTip([["", visible(row[0], 60)], ...tip], event.clientX, event.clientY);
  });
  svg.addEventListener("pointerleave", hideTip);
  return svg;
}

export function createClaims(overview) {
  if (!overview.claims.length) return null;
  const rows = overview.claims.map((claim) => {
    const lines = linesOf((claim.values ?? []).filter((one) => !absent(one.value)));
    const chart = make("td", { class: "chart-cell" });
    const why = [claim.because, claim.condition].filter(Boolean).map((text) => visible(text, 900)).join(" — ");
    const row = make(
      "tr",
      {},
      make("th", { scope: "row" }, badge(claim.verdict)),
      make(
        "td",
        { class: "claim" },
        make("span", { text: visible(claim.claim, 200) }),
        make(
          "div",
          { class: "figure" },
          claim.figure ? make("strong", { text: visible(String(claim.figure), 60) }) : null,
          why ? make("details", {}, make("summary", { text: "why" }), make("p", { text: why })) : null,
        ),
      ),
      chart,
    );
    return { row, draw: () => chart.replaceChildren(...(lines.length ? [smallChart(lines)] : [])) };
  });
  const heads = ["This run", "The paper says", "Value, 95 % interval"].map((text) =>
    make("th", { scope: "col", text })
  );
  const table = make(
    "table",
    { class: "claims" },
    make("thead", {}, make("tr", {}, heads)),
    make("tbody", {}, rows.map(({ row }) => row)),
  );
  const frame = panel("claims", "The paper’s claims", "", table, {
    rows: () => ({
      names: ["claim", "verdict", "figure", "label", "value", "low", "high", "n"],
      rows: overview.claims.flatMap((claim) =>
        (claim.values?.length ? claim.values : [{}]).map((one) => [
          claim.claim,
          claim.verdict,
          claim.figure,
          one.label,
          one.value,
          one.low,
          one.high,
          one.n,
        ])
      ),
    }),
  });
  return { element: frame.element, draw: () => rows.forEach((one) => one.draw()) };
}
