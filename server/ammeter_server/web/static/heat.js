// A heat map of one stat of every tensor over steps, in the order of the model. Stripes begin at the origin of a NaN.

import { boundariesOf } from "./charts.js";
import { make, replace, visible } from "./dom.js";
import { Fold } from "./fold.js";
import { Grid } from "./grid.js";
import { readMatrix } from "./matrix.js";
import { colours, dark, legend, linear, pixel, scaleOf, shades } from "./shades.js";
import { integer, plural, share, short } from "./words.js";

const ROW_HEIGHT = 16;
const MAX_TALL_ROWS = 12;

// counts: numbers of elements; with share, shares of them. lowest: a cell shows the smallest value of its steps.
const STATS = {
  "grad.norm": { words: "Gradient norm", unit: "L2, unscaled" },
  "grad.absmax": { words: "Largest gradient", unit: "finite, unscaled" },
  "grad.zeros": { words: "Zeros in the gradient", unit: "share of elements", share: true, counts: true },
  "grad.subnormals": { words: "Underflow in the gradient", unit: "share of elements below 2⁻¹⁴ while scaled, subnormal in float16", share: true, counts: true },
  "grad.nans": { words: "NaN in the gradient", unit: "share of elements", share: true, counts: true },
  "grad.infs": { words: "Inf in the gradient", unit: "share of elements", share: true, counts: true },
  "grad.fp16_grid": { words: "Gradient on float16's grid", unit: "share of small elements that are multiples of 2⁻²⁴", share: true },
  "grad.agreement": { words: "Gradient agreement", unit: "cosine between neighbouring readings", lowest: true, linear: true },
  "weight.norm": { words: "Weight norm", unit: "L2, of sampled elements" },
  "weight.nonfinite": { words: "Non-finite weights", unit: "of sampled elements", counts: true },
  "update.ratio": { words: "Update to weight", unit: "update norm over weight norm" },
  "update.lost": { words: "Lost updates", unit: "share of sampled elements that a step did not change", share: true },
};

export class Heat {
  constructor(place, run, charts) {
    this.run = run;
    this.charts = charts;
    this.stat = "grad.norm";
    this.incidents = [];
    this.fold = new Fold(place, "Tensors over steps", () => this.update());
    this.choice = make("select", { id: "heat-stat", "aria-label": "Statistic", onchange: () => this.choose(this.choice.value) },
      Object.entries(STATS).map(([stat, { words }]) => make("option", { value: stat }, words)));
    this.unit = make("span", { class: "quiet" });
    this.worst = make("span", { class: "worst" });
    this.emptyNote = make("p", { class: "empty small", hidden: true });
    this.picture = make("div", {});
    this.legend = make("div", {});
    this.fold.body.append(make("div", { class: "filters" }, this.choice, this.unit, this.worst), this.emptyNote, this.picture);
    this.grid = new Grid(this.picture, { zoom: (first, last) => charts.zoom(first, last), press: (row) => charts.show(this.matrix.items[row].name) });
    this.picture.append(this.legend);
    dark.addEventListener("change", () => this.draw());
  }

  follow(run) {
    this.reached = run.last_step;
    this.boundaries = boundariesOf(run.lives ?? []);
    return this.fold.markStale();
  }

  mark(incidents) {
    const open = incidents.filter(({ state }) => state !== "closed").map(({ severity, tensor, module, first_step, step_offset }) => ({ severity, tensor, module, step: first_step + step_offset }));
    if (JSON.stringify(open) === JSON.stringify(this.incidents)) return;
    this.incidents = open;
    this.draw();
  }

  choose(stat) {
    this.stat = stat;
    this.fold.markStale();
  }

  async update() {
    const { rank, range } = this.charts;
    const query = { stat: this.stat, rank, from: range?.[0], to: range?.[1], cells: Math.min(1000, this.grid.room()), show: STATS[this.stat].lowest ? "lowest" : "highest" };
    const { share, counts } = STATS[this.stat];
    const matrix = await readMatrix(this.run, query, { reached: this.reached ?? 0, shares: share && counts }, this.matrix);
    if (matrix === this.matrix) return;
    this.matrix = matrix;
    this.range = range;
    this.draw();
  }

  draw() {
    const { matrix } = this;
    if (!matrix) return;
    const empty = matrix.filled === 0;
    this.emptyNote.hidden = !empty;
    this.picture.hidden = empty;
    const stat = STATS[matrix.stat];
    this.emptyNote.textContent = matrix.items.length ? `${stat.words}: not measured in these steps.` : "No tensor of this run was measured yet.";
    this.unit.textContent = stat.unit;
    this.fold.facts.textContent = matrix.items.length ? `${plural(matrix.items.length, "tensor")}${matrix.cut ? ", the first ones of the model" : ""}` : "";
    this.showWorst();
    if (empty) return;
    const scale = this.scale();
    const marked = [...new Set(this.tones().values())].map((severity) => [`mark ${severity}`, `${severity === "page" ? "urgent" : "open"} incident`]);
    replace(this.legend, legend(scale, this.formatter(), [...(scale.low > 0 ? [["nought", "0"]] : []), ["broken", "NaN or Inf"], ["", "not measured"], ...marked]));
    this.grid.show(this.pictured(scale));
    if (!this.shown) this.reveal();
    this.shown = true;
  }

