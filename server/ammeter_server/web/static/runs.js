// The list of runs: first those that need attention, then the newest. Search, filters, small curves, and a selection to
// compare.

import { get } from "./api.js";
import { make, replace, updateChildren } from "./dom.js";
import { Filters } from "./filters.js";
import { poll } from "./live.js";
import { chosenRuns, row, showSelection, table } from "./run_rows.js";
import { ago, integer, plural } from "./words.js";

const PAUSE_MS = 3000;
const SPARKS_MS = 10_000;
const ALARMS = 5;
const TYPING_MS = 250;
const place = document.getElementById("runs");
const alarms = document.getElementById("alarms");
const more = document.getElementById("more");
const filters = new Filters(changed);
const sparks = new Map();
let pages = 1;
let request = 0;

poll(show, PAUSE_MS);

async function show() {
  const mine = ++request;
  const [runs, open] = await Promise.all([newest(), get("/incidents", { state: "open,acknowledged", project: filters.get("project"), page_size: 50 })]);
  if (mine !== request) return; // the filters have changed meanwhile
  showAlarms(open);
  showFilters(runs.items);
  showRuns(runs);
  place.removeAttribute("aria-busy");
  await showSparks(runs);
}

// Broken runs come first, also if many healthy ones are newer.
async function newest() {
  const parameters = { ...Object.fromEntries(["q", "state", "project", "owner", "tag", "broken"].map((name) => [name, filters.get(name)])), page_size: 50 };
  const [broken, first] = await Promise.all([filters.get("broken") ? { items: [] } : get("/runs", { ...parameters, broken: true, page_size: 10 }), get("/runs", parameters)]);
  let answer = first;
  const items = [...broken.items, ...answer.items];
  for (let page = 1; page < pages && answer.next_page_token; page++) {
    answer = await get("/runs", { ...parameters, page_token: answer.next_page_token });
    items.push(...answer.items);
  }
  return { items: [...new Map(items.map((run) => [run.id, run])).values()], next: answer.next_page_token };
}

function showAlarms({ items, next_page_token: further }) {
  alarms.hidden = items.length === 0;
  if (!alarms.firstChild) alarms.append(make("div", { class: "title" }, make("h2", {}), make("a", { href: "/incidents?state=open,acknowledged" }, "All incidents")), make("ul", { class: "alarms" }));
  const urgent = items.filter((incident) => incident.severity === "page" && incident.state === "open").length;
  const count = `${plural(items.length, "open incident")}${further ? " or more" : ""}`;
  alarms.querySelector("h2").textContent = urgent ? `${count}, ${urgent} urgent` : count;
  const weight = (incident) => 2 * (incident.state !== "open") + (incident.severity !== "page");
  updateChildren(alarms.lastChild, [...items].sort((a, b) => weight(a) - weight(b)).slice(0, ALARMS), (incident) => incident.id, alarm);
}

export function alarm(incident) {
  return make(
    "li",
    { class: incident.severity },
    make("span", { class: "severity" }, incident.severity),
    make("a", { href: `/runs/${encodeURIComponent(incident.run)}#${encodeURIComponent(incident.verdict)}` }, incident.title || incident.verdict),
    make("span", { class: "where" }, make("bdi", {}, incident.run_name || incident.run.slice(0, 8)), ` · step ${integer(incident.first_step + incident.step_offset)}`,
      incident.module ? [" · ", make("bdi", { class: "code" }, incident.module)].flat() : null, incident.state === "acknowledged" ? " · acknowledged" : null),
    make("time", { "data-since": incident.opened, datetime: incident.opened }, ago(incident.opened)),
  );
}

function showFilters(runs) {
  const bar = document.getElementById("filters");
  const projects = filters.valuesOf("project", runs.map((run) => run.project));
  const owners = filters.valuesOf("owner", runs.map((run) => run.tags?.owner));
  const signature = JSON.stringify([projects, owners, filters.get("tag")]);
  if (bar.signature === signature) return;
  bar.signature = signature;
  replace(bar,
    make("input", { id: "search", type: "search", value: filters.get("q") ?? "", placeholder: "Search name, tag, id", "aria-label": "Search runs", oninput: typed }),
    filters.choice("state", "Any state", ["running", "ended", "lost"]), filters.choice("project", "Any project", projects),
    owners.length ? filters.choice("owner", "Any owner", owners) : null,
    make("label", {}, make("input", { id: "only-broken", type: "checkbox", checked: Boolean(filters.get("broken")), onchange: ({ target }) => filters.set("broken", target.checked ? "true" : "") }), " with open incidents"),
    filters.get("tag") ? make("button", { id: "tag", onclick: () => filters.set("tag", "") }, make("bdi", {}, filters.get("tag")), " ×") : null);
}

let typing = 0;

function typed({ target }) {
  clearTimeout(typing);
  typing = setTimeout(() => filters.set("q", target.value.trim()), TYPING_MS);
}

async function changed() {
  pages = 1;
  place.setAttribute("aria-busy", "true");
  try {
    await show();
  } catch (problem) {
    place.removeAttribute("aria-busy");
    replace(place, make("p", { class: "empty problem", role: "alert" }, problem.status ? problem.message : "The collector does not respond. The list is requested again by itself."));
  }
}

function showRuns({ items, next }) {
  showSelection(document.getElementById("selection"));
  if (items.length === 0) return replace(place, filters.chosen.size ? noMatches() : noRuns()), replace(more);
  if (!place.querySelector("table")) replace(place, table());
  const change = () => showSelection(document.getElementById("selection"));
  updateChildren(place.querySelector("tbody"), items.map((run) => ({ run, spark: sparks.get(run.id)?.series, chosen: chosenRuns.has(run.id) })), ({ run }) => run.id, (item) => row(item, { change, tag: (tag) => filters.set("tag", tag) }));
  replace(more, next ? make("button", { id: "more-runs", onclick: () => { pages++; show(); } }, "Show older runs") : null);
}

// One request for the runs without curves, and for running ones whose curves are old.
async function showSparks(runs) {
  const now = Date.now();
  const stale = ({ id, state }) => !sparks.has(id) || (state === "running" && now - sparks.get(id).at > SPARKS_MS);
  const ids = runs.items.filter(stale).map(({ id }) => id).slice(0, 100);
  if (!ids.length) return;
  const { items } = await get("/sparklines", { runs: ids.join() });
  const series = new Map(items.map((item) => [item.run, item.series]));
  ids.forEach((id) => sparks.set(id, { at: now, series: series.get(id) ?? {} }));
  showRuns(runs);
}

function noMatches() {
  return make("p", { class: "empty" }, "No run matches the search and the filters. ", make("a", { href: "/" }, "Show all runs"));
}

function noRuns() {
  return make("div", { class: "empty" },
    make("h2", {}, "No runs yet"),
    make("p", {}, "Start a training with this address and one line in the script:"),
    make("pre", { tabindex: "0" }, make("code", {}, `export AMMETER_URL=${location.origin}\n\nimport ammeter\nrun = ammeter.watch(model, optimizer, scaler)`)),
    make("p", {}, "The run appears here with its first step. For a demonstration with a broken run: ", make("code", {}, "ammeter-server demo"), "."),
  );
}
