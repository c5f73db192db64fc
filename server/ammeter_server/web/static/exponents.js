// A spectrogram of gradient elements: their exponents at each full reading, against the range of a format, at the recorded
// loss scale or another one, of all gradients or of one tensor.

import { show, shown, shownChoice } from "./address.js";
import { changed } from "./api.js";
import { boundariesOf } from "./charts.js";
import { isTouched } from "./cursor.js";
import { make, replace, visible } from "./dom.js";
import { exportMenu } from "./exporting.js";
import { Fold } from "./fold.js";
import { FORMATS, fates } from "./formats.js";
import { Grid } from "./grid.js";
import { colours, dark, legend, logarithmic, pixel, shades } from "./shades.js";
import { columnsOf, describe, nameOf, percent, placeOf, readingsOf, rowsOf, shiftOf } from "./bins.js";
import { integer, number, plural, raised, scale } from "./words.js";

const ROW_HEIGHT = 4;
const COLUMN_WIDTH = 3;
const MIN_SHARE = 1e-5;
const LOWEST_POWER = -8;
const HIGHEST_POWER = 32;
const WASH = 0.16;
const LOST_SHADES = 8;
const MIN_DISTANCE = 4;

export class Exponents {
  constructor(place, run, charts) {
    this.path = `/runs/${encodeURIComponent(run)}/spectrum`;
    this.charts = charts;
    this.format = shownChoice("format", Object.keys(FORMATS));
    const power = shown("scale");
    this.power = /^-?\d{1,2}$/.test(power ?? "") ? Math.min(Math.max(Number(power), LOWEST_POWER), HIGHEST_POWER) : null;
    this.ofTensor = shown("exponents") === "tensor";
    this.fold = new Fold(place, "Exponents of the gradients", () => this.update());
    this.facts = make("p", { class: "quiet" });
    this.fates = make("p", { id: "exponents-fates", role: "status" });
    this.emptyNote = make("p", { class: "empty small", hidden: true });
    this.picture = make("div", {});
    this.fold.body.append(this.filters(), this.emptyNote, this.picture);
    this.picture.append(this.facts, this.fates);
    this.grid = new Grid(this.picture, charts.actions);
    this.legend = make("div", {});
    this.picture.append(this.legend);
    dark.addEventListener("change", () => this.draw());
  }

  filters() {
    this.of = make("select", { id: "exponents-of", onchange: () => this.choose({ ofTensor: this.of.value === "tensor" }) });
    const formats = make("select", { id: "exponents-format", onchange: ({ target }) => this.choose({ format: target.value }) },
      Object.entries(FORMATS).map(([value, { words }]) => make("option", { value, selected: value === this.format }, words)));
    this.slider = make("input", { id: "exponents-scale", type: "range", min: LOWEST_POWER, max: HIGHEST_POWER, step: 1, value: this.power ?? 16, oninput: () => this.choose({ power: Number(this.slider.value) }) });
    this.scaleWords = make("output", { for: "exponents-scale", class: "quiet" });
    this.all = make("button", { id: "exponents-all", hidden: true, onclick: () => this.charts.all() }, "Show all steps");
    this.recorded = make("button", { id: "exponents-recorded", onclick: () => this.choose({ power: null }) }, "Recorded scale");
    return make("div", { class: "filters" }, make("label", {}, "Of ", this.of), make("label", {}, "in ", formats), make("label", {}, "at scale ", this.slider), this.scaleWords, this.recorded, this.all,
      exportMenu({ name: "exponents", title: () => `${document.title}: ${this.fact()}`, view: this.picture, table: () => this.table() }));
  }

  choose(change) {
    const isOther = change.ofTensor !== undefined && change.ofTensor !== this.ofTensor;
    Object.assign(this, change);
    show({ format: this.format === "float16" ? null : this.format, scale: this.power, exponents: this.ofTensor ? "tensor" : null });
    this.showFilters();
    if (isOther) this.fold.markStale();
    else this.draw();
  }

  showFilters() {
    const { tensor } = this.charts;
    const key = JSON.stringify([tensor, this.ofTensor]);
    if (this.of.key !== key) replace(this.of, make("option", { value: "all" }, "all gradients"), tensor ? make("option", { value: "tensor", selected: this.ofTensor }, visible(tensor)) : null);
    this.of.key = key;
    const last = number(this.readings?.at(-1)?.scale);
    if (this.power === null && last > 0) this.slider.value = String(Math.round(Math.log2(last)));
    this.scaleWords.textContent = this.power === null ? "as recorded" : scale(2 ** this.power);
    this.slider.setAttribute("aria-valuetext", this.scaleWords.textContent);
    this.recorded.hidden = this.power === null;
  }

