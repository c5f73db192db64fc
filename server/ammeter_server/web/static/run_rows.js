// The rows of the list of runs, and the selection of runs to compare.

import { make, replace } from "./dom.js";
import { spark } from "./svg.js";
import { toolsInLine } from "./tools.js";
import { ago, dollars, integer, moment, number, scale, severalLosses, short, span } from "./words.js";

const MAX_TAGS = 4;
const MAX_CHOSEN = 8;

// The ids of selected runs with their names.
export const chosenRuns = new Map();

export function table() {
  const column = (name, kind = "") => make("th", { scope: "col", class: kind }, name);
  return make("table", { class: "runs" },
    make("caption", { class: "unseen" }, "Runs: those with open incidents first, then the newest"),
    make("thead", {}, make("tr", {}, column(make("span", { class: "unseen" }, "Select")), column("State"), column("Run"), column("Incidents"), column("Loss", "num"), column("Scale", "num wide"),
      column("Step", "num"), column("Speed", "num wide"), column("Duration", "num wide"), column("Cost", "num wide"))),
    make("tbody"),
  );
}

// actions: change() after the selection has changed, tag("name=value") to list the runs with a tag.
export function row({ run, spark: series, chosen }, actions) {
  const name = run.name || run.id.slice(0, 8);
  return make("tr", { class: run.worst ?? "" },
    make("td", {}, make("input", { type: "checkbox", checked: chosen, "aria-label": `Select ${name}`, onchange: ({ target }) => select(run, target, actions.change) })),
    make("td", {}, make("span", { class: `state ${run.state}` }, run.state)),
    make("th", { scope: "row" }, make("a", { href: `/runs/${encodeURIComponent(run.id)}` }, make("bdi", {}, name)),
      make("span", { class: "under" }, make("a", { class: "plain", href: `/projects/${encodeURIComponent(run.project)}` }, make("bdi", {}, run.project)), facts(run).map((fact) => [" · ", make("bdi", {}, fact)]).flat(), toolsInLine(run.open_incidents ? run.links : null)),
      tags(run, actions.tag)),
    make("td", {}, badge(run)),
    make("td", { class: "num" }, curve(series?.loss, "Loss"), make("span", { class: typeof run.latest?.loss === "string" ? "bad" : "" }, losses(run))),
    make("td", { class: "num wide" }, curve(series?.scale, "Loss scale", true), scale(run.latest?.scale)),
    make("td", { class: "num" }, integer(run.last_step), make("time", { class: "under", "data-since": run.last_step_time, datetime: run.last_step_time, title: moment(run.last_step_time) }, ago(run.last_step_time)), skipped(run)),
    make("td", { class: "num wide" }, speed(run)),
    make("td", { class: "num wide" }, duration(run)),
    make("td", { class: "num wide" }, dollars(run.cost_dollars)),
  );
}

function curve(values, label, logarithmic = false) {
  return values ? spark(values.map(number), label, logarithmic) : null;
}

function losses(run) {
  const latest = run.latest ?? {};
  const several = latest.loss === undefined ? severalLosses(run) : [];
  return several.length ? several.map((name) => short(latest[name])).join(" · ") : short(latest.loss);
}

function skipped({ counters }) {
  return counters?.skipped ? make("span", { class: "under" }, `${integer(counters.skipped)} skipped`) : null;
}

function speed({ latest = {} }) {
  const seconds = number(latest.step_seconds);
  if (!(seconds > 0)) return "–";
  if (latest.tokens > 0) return `${short(latest.tokens / seconds, 3)} tokens/s`;
  return latest.samples > 0 ? `${short(latest.samples / seconds, 3)} samples/s` : `${short(1 / seconds, 3)} steps/s`;
}

function duration({ started, ended, last_step_time, environment }) {
  if (!started || environment?.imported_times) return "–";
  const seconds = (Date.parse(ended ?? last_step_time ?? started) - Date.parse(started)) / 1000;
  return seconds >= 0 ? make("span", { title: `started ${moment(started)}` }, span(seconds)) : "–";
}

function facts(run) {
  return [run.precision, run.device_model, run.world_size > 1 ? `${run.world_size} ranks` : null].filter(Boolean);
}

function tags({ tags: all }, choose) {
  const shown = Object.entries(all ?? {}).filter(([, value]) => typeof value !== "object").map(([name, value]) => `${name}=${value}`);
  if (!shown.length) return null;
  return make("span", { class: "tags" }, shown.slice(0, MAX_TAGS).map((tag) => make("button", { class: "tag", title: "List the runs with this tag", onclick: () => choose(tag) }, make("bdi", {}, tag))), shown.length > MAX_TAGS ? make("span", { class: "quiet" }, `${integer(shown.length - MAX_TAGS)} more`) : null);
}

function badge(run) {
  if (!run.open_incidents) return make("span", { class: "quiet" }, run.closed_incidents ? `${integer(run.closed_incidents)} closed` : "none");
  return make("span", { class: `badge ${run.worst}` }, integer(run.open_incidents) + (run.worst === "page" ? " urgent" : " open"));
}

function select(run, box, change) {
  if (box.checked && chosenRuns.size >= MAX_CHOSEN) box.checked = false;
  else if (box.checked) chosenRuns.set(run.id, run.name || run.id.slice(0, 8));
  else chosenRuns.delete(run.id);
  change();
}

export function showSelection(place) {
  place.hidden = chosenRuns.size === 0;
  const ids = [...chosenRuns.keys()];
  if (place.dataset.shown === ids.join()) return;
  place.dataset.shown = ids.join();
  const clear = () => {
    chosenRuns.clear();
    document.querySelectorAll(".runs input:checked").forEach((box) => (box.checked = false));
    showSelection(place);
  };
  const full = chosenRuns.size === MAX_CHOSEN ? ` (the most)` : "";
  replace(place, make("span", {}, `${integer(ids.length)} selected${full}: `, [...chosenRuns.values()].map((name, index) => [index ? ", " : "", make("bdi", {}, name)]).flat()),
    ids.length > 1 ? make("a", { id: "compare-runs", class: "button primary", href: `/compare?runs=${ids.map(encodeURIComponent).join()}` }, `Compare ${integer(ids.length)} runs`) : make("span", { class: "quiet" }, "Select another one to compare."),
    make("button", { onclick: clear }, "Clear"));
}
