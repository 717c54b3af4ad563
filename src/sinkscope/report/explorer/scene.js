// One sample as a view shows it: the numbers of a head or of a mean, the limits, the sinks. Every figure draws from one.

import { isSink, leaders, limits } from "./rules.js";
import { open } from "./source.js";

// A view within what a sample has: another sample may be shorter or shallower.
function within(sample, view) {
  const layer = view.layer < sample.layers ? view.layer : -1;
  return { ...view, layer, head: layer < 0 || view.head >= sample.heads ? -1 : view.head };
}

// The sample, ready to be drawn.
export async function loadScene(sample, wanted) {
  const view = within(sample, wanted), source = await open(sample);
  const plane = await source.plane(view.layer, view.head, view.group, view.unit);
  return {
    sample,
    source,
    plane,
    view,
    bounds: limits(sample, plane, view),
    leaders: leaders(sample, plane),
  };
}

export function sinksOf(scene, step) {
  const found = [];
  for (let key = 0; key < scene.sample.positions; key++) {
    if (isSink(scene.sample, scene.plane, scene.bounds, step, key)) found.push(key);
  }
  return found;
}

// The same problem with nothing changed and with its sinks masked, where the run kept both: [before, after].
export function pairOf(samples, sample) {
  const same = samples.filter((s) =>
    s.model === sample.model && s.prompt === sample.prompt && s.steps === sample.steps
  );
  const before = sample.interventions.length ? same.find((s) => !s.interventions.length) : sample;
  const after = sample.interventions.length ? sample : same.find((s) => s.interventions.length);
  return before && after ? [before, after] : null;
}

// Whether a committed token was replaced by another one just before this step: an edit.
export function editedAt(scene, step, key) {
  if (step === 0 || key < scene.sample.promptLength) return null;
  const { canvas } = scene.source, { positions, vocabulary } = scene.sample;
  const before = canvas[(step - 1) * positions + key], now = canvas[step * positions + key];
  const masked = [before, now].some((token) => vocabulary[token][1] === "mask"); // committed, or opened again
  // A sampler without masks draws its whole canvas again at every step: nothing stands that could be edited.
  if (before === now || masked || scene.sample.causal || scene.sample.settings.family === "diffusion_gemma") {
    return null;
  }
  return vocabulary[before][0];
}
