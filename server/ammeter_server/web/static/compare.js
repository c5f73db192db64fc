// Two runs side by side at their common steps: results and differing settings.

import { get, post, remove } from "./api.js";
import { CHARTS as COMMON } from "./comparison.js";
import { Cursor, fitted } from "./cursor.js";
import { withCode } from "./code.js";
import { make, replace, updateChildren, visible } from "./dom.js";
import { breaksOf } from "./gaps.js";
import { poll } from "./live.js";
import { Plot } from "./plot.js";
import { integer, number, plain, short } from "./words.js";

const POINTS = 2000;
const CHARTS = [
  ...COMMON,
  { title: "Device memory", name: "device_allocated_bytes", format: (value) => `${short(number(value) / 2 ** 30)} GiB` },
].map((chart) => ({ ...chart, empty: "Not measured in both runs at the same step." }));

const place = document.getElementById("compare");
const charts = document.getElementById("charts");
const { run, baseline } = place.dataset;
const path = (id) => `/runs/${encodeURIComponent(id)}`;
const cursor = new Cursor();
let stepRange = {};
let end = Infinity; // the last step that both runs have
let plots = null;
let shown = "";

poll(async () => {
  try {
    await (baseline ? compare() : choose());
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    replace(place, make("div", { class: "empty" }, make("h1", {}, "Run not found"), make("p", {}, "One of the two was deleted, or its first record has not arrived yet."), make("p", {}, make("a", { href: "/" }, "All runs"))));
  }
  place.removeAttribute("aria-busy");
  return baseline ? 4000 : 10000;
}, 4000);

async function compare() {
  const names = CHARTS.map((chart) => chart.name).join();
  const comparison = await get(`${path(run)}/compare/${encodeURIComponent(baseline)}`, { names, points: POINTS, ...stepRange });
  const now = JSON.stringify([comparison, stepRange]);
  if (now === shown) return;
  shown = now;
  showHead(comparison);
  updateChildren(document.getElementById("findings"), comparison.findings, (finding) => finding.verdict, showFinding);
  showCharts(comparison);
  showDifferences(document.getElementById("differences"), comparison);
}

function named({ id, name }) {
  return name || id.slice(0, 8);
}

function showHead({ run: own, baseline: other, numbers }) {
  document.title = visible(`${named(own)} against ${named(other)} · Ammeter`);
  const link = (side) => make("a", { href: path(side.id) }, make("bdi", {}, named(side)));
  const forbidden = numbers.not_compared;
  const validations = numbers.metrics.map(({ name, better, step, delta }) =>
    ({ name: metricName(name), value: percent(delta, better), under: `at step ${integer(step)}${better === "higher" ? "; higher is better" : ""}` }));
  const figures = [
    { name: "Speed", value: times(numbers.speedup), under: forbidden.speed ?? (numbers.per ? `${short(numbers.seconds)} s per ${numbers.per}, baseline ${short(numbers.baseline_seconds)} s` : "") },
    { name: "Memory", value: times(numbers.memory_ratio), under: forbidden.memory ?? "peak" },
    ...(validations.length ? validations : [{ name: metricName("val_loss"), value: "–", under: forbidden.validation ?? "" }]),
    { name: "First different loss", value: numbers.first_other_loss === null ? "–" : `step ${integer(numbers.first_other_loss)}` },
  ];
  replace(document.getElementById("head"),
    make("div", { class: "title" }, make("h1", {}, link(own), " against ", link(other)), make("a", { href: `${path(own.id)}/compare` }, "Choose another baseline")),
    make("dl", { class: "figures" }, figures.map(({ name, value, under }) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value, under ? make("span", { class: "under" }, under) : null)))),
    make("p", { class: "facts" }, [own, other].map((side) => visible(`${named(side)}: ${side.precision ?? "precision unknown"}`)).join("  ·  ")));
}

function times(ratio) {
  return ratio === null ? "–" : `${short(ratio, 3)} ×`;
}

// delta: share by which the run is worse. If higher is better, a worse value is lower.
function percent(delta, better) {
  const worse = number(delta);
  if (worse === null) return "–";
  const x = better === "higher" ? -worse : worse;
  return `${x > 0 ? "+" : ""}${short(100 * x, 3)} %`;
}

function metricName(name) {
  return name === "val_loss" ? "Validation loss" : visible(name);
}

function showFinding({ verdict, severity, title, cause, fix, runbook }) {
  return make("article", { class: `incident ${severity}` },
    make("header", {}, make("span", { class: "severity" }, severity), make("h2", {}, title || verdict)),
    make("p", { class: "cause" }, withCode(cause)), make("p", { class: "fix" }, make("strong", {}, "Fix"), withCode(fix)),
    make("footer", {}, make("a", { href: runbook }, "Runbook")));
}

