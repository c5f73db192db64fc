// The incidents of a run: title, cause, fix and place; the rest of a card is in handling.js and evidence.js.

import { post } from "./api.js";
import { showAsk } from "./ask.js";
import { withCode } from "./code.js";
import { make, updateChildren } from "./dom.js";
import { drawEvidence } from "./evidence.js";
import { showHandling } from "./handling.js";
import { ago, clock, integer, moment, plural } from "./words.js";

// actions: changed() after an incident was handled, zoom(step) to show a step in the charts.
export function showIncidents(place, run, incidents, actions) {
  const urgent = (incident) => (incident.severity === "page" ? 0 : 1);
  const open = incidents.filter((incident) => incident.state !== "closed");
  const closed = incidents.filter(({ state, closed_reason }) => state === "closed" && closed_reason !== "superseded"); // the cause lists those
  open.sort((a, b) => urgent(a) - urgent(b) || a.first_step + a.step_offset - b.first_step - b.step_offset);
  if (!place.firstChild) place.append(make("div", { class: "stack" }), make("details", { class: "closed" }, make("summary", {}), make("div", { class: "stack" })), make("div", {}), make("div", {}));
  const [now, before, unclear, more] = place.children;
  showAsk(more, run);
  const items = open.length ? open : closed.length ? [] : [{ id: "calm", text: run.last_step === null ? "Waiting for the first step." : "No incidents." }];
  updateChildren(now, items, (item) => item.id, (item) => (item.id === "calm" ? make("p", { class: run.last_step === null ? "calm" : "calm good" }, item.text) : card(item, actions)));
  before.hidden = closed.length === 0;
  before.firstChild.className = open.length ? "" : "calm";
  if ((run.state !== "running" || closed.length <= FEW) && !before.hidden && !open.length && !before.openedOnce) before.open = before.openedOnce = true;
  const text = closed.length ? `${open.length ? "" : run.state === "running" ? "No open incidents; " : "The run has ended; "}${summary(closed)}` : "";
  if (before.firstChild.textContent !== text) before.firstChild.textContent = text;
  updateChildren(before.lastChild, closed, (item) => item.id, (item) => card(item, actions));
  const unjudged = run.not_judged ?? [];
  updateChildren(unclear, unjudged.length ? [unjudged] : [], () => "unjudged", notJudged);
  if (!place.isNamedShown) window.addEventListener("hashchange", () => showNamed(place));
  if (!place.isNamedShown) showNamed(place);
  place.isNamedShown = true;
}

// The card that the address names, from a list or a message, also if it is folded.
function showNamed(place) {
  const named = [...place.querySelectorAll("article")].find(({ id }) => id && id === decodeURIComponent(location.hash.slice(1)));
  if (!named) return;
  if (named.closest("details.closed")) named.closest("details.closed").open = true;
  named.scrollIntoView();
}

// Verdicts without enough readings: without them, no incident would look like health.
function notJudged(verdicts) {
  const reasons = [...new Set(verdicts.map(({ reason }) => reason))];
  const named = (reason) => verdicts.filter((entry) => entry.reason === reason).map(({ verdict, text }) => `${verdict} (${text})`).join(", ");
  const why = reasons.every((reason) => reason === "not-in-history") ? "not in the imported history" : "too few readings";
  return make("details", { class: "note unjudged" }, make("summary", {}, `${plural(verdicts.length, "verdict")} not judged: ${why}`),
    make("ul", {}, reasons.map((reason) => make("li", {}, `${REASONS[reason] ?? reason}: ${named(reason)}`))));
}

const FEW = 3; // closed incidents that are shown at once

const REASONS = {
  "run-too-short": "The run is too short so far",
  budget: "The budget allows too few readings; a higher AMMETER_BUDGET allows more",
  "never-read": "Nothing was read; the preset, the model or the program leaves it out",
  "not-in-history": "The imported history does not have what they read",
};

const ENDS = { recovered: "recovered", acknowledged: "closed after it was acknowledged", "run ended": "closed with the run", superseded: "explained by another one", expired: "expired", "by hand": "closed by hand" };

// What happened shows without unfolding it: how many there were, how they closed, and the newest.
function summary(closed) {
  const count = (reason) => closed.filter(({ closed_reason: own }) => own === reason).length;
  const ends = [...new Set(closed.map(({ closed_reason: reason }) => reason))].map((reason) => `${integer(count(reason))} ${ENDS[reason] ?? `closed (${reason})`}`);
  const { title, verdict, first_step, last_step, step_offset } = closed.reduce((a, b) => (b.opened > a.opened ? b : a));
  const steps = last_step > first_step ? `steps ${integer(first_step + step_offset)} to ${integer(last_step + step_offset)}` : `step ${integer(first_step + step_offset)}`;
  return `${ends.join(", ")}${closed.length > 1 ? "; the newest" : ""}: ${title || verdict}, ${steps}`;
}

