// A picture of cells over steps: rows that scroll under a canvas of the size that is seen, a cursor for the pointer and
// the keyboard, and dragging to choose steps as in the charts.

import { make } from "./dom.js";
import { AXIS, drawChosen, drawCursor, nameWidth, paint } from "./paint.js";
import { colours, dark } from "./shades.js";

const HIGHEST = 480;
const FLAGS = 8;
const MOVES = {
  ArrowLeft: { column: -1 }, ArrowRight: { column: 1 }, ArrowUp: { row: -1 }, ArrowDown: { row: 1 },
  Home: { column: -Infinity }, End: { column: Infinity }, PageUp: { row: -10 }, PageDown: { row: 10 },
};

export class Grid {
  // doors: zoom(first, last) chooses steps; press(row), where a row leads somewhere.
  constructor(place, doors) {
    this.doors = doors;
    this.picture = null;
    this.pointed = this.cursor = this.dragged = null;
    this.raster = document.createElement("canvas");
    this.canvas = make("canvas", { class: doors.press ? "cells leads" : "cells", tabindex: "0", role: "application", "aria-roledescription": "picture of cells" });
    this.rest = make("div");
    this.view = make("div", { class: "rows" }, this.canvas, this.rest);
    this.readout = make("p", { class: "readout", role: "status" });
    place.append(this.view, this.readout);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    const on = (kind, react) => canvas.addEventListener(kind, react);
    new ResizeObserver(() => this.again()).observe(this.view);
    dark.addEventListener("change", () => this.again());
    this.view.addEventListener("scroll", () => this.again());
    on("pointermove", (event) => this.move(event));
    on("pointerleave", () => this.point(null));
    on("pointerdown", (event) => this.grasp(event));
    on("pointerup", (event) => this.release(event));
    on("pointercancel", () => this.drag(null));
    on("keydown", (event) => this.type(event));
    on("focus", () => canvas.matches(":focus-visible") && this.go(this.cursor ?? this.picture?.begin));
    on("blur", () => this.again());
  }

  // edges: the steps between columns. first, last: which steps are shown, last is not. rows, rowHeight. letters: of the
  // longest name. shades(row): a pixel for each column. broken(row, column). name(row): text and tone, or null.
  // say(row, column): the cell in words. words: the picture in words. begin: the cell where the keyboard begins.
  show(picture) {
    this.picture = picture;
    this.cursor = this.cursor && this.held(this.cursor);
    this.canvas.setAttribute("aria-label", `${picture.words} Arrow keys go from cell to cell.${this.doors.press ? " Enter shows the curve." : ""}`);
    this.again();
  }

  // Shows the cell, with its row in sight.
  go(cell) {
    if (!this.picture || !cell) return;
    this.cursor = this.held(cell);
    const box = this.box();
    const from = this.cursor.row * box.rowHeight;
    const room = box.height - box.rowHeight;
    this.view.scrollTop = Math.min(Math.max(this.view.scrollTop, from - room), from);
    this.pointed = null;
    this.again();
  }

  // The row in the middle of what is seen.
  reveal(row) {
    this.again();
    requestAnimationFrame(() => (this.view.scrollTop = (row + 0.5) * this.picture.rowHeight - HIGHEST / 2));
  }

  // How many columns there is room for.
  room() {
    const width = this.view.clientWidth || this.view.closest(".card").clientWidth;
    return Math.max(60, 20 * Math.floor((width - this.left(width)) / 20));
  }

  again() {
    this.due ??= requestAnimationFrame(() => {
      this.due = null;
      if (this.picture && this.view.clientWidth) this.paint();
    });
  }

  paint() {
    const { canvas, picture, view } = this;
    this.size();
    const box = this.box();
    const ink = colours();
    const pen = canvas.getContext("2d");
    paint(pen, box, picture, ink, this.raster);
    if (this.dragged) drawChosen(pen, box, this.dragged.from, this.dragged.to, ink);
    const cell = this.pointed ?? (document.activeElement === canvas ? this.cursor : null);
    if (cell) drawCursor(pen, box, picture, cell, ink);
    const words = cell ? picture.say(cell.row, cell.column) : picture.hint;
    if (this.readout.textContent !== words) this.readout.textContent = words;
    view.classList.toggle("scrolls", this.rest.offsetHeight > 0);
  }

