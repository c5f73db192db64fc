// A grid of cells over steps: rows that scroll under a canvas of the visible size, a cursor for pointer, fingers and
// keyboard, and dragging to select steps as in the charts.

import { followFingers, Kept } from "./cursor.js";
import { make } from "./dom.js";
import { AXIS_HEIGHT, drawChosen, drawCursor, drawStep, nameWidth, paint } from "./paint.js";
import { colours, dark } from "./shades.js";
import { integer } from "./words.js";

const MAX_HEIGHT = 480;
const FLAG_WIDTH = 8;
const MOVES = {
  ArrowLeft: { column: -1 }, ArrowRight: { column: 1 }, ArrowUp: { row: -1 }, ArrowDown: { row: 1 },
  Home: { column: -Infinity }, End: { column: Infinity }, PageUp: { row: -10 }, PageDown: { row: 10 },
};

export class Grid {
  // actions: zoom(first, last) and all() select steps, and the cursor of all pictures; press(row, column, isFinger) is
  // optional.
  constructor(place, actions) {
    this.actions = actions;
    this.shared = actions.cursor;
    this.picture = this.preview = null;
    this.hovered = this.cursor = this.dragged = null;
    this.raster = document.createElement("canvas");
    this.canvas = make("canvas", { class: actions.press ? "cells leads" : "cells", tabindex: "0", role: "application", "aria-roledescription": "picture of cells" });
    this.spacer = make("div");
    this.view = make("div", { class: "rows" }, this.canvas, this.spacer);
    this.readout = make("p", { class: "readout" });
    this.kept = new Kept(this.canvas);
    place.append(this.view, this.readout);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    const on = (kind, react) => canvas.addEventListener(kind, react);
    new ResizeObserver(() => this.requestPaint()).observe(this.view);
    dark.addEventListener("change", () => this.requestPaint());
    this.view.addEventListener("scroll", () => this.requestPaint());
    on("pointermove", (event) => event.pointerType !== "touch" && this.move(event));
    on("pointerleave", ({ pointerType }) => pointerType !== "touch" && this.point(null));
    on("pointerdown", (event) => this.startDrag(event));
    on("pointerup", (event) => this.endDrag(event));
    on("pointercancel", () => this.drag(null));
    if (!this.actions.press) on("dblclick", () => this.actions.all());
    on("keydown", (event) => this.handleKey(event));
    on("focus", () => canvas.matches(":focus-visible") && this.picture && this.reach(this.placeOfCursor()));
    on("blur", () => this.requestPaint(false));
    this.shared.join(canvas, () => this.paint());
    followFingers(canvas, {
      area: () => this.box(),
      range: () => this.range(),
      point: (offsetX, offsetY) => this.picture && this.point(this.at({ offsetX, offsetY }), offsetX),
      preview: (...steps) => {
        this.preview = steps[0] === null ? null : steps;
        this.requestPaint();
      },
      zoom: (first, last) => this.actions.zoom(first, last - 1),
      tap: (offsetX, offsetY) => this.press(this.at({ offsetX, offsetY }), true),
    });
  }

  // edges: the steps between columns. first, last: which steps are shown, last is not. rows, rowHeight. letters: of the
  // longest name. shades(row): a pixel for each column. broken(row, column). name(row): text and tone, or null.
  // describe(row, column): the cell in words. describeColumn(column): a column in words. stepOf(row, column): the step of
  // a cell. words: the picture in words. begin: the cell where the keyboard begins.
  show(picture) {
    this.picture = picture;
    this.preview = null;
    this.cursor = this.cursor && this.clamped(this.cursor);
    this.hovered = this.hovered && this.clamped({ ...this.hovered, column: columnOf(picture.edges, this.shared.step ?? 0) });
    this.canvas.setAttribute("aria-label", `${picture.words} Arrow keys move the cursor.${this.actions.press ? " Enter shows the curve." : ""} Plus and minus zoom, 0 shows all steps.`);
    this.requestPaint();
  }

  // Where the keyboard begins: in the column of the shared cursor, if it is shown.
  placeOfCursor() {
    const cell = this.cursor ?? this.picture.begin;
    const { step } = this;
    return step === null ? cell : { ...cell, column: columnOf(this.picture.edges, step) };
  }

