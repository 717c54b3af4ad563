// The sink rules that Python registers (sinkscope.sinks.rules), computed from their formulas: in fp32, operation for
// operation, so that both mark the same keys.

const f = Math.fround;
const OPERATIONS = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b };

// Rules by unit, as the page's data names them; one whose limit is null cannot be computed here.
export const UNITS = {};

export function useRules(rules) {
  for (const rule of rules) UNITS[rule.unit] = rule;
}

export function isComputed(unit) {
  return Boolean(UNITS[unit]?.limit);
}

// A formula in postfix: numbers, names and + - * /.
function compute(formula, names) {
  const stack = [];
  for (const word of formula) {
    if (word in OPERATIONS) {
      const second = stack.pop(), first = stack.pop();
      stack.push(f(OPERATIONS[word](first, second)));
    } else stack.push(f(names[word] ?? Number(word)));
  }
  return stack[0];
}

// What a column sum is multiplied by.
export function scale(unit, queries, keys) {
  return compute(UNITS[unit].scale, { queries: Math.max(1, queries), keys });
}

// The column sum above which a key is a sink.
export function limit(total, parameter, unit, queries, keys) {
  const names = { total, parameter, queries: Math.max(1, queries), keys, scale: scale(unit, queries, keys) };
  return compute(UNITS[unit].limit, names);
}

export const GROUPS = ["all", "masked", "committed", "prompt"];

export function queryCount(sample, group, step) {
  const counts = sample.queries[step];
  return group === "all" ? counts[0] + counts[1] + counts[2] : counts[GROUPS.indexOf(group) - 1];
}

// Whether this unit counts what a key receives per query that sees it.
export function isPerKey(unit) {
  return Boolean(UNITS[unit].per_key);
}

// Column sums divided by how many queries see each key; every query does where the sample does not say. `counts` is
// [step, key] or null.
export function perQuery(sample, values, group, counts) {
  return values.map((value, i) => {
    const seen = counts ? counts[i] : queryCount(sample, group, Math.floor(i / sample.positions));
    return f(value / Math.max(1, seen));
  });
}

// Keys that exist at a step: all, or a growing prefix if the model is autoregressive.
export function aliveKeys(sample, step) {
  return sample.alive ? sample.alive[step] : sample.positions;
}

// Limits of every step of a plane; Infinity where the group has no queries, so that nothing is marked there.
export function limits(sample, plane, view) {
  return Float32Array.from({ length: sample.steps }, (_, step) => {
    const queries = queryCount(sample, view.group, step);
    return queries > 0
      ? limit(plane.totals[step], view.epsilon, view.unit, queries, aliveKeys(sample, step))
      : Infinity;
  });
}

export function isSink(sample, plane, bounds, step, key) {
  return key < aliveKeys(sample, step) && plane.values[step * sample.positions + key] > bounds[step];
}

// The largest key of each step, leftmost of equals.
export function leaders(sample, plane) {
  const keys = new Uint16Array(sample.steps);
  for (let step = 0; step < sample.steps; step++) {
    const row = step * sample.positions;
    let best = 0;
    for (let key = 1; key < sample.positions; key++) if (plane.values[row + key] > plane.values[row + best]) best = key;
    keys[step] = best;
  }
  return keys;
}
