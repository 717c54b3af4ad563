// What masking costs: change of accuracy against K, one chart per model, one legend for all.

import { absent, draw, make, signed, visible } from "../dom.js";
import { palette } from "../colours.js";
import { lineChart } from "../chart.js";
import { panel } from "../panel.js";
import { BENCHMARKS, lookOf, paperLook, sharedLegend } from "./series.js";
import { multiples, unique } from "./multiples.js";

const TASKS = {
  arithmetic: ["gsm8k"],
  gsm8k: ["gsm8k"],
  programs: ["humaneval"],
  humaneval: ["humaneval"],
  all: ["gsm8k", "humaneval"],
};
const ABOUT = "Change of accuracy when K keys per head are masked, on the same problems, with 95 % intervals. " +
  "Random keys are the controls. Marks without a line are the paper’s 7–8B models.";
const NAMES = { none: "nothing masked", noop: "no-op control" };

export function conditionName({ label }) {
  return NAMES[label] ?? label;
}

function point(cell) {
  const scaled = (value) => (absent(value) ? null : 100 * value);
  return {
    x: cell.condition.k || 1,
    y: 100 * cell.difference,
    low: scaled(cell.difference_low),
    high: scaled(cell.difference_high),
    tip: [
      ["accuracy", `${(100 * cell.accuracy).toFixed(1)} % of ${cell.n}`],
      absent(cell.mass_share) ? null : ["attention taken", `${(100 * cell.mass_share).toFixed(0)} %`],
      absent(cell.p_holm ?? cell.p)
        ? null
        : ["p", (cell.p_holm ?? cell.p) < 0.001 ? "< 0.001" : (cell.p_holm ?? cell.p).toFixed(3)],
    ].filter(Boolean),
  };
}

function seriesOf(cells, overview, model, task) {
  const found = [], roles = Object.keys(overview.roles);
  for (const role of roles) {
    const points = cells.filter((cell) => cell.role === role && !absent(cell.difference)).map(point).sort((a, b) =>
      a.x - b.x
    );
    if (!points.length) continue;
    const from = role === "position" ? [] : [{ x: 0, y: 0 }];
    found.push({ name: overview.roles[role], role, points: [...from, ...points], ...lookOf(role, roles) });
  }
  for (const benchmark of TASKS[task] ?? []) {
    const values = overview.paper[model]?.[benchmark];
    if (!values) continue;
    const points = [1, 5, 10].filter((k) => values[k] !== undefined).map((k) => ({
      x: k,
      y: 100 * (values[k] - values[0]),
    }));
    found.push({ name: `paper, ${BENCHMARKS[benchmark]}`, points, ...paperLook(benchmark) });
  }
  return found;
}

export function createMasking(overview) {
  const cells = overview.cells.filter((cell) => cell.role);
  if (!cells.length) return null;
  const tasks = unique(cells.map((cell) => cell.task)), models = unique(cells.map((cell) => cell.model));
  const pick = make(
    "select",
    { id: "task", onchange: () => grid.draw() },
    tasks.map((task) =>
      make("option", { value: task, text: task === "all" ? "all tasks together" : visible(task, 40) })
    ),
  );
  const of = (model) => cells.filter((cell) => cell.model === model && cell.task === pick.value);
  const series = (model) => seriesOf(of(model), overview, model, pick.value);
  const range = () => {
    const ys = models.flatMap(series).flatMap((one) => one.points).flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]);
    return [Math.min(-1, ...ys) * 1.05, Math.max(1, ...ys) + 3];
  };
  const build = (model, width, legend = false) =>
    lineChart({
      width,
      height: legend ? 300 : 240,
      legend,
      series: series(model),
      x: { label: "keys masked per head (K)" },
      y: { label: "change of accuracy (points)", range: range() },
      xTicks: [0, 1, 5, 10],
      label: `${model}, ${pick.value}: change of accuracy when keys are masked. ${
        of(model).filter((c) => !absent(c.difference)).map((c) =>
          `${conditionName(c)} ${signed(100 * c.difference)} points`
        )
          .join("; ")
      }.`,
    });
  const grid = multiples(() => models.filter((model) => of(model).length), build, 250, (shown) => {
    const all = shown.flatMap(series), named = new Map(all.map((one) => [one.name, one]));
    legend.replaceChildren(sharedLegend([...named.values()].map((one) => [one.name, one])));
  });
  const legend = make("div", {});
  const field = make("label", { class: "field" }, make("span", { class: "field-name", text: "Task" }), pick);
  const frame = panel("masking", "What masking costs", ABOUT, make("div", {}, field, legend, grid.element), {
    wide: true,
    figure: () => side(models.filter((model) => of(model).length), (model) => build(model, 420, true), 420, 300),
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
      rows: overview.cells.map(({ condition, ...c }) => [
        c.model,
        c.task,
        condition.name,
        condition.k,
        condition.rank,
        condition.rows,
        c.n,
        c.correct,
        c.accuracy,
        c.low,
        c.high,
        c.difference,
        c.p,
      ]),
    }),
  });
  return { element: frame.element, draw: grid.draw };
}

// Several charts in one drawing, each under its name, to take home.
export function side(names, build, wide, high) {
  const title = { "font-family": "system-ui, sans-serif", "font-size": 13, fill: palette().ink };
  const charts = names.map((name, i) =>
    draw(
      "g",
      { transform: `translate(${i * wide} 0)` },
      draw("text", { x: 46, y: 18, ...title, text: visible(name, 40) }),
      draw("g", { transform: "translate(0 26)" }, ...build(name).childNodes),
    )
  );
  const size = { width: wide * names.length, height: high + 26 };
  return draw("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}` }, charts);
}
