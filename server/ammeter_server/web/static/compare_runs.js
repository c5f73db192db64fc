// Several runs side by side: the baseline first, curves over common steps, the step where the losses part, and settings
// that differ.

import { get } from "./api.js";
import { CHARTS as COMMON } from "./comparison.js";
import { Cursor, fitted } from "./cursor.js";
import { make, replace, visible } from "./dom.js";
import { breaksOf } from "./gaps.js";
import { poll } from "./live.js";
import { Plot } from "./plot.js";
import { integer, number, plain, short } from "./words.js";

const POINTS = 1000;
const MAX_RUNS = 8;
const PART = 0.02;
const PART_SMOOTHING = 0.9;
const CHARTS = COMMON.map((chart) => ({ ...chart, empty: "Not measured in these runs at the same steps." }));

const place = document.getElementById("compare-runs");
const charts = document.getElementById("charts");
const path = (id) => `/runs/${encodeURIComponent(id)}`;
const ids = [...new Set((new URLSearchParams(location.search).get("runs") ?? "").split(",").filter(Boolean))];
const named = ({ id, name }) => visible(name || id.slice(0, 8));
const cursor = new Cursor();
let plots = null;
let smoothing = 0;
let range = null;
let end = Infinity; // the last step that any of them has
let known = null;

poll(async () => {
  if (ids.length < 2 || ids.length > MAX_RUNS) replace(place, problem("Select two to eight runs", "Select them in the list of runs, and compare them from there."));
  else await load();
  place.removeAttribute("aria-busy");
  return known?.runs.some(({ state }) => state === "running") ? 5000 : 30_000;
}, 5000);

function problem(title, text) {
  return make("div", { class: "empty" }, make("h1", {}, title), make("p", {}, text), make("p", {}, make("a", { href: "/" }, "All runs")));
}

async function load() {
  try {
    const runs = await Promise.all(ids.map((id) => get(path(id))));
    const baseline = runs.find((run) => run.precision === "float32") ?? runs[0];
    const others = runs.filter((run) => run !== baseline);
    const names = CHARTS.map(({ name }) => name).join();
    const pairs = await Promise.all(others.map((run) => get(`${path(run.id)}/compare/${encodeURIComponent(baseline.id)}`, { names, points: POINTS, ...(range ? { from: range[0], to: range[1] } : {}) })));
    const scales = await Promise.all([baseline, ...others].map(scaleOf));
    known = { runs, baseline, others, pairs, scales };
  } catch (failure) {
    if (failure.status !== 404) throw failure;
    known = null;
    return replace(place, problem("Run not found", "One of the runs was deleted, or its first record has not arrived yet."));
  }
  show();
}

// A baseline without a loss scale has no step in common: each run has its own steps here.
async function scaleOf({ id }) {
  const { items, axes } = await get(`${path(id)}/series`, { names: "scale", points: POINTS, ...(range ? { from: range[0], to: range[1] } : {}) });
  return { steps: items.flatMap(({ axis }) => axes[axis].steps), values: items.flatMap(({ values }) => values) };
}

function show() {
  document.title = visible(`${integer(ids.length)} runs against ${named(known.baseline)} · Ammeter`);
  showHead();
  showCharts();
  showDifferences();
}

const curve = (pair, name) => pair.series.find((series) => series.name === name) ?? { steps: [], run: [], baseline: [] };

function showHead() {
  const { baseline, others, pairs } = known;
  const row = (run, cells) => make("tr", {}, make("th", { scope: "row" }, make("a", { href: path(run.id) }, make("bdi", {}, named(run)))), make("td", {}, run.precision ?? "–"), make("td", {}, run.state), cells.map((cell) => make("td", { class: "num" }, cell)));
  const head = (name, index) => make("th", { scope: "col", class: index > 2 ? "num" : "" }, name);
  replace(document.getElementById("head"),
    make("div", { class: "title" }, make("h1", {}, "Runs against ", make("bdi", {}, named(baseline))), make("p", { class: "filters" }, smoother(), range ? make("button", { id: "all-steps", onclick: () => narrow(null) }, `Show all steps, not only ${integer(range[0])} to ${integer(range[1])}`) : null)),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Results" }, make("table", { class: "results" },
      make("thead", {}, make("tr", {}, ["Run", "Precision", "State", "Losses part at step", "First different loss", "Speed", "Memory", "Validation loss"].map(head))),
      make("tbody", {}, row(baseline, ["baseline", "–", "–", "–", "–"]), others.map((run, index) => row(run, results(pairs[index])))))),
    make("p", { class: "quiet" }, `Losses part at the first shown step from which the smoothed losses differ by more than ${integer(100 * PART)} % at every later step. The baseline is the first run in float32, else the first one.`));
}

