// One chart over steps: uPlot in the page's colours, with marks for non-finite values, skipped steps and the first steps of
// incidents.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { make } from "./dom.js";
import { colours, dark } from "./shades.js";
import { integer, plural, raised, short } from "./words.js";

const HEIGHT_PX = 190;
const MAX_DOTS = 60;
const GAP_FACTOR = 5;
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];

// Gaps of a line without measurements: [last step before, first step after] of each gap. complete: the points are all
// measurements; in a selection only a distance far above the mean is a gap, because neighbours are selected within four
// times their mean distance. before: the last step of the line that these steps continue.
export function breaksOf(steps, complete = false, before = undefined) {
  const all = before === undefined ? steps : [before, ...steps];
  const mean = (steps.at(-1) - steps[0]) / Math.max(1, steps.length - 1);
  const least = complete ? 1 : Math.max(1, GAP_FACTOR * mean);
  const breaks = [];
  for (let index = 1; index < all.length; index++) {
    if (all[index] - all[index - 1] > (index === 1 && before !== undefined ? 1 : least)) breaks.push([all[index - 1], all[index]]);
  }
  return breaks;
}

export class Plot {
  // actions: zoom(first, last) and all(), which select the steps of every chart.
  constructor(place, chart, actions) {
    this.chart = chart;
    this.actions = actions;
    this.range = null;
    this.caption = make("span", { class: "quiet" });
    this.canvas = make("div", { class: "plot", role: "img" });
    this.emptyNote = make("p", { class: "empty small" }, chart.empty);
    this.figure = make("figure", {},
      make("figcaption", {}, make("h2", {}, chart.title, chart.tensor ? [" ", make("bdi", { class: "code" }, chart.tensor)] : null), this.caption,
        chart.close ? make("button", { onclick: chart.close }, "Close") : null),
      this.canvas, this.emptyNote);
    place.append(this.figure);
    this.marks = { skipped: [], incidents: [], nonfinite: [], boundaries: [] };
    this.resizeObserver = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.resizeObserver.observe(this.canvas);
    this.onSchemeChange = () => this.rebuild();
    dark.addEventListener("change", this.onSchemeChange);
  }

  remove() {
    this.plot?.destroy();
    this.resizeObserver.disconnect();
    dark.removeEventListener("change", this.onSchemeChange);
    this.figure.remove();
  }

  draw(lines, marks, range) {
    this.lines = lines;
    this.range = range;
    const nonfinite = lines.flatMap((line) => line.steps.filter((_, index) => !Number.isFinite(line.values[index])));
    this.marks = { ...marks, nonfinite };
    const empty = lines.every((line) => line.steps.length === 0);
    this.emptyNote.hidden = !empty;
    this.canvas.hidden = empty;
    this.showCaption(lines.filter((line) => !line.replaced), nonfinite, marks.skipped, marks.boundaries);
    if (empty) return;
    const shape = lines.map((line) => line.name + line.stream).join();
    if (!this.plot || this.shape !== shape) this.begin(shape);
    else this.plot.setData(this.table());
  }

  showCaption(lines, nonfinite, skipped, boundaries) {
    const last = lines.filter((line) => line.steps.length).map((line) => `${lines.length > 1 ? line.word + " " : ""}${this.chart.format(line.values.at(-1))}`);
    const words = [...new Set(last), skipped.length ? `${plural(skipped.length, "skipped step")} marked` : "", nonfinite.length ? `${plural(nonfinite.length, "non-finite point")} marked` : "", boundaries.length ? boundaries.map(({ step, words }) => `${words} from step ${integer(step)}`).join(", ") : ""];
    const text = words.filter(Boolean).join("  ·  ");
    if (this.caption.textContent === text) return;
    this.caption.textContent = text;
    this.canvas.setAttribute("aria-label", `${this.chart.title} over steps: ${text}`);
  }

  begin(shape) {
    this.shape = shape;
    this.rebuild();
  }

  rebuild() {
    if (!this.lines?.length || this.canvas.hidden) return;
    this.plot?.destroy();
    this.plot = new uPlot(this.options(), this.table(), this.canvas);
  }