  follow(run) {
    this.reached = run.last_step;
    this.precision = run.precision;
    this.boundaries = boundariesOf(run.lives ?? []);
    this.showFilters();
    return this.fold.markStale();
  }

  async update() {
    const { rank, range, tensor } = this.charts;
    const of = this.ofTensor && tensor ? tensor : null;
    const query = { rank, tensor: of, from: range?.[0], to: range?.[1], points: Math.max(50, Math.round(this.grid.room() / COLUMN_WIDTH)), page_size: 1000 };
    const queryKey = JSON.stringify(query);
    const answer = await changed(queryKey === this.queryKey ? this.tag : null, this.path, query);
    if (!answer) return;
    this.queryKey = queryKey;
    this.tag = answer.tag;
    this.readings = readingsOf(answer.content.items);
    [this.range, this.tensor] = [range, of];
    this.draw();
  }

  draw() {
    const { readings, tensor } = this;
    if (!readings) return;
    this.showFilters();
    this.emptyNote.hidden = readings.length > 0;
    this.picture.hidden = readings.length === 0;
    this.all.hidden = !this.range;
    this.fold.facts.textContent = readings.length ? this.fact() : "";
    this.emptyNote.textContent = tensor ? `No exponents of ${visible(tensor)} were counted${this.range ? " in these steps" : ""}: they are beside the third full reading, and then rarely.`
      : this.range ? "No full statistics in these steps." : "No full statistics of this run yet: every eighth full reading counts exponents.";
    if (!readings.length) return;
    this.facts.textContent = this.scaled();
    this.fates.textContent = this.fate();
    const { words } = FORMATS[this.format];
    replace(this.legend, legend(logarithmic(MIN_SHARE, 1), percent, [["broken", "NaN or Inf"], ["washed", `lost in ${words}: becomes zero or overflows`], ["", "none, or not measured"]]));
    this.grid.show(this.pictured());
  }

  pictured() {
    const { readings, range, power } = this;
    const format = FORMATS[this.format];
    const shifts = readings.map((reading) => shiftOf(reading, power));
    const known = shifts.filter((shift) => shift !== null);
    const { lowest, counts } = readings.at(-1);
    const rows = rowsOf(lowest + Math.min(0, ...known), lowest + counts.length - 1 + Math.max(0, ...known));
    const [first, last] = range ? [range[0], range[1] + 1] : [readings[0].step, Math.max(readings.at(-1).last + 1, this.reached + 1)];
    const columns = columnsOf(readings, ((last - first) * COLUMN_WIDTH) / this.grid.room()).map((column) => (column.reading !== null && shifts[column.reading] === null ? { ...column, reading: null } : column));
    const edges = columns.flatMap(({ from, to }, column) => (column === columns.length - 1 ? [from, to] : [from]));
    const ramp = shades();
    const shadeScale = logarithmic(MIN_SHARE, 1);
    const { ticket } = colours();
    const wash = pixel(ticket, WASH);
    const lost = Array.from({ length: LOST_SHADES }, (_, shade) => pixel(ticket, 0.4 + (0.6 * shade) / (LOST_SHADES - 1)));
    const shareIn = (column, { exponent, kind }) => {
      const { zeros, nonfinite, all, counts: own } = readings[column];
      return (kind === "zeros" ? zeros : kind === "nonfinite" ? nonfinite : own[exponent - lowest - shifts[column]] ?? 0) / all;
    };
    const isLost = ({ exponent }) => exponent !== undefined && (exponent < format.smallest - 1 || exponent > format.largest);
    const drawn = (column, row) => (row.kind === "nonfinite" ? 0 : shareIn(column, row));
    const shade = (reading, row) => {
      if (reading === null) return 0;
      const part = drawn(reading, row);
      if (!(part > 0)) return isLost(row) ? wash : 0;
      const at = shadeScale.shade(part);
      return isLost(row) ? lost[Math.floor((at * LOST_SHADES) / ramp.length)] : ramp[at];
    };
    const limits = limitsOf(format);
    return {
      edges, first, last, rows: rows.length, rowHeight: ROW_HEIGHT, letters: 20,
      shades: (row) => Uint32Array.from(columns, ({ reading }) => shade(reading, rows[row])),
      broken: (row, column) => rows[row].kind === "nonfinite" && columns[column].reading !== null && readings[columns[column].reading].nonfinite > 0,
      name: (row) => nameOf(rows, row, limits),
      boundaries: this.boundaries,
      lines: limits.map(([at]) => placeOf(rows, at)).filter((at) => at !== null),
      begin: { row: Math.max(0, rows.findIndex((row) => row.exponent === Math.max(format.normal, lowest))), column: columns.findLastIndex(({ reading }) => reading !== null) },
      describe: (row, column) => {
        const { reading } = columns[column];
        if (reading === null) return `${between(columns[column])}  ·  not measured`;
        return describe(rows[row], shareIn(reading, rows[row]), readings[reading], shifts[reading], !this.tensor);
      },
      describeColumn: (column) => (columns[column].reading === null ? `${between(columns[column])}  ·  not measured` : this.fact(readings[columns[column].reading])),
      stepOf: (_, column) => (columns[column].reading === null ? Math.ceil(columns[column].from) : readings[columns[column].reading].step),
      words: `${this.tensor ? `Gradient of ${visible(this.tensor)}. ` : ""}${this.fact()}. ${this.brokenWords()} ${this.scaled()} ${this.fate()}`, hint: isTouched ? "Tap or drag to read a step, pinch to select steps." : "Drag to select steps.",
    };
  }

