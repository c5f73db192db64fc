// Two runs side by side, at the steps that both have: what one did against the other, and in what they differ.

import { get } from "./api.js";
import { keep, make, replace, visible } from "./dom.js";
import { poll } from "./live.js";
import { breaksOf, Plot } from "./plot.js";
import { number, plain, scale, short, whole } from "./words.js";

const POINTS = 2000;
const CHARTS = [
  { title: "Loss", name: "loss", say: short },
  { title: "Validation loss", name: "val_loss", say: short },
  { title: "Gradient norm", name: "grad_norm", say: short, log: 10 },
  { title: "Loss scale", name: "scale", say: scale, log: 2 },
  { title: "Step time", name: "step_seconds", say: (value) => `${short(value)} s` },
  { title: "Device memory", name: "device_allocated_bytes", say: (value) => `${short(number(value) / 2 ** 30)} GiB` },
].map((chart) => ({ ...chart, empty: "Not measured in both runs at the same step." }));

const place = document.getElementById("compare");
const charts = document.getElementById("charts");
const { run, baseline } = place.dataset;
const path = (id) => `/runs/${encodeURIComponent(id)}`;
let between = {};
let plots = null;
let shown = "";

poll(async () => {
  try {
    await (baseline ? compare() : choose());
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    replace(place, make("div", { class: "empty" }, make("h1", {}, "There is no such run"), make("p", {}, problem.message), make("p", {}, make("a", { href: "/" }, "All runs"))));
  }
  place.removeAttribute("aria-busy");
  return baseline ? 4000 : 10000;
}, 4000);

async function compare() {
  const names = CHARTS.map((chart) => chart.name).join();
  const told = await get(`${path(run)}/compare/${encodeURIComponent(baseline)}`, { names, points: POINTS, ...between });
  const now = JSON.stringify([told, between]);
  if (now === shown) return;
  shown = now;
  showHead(told);
  keep(document.getElementById("findings"), told.findings, (finding) => finding.verdict, showFinding);
  showCharts(told);
  showDifferences(document.getElementById("differences"), told);
}

function named({ id, name }) {
  return name || id.slice(0, 8);
}

function showHead({ run: mine, baseline: theirs, numbers }) {
  document.title = visible(`${named(mine)} against ${named(theirs)} · Ammeter`);
  const link = (each) => make("a", { href: path(each.id) }, make("bdi", {}, named(each)));
  const forbidden = numbers.not_compared;
  const validations = numbers.metrics.map(({ name, better, step, delta }) =>
    ({ name: metricName(name), value: percent(delta, better), under: `at step ${whole(step)}${better === "higher" ? "; higher is better" : ""}` }));
  const figures = [
    { name: "Speed", value: times(numbers.speedup), under: forbidden.speed ?? (numbers.per ? `per ${numbers.per}: ${short(numbers.seconds)} s, not ${short(numbers.baseline_seconds)} s` : "") },
    { name: "Memory", value: times(numbers.memory_ratio), under: forbidden.memory ?? "its peak" },
    ...(validations.length ? validations : [{ name: metricName("val_loss"), value: "–", under: forbidden.validation ?? "" }]),
    { name: "First other loss", value: numbers.first_other_loss === null ? "–" : `step ${whole(numbers.first_other_loss)}` },
  ];
  replace(document.getElementById("head"),
    make("div", { class: "title" }, make("h1", {}, link(mine), " against ", link(theirs)), make("a", { href: `${path(mine.id)}/compare` }, "Another baseline")),
    make("dl", { class: "figures" }, figures.map(({ name, value, under }) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value, under ? make("span", { class: "under" }, under) : null)))),
    make("p", { class: "facts" }, [mine, theirs].map((each) => visible(`${named(each)}: ${each.precision ?? "precision unknown"}`)).join("  ·  ")));
}

function times(ratio) {
  return ratio === null ? "–" : `${short(ratio, 3)} times`;
}

// delta: by which share the run is worse. Of what is better when it is higher, worse is less.
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
    make("p", { class: "cause" }, cause), make("p", { class: "fix" }, make("strong", {}, "Do this"), fix),
    make("footer", {}, make("a", { href: runbook }, "Runbook")));
}

function showCharts({ run: mine, baseline: theirs, series, numbers }) {
  const zoom = (first, last) => narrow({ from: first, to: last });
  const declared = numbers.metrics.filter(({ name }) => CHARTS.every((chart) => chart.name !== name))
    .map(({ name, better }) => ({ title: `${visible(name)}, ${better} is better`, name, say: short, empty: CHARTS[0].empty }));
  plots ??= [...CHARTS, ...declared].map((chart) => new Plot(charts, chart, { zoom, all: () => narrow({}) }));
  const range = between.from === undefined ? null : [between.from, between.to];
  for (const plot of plots) {
    const { steps, ...values } = series.find((each) => each.name === plot.chart.name) ?? { steps: [], run: [], baseline: [] };
    const lines = [["run", mine], ["baseline", theirs]].map(([side, each], tone) =>
      ({ name: side, stream: "", word: visible(named(each)), tone, steps, values: values[side].map(number), breaks: plot.chart.name === "val_loss" ? [] : breaksOf(steps) }));
    plot.draw(lines, { skipped: [], incidents: [], boundaries: [] }, range);
  }
  const again = make("button", { id: "all-steps", onclick: () => narrow({}) }, "Show all steps");
  document.getElementById("head").append(range ? make("p", { class: "filters" }, `Steps ${whole(range[0])} to ${whole(range[1])} `, again) : "");
}

function narrow(steps) {
  between = steps.from === undefined ? {} : { from: Math.max(0, steps.from), to: Math.max(steps.from + 1, steps.to) };
  return compare();
}

function showDifferences(section, { differences, numbers }) {
  const cell = (value) => make("td", {}, make("bdi", {}, value === null ? "–" : plain(value)));
  replace(section, differences.length === 0 ? make("p", { class: "quiet" }, "Beside the precision no setting differs.") : [
    make("h2", {}, "Settings that differ"),
    make("p", { class: "quiet" }, Object.keys(numbers.not_compared).length ? `So these two are not compared in ${Object.keys(numbers.not_compared).join(", ")}.` : "They are named; none of them forbids a comparison."),
    make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ["Setting", "This run", "Baseline", "Forbids to compare"].map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, differences.map((each) => make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, each.key)), cell(each.run), cell(each.baseline), make("td", {}, each.forbids.join(", ") || "nothing"))))))]);
}

// Without a baseline: the runs of the same project, newest first.
async function choose() {
  const mine = await get(path(run));
  const { items } = await get("/runs", { project: mine.project, page_size: 100 });
  const others = items.filter(({ id }) => id !== run);
  document.title = visible(`Compare ${named(mine)} · Ammeter`);
  replace(document.getElementById("head"),
    make("h1", {}, "Compare ", make("bdi", {}, named(mine)), " with"),
    others.length ? make("ul", { class: "alarms choice" }, others.map((each) => make("li", {},
      make("a", { href: `${path(run)}/compare/${encodeURIComponent(each.id)}` }, make("bdi", {}, named(each))),
      make("span", { class: "quiet" }, ` ${[each.precision, each.state, `step ${whole(each.last_step)}`].filter(Boolean).join(" · ")}`)))) : make("p", { class: "empty" }, "There is no other run in this project yet."));
}
