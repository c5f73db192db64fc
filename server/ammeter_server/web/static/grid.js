// A grid of cells over steps: rows that scroll under a canvas of the visible size, a cursor for pointer and keyboard, and
// dragging to select steps as in the charts.

import { make } from "./dom.js";
import { AXIS_HEIGHT, drawChosen, drawCursor, nameWidth, paint } from "./paint.js";
import { colours, dark } from "./shades.js";

const MAX_HEIGHT = 480;
const FLAG_WIDTH = 8;
const MOVES = {
  ArrowLeft: { column: -1 }, ArrowRight: { column: 1 }, ArrowUp: { row: -1 }, ArrowDown: { row: 1 },
  Home: { column: -Infinity }, End: { column: Infinity }, PageUp: { row: -10 }, PageDown: { row: 10 },
};

export class Grid {
  // actions: zoom(first, last) selects steps; press(row, column) is optional.
  constructor(place, actions) {
    this.actions = actions;
    this.picture = null;
    this.hovered = this.cursor = this.dragged = null;
    this.raster = document.createElement("canvas");
    this.canvas = make("canvas", { class: actions.press ? "cells leads" : "cells", tabindex: "0", role: "application", "aria-roledescription": "picture of cells" });
    this.spacer = make("div");
    this.view = make("div", { class: "rows" }, this.canvas, this.spacer);
    this.readout = make("p", { class: "readout", role: "status" });
    place.append(this.view, this.readout);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    const on = (kind, react) => canvas.addEventListener(kind, react);
    new ResizeObserver(() => this.requestPaint()).observe(this.view);
    dark.addEventListener("change", () => this.requestPaint());
    this.view.addEventListener("scroll", () => this.requestPaint());
    on("pointermove", (event) => this.move(event));
    on("pointerleave", () => this.point(null));
    on("pointerdown", (event) => this.startDrag(event));
    on("pointerup", (event) => this.endDrag(event));
    on("pointercancel", () => this.drag(null));
    on("keydown", (event) => this.handleKey(event));
    on("focus", () => canvas.matches(":focus-visible") && this.go(this.cursor ?? this.picture?.begin));
    on("blur", () => this.requestPaint());
  }

  // edges: the steps between columns. first, last: which steps are shown, last is not. rows, rowHeight. letters: of the
  // longest name. shades(row): a pixel for each column. broken(row, column). name(row): text and tone, or null.
  // describe(row, column): the cell in words. words: the picture in words. begin: the cell where the keyboard begins.
  show(picture) {
    this.picture = picture;
    this.cursor = this.cursor && this.clamped(this.cursor);
    this.canvas.setAttribute("aria-label", `${picture.words} Arrow keys move the cursor.${this.actions.press ? " Enter shows the curve." : ""}`);
    this.requestPaint();
  }

  // Moves the cursor to the cell and scrolls to its row.
  go(cell) {
    if (!this.picture || !cell) return;
    this.cursor = this.clamped(cell);
    const box = this.box();
    const from = this.cursor.row * box.rowHeight;
    const room = box.height - box.rowHeight;
    this.view.scrollTop = Math.min(Math.max(this.view.scrollTop, from - room), from);
    this.hovered = null;
    this.requestPaint();
  }

  // Scrolls the row to the middle.
  reveal(row) {
    this.requestPaint();
    requestAnimationFrame(() => (this.view.scrollTop = (row + 0.5) * this.picture.rowHeight - MAX_HEIGHT / 2));
  }

  // The number of columns that fit.
  room() {
    const width = this.view.clientWidth || this.view.closest(".card").clientWidth;
    return Math.max(60, 20 * Math.floor((width - this.left(width)) / 20));
  }

  requestPaint() {
    this.pendingPaint ??= requestAnimationFrame(() => {
      this.pendingPaint = null;
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
    const cell = this.hovered ?? (document.activeElement === canvas ? this.cursor : null);
    if (cell) drawCursor(pen, box, picture, cell, ink);
    const words = cell ? picture.describe(cell.row, cell.column) : picture.hint;
    if (this.readout.textContent !== words) this.readout.textContent = words;
    view.classList.toggle("scrolls", this.spacer.offsetHeight > 0);
  }

  size() {
    const { canvas, picture, spacer, view } = this;
    const all = picture.rows * picture.rowHeight;
    const height = Math.min(all, MAX_HEIGHT);
    spacer.style.height = `${all - height}px`;
    view.style.height = canvas.style.height = `${height + AXIS_HEIGHT}px`;
    const [width, high] = [view.clientWidth, height + AXIS_HEIGHT].map((length) => Math.round(length * devicePixelRatio));
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== high) canvas.height = high;
  }

  // Positions in pixels of the page: cells have left, width and height, with rows from begin to end.
  box() {
    const { rows, rowHeight, first, last } = this.picture;
    const left = this.left();
    const all = rows * rowHeight;
    const right = all > MAX_HEIGHT ? FLAG_WIDTH : 0;
    const width = Math.max(20, this.view.clientWidth - left - right);
    const height = Math.min(all, MAX_HEIGHT);
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

  clamped({ row, column }) {
    const { rows, edges } = this.picture;
    const cut = (at, most) => Math.max(0, Math.min(at, most - 1));
    return { row: cut(row, rows), column: cut(column, edges.length - 1) };
  }

  // The cell under the pointer; left of the cells, the first cell of the row.
  at({ offsetX, offsetY }) {
    const box = this.box();
    if (offsetY >= box.height) return null;
    const row = Math.floor((offsetY - box.y(0)) / box.rowHeight);
    return this.clamped({ row, column: columnOf(this.picture.edges, this.stepAt(offsetX)) });
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
    this.hovered = cell;
    this.requestPaint();
  }

  drag(dragged) {
    this.dragged = dragged;
    this.requestPaint();
  }

  startDrag(event) {
    if (event.button !== 0 || !this.picture) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.dragged = { from: event.offsetX, to: event.offsetX };
  }

  endDrag(event) {
    if (!this.dragged) return;
    const { from } = this.dragged;
    const cell = this.at(event);
    this.drag(null);
    const [first, last] = [from, event.offsetX].sort((a, b) => a - b).map((x) => Math.floor(this.stepAt(x)));
    if (Math.abs(event.offsetX - from) >= 4) this.actions.zoom(first, Math.max(last, first + 1));
    else if (cell) this.actions.press?.(cell.row, cell.column);
  }

  handleKey(event) {
    if (!this.picture || event.ctrlKey || event.metaKey || event.altKey) return;
    const move = MOVES[event.key];
    const { row, column } = this.cursor ?? this.picture.begin;
    if (move) this.go({ row: row + (move.row ?? 0), column: column + (move.column ?? 0) });
    else if ((event.key === "Enter" || event.key === " ") && this.actions.press) this.actions.press(row, column);
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