function results(pair) {
  const { numbers } = pair;
  const times = (ratio, why) => (ratio === null || ratio === undefined ? make("span", { class: "quiet", title: why ?? "" }, "–") : `${short(ratio, 3)} ×`);
  const step = partingStep(curve(pair, "loss"));
  const validation = numbers.metrics.find(({ name }) => name === "val_loss");
  const worse = validation ? number(validation.delta) : null;
  return [
    step === null ? "they do not" : step === undefined ? "–" : make("button", { class: "link", title: "Show the steps around it", onclick: () => narrow([Math.max(0, step - 50), step + 50]) }, integer(step)),
    numbers.first_other_loss === null ? "–" : integer(numbers.first_other_loss),
    times(numbers.speedup, numbers.not_compared.speed), times(numbers.memory_ratio, numbers.not_compared.memory),
    worse === null ? "–" : `${worse > 0 ? "+" : ""}${short(100 * worse, 3)} %`,
  ];
}

// undefined: no common losses; null: the losses stay together until the end.
function partingStep({ steps, run, baseline }) {
  if (!steps.length) return undefined;
  const [own, other] = [run, baseline].map((values) => smooth(values.map(number), PART_SMOOTHING));
  const apart = steps.map((_, index) => !(Math.abs(own[index] - other[index]) <= PART * Math.abs(other[index])));
  let first = steps.length;
  while (first > 0 && apart[first - 1]) first--;
  return first === steps.length ? null : steps[first];
}

// An exponential mean without the bias of its start. A value that is not finite stays, and is left out of the mean.
export function smooth(values, weight) {
  if (!weight) return values;
  let mean = 0, share = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    mean = weight * mean + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return Math.fround(mean / share); // as exact as the values; an axis over their last bits would have no end
  });
}

function smoother() {
  const input = make("input", { id: "smoothing", type: "range", min: 0, max: 0.99, step: 0.01, value: smoothing, oninput: () => {
    smoothing = Number(input.value);
    output.textContent = smoothing.toFixed(2);
    showCharts();
  } });
  const output = make("output", { for: "smoothing" }, smoothing.toFixed(2));
  return make("label", { class: "smoothing" }, "Smoothing ", input, " ", output);
}

function showCharts() {
  const { baseline, others, pairs, scales } = known;
  plots ??= CHARTS.map((chart) => new Plot(charts, chart, { zoom: (first, last) => narrow(fitted([first, last], end)), all: () => narrow(null), cursor }));
  const smoothed = (values, { name }) => (name === "scale" ? values.map(number) : smooth(values.map(number), smoothing));
  if (!range) end = Math.max(1, ...pairs.flatMap(({ series }) => series.map(({ steps }) => steps.at(-1) ?? 0)), ...scales.map(({ steps }) => steps.at(-1) ?? 0));
  for (const plot of plots) {
    const curves = pairs.map((pair) => curve(pair, plot.chart.name));
    const longest = curves.reduce((most, other) => (other.steps.length > most.steps.length ? other : most), curves[0]);
    const gaps = (steps) => (plot.chart.name === "val_loss" ? [] : breaksOf(steps));
    const own = [baseline, ...others].map((run, tone) => ({ run, tone, ...scales[tone] })).filter(({ steps }) => steps.length);
    const lines = plot.chart.name === "scale" ? own : [{ run: baseline, tone: 0, steps: longest.steps, values: longest.baseline }, ...others.map((run, index) => ({ run, tone: index + 1, steps: curves[index].steps, values: curves[index].run }))];
    plot.draw(lines.map(({ run, tone, steps, values }) => ({ name: run.id, stream: "", word: named(run), tone, steps, values: smoothed(values, plot.chart), breaks: gaps(steps) })), { skipped: [], incidents: [], boundaries: [] }, range);
  }
}

function narrow(steps) {
  range = steps;
  return load();
}

function showDifferences() {
  const { baseline, others, pairs } = known;
  const keys = [...new Set(pairs.flatMap(({ differences }) => differences.map(({ key }) => key)))].sort();
  const section = document.getElementById("differences");
  if (!keys.length) return replace(section, make("h2", {}, "Settings that differ"), make("p", { class: "quiet" }, "None differs, except the precision."));
  const of = (pair, key) => pair.differences.find((setting) => setting.key === key);
  const cell = (value) => make("td", {}, make("bdi", {}, value === null || value === undefined ? "–" : plain(value)));
  replace(section, make("h2", {}, "Settings that differ"),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "List of settings" }, make("table", {},
      make("thead", {}, make("tr", {}, ["Setting", ...[baseline, ...others].map(named), "Prevents comparing"].map((name) => make("th", { scope: "col" }, make("bdi", {}, name))))),
      make("tbody", {}, keys.map((key) => {
        const settings = pairs.map((pair) => of(pair, key));
        const forbids = [...new Set(settings.flatMap((setting) => setting?.forbids ?? []))];
        return make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, key)), cell(settings.find(Boolean).baseline), settings.map((setting) => (setting ? cell(setting.run) : make("td", { class: "quiet" }, "same"))), make("td", {}, forbids.join(", ") || "nothing"));
      })))));
}
