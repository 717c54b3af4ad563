// Every plot can be downloaded: its drawing as SVG or PNG, its numbers as CSV.

import { draw, make } from "./dom.js";
import { palette } from "./colours.js";

export function hand(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

function svgText(figure) {
  figure.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(figure);
}

async function toPng(figure) {
  const width = Number(figure.getAttribute("width")), height = Number(figure.getAttribute("height"));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(figure))}`;
  await image.decode();
  const canvas = make("canvas", { width: 2 * width, height: 2 * height });
  const context = canvas.getContext("2d");
  context.fillStyle = palette().paper;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

// A spreadsheet must not take a token such as "=1+1" for a formula.
function cell(value) {
  if (typeof value === "number") return Number.isNaN(value) ? "" : String(value);
  const text = value === null || value === undefined ? "" : String(value);
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function csv(names, rows) {
  return [names, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

// The buttons of a plot. figure: () → SVG element; rows: () → {names, rows}.
export function tools(name, title, figure, rows) {
  const button = (label, what, act) =>
    make("button", {
      type: "button",
      class: "tool",
      "aria-label": `Download ${title} as ${what}`,
      title: `Download as ${what}`,
      text: label,
      onclick: act,
    });
  return make(
    "div",
    { class: "tools" },
    figure &&
      button(
        "SVG",
        "SVG",
        async () => hand(new Blob([svgText(await figure())], { type: "image/svg+xml" }), `${name}.svg`),
      ),
    figure && button("PNG", "PNG", async () => hand(await toPng(await figure()), `${name}.png`)),
    rows && button("CSV", "CSV", async () => {
      const { names, rows: lines } = await rows();
      hand(new Blob([csv(names, lines)], { type: "text/csv" }), `${name}.csv`);
    }),
  );
}

// A drawing on a canvas as SVG: the pixels as an image, title and axes as text.
export function canvasFigure(canvas, { title, x, y }) {
  const colours = palette(), width = canvas.clientWidth || canvas.width, height = canvas.clientHeight || canvas.height;
  const text = (content, at) =>
    draw("text", { "font-family": "system-ui, sans-serif", "font-size": 12, fill: colours.ink, text: content, ...at });
  return draw(
    "svg",
    { width: width + 60, height: height + 70, viewBox: `0 0 ${width + 60} ${height + 70}` },
    draw("rect", { width: width + 60, height: height + 70, fill: colours.paper }),
    text(title, { x: 40, y: 20, "font-weight": 600 }),
    draw("image", { x: 40, y: 30, width, height, href: canvas.toDataURL("image/png"), preserveAspectRatio: "none" }),
    text(x, { x: 40 + width / 2, y: height + 56, "text-anchor": "middle" }),
    text(y, { transform: `translate(20 ${30 + height / 2}) rotate(-90)`, "text-anchor": "middle" }),
  );
}
