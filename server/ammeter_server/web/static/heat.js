// A map of layers: one stat of every tensor over steps, in the order of the forward pass if it is known, folded by block.
// Stripes begin at the origin of a NaN, a ring marks where it was born, and an outline modules that ran in float32.

import { show, shown, shownChoice } from "./address.js";
import { isBroken, percent, shader } from "./cells.js";
import { boundariesOf } from "./charts.js";
import { isTouched } from "./cursor.js";
import { make, replace, visible } from "./dom.js";
import { exportMenu } from "./exporting.js";
import { Fold } from "./fold.js";
import { Grid } from "./grid.js";
import { isFoldedAtFirst, layersOf, worstIn } from "./layers.js";
import { fallbacksOf, isOf, readMarks } from "./marks.js";
import { readMatrix } from "./matrix.js";
import { dark, legend, linear, scaleOf } from "./shades.js";
import { STATS } from "./stats.js";
import { integer, plural, short } from "./words.js";

const ROW_HEIGHT = 16;
const MAX_TALL_ROWS = 12;
const MAX_REMEMBERED = 20;
const ORDERS = { forward: "in the order of the forward pass", parameters: "in the order of the parameters" };
const PAUSE_FACTOR = 4; // a run of many steps and tensors takes seconds; others are read at every turn

export class Heat {
  constructor(place, run, charts) {
    this.run = run;
    this.charts = charts;
    this.stat = shownChoice("colour", Object.keys(STATS));
    this.opened = new Set((shown("open") ?? "").split(",").filter(Boolean));
    this.allOpen = null;
    this.incidents = [];
    this.marks = { births: [], fallbacks: [] };
    this.fold = new Fold(place, "Layers over steps", () => this.update());
    this.choice = make("select", { id: "heat-stat", "aria-label": "Colour", onchange: () => this.choose(this.choice.value) },
      Object.entries(STATS).map(([stat, { words }]) => make("option", { value: stat, selected: stat === this.stat }, words)));
    this.unit = make("span", { class: "quiet" });
    this.worst = make("span", { class: "worst" });
    this.folding = make("button", { id: "heat-fold", hidden: true, onclick: () => this.foldAll() });
    this.all = make("button", { id: "heat-all", hidden: true, onclick: () => charts.all() }, "Show all steps");
    this.cellPlace = make("div", { id: "heat-cell", role: "status" });
    this.emptyNote = make("p", { class: "empty small", hidden: true });
    this.picture = make("div", {});
    this.legend = make("div", {});
    this.fold.body.append(make("div", { class: "filters" }, this.choice, this.unit, this.folding, this.all, this.worst, exportMenu({ name: "layers", title: () => `${document.title}: ${this.words()}`, view: this.picture, table: () => this.table() })), this.emptyNote, this.picture);
    this.grid = new Grid(this.picture, { ...charts.actions, press: (row, column, isFinger) => this.press(row, column, isFinger) });
    this.picture.append(this.cellPlace, this.legend);
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
    show({ colour: stat === "grad.norm" ? null : stat });
    this.fold.markStale();
  }

  isOpen(block) {
    return this.opened.has(block) !== this.allOpen;
  }

  foldAll() {
    this.allOpen = !this.allOpen;
    this.opened.clear();
    this.remember();
  }

  remember() {
    show({ open: this.opened.size <= MAX_REMEMBERED ? [...this.opened].join(",") : null });
    this.draw();
  }

  // A block opens or closes; a tensor shows the step that was measured, and its curve, which a finger shows with one more tap.
  press(row, column, isFinger) {
    const { name, index, isOpen } = this.layers.rows[row];
    if (index === undefined) {
      if (isOpen === this.allOpen) this.opened.add(name);
      else this.opened.delete(name);
      return this.remember();
    }
    this.showCell(row, column, name, isFinger);
    return isFinger ? null : this.charts.show(name);
  }

  showCell(row, column, name, isFinger) {
    const value = this.layers.at(row, column);
    const step = this.layers.stepAt(row, column);
    const { words } = STATS[this.matrix.stat];
    replace(this.cellPlace, make("div", { class: "cell" }, make("bdi", { class: "code" }, visible(name)),
      make("span", {}, value === null ? `${words}: not measured in ${this.when(column)}` : `${words} at step ${integer(step)}: ${this.formatter()(value)}`),
      value === null ? null : make("button", { id: "heat-step", onclick: () => this.charts.around(step) }, `Show steps around ${integer(step)}`),
      isFinger ? make("button", { id: "heat-curve", onclick: () => this.charts.show(name) }, "Show its curve") : null));
  }