  table() {
    const value = (x) => (Number.isFinite(x) && (!this.chart.log || x > 0) ? x : null);
    return uPlot.join(this.lines.map((line) => [line.steps, line.values.map(value)]));
  }

  size() {
    return { width: Math.max(this.canvas.clientWidth, 240), height: HEIGHT_PX };
  }

  options() {
    const ink = colours();
    const axis = { stroke: ink.quiet, grid: { stroke: ink.line, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const { chart } = this;
    return {
      ...this.size(),
      padding: [18, null, null, null],
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      legend: { show: true, live: true },
      scales: { x: { time: false, range: (_, low, high) => this.range ?? [low, high] }, y: chart.log ? { distr: 3, log: chart.log, range: powers(chart.log) } : { range: roomy } },
      axes: [
        { ...axis, incrs: STEPS, values: (_, splits) => splits.map((step) => (Number.isInteger(step) ? integer(step) : "")), size: 28 },
        { ...axis, size: 52, ...(chart.log ? ticks(chart) : { values: (_, splits) => splits.map((y) => short(y, 3)) }) },
      ],
      series: [{ label: "step", value: (_, step) => (step === null ? "–" : integer(step)) }, ...this.lines.map((_, index) => this.series(index, ink))],
      hooks: {
        draw: [(plot) => drawMarks(plot, this.marks, ink)],
        setSelect: [(plot) => this.chosen(plot)],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => this.actions.all())],
      },
    };
  }

  chosen(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const [first, last] = [left, left + width].map((x) => Math.round(plot.posToVal(x, "x")));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.actions.zoom(first, Math.max(last, first + 1));
  }

  // Values that change with the line are read when it is drawn; a plot that is replaced may draw once more without it.
  series(index, ink) {
    const line = this.lines[index];
    const now = () => this.lines[index] ?? { steps: [], breaks: [] };
    const few = () => now().steps.length < MAX_DOTS;
    const toPixels = (plot) => (ends) => ends.map((step) => Math.round(plot.valToPos(step, "x", true)));
    return {
      label: line.replaced ? `${line.word}, replaced by a later attempt` : line.stream ? `${line.word}, ${line.stream.slice(0, 4)}` : line.word,
      stroke: line.replaced ? ink.quiet : ink.tones[line.tone % ink.tones.length],
      alpha: line.replaced ? 0.6 : 1,
      dash: DASHES[Math.floor(line.tone / ink.tones.length) % DASHES.length],
      width: line.steps.length > 1000 ? 1 : 1.5,
      gaps: (plot, _, __, ___, joined) => merged([...joined, ...now().breaks.map(toPixels(plot))]),
      points: { show: few, size: few() ? 5 : 3, filter: (plot) => (few() ? null : placesOf(plot.data, index, aloneIn(now()))) },
      value: (_, y) => (y === null || y === undefined ? "–" : this.chart.format(y)),
    };
  }
}

// Steps without a neighbour to connect to.
function aloneIn({ steps, breaks }) {
  const begins = new Set([steps[0], ...breaks.map(([, behind]) => behind)]);
  const ends = new Set([steps.at(-1), ...breaks.map(([before]) => before)]);
  return new Set([...begins].filter((step) => ends.has(step)));
}

function placesOf([steps, ...lines], index, selected) {
  const places = [];
  steps.forEach((step, place) => selected.has(step) && lines[index][place] != null && places.push(place));
  return places.length ? places : null;
}

// Joins overlapping ranges of pixels, in ascending order.
function merged(stretches) {
  const joined = [];
  for (const [from, to] of stretches.sort((a, b) => a[0] - b[0])) {
    if (joined.length && from < joined.at(-1)[1]) joined.at(-1)[1] = Math.max(joined.at(-1)[1], to);
    else joined.push([from, to]);
  }
  return joined;
}

const STEPS = [1, 2, 5].flatMap((unit) => Array.from({ length: 10 }, (_, power) => unit * 10 ** power)).sort((a, b) => a - b);