  // Moves the cursors to the cell and scrolls to its row.
  go(cell) {
    if (!this.picture || !cell) return;
    this.reach(cell);
    const { row, column } = this.cursor;
    this.shared.move(this.picture.stepOf(row, column), this.canvas);
    this.shared.announce(this.picture.describe(row, column));
  }

  reach(cell) {
    this.cursor = this.clamped(cell);
    const box = this.box();
    const from = this.cursor.row * box.rowHeight;
    const room = box.height - box.rowHeight;
    this.view.scrollTop = Math.min(Math.max(this.view.scrollTop, from - room), from);
    this.hovered = null;
    this.requestPaint(false);
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

  // isChanged: not only what is drawn over the cells.
  requestPaint(isChanged = true) {
    this.kept.isStale ||= isChanged;
    this.pendingPaint ??= requestAnimationFrame(() => {
      this.pendingPaint = null;
      this.paint();
    });
  }

  paint() {
    const { canvas, picture, view, step } = this;
    if (!picture || !view.clientWidth) return;
    const height = this.size();
    const box = this.box();
    const ink = colours();
    const pen = this.kept.pen(view.clientWidth, height, (own) => paint(own, box, picture, ink, this.raster));
    if (this.dragged) drawChosen(pen, box, this.dragged.from, this.dragged.to, ink);
    if (step !== null) drawStep(pen, box, step, ink);
    const isOwn = this.shared.owner === canvas;
    const cell = (isOwn ? this.hovered : null) ?? (document.activeElement === canvas ? this.cursor : null);
    if (cell) drawCursor(pen, box, picture, cell, ink);
    const isOther = step !== null && !isOwn;
    const words = cell && !isOther ? picture.describe(cell.row, cell.column) : isOther ? this.columnWords(step) : picture.hint;
    if (this.readout.textContent !== words) this.readout.textContent = words;
    view.classList.toggle("scrolls", this.spacer.offsetHeight > 0);
  }

  columnWords(step) {
    const { edges, describeColumn } = this.picture;
    return step < edges[0] || step >= edges.at(-1) ? `step ${integer(step)}  ·  not measured` : describeColumn(columnOf(edges, step));
  }

  // Which steps are shown, the last one excluded: while fingers select others, those.
  range() {
    return this.preview ?? (this.picture ? [this.picture.first, this.picture.last] : [0, 1]);
  }

  // The step of the shared cursor, if it is shown.
  get step() {
    const [first, last] = this.range();
    const { step } = this.shared;
    return step !== null && step >= first && step < last ? step : null;
  }

  size() {
    const { canvas, picture, spacer, view } = this;
    const all = picture.rows * picture.rowHeight;
    const height = Math.min(all, MAX_HEIGHT);
    spacer.style.height = `${all - height}px`;
    view.style.height = canvas.style.height = `${height + AXIS_HEIGHT}px`;
    return height + AXIS_HEIGHT;
  }

  // Positions in pixels of the page: cells have left, width and height, with rows from begin to end.
  box() {
    const { rows, rowHeight } = this.picture;
    const [first, last] = this.range();
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
    this.point(this.at(event), event.offsetX);
    if (this.dragged) this.drag({ ...this.dragged, to: event.offsetX });
  }

  point(cell, x) {
    this.hovered = cell;
    if (cell) this.shared.move(Math.floor(this.stepAt(x)), this.canvas);
    this.requestPaint(false);
  }

  drag(dragged) {
    this.dragged = dragged;
    this.requestPaint(false);
  }

  startDrag(event) {
    if (event.button !== 0 || !this.picture || event.pointerType === "touch") return;
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
    else this.press(cell, false);
  }

  press(cell, isFinger) {
    if (cell) this.actions.press?.(cell.row, cell.column, isFinger);
  }

  handleKey(event) {
    if (!this.picture || event.ctrlKey || event.metaKey || event.altKey) return;
    const move = MOVES[event.key];
    const { row, column } = this.cursor ?? this.placeOfCursor();
    if (move) this.go({ row: row + (move.row ?? 0), column: column + (move.column ?? 0) });
    else if ((event.key === "Enter" || event.key === " ") && this.actions.press) this.press({ row, column }, false);
    else if (!this.shared.zoomByKey(event, [this.range()[0], this.range()[1] - 1], this.actions)) return;
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
