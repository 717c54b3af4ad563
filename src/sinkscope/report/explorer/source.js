// Where the numbers of a sample come from: unpacked from the page, or asked from the server of `sinkscope view`.
// A plane is what every key received at every step: {values [step, key], totals [step], top}.

import { headClass } from "./classes.js";
import { halfTable, part, unpack } from "./decode.js";
import { GROUPS, isPerKey, perQuery, queryCount } from "./rules.js";

const f32 = Math.fround;

function finish(sample, values, totals = null) {
  let top = 0;
  for (const value of values) if (value > top) top = value;
  if (!totals) {
    totals = new Float32Array(sample.steps);
    for (let step = 0; step < sample.steps; step++) {
      let sum = 0;
      for (let i = step * sample.positions; i < (step + 1) * sample.positions; i++) sum += values[i];
      totals[step] = sum;
    }
  }
  return { values, totals, top };
}

class Cached {
  constructor(sample) {
    this.sample = sample;
    this.planes = new Map();
    this.trails = new Map();
  }

  // layer −1: mean of all layers; head −1: mean of the layer's heads. Units differ in whether they count per query.
  async plane(layer, head, group, unit = "sum") {
    const each = isPerKey(unit), key = `${layer}/${head}/${group}/${each}`;
    if (!this.planes.has(key)) {
      if (this.planes.size > 24) this.planes.delete(this.planes.keys().next().value);
      const plane = this.read(layer, head, group);
      this.planes.set(key, each ? this.divided(await plane, group) : plane);
    }
    return this.planes.get(key);
  }

  async divided(plane, group) {
    return finish(this.sample, perQuery(this.sample, plane.values, group, await this.seen(group)));
  }

  // Largest key and its column sum of every head at every step: {keys, scores} [layer, head, step].
  async paths(group) {
    if (!this.trails.has(group)) this.trails.set(group, this.readPaths(group));
    return this.trails.get(group);
  }
}

// What a packed sample says of the queries that see each key, [step, key], or null.
function seenOf(sample, seen, group) {
  const size = sample.steps * sample.positions, start = GROUPS.indexOf(group) * size;
  return seen ? seen.subarray(start, start + size) : null;
}

class Full extends Cached {
  seen(group) {
    return seenOf(this.sample, this.parts.seen, group);
  }

  open(parts, count = this.sample.layers * this.sample.heads) {
    this.parts = parts;
    this.size = this.sample.steps * this.sample.positions;
    this.count = count;
  }

  decoded(group, index) {
    const start = ((GROUPS.indexOf(group) - 1) * this.count + index) * this.size;
    const bits = this.parts.received.subarray(start, start + this.size);
    if (bits instanceof Float32Array) return bits;
    const halves = halfTable();
    return Float32Array.from(bits, (b) => halves[b]);
  }

  one(index, group) {
    if (group !== "all") return this.decoded(group, index);
    const [masked, committed, prompt] = GROUPS.slice(1).map((name) => this.decoded(name, index));
    return masked.map((value, i) => f32(f32(value + committed[i]) + prompt[i]));
  }

  // The plane of one head, by its index among those that the file keeps.
  single(index, group) {
    const { steps } = this.sample, start = (GROUPS.indexOf(group) * this.count + index) * steps;
    return finish(this.sample, this.one(index, group), this.parts.totals.subarray(start, start + steps));
  }

  read(layer, head, group) {
    const { heads } = this.sample;
    if (layer >= 0 && head >= 0) return this.single(layer * heads + head, group);
    const sum = new Float64Array(this.size);
    const [from, to] = layer < 0 ? [0, this.count] : [layer * heads, (layer + 1) * heads];
    for (let index = from; index < to; index++) {
      const values = this.one(index, group);
      for (let i = 0; i < sum.length; i++) sum[i] += values[i];
    }
    return finish(this.sample, Float32Array.from(sum, (value) => value / (to - from)));
  }

