// The live page: a prompt, Run, and columns that show the same decode with and without some of its keys.

import { make, visible } from "../dom.js";
import { createColumn } from "./column.js";

const { live } = JSON.parse(document.getElementById("data").textContent);
const MOST = 4; // columns
const STRONG = { rule: "head_share", epsilon: 0.3 };
const RULES = {
  "strong sinks: > 0.3 of a head": STRONG,
  "> 0.1 of a head": { rule: "head_share", epsilon: 0.1 },
  "the paper: 3 above the mean, column sums": { rule: "threshold", epsilon: 3, unit: "uniform" },
};
const FIELDS = { length: "1", block: "1", steps: "1", threshold: "0.01", temperature: "0.1", seed: "1" };
const app = { columns: [], token: null, head: null, busy: false };

function field(name, step) {
  const usual = live.defaults[name];
  const input = make("input", {
    id: `set-${name}`,
    type: "number",
    min: 0,
    step,
    placeholder: usual === null || usual === undefined ? "auto" : String(usual),
  });
  return make("label", {}, make("span", { text: name }), input);
}

const prompt = make("textarea", { id: "prompt", rows: 3, maxlength: live.longest, "aria-label": "Prompt" });
prompt.value = live.examples[0];
const examples = live.examples.map((text) =>
  make("button", {
    type: "button",
    class: "example",
    text: visible(text, 48),
    onclick: () => {
      prompt.value = text;
    },
  })
);
const rule = make(
  "select",
  { id: "rule", "aria-label": "Sink rule" },
  Object.keys(RULES).map((name) => make("option", { text: name })),
);
const run = make("button", { type: "button", class: "go", id: "run", text: "Run", onclick: () => start() });
const stop = make("button", { type: "button", id: "stop", text: "Stop", disabled: true, onclick: () => stopAll() });
const note = make("p", { class: "note", id: "chosen", role: "status" });
const from = make("input", { id: "from", type: "number", min: 0, max: 1, step: "0.05", placeholder: "0" });
const to = make("input", { id: "to", type: "number", min: 0, max: 1, step: "0.05", placeholder: "1" });

// What can be taken away: button → the words of a study file, or null where nothing is chosen yet.
const CONTROL = {
  name: "mask_random",
  k: 1,
  kinds: "structural",
  among: "prompt",
  persist: true,
  aligned: true,
  above: STRONG,
};
const MASKS = {
  "this token": () => app.token === null ? null : { name: "mask_positions", positions: [app.token] },
  "this head’s sink": () =>
    app.head === null ? null : { name: "mask_sinks", k: 1, layers: [app.head.layer], heads: [app.head.head] },
  "strong sinks": () => ({ name: "mask_sinks", k: 1, above: STRONG }),
  "most-attended key of every head": () => ({ name: "mask_sinks", k: 1 }),
  "control: one other special token, same heads": () => CONTROL,
  "control: a random key of every head": () => ({ name: "mask_random", k: 1 }),
};
const masks = Object.entries(MASKS).map(([name, entry]) =>
  make("button", { type: "button", class: "mask", text: name, onclick: () => again(name, entry()) })
);
const columns = make("div", { class: "columns" });
const away = make(
  "section",
  { class: "panel away", "aria-label": "Decode again without" },
  make("h2", { text: "Decode again without …" }),
  make("div", { class: "buttons" }, masks),
  make(
    "p",
    { class: "span" },
    make("label", {}, make("span", { text: "from" }), from),
    make("label", {}, make("span", { text: "to" }), to),
    make("span", { class: "note", text: "of the generation (empty: from the second step to the end)" }),
  ),
  note,
);

function words() {
  const found = {};
  for (const name of Object.keys(FIELDS)) {
    const text = document.getElementById(`set-${name}`)?.value ?? "";
    if (text !== "") found[name] = Number(text);
  }
  if (found.threshold !== undefined && !live.causal) {
    found.commit = "threshold";
    found.steps = null;
  }
  return found;
}

function settle() {
  run.disabled = app.busy;
  stop.disabled = !app.busy;
  masks.forEach((one, place) => {
    const name = Object.keys(MASKS)[place];
    one.disabled = app.busy || !app.columns.some((column) => column.done) || MASKS[name]() === null;
  });
  const token = app.token === null ? "click a token" : `token at position ${app.token}`;
  const head = app.head === null ? "click a square" : `layer ${app.head.layer}, head ${app.head.head}`;
  note.textContent = `Chosen: ${token}; ${head}.`;
}

const hooks = {
  token(_, key) {
    app.token = app.token === key ? null : key;
    app.columns.forEach((column) => column.choose(app.token));
    settle();
  },
  head(_, layer, head) {
    app.head = { layer, head };
    settle();
  },
  done(element) {
    const mine = app.columns.find((column) => column.element === element);
    const first = app.columns.find((column) => column.asked.model === mine?.asked.model);
    if (mine && first !== mine) mine.compare(first);
  },
};

async function play(asked, title) {
  if (app.columns.length >= MOST) app.columns.splice(1, 1)[0].element.remove();
  const column = createColumn(asked, title, hooks);
  app.columns.push(column);
  columns.append(column.element);
  app.busy = true;
  settle();
  await column.run();
  app.busy = false;
  settle();
}

function base(model) {
  return { model, prompt: prompt.value, words: words(), rule: RULES[rule.value] };
}

async function start() {
  if (app.busy || !prompt.value) return;
  app.columns = [];
  columns.replaceChildren();
  app.token = app.head = null;
  for (const [place, name] of live.models.entries()) await play(base(place), `${name}: nothing masked`);
}

async function again(name, entry) {
  if (app.busy || entry === null) return;
  const steps = from.value === "" && to.value === ""
    ? {}
    : { steps: [Number(from.value || 0), to.value === "" ? null : Number(to.value)] };
  const change = entry.name === "mask_positions" && !steps.steps ? { ...entry, since: "second" } : entry;
  const chosen = name === "this token" ? `without position ${app.token}` : `without ${name}`;
  for (const place of live.models.keys()) {
    const title = `${live.models[place]}: ${name.startsWith("control") ? name : chosen}`;
    await play({ ...base(place), entry: { ...change, ...steps } }, title);
  }
}

function stopAll() {
  app.columns.forEach((column) => column.stop());
  fetch("stop", { method: "POST" });
}

const system = matchMedia("(prefers-color-scheme: dark)");
const theme = make("button", { type: "button", class: "theme", onclick: () => colours(!app.dark) });
function colours(dark) {
  app.dark = dark;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  theme.textContent = dark ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Switch to ${theme.textContent.toLowerCase()} colours`);
}

document.getElementById("app").append(
  make(
    "header",
    { class: "live-top" },
    make("strong", { text: "sinkscope" }),
    make("span", { text: visible(live.models.join(" and "), 80) }),
    theme,
  ),
  make(
    "main",
    { class: "page live" },
    make(
      "section",
      { class: "panel ask", "aria-label": "What to decode" },
      prompt,
      make("div", { class: "buttons" }, examples),
      make("div", { class: "fields" }, Object.entries(FIELDS).map(([name, step]) => field(name, step)), rule),
      make("div", { class: "buttons" }, run, stop),
    ),
    away,
    columns,
  ),
);
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
});
colours(system.matches);
settle();
document.documentElement.dataset.ready = "yes";
globalThis.sinkscopeLive = app;
