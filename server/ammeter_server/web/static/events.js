// Lists the last events of a run as sentences, newest first, with a filter by kind.

import { get } from "./api.js";
import { make, updateChildren } from "./dom.js";
import { sentence } from "./event_sentences.js";
import { clockWithoutZone, integer, moment, zone } from "./words.js";

const HIGHLIGHTED = /^(gradient|weights|moments|buffers|evaluation)\.nonfinite$|^step\.(skipped|unfinished)$|^usage\.|^probe\.failed$/;
const KINDS = [
  ["", "All kinds"],
  ["gradient.nonfinite,weights.nonfinite,moments.nonfinite,buffers.*,evaluation.*,origin.*,step.*,targets.*,activation.*", "NaN, Inf and skipped steps"],
  ["scaler.*", "Loss scale"],
  ["usage.*", "Mistakes in calls"],
  ["kernel.*,kernels.*,autocast.*", "Kernels and autocast"],
  ["checkpoint.*,optimizer.*,scheduler.*,model.*,run.*", "Checkpoints and resuming"],
  ["weights.*,gradient.spectrum,tensor.*,tensors.*,collectives.*,directive.*", "Counts and readings"],
  ["values.logged", "Logged values"],
  ["guard.*,probe.*", "Guards and Ammeter itself"],
];
const MAX_EVENTS = 500;
let size = 25;
let kind = "";

export async function showEvents(place, run) {
  const answer = await get(`/runs/${encodeURIComponent(run)}/events`, { page_size: size, name: kind });
  place.hidden = answer.items.length === 0 && !kind;
  const again = () => showEvents(place, run);
  if (!place.firstChild) place.append(make("div", { class: "title" }, make("h2", {}, "Events, newest first"), choice(again)), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "List of events" }, table()), make("p", { class: "more" }));
  const shown = answer.items.filter((event) => !repeats(event));
  updateChildren(place.querySelector("tbody"), shown.length ? shown : [{ id: "none" }], (event) => event.id, (event) => (event.id === "none" ? make("tr", {}, make("td", { class: "quiet", colspan: 5 }, "No event of this kind.")) : row(event)));
  const more = () => make("button", { onclick: () => { size = Math.min(size * 4, MAX_EVENTS); again(); } }, "Show more");
  updateChildren(place.lastChild, answer.next_page_token && size < MAX_EVENTS ? [size] : [], () => "more", more);
}

function choice(again) {
  const select = make("select", { id: "event-kind", "aria-label": "Kind of event", onchange: () => { kind = select.value; again(); } }, KINDS.map(([value, words]) => make("option", { value }, words)));
  return select;
}

// Omits events that only repeat values of the curves.
function repeats({ name, data }) {
  return name === "values.logged" && Object.keys(data ?? {}).every((key) => key === "loss" || key === "samples");
}

function table() {
  const column = (name, kind = "") => make("th", { scope: "col", class: kind }, name);
  return make("table", { class: "events" },
    make("thead", {}, make("tr", {}, column("Step", "num"), column(`Time (${zone()})`), column("What happened"), column("Kind", "wide"), column("Rank", "num wide"))), make("tbody"));
}

// step: in its attempt; step + step_offset is the step of the run.
function row({ step, step_offset, time, name, data, rank }) {
  return make("tr", {},
    make("td", { class: "num", title: step_offset ? `Step ${integer(step)} of its attempt` : null }, integer(step + step_offset)),
    make("td", { class: "quiet" }, make("time", { datetime: time, title: moment(time) }, clockWithoutZone(time))),
    make("td", { class: HIGHLIGHTED.test(name) ? "what warn" : "what" }, make("bdi", {}, sentence(name, data ?? {}))),
    make("td", { class: "code wide quiet" }, make("bdi", {}, name)),
    make("td", { class: "num wide quiet" }, integer(rank)));
}
