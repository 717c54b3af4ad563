// Mechanism: what masking does to the confidence of tokens that looked at the masked keys, beside those that did not.

import { absent, draw, make, number, visible } from "../dom.js";
import { palette } from "../colours.js";
import { hideTip, panel, showTip } from "../panel.js";
import { marker } from "../chart.js";
import { lookOf, sharedLegend } from "./series.js";

const ABOUT =
  "Confidence lost by tokens that looked at the masked keys more than by those that looked less, with 95 % " +
  "intervals. The paper’s account says: below 0 for sinks, near 0 for random keys.";
const KINDS = [["sinks", "confidence_sinks_gap"], ["count", "confidence_random_gap"]];

function rowsOf(mechanism) {
  return mechanism.flatMap((row) =>
    KINDS.filter(([, name]) => !absent(row[name]?.value)).map(([role, name]) => {
      const factor = row.unit === "points" ? 100 : 1;
      const { value, low, high } = row[name];
      return {
        model: row.model,
        k: row.k,
        unit: row.unit,
        role,
        value: factor * value,
        low: factor * low,
        high: factor * high,
      };
    })
  );
}

// Dots with intervals, one line per model, K and kind of keys.
function dots(rows, width) {
  const colours = palette(), left = Math.min(170, width * 0.36), height = 20 * rows.length + 26;
  const numbers = rows.flatMap((row) => [row.low, row.high]),
    low = Math.min(0, ...numbers),
    high = Math.max(0, ...numbers);
  const x = (value) => left + 8 + ((value - low) / (high - low || 1)) * (width - left - 20);
  const text = (content, at) =>
    draw("text", { "font-size": 12, "font-family": "system-ui, sans-serif", fill: colours.ink, text: content, ...at });
  const parts = [draw("line", { x1: x(0), x2: x(0), y1: 0, y2: height - 22, stroke: colours.muted })];
  rows.forEach((row, i) => {
    const y = 20 * i + 12, look = lookOf(row.role);
    if (i === 0 || rows[i - 1].model !== row.model || rows[i - 1].k !== row.k) {
      parts.push(text(`${visible(row.model, 16)}, K = ${row.k}`, { x: left, y: y + 4, "text-anchor": "end" }));
    }
    parts.push(draw("path", { d: `M${x(row.low)} ${y}H${x(row.high)}`, stroke: look.colour, "stroke-width": 2 }));
    parts.push(marker(look.marker, x(row.value), y, look.colour));
  });
  parts.push(text("0", { x: x(0), y: height - 8, "text-anchor": "middle", fill: colours.muted }));
  parts.push(text(number(low, 1), { x: x(low), y: height - 8, fill: colours.muted }));
  const said = rows.map((r) => `${visible(r.model, 20)} K ${r.k} ${r.role}: ${number(r.value, 1)} ${r.unit}`).join(
    "; ",
  );
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said }, parts);
  svg.addEventListener("pointermove", (event) => {
    const row = rows[Math.floor((event.clientY - svg.getBoundingClientRect().top) / 20)];
    if (!row) return hideTip();
    const span = `${number(row.value, 1)} [${number(row.low, 1)}, ${number(row.high, 1)}] ${row.unit}`;
    showTip(
      [["", `${visible(row.model, 30)}, K = ${row.k}`], [row.role === "sinks" ? "sinks" : "random keys", span]],
      event.clientX,
      event.clientY,
    );
  });
  svg.addEventListener("pointerleave", hideTip);
  return svg;
}

export function createMechanism(overview) {
  const rows = rowsOf(overview.mechanism);
  if (!rows.length) return null;
  const units = [...new Set(rows.map((row) => row.unit))];
  const holder = make("div", { class: "multiples" }), legend = make("div", {});
  const frame = panel("mechanism", "Mechanism", ABOUT, make("div", {}, legend, holder), {
    wide: true,
    figure: () => dots(rows.filter((row) => row.unit === units[0]), 640),
    rows: () => ({
      names: ["model", "k", "keys masked", "gap", "low", "high", "unit"],
      rows: rows.map((r) => [r.model, r.k, r.role, r.value, r.low, r.high, r.unit]),
    }),
  });
  return {
    element: frame.element,
    draw() {
      const room = holder.clientWidth || 900,
        width = Math.floor(room >= 760 && units.length > 1 ? room / 2 - 10 : Math.min(640, room));
      legend.replaceChildren(sharedLegend([
        ["sinks masked", { ...lookOf("sinks"), dash: "" }],
        [overview.roles.count, { ...lookOf("count"), dash: "" }],
      ]));
      holder.replaceChildren(
        ...units.map((unit) =>
          make(
            "figure",
            {},
            make("figcaption", { text: `gap in confidence, ${unit}` }),
            dots(rows.filter((r) => r.unit === unit), width),
          )
        ),
      );
    },
  };
}
