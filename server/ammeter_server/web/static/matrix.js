// Reads one stat of all tensors over steps as float32, and summarizes it.

import { changed } from "./api.js";

const PAGE_TENSORS = 1000;
const MAX_TENSORS = 4000;
const MAX_PAGED_CELLS = 250;
const ABSENT = 0x7fc0a3a3;
const SPARSE_SHARE = 0.6;
const IRREGULAR_CELLS = 150;
const TIMEOUT_MS = 60000;

// Reads a matrix, or returns the previous one if it is still current. reached: the run's last step. shares: converts counts
// to shares of a tensor's elements. Requests fewer cells if tensors need several pages; as many cells as readings for a stat
// that is sampled regularly, to avoid gaps; and cells of a visible width for a stat with irregular readings.
export async function readMatrix(run, query, { reached, shares }, before) {
  const key = JSON.stringify([run, query]);
  let known = before?.key === key ? before : null;
  for (;;) {
    const cells = known ? fitting(known, query, reached) : query.cells;
    const read = await pages(run, { ...query, cells }, known?.tag, shares);
    if (!read) return known;
    const first = !known;
    known = { ...read, key, grain: known ? known.grain : grainOf(read) };
    if (!first || fitting(known, query, reached) === cells) return known;
  }
}

function fitting({ grain, more }, { cells, from, to }, reached) {
  const span = (to ?? reached) - (from ?? 0) + 1;
  const room = more ? Math.min(cells, MAX_PAGED_CELLS) : cells;
  return Math.max(1, Math.min(room, grain === Infinity ? IRREGULAR_CELLS : grain ? Math.floor(span / grain) : room));
}

// Steps between readings if they leave gaps, Infinity if the gaps are irregular, null without gaps.
function grainOf({ steps, columns, filled, widest }) {
  if (columns < 20 || !filled || filled > SPARSE_SHARE * columns) return null;
  const step = (steps.at(-1) - steps[0]) / columns;
  return widest * filled > 2 * columns ? Infinity : widest * step;
}

async function pages(run, query, tag, shares) {
  const path = `/runs/${encodeURIComponent(run)}/tensors/matrix`;
  const request = (page, known) => changed(known, path, { ...query, format: "float32", page_size: PAGE_TENSORS, page_token: page }, unpacked, TIMEOUT_MS);
  const first = await request(null, tag);
  if (!first) return null;
  const parts = [first.content];
  while (parts.at(-1).next_page_token && parts.length * PAGE_TENSORS < MAX_TENSORS && query.cells <= MAX_PAGED_CELLS) parts.push((await request(parts.at(-1).next_page_token)).content);
  return { ...joined(parts, shares), tag: first.tag };
}

async function unpacked(answer) {
  const data = await answer.arrayBuffer();
  const begin = 4 + new DataView(data).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, begin - 4)));
  const cells = header.items.length * Math.max(0, header.steps.length - 1);
  const Offsets = header.offset_bytes === 2 ? Uint16Array : Uint32Array;
  return { ...header, values: new Float32Array(data, begin, cells), bits: new Uint32Array(data, begin, cells), offsets: new Offsets(data, begin + 4 * cells, cells) };
}

// Arrays stay as received, one per page; at() finds a value by row and column.
function joined(parts, shares) {
  const [{ stat, order, steps }] = parts;
  const items = parts.flatMap((part) => part.items);
  const columns = Math.max(0, steps.length - 1);
  const matrix = {
    stat, order, steps, items, columns, more: parts.length > 1 || parts[0].next_page_token !== null, cut: parts.at(-1).next_page_token !== null,
    at: (row, column) => {
      const { values, bits } = parts[Math.floor(row / PAGE_TENSORS)];
      const index = (row % PAGE_TENSORS) * columns + column;
      if (bits[index] === ABSENT) return null;
      return shares ? values[index] / Math.max(1, items[row].numel) : values[index];
    },
    // The step of the cell's measurement.
    stepAt: (row, column) => steps[column] + parts[Math.floor(row / PAGE_TENSORS)].offsets[(row % PAGE_TENSORS) * columns + column],
  };
  return { ...matrix, ...summary(matrix) };
}

// filled: number of columns with a value. widest: maximum distance between two of them. finite: all finite values. broken:
// row, column and step of the first non-finite value of each tensor. highest, lowest: [row, column, value].
function summary({ items, columns, at, stepAt }) {
  const measuredColumns = new Uint8Array(columns);
  const finite = new Float32Array(items.length * columns);
  const broken = [];
  let [count, highest, lowest] = [0, null, null];
  for (let row = 0; row < items.length; row++) {
    let allFinite = true;
    for (let column = 0; column < columns; column++) {
      const value = at(row, column);
      if (value === null) continue;
      measuredColumns[column] = 1;
      if (Number.isFinite(value)) {
        finite[count++] = value;
        if (!highest || value > highest[2]) highest = [row, column, value];
        if (!lowest || value < lowest[2]) lowest = [row, column, value];
      } else if (allFinite) {
        allFinite = false;
        broken.push({ row, column, step: stepAt(row, column) });
      }
    }
  }
  const measured = [...measuredColumns.keys()].filter((column) => measuredColumns[column]);
  const widest = Math.max(...[...measured.slice(1), columns].map((column, index) => column - measured[index]));
  return { filled: measured.length, widest, finite: finite.subarray(0, count), broken, highest, lowest };
}
