// One chart over steps: uPlot in the page's colours, with marks for non-finite values, skipped steps and the first steps of
// incidents.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { followFingers } from "./cursor.js";
import { make } from "./dom.js";
import { drawMarks } from "./plot_marks.js";
import { colours, dark } from "./shades.js";
import { integer, plural, raised, short } from "./words.js";

const HEIGHT_PX = 190;
const MAX_DOTS = 60;
const NEAR_PX = 5;
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];
const TONES_WITH_A_DASH = 4; // few enough to tell them apart without colours

export class Plot {
  // actions: zoom(first, last) and all(), which select the steps of every chart, and the cursor of all of them.
  constructor(place, chart, actions) {
    this.chart = chart;
    this.actions = actions;
    this.cursor = actions.cursor;
    this.range = this.preview = null;
    this.caption = make("span", { class: "quiet" });
    this.canvas = make("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart over steps", onkeydown: (event) => this.handleKey(event) });
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
    this.cursor.join(this.canvas, () => this.showCursor());
  }

  remove() {
    this.cursor.leave(this.canvas);
    this.plot?.destroy();
    this.resizeObserver.disconnect();
    dark.removeEventListener("change", this.onSchemeChange);
    this.figure.remove();
  }

  draw(lines, marks, range) {
    this.lines = lines;
    this.range = range;
    this.preview = null;
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
    this.canvas.setAttribute("aria-label", `${this.chart.title} over steps: ${text}. Left and right arrows move the cursor, plus and minus zoom, 0 shows all steps.`);
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
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, hover: { prox: NEAR_PX }, move: (plot, left, top) => [left < 0 ? left : atStep(plot, left), top] },
      legend: { show: true, live: true, markers: { dash: (_, index) => (index && dashOf(this.lines[index - 1]).length ? "dashed" : "solid") } },
      scales: { x: { time: false, range: (_, low, high) => this.preview ?? this.range ?? [low, high] }, y: chart.log ? { distr: 3, log: chart.log, range: powers(chart.log) } : { range: roomy } },
      axes: [
        { ...axis, incrs: STEPS, values: (_, splits) => splits.map((step) => (Number.isInteger(step) ? integer(step) : "")), size: 28 },
        { ...axis, size: 52, ...(chart.log ? ticks(chart) : { values: (_, splits) => splits.map((y) => short(y, 3)) }) },
      ],
      series: [{ label: "step", value: (_, step) => (step === null ? "–" : integer(step)) }, ...this.lines.map((_, index) => this.series(index, ink))],
      hooks: {
        draw: [(plot) => drawMarks(plot, this.marks, ink), () => this.showCursor()],
        setSelect: [(plot) => this.chosen(plot)],
        ready: [(plot) => this.listen(plot)],
      },
    };
  }

  listen(plot) {
    const { over } = plot;
    over.addEventListener("dblclick", () => this.actions.all());
    over.addEventListener("pointermove", ({ offsetX, pointerType }) => pointerType !== "touch" && this.point(offsetX));
    over.addEventListener("pointerleave", (event) => this.cursor.handleLeave(this.canvas, event));
    followFingers(over, {
      area: () => ({ left: 0, width: over.clientWidth }),
      range: () => this.steps(),
      point: (x) => this.point(x),
      preview: (...steps) => {
        this.preview = steps[0] === null ? null : steps;
        plot.setData(plot.data);
      },
      zoom: (first, last) => this.actions.zoom(first, last),
    });
  }

  point(x) {
    this.cursor.move(stepOf(this.plot, Math.min(Math.max(x, 0), this.plot.over.clientWidth)), this.canvas);
  }

  // The first and last step that are shown.
  steps() {
    const { min, max } = this.plot.scales.x;
    return [Math.round(min), Math.round(max)];
  }

  // The step of the cursor, if it is shown.
  step() {
    const [first, last] = this.steps();
    const { step } = this.cursor;
    return step !== null && step >= first && step <= last ? step : null;
  }

  // uPlot shows the values of the cursor's step, and "–" for a line without a reading next to it.
  showCursor() {
    if (!this.plot || this.canvas.hidden) return;
    const step = this.step();
    this.plot.setCursor(step === null ? { left: -10, top: -10 } : { left: this.plot.valToPos(step, "x"), top: 0 }, false);
  }

  handleKey(event) {
    if (!this.plot || this.canvas.hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    const [first, last] = this.steps();
    const pixel = Math.max(1, Math.round((last - first) / this.plot.over.clientWidth));
    const by = event.shiftKey ? 20 * pixel : pixel;
    const step = this.step() ?? last;
    const move = { ArrowLeft: step - by, ArrowRight: step + by, Home: first, End: last }[event.key];
    if (move !== undefined) this.moveByKey(Math.min(Math.max(move, first), last));
    else if (!this.cursor.zoomByKey(event, [first, last], this.actions)) return;
    event.preventDefault();
  }

  moveByKey(step) {
    this.cursor.move(step, this.canvas);
    this.showCursor();
    const { series, legend } = this.plot;
    const values = series.slice(1).map(({ label }, index) => `${label} ${legend.values[index + 1]?._ ?? "–"}`);
    this.cursor.announce(`Step ${integer(step)}, ${this.chart.title}: ${values.join(", ")}`);
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
      dash: dashOf(line),
      width: line.steps.length > 1000 ? 1 : 1.5,
      gaps: (plot, _, __, ___, joined) => merged([...joined, ...now().breaks.map(toPixels(plot))]),
      points: { show: few, size: few() ? 5 : 3, filter: (plot) => (few() ? null : placesOf(plot.data, index, aloneIn(now()))) },
      value: (_, y) => (y === null || y === undefined ? "–" : this.chart.format(y)),
    };
  }
}

function dashOf({ tone }) {
  return DASHES[Math.floor(tone / TONES_WITH_A_DASH) % DASHES.length];
}

function stepOf(plot, left) {
  return Math.round(plot.posToVal(left, "x"));
}

function atStep(plot, left) {
  const at = plot.valToPos(stepOf(plot, left), "x");
  return Number.isFinite(at) ? at : left;
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
