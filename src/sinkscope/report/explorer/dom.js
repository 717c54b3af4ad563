// Elements from data. Text only ever becomes a text node: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Characters that turn the direction of text or cannot be seen are spelled out, so that a token looks like what it is.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\u202f]/gu;

export function visible(text, longest = 24) {
  const spelled = text.slice(0, longest * 2).replaceAll("\n", "⏎").replace(
    UNSEEN,
    (c) => `⟨${c.codePointAt(0).toString(16).padStart(4, "0")}⟩`,
  );
  const letters = [...spelled];
  return letters.length > longest || text.length > longest * 2 ? `${letters.slice(0, longest).join("")}…` : spelled;
}

export function absent(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

export function number(value, digits = 2) {
  if (absent(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 10 ** -digits) return value.toPrecision(1);
  return value.toFixed(size >= 100 ? Math.max(0, digits - 2) : size >= 10 ? Math.max(0, digits - 1) : digits);
}

export function signed(value, digits = 1) {
  return `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(value).toFixed(digits)}`;
}
