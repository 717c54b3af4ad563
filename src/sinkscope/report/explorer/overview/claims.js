// The paper's claims by model: claims down, models across, one mark per cell; a cell opens its figure, control and reason.

import { make, visible } from "../dom.js";
import { panel } from "../panel.js";

const MARKS = {
  supports: ["yes", "+"],
  contradicts: ["no", "−"],
  undecided: ["open", "?"],
  "no test": ["none", "·"],
};

function detail(rows) {
  return make(
    "div",
    { class: "claim-detail", role: "status" },
    rows.map((row) =>
      make(
        "p",
        {},
        make("strong", { text: `${visible(row.model, 60)}: ${visible(row.claim, 200)} ` }),
        `${row.verdict}. ${visible(row.figure, 80)}, n = ${row.n}`,
        row.dose === null || row.dose === undefined ? "" : `, ${(100 * row.dose).toFixed(0)} % of the attention taken`,
        row.condition === "none" ? ". " : ` (${visible(row.condition, 120)}). `,
        row.control
          ? `${visible(row.control.condition, 120)}: ${row.control.estimate.toFixed(1)} [${
            row.control.low.toFixed(1)
          }, ${row.control.high.toFixed(1)}]. `
          : "",
        visible(row.because, 400),
      )
    ),
  );
}

export function createClaims(overview) {
  if (!overview.claims.length) return null;
  const models = [...new Set(overview.claims.map((row) => row.model))];
  const names = Object.keys(overview.claimNames).filter((name) => overview.claims.some((row) => row.name === name));
  const shown = make("div", {});
  const rows = names.map((name) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", text: overview.claimNames[name] }),
      models.map((model) => {
        const mine = overview.claims.filter((row) => row.name === name && row.model === model);
        if (!mine.length) return make("td", {});
        const [kind, sign] = MARKS[mine[0].verdict];
        return make(
          "td",
          {},
          make("button", {
            class: `badge ${kind}`,
            title: `${mine[0].verdict}: ${mine[0].figure}`,
            "aria-label": `${model}, ${overview.claimNames[name]}: ${mine[0].verdict}`,
            text: sign,
            onclick: () => shown.replaceChildren(detail(mine)),
          }),
        );
      }),
    )
  );
  const standsFor = models.map((model) => overview.claims.find((row) => row.model === model).paper_model ?? "–");
  const table = make(
    "table",
    { class: "claims matrix" },
    make(
      "thead",
      {},
      make("tr", {}, make("th", {}), models.map((model) => make("th", { scope: "col", text: visible(model, 40) }))),
      make("tr", {}, make("th", { scope: "row", text: "stands for" }), standsFor.map((text) => make("td", { text }))),
    ),
    make("tbody", {}, rows),
  );
  const legend = make("p", {
    class: "note",
    text: "+ supports the paper, − contradicts it, ? undecided, · no test. Choose a mark to see its figure.",
  });
  const fields = [
    "name",
    "claim",
    "paper_model",
    "model",
    "condition",
    "verdict",
    "estimate",
    "low",
    "high",
    "unit",
    "n",
    "dose",
    "because",
  ];
  const frame = panel(
    "claims",
    "The paper’s claims, by model",
    "",
    make("div", {}, make("div", { class: "scroll" }, table), legend, shown),
    {
      rows: () => ({ names: fields, rows: overview.claims.map((row) => fields.map((field) => row[field])) }),
    },
  );
  return { element: frame.element, draw: () => {} };
}
