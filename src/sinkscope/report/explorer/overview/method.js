// Method and caveats, last: how it was measured, what it cannot say, and with what it was run.

import { make, visible } from "../dom.js";
import { panel } from "../panel.js";

export function createMethod(overview) {
  const { method, caveats, facts } = overview;
  if (!method.length && !caveats.length && !facts.length) return null;
  const list = (lines) => make("ul", { class: "lines" }, lines.map((text) => make("li", { text: visible(text, 400) })));
  const rows = facts.flatMap(([name, value]) => [
    make("dt", { text: visible(name, 60) }),
    make("dd", { text: visible(String(value), 300) }),
  ]);
  const body = make(
    "div",
    {},
    method.length ? list(method) : null,
    caveats.length ? make("h3", { text: "Caveats" }) : null,
    caveats.length ? list(caveats) : null,
    facts.length
      ? make(
        "details",
        {},
        make("summary", { text: "This run: versions, machine, models" }),
        make("dl", { class: "facts" }, rows),
      )
      : null,
  );
  return panel("run", "Method and caveats", "", body, { wide: true });
}
