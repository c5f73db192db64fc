// Exponents of all gradient elements at each full reading, compared with the range of float16.

import { changed } from "./api.js";
import { boundariesOf } from "./charts.js";
import { make, replace } from "./dom.js";
import { Fold } from "./fold.js";
import { Grid } from "./grid.js";
import { dark, legend, logarithmic, shades } from "./shades.js";
import { integer, number, plural, raised, scale, share, short } from "./words.js";

const ROW_HEIGHT = 4;
const STRIP_ROWS = 3;
const COLUMN_WIDTH = 3;
const LABEL_EVERY = 8;
const MIN_SHARE = 1e-5;

// Limits of float16 as powers of two. Elements below the last one become zero.
const LIMITS = [
  { exponent: 16, name: "float16 max 65504" },
  { exponent: -14, name: "normal 2⁻¹⁴" },
  { exponent: -24, name: "float16 min 2⁻²⁴" },
];

export class Exponents {
  constructor(place, run, charts) {
    this.path = `/runs/${encodeURIComponent(run)}/spectrum`;
    this.charts = charts;
    this.fold = new Fold(place, "Exponents of all gradients", () => this.update());
    this.facts = make("p", { class: "quiet" });
    this.emptyNote = make("p", { class: "empty small", hidden: true });
    this.picture = make("div", {});
    this.fold.body.append(this.emptyNote, this.picture);
    this.picture.append(this.facts);
    this.grid = new Grid(this.picture, { zoom: (first, last) => charts.zoom(first, last) });
    this.legend = make("div", {});
    this.picture.append(this.legend);
    dark.addEventListener("change", () => this.draw());
  }

  follow(run) {
    this.reached = run.last_step;
    this.precision = run.precision;
    this.boundaries = boundariesOf(run.lives ?? []);
    return this.fold.markStale();
  }

  async update() {
    const { rank, range } = this.charts;
    const query = { rank, from: range?.[0], to: range?.[1], points: Math.max(50, Math.round(this.grid.room() / COLUMN_WIDTH)), page_size: 1000 };
    const queryKey = JSON.stringify(query);
    const answer = await changed(queryKey === this.queryKey ? this.tag : null, this.path, query);
    if (!answer) return;
    this.queryKey = queryKey;
    this.tag = answer.tag;
    this.readings = readingsOf(answer.content.items);
    this.range = range;
    this.draw();
  }

  draw() {
    const { readings } = this;
    if (!readings) return;
    this.emptyNote.hidden = readings.length > 0;
    this.picture.hidden = readings.length === 0;
    this.fold.facts.textContent = readings.length ? this.fact() : "";
    this.emptyNote.textContent = this.range ? "No full statistics in these steps." : "No full statistics of this run yet: every eighth full reading counts exponents.";
    if (!readings.length) return;
    this.facts.textContent = this.scaled();
    replace(this.legend, legend(logarithmic(MIN_SHARE, 1), percent, [["broken", "NaN or Inf"], ["", "none, or not measured"]]));
    this.grid.show(this.pictured());
  }

  pictured() {
    const { readings, range } = this;
    const { lowest, counts } = readings.at(-1);
    const rows = rowsOf(lowest, counts.length);
    const [first, last] = range ? [range[0], range[1] + 1] : [readings[0].step, Math.max(readings.at(-1).last + 1, this.reached + 1)];
    const columns = columnsOf(readings, ((last - first) * COLUMN_WIDTH) / this.grid.room());
    const edges = columns.flatMap(({ from, to }, column) => (column === columns.length - 1 ? [from, to] : [from]));
    const ramp = shades();
    const scale = logarithmic(MIN_SHARE, 1);
    const shareIn = (column, { exponent, kind }) => {
      const { counts, zeros, nonfinite, all } = readings[column];
      return (kind === "zeros" ? zeros : kind === "nonfinite" ? nonfinite : counts[exponent - lowest] ?? 0) / all;
    };
    const shown = (column, row) => (row.kind === "nonfinite" ? 0 : shareIn(column, row));
    const shade = (reading, row) => (reading !== null && shown(reading, row) > 0 ? ramp[scale.shade(shown(reading, row))] : 0);
    return {
      edges, first, last, rows: rows.length, rowHeight: ROW_HEIGHT, letters: 18,
      shades: (row) => Uint32Array.from(columns, ({ reading }) => shade(reading, rows[row])),
      broken: (row, column) => rows[row].kind === "nonfinite" && columns[column].reading !== null && readings[columns[column].reading].nonfinite > 0,
      name: (row) => nameOf(rows, row),
      boundaries: this.boundaries,
      lines: LIMITS.map(({ exponent }) => rows.findIndex((row) => row.exponent === exponent - 1)).filter((row) => row >= 0),
      begin: { row: rows.findIndex((row) => row.exponent === LIMITS[1].exponent), column: columns.length - 1 },
      describe: (row, column) => {
        const { reading, from, to } = columns[column];
        if (reading === null) return `steps ${integer(Math.ceil(from))} to ${integer(Math.ceil(to) - 1)}  ·  not measured`;
        return describe(rows[row], shareIn(reading, rows[row]), readings[reading], [lowest, lowest + counts.length - 1]);
      },
      words: `${this.fact()}. ${this.brokenWords()} ${this.scaled()}`, hint: "Drag to select steps.",
    };
  }

