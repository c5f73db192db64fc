// Draws a grid of cells over steps on a canvas: shades, non-finite cells, lines, names of rows, and steps below.

import { integer } from "./words.js";

export const AXIS_HEIGHT = 22;
const FONT = '11px "SFMono-Regular", ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
const MIN_CELL_WIDTH = 3;
const LABEL_SPACING = 84;

// box: positions, see Grid.box(). raster: a canvas for intermediate results.
export function paint(pen, box, picture, ink, raster) {
  pen.setTransform(box.dot, 0, 0, box.dot, 0, 0);
  pen.clearRect(0, 0, box.left + box.width + box.right, box.height + AXIS_HEIGHT);
  within(pen, [box.left, 0, box.width, box.height], () => {
    drawShades(pen, box, picture, raster);
    drawStarts(pen, box, picture, ink);
    drawBoundaries(pen, box, picture, ink);
    drawBroken(pen, box, picture, ink);
    drawSeams(pen, box, ink);
    drawLines(pen, box, picture, ink);
    drawBirths(pen, box, picture, ink);
  });
  within(pen, [0, 0, box.left, box.height], () => drawNames(pen, box, picture, ink));
  drawSteps(pen, box, ink);
  drawFlags(pen, box, picture, ink);
}

// A frame around one cell, with a minimum width.
export function drawCursor(pen, box, { edges }, { row, column }, ink) {
  const [left, right] = [box.x(edges[column]), box.x(edges[column + 1])];
  const room = Math.max(0, 7 - (right - left)) / 2;
  within(pen, [box.left - 2, 0, box.width + 4, box.height], () => {
    for (const [colour, width] of [[ink.card, 4], [ink.ink, 2]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.strokeRect(left - room, box.y(row), right - left + 2 * room, Math.max(box.rowHeight - 1, 3));
    }
  });
}

// The shared cursor: a thin line through the middle of its step.
export function drawStep(pen, box, step, ink) {
  within(pen, [box.left, 0, box.width, box.height], () => {
    const x = Math.round(box.x(step + 0.5));
    for (const [colour, width] of [[ink.card, 3], [ink.ink, 1]]) {
      pen.fillStyle = colour;
      pen.fillRect(x - (width - 1) / 2, 0, width, box.height);
    }
  });
}

export function drawChosen(pen, box, from, to, ink) {
  pen.globalAlpha = 0.3;
  pen.fillStyle = ink.accent;
  pen.fillRect(Math.min(from, to), 0, Math.abs(to - from), box.height);
  pen.globalAlpha = 1;
}

// The width of a name with that many letters, in a monospaced font.
export function nameWidth(pen, letters) {
  pen.font = FONT;
  return pen.measureText("0").width * letters;
}

function within(pen, area, draw) {
  pen.save();
  pen.beginPath();
  pen.rect(...area);
  pen.clip();
  draw();
  pen.restore();
}

function drawShades(pen, box, picture, raster) {
  const { begin, end } = box;
  const width = Math.max(1, Math.round(box.width * box.dot));
  const columns = columnsAt(box, picture.edges, width);
  const image = new ImageData(width, end - begin);
  const pixels = new Uint32Array(image.data.buffer);
  for (let row = begin, at = 0; row < end; row++) {
    const shown = picture.shades(row);
    for (let x = 0; x < width; x++, at++) if (columns[x] >= 0) pixels[at] = shown[columns[x]];
  }
  raster.width = width;
  raster.height = end - begin;
  raster.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(raster, box.left, box.y(begin), box.width, (end - begin) * box.rowHeight);
}

// The column of each pixel from left to right, -1 for none.
function columnsAt({ first, last }, edges, width) {
  const columns = new Int32Array(width).fill(-1);
  let column = 0;
  for (let x = 0; x < width; x++) {
    const step = first + ((x + 0.5) / width) * (last - first);
    while (column < edges.length - 2 && step >= edges[column + 1]) column++;
    if (step >= edges[column] && step < edges[column + 1]) columns[x] = column;
  }
  return columns;
}

// Striped, so that colour is not needed to see it, with a minimum width.
function drawBroken(pen, box, { edges, broken }, ink) {
  pen.fillStyle = stripes(pen, ink);
  for (let row = box.begin; row < box.end; row++) {
    for (let column = 0; column < edges.length - 1; column++) {
      if (!broken(row, column)) continue;
      const left = box.x(edges[column]);
      while (column < edges.length - 2 && broken(row, column + 1)) column++;
      const width = box.x(edges[column + 1]) - left;
      const room = Math.max(0, MIN_CELL_WIDTH - width) / 2;
      pen.fillRect(left - room, box.y(row), width + 2 * room, box.rowHeight);
    }
  }
}

function stripes(pen, ink) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const own = tile.getContext("2d");
  own.fillStyle = ink.page;
  own.fillRect(0, 0, 6, 6);
  own.strokeStyle = ink.card;
  own.lineWidth = 1.3;
  own.beginPath();
  for (const at of [-6, 0, 6]) {
    own.moveTo(at, 6);
    own.lineTo(at + 6, 0);
  }
  own.stroke();
  return pen.createPattern(tile, "repeat");
}