function card(incident, actions) {
  const { severity, state } = incident;
  const places = { isPage: severity === "page", now: make("p", { class: "now" }), chip: make("span", { class: "chip" }), facts: make("div", { class: "handling" }), checkpoint: make("div", { class: "saved" }), reach: make("section", {}), notified: make("section", {}) };
  const drawn = drawEvidence(incident.evidence);
  const article = make("article", { class: `incident ${severity} ${state}`, id: incident.verdict },
    make("header", {},
      make("span", { class: "severity" }, severity),
      make("h2", {}, incident.title || incident.verdict), places.chip,
      make("span", { class: "buttons" }, buttons(incident, actions.changed))),
    places.now,
    make("div", { class: "first" },
      make("div", { class: "what" },
        make("p", { class: "cause" }, withCode(incident.cause)),
        make("p", { class: "fix" }, make("strong", {}, "Fix"), withCode(incident.fix)),
        incident.step_offset ? make("p", { class: "quiet" }, `Steps in these texts and in the evidence count from the start of this attempt, which is step ${integer(incident.step_offset)} of the run.`) : null),
      make("div", { class: "where" }, spot(incident, actions), places.facts)),
    places.checkpoint,
    make("div", { class: "beside" }, places.reach, places.notified),
    drawn ? make("details", { class: "proof" }, make("summary", {}, "Evidence"), drawn) : null,
    make("footer", {},
      consequences(incident),
      make("a", { href: incident.runbook }, "Runbook"),
      make("a", { href: `/incidents?verdict=${encodeURIComponent(incident.verdict)}` }, "All with this verdict"),
      make("span", { class: "quiet" }, stateText(incident), " ", make("time", { "data-since": incident.opened, datetime: incident.opened, title: moment(incident.opened) }, ago(incident.opened)))),
    state === "closed" ? null : make("p", { class: "meaning" }, MEANING),
  );
  showHandling(incident, places);
  return article;
}

const MEANING = "Acknowledge: you take it on, and others see that. Silence: no notifications until then. Close: ends it by hand and notifies that it is resolved; a new occurrence opens it again. None of them changes the run.";

function stateText({ state, closed_reason, acknowledged }) {
  if (state === "closed") return `closed: ${closed_reason} · opened`;
  return acknowledged ? "acknowledged · opened" : "opened";
}

// A fact that another one says already is left out.
function spot(incident, { zoom, isAlone }) {
  const repeats = { "detected at step": incident.first_step, "last seen at step": incident.first_step };
  const facts = [
    ["first step", make("button", { class: "link", title: "Show this step in the charts", onclick: () => zoom(incident.first_step + incident.step_offset) }, integer(incident.first_step + incident.step_offset))],
    ["detected at step", integer(incident.opened_step + incident.step_offset)],
    ["last seen at step", incident.state === "closed" ? integer(incident.last_step + incident.step_offset) : null],
    ["tensor", incident.tensor],
    ["module", incident.tensor?.startsWith(`${incident.module}.`) ? null : incident.module],
    ["line", incident.caller],
    ["rank", isAlone ? null : incident.rank],
  ].filter(([name, value]) => value !== null && value !== undefined && value !== "" && value !== integer((repeats[name] ?? NaN) + incident.step_offset));
  return make("dl", { class: "spot" }, facts.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", { class: ["tensor", "module", "line"].includes(name) ? "code" : "" }, value instanceof Element ? value : make("bdi", {}, String(value))))));
}

function consequences({ consequences, step_offset }) {
  if (!consequences?.length) return null;
  return make("details", {}, make("summary", {}, plural(consequences.length, "consequence")),
    make("ul", {}, consequences.map((finding) => make("li", {}, make("strong", {}, finding.title || finding.verdict), ` from step ${integer(finding.first_step + step_offset)}. ${finding.cause ?? ""}`))));
}

function buttons(incident, changed) {
  const offer = (action, words) => {
    const button = make("button", { onclick: () => act(button, incident, action, changed) }, words);
    return button;
  };
  if (incident.state === "closed") return [];
  const quiet = incident.silenced && Date.parse(incident.silenced) > Date.now();
  const silence = quiet ? make("span", { class: "quiet" }, `silenced until ${clock(incident.silenced)}`) : offer("silence", "Silence for 8 h");
  if (incident.state === "acknowledged") return [make("span", { class: "quiet" }, "acknowledged"), silence, offer("close", "Close")];
  return [offer("acknowledge", "Acknowledge"), silence, offer("close", "Close")];
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
