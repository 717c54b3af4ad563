// Table 1: model × K, sinks beside their controls and the paper's row; every cell of the study folded below.

import { absent, make, signed, visible } from "../dom.js";
import { panel } from "../panel.js";
import { exportButtons, htmlTable } from "./exports.js";
import { conditionName } from "./masking.js";
import { unique } from "./multiples.js";
import { BENCHMARKS } from "./series.js";

const MINIATURE = { arithmetic: "gsm8k", gsm8k: "gsm8k", programs: "humaneval", humaneval: "humaneval" };

function percent(value) {
  return absent(value) ? "–" : (100 * value).toFixed(1);
}

// Accuracy in percent, a row per model, task and kind of keys, a column per K; K = 0 is the unmasked model.
export function tableOne(overview) {
  const cells = overview.cells.filter((cell) => !absent(cell.accuracy));
  const ks = unique(cells.filter((c) => ["sinks", "count", "mass"].includes(c.role)).map((c) => c.condition.k)).sort((
    a,
    b,
  ) => a - b);
  const rows = [];
  for (const model of unique(cells.map((cell) => cell.model))) {
    for (const task of unique(cells.filter((cell) => cell.model === model).map((cell) => cell.task))) {
      const mine = cells.filter((cell) => cell.model === model && cell.task === task);
      const none = mine.find((cell) => cell.condition.name === "none");
      for (const role of ["sinks", "count", "mass"]) {
        const at = (k) => mine.find((cell) => cell.role === role && cell.condition.k === k);
        if (!ks.some(at)) continue;
        rows.push([
          model,
          task,
          overview.roles[role],
          percent(none?.accuracy),
          ...ks.map((k) => percent(at(k)?.accuracy)),
        ]);
      }
      const benchmark = MINIATURE[task], paper = overview.paper[model]?.[benchmark];
      if (paper) {
        rows.push([
          model,
          task,
          `paper, ${BENCHMARKS[benchmark]}`,
          percent(paper[0]),
          ...ks.map((k) => percent(paper[k])),
        ]);
      }
    }
  }
  return { names: ["Model", "Task", "Keys masked", "none", ...ks.map((k) => `K = ${k}`)], rows };
}

function everyCell(overview) {
  const p = (value) => (absent(value) ? "–" : value < 0.001 ? "< 0.001" : value.toFixed(3));
  return {
    names: [
      "Model",
      "Task",
      "Condition",
      "n",
      "Accuracy %",
      "95 % interval",
      "Change, points",
      `p (McNemar, ${overview.correction})`,
    ],
    rows: overview.cells.map((cell) => [
      cell.model,
      visible(cell.task, 40),
      conditionName(cell),
      String(cell.n ?? "–"),
      percent(cell.accuracy),
      absent(cell.low) ? "–" : `${percent(cell.low)} – ${percent(cell.high)}`,
      absent(cell.difference) ? "–" : signed(100 * cell.difference),
      p(cell.p_primary ?? cell.p_holm ?? cell.p),
    ]),
  };
}

export function createTable(overview) {
  if (!overview.cells.length) return null;
  const sheet = tableOne(overview),
    all = everyCell(overview),
    shown = (one) => ({ ...one, rows: one.rows.map((row) => row.map((cell) => visible(cell, 60))) });
  const pooled = { ...sheet, rows: sheet.rows.filter((row) => row[1] === "all") };
  const first = pooled.rows.length ? pooled : sheet;
  const fold = (id, title, name, one) =>
    make(
      "details",
      { id },
      make("summary", { text: title }),
      exportButtons(name, title.toLowerCase(), () => one),
      htmlTable(title, shown(one)),
    );
  const body = make(
    "div",
    {},
    exportButtons("table1", "table 1", () => sheet),
    htmlTable("Accuracy by model and K", shown(first)),
    first === sheet ? null : fold("by-task", "Table 1 by task, with the paper’s rows", "table1-by-task", sheet),
    fold("cells", "Every cell, with intervals and tests", "cells", all),
  );
  const about =
    "Accuracy in percent with nothing masked and with K keys per head masked; random keys are the controls.";
  return panel("table1", "Table 1", about, body, { wide: true });
}
