// What is on screen, and its twin in the address: a link to the page opens the same view.

import { GROUPS, isComputed } from "./rules.js";

const DEFAULTS = {
  tab: "overview",
  sample: 0,
  step: 0,
  layer: -1,
  head: -1,
  group: "all",
  unit: "uniform",
  epsilon: 3,
  theme: "",
  speed: 8,
};
const KINDS = {
  tab: ["overview", "explorer"],
  group: GROUPS,
  theme: ["", "light", "dark"],
};

// The page may open on another sample and head than the first: what it opens on is what the address leaves out.
export function startAt(patch) {
  for (const [name, value] of Object.entries(patch)) if (name in DEFAULTS) DEFAULTS[name] = value;
}

export function defaults() {
  return { ...DEFAULTS };
}

export function parse(hash) {
  const found = {};
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!(name in DEFAULTS)) continue;
    if (name === "unit") {
      if (isComputed(text)) found[name] = text;
    } else if (KINDS[name]) {
      if (KINDS[name].includes(text)) found[name] = text;
    } else if (text !== "" && Number.isFinite(Number(text))) {
      found[name] = name === "epsilon" ? Math.max(0, Number(text)) : Math.trunc(Number(text));
    }
  }
  return found;
}

export function format(view) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(view)) {
    if (name in DEFAULTS && (value !== DEFAULTS[name] || name === "tab")) words.set(name, String(value));
  }
  return `#${words}`;
}

// Keep a view within what a sample has.
export function fit(view, samples) {
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  if (!samples.length) return view;
  view.sample = clamp(view.sample, 0, samples.length - 1);
  const sample = samples[view.sample];
  view.step = clamp(view.step, 0, sample.steps - 1);
  view.layer = clamp(view.layer, -1, sample.layers - 1);
  view.head = view.layer < 0 ? -1 : clamp(view.head, -1, sample.heads - 1);
  view.speed = clamp(view.speed, 1, 60);
  return view;
}

// The address follows a moment later: browsers count every change of it as a navigation, and 60 a second are too many.
// Frames of a notebook have no address of their own: then the view is simply not kept.
let due = 0;
export function keep(view) {
  clearTimeout(due);
  due = setTimeout(() => {
    try {
      if (location.hash !== format(view)) history.replaceState(null, "", format(view));
    } catch {
      /* sandboxed frame */
    }
  }, 200);
}