  size() {
    const { canvas, picture, rest, view } = this;
    const all = picture.rows * picture.rowHeight;
    const height = Math.min(all, HIGHEST);
    rest.style.height = `${all - height}px`;
    view.style.height = canvas.style.height = `${height + AXIS}px`;
    const [width, high] = [view.clientWidth, height + AXIS].map((length) => Math.round(length * devicePixelRatio));
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== high) canvas.height = high;
  }

  // Where things are, in pixels of the page: cells have left, width and height, with rows from begin to end.
  box() {
    const { rows, rowHeight, first, last } = this.picture;
    const left = this.left();
    const all = rows * rowHeight;
    const right = all > HIGHEST ? FLAGS : 0;
    const width = Math.max(20, this.view.clientWidth - left - right);
    const height = Math.min(all, HIGHEST);
    const from = Math.min(this.view.scrollTop, all - height);
    return {
      left, width, right, height, rowHeight, first, last, dot: devicePixelRatio,
      begin: Math.floor(from / rowHeight), end: Math.min(rows, Math.ceil((from + height) / rowHeight)),
      x: (step) => left + ((step - first) / (last - first)) * width,
      y: (row) => row * rowHeight - from,
    };
  }

  left(width = this.view.clientWidth) {
    const wanted = nameWidth(this.canvas.getContext("2d"), this.picture?.letters ?? 24) + 22;
    return Math.round(Math.min(wanted, 0.36 * width));
  }

  held({ row, column }) {
    const { rows, edges } = this.picture;
    const cut = (at, most) => Math.max(0, Math.min(at, most - 1));
    return { row: cut(row, rows), column: cut(column, edges.length - 1) };
  }

  // The cell under the pointer, left of the cells the row with its first column.
  at({ offsetX, offsetY }) {
    const box = this.box();
    if (offsetY >= box.height) return null;
    const row = Math.floor((offsetY - box.y(0)) / box.rowHeight);
    return this.held({ row, column: columnOf(this.picture.edges, this.stepAt(offsetX)) });
  }

  stepAt(x) {
    const { left, width, first, last } = this.box();
    return Math.min(Math.max(first + ((x - left) / width) * (last - first), first), last - 0.5);
  }

  move(event) {
    if (!this.picture) return;
    this.point(this.at(event));
    if (this.dragged) this.drag({ ...this.dragged, to: event.offsetX });
  }

  point(cell) {
    this.pointed = cell;
    this.again();
  }

  drag(dragged) {
    this.dragged = dragged;
    this.again();
  }

  grasp(event) {
    if (event.button !== 0 || !this.picture) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.dragged = { from: event.offsetX, to: event.offsetX };
  }

  release(event) {
    if (!this.dragged) return;
    const { from } = this.dragged;
    const cell = this.at(event);
    this.drag(null);
    const [first, last] = [from, event.offsetX].sort((a, b) => a - b).map((x) => Math.floor(this.stepAt(x)));
    if (Math.abs(event.offsetX - from) >= 4) this.doors.zoom(first, Math.max(last, first + 1));
    else if (cell) this.doors.press?.(cell.row);
  }

  type(event) {
    if (!this.picture || event.ctrlKey || event.metaKey || event.altKey) return;
    const move = MOVES[event.key];
    const { row, column } = this.cursor ?? this.picture.begin;
    if (move) this.go({ row: row + (move.row ?? 0), column: column + (move.column ?? 0) });
    else if ((event.key === "Enter" || event.key === " ") && this.doors.press) this.doors.press(row);
    else return;
    event.preventDefault();
  }
}

function columnOf(edges, step) {
  let [low, high] = [0, edges.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= step) low = middle;
    else high = middle;
  }
  return low;
}