  scale() {
    const { stat, finite } = this.matrix;
    const { linear: isLinear, share } = STATS[stat];
    return isLinear ? linear(-1, 1) : scaleOf(finite, share ? 1 : Infinity);
  }

  formatter() {
    return STATS[this.matrix.stat].share ? percent : (value, digits = 3) => short(value, digits);
  }

  pictured(scale) {
    const { matrix } = this;
    const { items, steps, columns, broken } = matrix;
    const tones = this.tones();
    const [first, last] = this.range ? [this.range[0], this.range[1] + 1] : [steps[0], steps.at(-1)];
    return {
      edges: steps, first, last, rows: items.length, rowHeight: items.length > MAX_TALL_ROWS ? ROW_HEIGHT : 22,
      letters: items.reduce((most, { name }) => Math.max(most, name.length), 0),
      shades: shader(matrix, scale), broken: (row, column) => isBroken(matrix.at(row, column)),
      name: (row) => ({ text: visible(items[row].name), tone: tones.get(row) }),
      flags: [...broken.map(({ row }) => ({ row, tone: "page" })), ...[...tones].map(([row, tone]) => ({ row, tone }))],
      starts: this.incidents, boundaries: this.boundaries,
      begin: this.spot() ?? { row: 0, column: columns - 1 },
      describe: (row, column) => this.cell(row, column),
      words: this.words(), hint: "Drag to select steps. Click a row to show its curve.",
    };
  }

  // The tensors of open incidents, or all tensors of their module.
  tones() {
    const { items } = this.matrix;
    const tones = new Map();
    const named = ({ tensor, module }, name) => (tensor ? name === tensor : module && name.startsWith(module + "."));
    for (const incident of [...this.incidents].sort((a, b) => (a.severity < b.severity) - (a.severity > b.severity))) {
      items.forEach(({ name }, row) => named(incident, name) && tones.set(row, incident.severity));
    }
    return tones;
  }

  // Among the tensors that were non-finite first the last in the model: the origin, if it is in the backward pass.
  spot() {
    const { broken } = this.matrix;
    const first = Math.min(...broken.map(({ step }) => step));
    return broken.findLast(({ step }) => step === first) ?? null;
  }

  showWorst() {
    const { items, broken } = this.matrix;
    const spot = this.spot();
    replace(this.worst, spot ? make("button", { class: "link bad", title: "Show the cell", onclick: () => this.show(spot) },
      `NaN or Inf in ${integer(broken.length)} of ${integer(items.length)}, from step ${integer(spot.step)} in `, make("bdi", { class: "code" }, items[spot.row].name)) : null);
  }

  show(spot) {
    this.grid.canvas.focus();
    this.grid.go(spot);
  }

  reveal() {
    const row = this.spot()?.row ?? this.tones().keys().next().value;
    if (row !== undefined) this.grid.reveal(row);
  }

  words() {
    const { stat, items, steps, broken, highest, lowest } = this.matrix;
    const { words, counts, lowest: least } = STATS[stat];
    const spot = this.spot();
    const most = least ? lowest : highest;
    return [
      `${words} of ${plural(items.length, "tensor")} over steps ${integer(steps[0])} to ${integer(steps.at(-1) - 1)}.`,
      spot ? `NaN or Inf in ${plural(broken.length, "tensor")}, first at step ${integer(spot.step)}, the last of them in the model is ${visible(items[spot.row].name)}.` : counts ? "" : "None of them is NaN or Inf.",
      most ? `${least ? "Lowest" : "Highest"}: ${this.formatter()(most[2])} in ${visible(items[most[0]].name)} at step ${integer(this.matrix.stepAt(most[0], most[1]))}.` : "",
    ].filter(Boolean).join(" ");
  }

  // The steps of a column.
  when(column) {
    const [first, last] = [this.matrix.steps[column], this.matrix.steps[column + 1] - 1];
    return first === last ? `step ${integer(first)}` : `steps ${integer(first)} to ${integer(last)}`;
  }

  // The value of a cell, and the step of its measurement.
  cell(row, column) {
    const { stat, items, steps } = this.matrix;
    const value = this.matrix.at(row, column);
    const name = visible(items[row].name);
    if (value === null) return `${name}  ·  ${this.when(column)}  ·  not measured`;
    const single = steps[column] + 1 === steps[column + 1];
    const at = `step ${integer(this.matrix.stepAt(row, column))}`;
    if (single) return `${name}  ·  ${at}  ·  ${this.formatter()(value)}`;
    const most = !Number.isFinite(value) ? "one of" : STATS[stat].lowest ? "lowest of" : "highest of";
    return `${name}  ·  ${at}  ·  ${this.formatter()(value)}, ${most} ${this.when(column)}`;
  }
}

function isBroken(value) {
  return value !== null && !Number.isFinite(value);
}

function percent(value) {
  return Number.isFinite(value) && value > 0 && value < 0.001 ? `${short(100 * value, 3)} %` : Number.isFinite(value) ? share(value) : short(value);
}

// The pixels of a row: shades, one colour for zero, transparent without a measurement.
function shader({ columns, at }, scale) {
  const ramp = shades();
  const nought = pixel(colours().nought);
  return (row) => {
    const pixels = new Uint32Array(columns);
    for (let column = 0; column < columns; column++) {
      const value = at(row, column);
      if (value === null || !Number.isFinite(value)) continue;
      pixels[column] = value === 0 && scale.low > 0 ? nought : ramp[scale.shade(value)];
    }
    return pixels;
  };
}
