// One stat of all tensors over the steps, as the collector gives it in float32, and what is to be seen in it.

import { changed } from "./api.js";

const PAGE = 1000;
const MOST = 4000;
const FEWER = 250;
const ABSENT = 0x7fc0a3a3;
const SPARSE = 0.6;
const SEEN = 150;

// Reads it, unless it is still what was read before; then that. reached: the run's last step. shares: counts become shares
// of a tensor's elements. Of so many tensors that it takes pages fewer cells are asked for; of a stat that is read at every
// tenth step as many as were read, else there would be little but gaps; of one that is read now and then such as are seen.
export async function readMatrix(run, asked, { reached, shares }, before) {
  const question = JSON.stringify([run, asked]);
  let known = before?.question === question ? before : null;
  for (;;) {
    const cells = known ? fitting(known, asked, reached) : asked.cells;
    const found = await pages(run, { ...asked, cells }, known?.tag, shares);
    if (!found) return known;
    const first = !known;
    known = { ...found, question, grain: known ? known.grain : grainOf(found) };
    if (!first || fitting(known, asked, reached) === cells) return known;
  }
}

function fitting({ grain, more }, { cells, from, to }, reached) {
  const span = (to ?? reached) - (from ?? 0) + 1;
  const room = more ? Math.min(cells, FEWER) : cells;
  return Math.max(1, Math.min(room, grain === Infinity ? SEEN : grain ? Math.floor(span / grain) : room));
}

// Steps from reading to reading where they leave gaps, Infinity where those are of any length, null without gaps.
function grainOf({ steps, columns, filled, widest }) {
  if (columns < 20 || !filled || filled > SPARSE * columns) return null;
  const step = (steps.at(-1) - steps[0]) / columns;
  return widest * filled > 2 * columns ? Infinity : widest * step;
}

async function pages(run, asked, tag, shares) {
  const path = `/runs/${encodeURIComponent(run)}/tensors/matrix`;
  const ask = (page, known) => changed(known, path, { ...asked, format: "float32", page_size: PAGE, page_token: page }, unpacked);
  const first = await ask(null, tag);
  if (!first) return null;
  const parts = [first.said];
  while (parts.at(-1).next_page_token && parts.length * PAGE < MOST && asked.cells <= FEWER) parts.push((await ask(parts.at(-1).next_page_token)).said);
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

// Arrays stay as they came, one for each page: row and column find a value in them.
function joined(parts, shares) {
  const [{ stat, steps }] = parts;
  const items = parts.flatMap((part) => part.items);
  const columns = Math.max(0, steps.length - 1);
  const matrix = {
    stat, steps, items, columns, more: parts.length > 1 || parts[0].next_page_token !== null, cut: parts.at(-1).next_page_token !== null,
    at: (row, column) => {
      const { values, bits } = parts[Math.floor(row / PAGE)];
      const index = (row % PAGE) * columns + column;
      if (bits[index] === ABSENT) return null;
      return shares ? values[index] / Math.max(1, items[row].numel) : values[index];
    },
    // The step at which the cell's value was measured.
    stepAt: (row, column) => steps[column] + parts[Math.floor(row / PAGE)].offsets[(row % PAGE) * columns + column],
  };
  return { ...matrix, ...looked(matrix) };
}

// filled: columns with a value; widest: how far apart two of them are at most. finite: all values that are. broken: row and column of what was first not finite in each
// tensor, and its step. highest, lowest: [row, column, value].
function looked({ items, columns, at, stepAt }) {
  const there = new Uint8Array(columns);
  const finite = new Float32Array(items.length * columns);
  const broken = [];
  let [count, highest, lowest] = [0, null, null];
  for (let row = 0; row < items.length; row++) {
    let sound = true;
    for (let column = 0; column < columns; column++) {
      const value = at(row, column);
      if (value === null) continue;
      there[column] = 1;
      if (Number.isFinite(value)) {
        finite[count++] = value;
        if (!highest || value > highest[2]) highest = [row, column, value];
        if (!lowest || value < lowest[2]) lowest = [row, column, value];
      } else if (sound) {
        sound = false;
        broken.push({ row, column, step: stepAt(row, column) });
      }
    }
  }
  const measured = [...there.keys()].filter((column) => there[column]);
  const widest = Math.max(...[...measured.slice(1), columns].map((column, index) => column - measured[index]));
  return { filled: measured.length, widest, finite: finite.subarray(0, count), broken, highest, lowest };
}
