// Lists the last events of a run, newest first, one line each.

import { get } from "./api.js";
import { make, updateChildren } from "./dom.js";
import { clock, integer, moment, plain, plural, scale } from "./words.js";

const FORMATTERS = {
  "scaler.backoff": ({ from, to }) => `loss scale ${scale(from)} → ${scale(to)}`,
  "scaler.growth": ({ from, to }) => `loss scale ${scale(from)} → ${scale(to)}`,
  "step.skipped": ({ scale: at, consecutive }) => `at loss scale ${scale(at)}` + (consecutive > 1 ? `, ${integer(consecutive)} in a row` : ""),
  "gradient.nonfinite": ({ count, finite, last, tensors }) => `${plural(count, "tensor")} not finite, ${integer(finite)} finite; last one ${last ?? tensors?.at(-1)?.tensor}`,
  "guard.acted": ({ guard, action, reason }) => `the ${guard} guard ${action}: ${reason}`,
};
const HIGHLIGHTED = new Set(["gradient.nonfinite", "step.skipped"]);
let size = 25;

export async function showEvents(place, run) {
  const answer = await get(`/runs/${encodeURIComponent(run)}/events`, { page_size: size });
  place.hidden = answer.items.length === 0;
  if (!place.firstChild) place.append(make("h2", {}, "Events, newest first"), make("div", { class: "scroll" }, table()), make("p", { class: "more" }));
  const shown = answer.items.filter((event) => !repeats(event));
  updateChildren(place.querySelector("tbody"), shown, (event) => event.id, row);
  const more = () => make("button", { onclick: () => { size = Math.min(size * 4, 500); showEvents(place, run); } }, "Show more");
  updateChildren(place.lastChild, answer.next_page_token && size < 500 ? [size] : [], () => "more", more);
}

// Omits events that only repeat values of the curves.
function repeats({ name, data }) {
  return name === "values.logged" && Object.keys(data ?? {}).every((key) => key === "loss" || key === "samples");
}

function table() {
  const column = (name, kind = "") => make("th", { scope: "col", class: kind }, name);
  return make("table", { class: "events" },
    make("thead", {}, make("tr", {}, column("Step", "num"), column("Time"), column("Event"), column("Details"), column("Rank", "num wide"))), make("tbody"));
}

// step: in its attempt; step + step_offset is the step of the run.
function row({ step, step_offset, time, name, data, rank }) {
  return make("tr", {},
    make("td", { class: "num", title: step_offset ? `Step ${integer(step)} of its attempt` : null }, integer(step + step_offset)),
    make("td", { class: "quiet", title: moment(time) }, clock(time)),
    make("td", { class: HIGHLIGHTED.has(name) ? "code warn" : "code" }, make("bdi", {}, name)),
    make("td", { class: "what" }, make("bdi", {}, describe(name, data ?? {}))),
    make("td", { class: "num wide quiet" }, integer(rank)));
}

function describe(name, data) {
  try {
    const text = FORMATTERS[name]?.(data);
    if (text) return text;
  } catch {
    // events with unexpected data are shown unformatted
  }
  return plain(data);
}
