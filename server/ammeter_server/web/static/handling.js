// What a person needs to act on an incident: what to do now, weights, last good checkpoint, cost, owner and place, other
// runs, and who was notified. Each card requests it when it is visible, and again at most every ten seconds.

import { get } from "./api.js";
import { make, replace, visible } from "./dom.js";
import { toolLinks } from "./tools.js";
import { clock, dollars, integer, moment, plural } from "./words.js";

const FRESH_MS = 10_000;
const known = new Map();

const WEIGHTS = {
  poisoned: ["bad", "weights poisoned", "NaN or Inf were read in the weights or in the optimizer's state"],
  buffers: ["bad", "buffers poisoned", "NaN or Inf were read in buffers, which evaluation uses; the weights are another matter"],
  damaged: ["bad", "weights damaged", "They are finite, but the fault led them astray: return to those from before it"],
  doubtful: ["warn", "weights led astray", "They are finite, but steps since the fault began changed them wrongly"],
  safe: ["good", "weights safe", "Since the fault began, every applied step had a finite loss and finite gradients"],
  finite: ["", "weights finite when last read", "The last reading, of all weights or a part of them, was finite. Later steps may have changed that"],
  unknown: ["", "weights not read", "No weights have been read since the fault began"],
};

const RELATED = {
  verdict: "the same verdict",
  host: "the same host",
  commit: "the same commit",
  driver: "the same driver",
};

// Fills the places of a card: now, chip, facts, checkpoint, reach and notified.
export function showHandling(incident, places) {
  const path = `/incidents/${encodeURIComponent(incident.id)}`;
  const old = known.get(incident.id);
  const isOpen = incident.state !== "closed";
  if (old) fill(places, old.answers, isOpen);
  if (old && Date.now() - old.at < FRESH_MS) return;
  whenVisible(places.now, async () => {
    try {
      const answers = await Promise.all([get(`${path}/context`), get(`${path}/reach`), get(`${path}/deliveries`)]);
      known.set(incident.id, { at: Date.now(), answers });
      fill(places, answers, isOpen);
    } catch (problem) {
      replace(places.facts, make("p", { class: "problem", role: "alert" }, problem.status ? problem.message : "Owner, checkpoint and cost could not be read. They are requested again with the next change of the incident."));
    }
  });
}

function whenVisible(element, act) {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    act();
  }, { rootMargin: "300px" });
  observer.observe(element);
}

function fill(places, [context, reach, deliveries], isOpen) {
  replace(places.now, make("strong", {}, "Now"), context.now);
  showWeights(places.chip, context.weights);
  replace(places.facts, facts(context, isOpen));
  replace(places.checkpoint, checkpoint(context));
  replace(places.reach, make("h3", {}, "Other runs since then"), related(reach));
  replace(places.notified, make("h3", {}, "Notified, in order"), notified(deliveries.items, places.isPage));
}

function showWeights(chip, { state, step }) {
  const [kind, text, why] = WEIGHTS[state];
  chip.className = `chip ${kind}`;
  chip.title = step === null ? `${why}.` : `${why}, at step ${integer(step)}.`;
  chip.textContent = state === "finite" ? `${text}, at step ${integer(step)}` : text;
}

