// Small multiples: one chart per name, as many in a row as fit.

import { make, visible } from "../dom.js";

export function unique(values) {
  return [...new Set(values)];
}

// names: () → what is shown; build: (name, width) → chart; least: its smallest width; after: called with the names.
export function multiples(names, build, least, after = () => {}, title = (name) => name) {
  const element = make("div", { class: "multiples" });
  function draw() {
    const shown = names(), room = element.clientWidth || 900;
    const columns = Math.max(1, Math.min(shown.length, Math.floor((room + 16) / (least + 16))));
    const width = Math.min(460, Math.floor((room - 16 * (columns - 1)) / columns));
    const charts = shown.map((name) =>
      make("figure", {}, make("figcaption", { text: visible(title(name), 60) }), build(name, width))
    );
    element.replaceChildren(...charts);
    after(shown);
  }
  return { element, draw };
}
