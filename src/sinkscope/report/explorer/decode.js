// Packed arrays back to typed arrays; the twin of Blob in page.py.

const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f2: Uint16Array, f4: Uint32Array };
const WIDTH = { u1: 1, u2: 2, u4: 4, f2: 2, f4: 4 };

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export async function unpack(text) {
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// One part of an unpacked blob. fp16 stays as its bits until someone needs the numbers.
export function part(bytes, about) {
  const count = about.bytes / WIDTH[about.type];
  const from = bytes.subarray(about.offset, about.offset + about.bytes);
  const bits = new TYPES[about.type](count);
  for (let plane = 0; plane < WIDTH[about.type]; plane++) {
    const shift = 8 * plane, start = plane * count;
    for (let i = 0; i < count; i++) bits[i] |= from[start + i] << shift;
  }
  if (about.coding === "steps") addUp(bits, about.shape);
  return about.type === "f4" ? new Float32Array(bits.buffer) : bits;
}

function addUp(values, shape) {
  const keys = shape.at(-1), steps = shape.at(-2);
  for (let start = 0; start < values.length; start += steps * keys) {
    for (let i = start + keys; i < start + steps * keys; i++) values[i] += values[i - keys];
  }
}

let halves = null;

// What each of the 65536 patterns of fp16 means.
export function halfTable() {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 31) halves[bits] = fraction ? NaN : sign * Infinity;
    else halves[bits] = sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  }
  return halves;
}
