// The study's results: findings in sentences, what masking cost (Table 1), which tokens are sinks (Table 2), epsilon.

import { draw, make, number, signed, visible } from "./dom.js";
import { palette } from "./colours.js";
import { lineChart } from "./chart.js";
import { panel } from "./panel.js";

const NAMES = {
  none: "nothing masked",
  noop: "no-op control",
  mask_sinks: "sinks masked",
  mask_random: "random keys masked",
};

function conditionName({ condition, label }) {
  if (label) return NAMES[label] ?? label;
  const name = NAMES[condition.name] ?? condition.name.replaceAll("_", " ");
  const more = [
    condition.k ? `K = ${condition.k}` : "",
    condition.rank && condition.name === "mask_sinks" ? condition.rank.replace("_", " ") : "",
    condition.rows && condition.rows !== "all" ? `${condition.rows} row` : "",
  ].filter(Boolean);
  return more.length ? `${name} (${more.join(", ")})` : name;
}

function unique(values) {
  return [...new Set(values)];
}

function findings(overview) {
  const cards = unique(overview.findings.map(({ model }) => model)).map((model) =>
    make(
      "article",
      { class: "card" },
      make("h3", { text: visible(model, 60) }),
      make(
        "ul",
        {},
        overview.findings.filter((one) => one.model === model).map(({ verdict, text }) =>
          make(
            "li",
            {},
            verdict ? make("strong", { class: "verdict", text: visible(verdict, 60) }) : null,
            make("span", { text: visible(text, 1200) }),
          )
        ),
      ),
    )
  );
  return panel(
    "findings",
    "Findings",
    "In sentences, with the numbers that they rest on.",
    make("div", { class: "findings" }, cards),
    { wide: true },
  ).element;
}

// Change of accuracy against the number of masked keys, a chart a model.
const SERIES = [
  ["sinks", { name: "mask_sinks", rank: "clean", rows: "all" }, 0, "circle", ""],
  ["sinks, as run", { name: "mask_sinks", rank: "as_run", rows: "all" }, 2, "triangle", "2 3"],
  ["random keys", { name: "mask_random", rows: "all", match: "count" }, 1, "square", "7 3"],
  ["random, same mass", { name: "mask_random", rows: "all", match: "mass" }, 5, "ring", "1 4"],
  ["sinks by last row", { name: "mask_sinks", rank: "clean", rows: "last" }, 3, "circle", "9 3 2 3"],
  ["random by last row", { name: "mask_random", rows: "last", match: "count" }, 4, "square", "5 2"],
];
const USUAL = { rank: "clean", rows: "all", match: "count" };
const BENCHMARKS = {
  arithmetic: ["gsm8k"],
  gsm8k: ["gsm8k"],
  programs: ["humaneval"],
  humaneval: ["humaneval"],
  all: ["gsm8k", "humaneval"],
};

function maskingSeries(cells, paper, taskName) {
  const masked = cells.filter((cell) =>
    cell.difference !== null && cell.difference !== undefined && !cell.condition.above && !cell.condition.keep_self
  );
  const zero = { x: 0, y: 0 };
  const series = [];
  const add = (name, match, look) => {
    const points = masked.filter(match).sort((a, b) => a.condition.k - b.condition.k)
      .map((cell) => ({
        x: cell.condition.k,
        y: 100 * cell.difference,
        low: cell.difference_low == null ? null : 100 * cell.difference_low,
        high: cell.difference_high == null ? null : 100 * cell.difference_high,
      }));
    if (points.length) series.push({ name, points: [zero, ...points], ...look });
  };
  const colours = palette().series;
  for (const [name, wanted, colour, marker, dash] of SERIES) {
    add(
      name,
      ({ condition }) => Object.entries(wanted).every(([field, value]) => (condition[field] ?? USUAL[field]) === value),
      { colour: colours[colour], marker, dash },
    );
  }
  for (const task of BENCHMARKS[taskName] ?? []) {
    const values = paper[task];
    if (!values) continue;
    const points = [1, 5, 10].filter((k) => values[k] !== undefined).map((k) => ({
      x: k,
      y: 100 * (values[k] - values[0]),
    }));
    series.push({
      name: `paper, ${task === "gsm8k" ? "GSM8K" : "HumanEval"}`,
      points,
      line: false,
      colour: palette().muted,
      marker: task === "gsm8k" ? "diamond" : "cross",
    });
  }
  return series;
}

