// The frame that every plot stands in, and the one tooltip of the page.

import { make } from "./dom.js";
import { tools } from "./download.js";

export function panel(name, title, about, body, { figure = null, rows = null, wide = false, level = "h2" } = {}) {
  const note = make("p", { class: "about", id: `${name}-about`, text: about });
  const element = make(
    "section",
    { class: `panel${wide ? " wide" : ""}`, id: name, "aria-labelledby": `${name}-title` },
    make(
      "header",
      {},
      make(level, { id: `${name}-title`, text: title }),
      figure || rows ? tools(name, title.toLowerCase(), figure, rows) : null,
    ),
    note,
    body,
  );
  return { element, note };
}

// A canvas with as many pixels as the screen shows, and a context that draws in CSS pixels.
export function fitCanvas(canvas, width, height) {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const wide = Math.round(width * ratio), high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const tip = make("div", { id: "tip", role: "tooltip", hidden: true });

export function showTip(lines, x, y) {
  if (!tip.isConnected) document.body.append(tip);
  tip.replaceChildren(
    ...lines.map(([name, value]) =>
      name
        ? make("div", {}, make("span", { class: "tip-name", text: name }), make("span", { text: value }))
        : make("strong", { text: value })
    ),
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(x + 14, document.documentElement.clientWidth - box.width - 8));
  const top = y + 18 + box.height > window.innerHeight ? Math.max(8, y - box.height - 12) : y + 18;
  tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

export function hideTip() {
  tip.hidden = true;
}
