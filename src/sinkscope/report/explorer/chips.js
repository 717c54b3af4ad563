// The canvas as a row of tokens: masks as masks, shade = attention received, a triangle and a ring on every sink.

import { make, number, visible } from "./dom.js";
import { css, ink, shade } from "./colours.js";
import { halfTable } from "./decode.js";
import { hideTip, showTip } from "./panel.js";
import { aliveKeys, isSink, queryCount, scale, UNITS } from "./rules.js";
import { editedAt } from "./scene.js";

export function describe(scene, step, key) {
  const { sample, plane, view, source } = scene;
  const [text, kind] = sample.vocabulary[source.canvas[step * sample.positions + key]];
  const queries = queryCount(sample, view.group, step), keys = aliveKeys(sample, step);
  return {
    text,
    kind,
    score: plane.values[step * sample.positions + key] * scale(view.unit, queries, keys),
    committed: sample.committedAt[key],
    confidence: halfTable()[source.confidence[step * sample.positions + key]],
    sink: isSink(sample, plane, scene.bounds, step, key),
    there: key < keys,
    part: key < sample.promptLength ? "prompt" : kind === "mask" ? "masked" : "committed",
    edited: editedAt(scene, step, key),
  };
}

export function tipLines(scene, step, key) {
  const about = describe(scene, step, key), { view } = scene;
  return [
    ["", visible(about.text, 120)],
    ["kind", about.kind],
    ["position", String(key)],
    ["step", String(step + 1)],
    ["received", `${number(about.score, 3)} ${UNITS[view.unit].label} from ${view.group} queries`],
    ["sink", about.sink ? "yes" : "no"],
    ["on canvas as", about.part],
    about.committed >= 0 ? ["committed", `at step ${about.committed + 1}`] : null,
    about.edited === null ? null : ["edited", `was ${visible(about.edited, 60)}`],
    Number.isNaN(about.confidence) ? null : ["confidence", number(about.confidence, 3)],
  ].filter(Boolean);
}

// Chips have 36 shades: finer ones cannot be told apart on words, and every change repaints a word.
function chipShade(index) {
  return Math.min(255, Math.round(index / 7) * 7);
}

// A list of chips that follows a scene. current: () → {scene, step}, for tooltips; point: (key) → tells other figures.
export function createChips(label, current, point = () => {}) {
  const list = make("ol", { class: "strip", "aria-label": label, tabindex: 0 });
  let chips = [], past = [], last = 0, shown = null;
  list.addEventListener("pointermove", (event) => {
    const chip = event.target.closest("li"), { scene, step } = current();
    if (!chip || !scene?.plane) return hideTip();
    showTip(tipLines(scene, step, Number(chip.dataset.key)), event.clientX, event.clientY);
    point(Number(chip.dataset.key));
  });
  list.addEventListener("pointerleave", () => {
    hideTip();
    point(-1);
  });

  function draw(scene, step) {
    if (shown !== scene.sample) {
      shown = scene.sample;
      chips = Array.from(
        { length: shown.positions },
        (_, key) => make("li", { class: "chip", "data-key": key }, make("span", {})),
      );
      past = chips.map(() => ({}));
      chips[shown.promptLength]?.classList.add("first");
      list.replaceChildren(...chips);
    }
    past.forEach((state) => (state.shade = -1));
    move(scene, step);
  }

  function move(scene, step) {
    const { sample, source, plane } = scene, row = step * sample.positions, alive = aliveKeys(sample, step);
    const now = performance.now(), calm = now - last > 110; // fading in is for eyes that can follow
    last = now;
    for (let key = 0; key < chips.length; key++) {
      const chip = chips[key], state = past[key], token = source.canvas[row + key];
      if (state.token !== token) {
        const [text, kind] = sample.vocabulary[token], masked = kind === "mask";
        const fresh = calm && state.token !== undefined && !masked && sample.committedAt[key] === step - 1;
        chip.firstChild.textContent = masked ? "▢" : visible(text) || "∅";
        chip.classList.toggle("masked", masked);
        chip.classList.toggle("fresh", fresh);
        chip.setAttribute("aria-label", masked ? "mask" : visible(text));
        state.token = token;
      }
      const edited = editedAt(scene, step, key) !== null;
      if (state.edited !== edited) chip.classList.toggle("edited", state.edited = edited);
      const there = key < alive;
      if (state.there !== there) chip.classList.toggle("absent", !(state.there = there));
      const index = chipShade(shade(plane.values[row + key], plane.top));
      if (state.shade !== index) {
        chip.style.backgroundColor = css(index);
        chip.style.color = ink(index);
        state.shade = index;
      }
      const sink = isSink(sample, plane, scene.bounds, step, key);
      if (state.sink !== sink) chip.classList.toggle("sink", state.sink = sink);
    }
  }

  return { list, draw, move, count: () => chips.length };
}
