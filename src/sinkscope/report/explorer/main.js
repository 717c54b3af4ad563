// The page: one state, two tabs, panels that draw themselves when something they show has changed.

import { make, visible } from "./dom.js";
import { defaults, fit, keep, parse } from "./state.js";
import { open } from "./source.js";
import { isSink, leaders, limits } from "./rules.js";
import { createControls } from "./controls.js";
import { createTimeline } from "./timeline.js";
import { createStrip } from "./strip.js";
import { createMap } from "./map.js";
import { createProfile } from "./profile.js";
import { createGrid } from "./grid.js";
import { createPaths } from "./paths.js";
import { createAttention } from "./attention.js";
import { createOverview } from "./overview.js";

const data = JSON.parse(document.getElementById("data").textContent);
data.samples.forEach((sample, index) => {
  sample.index = index;
});

const app = {
  data,
  samples: data.samples,
  view: defaults(),
  sample: null,
  source: null,
  plane: null,
  bounds: null,
  leaders: null,
  trails: null,
  playing: false,
  changed: new Set(["all"]),
  queued: false,
  version: 0,
  panels: [],
  ready: false,

  set(patch) {
    const before = { ...this.view };
    Object.assign(this.view, patch);
    if (
      patch.sample !== undefined && patch.unit === undefined &&
      this.samples[before.sample]?.causal !== this.samples[patch.sample]?.causal
    ) {
      this.view.unit = this.samples[patch.sample]?.causal ? "uniform" : "sum"; // a single row never sums to more than 1
    }
    fit(this.view, this.samples);
    for (const name of Object.keys(this.view)) if (this.view[name] !== before[name]) this.changed.add(name);
    if (this.changed.size && !this.queued) {
      this.queued = true;
      requestAnimationFrame(() => this.refresh());
    }
  },

  async refresh() {
    this.queued = false;
    const changed = this.changed;
    this.changed = new Set();
    const has = (...names) => changed.has("all") || names.some((name) => changed.has(name));
    if (has("theme")) theme(this.view.theme);
    if (has("tab")) showTab(this.view.tab);
    if (this.view.tab === "explorer" && this.samples.length) {
      if (has("sample", "layer", "head", "group", "tab") || !this.plane) {
        try {
          if (!(await this.load())) return;
        } catch (error) {
          return complain(`This sample could not be read: ${error.message}`);
        }
        changed.add("all");
      }
      if (has("unit", "epsilon", "theme", "size")) {
        this.bounds = limits(this.sample, this.plane, this.view);
        delete document.documentElement.dataset.settled;
        const drawn = this.version, slow = this.panels.map((part) => part.draw()); // the fast ones are done when this returns
        Promise.all(slow).then(() => {
          if (drawn === this.version) document.documentElement.dataset.settled = "yes";
        }, (error) => complain(error.message));
      } else if (has("step", "playing", "speed")) { for (const part of this.panels) part.step(); }
    } else if (has("tab", "theme", "size")) {
      overview.draw();
      document.documentElement.dataset.settled = "yes";
    }
    keep(this.view);
    this.ready = true;
    document.documentElement.dataset.ready = "yes";
  },

  // Get the numbers that the view needs; false if another view was asked for meanwhile.
  async load() {
    const mine = ++this.version, { sample, layer, head, group } = this.view;
    const source = await open(this.samples[sample]), plane = await source.plane(layer, head, group);
    if (mine !== this.version) return false;
    Object.assign(this, { sample: this.samples[sample], source, plane, leaders: leaders(this.samples[sample], plane) });
    this.bounds = limits(this.sample, plane, this.view);
    return true;
  },

  sinksAt(step) {
    const found = [];
    for (let key = 0; key < this.sample.positions; key++) {
      if (isSink(this.sample, this.plane, this.bounds, step, key)) found.push(key);
    }
    return found;
  },

  // Where the numbers on screen come from, as a sentence.
  place() {
    const { layer, head, group } = this.view, kept = this.sample.detail !== "compact";
    const where = layer < 0
      ? "Mean of all layers and heads"
      : head < 0
      ? `Layer ${layer}, mean of its heads`
      : kept
      ? `Layer ${layer}, head ${head}`
      : `Layer ${layer}, mean of its heads (this file keeps only the path of head ${head}; sinkscope view has its map)`;
    return `${where}; ${group} queries.`;
  },

  move(by) {
    this.pause();
    this.set({ step: this.view.step + by });
  },
  point(key) {
    this.panels.forEach((part) => part.point?.(key));
  },
  toggle() {
    if (this.playing) this.pause();
    else this.play();
  },
  pause() {
    if (this.playing) {
      this.playing = false;
      this.panels.forEach((part) => part.step());
    }
  },
  play() {
    if (this.view.step >= this.sample.steps - 1) this.set({ step: 0 });
    this.playing = true;
    let last = performance.now();
    const tick = (now) => {
      if (!this.playing) return;
      const due = Math.floor(((now - last) * this.view.speed) / 1000);
      if (due > 0) {
        last += (due * 1000) / this.view.speed;
        if (this.view.step + due >= this.sample.steps) {
          this.playing = false;
          this.changed.add("playing");
        }
        this.set({ step: Math.min(this.view.step + due, this.sample.steps - 1) });
      }
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
    this.panels.forEach((part) => part.step());
  },
};

const system = matchMedia("(prefers-color-scheme: dark)");
function theme(choice) {
  document.documentElement.dataset.theme = choice || (system.matches ? "dark" : "light");
  toggle.textContent = document.documentElement.dataset.theme === "dark" ? "Light" : "Dark";
  toggle.setAttribute("aria-label", `Switch to ${toggle.textContent.toLowerCase()} colours`);
}

function complain(text) {
  problem.textContent = visible(text, 400);
  problem.hidden = false;
}

const problem = make("p", { class: "problem", role: "alert", hidden: true });
const toggle = make("button", {
  type: "button",
  class: "theme",
  onclick: () => app.set({ theme: document.documentElement.dataset.theme === "dark" ? "light" : "dark" }),
});
const hasOverview = data.overview &&
  ["findings", "cells", "tokens", "curves", "classes"].some((name) => data.overview[name].length);
const tabs = ["overview", "explorer"].filter((name) => (name === "overview" ? hasOverview : data.samples.length));
const tabButtons = tabs.map((name) =>
  make("button", {
    type: "button",
    class: "tab",
    text: name[0].toUpperCase() + name.slice(1),
    onclick: () => app.set({ tab: name }),
  })
);
const overview = hasOverview
  ? createOverview(app)
  : { element: make("main", { id: "overview", class: "page" }), draw() {} };
const explorer = make("main", { id: "explorer", class: "page" });
if (data.samples.length) {
  app.sample = data.samples[0];
  const controls = createControls(app), timeline = createTimeline(app), strip = createStrip(app), map = createMap(app);
  const profile = createProfile(app),
    grid = createGrid(app),
    paths = createPaths(app),
    attention = createAttention(app);
  app.panels = [controls, timeline, strip, profile, map, grid, paths, attention];
  explorer.append(
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
    attention.element,
  );
}
if (!tabs.length) explorer.append(make("p", { text: "This run has neither results nor traces yet." }));

function showTab(name) {
  overview.element.hidden = name !== "overview";
  explorer.hidden = name !== "explorer";
  tabButtons.forEach((button, i) => {
    if (tabs[i] === name) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  });
}

document.getElementById("app").append(
  make(
    "header",
    { class: "top" },
    make(
      "div",
      { class: "brand" },
      make("span", { class: "word", text: "sinkscope" }),
      make("span", { class: "title", text: visible(data.title ?? "", 80) }),
    ),
    make("nav", { "aria-label": "Parts of the report" }, tabs.length > 1 ? tabButtons : []),
    toggle,
  ),
  problem,
  overview.element,
  explorer,
  make(
    "footer",
    { class: "foot" },
    make("p", { text: visible(data.note ?? "", 600) }),
    make("p", { class: "keys", text: "Keys: ← → one step · Home, End first and last · Space play" }),
  ),
);
if (hasOverview) overview.element.prepend(make("h1", { class: "quiet", text: "Overview" }));

document.addEventListener("keydown", (event) => {
  if (app.view.tab !== "explorer" || !app.plane || event.ctrlKey || event.metaKey || event.altKey) return;
  const tag = event.target.tagName,
    typing = (tag === "INPUT" && event.target.id !== "step") || tag === "SELECT" || tag === "TEXTAREA";
  if (typing) return;
  if (event.key === " ") {
    if (tag === "BUTTON" && !event.target.classList.contains("play")) return;
    event.preventDefault();
    if (!event.repeat) app.toggle();
  } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    event.preventDefault();
    app.move(event.key === "ArrowRight" ? 1 : -1);
  } else if (event.key === "Home" || event.key === "End") {
    event.preventDefault();
    app.move(event.key === "Home" ? -app.sample.steps : app.sample.steps);
  }
});

function restore() {
  const asked = parse(location.hash), sample = data.samples[asked.sample ?? 0];
  const start = { ...defaults(), unit: sample?.causal ? "uniform" : "sum", layer: sample?.startLayer ?? -1 };
  if (tabs.length && !tabs.includes(asked.tab ?? tabs[0])) delete asked.tab;
  app.set({ ...start, tab: tabs[0] ?? "explorer", ...asked });
}

window.addEventListener("hashchange", restore);
system.addEventListener("change", () => {
  app.changed.add("theme");
  app.set({});
});
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) {
    width = window.innerWidth;
    app.changed.add("size");
    app.set({});
  }
});
theme(parse(location.hash).theme ?? "");
restore();
window.sinkscope = app; // for whoever wants to look closer from the console