function masking(overview) {
  const tasks = unique(overview.cells.map((cell) => cell.task)),
    models = unique(overview.cells.map((cell) => cell.model));
  const pick = make(
    "select",
    { id: "task", onchange: () => fill() },
    tasks.map((task) =>
      make("option", { value: task, text: task === "all" ? "all tasks together" : visible(task, 40) })
    ),
  );
  const charts = make("div", { class: "multiples" });
  const of = (model) => overview.cells.filter((cell) => cell.model === model && cell.task === pick.value);
  const build = (model, width) =>
    lineChart({
      width,
      height: 270,
      series: maskingSeries(of(model), overview.paper[model] ?? {}, pick.value),
      x: { label: "keys masked a head (K)" },
      y: { label: "change of accuracy (points)" },
      xTicks: [0, 1, 5, 10],
      label: `${model}, ${pick.value}: change of accuracy when keys are masked. ${
        of(model).filter((c) => c.difference != null).map((c) =>
          `${conditionName(c)} ${signed(100 * c.difference)} points`
        ).join("; ")
      }.`,
    });
  const fill = () => {
    const room = charts.clientWidth || 900,
      columns = Math.max(1, Math.min(models.length, Math.floor(room / 300))),
      width = Math.floor((room - 16 * (columns - 1)) / columns);
    charts.replaceChildren(
      ...models.filter((model) => of(model).length).map((model) =>
        make("figure", {}, make("figcaption", { text: visible(model, 40) }), build(model, width))
      ),
    );
  };
  const frame = panel(
    "masking",
    "What masking sinks costs",
    "Change of accuracy against K, on the same problems. Bars are 95 % intervals where the study has them; the paper’s 7–8B models are marks.",
    make(
      "div",
      {},
      make("label", { class: "field" }, make("span", { class: "field-name", text: "Task" }), pick),
      charts,
    ),
    {
      wide: true,
      figure: () => {
        const shown = models.filter((model) => of(model).length), wide = 420;
        return draw(
          "svg",
          { width: wide * shown.length, height: 280, viewBox: `0 0 ${wide * shown.length} 280` },
          shown.map((model, i) =>
            draw(
              "g",
              { transform: `translate(${i * wide} 0)` },
              draw("text", {
                x: 46,
                y: 18,
                "font-family": "system-ui, sans-serif",
                "font-size": 13,
                fill: palette().ink,
                text: visible(model, 40),
              }),
              draw("g", { transform: "translate(0 26)" }, ...build(model, wide).childNodes),
            )
          ),
        );
      },
      rows: () => ({
        names: [
          "model",
          "task",
          "condition",
          "k",
          "rank",
          "rows",
          "n",
          "correct",
          "accuracy",
          "low",
          "high",
          "difference",
          "p",
        ],
        rows: overview.cells.map((
          c,
        ) => [
          c.model,
          c.task,
          c.condition.name,
          c.condition.k,
          c.condition.rank,
          c.condition.rows,
          c.n,
          c.correct,
          c.accuracy,
          c.low,
          c.high,
          c.difference,
          c.p,
        ]),
      }),
    },
  );
  return { element: frame.element, draw: fill };
}

