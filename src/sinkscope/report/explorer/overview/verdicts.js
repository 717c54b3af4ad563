// Verdict details, folded: one line each, and the numbers that it rests on for readers who open it.

import { make, visible } from "../dom.js";
import { panel } from "../panel.js";
import { unique } from "./multiples.js";

function entry({ name, value, line, because }) {
  const short = make(
    "summary",
    {},
    make("strong", { class: "verdict", text: visible(`${name}: ${value}`, 60) }),
    line ? make("span", { text: visible(line, 160) }) : null,
  );
  return make("details", {}, short, make("p", { text: visible(because, 1500) }));
}

export function createVerdicts(overview) {
  const rows = overview.verdicts;
  if (!rows.length) return null;
  const cards = unique(rows.map(({ model }) => model)).map((model) => {
    const mine = rows.filter((one) => one.model === model);
    return make(
      "details",
      { class: "card" },
      make("summary", {}, make("strong", { text: visible(model, 60) }), ` — ${mine.length} verdicts`),
      mine.map(entry),
    );
  });
  const about = "What each model showed, model by model; open one to read the numbers.";
  return panel("findings", "Verdicts", about, make("div", { class: "cards" }, cards), {
    wide: true,
    rows: () => ({
      names: ["model", "verdict", "value", "line", "because"],
      rows: rows.map((r) => [r.model, r.name, r.value, r.line, r.because]),
    }),
  });
}
