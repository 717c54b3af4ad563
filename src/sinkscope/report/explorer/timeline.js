// The timeline: drag it, play it, step through it with the arrow keys.

import { make } from "./dom.js";
import { queryCount } from "./rules.js";

export function createTimeline(app) {
  const play = make("button", {
    type: "button",
    class: "play",
    "aria-label": "Play",
    "aria-keyshortcuts": "Space",
    onclick: () => app.toggle(),
  }, make("span", { "aria-hidden": "true", text: "▶" }));
  const range = make("input", {
    type: "range",
    id: "step",
    min: 0,
    max: 0,
    step: 1,
    "aria-label": "Denoising step",
    oninput: (event) => {
      app.pause();
      app.set({ step: Number(event.target.value) });
    },
  });
  const back = make("button", {
    type: "button",
    class: "nudge",
    "aria-label": "Step back",
    text: "‹",
    onclick: () => app.move(-1),
  });
  const on = make("button", {
    type: "button",
    class: "nudge",
    "aria-label": "Step on",
    text: "›",
    onclick: () => app.move(1),
  });
  const speed = make("select", {
    id: "speed",
    "aria-label": "Steps a second",
    onchange: (event) => app.set({ speed: Number(event.target.value) }),
  }, [2, 4, 8, 16, 30, 60].map((rate) => make("option", { value: rate, text: `${rate} steps/s` })));
  const words = make("output", { class: "where", for: "step", id: "where" });
  const element = make("div", { class: "timeline" }, play, back, range, on, speed, words);
  return {
    element,
    draw() {
      range.max = app.sample.steps - 1;
      speed.value = [2, 4, 8, 16, 30, 60].reduce((
        best,
        rate,
      ) => (Math.abs(rate - app.view.speed) < Math.abs(best - app.view.speed) ? rate : best));
      this.step();
    },
    step() {
      const { sample, view } = app, step = view.step;
      range.value = step;
      const masked = queryCount(sample, "masked", step), [start, stop] = sample.blocks[step];
      const left = sample.causal ? `${sample.promptLength + step} keys` : `${masked} masked`;
      words.textContent = `Step ${step + 1} of ${sample.steps} · block ${start}–${stop - 1} · ${left}`;
      range.setAttribute("aria-valuetext", words.textContent);
      play.firstChild.textContent = app.playing ? "❚❚" : "▶";
      play.setAttribute("aria-label", app.playing ? "Pause" : "Play");
    },
  };
}
