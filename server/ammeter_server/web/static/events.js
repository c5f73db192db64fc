// The last events of a run, newest first, each in one line a person reads.

import { get } from "./api.js";
import { keep, make } from "./dom.js";
import { clock, moment, plain, plural, scale, whole } from "./words.js";

const SENTENCES = {
  "scaler.backoff": ({ from, to }) => `loss scale ${scale(from)} → ${scale(to)}`,
  "scaler.growth": ({ from, to }) => `loss scale ${scale(from)} → ${scale(to)}`,
  "step.skipped": ({ scale: at, consecutive }) => `at loss scale ${scale(at)}` + (consecutive > 1 ? `, ${whole(consecutive)} in a row` : ""),
  "gradient.nonfinite": ({ count, finite, last, tensors }) => `${plural(count, "tensor")} not finite, ${whole(finite)} finite; last one ${last ?? tensors?.at(-1)?.tensor}`,
  "guard.acted": ({ guard, action, reason }) => `the ${guard} guard ${action}: ${reason}`,
};
const BAD = new Set(["gradient.nonfinite", "step.skipped"]);
let size = 25;

export async function showEvents(place, run) {
  const answer = await get(`/runs/${encodeURIComponent(run)}/events`, { page_size: size });
  place.hidden = answer.items.length === 0;
  if (!place.firstChild) place.append(make("h2", {}, "Events, newest first"), make("div", { class: "scroll" }, table()), make("p", { class: "more" }));
  const told = answer.items.filter((event) => !repeats(event));
  keep(place.querySelector("tbody"), told, (event) => event.id, row);
  const more = () => make("button", { onclick: () => { size = Math.min(size * 4, 500); showEvents(place, run); } }, "Show more");
  keep(place.lastChild, answer.next_page_token && size < 500 ? [size] : [], () => "more", more);
}

// The loss of every step is in its curve; of a skipped one run.log only says it again.
function repeats({ name, data }) {
  return name === "values.logged" && Object.keys(data ?? {}).every((each) => each === "loss" || each === "samples");
}

function table() {
  const column = (name, kind = "") => make("th", { scope: "col", class: kind }, name);
  return make("table", { class: "events" },
    make("thead", {}, make("tr", {}, column("Step", "num"), column("Time"), column("Event"), column("What"), column("Rank", "num wide"))), make("tbody"));
}

// step: of the run, which counts on over its attempts.
function row({ step, step_offset, time, name, data, rank }) {
  return make("tr", {},
    make("td", { class: "num", title: step_offset ? `Step ${whole(step)} of its attempt` : null }, whole(step + step_offset)),
    make("td", { class: "quiet", title: moment(time) }, clock(time)),
    make("td", { class: BAD.has(name) ? "code warn" : "code" }, make("bdi", {}, name)),
    make("td", { class: "what" }, make("bdi", {}, said(name, data ?? {}))),
    make("td", { class: "num wide quiet" }, whole(rank)));
}

function said(name, data) {
  try {
    const text = SENTENCES[name]?.(data);
    if (text) return text;
  } catch {
    // an event of another shape is shown as it is
  }
  return plain(data);
}
