// The head of a run's page: name, state and main figures.

import { make, replace, updateChildren, visible } from "./dom.js";
import { toolsOf } from "./tools.js";
import { ago, dollars, integer, moment, plain, plural, scaleLong, severalLosses, share, short, span } from "./words.js";

const MIN_IDLE_SECONDS = 60;
const IDLE_STEPS = 10; // usual step times without a step after which a run counts as idle

const MIN_STEPS = 20;
const HIGH_SHARE = 0.1;
const isMany = (bad, steps) => steps >= MIN_STEPS && bad > HIGH_SHARE * steps;

export function showHead(place, run, incidents) {
  const open = incidents.filter((incident) => incident.state !== "closed");
  const paging = open.some((incident) => incident.severity === "page" && incident.state === "open");
  document.title = visible(`${paging ? "(!) " : ""}${run.name || run.id.slice(0, 8)} · Ammeter`);
  if (!place.querySelector("h1")) {
    place.append(make("div", { class: "title" }), make("dl", { class: "figures" }), make("p", { class: "facts" }), make("p", { class: "facts" }));
  }
  const [title, figures, facts, line] = place.children;
  const idle = idleSince(run);
  updateChildren(title, [{ name: run.name || run.id.slice(0, 8), state: run.state, idle }], () => "title", ({ name, state }) =>
    make("div", { class: "name" }, make("h1", {}, make("bdi", {}, name)), make("span", { class: `state ${state} ${idle ? "idle" : ""}` }, idle ? `${state}, last step ${idle}` : state)));
  updateChildren(figures, numbers(run), (figure) => figure.name, figure);
  const text = visible(factsOf(run).join("  ·  "));
  if (facts.textContent !== text) facts.textContent = text;
  updateChildren(line, [...neighbours(run), { words: "Compare with another run", id: run.id, how: "/compare" }, { words: `Project ${run.project}`, href: `/projects/${encodeURIComponent(run.project)}` }, ...toolsOf(run.links)], ({ words }) => words,
    ({ words, id, how = "", href = `/runs/${encodeURIComponent(id)}${how}` }) => make("a", { href, rel: /^https?:/.test(href) ? "noreferrer" : null }, make("bdi", {}, words)));
}

// When a running run made its last step, in words, if that is long ago for it.
function idleSince({ state, last_step_time, latest }) {
  const seconds = state === "running" && last_step_time ? (Date.now() - Date.parse(last_step_time)) / 1000 : 0;
  return seconds > Math.max(MIN_IDLE_SECONDS, IDLE_STEPS * (latest?.step_seconds ?? 0)) ? ago(last_step_time) : "";
}

// A run id that returns more than an hour after the end of its run gets a successor.
function neighbours({ continues, continued_by }) {
  return [
    { words: "Previous run of this id", id: continues },
    { words: "Next run of this id", id: continued_by },
  ].filter(({ id }) => id);
}

function numbers(run) {
  const latest = run.latest ?? {};
  const counters = run.counters ?? {};
  const attempts = (counters.applied ?? 0) + (counters.skipped ?? 0);
  const unknown = isImported(run) ? "not in the history" : null; // what an imported history does not say is no zero
  return [
    { name: "Step", value: integer(run.last_step), under: run.last_step_time, since: true, also: attempt(run) },
    loss(run, latest),
    { name: "Loss scale", ...scaleOf(latest, unknown, run.last_step), bad: latest.scale < 1 },
    { name: "Gradient norm", value: short(latest.grad_norm), ...norm(run, latest, counters) },
    unknown && !attempts ? { name: "Skipped steps", value: "–", under: unknown } : { name: "Skipped steps", value: integer(counters.skipped ?? 0), under: attempts ? `${share(counters.skipped ?? 0, attempts)} of ${integer(attempts)}` : "", bad: isMany(counters.skipped, attempts) },
    { name: "Non-finite steps", value: integer(counters.nonfinite_steps ?? 0), bad: isMany(counters.nonfinite_steps, counters.steps) },
    { name: "Step time", value: seconds(latest.step_seconds), under: overhead(counters) },
    ...cost(run),
  ];
}

function scaleOf({ scale }, unknown, last) {
  if (scale !== undefined) return { value: scaleLong(scale) };
  if (last === null) return { value: "–" };
  return unknown ? { value: "–", under: unknown } : { value: "no scaler" };
}

// The run was made of a history of another tool; nothing watched it.
function isImported({ environment }) {
  return Boolean(environment?.imported_from);
}

// Absent without a price of the device.
function cost({ cost_dollars: all, replaced_steps: steps, replaced_cost_dollars: repeated, cost_per_epoch_dollars: epoch }) {
  if (all === null || all === undefined) return [];
  const parts = [...(epoch ? [`${dollars(epoch)} per epoch`] : []), ...(steps ? [`${integer(steps)} steps repeated: ${dollars(repeated)}`] : [])];
  return [{ name: "Cost", value: dollars(all), under: parts.join(", ") }];
}