function powers(base) {
  const log = (x) => Math.log(x) / Math.log(base);
  return (_, low, high) => (low === null ? [1, base] : [base ** (Math.ceil(log(low) - 0.01) - 1), base ** (Math.floor(log(high) + 0.01) + 1)]);
}

function roomy(_, low, high) {
  if (low === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - room, high + room];
}

// At most six lines at integer powers of the base.
function ticks({ log }) {
  const exponents = (plot) => [plot.scales.y.min, plot.scales.y.max].map((y) => Math.round(Math.log(y) / Math.log(log)));
  return {
    splits: (plot) => {
      const [low, high] = exponents(plot);
      const every = 2 ** Math.ceil(Math.log2(Math.max(1, (high - low) / 5)));
      const first = Math.ceil(low / every) * every;
      return Array.from({ length: Math.floor((high - first) / every) + 1 }, (_, index) => log ** (first + index * every));
    },
    filter: (_, splits) => splits,
    values: (_, splits) => splits.map((y) => log + raised(Math.round(Math.log(y) / Math.log(log)))),
  };
}

// Skipped steps at the bottom, non-finite points at the top, attempts as dashed lines with their names below the top,
// incidents as lines with their names above the plot.
function drawMarks(plot, { skipped, nonfinite, incidents, boundaries }, ink) {
  const { ctx } = plot;
  const { left, top, width, height } = plot.bbox;
  const dot = devicePixelRatio;
  const shown = (step) => step >= plot.scales.x.min && step <= plot.scales.x.max;
  const at = (step) => Math.round(plot.valToPos(step, "x", true));
  ctx.save();
  ctx.fillStyle = ink.ticket;
  for (const step of skipped.filter(shown)) ctx.fillRect(at(step) - dot / 2, top + height - 9 * dot, 1.5 * dot, 9 * dot);
  ctx.fillStyle = ink.page;
  for (const step of nonfinite.filter(shown)) triangle(ctx, at(step), top + dot, 4 * dot);
  ctx.font = `${11 * dot}px system-ui, sans-serif`;
  for (const { step, words } of boundaries.filter((boundary) => shown(boundary.step))) {
    ctx.strokeStyle = ctx.fillStyle = ink.quiet;
    ctx.lineWidth = dot;
    ctx.setLineDash([3 * dot, 3 * dot]);
    ctx.beginPath();
    ctx.moveTo(at(step), top);
    ctx.lineTo(at(step), top + height);
    ctx.stroke();
    ctx.setLineDash([]);
    label(ctx, words, at(step), top + 11 * dot, [left, left + width], dot);
  }
  let free = [left, left + width];
  for (const { step, severity, title } of incidents.filter((incident) => shown(incident.step)).sort(bySeverity)) {
    ctx.fillStyle = ink[severity];
    ctx.fillRect(at(step) - dot / 2, top - 4 * dot, dot, height + 4 * dot);
    free = label(ctx, title, at(step), top - 6 * dot, free, dot);
  }
  ctx.restore();
}

function bySeverity(a, b) {
  return (a.severity > b.severity) - (a.severity < b.severity) || a.step - b.step;
}

// Writes the text beside x, cut to the available width, and returns the remaining width.
function label(ctx, text, x, y, [from, to], dot) {
  if (x < from || x > to) return [from, to];
  const toTheRight = to - x > x - from;
  const words = cut(ctx, text, (toTheRight ? to - x : x - from) - 6 * dot);
  if (!words) return [from, to];
  ctx.textAlign = toTheRight ? "left" : "right";
  ctx.textBaseline = "alphabetic";
  ctx.fillText(words, x, y);
  const used = ctx.measureText(words).width + 10 * dot;
  return toTheRight ? [x + used, to] : [from, x - used];
}

function cut(ctx, text, room) {
  for (let length = text.length; length > 6; length--) {
    const words = length === text.length ? text : text.slice(0, length).trimEnd() + "…";
    if (ctx.measureText(words).width <= room) return words;
  }
  return "";
}

function triangle(ctx, x, y, size) {
  ctx.beginPath();
  ctx.moveTo(x - size, y);
  ctx.lineTo(x + size, y);
  ctx.lineTo(x, y + 1.6 * size);
  ctx.fill();
}
