// Incidents of all runs over time, with filters that are kept in the address.

import { get } from "./api.js";
import { make, replace, updateChildren } from "./dom.js";
import { Filters } from "./filters.js";
import { poll } from "./live.js";
import { toolsInLine } from "./tools.js";
import { ago, integer, moment, span } from "./words.js";

const PAUSE_MS = 4000;
const STATES = [["open,acknowledged", "Not closed"], ["open", "Open"], ["acknowledged", "Acknowledged"], ["closed", "Closed"]];
const place = document.getElementById("list");
const more = document.getElementById("more");
const filters = new Filters(() => {
  pages = 1;
  return show().catch((problem) => replace(place, make("p", { class: "empty problem", role: "alert" }, problem.status ? problem.message : "The collector does not respond. The list is requested again by itself.")));
});
let pages = 1;
let request = 0;

poll(show, PAUSE_MS);

async function show() {
  const mine = ++request;
  const parameters = { page_size: 50, ...Object.fromEntries(["state", "severity", "verdict", "project", "owner"].map((name) => [name, filters.get(name)])) };
  let answer = await get("/incidents", parameters);
  const items = [...answer.items];
  for (let page = 1; page < pages && answer.next_page_token; page++) {
    answer = await get("/incidents", { ...parameters, page_token: answer.next_page_token });
    items.push(...answer.items);
  }
  if (mine !== request) return;
  showFilters(items);
  showList(items, answer.next_page_token);
  place.removeAttribute("aria-busy");
}

function showFilters(items) {
  const bar = document.getElementById("filters");
  const of = (name) => filters.valuesOf(name, items.map((incident) => incident[name]));
  const [verdicts, projects, owners] = ["verdict", "project", "owner"].map(of);
  const signature = JSON.stringify([verdicts, projects, owners]);
  if (bar.signature === signature) return;
  bar.signature = signature;
  replace(bar, filters.choice("state", "Any state", STATES), filters.choice("severity", "Any severity", ["page", "ticket"]), filters.choice("verdict", "Any verdict", verdicts),
    filters.choice("project", "Any project", projects), owners.length ? filters.choice("owner", "Any owner", owners) : null);
}

function showList(items, next) {
  if (!items.length) {
    const words = filters.chosen.size ? ["No incident matches the filters. ", make("a", { href: "/incidents" }, "Show all incidents")] : ["No incidents yet. A run that breaks appears here; ", make("a", { href: "/runbooks/" }, "the runbooks"), " list what is looked for."];
    return replace(place, make("p", { class: "empty" }, words)), replace(more);
  }
  if (!place.querySelector("table")) replace(place, table());
  updateChildren(place.querySelector("tbody"), items, (incident) => incident.id, row);
  replace(more, next ? make("button", { id: "more-incidents", onclick: () => { pages++; show(); } }, "Show older incidents") : null);
}

function table() {
  const column = (name, kind = "") => make("th", { scope: "col", class: kind }, name);
  return make("table", { class: "runs" }, make("caption", { class: "unseen" }, "Incidents, newest first"),
    make("thead", {}, make("tr", {}, column("Severity"), column("Incident"), column("State"), column("Run"), column("Owner", "wide"), column("Step", "num wide"), column("Opened", "num wide"))), make("tbody"));
}

function row(incident) {
  const { severity, state, run, verdict, opened, closed } = incident;
  const lasted = closed ? `lasted ${span((Date.parse(closed) - Date.parse(opened)) / 1000)}` : null;
  const age = () => make("time", { "data-since": opened, datetime: opened, title: moment(opened) }, ago(opened));
  const how = state === "closed" ? `closed: ${incident.closed_reason}` : state;
  return make("tr", { class: state === "closed" ? "" : severity },
    make("td", {}, make("span", { class: `severity ${severity}` }, severity)),
    make("th", { scope: "row" }, make("a", { href: `/runs/${encodeURIComponent(run)}#${encodeURIComponent(verdict)}` }, make("bdi", {}, incident.title || verdict)),
      make("span", { class: "under" }, verdict, " · ", make("a", { href: incident.runbook }, "runbook"), toolsInLine(incident.links, state !== "closed"), incident.module ? [" · ", make("bdi", { class: "code" }, incident.module)] : null)),
    make("td", {}, make("span", { class: state === "open" ? "badge " + severity : "quiet" }, how), lasted ? make("span", { class: "under" }, lasted) : null, make("span", { class: "under narrow" }, age())),
    make("td", {}, make("a", { href: `/runs/${encodeURIComponent(run)}` }, make("bdi", {}, incident.run_name || run.slice(0, 8))), make("span", { class: "under" }, make("a", { class: "plain", href: `/projects/${encodeURIComponent(incident.project)}` }, make("bdi", {}, incident.project)))),
    make("td", { class: "wide" }, incident.owner ? make("bdi", {}, incident.owner) : make("span", { class: "quiet" }, "–")),
    make("td", { class: "num wide" }, integer(incident.first_step + incident.step_offset)),
    make("td", { class: "num quiet wide" }, age()),
  );
}