// The first of several losses; below are its name, unless it is `loss`, and the others, unless they are the same number.
function loss(run, latest) {
  const names = [...(latest.loss === undefined ? [] : ["loss"]), ...severalLosses(run)];
  const [first, ...others] = names;
  const different = others.filter((name) => latest[name] !== latest[first]);
  const shown = different.slice(0, 2).map((name) => `${name} ${short(latest[name])}`);
  const more = different.length > 2 ? [`${integer(different.length - 2)} more`] : [];
  const validation = latest.val_loss === undefined ? [] : [`validation ${short(latest.val_loss)}`];
  const under = [...(first === undefined || first === "loss" ? [] : [first]), ...shown, ...more, ...stale(run, latest.loss_step), ...validation].join(", ");
  return { name: "Loss", value: short(latest[first ?? "loss"]), under: visible(under), bad: [...names, "val_loss"].some((name) => typeof latest[name] === "string") };
}

// Readings may be older than the newest step; their step and number are shown. NaN is no alarm after a skipped step from
// which the scaler has recovered.
function norm(run, { grad_norm, grad_norm_step, loss }, { skipped, steps, nonfinite_steps, consecutive_skipped, grad_norms_read }) {
  const some = grad_norms_read > 0 && grad_norms_read < steps ? [`measured in ${integer(grad_norms_read)} of ${integer(steps)} steps`] : [];
  const read = [...stale(run, grad_norm_step), ...some].join(", ");
  if (typeof grad_norm !== "string") return { under: read };
  const over = skipped > 0 && skipped === nonfinite_steps && consecutive_skipped === 0 && typeof loss !== "string";
  return over ? { under: "last measured at a skipped step" } : { bad: true, under: read };
}

function stale({ last_step }, step) {
  return step === undefined || step >= last_step ? [] : [`last measured at step ${integer(step)}`];
}

// The figure is the step of the run; the step of the newest attempt is below.
function attempt({ lives = [], last_step }) {
  const newest = lives.at(-1);
  return lives.length > 1 ? `attempt ${newest.number}, step ${integer(last_step - newest.step_offset)}` : "";
}

function figure({ name, value, under, since, bad, also }) {
  return make("div", { class: bad ? "bad" : "" }, make("dt", {}, name), make("dd", {}, value,
    under ? make("span", { class: "under", ...(since ? { "data-since": under, title: moment(under) } : {}) }, since ? ago(under) : under) : null, also ? make("span", { class: "under" }, also) : null));
}

function seconds(value) {
  if (typeof value !== "number") return "–";
  return value < 1 ? `${short(value * 1000, 3)} ms` : `${short(value, 3)} s`;
}

function overhead({ overhead_seconds, step_seconds }) {
  return step_seconds > 0 ? `${share(overhead_seconds, step_seconds)} of it in Ammeter` : "";
}

function factsOf(run) {
  const hasTimes = !run.environment?.imported_times;
  const lasted = run.started ? (Date.parse(run.ended ?? run.last_step_time ?? run.started) - Date.parse(run.started)) / 1000 : 0;
  return [
    run.project,
    isImported(run) ? `imported from ${run.environment.imported_from}: ${run.environment.imported_source}` : null,
    run.precision,
    run.device_model,
    run.torch_version ? `torch ${run.torch_version}` : null,
    run.world_size > 1 ? `${run.ranks_reporting} of ${run.world_size} ranks reporting` : null,
    hasTimes && run.started ? `started ${moment(run.started)}` : null,
    hasTimes && run.ended ? `${run.state} ${moment(run.ended)}` : null,
    hasTimes && lasted > 1 ? span(lasted) : null,
  ].filter(Boolean);
}

// The end of the page: lost records, settings and tags of the run.
export function showDetails(place, run) {
  const { config, tags, lost, id, command } = run;
  updateChildren(place, [{ config, tags, lost, id, command }], () => "details", details);
}

function details({ config, tags, lost, id, command }) {
  const gone = Object.entries(lost ?? {});
  return make("div", {},
    gone.length ? make("div", { class: "note" }, make("h2", {}, "Lost records"),
      make("ul", {}, gone.map(([reason, { steps, events }]) => make("li", {}, `${reason}: ${plural(steps, "step")}, ${plural(events, "event")}`)))) : null,
    make("details", {}, make("summary", {}, "Settings of the run"),
      pairs([["id", id], ...(command ? [["command", command]] : []), ...settings(config), ...Object.entries(tags ?? {})])),
  );
}

// Nested settings have names such as framework.learning_rate, as in comparisons.
function settings(config, within = "") {
  return Object.entries(config ?? {}).flatMap(([name, value]) =>
    value && typeof value === "object" && !Array.isArray(value) ? settings(value, `${within}${name}.`) : [[within + name, value]]);
}

export function pairs(entries) {
  const list = make("dl", { class: "pairs" });
  replace(list, entries.map(([name, value]) => make("div", {}, make("dt", {}, make("bdi", {}, name)), make("dd", {}, make("bdi", {}, plain(value))))));
  return list;
}
