// Why a key is a sink: its score against that of matched keys, by length or angle, and by content or position.

import { make, number, signed, visible } from "./dom.js";
import { describe } from "./chips.js";
import { panel } from "./panel.js";
import { aliveKeys } from "./rules.js";

const ABOUT = "The top key of this head, or the token that you point at, against keys of the same state that are no " +
  "sinks. A score (nats before the softmax, mean over the step's queries) is norm |k| × angle |q|·cos/√d, and it is " +
  "content, the score with positions removed, plus what positions add. A sink may have a low mean: a few queries can pay " +
  "most of its attention.";
const NAMES = ["score", "key norm", "score without positions", "value norm"];
const COLUMNS = ["mean over queries", "this key", "matched keys", "difference"];

export function createWhy(app) {
  const words = make("p", { class: "about" }), table = make("table", {});
  const frame = panel("why", "Why a key is a sink", ABOUT, make("div", { class: "lens-holder" }, words, table), {
    wide: true,
    rows: async () => {
      const { sample, view } = app, held = slot() < 0 ? [] : await app.source.reasons(slot(), view.step);
      const keys = Array.from({ length: held.length && sample.positions }, (_, key) => key);
      return {
        names: ["step", "layer", "head", "position", "token", ...NAMES],
        rows: keys.map((key) => [
          ...[view.step, view.layer, view.head, key, describe(app, view.step, key).text],
          ...NAMES.map((_, i) => held[i * sample.positions + key]),
        ]),
      };
    },
  });
  let pointed = -1, version = 0;

  const slot = () => app.sample.whyHeads.findIndex(([l, h]) => l === app.view.layer && h === app.view.head);

  // What the file does not hold: which heads it holds, and how to ask for another.
  function missing() {
    const { sample, view } = app, [layer, head] = [Math.max(view.layer, 0), Math.max(view.head, 0)];
    const named = sample.whyHeads.map(([l, h]) =>
      make("button", {
        type: "button",
        class: "tool",
        text: `layer ${l}, head ${h}`,
        onclick: () => app.set({ layer: l, head: h }),
      })
    );
    table.replaceChildren();
    words.replaceChildren(
      named.length ? "This file holds it for: " : "This file does not hold it. ",
      ...named,
      `${
        named.length ? " For another head: " : ""
      }record the trace with keep=sk.Keep(maps=((${layer}, ${head}),)), or `,
      `call trace.why(${view.step}, ${layer}, ${head}, ${app.leaders[view.step]}, model=model).`,
    );
  }

  async function show() {
    const mine = ++version, { sample, view } = app, step = view.step;
    if (slot() < 0) return missing();
    const held = await app.source.reasons(slot(), step);
    if (mine !== version) return;
    const key = pointed >= 0 && pointed < aliveKeys(sample, step) ? pointed : app.leaders[step];
    const about = describe(app, step, key), others = matched(app, step, key, about);
    const where = `${visible(about.text, 40) || "∅"} at ${key}, ${about.part}, ${about.sink ? "a sink" : "no sink"}`;
    const parts = `Which layers made it: trace.why(${step}, ${view.layer}, ${view.head}, ${key}, model=model).sources`;
    words.textContent = `${where}; ${others.length} matched keys. ${
      others.length ? parts : "There is nothing to compare."
    }`;
    const rows = others.length ? compared(held, sample.positions, key, others) : [];
    table.replaceChildren(
      make("thead", {}, make("tr", {}, COLUMNS.map((text) => make("th", { scope: "col", text })))),
      make(
        "tbody",
        {},
        rows.map(([name, ...cells]) =>
          make("tr", {}, make("th", { scope: "row", text: name }), cells.map((text) => make("td", { text })))
        ),
      ),
    );
  }

  return {
    element: frame.element,
    draw: show,
    step: show,
    point(key) {
      if (key === pointed) return;
      pointed = key;
      if (slot() >= 0) show();
    },
  };
}

// Keys of the same state that are no sinks; of the same kind of token where there are any.
function matched(app, step, key, about) {
  const all = Array.from({ length: aliveKeys(app.sample, step) }, (_, other) => [other, describe(app, step, other)]);
  const same = all.filter(([other, its]) => other !== key && !its.sink && its.part === about.part);
  const kind = same.filter(([, its]) => its.kind === about.kind);
  return (kind.length ? kind : same).map(([other]) => other);
}

// Rows of the table. A score is norm × along: the difference of two splits exactly into one part each.
function compared(held, positions, key, others) {
  const [score, norm, content, value] = NAMES.map((_, i) => held.subarray(i * positions, (i + 1) * positions));
  const along = score.map((one, i) => one / norm[i]),
    mean = (of) => others.reduce((sum, i) => sum + of(i), 0) / others.length;
  const row = (name, of) => [name, number(of(key)), number(mean(of)), signed(of(key) - mean(of), 2)];
  const part = (name, of, gain) => [name, number(of[key]), number(mean((i) => of[i])), signed(mean(gain), 2)];
  return [
    row("score", (i) => score[i]),
    part("by norm", norm, (i) => (norm[key] - norm[i]) * (along[key] + along[i]) / 2),
    part("by angle", along, (i) => (along[key] - along[i]) * (norm[key] + norm[i]) / 2),
    ...(Number.isNaN(content[key]) ? [] : [
      row("by content", (i) => content[i]),
      row("by position", (i) => score[i] - content[i]),
    ]),
    [
      "value norm",
      number(value[key]),
      number(mean((i) => value[i])),
      `× ${number(value[key] / mean((i) => value[i]))}`,
    ],
  ];
}