function accuracyTable(overview) {
  const percent = (value) => (value === null || value === undefined ? "–" : (100 * value).toFixed(1));
  const rows = overview.cells.map((c) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", text: visible(c.model, 40) }),
      ...[
        visible(c.task, 40),
        conditionName(c),
        String(c.n ?? "–"),
        percent(c.accuracy),
        c.low == null ? "–" : `${percent(c.low)} – ${percent(c.high)}`,
        c.difference == null ? "–" : signed(100 * c.difference),
        c.p == null ? "–" : c.p < 0.001 ? "< 0.001" : c.p.toFixed(3),
      ].map((text) => make("td", { text })),
    )
  );
  const heads = ["Model", "Task", "Condition", "n", "Accuracy %", "95 % interval", "Change, points", "p (McNemar)"];
  const table = make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Accuracy table" },
    make(
      "table",
      {},
      make("thead", {}, make("tr", {}, heads.map((text) => make("th", { scope: "col", text })))),
      make("tbody", {}, rows),
    ),
  );
  return panel(
    "table1",
    "Table 1: accuracy with and without sinks",
    "Every cell of the study, with its interval and the paired test against the unmasked run.",
    table,
    { wide: true },
  ).element;
}

// Share of the sinks by token, as bars; the tick on each bar is how often the token stands on the canvas at all.
function tokens(overview) {
  const models = unique(overview.tokens.map((row) => row.model)), charts = make("div", { class: "multiples" });
  const of = (model) =>
    overview.tokens.filter((row) => row.model === model).sort((a, b) => b.share - a.share).slice(0, 8);
  function bars(model, width) {
    const rows = of(model),
      colours = palette(),
      height = 24 * rows.length + 30,
      left = 112,
      right = 104,
      top = Math.max(0.01, ...rows.map((row) => Math.max(row.share, row.base ?? 0)));
    const text = (content, at) =>
      draw("text", {
        "font-family": "system-ui, sans-serif",
        "font-size": 12,
        fill: colours.ink,
        text: content,
        ...at,
      });
    const x = (share) => left + (share / top) * (width - left - right);
    return draw(
      "svg",
      {
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `${model}: ${
          rows.map((r) => `${visible(r.token, 14)} ${Math.round(100 * r.share)} % of the sinks`).join(", ")
        }`,
      },
      draw("rect", { width, height, fill: colours.paper }),
      rows.flatMap((row, i) => [
        text(visible(row.token ?? row.kind, 11), { x: left - 8, y: 24 * i + 21, "text-anchor": "end" }),
        draw("rect", {
          x: left,
          y: 24 * i + 8,
          width: Math.max(1, x(row.share) - left),
          height: 16,
          rx: 2,
          fill: colours.series[0],
        }),
        row.base == null ? null : draw("line", {
          x1: x(row.base),
          x2: x(row.base),
          y1: 24 * i + 5,
          y2: 24 * i + 27,
          stroke: colours.sink,
          "stroke-width": 2.5,
        }),
        text(`${(100 * row.share).toFixed(1)} %${row.enrichment == null ? "" : ` (×${number(row.enrichment, 1)})`}`, {
          x: Math.max(x(row.share), x(row.base ?? 0)) + 6,
          y: 24 * i + 21,
        }),
      ]),
      text("bar: share of sinks · tick: share of canvas · ×: ratio", {
        x: 0,
        y: height - 3,
        "font-size": 11,
        fill: colours.muted,
      }),
    );
  }
  const fill = () => {
    const room = charts.clientWidth || 900,
      columns = Math.max(1, Math.min(models.length, Math.floor(room / 320))),
      width = Math.floor((room - 16 * (columns - 1)) / columns);
    charts.replaceChildren(
      ...models.map((model) =>
        make("figure", {}, make("figcaption", { text: visible(model, 40) }), bars(model, width))
      ),
    );
  };
  const frame = panel(
    "tokens",
    "Table 2: which tokens are sinks",
    "Share of all sinks that falls on a token, beside how often that token stands on the canvas; × says how much oftener than its frequency alone would make it.",
    charts,
    {
      wide: true,
      figure: () =>
        draw(
          "svg",
          { width: 420 * models.length, height: 260 },
          models.map((model, i) =>
            draw(
              "g",
              { transform: `translate(${420 * i} 24)` },
              draw("text", {
                y: -6,
                x: 8,
                "font-size": 13,
                "font-family": "system-ui, sans-serif",
                fill: palette().ink,
                text: visible(model, 40),
              }),
              ...bars(model, 420).childNodes,
            )
          ),
        ),
      rows: () => ({
        names: ["model", "token", "kind", "share", "enrichment"],
        rows: overview.tokens.map((r) => [r.model, r.token, r.kind, r.share, r.enrichment]),
      }),
    },
  );
  return { element: frame.element, draw: fill };
}

