// One base model made both ways: what one masked key per head costs each, in nats per token of true answers.

import { absent, draw, make, signed, visible } from "../dom.js";
import { palette, seriesLook } from "../colours.js";
import { hideTip, panel, showTip } from "../panel.js";
import { marker } from "../chart.js";
import { sharedLegend } from "./series.js";

const ABOUT = "Change in nats per token of true answers when one key per head is masked, with 95 % intervals; behind " +
  "each the share of the attention that was taken.";
const LINE = 15, HEAD = 8, LEFT = 122, RIGHT = 46;

function look(place) {
  return { ...seriesLook(place), line: false };
}

function percent(share) {
  return absent(share) ? "" : `${(100 * share).toFixed(0)} %`;
}

function spanOf(one) {
  return `${signed(one.difference, 2)} [${signed(one.difference_low, 2)}, ${signed(one.difference_high, 2)}]`;
}

function chart({ models, lines }, width) {
  const colours = palette(), parts = [], rows = [];
  const numbers = lines.flatMap(({ values }) =>
    Object.values(values).flatMap((one) => [one.difference_low, one.difference_high])
  );
  const low = Math.min(0, ...numbers), high = Math.max(0, ...numbers);
  const x = (value) => LEFT + 8 + ((value - low) / (high - low || 1)) * (width - LEFT - RIGHT - 16);
  const text = (content, at) =>
    draw("text", { "font-size": 12, "font-family": "system-ui, sans-serif", text: content, ...at });
  let y = HEAD;
  for (const { name, values } of lines) {
    parts.push(
      text(name, { x: LEFT, y: y + (LINE * models.length) / 2 + 4, "text-anchor": "end", fill: colours.ink }),
    );
    models.forEach((model, place) => {
      const one = values[model.name], middle = y + LINE / 2;
      if (one) {
        const { colour, marker: sign } = look(place), ends = [x(one.difference_low), x(one.difference_high)];
        const d = `M${ends[0]} ${middle}H${ends[1]}M${ends[0]} ${middle - 3}v6M${ends[1]} ${middle - 3}v6`;
        parts.push(draw("path", { d, stroke: colour, "stroke-width": 1.5 }));
        parts.push(marker(sign, x(one.difference), middle, colour, 3.5));
        parts.push(
          text(percent(one.mass_share), { x: width, y: middle + 4, "text-anchor": "end", fill: colours.muted }),
        );
        rows.push({ from: y, to: y + LINE, title: `${visible(model.name, 30)}: ${name}`, one });
      }
      y += LINE;
    });
    y += 4;
  }
  parts.unshift(draw("line", { x1: x(0), x2: x(0), y1: HEAD, y2: y, stroke: colours.muted }));
  parts.push(text("0", { x: x(0), y: y + 12, "text-anchor": "middle", fill: colours.muted }));
  parts.push(text(signed(low, 2), { x: x(low), y: y + 12, "text-anchor": "middle", fill: colours.muted }));
  const height = y + 18;
  const said = rows.map(({ title, one }) => `${title} ${spanOf(one)}`).join("; ");
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said }, parts);
  svg.addEventListener("pointermove", (event) => {
    const at = event.clientY - svg.getBoundingClientRect().top,
      row = rows.find(({ from, to }) => at >= from && at < to);
    if (!row) return hideTip();
    const taken = percent(row.one.mass_share);
    showTip(
      [["", row.title], ["change", `${spanOf(row.one)} nats`], ["problems", String(row.one.n)]].concat(
        taken ? [["attention taken", taken]] : [],
      ),
      event.clientX,
      event.clientY,
    );
  });
  svg.addEventListener("pointerleave", hideTip);
  return svg;
}

export function createPair({ pair }) {
  if (!pair?.lines.length) return null;
  const holder = make("div", {}), legend = make("div", {});
  const named = () => pair.models.map(({ name, kind }, place) => [`${visible(name, 30)} (${kind})`, look(place)]);
  const frame = panel("pair", "Without one key per head", ABOUT, make("div", {}, legend, holder), {
    figure: () => chart(pair, 560),
    rows: () => ({
      names: ["masked", "model", "change", "low", "high", "attention taken", "n"],
      rows: pair.lines.flatMap(({ name, values }) =>
        Object.entries(values).map(([model, one]) => [
          name,
          model,
          one.difference,
          one.difference_low,
          one.difference_high,
          one.mass_share,
          one.n,
        ])
      ),
    }),
  });
  return {
    element: frame.element,
    draw() {
      legend.replaceChildren(sharedLegend(named()));
      holder.replaceChildren(chart(pair, Math.max(280, Math.min(620, holder.clientWidth || 560))));
    },
  };
}
