// What the sinks of each head do over the steps, for any ε, unit and kind of query: the twin of sinks/heads.py, in fp32
// where it counts, so that both give every head the same class. The thresholds are those of sinks/classes.py.

import { aliveKeys, isPerKey, limit, queryCount, scale } from "./rules.js";

const fround = Math.fround;
const LIMITS = { static: fround(0.8), flash: 0.5, split: 0.5, splitSteps: 2, splitQueries: 4, splitSupport: 2 };
const TREND = { least: fround(0.8), steps: 6, direction: 0.5 };

export const CLASSES = ["static", "moving", "flash", "split", "none"];
export const SIGNS = { static: "●", right: "→", left: "←", wander: "↔", flash: "✦", split: "◐", none: "" };

// The largest sink of each step (or the largest key, where there is none), and which keys are sinks.
function follow(sample, values, totals, view) {
  const { steps, positions } = sample;
  const marks = new Uint8Array(steps * positions), main = new Uint16Array(steps), present = new Uint8Array(steps);
  let sum = 0, counted = 0;
  for (let step = 0; step < steps; step++) {
    const queries = queryCount(sample, view.group, step), keys = aliveKeys(sample, step), row = step * positions;
    const factor = scale(view.unit, queries, keys);
    const bound = queries > 0 ? limit(totals(step), view.epsilon, view.unit, queries, keys) : Infinity;
    let best = 0, top = -1;
    for (let key = 0; key < keys; key++) {
      const value = values[row + key], score = fround(value * factor);
      if (score > top) [best, top] = [key, score];
      if (value > bound) marks[row + key] = present[step] = 1;
    }
    main[step] = best;
    if (queries > 0) {
      sum += top;
      counted++;
    }
  }
  return { marks, main, present, mean: counted ? sum / counted : 0, counted };
}

// Share of the steps with a sink whose largest sink lives for that one step only.
function oneStepShare({ marks, main, present }, { steps, positions }, withSink) {
  if (!withSink || steps === 1) return withSink ? 0 : NaN;
  let alone = 0;
  for (let step = 0; step < steps; step++) {
    if (!present[step]) continue;
    const at = step * positions + main[step];
    alone += !((step > 0 && marks[at - positions]) || (step + 1 < steps && marks[at + positions]));
  }
  return alone / withSink;
}

// Correlation of position and step over the steps with a sink; NaN if the sink never moves.
function trendOf({ main, present }, steps, withSink) {
  let stepMean = 0, placeMean = 0;
  for (let step = 0; step < steps; step++) {
    if (present[step]) [stepMean, placeMean] = [stepMean + step, placeMean + main[step]];
  }
  [stepMean, placeMean] = [stepMean / withSink, placeMean / withSink];
  let product = 0, stepSquare = 0, placeSquare = 0;
  for (let step = 0; step < steps; step++) {
    if (!present[step]) continue;
    const across = step - stepMean, along = main[step] - placeMean;
    product += across * along;
    stepSquare += across * across;
    placeSquare += along * along;
  }
  return fround(Math.min(1, Math.max(-1, product / Math.sqrt(stepSquare * placeSquare))));
}

// Share of all steps in which the key that is most often the largest sink is a sink.
function homeShare({ marks, main, present }, { steps, positions }) {
  const counts = new Uint16Array(positions);
  for (let step = 0; step < steps; step++) counts[main[step]] += present[step];
  let home = 0, held = 0;
  for (let key = 1; key < positions; key++) if (counts[key] > counts[home]) home = key;
  for (let step = 0; step < steps; step++) held += marks[step * positions + home];
  return fround(held / steps);
}

// Share of the steps in which masked and committed queries have sinks of their own; each kind is scaled to a whole map.
function splitShare(sample, kinds, totals, view) {
  const { steps, positions } = sample, names = ["masked", "committed"];
  let shown = 0, own = 0;
  for (let step = 0; step < steps; step++) {
    const counts = names.map((name) => queryCount(sample, name, step));
    if (Math.min(...counts) < LIMITS.splitQueries) continue;
    shown++;
    const row = step * positions;
    const whole = counts.map((count) => fround(positions / count));
    const bounds = whole.map((_, kind) => limit(totals(kind, step), view.epsilon, view.unit, positions, positions));
    const factor = scale(view.unit, positions, positions);
    const queries = isPerKey(view.unit) ? positions : 1; // each kind of query counts as a whole map here
    const value = (kind, key) => fround(fround(kinds[kind][row + key] * whole[kind]) / queries);
    const apart = [0, 1].every((kind) => {
      let best = 0, top = -1;
      for (let key = 0; key < positions; key++) {
        const score = fround(value(kind, key) * factor);
        if (score > top) [best, top] = [key, score];
      }
      const sink = value(kind, best) > bounds[kind], shared = value(1 - kind, best) > bounds[1 - kind];
      return sink && !shared && kinds[kind][row + best] >= LIMITS.splitSupport;
    });
    own += apart;
  }
  return shown >= LIMITS.splitSteps ? own / shown : 0;
}

// Everything that the grid says of one head. `kinds` are its columns from masked and committed queries, if known.
export function headClass(sample, values, totals, view, kinds = null, splitTotals = null) {
  const path = follow(sample, values, totals, view), { steps } = sample;
  const withSink = path.present.reduce((sum, one) => sum + one, 0);
  const about = { mean: path.mean, present: path.counted ? withSink / path.counted : 0 };
  if (!withSink) return { ...about, name: "none", way: null };
  if (kinds && splitShare(sample, kinds, splitTotals, view) >= LIMITS.split) {
    return { ...about, name: "split", way: null };
  }
  const trend = trendOf(path, steps, withSink);
  const trending = Math.abs(trend) >= TREND.least && withSink >= TREND.steps;
  if (oneStepShare(path, sample, withSink) >= LIMITS.flash && !trending) return { ...about, name: "flash", way: null };
  if (homeShare(path, sample) >= LIMITS.static) return { ...about, name: "static", way: null };
  return { ...about, name: "moving", way: direction(trend) };
}

function direction(trend) {
  if (Number.isNaN(trend)) return null;
  if (Math.abs(trend) < TREND.direction) return "wander";
  return trend > 0 ? "right" : "left";
}

export function className({ name, way }) {
  return way ? `${name} ${way}` : name;
}

export function classSign({ name, way }) {
  return name === "moving" ? SIGNS[way] ?? "→" : SIGNS[name] ?? "";
}