function curves(overview) {
  const body = make("div", { class: "multiples" }),
    units = unique(overview.curves.map((row) => row.unit)),
    models = unique(overview.curves.map((row) => row.model));
  const build = (unit, width) =>
    lineChart({
      width,
      height: 280,
      x: { label: `ε (${unit})` },
      y: { label: "non-sinks, % of keys" },
      label: `Share of keys that are no sinks against epsilon in ${unit}`,
      series: models.map((model) => ({
        name: visible(model, 20),
        size: 2.5,
        points: overview.curves.filter((row) => row.model === model && row.unit === unit).map((row) => ({
          x: row.epsilon,
          y: 100 * row.nonSinks,
        })),
      })).filter((s) => s.points.length),
    });
  const fill = () => {
    const room = body.clientWidth || 900, columns = room >= 640 ? Math.min(2, units.length) : 1;
    body.replaceChildren(...units.map((unit) => build(unit, Math.floor((room - 16 * (columns - 1)) / columns))));
  };
  const frame = panel(
    "curves",
    "How much epsilon matters",
    "Share of (step, layer, head, key) that is no sink, against ε, in each reading of its unit. The paper says that ε = 3 leaves at least 96 % out.",
    body,
    {
      wide: true,
      figure: () => build(units[0], 640),
      rows: () => ({
        names: ["model", "unit", "epsilon", "share of non-sinks"],
        rows: overview.curves.map((r) => [r.model, r.unit, r.epsilon, r.nonSinks]),
      }),
    },
  );
  return { element: frame.element, draw: fill };
}

function classes(overview) {
  const names = ["static", "moving", "flash", "split", "none"];
  const table = make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Classes of heads" },
    make(
      "table",
      {},
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          ["Model", ...names.map((name) => `${name} %`), "generations"].map((text) =>
            make("th", { scope: "col", text })
          ),
        ),
      ),
      make(
        "tbody",
        {},
        overview.classes.map((row) =>
          make(
            "tr",
            {},
            make("th", { scope: "row", text: visible(row.model, 40) }),
            names.map((name) => make("td", { text: (100 * row[name]).toFixed(0) })),
            make("td", { text: String(row.generations) }),
          )
        ),
      ),
    ),
  );
  return panel("classes", "How heads behave", "Share of heads by what their largest sink does over the steps.", table, {
    wide: true,
  }).element;
}

function facts(overview) {
  return panel(
    "run",
    "This run",
    "What was run, and with what.",
    make(
      "dl",
      { class: "facts" },
      overview.facts.flatMap((
        [name, value],
      ) => [make("dt", { text: visible(name, 60) }), make("dd", { text: visible(String(value), 300) })]),
    ),
    { wide: true },
  ).element;
}

export function createOverview(app) {
  const { overview } = app.data, live = [];
  const add = (made) => {
    if (made.draw) live.push(made);
    return made.element ?? made;
  };
  const element = make(
    "main",
    { id: "overview", class: "page" },
    overview.findings.length ? findings(overview) : null,
    overview.cells.length ? add(masking(overview)) : null,
    overview.cells.length ? accuracyTable(overview) : null,
    overview.tokens.length ? add(tokens(overview)) : null,
    overview.classes.length ? classes(overview) : null,
    overview.curves.length ? add(curves(overview)) : null,
    overview.facts.length ? facts(overview) : null,
  );
  return { element, draw: () => live.forEach((one) => one.draw()) };
}
