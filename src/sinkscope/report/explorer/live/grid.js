// Layers × heads: each square is a head, shaded by the attention on its sink; a click chooses the head.

import { draw } from "../dom.js";

const SIDE = 13;

export function createGrid(choose) {
  const element = draw("svg", { class: "heads", role: "group", "aria-label": "Layers and heads" });
  let cells = [], tokens = () => "";

  function lay(layers, heads) {
    element.setAttribute("width", heads * SIDE + 24);
    element.setAttribute("height", layers * SIDE + 14);
    cells = [];
    const rows = Array.from({ length: layers }, (_, layer) => {
      const row = Array.from({ length: heads }, (_, head) => {
        const cell = draw("rect", {
          x: 24 + head * SIDE,
          y: layer * SIDE,
          width: SIDE - 1,
          height: SIDE - 1,
          tabindex: -1,
          role: "button",
          onclick: () => choose(layer, head),
          onkeydown: (event) => {
            if (event.key === "Enter" || event.key === " ") choose(layer, head);
            const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads }[event.key];
            const next = by && cells.flat()[layer * heads + head + by];
            if (next) {
              event.preventDefault();
              next.focus();
            }
          },
        });
        return cell;
      });
      cells.push(row);
      const label = draw("text", { x: 20, y: layer * SIDE + SIDE - 3, "text-anchor": "end", text: String(layer) });
      return [layer % 5 ? null : label, ...row];
    });
    const foot = draw("text", { x: 24, y: layers * SIDE + 11, text: "heads →" });
    element.replaceChildren(...rows.flat().filter(Boolean), foot);
    if (cells[0]) cells[0][0].setAttribute("tabindex", "0");
  }

  return {
    element,
    name(how) {
      tokens = how;
    },
    paint(event, chosen) {
      if (cells.length !== event.grid.length) lay(event.grid.length, event.grid[0].length);
      event.grid.forEach((row, layer) =>
        row.forEach((key, head) => {
          const cell = cells[layer][head], strength = event.strength[layer][head];
          cell.setAttribute("fill-opacity", key < 0 ? 0.06 : 0.15 + 0.85 * Math.min(1, strength));
          cell.classList.toggle("none", key < 0);
          cell.classList.toggle("chosen", chosen?.layer === layer && chosen?.head === head);
          const sink = key < 0
            ? "no sink"
            : `sink at position ${key}, ${tokens(key)}, ${(100 * strength).toFixed(0)} %`;
          cell.setAttribute("aria-label", `Layer ${layer}, head ${head}: ${sink}`);
        })
      );
    },
  };
}
