// The explorer's tab: controls, timeline and the panels that follow them.

import { make } from "./dom.js";
import { createAttention } from "./attention.js";
import { createCompare } from "./compare.js";
import { createControls } from "./controls.js";
import { createGrid } from "./grid.js";
import { createLens } from "./lens.js";
import { createMap } from "./map.js";
import { createPaths } from "./paths.js";
import { createProfile } from "./profile.js";
import { createStrip } from "./strip.js";
import { createTimeline } from "./timeline.js";
import { createWhy } from "./why.js";

export function createExplorer(app) {
  const element = make("main", { id: "explorer", class: "page" });
  if (!app.samples.length) {
    element.append(make("p", { text: "This run has neither results nor traces yet." }));
    return element;
  }
  app.sample = app.samples[app.view.sample] ?? app.samples[0];
  const controls = createControls(app), timeline = createTimeline(app), strip = createStrip(app), map = createMap(app);
  const profile = createProfile(app), grid = createGrid(app), paths = createPaths(app);
  const compare = createCompare(app), attention = createAttention(app), lens = createLens(app), why = createWhy(app);
  app.panels = [controls, timeline, strip, profile, map, grid, paths, compare, attention, lens, why];
  element.append(
    make("h1", { class: "quiet", text: "Explorer" }),
    controls.element,
    timeline.element,
    strip.element,
    make(
      "div",
      { class: "columns" },
      make("div", { class: "column main" }, map.element, profile.element),
      make("div", { class: "column side" }, grid.element, paths.element),
    ),
    why.element,
    lens.element,
    compare.element,
    attention.element,
  );
  return element;
}
