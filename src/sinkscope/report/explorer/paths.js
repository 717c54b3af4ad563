// Where the largest key is at every step, for all models on one plot (the paper's Figure 7).

import { make, visible } from "./dom.js";
import { palette } from "./colours.js";
import { CHART, lineChart } from "./chart.js";
import { panel } from "./panel.js";
import { lead } from "./source.js";

export function createPaths(app) {
  const body = make("div", { class: "chart" }),
    plot = make("div", {}),
    cursor = make("div", { class: "cursor", "aria-hidden": "true" });
  body.append(plot, cursor);
  const frame = panel("paths", "Path of the largest key, all models", "", body, {
    figure: async () => build(Math.max(560, body.clientWidth), 320),
    rows: () => ({
      names: ["model", "sample", "layer", "step", "position"],
      rows: lines().flatMap(({ sample, keys, layer }) =>
        keys.map((key, step) => [sample.model, sample.name, layer, step, key])
      ),
    }),
  });

  // One sample per model: the one on screen, and of the others the sample with the same prompt, or their first.
  function lines() {
    const { sample, samples, view } = app, models = [...new Set(samples.map((s) => s.model))];
    return models.map((model) => {
      const mine = samples.filter((s) => s.model === model);
      const chosen = model === sample.model
        ? sample
        : mine.find((s) => s.prompt === sample.prompt && !s.interventions.length) ?? mine[0];
      const layer = view.layer < chosen.layers ? view.layer : -1;
      return { sample: chosen, layer, keys: chosen.lead?.[layer + 1] ?? [] };
    });
  }

  function build(width, height) {
    const shown = lines(), single = app.view.head >= 0;
    const series = shown.map(({ sample, keys }) => ({
      name: visible(sample.model, 20),
      marks: keys.length <= 40,
      size: 2.5,
      points: keys.map((key, step) => ({ x: (100 * (step + 0.5)) / sample.steps, y: key })),
    }));
    if (single && app.trails) {
      const { sample, view } = app, start = (view.layer * sample.heads + view.head) * sample.steps;
      series.push({
        name: `this head (L${view.layer} H${view.head})`,
        marks: false,
        wide: 2.5,
        colour: palette().path,
        dash: "",
        points: Array.from(
          app.trails.keys.subarray(start, start + sample.steps),
          (key, step) => ({ x: (100 * (step + 0.5)) / sample.steps, y: key }),
        ),
      });
    }
    const highest = Math.max(...shown.map(({ sample }) => sample.positions));
    return lineChart({
      width,
      height,
      series,
      x: { label: "share of the generation done (%)", range: [0, 100] },
      y: { label: "position", range: [0, highest] },
      label: `Position of the largest key over the steps: ${
        shown.map(({ sample, keys }) => `${visible(sample.model, 20)} from ${keys[0]} to ${keys.at(-1)}`).join("; ")
      }.`,
    });
  }

  let version = 0;
  return {
    element: frame.element,
    async draw() {
      const mine = ++version;
      app.trails = await app.source.paths(app.view.group);
      await Promise.all(lines().map(({ sample }) => lead(sample)));
      if (mine !== version) return;
      const where = app.view.layer < 0 ? "the mean of all layers" : `layer ${app.view.layer} (mean of its heads)`;
      frame.note.textContent = `Position that receives most at each step, in ${where}.`;
      plot.replaceChildren(build(Math.max(260, (frame.element.clientWidth || 600) - 34), 300));
      this.step();
    },
    step() {
      if (!plot.firstChild) return;
      const { left, right } = CHART, wide = Number(plot.firstChild.getAttribute("width")) - left - right;
      cursor.style.transform = `translateX(${left + ((app.view.step + 0.5) / app.sample.steps) * wide}px)`;
    },
  };
}
