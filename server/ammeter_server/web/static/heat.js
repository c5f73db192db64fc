// Tensors over steps: one stat of every tensor in the order of the model, as a heat map. Where a NaN was born is where
// the stripes begin.

import { boundariesOf } from "./charts.js";
import { make, replace, visible } from "./dom.js";
import { Fold } from "./fold.js";
import { Grid } from "./grid.js";
import { readMatrix } from "./matrix.js";
import { colours, dark, legend, linear, pixel, scaleOf, shades } from "./shades.js";
import { plural, share, short, whole } from "./words.js";

const ROW = 16;
const FEW = 12;

// counts: how many elements; with share as a share of them. lowest: what a person has to see is the smallest of some steps.
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
  "update.ratio": { words: "Update to weight", unit: "norm of the one over norm of the other" },
  "update.lost": { words: "Lost updates", unit: "share of sampled elements that a step did not change", share: true },
};

export class Heat {
  constructor(place, run, charts) {
    this.run = run;
    this.charts = charts;
    this.stat = "grad.norm";
    this.incidents = [];
    this.fold = new Fold(place, "Tensors over steps", () => this.ask());
    this.choice = make("select", { id: "heat-stat", "aria-label": "What is shown of each tensor", onchange: () => this.choose(this.choice.value) },
      Object.entries(STATS).map(([stat, { words }]) => make("option", { value: stat }, words)));
    this.unit = make("span", { class: "quiet" });
    this.worst = make("span", { class: "worst" });
    this.none = make("p", { class: "empty small", hidden: true });
    this.picture = make("div", {});
    this.legend = make("div", {});
    this.fold.body.append(make("div", { class: "filters" }, this.choice, this.unit, this.worst), this.none, this.picture);
    this.grid = new Grid(this.picture, { zoom: (first, last) => charts.zoom(first, last), press: (row) => charts.show(this.matrix.items[row].name) });
    this.picture.append(this.legend);
    dark.addEventListener("change", () => this.draw());
  }

  follow(run) {
    this.reached = run.last_step;
    this.boundaries = boundariesOf(run.lives ?? []);
    return this.fold.due();
  }

  mark(incidents) {
    const open = incidents.filter(({ state }) => state !== "closed").map(({ severity, tensor, module, first_step, step_offset }) => ({ severity, tensor, module, step: first_step + step_offset }));
    if (JSON.stringify(open) === JSON.stringify(this.incidents)) return;
    this.incidents = open;
    this.draw();
  }

  choose(stat) {
    this.stat = stat;
    this.fold.due();
  }

  async ask() {
    const { rank, range } = this.charts;
    const asked = { stat: this.stat, rank, from: range?.[0], to: range?.[1], cells: Math.min(1000, this.grid.room()), show: STATS[this.stat].lowest ? "lowest" : "highest" };
    const { share, counts } = STATS[this.stat];
    const found = await readMatrix(this.run, asked, { reached: this.reached ?? 0, shares: share && counts }, this.matrix);
    if (found === this.matrix) return;
    this.matrix = found;
    this.range = range;
    this.draw();
  }

  draw() {
    const { matrix } = this;
    if (!matrix) return;
    const empty = matrix.filled === 0;
    this.none.hidden = !empty;
    this.picture.hidden = empty;
    const said = STATS[matrix.stat];
    this.none.textContent = matrix.items.length ? `${said.words}: not measured in these steps.` : "No tensor of this run has been read yet.";
    this.unit.textContent = said.unit;
    this.fold.said.textContent = matrix.items.length ? `${plural(matrix.items.length, "tensor")}${matrix.cut ? ", the first of the model" : ""}` : "";
    this.showWorst();
    if (empty) return;
    const scale = this.scale();
    const marked = [...new Set(this.tones().values())].map((severity) => [`mark ${severity}`, `${severity === "page" ? "urgent" : "open"} incident`]);
    replace(this.legend, legend(scale, this.say(), [...(scale.low > 0 ? [["nought", "0"]] : []), ["broken", "NaN or Inf"], ["", "not measured"], ...marked]));
    this.grid.show(this.pictured(scale));
    if (!this.shown) this.reveal();
    this.shown = true;
  }

  scale() {
    const { stat, finite } = this.matrix;
    const said = STATS[stat];
    return said.linear ? linear(-1, 1) : scaleOf(finite, said.share ? 1 : Infinity);
  }

