// The paper's claims by model: claims down, models across, one mark per cell; a cell opens its figure, control and reason.

import { make, visible } from "../dom.js";
import { panel } from "../panel.js";

const KINDS = { supports: "yes", contradicts: "no", undecided: "open", "no test": "none" }; // verdict → class
const FIELDS = [
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

const share = (dose) =>
  dose === null || dose === undefined ? "" : `, ${(100 * dose).toFixed(0)} % of the attention removed`;

function condition(row) {
  const parts = [`${visible(row.figure, 80)}, n = ${row.n}${share(row.dose)}.`];
  if (row.control) parts.push(`Control: ${visible(row.controlFigure, 200)}${share(row.control.dose)}.`);
  return [
    make("p", {}, make("strong", { text: `${row.verdict}: ` }), parts.join(" ")),
    make("p", { text: visible(row.because, 400) }),
    row.condition === "none" ? null : make("p", { class: "note", text: `Condition: ${visible(row.condition, 120)}` }),
    row.definition ? make("p", { class: "note", text: `Definition of a sink: ${visible(row.definition, 80)}` }) : null,
  ];
}

function detail(rows) {
  const title = `${visible(rows[0].model, 60)}: ${visible(rows[0].claim, 200)}`;
  return [make("h3", { text: title }), ...rows.flatMap(condition)];
}

export function createClaims(overview) {
  const { claims, claimNames, claimMarks } = overview;
  if (!claims.length) return null;
  const models = [...new Set(claims.map((row) => row.model))];
  const names = Object.keys(claimNames).filter((name) => claims.some((row) => row.name === name));
  // The text of a mark unfolds in a row below it, and folds again at a second click.
  const shown = make("td", { class: "claim-detail", role: "status", colspan: models.length + 1 });
  const unfolded = make("tr", { class: "unfolded" }, shown);
  const open = (button, rows) => {
    const again = button.getAttribute("aria-pressed") === "true";
    for (const one of table.querySelectorAll("button")) one.setAttribute("aria-pressed", !again && one === button);
    unfolded.remove();
    if (again) return;
    shown.replaceChildren(make("div", {}, ...detail(rows).filter(Boolean)));
    button.closest("tr").after(unfolded);
    unfolded.scrollIntoView({ block: "nearest" });
  };
  const cell = (name, model) => {
    const mine = claims.filter((row) => row.name === name && row.model === model);
    if (!mine.length) return make("td");
    const { verdict, figure } = mine[0]; // of several conditions the first, which is the paper's own
    const label = `${visible(model, 60)}, ${claimNames[name]}: ${verdict}`;
    const about = {
      class: `badge ${KINDS[verdict]}`,
      title: `${verdict}: ${visible(figure, 80)}`,
      "aria-label": label,
    };
    const button = make("button", { ...about, "aria-pressed": "false", text: claimMarks[verdict] });
    button.addEventListener("click", () => open(button, mine));
    return make("td", {}, button);
  };
  const standsFor = (model) => claims.find((row) => row.model === model).paper_model ?? "–";
  const table = make(
    "table",
    { class: "matrix" },
    make(
      "thead",
      {},
      make("tr", {}, make("td"), models.map((model) => make("th", { scope: "col", text: visible(model, 40) }))),
      make(
        "tr",
        {},
        make("th", { scope: "row", text: "stands for" }),
        models.map((model) => make("td", { text: visible(standsFor(model), 40) })),
      ),
    ),
    make(
      "tbody",
      {},
      names.map((name) =>
        make(
          "tr",
          {},
          make("th", { scope: "row", text: claimNames[name] }),
          models.map((model) => cell(name, model)),
        )
      ),
    ),
  );
  const legend = Object.entries(KINDS).map(([verdict, kind]) =>
    make("li", {}, make("span", { class: `badge ${kind}`, text: claimMarks[verdict] }), verdict)
  );
  const frame = panel(
    "claims",
    "The paper’s claims, by model",
    "Select a cell for estimate, control and rule. Empty: the paper makes no such claim for this kind of model.",
    make("div", {}, make("ul", { class: "shared" }, legend), make("div", { class: "scroll" }, table)),
    { rows: () => ({ names: FIELDS, rows: claims.map((row) => FIELDS.map((field) => row[field])) }) },
  );
  return { element: frame.element, draw: () => {} };
}
