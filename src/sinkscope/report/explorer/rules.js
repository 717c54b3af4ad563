// Eq. 3 as sinkscope.sinks.Threshold computes it: in fp32, operation for operation, so that both mark the same keys.

const f = Math.fround;

export const UNITS = {
  sum: { label: "sum", about: "column sums; uniform attention of all queries gives 1" },
  percent: { label: "percent", about: "percent of the attention that these queries give" },
  uniform: { label: "× uniform", about: "multiples of an even share" },
};

// What a column sum is multiplied by.
export function scale(unit, queries, keys) {
  const many = Math.max(1, queries);
  if (unit === "percent") return f(f(1 / many) * 100);
  if (unit === "uniform") return f(keys / many);
  return 1;
}

// The column sum above which a key is a sink: (total + ε (n − 1)) / n, with ε in sums.
export function limit(total, epsilon, unit, queries, keys) {
  const factor = scale(unit, queries, keys);
  const inSums = unit === "sum" ? f(epsilon) : f(f(1 / factor) * f(epsilon));
  return f(f(total + f(inSums * (keys - 1))) / Math.max(1, keys));
}

export const GROUPS = ["all", "masked", "committed", "prompt"];

export function queryCount(sample, group, step) {
  const counts = sample.queries[step];
  return group === "all" ? counts[0] + counts[1] + counts[2] : counts[GROUPS.indexOf(group) - 1];
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