// An incident that is over costs nothing more, and has no alert to silence.
function facts({ run_state, dollars_per_hour, owner, host, job, commit, driver, links }, isOpen) {
  const entries = [
    ["burns", !isOpen ? null : dollars_per_hour ? make("strong", { class: "bad" }, `${dollars(dollars_per_hour)} an hour`) : run_state === "running" ? null : `nothing: the run is ${run_state}`],
    ["owner", owner && make("bdi", {}, owner)],
    ["host", host && make("bdi", { class: "code" }, host)],
    ["job", job && copied(job, job)],
    ["commit", commit && copied(commit.slice(0, 12), commit)],
    ["driver", driver && make("bdi", {}, driver)],
  ].filter(([, value]) => value);
  const tools = toolLinks(links, isOpen);
  return make("div", {},
    make("dl", { class: "spot" }, entries.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    tools.length ? make("p", { class: "links" }, tools) : null);
}

function checkpoint({ checkpoint: saved }) {
  if (!saved) return null;
  const parts = [saved.verified ? "read back: complete and finite" : "not read back", ...(saved.missing.length ? [`lacks ${saved.missing.join(", ")}`] : [])];
  const again = saved.resume
    ? command("Resume", saved.resume)
    : make("p", { class: "quiet" }, "The recorded command has no option for a checkpoint: let the program load this path.");
  return make("div", { class: "checkpoint" },
    make("h3", {}, "Last good checkpoint"),
    make("p", {}, make("strong", {}, `Step ${integer(saved.step)}`), make("span", { class: "quiet", title: moment(saved.saved) }, ` saved ${moment(saved.saved)}, ${parts.join(", ")}`)),
    command("Path", saved.path), again,
    saved.verified ? null : command("Check it", `ammeter checkpoint ${quoted(saved.path)}`));
}

function quoted(path) {
  return /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", `'"'"'`)}'`;
}

function command(name, text) {
  return make("div", { class: "command" }, make("span", { class: "quiet" }, name), make("code", { tabindex: "0" }, make("bdi", {}, text)), copyButton(name, text));
}

function copied(words, text) {
  return make("span", {}, make("bdi", { class: "code", title: visible(text) }, words), " ", copyButton(words, text));
}

export function copyButton(name, text) {
  const button = make("button", { class: "copy", "aria-label": `Copy ${name}`, onclick: async () => {
    button.textContent = copyBySelection(text) || (await copyByPermission(text)) ? "Copied" : "Select it and copy";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  } }, "Copy");
  return button;
}

// Works on every page, but not in every browser.
function copyBySelection(text) {
  const field = make("textarea", { class: "unseen", "aria-hidden": "true" });
  const focused = document.activeElement;
  document.body.append(field);
  field.value = text;
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}

// Browsers allow it only over HTTPS and on this machine.
async function copyByPermission(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

function related({ items }) {
  if (items.every((item) => item.runs === 0)) return make("p", { class: "quiet" }, `None with ${items.map(({ by }) => RELATED[by]).join(", ")}.`);
  return make("ul", { class: "reach" }, items.map((item) => make("li", {}, item.runs === 0 ? make("span", { class: "quiet" }, `${RELATED[item.by]}: none`) : make("details", {},
    make("summary", {}, `${RELATED[item.by]}: ${plural(item.runs, "run")}`, item.broken ? `, ${integer(item.broken)} with open incidents` : ""),
    make("ul", {}, item.items.map((run) => make("li", {}, make("a", { href: `/runs/${encodeURIComponent(run.run)}` }, make("bdi", {}, run.name || run.run.slice(0, 8))),
      make("span", { class: run.open_incidents ? "bad" : "quiet" }, ` ${run.state}${run.open_incidents ? ", open incidents" : ""}`)))),
    item.runs > item.items.length ? make("p", { class: "quiet" }, `${integer(item.runs - item.items.length)} more`) : null))));
}

function notified(items, isPage) {
  if (!items.length) return make("p", { class: isPage ? "warn" : "quiet" }, "Nobody: no channel accepts this incident. ", make("a", { href: "/alerts" }, "Channels"));
  return make("div", {}, make("ol", { class: "notified" }, items.map((item) => make("li", {}, delivery(item)))), make("a", { href: "/alerts" }, "Channels"));
}

export function delivery({ channel, kind, state, attempts, error, due, sent }) {
  const how = {
    sent: `delivered at ${clock(sent)}`,
    told: `delivered at ${clock(sent)}, repeated until the incident ends`,
    failed: "failed",
    pending: attempts ? `pending after ${plural(attempts, "attempt")}, next at ${clock(due)}` : `due at ${clock(due)}`,
  }[state];
  return [make("strong", {}, make("bdi", {}, channel)), ` ${kind}: ${how}`, error ? make("span", { class: "problem" }, make("bdi", {}, ` ${error}`)) : ""];
}
