// The study's results, the answer first: claims and one live figure, then what they rest on, section by section.

import { make, visible } from "../dom.js";
import { createClaims } from "./claims.js";
import { createLive } from "./live.js";
import { createDynamics } from "./dynamics.js";
import { createMasking } from "./masking.js";
import { createMechanism } from "./mechanism.js";
import { createMethod } from "./method.js";
import { createPair } from "./pair.js";
import { createPlaces } from "./places.js";
import { createTable } from "./table.js";
import { createThresholds } from "./thresholds.js";
import { createVerdicts } from "./verdicts.js";

export function createOverview(app) {
  const { overview, title } = app.data, live = createLive(app), claims = createClaims(overview);
  const pair = createPair(overview), beside = [live, pair].filter(Boolean), first = [claims, ...beside].filter(Boolean);
  const rest = [
    createMasking(overview),
    createPlaces(overview),
    createDynamics(overview),
    createThresholds(overview),
    createMechanism(overview),
    createVerdicts(overview),
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
      overview.lede ? make("p", { text: visible(overview.lede, 400) }) : null,
    ),
    first.length
      ? make(
        "div",
        { class: claims && beside.length ? "first two" : "first" },
        claims?.element,
        beside.length ? make("div", { class: "beside" }, beside.map((one) => one.element)) : null,
      )
      : null,
    rest.map((one) => one.element),
  );
  return { element, draw: () => Promise.all([...first, ...rest].map((one) => one.draw?.())) };
}
