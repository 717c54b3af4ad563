// Whole attention maps of one head at two neighbouring steps (Figures 4, 6, 8), and lines from queries to keys.

import { make, visible } from "./dom.js";
import { palette, table } from "./colours.js";
import { canvasFigure } from "./download.js";
import { colourScale } from "./heat.js";
import { linksFigure } from "./links.js";
import { fitCanvas, hideTip, panel, showTip } from "./panel.js";

const PAIR = { left: 24, bottom: 20 };
const ABOUT =
  "Rows are queries, columns are keys: a sink is a column that stands out. It moves where the two maps differ. " +
  "Point at a row, or at a token of the canvas, to see what that query looks at.";

export function createAttention(app) {
  const pictures = [0, 1].map(() => make("canvas", { role: "img" }));
  const titles = [0, 1].map(() => make("figcaption", {}));
  const choice = make("select", { id: "map-head", "aria-label": "Head whose maps are shown", onchange: () => show() });
  const pair = make("div", { class: "pair" }, pictures.map((picture, i) => make("figure", {}, picture, titles[i])));
  const links = make("div", { class: "links" }), legend = make("div", { class: "legend" });
  const field = make("label", { class: "field" }, make("span", { class: "field-name", text: "Head" }), choice);
  const body = make("div", {}, field, pair, legend, links);
  const frame = panel("attention", "Attention maps of neighbouring steps", ABOUT, body, {
    wide: true,
    figure: () =>
      canvasFigure(pictures[1], { title: `${app.sample.model}: attention at step ${app.view.step + 1}`, x: "", y: "" }),
    rows: async () => {
      const size = app.sample.positions, codes = await app.source.map(Number(choice.value), app.view.step);
      return {
        names: ["step", "query", "key", "attention"],
        rows: Array.from(codes, (code, i) => [app.view.step, Math.floor(i / size), i % size, (code / 255) ** 2]),
      };
    },
  });
  let version = 0, pointed = -1, shown = { maps: [], steps: [], width: 0 };

  function paint(canvas, codes, width) {
    const size = app.sample.positions, lookup = table(), image = new ImageData(size, size), colours = palette();
    for (let cell = 0; cell < codes.length; cell++) {
      const at = 3 * codes[cell];
      image.data.set([lookup[at], lookup[at + 1], lookup[at + 2], 255], 4 * cell);
    }
    const small = new OffscreenCanvas(size, size);
    small.getContext("2d").putImageData(image, 0, 0);
    const context = fitCanvas(canvas, width + PAIR.left, width + PAIR.bottom);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, PAIR.left, 0, width, width);
    context.strokeStyle = colours.line;
    context.strokeRect(PAIR.left + 0.5, 0.5, width - 1, width - 1);
    context.fillStyle = colours.muted;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "top";
    context.fillText("key", PAIR.left + width / 2, width + 5);
    context.translate(6, width / 2);
    context.rotate(-Math.PI / 2);
    context.fillText("query", 0, 0);
  }

  function drawLinks() {
    const last = shown.maps.length - 1;
    if (last < 0) return;
    const width = Math.max(240, (frame.element.clientWidth || 600) - 34);
    const step = shown.steps[last], { sample, source } = app;
    const query = pointed < sample.positions ? pointed : -1;
    const codes = shown.maps[last];
    links.replaceChildren(linksFigure({ sample, canvas: source.canvas, codes, step, query, width }));
  }

  async function show() {
    const mine = ++version, { sample, source, view } = app, size = sample.positions;
    const steps = [Math.max(0, view.step - 1), Math.max(0, view.step - 1) + (sample.steps > 1 ? 1 : 0)];
    const maps = await Promise.all(steps.map((step) => source.map(Number(choice.value), step)));
    if (mine !== version) return;
    const room = (frame.element.clientWidth || 600) - 34;
    const width = Math.max(120, Math.min(520, (room >= 560 ? room / 2 - 10 : room) - PAIR.left));
    shown = { maps, steps, width };
    maps.forEach((codes, i) => {
      paint(pictures[i], codes, width);
      titles[i].textContent = `Step ${steps[i] + 1}`;
      const about = `Attention map at step ${steps[i] + 1}, ${size} queries by ${size} keys`;
      pictures[i].setAttribute("aria-label", about);
    });
    legend.replaceChildren(...colourScale("0", "1, attention weight (shade: square root)"));
    drawLinks();
  }

  pictures.forEach((picture, i) => {
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect(), { sample, source } = app, size = sample.positions;
      const key = Math.floor(((event.clientX - box.left - PAIR.left) * size) / shown.width);
      const query = Math.floor(((event.clientY - box.top) * size) / shown.width);
      if (!shown.maps[i] || key < 0 || key >= size || query < 0 || query >= size) return hideTip();
      const word = (place) => visible(sample.vocabulary[source.canvas[shown.steps[i] * size + place]][0], 40) || "∅";
      const weight = (shown.maps[i][query * size + key] / 255) ** 2;
      showTip(
        [
          ["query", `${word(query)} at ${query}`],
          ["key", `${word(key)} at ${key}`],
          ["attention", `${(100 * weight).toFixed(1)} %`],
        ],
        event.clientX,
        event.clientY,
      );
      point(query);
    });
    picture.addEventListener("pointerleave", () => {
      hideTip();
      point(-1);
    });
  });

  function point(query) {
    if (query === pointed || !app.sample.mapHeads.length) return;
    pointed = query;
    drawLinks();
  }

  return {
    element: frame.element,
    draw() {
      const heads = app.sample.mapHeads;
      frame.element.hidden = heads.length === 0;
      if (!heads.length) return;
      const before = choice.value;
      const named = heads.map(([layer, head], slot) =>
        make("option", { value: slot, text: `layer ${layer}, head ${head}` })
      );
      choice.replaceChildren(...named);
      const same = heads.findIndex(([layer, head]) => layer === app.view.layer && head === app.view.head);
      choice.value = same >= 0 ? same : before && Number(before) < heads.length ? before : 0;
      return show();
    },
    step() {
      if (app.sample.mapHeads.length) show();
    },
    point,
  };
}