function drawSeams(pen, box, ink) {
  if (box.rowHeight < 10) return;
  pen.fillStyle = ink.card;
  for (let row = box.begin; row < box.end; row++) pen.fillRect(box.left, box.y(row + 1) - 1, box.width, 1);
}

// The first steps of incidents.
function drawStarts(pen, box, { starts = [] }, ink) {
  for (const { step, severity } of starts.filter((start) => start.step >= box.first && start.step < box.last)) {
    pen.fillStyle = ink.card;
    pen.fillRect(box.x(step) - 1.5, 0, 3, box.height);
    pen.fillStyle = ink[severity];
    pen.fillRect(box.x(step) - 0.5, 0, 1, box.height);
  }
}

// The first steps of attempts.
function drawBoundaries(pen, box, { boundaries = [] }, ink) {
  for (const { step } of boundaries.filter((boundary) => boundary.step >= box.first && boundary.step < box.last)) {
    const x = Math.round(box.x(step)) + 0.5;
    for (const [colour, dash, width] of [[ink.card, [], 3], [ink.ink, [3, 3], 1]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.setLineDash(dash);
      pen.beginPath();
      pen.moveTo(x, 0);
      pen.lineTo(x, box.height);
      pen.stroke();
    }
  }
  pen.setLineDash([]);
}

// Where a NaN or Inf was born: a ring around a dot, at its row and step.
function drawBirths(pen, box, { births = [] }, ink) {
  for (const { row, step } of births) {
    if (row < box.begin || row >= box.end || step < box.first || step >= box.last) continue;
    const [x, y] = [box.x(step + 0.5), box.y(row + 0.5)];
    for (const [radius, colour] of [[7, ink.card], [5.5, ink.ink], [4, ink.card], [2.2, ink.page]]) {
      pen.fillStyle = colour;
      pen.beginPath();
      pen.arc(x, y, radius, 0, 2 * Math.PI);
      pen.fill();
    }
  }
}

// Above each named row.
function drawLines(pen, box, { lines = [] }, ink) {
  for (const at of lines) {
    const y = Math.round(box.y(at)) + 0.5;
    for (const [colour, dash, width] of [[ink.card, [], 3], [ink.ink, [5, 4], 1]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.setLineDash(dash);
      pen.beginPath();
      pen.moveTo(box.left, y);
      pen.lineTo(box.left + box.width, y);
      pen.stroke();
    }
  }
}

function drawNames(pen, box, { name }, ink) {
  const maxLetters = Math.floor((box.left - 16) / nameWidth(pen, 1));
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let row = box.begin; row < box.end; row++) {
    const label = name(row);
    if (!label) continue;
    pen.fillStyle = ink[label.tone ?? "quiet"];
    if (label.tone === "page" || label.tone === "ticket") pen.fillRect(0, box.y(row), 3, box.rowHeight - 1);
    const letters = [...label.text];
    const text = letters.length > maxLetters ? "…" + letters.slice(letters.length - maxLetters + 1).join("") : label.text;
    pen.textAlign = label.isBlock ? "left" : "right";
    pen.fillText(text, label.isBlock ? 6 : box.left - 8, box.y(row) + (label.at ?? 0.5) * box.rowHeight, box.left - 12);
    if (label.outline) drawOutline(pen, box, row, label.outline, ink);
  }
}

function drawOutline(pen, box, row, outline, ink) {
  pen.strokeStyle = ink.second;
  pen.lineWidth = 1.5;
  pen.setLineDash(outline === "part" ? [4, 3] : []);
  pen.strokeRect(4.5, box.y(row) + 1.5, box.left - 9, box.rowHeight - 4);
  pen.setLineDash([]);
}

export function drawSteps(pen, box, ink) {
  const { first, last } = box;
  const rough = Math.max(1, ((last - first) * LABEL_SPACING) / box.width);
  const power = 10 ** Math.floor(Math.log10(rough));
  const every = [1, 2, 5, 10].map((unit) => unit * power).find((interval) => interval >= rough);
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "top";
  pen.fillStyle = ink.quiet;
  for (let step = Math.ceil(first / every) * every; step < last; step += every) {
    const x = Math.min(Math.max(box.x(step), box.left + 4), box.left + box.width - 14);
    pen.fillRect(box.x(step), box.height, 1, 3);
    pen.fillText(integer(step), x, box.height + 6);
  }
}

// A bar beside the cells that marks important rows among all rows, as an overview for scrolling.
function drawFlags(pen, box, { flags = [], rows }, ink) {
  if (!box.right) return;
  for (const { row, tone } of flags) {
    pen.fillStyle = ink[tone];
    pen.fillRect(box.left + box.width + 2, (row / rows) * box.height, box.right - 3, Math.max(2, box.height / rows));
  }
}
