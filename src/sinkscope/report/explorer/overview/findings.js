// The findings as cards, each with its picture: two heads over the steps, where sinks begin and end, accuracies as bars.

import { draw, make, visible } from "../dom.js";
import { palette } from "../colours.js";
import { panel } from "../panel.js";

const TITLES = { sinks: "1. Are there sinks?", movement: "2. Do they move?", masking: "3. Are they needed?" };
const HIGH = 190, LEFT = 40, BOTTOM = 34;

function textAt(x, y, text, anchor = "middle", fill = palette().muted) {
  return draw("text", { x, y, "text-anchor": anchor, "font-size": 11, fill, text: visible(text, 40) });
}

// Every head with a sink as a line from its sink's first position to its last.
function movement(entries, width) {
  const colours = palette(), wide = (width - LEFT) / entries.length;
  const marks = entries.flatMap((entry, place) => {
    const x = LEFT + place * wide, from = x + wide * 0.2, to = x + wide * 0.8, top = 8, high = HIGH - BOTTOM - top;
    const at = (position) => top + (position / Math.max(1, entry.positions - 1)) * high;
    const lines = entry.ends.map(([first, last]) =>
      draw("line", {
        x1: from,
        x2: to,
        y1: at(first),
        y2: at(last),
        stroke: colours.series[first === last ? 0 : 1],
        "stroke-width": 1.4,
        "stroke-opacity": 0.35,
      })
    );
    const still = entry.ends.filter(([first, last]) => first === last).length;
    return [
      draw("line", {
        x1: from,
        x2: to,
        y1: at(entry.prompt),
        y2: at(entry.prompt),
        stroke: colours.muted,
        "stroke-dasharray": "3 3",
      }),
      ...lines,
      textAt(from, HIGH - BOTTOM + 14, "first step"),
      textAt(to, HIGH - BOTTOM + 14, "last step"),
      textAt(x + wide / 2, HIGH - 4, `${entry.model}: ${still} of ${entry.ends.length}`, "middle", colours.ink),
    ];
  });
  const label = entries.map((entry) => {
    const still = entry.ends.filter(([first, last]) => first === last).length;
    return `${entry.model}: ${still} of ${entry.ends.length} heads end where they begin`;
  }).join("; ");
  return draw(
    "svg",
    {
      width,
      height: HIGH,
      viewBox: `0 0 ${width} ${HIGH}`,
      role: "img",
      "aria-label": `Position of each head’s sink. ${label}.`,
    },
    draw("text", {
      x: 12,
      y: HIGH / 2 - 16,
      "font-size": 11,
      fill: colours.muted,
      transform: `rotate(-90 12 ${HIGH / 2 - 16})`,
      "text-anchor": "middle",
      text: "position",
    }),
    ...marks,
  );
}

// Accuracy with its interval, one group per model.
function bars(rows, width) {
  const colours = palette(), models = [...new Set(rows.map((row) => row.model))];
  const top = 8, high = HIGH - BOTTOM - top, at = (share) => top + (1 - share) * high;
  const step = (width - LEFT) / (rows.length + models.length - 1 || 1);
  const grid = [0, 0.5, 1].flatMap((share) => [
    draw("line", {
      x1: LEFT,
      x2: width,
      y1: at(share),
      y2: at(share),
      stroke: colours.grid ?? colours.muted,
      "stroke-opacity": 0.3,
    }),
    textAt(LEFT - 6, at(share) + 4, `${100 * share} %`, "end"),
  ]);
  const kinds = [...new Set(rows.map((row) => row.condition))];
  const marks = rows.map((row, place) => {
    const gap = models.indexOf(row.model), x = LEFT + (place + gap) * step + step * 0.12, wide = step * 0.76;
    const dose = row.dose === null || row.dose === undefined
      ? ""
      : `, ${(100 * row.dose).toFixed(0)} % of the attention removed`;
    return draw(
      "g",
      {},
      draw("title", {
        text: `${row.model}, ${row.condition}: ${(100 * row.accuracy).toFixed(0)} % of ${row.n}${dose}`,
      }),
      draw("rect", {
        x,
        y: at(row.accuracy),
        width: wide,
        height: Math.max(1, at(0) - at(row.accuracy)),
        fill: colours.series[kinds.indexOf(row.condition) % 6],
        "fill-opacity": 0.8,
      }),
      draw("line", {
        x1: x + wide / 2,
        x2: x + wide / 2,
        y1: at(row.low),
        y2: at(row.high),
        stroke: colours.ink,
        "stroke-width": 1.4,
      }),
    );
  });
  const names = models.map((model, place) => {
    const mine = rows.map((row, index) => [row, index]).filter(([row]) => row.model === model).map(([, index]) =>
      index
    );
    return textAt(
      LEFT + (mine.reduce((a, b) => a + b, 0) / mine.length + place + 0.5) * step,
      HIGH - 6,
      model,
      "middle",
      colours.ink,
    );
  });
  const label = rows.map((row) => `${row.model}, ${row.condition}: ${(100 * row.accuracy).toFixed(0)} %`).join("; ");
  return draw(
    "svg",
    { width, height: HIGH, viewBox: `0 0 ${width} ${HIGH}`, role: "img", "aria-label": `Accuracy. ${label}.` },
    grid,
    marks,
    names,
  );
}

function legend(rows) {
  const colours = palette(), kinds = [...new Set(rows.map((row) => row.condition))];
  return make(
    "ul",
    { class: "shared", "aria-label": "Legend" },
    kinds.map((kind, place) => {
      const sign = draw("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" });
      sign.append(draw("rect", { width: 12, height: 12, fill: colours.series[place % 6] }));
      return make("li", {}, sign, make("span", { text: visible(kind === "none" ? "nothing masked" : kind, 60) }));
    }),
  );
}

export function createFindings(app, pictures) {
  const { overview, movement: ends = [] } = app.data, findings = overview.findings ?? [];
  if (!findings.length) return null;
  const cards = findings.map((finding) => {
    const holder = make("div", { class: "card-picture" });
    const paper = make("p", { class: "note", text: `The paper reports: ${visible(finding.paper, 200)}.` });
    const body = make("div", {}, finding.name === "sinks" ? pictures.map((one) => one.element) : holder, paper);
    const frame = panel(`finding-${finding.name}`, TITLES[finding.name], visible(finding.sentence, 500), body);
    const paint = () => {
      const width = Math.max(220, holder.clientWidth || 380);
      if (finding.name === "movement" && ends.length) {
        const text =
          "One generation of each: a line per head, from its sink’s position at the first step to that at the last; " +
          "counted are the heads where it is the same (blue).";
        holder.replaceChildren(movement(ends, width), make("p", { class: "note", text }));
      }
      if (finding.name === "masking" && finding.bars.length) {
        holder.replaceChildren(bars(finding.bars, width), legend(finding.bars));
      }
    };
    return {
      element: frame.element,
      draw: finding.name === "sinks" ? () => Promise.all(pictures.map((one) => one.draw())) : paint,
    };
  });
  const element = make("div", { class: "cards" }, cards.map((card) => card.element));
  return { element, draw: () => Promise.all(cards.map((card) => card.draw())) };
}
