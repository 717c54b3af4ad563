// Where sinks sit: the share of sinks that each token is, how often it stands on the canvas, and the paper's Table 2.

import { absent, draw, make, number, visible } from "../dom.js";
import { palette } from "../colours.js";
import { hideTip, panel, showTip } from "../panel.js";
import { exportButtons, htmlTable } from "./exports.js";
import { multiples, unique } from "./multiples.js";
import { side } from "./masking.js";

const BAR = { high: 24, left: 112, right: 66 };
const ABOUT =
  "Share of all sinks that falls on a token (bar), beside how often that token stands on the canvas (line) and " +
  "the paper’s share (ring): a token counts as preferred where the bar passes the line.";
const SAME = { mask: ["<|mdm_mask|>", "<|mask|>", "mask"], "start-header": ["<|start_header_id|>"] };
const MORE = {
  "end-header": ["<|end_header_id|>"],
  "start-of-text": ["<|startoftext|>"],
  "end-of-text": ["<|endoftext|>"],
};

// The paper's share for one of our tokens, where its Table 2 has that token.
function paperShare(overview, model, token) {
  const named = { ...SAME, ...MORE };
  const row = (overview.paperTokens[model] ?? []).find(([name]) => name === token || named[name]?.includes(token));
  return row ? row[1] : null;
}

function bars(rows, width, paper) {
  const colours = palette(), height = BAR.high * rows.length + 6;
  const top = Math.max(0.01, ...rows.flatMap((row) => [row.share, row.base ?? 0, paper(row.token) ?? 0]));
  const x = (share) => BAR.left + (share / top) * (width - BAR.left - BAR.right);
  const text = (content, at) =>
    draw("text", { "font-family": "system-ui, sans-serif", "font-size": 12, fill: colours.ink, text: content, ...at });
  const parts = rows.flatMap((row, i) => {
    const y = BAR.high * i, far = Math.max(row.share, row.base ?? 0, paper(row.token) ?? 0);
    return [
      text(visible(row.token ?? row.kind, 14), { x: BAR.left - 8, y: y + 17, "text-anchor": "end" }),
      draw("rect", {
        x: BAR.left,
        y: y + 4,
        width: Math.max(1, x(row.share) - BAR.left),
        height: 16,
        rx: 2,
        fill: colours.series[0],
      }),
      absent(row.base) ? null : draw("line", {
        x1: x(row.base),
        x2: x(row.base),
        y1: y + 1,
        y2: y + 23,
        stroke: colours.sink,
        "stroke-width": 2.5,
      }),
      paper(row.token) === null ? null : draw("circle", {
        cx: x(paper(row.token)),
        cy: y + 12,
        r: 5,
        fill: "none",
        stroke: colours.ink,
        "stroke-width": 2,
      }),
      text(`${(100 * row.share).toFixed(1)} %`, { x: x(far) + 9, y: y + 17 }),
    ];
  });
  const said = rows.map((r) => `${visible(r.token, 14)} ${Math.round(100 * r.share)} % of the sinks`).join(", ");
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said }, [
    draw("rect", { width, height, fill: colours.paper }),
    ...parts,
  ]);
  svg.addEventListener("pointermove", (event) => {
    const row = rows[Math.floor((event.clientY - svg.getBoundingClientRect().top) / BAR.high)];
    if (!row) return hideTip();
    const percent = (value) => (absent(value) ? "–" : `${(100 * value).toFixed(1)} %`);
    showTip(
      [
        ["", visible(row.token ?? row.kind, 40)],
        [
          "of the sinks",
          `${percent(row.share)}${absent(row.low) ? "" : ` [${percent(row.low)}, ${percent(row.high)}]`}`,
        ],
        ["of the canvas", percent(row.base)],
        ["ratio", `× ${number(row.enrichment, 1)}`],
        ["paper", percent(paper(row.token))],
      ],
      event.clientX,
      event.clientY,
    );
  });
  svg.addEventListener("pointerleave", hideTip);
  return svg;
}

export function createPlaces(overview) {
  if (!overview.tokens.length) return null;
  const models = unique(overview.tokens.map((row) => row.model));
  const of = (model, most = 8) =>
    overview.tokens.filter((row) => row.model === model).sort((a, b) => b.share - a.share).slice(0, most);
  const build = (model, width) => bars(of(model), width, (token) => paperShare(overview, model, token));
  const grid = multiples(() => models, build, 300);
  const percent = (value) => (absent(value) ? "–" : (100 * value).toFixed(1));
  const sheet = {
    names: ["Model", "Token", "Sinks %", "95 % interval", "Canvas %", "Ratio", "Paper %"],
    rows: models.flatMap((model) =>
      of(model, 6).map((row) => [
        model,
        visible(row.token ?? row.kind, 20),
        percent(row.share),
        absent(row.low) ? "–" : `${percent(row.low)} – ${percent(row.high)}`,
        percent(row.base),
        absent(row.enrichment) ? "–" : number(row.enrichment, 1),
        percent(paperShare(overview, model, row.token)),
      ])
    ),
  };
  const table = make(
    "details",
    { id: "table2" },
    make("summary", { text: "Table 2: which tokens are sinks, with the paper’s shares" }),
    exportButtons("table2", "table 2", () => sheet),
    htmlTable("Table 2", sheet),
  );
  const legend = make(
    "ul",
    { class: "shared", "aria-label": "Legend" },
    [["key-bar", "share of sinks"], ["key-base", "share of the canvas"], ["key-paper", "paper’s share of sinks"]]
      .map(([kind, text]) => make("li", {}, make("span", { class: kind, text }))),
  );
  const frame = panel("tokens", "Where sinks sit", ABOUT, make("div", {}, legend, grid.element, table), {
    wide: true,
    figure: () => side(models, (model) => build(model, 420), 420, BAR.high * 8 + 6),
    rows: () => ({
      names: ["model", "token", "kind", "share", "low", "high", "canvas", "enrichment", "paper"],
      rows: overview.tokens.map((r) => [
        r.model,
        r.token,
        r.kind,
        r.share,
        r.low,
        r.high,
        r.base,
        r.enrichment,
        paperShare(overview, r.model, r.token),
      ]),
    }),
  });
  return { element: frame.element, draw: grid.draw };
}
