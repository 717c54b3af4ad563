// The choices: model and sample, layer and head, kind of query, unit, epsilon.

import { make, visible } from "./dom.js";
import { GROUPS, isComputed, UNITS } from "./rules.js";

function field(label, control, extra = "") {
  return make("label", { class: `field ${extra}` }, make("span", { class: "field-name", text: label }), control);
}

function segments(name, legend, choices, pick) {
  const buttons = choices.map(([value, label, about, off = false]) =>
    make(
      "label",
      { class: "segment", title: about },
      make("input", { type: "radio", name, value, disabled: off, onchange: () => pick(value) }),
      make("span", { text: label }),
    )
  );
  const element = make(
    "fieldset",
    { class: "segments" },
    make("legend", { class: "field-name", text: legend }),
    make("div", {}, buttons),
  );
  return {
    element,
    set: (value) => {
      element.querySelector(`input[value="${value}"]`).checked = true;
    },
  };
}

function options(select, entries, value) {
  const key = JSON.stringify(entries);
  if (select.dataset.key !== key) {
    select.replaceChildren(...entries.map(([code, label]) => make("option", { value: code, text: label })));
    select.dataset.key = key;
  }
  select.value = value;
}

export function createControls(app) {
  const models = [...new Set(app.samples.map((sample) => sample.model))];
  const model = make("select", {
    id: "model",
    onchange: (event) => app.set({ sample: app.samples.findIndex((s) => s.model === event.target.value) }),
  });
  const sample = make("select", { id: "sample", onchange: (event) => app.set({ sample: Number(event.target.value) }) });
  const layer = make("select", { id: "layer", onchange: (event) => app.set({ layer: Number(event.target.value) }) });
  const head = make("select", { id: "head", onchange: (event) => app.set({ head: Number(event.target.value) }) });
  const group = segments(
    "group",
    "Attention from queries that are",
    GROUPS.map((name) => [name, name, `${name} queries`]),
    (value) => app.set({ group: value }),
  );
  const unit = segments(
    "unit",
    "Unit",
    Object.entries(UNITS).map(([name, { label, about }]) => [name, label, about, !isComputed(name)]),
    (value) =>
      app.set(
        UNITS[value].most === UNITS[app.view.unit].most
          ? { unit: value }
          : { unit: value, epsilon: UNITS[value].usual },
      ),
  );
  const choose = (event) => {
    if (event.target.value !== "" && Number(event.target.value) >= 0) app.set({ epsilon: Number(event.target.value) });
  };
  const slider = make("input", {
    type: "range",
    id: "epsilon",
    min: 0,
    max: 20,
    step: 0.1,
    "aria-label": "Epsilon, slider",
    oninput: choose,
  });
  const exact = make("input", {
    type: "number",
    id: "epsilon-number",
    min: 0,
    step: 0.1,
    "aria-label": "Epsilon, number",
    onchange: choose,
  });
  const says = make("span", { class: "field-name" });
  const count = make("output", { id: "count", class: "count", for: "epsilon epsilon-number" });
  const element = make(
    "form",
    {
      class: "controls",
      "aria-label": "What to show",
      onsubmit: (event) => event.preventDefault(),
    },
    field("Model", model),
    field("Sample", sample, "grow"),
    field("Layer", layer),
    field("Head", head),
    group.element,
    unit.element,
    make(
      "div",
      { class: "field epsilon" },
      says,
      make("div", { class: "row" }, slider, exact, count),
    ),
  );
  return {
    element,
    draw() {
      const { view, samples } = app, now = app.sample;
      options(model, models.map((name) => [name, visible(name, 40)]), now.model);
      options(
        sample,
        samples.filter((s) => s.model === now.model).map((
          s,
        ) => [
          s.index,
          (s.interventions.length ? `[${s.interventions.map((one) => one.name).join(", ")}] ` : "") +
          visible(s.prompt.trim() || s.name, 60),
        ]),
        view.sample,
      );
      options(
        layer,
        [[-1, "mean of all"], ...Array.from({ length: now.layers }, (_, i) => [i, `layer ${i}`])],
        view.layer,
      );
      options(head, [
        [-1, "mean"],
        ...(view.layer < 0 ? [] : Array.from({ length: now.heads }, (_, i) => [i, `head ${i}`])),
      ], view.head);
      head.disabled = view.layer < 0;
      group.set(view.group);
      unit.set(view.unit);
      says.textContent = UNITS[view.unit].says;
      if (document.activeElement !== exact) exact.value = view.epsilon;
      Object.assign(slider, { max: UNITS[view.unit].most, step: UNITS[view.unit].most / 200, value: view.epsilon });
      exact.step = slider.step;
      this.step();
    },
    step() {
      const here = app.sinksAt(app.view.step).length;
      count.textContent = `${here} sink${here === 1 ? "" : "s"} at this step`;
    },
  };
}
