// The canvas of the step on screen, with its sinks in words.

import { visible } from "./dom.js";
import { createChips, describe } from "./chips.js";
import { panel } from "./panel.js";
import { UNITS } from "./rules.js";

export function createStrip(app) {
  const chips = createChips(
    "Tokens on the canvas",
    () => ({ scene: app, step: app.view.step }),
    (key) => app.point(key),
  );
  const frame = panel("strip", "Canvas", "", chips.list, {
    wide: true,
    rows: () => ({
      names: ["step", "position", "token", "kind", `score (${app.view.unit}, ${app.view.group} queries)`, "sink"],
      rows: Array.from({ length: app.sample.positions }, (_, key) => {
        const about = describe(app, app.view.step, key);
        return [app.view.step, key, about.text, about.kind, about.score, about.sink ? 1 : 0];
      }),
    }),
  });

  function words() {
    const { sample, source, view } = app, row = view.step * sample.positions;
    const named = app.sinksAt(view.step).slice(0, 6).map((key) => {
      const [text] = sample.vocabulary[source.canvas[row + key]];
      return `${visible(text, 14)} at ${key}`;
    });
    frame.note.textContent = `${app.place()} Sinks: ${
      named.length ? named.join(", ") : `none above ε = ${view.epsilon} ${UNITS[view.unit].label}`
    }.`;
  }

  return {
    element: frame.element,
    draw() {
      chips.draw(app, app.view.step);
      words();
    },
    step() {
      chips.move(app, app.view.step);
      words();
    },
  };
}