  readPaths(group) {
    const { steps, positions } = this.sample;
    const keys = new Uint16Array(this.count * steps), scores = new Float32Array(this.count * steps);
    for (let index = 0; index < this.count; index++) {
      const values = this.one(index, group);
      for (let step = 0; step < steps; step++) {
        const row = step * positions;
        let best = 0;
        for (let key = 1; key < positions; key++) if (values[row + key] > values[row + best]) best = key;
        keys[index * steps + step] = best;
        scores[index * steps + step] = values[row + best];
      }
    }
    return {
      keys,
      scores,
      totals: (index, step) => this.parts.totals[(GROUPS.indexOf(group) * this.count + index) * steps + step],
    };
  }

  // Class, mean score and presence of every head, layer by layer, for the view's ε, unit and kind of query.
  heads(view) {
    const { steps } = this.sample, { totals, splitTotals } = this.parts;
    return Array.from({ length: this.count }, (_, index) => {
      const start = (GROUPS.indexOf(view.group) * this.count + index) * steps, values = this.one(index, view.group);
      const kinds = this.sample.causal ? null : ["masked", "committed"].map((name) => this.decoded(name, index));
      return headClass(
        this.sample,
        isPerKey(view.unit) ? perQuery(this.sample, values, view.group, this.seen(view.group)) : values,
        (step) => totals[start + step],
        view,
        kinds,
        (kind, step) => splitTotals[(kind * this.count + index) * steps + step],
      );
    });
  }
}

// Where a compact sample keeps a head's own columns; −1 if it does not.
function ownSlot(sample, layer, head) {
  return sample.ownHeads.findIndex(([l, h]) => l === layer && h === head);
}

// Whether a sample has the whole map of a head, not only its path.
export function hasHead(sample, layer, head) {
  return sample.detail !== "compact" || ownSlot(sample, layer, head) >= 0;
}

class Compact extends Cached {
  open(parts) {
    this.parts = parts;
    this.size = this.sample.steps * this.sample.positions;
    this.own = new Full(this.sample); // the heads that the page opens on or names
    this.own.open(parts, this.sample.ownHeads.length);
  }

  seen(group) {
    return seenOf(this.sample, this.parts.seen, group);
  }

  decoded(group, layer) {
    const start = ((GROUPS.indexOf(group) - 1) * this.sample.layers + layer) * this.size;
    return this.parts.means.subarray(start, start + this.size);
  }

  read(layer, head, group) {
    const slot = ownSlot(this.sample, layer, head);
    if (slot >= 0) return this.own.single(slot, group);
    const { layers } = this.sample, table = this.parts.table;
    const sum = new Float32Array(this.size);
    const [from, to] = layer < 0 ? [0, layers] : [layer, layer + 1];
    for (const name of group === "all" ? GROUPS.slice(1) : [group]) {
      for (let index = from; index < to; index++) {
        const codes = this.decoded(name, index);
        for (let i = 0; i < codes.length; i++) sum[i] += table[codes[i]];
      }
    }
    if (to - from > 1) { for (let i = 0; i < sum.length; i++) sum[i] /= to - from; }
    return finish(this.sample, sum);
  }

  readPaths() {
    const table = this.parts.pathTable;
    return {
      keys: this.parts.pathKeys,
      scores: Float32Array.from(this.parts.pathScores, (code) => table[code]),
      totals: null,
    };
  }

  // A compact sample knows the largest key of each head only: classes are an approximation, and say so.
  heads(view) {
    const { layers, heads, steps, positions } = this.sample, paths = this.readPaths();
    const sure = view.group === "all" && view.epsilon === 3 && ["sum", "uniform"].includes(view.unit)
      ? this.sample.classes
      : null;
    return Array.from({ length: layers * heads }, (_, index) => {
      const values = new Float32Array(steps * positions);
      for (let step = 0; step < steps; step++) {
        values[step * positions + paths.keys[index * steps + step]] = paths.scores[index * steps + step];
      }
      const known = isPerKey(view.unit) ? perQuery(this.sample, values, "all", this.seen("all")) : values;
      const found = headClass(this.sample, known, (step) => queryCount(this.sample, "all", step), {
        ...view,
        group: "all",
      });
      return sure ? { ...found, name: sure[index][0], way: sure[index][1] } : { ...found, rough: true };
    });
  }
}

