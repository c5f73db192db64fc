// Rows of small charts over one axis of steps, with one cursor, for pointer, fingers and keyboard, and one selection of steps.

import { followFingers, Kept } from "./cursor.js";
import { make, replace } from "./dom.js";
import { paintCursor, paintRows, ROW_HEIGHT } from "./striprows.js";
import { AXIS_HEIGHT } from "./paint.js";
import { colours, dark } from "./shades.js";
import { integer } from "./words.js";

const NEAR_PX = 5;
const SIDE_PX = 6;

export class Strip {
  // actions: zoom(first, last) and all(), which select the steps of every chart, and the cursor of all of them.
  constructor(place, actions) {
    this.actions = actions;
    this.cursor = actions.cursor;
    this.picture = this.preview = this.dragged = null;
    this.row = 0;
    this.canvas = make("canvas", { class: "strip-canvas", tabindex: "0", role: "application", "aria-roledescription": "charts over steps" });
    this.list = make("div", { class: "strip-rows" });
    this.readout = make("p", { class: "readout" });
    this.view = make("div", { class: "strip" }, this.list, this.canvas);
    this.kept = new Kept(this.canvas);
    place.append(this.view, this.readout);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    const on = (kind, react) => canvas.addEventListener(kind, react);
    new ResizeObserver(() => this.requestPaint()).observe(this.view);
    dark.addEventListener("change", () => this.requestPaint());
    on("pointermove", (event) => event.pointerType !== "touch" && this.movePointer(event));
    on("pointerdown", (event) => this.startDrag(event));
    on("pointerup", (event) => this.endDrag(event));
    on("pointercancel", () => this.cancelDrag());
    on("dblclick", () => this.actions.all());
    on("keydown", (event) => this.handleKey(event));
    on("focus", () => this.requestPaint(false));
    on("blur", () => this.requestPaint(false));
    this.cursor.join(canvas, () => this.paint());
    followFingers(canvas, {
      area: () => ({ left: SIDE_PX, width: this.width() - 2 * SIDE_PX }),
      range: () => this.range(),
      point: (x) => this.point(x),
      preview: (...steps) => {
        this.preview = steps[0] === null ? null : steps;
        this.requestPaint();
      },
      zoom: (first, last) => this.actions.zoom(first, last),
    });
  }

  // rows: key, title, unit, range as words, lines, latest as words, and how to draw them. first, last: which steps are
  // shown. incidents, boundaries. words: the picture in words.
  show(picture) {
    const before = JSON.stringify(this.picture?.rows.map(({ key, title, words }) => [key, title, words]));
    this.picture = picture;
    this.preview = null;
    this.row = Math.min(this.row, picture.rows.length - 1);
    if (before !== JSON.stringify(picture.rows.map(({ key, title, words }) => [key, title, words]))) {
      replace(this.list, picture.rows.map(({ title, words }) => make("div", { class: "strip-row" },
        make("span", { class: "strip-name" }, title, make("span", { class: "under", title: words }, words)), make("span", { class: "strip-value" }))));
    }
    this.canvas.setAttribute("aria-label", `${picture.words} Left and right arrows move the cursor, up and down arrows choose a row, plus and minus zoom, 0 shows all steps.`);
    this.requestPaint();
  }

  width() {
    return Math.max(20, this.canvas.clientWidth);
  }

  // Which steps are shown: while fingers select others, those.
  range() {
    return this.preview ?? (this.picture ? [this.picture.first, this.picture.last] : [0, 1]);
  }

  // The step of the cursor, if it is shown.
  get step() {
    const [first, last] = this.range();
    const { step } = this.cursor;
    return step !== null && step >= first && step <= last ? step : null;
  }

  // isChanged: not only what is drawn over the rows.
  requestPaint(isChanged = true) {
    this.kept.isStale ||= isChanged;
    this.pendingPaint ??= requestAnimationFrame(() => {
      this.pendingPaint = null;
      this.paint();
    });
  }

