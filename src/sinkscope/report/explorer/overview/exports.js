// Tables to take home: CSV, Markdown and LaTeX of {names, rows}, and the same as HTML.

import { make } from "../dom.js";
import { csv, hand } from "../download.js";

export function markdown({ names, rows }) {
  const line = (cells) =>
    `| ${cells.map((cell) => String(cell).replaceAll("|", "\\|").replaceAll("\n", " ")).join(" | ")} |`;
  const rule = line(names.map((_, i) => (i ? "---:" : "---")));
  return [line(names), rule, ...rows.map(line)].join("\n") + "\n";
}

const SPECIAL = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
const SIGNS = {
  "−": "$-$",
  "–": "--",
  "×": "$\\times$",
  "ε": "$\\varepsilon$",
  "≥": "$\\ge$",
  "⏎": "\\textbackslash{}n",
};

export function latex({ names, rows }) {
  const plain = (cell) =>
    String(cell).replace(/[\\~^&%$#_{}]/g, (sign) => SPECIAL[sign] ?? `\\${sign}`).replace(
      /[−–×ε≥⏎]/g,
      (sign) => SIGNS[sign],
    );
  const line = (cells) => `  ${cells.map(plain).join(" & ")} \\\\`;
  const columns = `l${"r".repeat(names.length - 1)}`;
  const body = ["  \\toprule", line(names), "  \\midrule", ...rows.map(line), "  \\bottomrule"];
  return [`\\begin{tabular}{${columns}}`, ...body, "\\end{tabular}", ""].join("\n");
}

const KINDS = {
  CSV: ["csv", "text/csv", ({ names, rows }) => csv(names, rows)],
  Markdown: ["md", "text/markdown", markdown],
  LaTeX: ["tex", "application/x-tex", latex],
};

export function exportButtons(name, title, sheet) {
  const buttons = Object.entries(KINDS).map(([kind, [ending, type, write]]) =>
    make("button", {
      type: "button",
      class: "tool",
      text: kind,
      "aria-label": `Download ${title} as ${kind}`,
      onclick: () => hand(new Blob([write(sheet())], { type }), `${name}.${ending}`),
    })
  );
  return make("div", { class: "tools" }, buttons);
}

export function htmlTable(label, { names, rows }) {
  const head = make("tr", {}, names.map((text) => make("th", { scope: "col", text })));
  const body = rows.map((cells) =>
    make("tr", {}, cells.map((text, i) => make(i ? "td" : "th", i ? { text } : { scope: "row", text })))
  );
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, body));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
}
