// A live figure: one head's received attention over the steps, its sink marked, playing once.

import { make, visible } from "../dom.js";
import { HEAT, heatLegend, paintHeat } from "../heat.js";
import { panel } from "../panel.js";
import { loadScene, sinksOf } from "../scene.js";

const PACE = 160; // milliseconds per step; long generations are played in the time of 40 steps

export function createLive(app, chosen, place) {
  const sample = app.samples[chosen.sample],
    view = { ...app.view, ...chosen, group: "all", unit: "uniform", epsilon: 3 };
  const state = { scene: null, geometry: null, step: 0, playing: 0, played: false };
  const picture = make("canvas", { "aria-hidden": "true" }),
    row = make("div", { class: "over", "aria-hidden": "true" });
  const holder = make("div", { class: "holder", role: "img", tabindex: 0 }, picture, row);
  const words = make("p", { class: "about now" }), legend = make("div", { class: "legend" });
  const again = make("button", { type: "button", class: "jump", text: "Play again", onclick: () => play() });
  const explore = make("button", {
    type: "button",
    class: "jump",
    text: "Explore this head",
    onclick: () =>
      app.set({
        tab: "explorer",
        sample: chosen.sample,
        layer: chosen.layer,
        head: chosen.head,
        step: state.step,
      }),
  });
  const buttons = make("div", { class: "jumps" }, again, explore);
  const about = `Prompt: ${visible(sample.prompt.trim().replaceAll("\n", " "), 110)}`;
  const name = place ? `live-${place + 1}` : "live";
  const frame = panel(
    name,
    visible(chosen.title, 90),
    about,
    make("div", {}, holder, words, legend, buttons),
    { level: "h3" },
  );

  function show(step) {
    state.step = step;
    row.style.transform = `translate(${HEAT.left}px, ${step * state.geometry.line}px)`;
    const { leaders, source } = state.scene, key = leaders[step], found = sinksOf(state.scene, step);
    const [text] = sample.vocabulary[source.canvas[step * sample.positions + key]];
    const what = found.length ? "sink" : "largest key (no sink)";
    words.textContent = `Step ${step + 1} of ${sample.steps}: ${what} at position ${key}, ${visible(text, 20)}`;
    holder.setAttribute("aria-label", `Attention received, step by step. ${words.textContent}`);
    frame.element.dataset.step = step;
  }

  function play() {
    const mine = ++state.playing, pace = Math.min(PACE, (40 * PACE) / sample.steps), start = performance.now();
    state.played = true;
    const tick = (now) => {
      if (mine !== state.playing) return;
      const step = Math.max(0, Math.min(sample.steps - 1, Math.floor((now - start) / pace)));
      if (step !== state.step) show(step);
      if (step < sample.steps - 1 && app.view.tab === "overview") requestAnimationFrame(tick);
      else frame.element.dataset.played = "yes";
    };
    show(0);
    requestAnimationFrame(tick);
  }

  return {
    element: frame.element,
    async draw() {
      state.scene ??= await loadScene(sample, view);
      const width = Math.max(120, (frame.element.clientWidth || 480) - 34 - HEAT.left);
      state.geometry = paintHeat(picture, state.scene, width, 96);
      row.style.width = `${width}px`;
      row.style.height = `${Math.max(3, state.geometry.line)}px`;
      legend.replaceChildren(...heatLegend(state.scene));
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      if (state.played || still) show(state.played ? state.step : sample.steps >> 1);
      else play();
    },
  };
}