  say() {
    return STATS[this.matrix.stat].share ? percent : (value, digits = 3) => short(value, digits);
  }

  pictured(scale) {
    const { matrix } = this;
    const { items, steps, columns, broken } = matrix;
    const tones = this.tones();
    const [first, last] = this.range ? [this.range[0], this.range[1] + 1] : [steps[0], steps.at(-1)];
    return {
      edges: steps, first, last, rows: items.length, rowHeight: items.length > FEW ? ROW : 22,
      letters: items.reduce((most, { name }) => Math.max(most, name.length), 0),
      shades: shader(matrix, scale), broken: (row, column) => isBroken(matrix.at(row, column)),
      name: (row) => ({ text: visible(items[row].name), tone: tones.get(row) }),
      flags: [...broken.map(({ row }) => ({ row, tone: "page" })), ...[...tones].map(([row, tone]) => ({ row, tone }))],
      starts: this.incidents, boundaries: this.boundaries,
      begin: this.spot() ?? { row: 0, column: columns - 1 },
      say: (row, column) => this.cell(row, column),
      words: this.words(), hint: "Drag to choose steps, click a row for its curve.",
    };
  }

  // The tensors that open incidents name; where one names a module only, those of it.
  tones() {
    const { items } = this.matrix;
    const tones = new Map();
    const named = ({ tensor, module }, name) => (tensor ? name === tensor : module && name.startsWith(module + "."));
    for (const incident of [...this.incidents].sort((a, b) => (a.severity < b.severity) - (a.severity > b.severity))) {
      items.forEach(({ name }, row) => named(incident, name) && tones.set(row, incident.severity));
    }
    return tones;
  }

  // The last tensor in the model among those that were not finite first: there it was born, if in the backward pass.
  spot() {
    const { broken } = this.matrix;
    const first = Math.min(...broken.map(({ step }) => step));
    return broken.findLast(({ step }) => step === first) ?? null;
  }

  showWorst() {
    const { items, broken } = this.matrix;
    const spot = this.spot();
    replace(this.worst, spot ? make("button", { class: "link bad", title: "Show it in the picture", onclick: () => this.show(spot) },
      `NaN or Inf in ${whole(broken.length)} of ${whole(items.length)}, from step ${whole(spot.step)} in `, make("bdi", { class: "code" }, items[spot.row].name)) : null);
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
      `${words} of ${plural(items.length, "tensor")} over steps ${whole(steps[0])} to ${whole(steps.at(-1) - 1)}.`,
      spot ? `NaN or Inf in ${plural(broken.length, "tensor")}, first at step ${whole(spot.step)}, the last of them in the model is ${visible(items[spot.row].name)}.` : counts ? "" : "None of them is NaN or Inf.",
      most ? `${least ? "Lowest" : "Highest"}: ${this.say()(most[2])} in ${visible(items[most[0]].name)} at step ${whole(this.matrix.stepAt(most[0], most[1]))}.` : "",
    ].filter(Boolean).join(" ");
  }

  // Which steps a column stands for.
  when(column) {
    const [first, last] = [this.matrix.steps[column], this.matrix.steps[column + 1] - 1];
    return first === last ? `step ${whole(first)}` : `steps ${whole(first)} to ${whole(last)}`;
  }

  // What a cell shows, and the step at which that was measured.
  cell(row, column) {
    const { stat, items, steps } = this.matrix;
    const value = this.matrix.at(row, column);
    const name = visible(items[row].name);
    if (value === null) return `${name}  ·  ${this.when(column)}  ·  not measured`;
    const single = steps[column] + 1 === steps[column + 1];
    const at = `step ${whole(this.matrix.stepAt(row, column))}`;
    if (single) return `${name}  ·  ${at}  ·  ${this.say()(value)}`;
    const most = !Number.isFinite(value) ? "one of" : STATS[stat].lowest ? "lowest of" : "highest of";
    return `${name}  ·  ${at}  ·  ${this.say()(value)}, ${most} ${this.when(column)}`;
  }
}

function isBroken(value) {
  return value !== null && !Number.isFinite(value);
}

function percent(value) {
  return Number.isFinite(value) && value > 0 && value < 0.001 ? `${short(100 * value, 3)} %` : Number.isFinite(value) ? share(value) : short(value);
}

// The pixels of a row: shades, one for zero, nothing for what was not measured.
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
