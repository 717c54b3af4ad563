// How much epsilon matters (the paper's Figure 10): the share of keys that are no sinks, with ε = 3 and 96 % marked.

import { make, visible } from "../dom.js";
import { lineChart } from "../chart.js";
import { panel } from "../panel.js";
import { multiples, unique } from "./multiples.js";
import { sharedLegend } from "./series.js";
import { seriesLook } from "../colours.js";

const UNIT_NAMES = { uniform: "× the uniform share", percent: "percent of the attention", sum: "column sums" };
const ABOUT = "Share of (step, layer, head, key) that is no sink, against ε, in both readings of its unit. " +
  "The paper says that ε = 3 leaves at least 96 % out: the dashed lines.";

export function createThresholds(overview) {
  if (!overview.curves.length) return null;
  const units = unique(overview.curves.map((row) => row.unit)),
    models = unique(overview.curves.map((row) => row.model));
  const build = (unit, width, legend = false) =>
    lineChart({
      width,
      height: 260,
      legend,
      x: { label: `ε (${UNIT_NAMES[unit] ?? unit})` },
      y: { label: "non-sinks (% of keys)", range: [Math.min(70, lowest(unit)), 101] },
      rules: [{ x: 3, name: "ε = 3" }, { y: 96, name: "96 %" }],
      label: `Share of keys that are no sinks against epsilon in ${unit}`,
      series: models.map((model, i) => ({
        name: visible(model, 20),
        size: 2.5,
        points: pointsOf(model, unit),
        ...seriesLook(i),
      }))
        .filter((one) => one.points.length),
    });
  const pointsOf = (model, unit) =>
    overview.curves.filter((row) => row.model === model && row.unit === unit).map((row) => ({
      x: row.epsilon,
      y: 100 * row.nonSinks,
    }));
  const lowest = (unit) => Math.min(...models.flatMap((model) => pointsOf(model, unit)).map((p) => p.y)) - 2;
  const legend = make("div", {});
  const grid = multiples(() => units, build, 300, () => {
    legend.replaceChildren(sharedLegend(models.map((model, i) => [visible(model, 30), seriesLook(i)])));
  }, (unit) => UNIT_NAMES[unit] ?? unit);
  const frame = panel("curves", "Thresholds", ABOUT, make("div", {}, legend, grid.element), {
    wide: true,
    figure: () => build(units[0], 640, true),
    rows: () => ({
      names: ["model", "unit", "epsilon", "share of non-sinks"],
      rows: overview.curves.map((r) => [r.model, r.unit, r.epsilon, r.nonSinks]),
    }),
  });
  return { element: frame.element, draw: grid.draw };
}