  async update() {
    const { rank, range } = this.charts;
    const query = { stat: this.stat, order: "forward", rank, from: range?.[0], to: range?.[1], cells: Math.min(1000, this.grid.room()), show: STATS[this.stat].lowest ? "lowest" : "highest" };
    const { share, counts } = STATS[this.stat];
    const [key, began] = [JSON.stringify(query), Date.now()];
    if (key === this.key && began < this.notBefore) return;
    if (!this.matrix) {
      this.emptyNote.hidden = false;
      this.emptyNote.textContent = "Loading …";
    }
    const [marks, matrix] = await Promise.all([readMarks(this.run, rank), readMatrix(this.run, query, { reached: this.reached ?? 0, shares: share && counts }, this.matrix)]);
    [this.key, this.notBefore] = [key, Date.now() + PAUSE_FACTOR * (Date.now() - began)];
    if (matrix === this.matrix && JSON.stringify(marks) === JSON.stringify(this.marks)) return;
    this.matrix = matrix;
    this.marks = marks;
    this.fallbacks = fallbacksOf(marks.fallbacks, matrix.items.map(({ name }) => name));
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
    this.allOpen ??= !isFoldedAtFirst(matrix);
    this.layers = layersOf(matrix, (block) => this.isOpen(block), stat.lowest);
    this.folding.hidden = empty || !this.layers.blocks.length;
    this.folding.textContent = this.allOpen ? "Fold blocks" : "Open all blocks";
    this.emptyNote.textContent = matrix.items.length ? `${stat.words}: not measured in these steps.` : "No tensor of this run was measured yet.";
    this.unit.textContent = stat.unit;
    this.fold.facts.textContent = matrix.items.length ? `${plural(matrix.items.length, "tensor")}, ${ORDERS[matrix.order]}${matrix.cut ? ", the first ones" : ""}` : "";
    this.all.hidden = !this.range;
    this.showWorst();
    if (empty) return;
    const scale = this.scale();
    const marked = [...new Set(this.tones().values())].map((severity) => [`mark ${severity}`, `${severity === "page" ? "urgent" : "open"} incident`]);
    replace(this.legend, legend(scale, this.formatter(), [...(scale.low > 0 ? [["nought", "0"]] : []), ["broken", "NaN or Inf"], ["", "not measured"], ...marked, ...(this.marks.births.length ? [["born", "origin of a NaN or Inf"]] : []), ...(this.fallbacks.size ? [["outlined", "ran in float32, dashed: a part of the block"]] : [])]));
    this.grid.show(this.pictured(scale));
    if (!this.shown) this.reveal();
    this.shown = true;
  }

  scale() {
    const { stat, finite } = this.matrix;
    const { linear: isLinear, share } = STATS[stat];
    return isLinear ? linear(...isLinear) : scaleOf(finite, share ? 1 : Infinity);
  }

  formatter() {
    return STATS[this.matrix.stat].share ? percent : (value, digits = 3) => short(value, digits);
  }

  pictured(scale) {
    const { matrix } = this;
    const { steps, columns, broken } = matrix;
    const { rows, rowOf, at } = this.layers;
    const tones = this.tones();
    const [first, last] = this.range ? [this.range[0], this.range[1] + 1] : [steps[0], steps.at(-1)];
    return {
      edges: steps, first, last, rows: rows.length, rowHeight: rows.length > MAX_TALL_ROWS ? ROW_HEIGHT : 22,
      letters: rows.reduce((most, { name, index }) => Math.max(most, name.length + (index === undefined ? 10 : 0)), 0),
      shades: shader(columns, at, scale), broken: (row, column) => isBroken(at(row, column)),
      name: (row) => this.label(rows[row], tones.get(row)),
      flags: [...broken.map(({ row }) => ({ row: rowOf[row], tone: "page" })), ...[...tones].map(([row, tone]) => ({ row, tone }))],
      starts: this.incidents, boundaries: this.boundaries, births: this.births(),
      begin: this.spot() ?? { row: 0, column: columns - 1 },
      describe: (row, column) => this.cell(row, column), describeColumn: (column) => this.column(column),
      stepOf: (row, column) => (at(row, column) === null ? steps[column] : this.layers.stepAt(row, column)),
      words: this.words(), hint: `${isTouched ? "Pinch" : "Drag"} to select steps. ${isTouched ? "Tap" : "Click"} a row to show its curve${this.layers.blocks.length ? ", a block to open it" : ""}.`,
    };
  }

  label({ name, index, members, isOpen, block }, tone) {
    const names = members ? members.map((member) => this.matrix.items[member].name) : [name];
    const outline = names.every((own) => this.fallbacks.has(own)) ? "whole" : names.some((own) => this.fallbacks.has(own)) && !isOpen ? "part" : null;
    const text = index === undefined ? `${isOpen ? "▾" : "▸"} ${visible(name)} (${integer(members.length)})` : visible(block ? name.slice(block.length) : name);
    return { text, tone, outline, isBlock: index === undefined };
  }

  // Rows and steps of the origins of NaN and Inf that events name.
  births() {
    const { items } = this.matrix;
    return this.marks.births.flatMap((birth) => {
      const index = items.findIndex(({ name }) => isOf(birth, name));
      return index < 0 ? [] : [{ row: this.layers.rowOf[index], step: birth.step }];
    });
  }

