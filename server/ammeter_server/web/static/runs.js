// The list of runs, newest first, below the open incidents.

import { get } from "./api.js";
import { make, replace, updateChildren } from "./dom.js";
import { poll } from "./live.js";
import { ago, integer, moment, plural, scale, severalLosses, short } from "./words.js";

const place = document.getElementById("runs");
const alarms = document.getElementById("alarms");
const more = document.getElementById("more");
const chosen = new URLSearchParams(location.search);
let pages = 1;

poll(async () => {
  const [runs, open] = await Promise.all([newest(), get("/incidents", { state: "open", page_size: 20 })]);
  showAlarms(open.items);
  showFilters(runs.items);
  showRuns(runs);
  place.removeAttribute("aria-busy");
}, 2000);

async function newest() {
  const parameters = { state: chosen.get("state"), project: chosen.get("project"), page_size: 50 };
  let answer = await get("/runs", parameters);
  const items = [...answer.items];
  for (let page = 1; page < pages && answer.next_page_token; page++) {
    answer = await get("/runs", { ...parameters, page_token: answer.next_page_token });
    items.push(...answer.items);
  }
  return { items, next: answer.next_page_token };
}

function showAlarms(incidents) {
  alarms.hidden = incidents.length === 0;
  if (!alarms.firstChild) alarms.append(make("h2", {}), make("ul", { class: "alarms" }));
  const pages = incidents.filter((incident) => incident.severity === "page").length;
  alarms.firstChild.textContent = pages ? `${plural(incidents.length, "open incident")}, ${pages} urgent` : plural(incidents.length, "open incident");
  const first = [...incidents].sort((a, b) => (a.severity > b.severity) - (a.severity < b.severity));
  updateChildren(alarms.lastChild, first.slice(0, 8), (incident) => incident.id, alarm);
}

function alarm(incident) {
  return make(
    "li",
    { class: incident.severity },
    make("span", { class: "severity" }, incident.severity),
    make("a", { href: `/runs/${encodeURIComponent(incident.run)}#${encodeURIComponent(incident.verdict)}` }, incident.title || incident.verdict),
    make("span", { class: "where" }, make("bdi", {}, incident.run_name), ` · step ${integer(incident.first_step + incident.step_offset)}`,
      incident.module ? [" · ", make("bdi", { class: "code" }, incident.module)] : null),
    make("time", { "data-since": incident.opened, datetime: incident.opened }, ago(incident.opened)),
  );
}

function showFilters(runs) {
  const filters = document.getElementById("filters");
  const projects = [...new Set([...runs.map((run) => run.project), chosen.get("project")].filter(Boolean))].sort();
  const signature = JSON.stringify(projects);
  if (filters.signature === signature) return;
  filters.signature = signature;
  replace(filters, choice("state", "Any state", ["running", "ended", "lost"]), choice("project", "Any project", projects));
}

function choice(name, allLabel, values) {
  const select = make("select", { id: `filter-${name}`, "aria-label": name, onchange: () => choose(name, select.value) },
    make("option", { value: "" }, allLabel),
    values.map((value) => make("option", { value, selected: value === chosen.get(name) }, value)),
  );
  return select;
}

function choose(name, value) {
  if (value) chosen.set(name, value);
  else chosen.delete(name);
  location.search = chosen.toString();
}

function showRuns({ items, next }) {
  if (items.length === 0) return replace(place, chosen.size ? noMatches() : noRuns());
  if (!place.querySelector("table")) replace(place, table());
  updateChildren(place.querySelector("tbody"), items, (run) => run.id, row);
  replace(more, next ? make("button", { id: "more-runs", onclick: () => pages++ }, "Show older runs") : null);
}

function table() {
  const column = (name, kind = "") => make("th", { scope: "col", class: kind }, name);
  return make("table", { class: "runs" },
    make("caption", { class: "unseen" }, "Runs, newest first"),
    make("thead", {}, make("tr", {}, column("State"), column("Run"), column("Project", "wide"), column("Incidents"),
      column("Step", "num"), column("Scale", "num"), column("Loss", "num"), column("Skipped", "num wide"), column("Last step", "num"))),
    make("tbody"),
  );
}

function losses(run) {
  const latest = run.latest ?? {};
  const several = latest.loss === undefined ? severalLosses(run) : [];
  return several.length ? several.map((name) => short(latest[name])).join(" · ") : short(latest.loss);
}

function row(run) {
  const latest = run.latest ?? {};
  const counters = run.counters ?? {};
  return make("tr", { class: run.worst ?? "" },
    make("td", {}, state(run.state)),
    make("th", { scope: "row" }, make("a", { href: `/runs/${encodeURIComponent(run.id)}` }, make("bdi", {}, run.name || run.id.slice(0, 8))),
      make("span", { class: "under" }, facts(run))),
    make("td", { class: "wide" }, make("a", { href: `/projects/${encodeURIComponent(run.project)}` }, make("bdi", {}, run.project))),
    make("td", {}, badge(run)),
    make("td", { class: "num" }, integer(run.last_step)),
    make("td", { class: "num" }, scale(latest.scale)),
    make("td", { class: "num" + (typeof latest.loss === "string" ? " bad" : "") }, losses(run)),
    make("td", { class: "num wide" }, integer(counters.skipped ?? 0)),
    make("td", { class: "num quiet" }, make("time", { "data-since": run.last_step_time, datetime: run.last_step_time, title: moment(run.last_step_time) }, ago(run.last_step_time))),
  );
}

function facts(run) {
  return [run.precision, run.device_model, run.world_size > 1 ? `${run.world_size} ranks` : null].filter(Boolean).join(" · ");
}

export function state(name) {
  return make("span", { class: `state ${name}` }, name);
}

function badge(run) {
  if (!run.open_incidents) return make("span", { class: "quiet" }, run.closed_incidents ? `${integer(run.closed_incidents)} closed` : "none");
  return make("span", { class: `badge ${run.worst}` }, integer(run.open_incidents) + (run.worst === "page" ? " urgent" : " open"));
}

function noMatches() {
  return make("p", { class: "empty" }, "No run matches the filters. ", make("a", { href: "/" }, "Show all runs"));
}

function noRuns() {
  return make("div", { class: "empty" },
    make("h2", {}, "No runs yet"),
    make("p", {}, "Start a training with this address and one line in the script:"),
    make("pre", { tabindex: "0" }, make("code", {}, `export AMMETER_URL=${location.origin}\n\nimport ammeter\nrun = ammeter.watch(model, optimizer, scaler)`)),
    make("p", {}, "The run appears here with its first step. For a demonstration with a broken run: ", make("code", {}, "ammeter-server demo"), "."),
  );
}
