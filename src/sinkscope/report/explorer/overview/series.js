// One look per role, on every chart: sinks, their two random controls, the variants. Roles are given by the report.

import { draw, make } from "../dom.js";
import { palette } from "../colours.js";
import { marker } from "../chart.js";

const LOOKS = {
  sinks: { colour: 0, marker: "circle", dash: "" },
  count: { colour: 1, marker: "square", dash: "7 3" },
  mass: { colour: 5, marker: "ring", dash: "1 4" },
  as_run: { colour: 2, marker: "triangle", dash: "2 3" },
  other_rows: { colour: 3, marker: "diamond", dash: "9 3 2 3" },
  position: { colour: 4, marker: "cross", dash: "5 2" },
};
const MORE = ["circle", "square", "triangle", "diamond", "ring", "cross"]; // of sink tests by other interventions
export const BENCHMARKS = { gsm8k: "GSM8K", humaneval: "HumanEval" };
const PAPERS = { gsm8k: "diamond", humaneval: "cross" };

// roles: all that the page has, in their order.
export function lookOf(role, roles = []) {
  const place = roles.indexOf(role), turn = place + Math.floor(place / 6);
  const look = LOOKS[role] ?? { colour: place % 6, marker: MORE[turn % 6], dash: "3 2" };
  return { marker: look.marker, dash: look.dash, colour: palette().series[look.colour] };
}

export function paperLook(benchmark) {
  return { marker: PAPERS[benchmark], colour: palette().muted, line: false, dash: "" };
}

// One legend for all charts of a section. entries: [name, look].
export function sharedLegend(entries) {
  return make(
    "ul",
    { class: "shared", "aria-label": "Legend" },
    entries.map(([name, look]) => {
      const sign = draw("svg", { width: 30, height: 14, viewBox: "0 0 30 14", "aria-hidden": "true" });
      if (look.line !== false) {
        const line = { x1: 1, x2: 29, y1: 7, y2: 7, stroke: look.colour, "stroke-width": 2 };
        sign.append(draw("line", { ...line, "stroke-dasharray": look.dash || null }));
      }
      sign.append(marker(look.marker, 15, 7, look.colour));
      return make("li", {}, sign, make("span", { text: name }));
    }),
  );
}
