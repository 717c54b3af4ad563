// Whole attention maps of one head at two neighbouring steps, side by side (Figures 4, 6, 8), where they were kept.

import { make } from "./dom.js";
import { palette, table } from "./colours.js";
import { canvasFigure } from "./download.js";
import { fitCanvas, panel } from "./panel.js";

export function createAttention(app) {
  const pictures = [0, 1].map(() => make("canvas", { role: "img" })), titles = [0, 1].map(() => make("figcaption", {}));
  const choice = make("select", { id: "map-head", "aria-label": "Head whose maps are shown", onchange: () => show() });
  const pair = make("div", { class: "pair" }, pictures.map((picture, i) => make("figure", {}, picture, titles[i])));
  const frame = panel(
    "attention",
    "Attention maps of neighbouring steps",
    "Rows are queries, columns are keys: a sink is a bright column. It moves where the two maps differ.",
    make(
      "div",
      {},
      make("label", { class: "field" }, make("span", { class: "field-name", text: "Head" }), choice),
      pair,
    ),
    {
      wide: true,
      figure: () =>
        canvasFigure(pictures[1], {
          title: `${app.sample.model}: attention at step ${app.view.step + 1}`,
          x: "key",
          y: "query (downwards)",
        }),
      rows: async () => {
        const size = app.sample.positions, codes = await app.source.map(Number(choice.value), app.view.step);
        return {
          names: ["step", "query", "key", "attention"],
          rows: Array.from(codes, (code, i) => [app.view.step, Math.floor(i / size), i % size, (code / 255) ** 2]),
        };
      },
    },
  );
  let version = 0;

  async function show() {
    const mine = ++version, { sample, source, view } = app, size = sample.positions, lookup = table();
    const steps = [Math.max(0, view.step - 1), Math.max(0, view.step - 1) + (sample.steps > 1 ? 1 : 0)];
    const maps = await Promise.all(steps.map((step) => source.map(Number(choice.value), step)));
    if (mine !== version) return;
    const room = (frame.element.clientWidth || 600) - 34,
      width = Math.max(120, Math.min(440, room >= 560 ? room / 2 - 10 : room));
    maps.forEach((codes, i) => {
      const image = new ImageData(size, size);
      for (let cell = 0; cell < codes.length; cell++) {
        image.data.set(
          [lookup[3 * codes[cell]], lookup[3 * codes[cell] + 1], lookup[3 * codes[cell] + 2], 255],
          4 * cell,
        );
      }
      const small = new OffscreenCanvas(size, size);
      small.getContext("2d").putImageData(image, 0, 0);
      const context = fitCanvas(pictures[i], width, width);
      context.imageSmoothingEnabled = false;
      context.drawImage(small, 0, 0, width, width);
      context.strokeStyle = palette().line;
      context.strokeRect(0.5, 0.5, width - 1, width - 1);
      titles[i].textContent = `Step ${steps[i] + 1}`;
      pictures[i].setAttribute("aria-label", `Attention map at step ${steps[i] + 1}, ${size} queries by ${size} keys`);
    });
  }

  return {
    element: frame.element,
    draw() {
      const heads = app.sample.mapHeads;
      frame.element.hidden = heads.length === 0;
      if (!heads.length) return;
      const before = choice.value;
      choice.replaceChildren(
        ...heads.map(([layer, head], slot) => make("option", { value: slot, text: `layer ${layer}, head ${head}` })),
      );
      const same = heads.findIndex(([layer, head]) => layer === app.view.layer && head === app.view.head);
      choice.value = same >= 0 ? same : before && Number(before) < heads.length ? before : 0;
      show();
    },
    step() {
      if (app.sample.mapHeads.length) show();
    },
  };
}
