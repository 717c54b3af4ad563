// The paper's claims against this run: a badge, the figure, and the values with their intervals on a small chart.

import { absent, make, visible } from "../dom.js";
import { panel } from "../panel.js";
import { dotsFigure } from "./dots.js";

const BADGES = {
  agrees: ["yes", "✓"],
  "agrees in part": ["part", "◐"],
  disagrees: ["no", "✕"],
  undecided: ["open", "?"],
};
const WIDTH = { least: 210, most: 300 };

function badge(verdict) {
  const [kind, sign] = BADGES[verdict] ?? ["open", "?"];
  return make(
    "span",
    { class: `badge ${kind}` },
    make("span", { "aria-hidden": "true", text: `${sign} ` }),
    visible(verdict, 30),
  );
}

export function createClaims(overview) {
  if (!overview.claims.length) return null;
  const rows = overview.claims.map((claim) => {
    const values = (claim.values ?? []).filter((one) => !absent(one.value));
    const chart = make("td", { class: "chart-cell" });
    const why = [claim.because, claim.condition].filter(Boolean).map((text) => visible(text, 900)).join(" — ");
    const details = why
      ? make("details", { ontoggle: () => show() }, make("summary", { text: "why" }), make("p", { text: why }))
      : null;
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
          details,
        ),
      ),
      chart,
    );
    const width = () => Math.max(WIDTH.least, Math.min(WIDTH.most, chart.clientWidth || WIDTH.least));
    const show = () => chart.replaceChildren(...(values.length ? [dotsFigure(values, width(), details?.open)] : []));
    return { row, draw: show };
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
