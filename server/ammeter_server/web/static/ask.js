// Asks a live run for a reading that it does not make by itself, and shows the answer when it arrives.

import { READINGS } from "./answers.js";
import { get, post } from "./api.js";
import { make, replace, updateChildren } from "./dom.js";
import { sentence } from "./event_sentences.js";
import { clock, integer, plural, share } from "./words.js";

const STEPS = [1, 5, 20, 100];
const PAUSE_MS = 2000;
const SLOW_MS = 60000;
const EVENTS = "origin.*,activation.peaks";
const MAX_ANSWERS = 6;

// One section for each page; asking again does not render it anew.
export function showAsk(place, run) {
  place.hidden = run.state !== "running";
  if (place.hidden || place.firstChild) return;
  const about = make("p", {}, READINGS.origin.text);
  const reading = make("select", { id: "ask-reading", "aria-label": "Reading", onchange: choose }, Object.entries(READINGS).map(([arm, { words }]) => make("option", { value: arm }, words)));
  const steps = make("select", { id: "ask-steps", "aria-label": "Steps" }, STEPS.map((count) => make("option", { value: count, selected: count === READINGS.origin.steps }, plural(count, "step"))));
  const button = make("button", { id: "ask", onclick: ask }, "Ask");
  const problem = make("span", { class: "problem", role: "alert" });
  const answers = make("div", { id: "answers", class: "stack", role: "status" });
  place.append(make("details", { class: "note ask", ontoggle: ({ target }) => target.open && follow() }, make("summary", {}, "Ask this run for more"),
    make("p", { class: "filters" }, reading, " in the next ", steps, button, problem), about, answers));

  function choose() {
    about.textContent = READINGS[reading.value].text;
    steps.value = String(READINGS[reading.value].steps);
  }

  async function ask() {
    button.disabled = true;
    problem.textContent = "";
    try {
      show((await post(`/runs/${encodeURIComponent(run.id)}/directives`, { arm: reading.value, steps: steps.value })).items, []);
    } catch (failure) {
      problem.textContent = failure.status ? failure.message : "The collector does not respond; ask again.";
    }
    button.disabled = false;
  }

  // While the section is open.
  async function follow() {
    while (place.isConnected && place.querySelector("details").open) {
      if (!document.hidden) await load().catch(() => {}); // the page's header reports a collector that does not respond
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }

  async function load() {
    const { items } = await get(`/runs/${encodeURIComponent(run.id)}/directives`);
    const since = items.filter(isUnanswered).at(-1)?.delivered;
    const events = since ? (await get(`/runs/${encodeURIComponent(run.id)}/events`, { name: EVENTS, since, page_size: 50 })).items : [];
    show(items, events);
  }

  function show(items, events) {
    if (!items.length) return replace(answers);
    // An older Ammeter in the run does not answer: an event belongs to the newest directive that was delivered before it.
    const later = items.map((item, index) => ({ ...item, until: items[index - 1]?.delivered ?? null }));
    const shown = later.map((item) => ({
      ...item, isSlow: Boolean(item.delivered) && Date.now() - Date.parse(item.delivered) > SLOW_MS,
      events: isUnanswered(item) ? events.filter(({ time }) => time >= item.delivered && (!item.until || time < item.until)) : [],
    }));
    updateChildren(answers, shown, ({ id }) => id, request);
  }
}

function isUnanswered({ arm, delivered, answers }) {
  return arm === "origin" && delivered && !answers.length;
}

function request({ arm, steps, asked_by, created, ranks, delivered_to, delivered, answers, events, isSlow }) {
  const state = delivered ? `received by ${integer(delivered_to)} of ${plural(ranks, "process", "processes")} at ${clock(delivered)}` : "waits for the next batch of the run";
  const missing = delivered && answers.length < delivered_to ? delivered_to - answers.length : 0;
  return make("div", {}, make("p", {}, `${READINGS[arm]?.words ?? arm}, ${plural(steps, "step")}, asked at ${clock(created)} by `, make("bdi", {}, asked_by), `: ${state}.`),
    events.length ? make("ul", {}, events.slice(0, MAX_ANSWERS).map(line)) : null,
    answers.length ? make("ul", { class: "answered" }, answers.slice(0, MAX_ANSWERS).map(line)) : null,
    answers.length > MAX_ANSWERS ? make("p", { class: "quiet" }, `${plural(answers.length - MAX_ANSWERS, "more answer")} in the list of events.`) : null,
    missing && !events.length ? make("p", { class: "quiet" }, waiting(missing, delivered_to, isSlow)) : null,
    counted(answers.find(({ data }) => Array.isArray(data?.operators) && data.operators.length)));
}

function waiting(missing, of, isSlow) {
  const who = of === 1 ? "The answer" : `The answer of ${plural(missing, "process", "processes")}`;
  return isSlow ? `${who} has not arrived in a minute: steps take long, the program has ended, or its Ammeter is older than 0.2.` : `${who} follows the last of these steps …`;
}

function line({ step, step_offset, rank, name, data }) {
  return make("li", {}, `Step ${integer(step + step_offset)}, rank ${integer(rank)}: `, make("bdi", {}, sentence(name, data ?? {})));
}

// The operators and fallbacks of the first census that has arrived.
function counted(answer) {
  if (!answer) return null;
  const { operators, flops_eligible: all } = answer.data;
  const fallbacks = Array.isArray(answer.data.fallbacks) ? answer.data.fallbacks : [];
  const rows = operators.map(({ op, dtype, modules, flops }) => [make("bdi", { class: "code" }, op), dtype, plural(modules, "module"), share(flops, all)]);
  const cell = (tag) => (content, column) => make(tag, { class: column === 3 ? "num" : null, scope: tag === "th" ? "col" : null }, content);
  return make("div", { class: "counted" },
    make("table", { class: "small" }, make("thead", {}, make("tr", {}, ["Operator", "Dtype", "In", "FLOPs"].map(cell("th")))), make("tbody", {}, rows.map((row) => make("tr", {}, row.map(cell("td")))))),
    fallbacks.length ? make("ul", {}, fallbacks.map((fallback) => make("li", {}, make("bdi", {}, inefficient(fallback))))) : null);
}

function inefficient({ op, module, modules, dtype, reason, flops_share: part, caller }) {
  return `${op}${module ? ` in ${module}` : ""}${modules > 1 ? ` and ${plural(modules - 1, "similar module")}` : ""} ran in ${dtype} (${reason}), ${share(part)} of the FLOPs${caller ? `, at ${caller}` : ""}`;
}
