// Before and after: the same problem with nothing changed and with its sinks masked, side by side, stepping together.

import { make, visible } from "./dom.js";
import { createChips } from "./chips.js";
import { HEAT, heatLegend, paintHeat } from "./heat.js";
import { panel } from "./panel.js";
import { loadScene, pairOf, sinksOf } from "./scene.js";

const NAMES = { mask_sinks: "sinks masked", MaskSinks: "sinks masked", mask_random: "random keys masked" };

export function changeName(sample) {
  return sample.interventions.map((one) => {
    const name = NAMES[one.name] ?? String(one.name ?? "changed").replaceAll("_", " ");
    return one.k === undefined ? name : `${name}, K = ${one.k}`;
  }).join(" + ");
}

function side(app) {
  const state = { scene: null, geometry: null };
  const step = () => Math.min(app.view.step, (state.scene?.sample.steps ?? 1) - 1);
  const chips = createChips("Tokens on the canvas", () => ({ scene: state.scene, step: step() }));
  const picture = make("canvas", { "aria-hidden": "true" }),
    row = make("div", { class: "over", "aria-hidden": "true" });
  const holder = make("div", { class: "holder", role: "img", tabindex: 0 }, picture, row);
  const caption = make("figcaption", {}), answer = make("p", { class: "about" });
  const element = make("figure", { class: "side" }, caption, chips.list, holder, answer);
  return {
    element,
    state,
    draw(scene, title) {
      state.scene = scene;
      caption.textContent = title;
      answer.textContent = `Answer: ${visible(scene.sample.text.trim().replaceAll("\n", " "), 160) || "none"}`;
      chips.list.setAttribute("aria-label", `Tokens on the canvas, ${title}`);
      const width = Math.max(100, (element.clientWidth || 400) - HEAT.left - 4);
      state.geometry = paintHeat(picture, scene, width, 200);
      row.style.width = `${width}px`;
      row.style.height = `${Math.max(3, state.geometry.line)}px`;
      chips.draw(scene, step());
      this.step();
    },
    step() {
      if (!state.scene) return;
      const now = step();
      chips.move(state.scene, now);
      row.style.transform = `translate(${HEAT.left}px, ${now * state.geometry.line}px)`;
      const found = sinksOf(state.scene, now).length;
      holder.setAttribute("aria-label", `${caption.textContent}: step ${now + 1}, ${found} sinks`);
      element.dataset.step = now;
    },
  };
}

export function createCompare(app) {
  const sides = [side(app), side(app)], legend = make("div", { class: "legend" });
  const frame = panel(
    "compare",
    "Before and after",
    "The same problem, layer and head: as the model is, and with its sinks masked.",
    make("div", {}, make("div", { class: "sides" }, sides.map((one) => one.element)), legend),
    { wide: true },
  );
  let version = 0;
  return {
    element: frame.element,
    async draw() {
      const mine = ++version, pair = pairOf(app.samples, app.sample);
      frame.element.hidden = !pair;
      if (!pair) return;
      const scenes = await Promise.all(pair.map((sample) => loadScene(sample, { ...app.view })));
      if (mine !== version) return;
      sides[0].draw(scenes[0], "nothing masked");
      sides[1].draw(scenes[1], changeName(pair[1]));
      legend.replaceChildren(...heatLegend(scenes[0]));
    },
    step() {
      if (!frame.element.hidden) sides.forEach((one) => one.step());
    },
  };
}
