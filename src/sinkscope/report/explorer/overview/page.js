// The study's results, the answer first: the findings as cards, then what they rest on, section by section.

import { make, visible } from "../dom.js";
import { createClaims } from "./claims.js";
import { createLive } from "./live.js";
import { createDynamics } from "./dynamics.js";
import { createFindings } from "./findings.js";
import { createMasking } from "./masking.js";
import { createMechanism } from "./mechanism.js";
import { createMethod } from "./method.js";
import { createPair } from "./pair.js";
import { createPlaces } from "./places.js";
import { createTable } from "./table.js";
import { createThresholds } from "./thresholds.js";

export function createOverview(app) {
  const { overview, title, highlights = [] } = app.data;
  const pictures = highlights.map((chosen, place) => createLive(app, chosen, place));
  const findings = createFindings(app, pictures);
  const apart = (overview.findings ?? []).some((one) => one.name === "sinks") ? [] : pictures;
  const first = [findings, ...apart].filter(Boolean);
  const rest = [
    createMasking(overview),
    createPair(overview),
    createClaims(overview),
    createPlaces(overview),
    createDynamics(overview),
    createThresholds(overview),
    createMechanism(overview),
    createTable(overview),
    createMethod(overview),
  ].filter(Boolean);
  const element = make(
    "main",
    { id: "overview", class: "page" },
    make(
      "div",
      { class: "lede" },
      make("h1", { text: title ? `Attention sinks: ${visible(title, 60)}` : "Attention sinks" }),
    ),
    first.length ? make("div", { class: "first" }, first.map((one) => one.element)) : null,
    overview.about ? make("p", { class: "lede", text: visible(overview.about, 400) }) : null,
    overview.untested ? make("p", { class: "lede", text: visible(overview.untested, 300) }) : null,
    rest.map((one) => one.element),
  );
  return { element, draw: () => Promise.all([...first, ...rest].map((one) => one.draw?.())) };
}
