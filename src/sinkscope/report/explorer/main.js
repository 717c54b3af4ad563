// The page: one state, two tabs, panels that draw themselves when something they show has changed.

import { make, visible } from "./dom.js";
import { defaults, fit, keep, parse, startAt } from "./state.js";
import { hasHead, open } from "./source.js";
import { limits, useRules } from "./rules.js";
import { className } from "./classes.js";
import { createExplorer } from "./explorer.js";
import { loadScene, sinksOf } from "./scene.js";
import { createOverview } from "./overview/page.js";

const data = JSON.parse(document.getElementById("data").textContent);
useRules(data.rules);
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
  notice: "",
  playing: false,
  changed: new Set(["all"]),
  queued: false,
  version: 0,
  panels: [],
  ready: false,

  set(patch, notice = "") {
    const before = { ...this.view };
    this.notice = notice;
    Object.assign(this.view, patch);
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
      if (has("sample", "layer", "head", "group", "unit", "tab") || !this.plane) {
        try {
          if (!(await this.load())) return;
        } catch (error) {
          return complain(`This sample could not be read: ${error.message}`);
        }
        changed.add("all");
      }
      if (has("unit", "epsilon", "theme", "size")) this.redraw();
      else if (has("step", "playing", "speed")) { for (const part of this.panels) part.step(); }
    } else if (has("tab", "theme", "size")) {
      settling(overview.draw());
    }
    keep(this.view);
    this.ready = true;
    document.documentElement.dataset.ready = "yes";
  },

  redraw() {
    this.bounds = limits(this.sample, this.plane, this.view);
    settling(Promise.all(this.panels.map((part) => part.draw()))); // the fast ones are done when this returns
  },

  // Get the numbers that the view needs; false if another view was asked for meanwhile.
  async load() {
    const mine = ++this.version, scene = await loadScene(this.samples[this.view.sample], this.view);
    if (mine !== this.version) return false;
    const { sample, source, plane, bounds, leaders } = scene;
    Object.assign(this, { sample, source, plane, bounds, leaders });
    return true;
  },

  sinksAt(step) {
    return sinksOf(this, step);
  },

  // Go on to the next head of a class, in this sample and then in the others.
  async nextHead(name) {
    const { view, samples } = this, start = view.sample;
    for (let turn = 0; turn <= samples.length; turn++) {
      const index = (start + turn) % samples.length, sample = samples[index];
      const heads = await (await open(sample)).heads(view);
      const here = view.layer < 0 ? -1 : view.layer * sample.heads + Math.max(0, view.head);
      const found = heads.findIndex((head, i) => head.name === name && (turn > 0 || i > here));
      if (found < 0) continue;
      const [layer, head] = [Math.floor(found / sample.heads), found % sample.heads];
      const where = `layer ${layer}, head ${head}: ${className(heads[found])}`;
      return this.set({ sample: index, layer, head }, `${visible(sample.model, 30)}, ${where}`);
    }
    this.changed.add("size");
    this.set({}, `No ${name} head at ε = ${view.epsilon}.`);
  },

  // Where the numbers on screen come from, as a sentence.
  place() {
    const { layer, head, group } = this.view;
    if (layer < 0) return `Mean of all layers and heads; ${group} queries.`;
    if (head < 0) return `Layer ${layer}, mean of its heads; ${group} queries.`;
    if (hasHead(this.sample, layer, head)) return `Layer ${layer}, head ${head}; ${group} queries.`;
    const kept = `this file keeps only the path of head ${head}; sinkscope view shows its map`;
    return `Layer ${layer}, mean of its heads (${kept}); ${group} queries.`;
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
    if (!this.playing) return;
    this.playing = false;
    this.panels.forEach((part) => part.step());
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

// The page says when everything is drawn; a later drawing takes the word back.
let drawing = 0;
function settling(work) {
  const mine = ++drawing, { dataset } = document.documentElement;
  delete dataset.settled;
  Promise.resolve(work).then(() => {
    if (mine === drawing) dataset.settled = "yes";
  }, (error) => complain(error.message));
}

const system = matchMedia("(prefers-color-scheme: dark)");
function theme(choice) {
  const { dataset } = document.documentElement;
  dataset.theme = choice || (system.matches ? "dark" : "light");
  toggle.textContent = dataset.theme === "dark" ? "Light" : "Dark";
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
const parts = ["findings", "claims", "cells", "tokens", "curves", "classes"];
const hasOverview = parts.some((name) => data.overview?.[name]?.length);
const tabs = ["overview", "explorer"].filter((name) => (name === "overview" ? hasOverview : data.samples.length));
const tabButtons = tabs.map((name) =>
  make("button", {
    type: "button",
    class: "tab",
    text: name[0].toUpperCase() + name.slice(1),
    onclick: () => app.set({ tab: name }),
  })
);
startAt({ ...data.start, tab: tabs[0] ?? "explorer" });
app.view = defaults();
const overview = hasOverview
  ? createOverview(app)
  : { element: make("main", { id: "overview", class: "page" }), draw() {} };
const explorer = createExplorer(app);

function showTab(name) {
  overview.element.hidden = name !== "overview";
  explorer.hidden = name !== "explorer";
  tabButtons.forEach((button, i) => {
    if (tabs[i] === name) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  });
}

const brand = make(
  "div",
  { class: "brand" },
  make("span", { class: "word", text: "sinkscope" }),
  make("span", { class: "title", text: visible(data.title ?? "", 80) }),
);
const navigation = make("nav", { "aria-label": "Parts of the report" }, tabs.length > 1 ? tabButtons : []);
document.getElementById("app").append(
  make("header", { class: "top" }, brand, navigation, toggle),
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

document.addEventListener("keydown", (event) => {
  if (app.view.tab !== "explorer" || !app.plane || event.ctrlKey || event.metaKey || event.altKey) return;
  const tag = event.target.tagName, far = app.sample.steps;
  if ((tag === "INPUT" && event.target.id !== "step") || tag === "SELECT" || tag === "TEXTAREA") return;
  const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -far, End: far };
  if (event.key in moves) {
    event.preventDefault();
    app.move(moves[event.key]);
  } else if (event.key === " " && (tag !== "BUTTON" || event.target.classList.contains("play"))) {
    event.preventDefault();
    if (!event.repeat) app.toggle();
  }
});

function restore() {
  const asked = parse(location.hash);
  if (tabs.length && !tabs.includes(asked.tab ?? tabs[0])) delete asked.tab;
  app.set({ ...defaults(), ...asked });
}

window.addEventListener("hashchange", restore);
system.addEventListener("change", () => {
  app.changed.add("theme");
  app.set({});
});
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  app.changed.add("size");
  app.set({});
});
theme(parse(location.hash).theme ?? "");
restore();
window.sinkscope = app; // for a closer look from the console