  paint() {
    const { canvas, picture, step } = this;
    if (!picture || !this.view.clientWidth) return;
    const height = picture.rows.length * ROW_HEIGHT + AXIS_HEIGHT;
    canvas.style.height = `${height}px`;
    const [first, last] = this.range();
    const box = { width: this.width(), height: height - AXIS_HEIGHT, dot: devicePixelRatio, x: (at) => this.x(at) };
    const ink = colours();
    const pen = this.kept.pen(this.width(), height, (own) => paintRows(own, box, { ...picture, first, last }, ink));
    const near = picture.rows.map((row) => (step === null ? null : this.nearest(row)));
    paintCursor(pen, box, picture, { step, near, dragged: this.dragged, row: document.activeElement === canvas ? this.row : -1 }, ink);
    this.showValues(near);
  }

  showValues(near) {
    const { picture, list, step } = this;
    picture.rows.forEach((row, index) => {
      const text = step === null ? row.latest : near[index] ? this.valueOf(row, near[index]) : "not read";
      const place = list.children[index].lastChild;
      if (place.textContent !== text) place.textContent = text;
      place.classList.toggle("quiet", step !== null && !near[index]);
      place.classList.toggle("bad", (step === null ? row.isBad : near[index]?.isBad) === true);
    });
    const text = step === null ? picture.hint : `Step ${integer(step)}`;
    if (this.readout.textContent !== text) this.readout.textContent = text;
  }

  valueOf(row, { step, text }) {
    return step === this.step || row.holds ? text : `${text} at ${integer(step)}`;
  }

  // The reading of the row next to the cursor, within a few pixels. A value of which another step is known may be older.
  nearest(row) {
    const [first, last] = this.range();
    const reach = (NEAR_PX / this.width()) * (last - first);
    let found = null;
    for (const { steps, values, word } of row.lines) {
      const index = nearestIndex(steps, this.step);
      const distance = Math.abs(steps[index] - this.step);
      if (distance > Math.max(reach, 0) || (found && distance >= found.distance)) continue;
      found = { distance, step: steps[index], value: values[index], text: row.format(values[index], word), isBad: row.marksBad && !Number.isFinite(values[index]) };
    }
    return found;
  }

  x(step) {
    const [first, last] = this.range();
    return ((step - first) / Math.max(1, last - first)) * (this.width() - 2 * SIDE_PX) + SIDE_PX;
  }

  stepAt(x) {
    const [first, last] = this.range();
    return Math.round(Math.min(Math.max(first + ((x - SIDE_PX) / (this.width() - 2 * SIDE_PX)) * (last - first), first), last));
  }

  point(x) {
    if (this.picture) this.cursor.move(this.stepAt(x), this.canvas);
  }

  movePointer({ offsetX }) {
    this.point(offsetX);
    if (this.dragged) this.drag({ ...this.dragged, to: offsetX });
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

  cancelDrag() {
    this.drag(null);
  }

  endDrag({ offsetX }) {
    if (!this.dragged) return;
    const ends = [this.dragged.from, offsetX];
    this.cancelDrag();
    const [first, last] = ends.sort((a, b) => a - b).map((x) => this.stepAt(x));
    if (ends[1] - ends[0] >= 4) this.actions.zoom(first, Math.max(last, first + 1));
  }

  handleKey(event) {
    if (!this.picture || event.ctrlKey || event.metaKey || event.altKey) return;
    const { first, last, rows } = this.picture;
    const pixel = Math.max(1, Math.round((last - first) / this.width()));
    const by = event.shiftKey ? 20 * pixel : pixel;
    const step = this.step ?? last;
    const move = { ArrowLeft: step - by, ArrowRight: step + by, Home: first, End: last }[event.key];
    const rowBy = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (rowBy) this.row = Math.min(Math.max(this.row + rowBy, 0), rows.length - 1);
    if (move !== undefined || rowBy) this.cursor.move(Math.min(Math.max(move ?? step, first), last), this.canvas);
    else if (!this.cursor.zoomByKey(event, [first, last], this.actions)) return;
    event.preventDefault();
    if (move !== undefined || rowBy) this.announce();
    this.requestPaint(false);
  }

  announce() {
    const row = this.picture.rows[this.row];
    const near = this.nearest(row);
    this.cursor.announce(`Step ${integer(this.step)}, ${row.title}: ${near ? this.valueOf(row, near) : "not read"}`);
  }
}

function nearestIndex(steps, step) {
  let [low, high] = [0, steps.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle;
    else high = middle;
  }
  return Math.abs(steps[high] - step) < Math.abs(steps[low] - step) ? high : low;
}