function showCharts({ run: own, baseline: other, series, numbers }) {
  const zoom = (first, last) => {
    const steps = fitted([first, last], end);
    return narrow(steps ? { from: steps[0], to: steps[1] } : {});
  };
  const declared = numbers.metrics.filter(({ name }) => CHARTS.every((chart) => chart.name !== name))
    .map(({ name, better }) => ({ title: `${visible(name)}, ${better} is better`, name, format: short, empty: CHARTS[0].empty }));
  plots ??= [...CHARTS, ...declared].map((chart) => new Plot(charts, chart, { zoom, all: () => narrow({}), cursor }));
  const range = stepRange.from === undefined ? null : [stepRange.from, stepRange.to];
  if (!range) end = Math.max(1, ...series.map(({ steps }) => steps.at(-1) ?? 0));
  for (const plot of plots) {
    const { steps, ...values } = series.find((curve) => curve.name === plot.chart.name) ?? { steps: [], run: [], baseline: [] };
    const lines = [["run", own], ["baseline", other]].map(([side, summary], tone) =>
      ({ name: side, stream: "", word: visible(named(summary)), tone, steps, values: values[side].map(number), breaks: plot.chart.name === "val_loss" ? [] : breaksOf(steps) }));
    plot.draw(lines, { skipped: [], incidents: [], boundaries: [] }, range);
  }
  const showAll = make("button", { id: "all-steps", onclick: () => narrow({}) }, "Show all steps");
  document.getElementById("head").append(range ? make("p", { class: "filters" }, `Steps ${integer(range[0])} to ${integer(range[1])} `, showAll) : "");
}

function narrow(steps) {
  stepRange = steps;
  return compare();
}

function showDifferences(section, { differences, numbers }) {
  const cell = (value) => make("td", {}, make("bdi", {}, value === null ? "–" : plain(value)));
  replace(section, differences.length === 0 ? make("p", { class: "quiet" }, "No setting differs except the precision.") : [
    make("h2", {}, "Settings that differ"),
    make("p", { class: "quiet" }, Object.keys(numbers.not_compared).length ? `Because of them, ${Object.keys(numbers.not_compared).join(", ")} is not compared.` : "None of them prevents a comparison."),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "List of settings" }, make("table", {},
      make("thead", {}, make("tr", {}, ["Setting", "This run", "Baseline", "Prevents comparing"].map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, differences.map((setting) => make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, setting.key)), cell(setting.run), cell(setting.baseline), make("td", {}, setting.forbids.join(", ") || "nothing"))))))]);
}

// Without a baseline: lists the runs of the same project, pinned ones first, then newest first.
async function choose() {
  const own = await get(path(run));
  const [{ items }, pins] = await Promise.all([get("/runs", { project: own.project, page_size: 100 }), get("/baselines", { project: own.project })]);
  const pinned = (id) => pins.items.filter((pin) => pin.run === id);
  const candidates = items.filter(({ id }) => id !== run).sort((a, b) => pinned(b.id).length - pinned(a.id).length);
  document.title = visible(`Compare ${named(own)} · Ammeter`);
  replace(document.getElementById("head"),
    make("h1", {}, "Compare ", make("a", { href: path(run) }, make("bdi", {}, named(own))), " with"),
    candidates.length ? make("ul", { class: "alarms choice" }, candidates.map((candidate) => make("li", {},
      make("a", { href: `${path(run)}/compare/${encodeURIComponent(candidate.id)}` }, make("bdi", {}, named(candidate))),
      make("span", { class: "quiet" }, ` ${[candidate.precision, candidate.state, `step ${integer(candidate.last_step)}`, ...pinned(candidate.id).map(pinWords)].filter(Boolean).join(" · ")}`)))) : make("p", { class: "empty" }, "This project has no other runs yet."),
    make("h2", {}, "Pin this run as a baseline"),
    make("p", { class: "filters pins" }, pinButton(own, "project", pinned(run)), own.name ? pinButton(own, "name", pinned(run)) : null));
}

function pinWords({ name, project }) {
  return visible(name === null ? `pinned baseline of project ${project}` : `pinned baseline of runs named ${name}`);
}

function pinButton(own, of, pins) {
  const whose = of === "project" ? ["of project ", own.project] : ["of runs named ", own.name];
  const isPinned = pins.some(({ name }) => (name === null) === (of === "project"));
  const change = async (event) => {
    event.target.disabled = true;
    await (isPinned ? remove : post)(`${path(run)}/baseline`, { of });
    await choose();
  };
  return make("button", { id: `pin-${of}`, onclick: change }, isPinned ? "Unpin as baseline " : "Pin as baseline ", whose[0], make("bdi", {}, whose[1]));
}
