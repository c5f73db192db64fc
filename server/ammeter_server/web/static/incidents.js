// The incidents of a run as a person at night reads them: what happened, why, what to do, and where.

import { get, post } from "./api.js";
import { keep, make, replace } from "./dom.js";
import { pairs } from "./head.js";
import { ago, clock, moment, plural, whole } from "./words.js";

// doors: changed() after an incident was handled, zoom(step) to show a step in the charts.
export function showIncidents(place, run, incidents, doors) {
  const urgent = (incident) => (incident.severity === "page" ? 0 : 1);
  const open = incidents.filter((incident) => incident.state !== "closed");
  const closed = incidents.filter((incident) => incident.state === "closed");
  open.sort((a, b) => urgent(a) - urgent(b) || a.first_step + a.step_offset - b.first_step - b.step_offset);
  if (!place.firstChild) place.append(make("div", { class: "stack" }), make("details", { class: "closed" }, make("summary", {}), make("div", { class: "stack" })));
  const [now, before] = place.children;
  const items = open.length ? open : [{ id: "calm", run, closed: closed.length }];
  keep(now, items, (item) => item.id, (item) => (item.id === "calm" ? calm(item.run, item.closed) : card(item, doors)));
  before.hidden = closed.length === 0;
  if (run.state !== "running" && !before.hidden && !open.length && !before.told) before.open = before.told = true;
  before.firstChild.textContent = plural(closed.length, "closed incident");
  keep(before.lastChild, closed, (item) => item.id, (item) => card(item, doors));
}

function calm(run, closed) {
  if (run.last_step === null) return make("p", { class: "calm" }, "Waiting for the first step.");
  if (!closed) return make("p", { class: "calm good" }, "Nothing wrong has been found.");
  if (run.state === "running") return make("p", { class: "calm good" }, "Nothing is wrong now.");
  return make("p", { class: "calm" }, `The run is over. ${plural(closed, "incident was", "incidents were")} closed:`);
}

function card(incident, doors) {
  const { severity, state } = incident;
  return make("article", { class: `incident ${severity} ${state}`, id: incident.verdict },
    make("header", {},
      make("span", { class: "severity" }, severity),
      make("h2", {}, incident.title || incident.verdict),
      make("span", { class: "buttons" }, buttons(incident, doors.changed))),
    make("p", { class: "cause" }, incident.cause),
    make("p", { class: "fix" }, make("strong", {}, "Do this"), incident.fix),
    incident.step_offset ? make("p", { class: "quiet" }, `Steps in these sentences and in the evidence count from the start of this attempt, which is step ${whole(incident.step_offset)} of the run.`) : null,
    spot(incident, doors.zoom),
    make("footer", {},
      evidence(incident), consequences(incident), deliveries(incident),
      make("a", { href: incident.runbook }, "Runbook"),
      make("span", { class: "quiet" }, told(incident), " ", make("time", { "data-since": incident.opened, title: moment(incident.opened) }, ago(incident.opened)))),
  );
}

function told({ state, closed_reason, acknowledged }) {
  if (state === "closed") return `closed: ${closed_reason} · opened`;
  return acknowledged ? "acknowledged · opened" : "opened";
}

function spot(incident, zoom) {
  const said = [
    ["first step", make("button", { class: "link", title: "Show it in the charts", onclick: () => zoom(incident.first_step + incident.step_offset) }, whole(incident.first_step + incident.step_offset))],
    ["found at step", whole(incident.opened_step + incident.step_offset)],
    ["last seen at step", whole(incident.last_step + incident.step_offset)],
    ["tensor", incident.tensor],
    ["module", incident.module],
    ["line", incident.caller],
    ["rank", incident.rank],
  ].filter(([name, value], index) => value !== null && value !== undefined && value !== "" && !(index === 1 && incident.opened_step === incident.first_step));
  return make("dl", { class: "spot" }, said.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", { class: ["tensor", "module", "line"].includes(name) ? "code" : "" }, value instanceof Element ? value : make("bdi", {}, String(value))))));
}

function evidence({ evidence }) {
  const entries = Object.entries(evidence ?? {}).map(([name, value]) => [name.replaceAll("_", " "), value]);
  return entries.length ? make("details", {}, make("summary", {}, "Evidence"), pairs(entries)) : null;
}

function consequences({ consequences, step_offset }) {
  if (!consequences?.length) return null;
  return make("details", {}, make("summary", {}, plural(consequences.length, "consequence")),
    make("ul", {}, consequences.map((each) => make("li", {}, make("strong", {}, each.title || each.verdict), ` from step ${whole(each.first_step + step_offset)}. ${each.cause ?? ""}`))));
}

// Who was told is asked for when somebody wants to know.
function deliveries({ id }) {
  const place = make("div", { class: "deliveries" });
  const look = async ({ target }) => {
    if (!target.open) return;
    try {
      const { items } = await get(`/incidents/${encodeURIComponent(id)}/deliveries`);
      replace(place, items.length ? make("ul", {}, items.map((each) => make("li", {}, delivery(each)))) : make("p", { class: "quiet" }, "Nobody: no channel is set up for it."));
    } catch (problem) {
      replace(place, make("p", { class: "problem", role: "alert" }, problem.message));
    }
  };
  return make("details", { ontoggle: look }, make("summary", {}, "Who was told"), place);
}

function delivery({ channel, kind, state, attempts, error, due, sent }) {
  const how = {
    sent: `told at ${clock(sent)}`,
    told: `told at ${clock(sent)}, and again until it is over`,
    failed: "given up",
    pending: attempts ? `not yet, tried ${plural(attempts, "time")}, again at ${clock(due)}` : `waits until ${clock(due)}`,
  }[state];
  return [make("strong", {}, channel), ` ${kind}: ${how}`, error ? make("span", { class: "problem" }, ` ${error}`) : ""];
}

function buttons(incident, changed) {
  const offer = (action, words) => {
    const button = make("button", { onclick: () => act(button, incident, action, changed) }, words);
    return button;
  };
  if (incident.state === "closed") return [];
  const quiet = incident.silenced && Date.parse(incident.silenced) > Date.now();
  const hush = quiet ? make("span", { class: "quiet" }, `silent until ${clock(incident.silenced)}`) : offer("silence", "Silence for 8 h");
  if (incident.state === "acknowledged") return [make("span", { class: "quiet" }, "acknowledged"), hush, offer("close", "Close")];
  return [offer("acknowledge", "Acknowledge"), hush, offer("close", "Close")];
}

async function act(button, incident, action, changed) {
  button.disabled = true;
  try {
    await post(`/incidents/${encodeURIComponent(incident.id)}/${action}`);
    await changed();
  } catch (problem) {
    button.disabled = false;
    button.after(make("span", { class: "problem", role: "alert" }, problem.message));
  }
}
