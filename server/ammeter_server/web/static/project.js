// A project: the report of the last days, readiness for production, pinned baselines, and groups of runs.

import { get } from "./api.js";
import { showGroups } from "./groups.js";
import { withCode } from "./code.js";
import { make, replace, visible } from "./dom.js";
import { poll } from "./live.js";
import { dollars, integer, moment, plural, share } from "./words.js";

const PAUSE_MS = 60_000;
const place = document.getElementById("project");
const { project } = place.dataset;
const path = `/projects/${encodeURIComponent(project)}`;
const days = Number(new URLSearchParams(location.search).get("days")) || 7;
const section = (id) => document.getElementById(id);

poll(async () => {
  try {
    const [report, checked, pins] = await Promise.all([get(`${path}/report`, { days }), get(`${path}/readiness`), get("/baselines", { project })]);
    showHead(report);
    showActions(report.actions);
    showReadiness(checked);
    showTables(report);
    showPins(pins.items);
    if (!section("groups").firstChild) showGroups(section("groups"), project);
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    replace(place, make("div", { class: "empty" }, make("h1", {}, "Project not found"), make("p", {}, "No run of this project has arrived, or all were deleted. A project appears with its first run."), make("p", {}, make("a", { href: "/" }, "All runs"))));
  }
  place.removeAttribute("aria-busy");
  return PAUSE_MS;
}, PAUSE_MS);

function showHead({ cost, before, since, until, cut }) {
  document.title = visible(`${project} · Ammeter`);
  const failed = cost.runs - cost.successful;
  const figures = [
    { name: "Ended runs", value: integer(cost.runs), under: `${integer(cost.running)} running, before ${integer(before.runs)}` },
    { name: "Ended well", value: cost.runs ? share(cost.successful, cost.runs) : "–", under: plural(failed, "failed run"), bad: failed > cost.successful },
    { name: "Cost", value: dollars(cost.dollars), under: cost.unpriced_runs ? `${plural(cost.unpriced_runs, "run")} without a price` : `before ${dollars(before.dollars)}` },
    { name: "Cost per good run", value: dollars(cost.dollars_per_success), under: `before ${dollars(before.dollars_per_success)}` },
    { name: "Cost of failed runs", value: dollars(cost.unsuccessful_dollars), under: `before ${dollars(before.unsuccessful_dollars)}` },
    { name: "Repeated steps", value: integer(cost.replaced_steps), under: dollars(cost.replaced_dollars) },
  ];
  const period = (length, words) => (length === days ? make("strong", {}, words) : make("a", { href: `?days=${length}` }, words));
  replace(section("head"),
    make("div", { class: "title" }, make("h1", {}, make("bdi", {}, project)),
      make("p", { class: "filters" }, period(7, "Week"), period(28, "Four weeks"), make("a", { href: `/api/v1${path}/report.md?days=${days}` }, "Markdown"), make("a", { href: `/?project=${encodeURIComponent(project)}` }, "Runs"))),
    make("dl", { class: "figures" }, figures.map(({ name, value, under, bad }) =>
      make("div", { class: bad ? "bad" : "" }, make("dt", {}, name), make("dd", {}, value, make("span", { class: "under" }, under))))),
    make("p", { class: "facts" }, `${moment(since)} to ${moment(until)}${cut ? ", of the newest runs only" : ""}`));
}

function showActions(actions) {
  replace(section("todo"), make("h2", {}, "What to do"),
    actions.length ? make("ol", { class: "todo" }, actions.map(({ todo, reason, link }) => make("li", {}, make("bdi", {}, withCode(todo)), " ",
      make("span", { class: "quiet" }, "(", link ? make("a", { href: here(link) }, reason) : make("bdi", {}, reason), ")")))) : make("p", { class: "calm good" }, "Nothing."));
}

function showReadiness({ ready, lines }) {
  replace(section("readiness"), make("h2", {}, "Ready for production"),
    make("p", { class: `calm ${ready ? "good" : ""}` }, ready ? "Every check has passed." : `${integer(lines.filter((line) => !line.ready).length)} of ${integer(lines.length)} checks have not passed.`),
    table(["Check", "Passed", "Found", "To do"], lines.map((line) => [
      line.name, make("span", { class: line.ready ? "" : "bad" }, line.ready ? "yes" : "no"), line.link ? make("a", { href: here(line.link) }, make("bdi", {}, line.found)) : make("bdi", {}, line.found), make("bdi", {}, withCode(line.todo))]), "Checks"));
}

function showTables({ failed, failed_not_listed: more, incidents, fallbacks, cost }) {
  show("failed", "Failed runs", ["Run", "Owner", "Outcome", "Step", "Cost", "Cause"], failed.map((run) => [
    make("a", { href: `/runs/${encodeURIComponent(run.run)}` }, make("bdi", {}, run.name || run.run.slice(0, 8))), make("bdi", {}, run.owner), run.outcome, integer(run.last_step), dollars(run.dollars), make("bdi", {}, run.cause ?? "no incident")]));
  if (more) section("failed").append(make("p", { class: "quiet" }, `${integer(more)} more are not listed.`));
  show("verdicts", "Incidents", ["Verdict", "Severity", "Incidents", "Runs", "Open"], incidents.map((count) => [
    make("a", { href: here(count.runbook) }, count.verdict), count.severity, integer(count.incidents), integer(count.runs), integer(count.still_open)]));
  show("fallbacks", "Operators in float32 that could run in low precision", ["Operator", "Reason", "Runs", "FLOPs, at most"], fallbacks.map((fallback) => [
    make("bdi", {}, fallback.operator), make("bdi", {}, fallback.reason), integer(fallback.runs), share(fallback.share)]));
  show("costs", "Cost by outcome and device", ["Runs", "Number", "Device hours", "Cost"], [...cost.outcomes, ...cost.devices].map((part) => [
    make("bdi", {}, part.name), integer(part.runs), part.hours.toFixed(1), cost.dollars === null ? "–" : dollars(part.dollars)]));
}

function showPins(pins) {
  show("pins", "Pinned baselines", ["For", "Run"], pins.map((pin) => [
    make("bdi", {}, pin.name === null ? "the project" : `runs named ${pin.name}`), make("a", { href: `/runs/${encodeURIComponent(pin.run)}` }, make("bdi", {}, pin.run_name || pin.run.slice(0, 8)))]));
}

function show(id, title, head, rows) {
  replace(section(id), make("h2", {}, title), rows.length ? table(head, rows, title) : make("p", { class: "quiet" }, "None."));
}

function table(head, rows, label) {
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${label}` }, make("table", {}, make("thead", {}, make("tr", {}, head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell, index) => make(index ? "td" : "th", index ? {} : { scope: "row" }, cell)))))));
}

// Links have the public address, which may differ from the address of this page.
function here(link) {
  const at = link.search(/\/(runs|runbooks)\//);
  return at < 0 ? link : link.slice(at);
}
