// Asks a live run for a reading that it does not make by itself, and shows the answer when it arrives.

import { get, post } from "./api.js";
import { make, replace, updateChildren } from "./dom.js";
import { sentence } from "./event_sentences.js";
import { clock, integer, plural } from "./words.js";

const STEPS = [1, 5, 20, 100];
const PAUSE_MS = 2000;
const ANSWERS = "origin.*,activation.peaks";
const MAX_ANSWERS = 6;

// One section for each page; asking again does not render it anew.
export function showAsk(place, run) {
  place.hidden = run.state !== "running";
  if (place.hidden || place.firstChild) return;
  const select = make("select", { id: "ask-steps", "aria-label": "Steps" }, STEPS.map((steps) => make("option", { value: steps, selected: steps === 5 }, plural(steps, "step"))));
  const button = make("button", { id: "ask", onclick: () => ask() }, "Watch every module");
  const problem = make("span", { class: "problem", role: "alert" });
  const answers = make("div", { id: "answers", class: "stack", role: "status" });
  place.append(make("details", { class: "note ask", ontoggle: ({ target }) => target.open && follow() }, make("summary", {}, "Ask this run for more"),
    make("p", {}, "Hooks on every module find where NaN or Inf begins, and in float16 the largest activations. These steps are slower; weights and results stay as they are."),
    make("p", { class: "filters" }, button, " for the next ", select, problem), answers));

  async function ask() {
    button.disabled = true;
    problem.textContent = "";
    try {
      show((await post(`/runs/${encodeURIComponent(run.id)}/directives`, { arm: "origin", steps: select.value })).items, []);
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
    const since = items.at(-1)?.delivered ?? items.at(-1)?.created;
    const events = since ? (await get(`/runs/${encodeURIComponent(run.id)}/events`, { name: ANSWERS, since, page_size: 50 })).items : [];
    show(items, events);
  }

  function show(items, events) {
    if (!items.length) return replace(answers);
    // An event answers the newest directive that was delivered before it.
    const later = items.map((item, index) => ({ ...item, until: items[index - 1]?.delivered ?? null }));
    updateChildren(answers, later.map((item) => ({ ...item, events: item.delivered ? events.filter(({ time }) => time >= item.delivered && (!item.until || time < item.until)) : [] })), ({ id }) => id, answer);
  }
}

function answer({ steps, asked_by, created, ranks, delivered_to, delivered, events }) {
  const state = delivered ? `received by ${integer(delivered_to)} of ${plural(ranks, "process", "processes")} at ${clock(delivered)}` : "waits for the next batch of the run";
  const nothing = delivered ? make("p", { class: "quiet" }, "No answer yet. Without NaN or Inf, only a model with activations in float16 gives one.") : null;
  return make("div", {}, make("p", {}, `${plural(steps, "step")}, asked at ${clock(created)} by `, make("bdi", {}, asked_by), `: ${state}.`),
    events.length ? make("ul", {}, events.slice(0, MAX_ANSWERS).map((event) => make("li", {}, `Step ${integer(event.step + event.step_offset)}, rank ${integer(event.rank)}: `, make("bdi", {}, sentence(event.name, event.data ?? {}))))) : nothing);
}