  // The facts of the last column.
  fact() {
    const { step, lowest, counts, zeros, nonfinite, all } = this.readings.at(-1);
    const below = (limit) => counts.reduce((sum, count, index) => sum + (lowest + index < limit ? count : 0), 0) / all;
    return `At step ${integer(step)}: ${percent(below(-14))} below 2⁻¹⁴, where float16 loses bits, ${percent(below(-24))} below 2⁻²⁴, its smallest, ${percent(zeros / all)} zero${nonfinite ? `, ${percent(nonfinite / all)} NaN or Inf` : ""}`;
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

// Readings of all attempts in order. Steps that a later attempt repeats count once; readings with other bins are omitted.
function readingsOf(items) {
  const readings = [];
  const bins = ({ lowest, counts }) => `${lowest} ${counts[0]?.length}`;
  for (const item of items.filter((spectrum) => bins(spectrum) === bins(items.at(-1)))) {
    while (readings.length && readings.at(-1).step >= item.steps[0]) readings.pop();
    item.steps.forEach((step, index) => {
      const [counts, zeros, nonfinite] = [item.counts[index], item.zeros[index], item.nonfinite[index]];
      const all = counts.reduce((sum, count) => sum + count, zeros + nonfinite) || 1;
      if (step > (readings.at(-1)?.step ?? -1)) readings.push({ step, last: item.last_steps[index], counts, zeros, nonfinite, all, lowest: item.lowest, scale: item.scales[index], readings: item.readings[index] });
    });
  }
  return readings;
}

// From top to bottom: non-finite elements, exponents from the highest, zeros.
function rowsOf(lowest, count) {
  const strip = (kind) => Array.from({ length: STRIP_ROWS }, () => ({ kind }));
  const gap = { kind: "gap" };
  return [...strip("nonfinite"), gap, ...Array.from({ length: count }, (_, index) => ({ exponent: lowest + count - 1 - index })), gap, ...strip("zeros")];
}

// At the lower edge of its row, which is that power of two.
function nameOf(rows, row) {
  const { exponent, kind } = rows[row];
  if (kind === "nonfinite" || kind === "zeros") return rows[row - 1]?.kind === kind && rows[row + 1]?.kind === kind ? { text: kind === "zeros" ? "0" : "NaN, Inf" } : null;
  const limit = LIMITS.find((edge) => edge.exponent - 1 === exponent);
  if (limit) return { text: limit.name, tone: "ink", at: 0 };
  const near = LIMITS.some((edge) => Math.abs(edge.exponent - exponent) < 4);
  const outermost = rows[row + 1].kind === "gap";
  return exponent !== undefined && exponent % LABEL_EVERY === 0 && !near && !outermost ? { text: `2${raised(exponent)}`, at: 1 } : null;
}

function describe({ exponent, kind }, part, { step, last, scale: at }, [lowest, highest]) {
  const where = { nonfinite: "NaN or Inf", zeros: "zero", gap: "" }[kind] ?? (exponent === highest ? `at or above 2${raised(exponent)}`
    : exponent === lowest ? `below 2${raised(exponent + 1)}` : `from 2${raised(exponent)} to 2${raised(exponent + 1)}`);
  return `${last > step ? `steps ${integer(step)} to ${integer(last)}` : `step ${integer(step)}`}  ·  loss scale ${scale(at)}${where ? `  ·  ${where}: ${percent(part)}` : ""}`;
}

function percent(value) {
  return value > 0 && value < 0.001 ? `${short(100 * value, 3)} %` : share(value);
}

// A column for each reading at its own steps, at least `least` steps wide to be visible, and an empty one (reading is null)
// for the steps between two readings.
function columnsOf(readings, least) {
  const columns = [];
  readings.forEach(({ step, last }, reading) => {
    const next = readings[reading + 1]?.step ?? Infinity;
    const to = Math.min(Math.max(last + 1, step + least), next);
    columns.push({ from: step, to, reading });
    if (to < next && next < Infinity) columns.push({ from: to, to: next, reading: null });
  });
  return columns;
}
