// How heads behave: the share of heads in each class, a bar per model, and where along the sequence their sinks are.

import { draw, make, visible } from "../dom.js";
import { palette } from "../colours.js";
import { CLASSES } from "../classes.js";
import { hideTip, panel, showTip } from "../panel.js";
import { exportButtons, htmlTable } from "./exports.js";

const WORDS = {
  static: "stays at one key",
  moving: "moves or comes and goes",
  flash: "lives for single steps",
  split: "differs between masked and committed queries",
  none: "no sink",
};
const COLOURS = { static: 0, moving: 1, flash: 2, split: 3 };

function bar(row, width, left) {
  const colours = palette(), parts = [];
  let from = 0;
  for (const name of CLASSES) {
    const share = row[name] ?? 0, wide = share * (width - left);
    if (wide > 0) {
      const fill = name === "none" ? colours.line : colours.series[COLOURS[name]];
      const place = { x: left + from * (width - left), y: 3, width: Math.max(0.5, wide - 1), height: 22 };
      const part = draw("rect", { ...place, fill });
      part.addEventListener("pointermove", (event) =>
        showTip(
          [
            ["", visible(row.model, 40)],
            [name, `${(100 * share).toFixed(0)} % of heads`],
            ["its sink", WORDS[name]],
          ],
          event.clientX,
          event.clientY,
        ));
      part.addEventListener("pointerleave", hideTip);
      parts.push(part);
    }
    from += share;
  }
  const label = { x: left - 10, y: 19, "text-anchor": "end", "font-size": 13, "font-family": "system-ui, sans-serif" };
  parts.push(draw("text", { ...label, fill: colours.ink, text: visible(row.model, Math.floor((left - 14) / 7.4)) }));
  return parts;
}

export function createDynamics(overview) {
  const rows = overview.classes;
  if (!rows.length) return null;
  const holder = make("div", { class: "bars" }), legend = make("ul", { class: "shared", "aria-label": "Legend" });
  const build = (width) => {
    const left = Math.min(230, width * 0.42, 24 + 7.5 * Math.max(...rows.map((row) => [...row.model].length))),
      height = 30 * rows.length;
    const said = rows.map((row) =>
      `${visible(row.model, 30)} ${CLASSES.map((n) => `${n} ${Math.round(100 * row[n])} %`).join(", ")}`
    );
    return draw(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said.join("; ") },
      rows.map((row, i) => draw("g", { transform: `translate(0 ${30 * i})` }, bar(row, width, left))),
    );
  };
  const sheet = {
    names: ["Model", ...CLASSES.map((name) => `${name} %`), "generations"],
    rows: rows.map((
      row,
    ) => [row.model, ...CLASSES.map((name) => (100 * row[name]).toFixed(0)), String(row.generations)]),
  };
  const table = make(
    "details",
    {},
    make("summary", { text: "The numbers" }),
    exportButtons("classes", "classes of heads", () => sheet),
    htmlTable("Classes of heads", sheet),
  );
  const about = "Share of heads by what their largest sink does over the steps of a generation.";
  const frame = panel("classes", "How sinks move", about, make("div", {}, legend, holder, table), {
    wide: true,
    figure: () => build(640),
    rows: () => ({
      names: ["model", ...CLASSES, "generations"],
      rows: rows.map((r) => [r.model, ...CLASSES.map((n) => r[n]), r.generations]),
    }),
  });
  return {
    element: frame.element,
    draw() {
      const colours = palette();
      legend.replaceChildren(...CLASSES.map((name) => {
        const box = draw("svg", { width: 14, height: 14, "aria-hidden": "true" });
        box.append(
          draw("rect", {
            width: 14,
            height: 14,
            rx: 2,
            fill: name === "none" ? colours.line : colours.series[COLOURS[name]],
          }),
        );
        return make("li", {}, box, make("span", { text: `${name}: ${WORDS[name]}` }));
      }));
      holder.replaceChildren(build(Math.min(900, holder.clientWidth || 600)));
    },
  };
}