  // The tensors of open incidents, or all tensors of their module; their block, if it is folded.
  tones() {
    const { items } = this.matrix;
    const { rowOf } = this.layers;
    const tones = new Map();
    for (const incident of [...this.incidents].sort((a, b) => (a.severity < b.severity) - (a.severity > b.severity))) {
      items.forEach(({ name }, index) => isOf(incident, name) && tones.set(rowOf[index], incident.severity));
    }
    return tones;
  }

  // Among the tensors that were non-finite first the last in the model: the origin, if it is in the backward pass.
  spot() {
    const { broken, items } = this.matrix;
    const first = broken.reduce((least, { step }) => Math.min(least, step), Infinity);
    const found = broken.findLast(({ step }) => step === first);
    return found ? { ...found, row: this.layers.rowOf[found.row], name: items[found.row].name } : null;
  }

  showWorst() {
    const { items, broken } = this.matrix;
    const spot = this.spot();
    replace(this.worst, spot ? make("button", { class: "link bad", title: "Show the cell", onclick: () => this.show(spot) },
      `NaN or Inf in ${integer(broken.length)} of ${integer(items.length)}, from step ${integer(spot.step)} in `, make("bdi", { class: "code" }, spot.name)) : null);
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
    const { stat, order, items, steps, broken, highest, lowest } = this.matrix;
    const { words, counts, lowest: least } = STATS[stat];
    const spot = this.spot();
    const most = least ? lowest : highest;
    return [
      `${words} of ${plural(items.length, "tensor")} over steps ${integer(steps[0])} to ${integer(steps.at(-1) - 1)}.`,
      spot ? `NaN or Inf in ${plural(broken.length, "tensor")}, first at step ${integer(spot.step)}, the last of them in the model is ${visible(spot.name)}.` : counts ? "" : "None of them is NaN or Inf.",
      most ? `${least ? "Lowest" : "Highest"}: ${this.formatter()(most[2])} in ${visible(items[most[0]].name)} at step ${integer(this.matrix.stepAt(most[0], most[1]))}.` : "",
      `Tensors are ${ORDERS[order]}.`,
      this.layers.blocks.length ? `${plural(this.layers.rows.length, "row")}: ${plural(this.layers.blocks.length, "block")} can be opened or folded with Enter.` : "",
    ].filter(Boolean).join(" ");
  }

  // The cells that are drawn: each value with the step at which it was read.
  table() {
    const { stat, steps, columns } = this.matrix;
    const { rows, at, stepAt } = this.layers;
    const cells = rows.flatMap(({ name }, row) => Array.from({ length: columns }, (_, column) => [name, stat, steps[column], steps[column + 1] - 1, at(row, column) === null ? null : stepAt(row, column), at(row, column)]))
      .filter((cell) => cell[5] !== null);
    return [["tensor", "text"], ["stat", "text"], ["first_step", "integer"], ["last_step", "integer"], ["step", "integer"], ["value", "number"]].map((column, index) => [...column, cells.map((cell) => cell[index])]);
  }

  // The steps of a column.
  when(column) {
    const [first, last] = [this.matrix.steps[column], this.matrix.steps[column + 1] - 1];
    return first === last ? `step ${integer(first)}` : `steps ${integer(first)} to ${integer(last)}`;
  }

  // The worst of all tensors in a column.
  column(column) {
    const { stat, items, at, stepAt } = this.matrix;
    const { index, broken } = worstIn(this.matrix, column, STATS[stat].lowest);
    const when = this.when(column);
    if (index === null) return `${when}  ·  not measured`;
    if (broken) return `${when}  ·  NaN or Inf in ${integer(broken)} of ${plural(items.length, "tensor")}`;
    return `${when}  ·  ${STATS[stat].lowest ? "lowest" : "highest"}: ${this.formatter()(at(index, column))} in ${visible(items[index].name)} at step ${integer(stepAt(index, column))}`;
  }

  // The value of a cell, and the step of its measurement. A block shows its worst tensor.
  cell(row, column) {
    const { stat, items, steps } = this.matrix;
    const { rows, at, stepAt, memberAt } = this.layers;
    const value = at(row, column);
    const { name: own, index } = rows[row];
    const name = visible(own);
    if (value === null) return `${name}  ·  ${this.when(column)}  ·  not measured`;
    const single = steps[column] + 1 === steps[column + 1];
    const when = `step ${integer(stepAt(row, column))}`;
    const tensor = items[memberAt(row, column)].name;
    const born = this.marks.births.find((birth) => birth.step === stepAt(row, column) && isOf(birth, tensor));
    const fallback = index === undefined ? null : this.fallbacks.get(own);
    const notes = [index === undefined ? `worst in ${visible(tensor)}` : "", born ? "a NaN or Inf was born here" : "", fallback ? `ran in ${fallback.dtype} at step ${integer(fallback.step)} (${fallback.reason})` : ""];
    const most = !Number.isFinite(value) ? "one of" : STATS[stat].lowest ? "lowest of" : "highest of";
    const text = single ? this.formatter()(value) : `${this.formatter()(value)}, ${most} ${this.when(column)}`;
    return [name, when, text, ...notes.filter(Boolean)].join("  ·  ");
  }
}