class Remote extends Cached {
  async get(what, query = "") {
    const answer = await fetch(`data/${this.sample.index}/${what}${query}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.arrayBuffer();
  }

  async read(layer, head, group) {
    const buffer = await this.get("plane", `?layer=${layer}&head=${head}&group=${group}`);
    const { steps, positions } = this.sample;
    return finish(
      this.sample,
      new Float32Array(buffer, 4 * steps, steps * positions),
      new Float32Array(buffer, 0, steps),
    );
  }

  async seen(group) {
    const counts = await this.get("seen", `?group=${group}`);
    return counts.byteLength ? new Uint32Array(counts) : null;
  }

  async readPaths(group) {
    const buffer = await this.get("paths", `?group=${group}`);
    const count = this.sample.layers * this.sample.heads * this.sample.steps;
    const totals = new Float32Array(buffer, 4 * count, count), steps = this.sample.steps;
    return {
      scores: new Float32Array(buffer, 0, count),
      totals: (index, step) => totals[index * steps + step],
      keys: new Uint16Array(buffer, 8 * count, count),
    };
  }

  // The server works the classes out; of a very large trace it leaves them out.
  async heads(view) {
    const query = `?epsilon=${view.epsilon}&unit=${view.unit}&group=${view.group}`;
    const rows = JSON.parse(new TextDecoder().decode(await this.get("heads", query)));
    return rows.map(([name, way, mean, present]) => ({ name, way, mean, present }));
  }

  async lead() {
    const keys = new Uint32Array(await this.get("lead")), steps = this.sample.steps;
    return Array.from(
      { length: this.sample.layers + 1 },
      (_, row) => Array.from(keys.subarray(row * steps, (row + 1) * steps)),
    );
  }

  async map(slot, step) {
    return new Uint8Array(await this.get("map", `?slot=${slot}&step=${step}`));
  }

  async reasons(slot, step) {
    return new Float32Array(await this.get("reasons", `?slot=${slot}&step=${step}`));
  }
}

// Largest key of each step, [1 + layer][step]; of samples in the page it is known without unpacking them.
export async function lead(sample) {
  sample.lead ??= await new Remote(sample).lead();
  return sample.lead;
}

// A sample, ready to be asked; each is unpacked once, when it is first looked at.
const opened = new Map();
export function open(sample) {
  if (!opened.has(sample.index)) {
    opened.set(sample.index, sample.detail === "remote" ? openRemote(sample) : openPacked(sample));
  }
  return opened.get(sample.index);
}

async function openPacked(sample) {
  const element = document.getElementById(`blob-${sample.index}`);
  const bytes = await unpack(element.textContent);
  element.remove(); // the text is as large as what came out of it
  const parts = Object.fromEntries(Object.entries(sample.parts).map(([name, about]) => [name, part(bytes, about)]));
  const source = sample.detail === "full" ? new Full(sample) : new Compact(sample);
  source.open(parts);
  source.canvas = parts.canvas;
  source.confidence = parts.confidence;
  const { steps, positions } = sample, area = positions * positions;
  source.map = async (slot, step) =>
    parts.maps.subarray((slot * steps + step) * area, (slot * steps + step + 1) * area);
  source.reasons = async (slot, step) =>
    parts.reasons.subarray(4 * (slot * steps + step) * positions, 4 * (slot * steps + step + 1) * positions);
  return source;
}

async function openRemote(sample) {
  const source = new Remote(sample);
  const buffer = await source.get("canvas");
  const cells = (sample.steps + 1) * sample.positions;
  source.canvas = new Uint32Array(buffer, 0, cells);
  source.confidence = new Uint16Array(buffer, 4 * cells);
  return source;
}