  // The elements that are drawn, by exponent at the scale that is shown; zeros, NaN and Inf have no exponent.
  table() {
    const rows = this.readings.flatMap((reading) => {
      const shift = shiftOf(reading, this.power);
      if (shift === null) return [];
      const { step, last, counts, lowest, zeros, nonfinite } = reading;
      const kinds = [...counts.map((count, index) => ["exponent", lowest + index + shift, count]), ["zero", NaN, zeros], ["nonfinite", NaN, nonfinite]];
      return kinds.filter((kind) => kind[2] > 0).map((kind) => [step, last, number(reading.scale) ?? NaN, ...kind]);
    });
    return [["step", "integer"], ["last_step", "integer"], ["recorded_scale", "number"], ["kind", "text"], ["exponent", "number"], ["elements", "integer"]].map((column, index) => [...column, rows.map((row) => row[index])]);
  }

  // The facts of a column, at first the last one.
  fact(reading = this.readings.at(-1)) {
    const { step, zeros, nonfinite, all } = reading;
    const format = FORMATS[this.format];
    const { subnormal, below } = fates(reading, shiftOf(reading, this.power) ?? 0, format);
    return `At step ${integer(step)}: ${percent(subnormal)} below 2${raised(format.normal)}, where ${format.words} loses bits, ${percent(below)} below 2${raised(format.smallest)}, its smallest, ${percent(zeros / all)} zero${nonfinite ? `, ${percent(nonfinite / all)} NaN or Inf` : ""}`;
  }

  // What the format would make of the elements of the last column, at the scale that is shown.
  fate() {
    const reading = this.readings.at(-1);
    const shift = shiftOf(reading, this.power);
    if (shift === null) return "The loss scale of the last reading is unknown, so it cannot be shown at another one.";
    const format = FORMATS[this.format];
    const { zero, overflow, beyond } = fates(reading, shift, format);
    const at = this.power === null ? "At the recorded scale" : `At scale ${scale(2 ** this.power)}`;
    const lost = beyond && !this.tensor ? "how many become zero was not counted" : `at least ${percent(zero)} of the elements become zero`;
    return `${at}, ${lost} in ${format.words}, and at least ${percent(overflow)} overflow.`;
  }

  brokenWords() {
    const first = this.readings.find(({ nonfinite }) => nonfinite > 0);
    return first ? `NaN or Inf from step ${integer(first.step)}.` : "None is NaN or Inf.";
  }

  scaled() {
    const { readings, precision } = this;
    const scales = [...new Set(readings.map((reading) => number(reading.scale)))];
    const last = scales.at(-1);
    const scaleText = last === null ? "Gradients as measured; the loss scale is unknown."
      : scales.every((value) => value === 1) ? "Unscaled gradients: there was no loss scale, or it was 1."
        : `Scaled gradients, as stored in float16: multiplied by the loss scale, ${scale(readings.at(-1).scale)} at the last reading.`;
    const wide = precision === "bfloat16" || precision === "float32" ? ` ${precision} represents 2⁻¹²⁶ to 2¹²⁷, far beyond this chart.` : "";
    const summed = Math.max(...readings.map(({ readings: count }) => count));
    return `${scaleText}${wide}${summed > 1 ? ` A column sums up to ${plural(summed, "reading")}.` : ""}`;
  }
}

function between({ from, to }) {
  return `steps ${integer(Math.ceil(from))} to ${integer(Math.ceil(to) - 1)}`;
}

// Limits that are too near to each other for two names share one.
function limitsOf({ largest, normal, smallest, maximum }) {
  const [normalWords, smallestWords] = [`normal 2${raised(normal)}`, `min 2${raised(smallest)}`];
  const isNear = normal - smallest < MIN_DISTANCE;
  return [[largest, `max ${maximum}`], [normal, isNear ? "" : normalWords], [smallest, isNear ? `${normalWords}, ${smallestWords}` : smallestWords]];
}
