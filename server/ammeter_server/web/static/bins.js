// Readings of exponents, and the columns and rows in which they are drawn.

import { integer, number, raised, scale, share, short } from "./words.js";

const STRIP_ROWS = 3;
const LABEL_EVERY = 8;

// Readings of all attempts in order. Steps that a later attempt repeats count once; readings with other bins are omitted.
export function readingsOf(items) {
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

// By how many powers of two the elements move at another scale, a power of two; null if the reading's scale is unknown.
export function shiftOf(reading, power) {
  if (power === null) return 0;
  const recorded = number(reading.scale);
  return recorded > 0 && Number.isFinite(recorded) ? power - Math.round(Math.log2(recorded)) : null;
}

// From top to bottom: non-finite elements, exponents from the highest, zeros.
export function rowsOf(lowest, highest) {
  const strip = (kind) => Array.from({ length: STRIP_ROWS }, () => ({ kind }));
  const gap = { kind: "gap" };
  return [...strip("nonfinite"), gap, ...Array.from({ length: highest - lowest + 1 }, (_, index) => ({ exponent: highest - index })), gap, ...strip("zeros")];
}

// Where a power of two lies among the rows, in heights of a row from the top; null outside.
export function placeOf(rows, power) {
  const top = STRIP_ROWS + 1;
  const highest = rows[top].exponent;
  const at = top + highest + 1 - power;
  return at >= top && at <= rows.length - STRIP_ROWS - 1 ? at : null;
}

// At the lower edge of its row, which is that power of two. limits: [power, name], whose names replace others near them.
export function nameOf(rows, row, limits) {
  const { exponent, kind } = rows[row];
  if (kind === "nonfinite" || kind === "zeros") return rows[row - 1]?.kind === kind && rows[row + 1]?.kind === kind ? { text: kind === "zeros" ? "0" : "NaN, Inf" } : null;
  const limit = limits.find(([power]) => Math.ceil(power - 0.001) - 1 === exponent);
  if (limit) return { text: limit[1], tone: "ink", at: exponent + 1 - limit[0] };
  const near = limits.some(([power]) => Math.abs(power - exponent) < 4);
  const outermost = rows[row + 1].kind === "gap";
  return exponent !== undefined && exponent % LABEL_EVERY === 0 && !near && !outermost ? { text: `2${raised(exponent)}`, at: 1 } : null;
}

export function describe({ exponent, kind }, part, { step, last, scale: at, lowest, counts }, shift, isOutermost) {
  const [low, high] = [lowest + shift, lowest + shift + counts.length - 1];
  const where = { nonfinite: "NaN or Inf", zeros: "zero", gap: "" }[kind] ?? (isOutermost && exponent === high ? `at or above 2${raised(exponent)}`
    : isOutermost && exponent === low ? `below 2${raised(exponent + 1)}` : `from 2${raised(exponent)} to 2${raised(exponent + 1)}`);
  const moved = shift ? `, recorded ${scale(at)}` : "";
  return `${last > step ? `steps ${integer(step)} to ${integer(last)}` : `step ${integer(step)}`}  ·  loss scale ${shift ? scale(number(at) * 2 ** shift) : scale(at)}${moved}${where ? `  ·  ${where}: ${percent(part)}` : ""}`;
}

export function percent(value) {
  return value > 0 && value < 0.001 ? `${short(100 * value, 3)} %` : share(value);
}

// A column for each reading at its own steps, at least `least` steps wide to be visible, and an empty one (reading is null)
// for the steps between two readings.
export function columnsOf(readings, least) {
  const columns = [];
  readings.forEach(({ step, last }, reading) => {
    const next = readings[reading + 1]?.step ?? Infinity;
    const to = Math.min(Math.max(last + 1, step + least), next);
    columns.push({ from: step, to, reading });
    if (to < next && next < Infinity) columns.push({ from: to, to: next, reading: null });
  });
  return columns;
}
