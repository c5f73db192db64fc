// What decides about a run's health, in rows over one axis of steps: loss, loss scale, skips, headroom, underflow, lost
// updates, gradient norm, step time, memory and checkpoints.

import { changed, get } from "./api.js";
import { append, boundariesOf } from "./charts.js";
import { isTouched } from "./cursor.js";
import { make } from "./dom.js";
import { exportMenu } from "./exporting.js";
import { Fold } from "./fold.js";
import { Strip } from "./strip.js";
import { integer, plural, scale, severalLosses, share, short } from "./words.js";

const POINTS = 600;
const PAUSE_MS = 2000;
const PAUSE_FACTOR = 20;
const MAX_CHECKPOINTS = 200;
const GIB = 2 ** 30;
const CHECKPOINTS = { "checkpoint.saved": 1, "checkpoint.restored": 0 };

const seconds = (value) => (value < 1 ? `${short(value * 1000, 3)} ms` : `${short(value, 3)} s`);
const gibibytes = (value) => `${short(value / GIB, 3)} GiB`;
const bits = (value) => `${short(value, 3)} bits`;

// Rows in their order. Of `names`, a word distinguishes a second line. axis: see AXES. holds: a value counts until the next.
function rowsOf(run) {
  const number = run.precision === "bfloat16" ? "bfloat16" : "float16";
  const losses = severalLosses(run);
  return [
    { key: "loss", title: "Loss", names: ["loss", "val_loss", ...losses], words: ["", "validation", ...losses], format: short, axis: "linear", kind: "line", marksBad: true },
    { key: "scale", title: "Loss scale", names: ["scale"], format: scale, axis: "log2", kind: "steps" },
    { key: "skipped", title: "Skipped steps", names: ["skipped"], format: (value) => (value > 0 ? "skipped" : "applied"), axis: "share", kind: "ticks" },
    { key: "headroom", title: "Headroom", unit: `to ${number}'s largest`, names: [`headroom:${number}`], format: bits, axis: "reversed", kind: "band", limit: 0, least: 1 },
    { key: "underflow", title: "Underflow", unit: `in ${number}'s subnormals`, names: [`underflow:${number}`], format: share, axis: "zero", kind: "line" },
    { key: "lost", title: "Lost updates", unit: "sampled weights", names: ["lost_updates"], format: share, axis: "zero", kind: "line" },
    { key: "norm", title: "Gradient norm", names: ["grad_norm"], format: short, axis: "log10", kind: "line", marksBad: true },
    { key: "time", title: "Step time", names: ["step_seconds"], format: seconds, axis: "log10", kind: "line" },
    { key: "memory", title: "Memory", names: ["device_allocated_bytes", "device_reserved_bytes", "host_rss_bytes"], words: ["allocated", "reserved", "host"], format: gibibytes, axis: "zero", kind: "line" },
  ];
}

export class Health {
  constructor(place, run, charts) {
    this.path = `/runs/${encodeURIComponent(run)}`;
    this.charts = charts;
    this.incidents = [];
    this.checkpoints = [];
    this.fetched = this.pause = 0;
    this.fold = new Fold(place, "Health over steps", () => this.update());
    this.steps = make("span", { class: "quiet" });
    this.all = make("button", { id: "health-all", hidden: true, onclick: () => charts.all() }, "Show all steps");
    this.picture = make("div", {});
    this.absent = make("p", { class: "quiet small" });
    const zoom = charts.cursor.zoomButtons(() => this.strip.range(), (first, last) => charts.select(first, last));
    this.fold.body.append(make("div", { class: "filters" }, this.steps, this.all, zoom, exportMenu({ name: "health", title: () => this.title(), view: this.picture, table: () => this.table() })), this.picture, this.absent);
    this.strip = new Strip(this.picture, charts.actions);
  }

  mark(incidents) {
    const marked = incidents.map(({ first_step, step_offset, severity }) => ({ step: first_step + step_offset, severity }));
    if (JSON.stringify(marked) === JSON.stringify(this.incidents)) return;
    this.incidents = marked;
    this.draw();
  }

  // A run that continues is requested at most every two seconds, and for a twentieth of the time; other steps or another
  // rank at once.
  follow(run) {
    this.run = run;
    const view = JSON.stringify([this.charts.range, this.charts.rank]);
    const wait = view === this.view ? this.pause - (Date.now() - this.fetched) : 0;
    if (view !== this.view) this.preview();
    this.view = view;
    if (wait <= 0) return this.fold.markStale();
    this.waiting ??= setTimeout(() => {
      this.waiting = null;
      this.fold.markStale();
    }, wait);
    return null;
  }

  // Shows steps within the known ones at once; their own readings follow.
  preview() {
    const { rank, range } = this.charts;
    const { loaded } = this;
    if (!loaded || loaded.rank !== rank || !range || (loaded.range && (range[0] < loaded.range[0] || range[1] > loaded.range[1]))) return;
    [this.range, this.isPreview] = [range, true];
    this.draw();
  }

  async update() {
    this.fetched = Date.now();
    const { run } = this;
    const { rank, range } = this.charts;
    const rows = rowsOf(run);
    const names = rows.flatMap((row) => row.names).map((name) => name.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",");
    const query = { names, rank, points: POINTS, replaced: true, times: false, from: range?.[0], to: range?.[1] };
    const key = JSON.stringify(query);
    const [answer] = await Promise.all([changed(key === this.key ? this.tag : null, `${this.path}/series`, query), this.readCheckpoints(rank)]);
    if (answer) {
      [this.key, this.tag, this.rows, this.loaded] = [key, answer.tag, rows, { rank, range }];
      this.lines = new Map();
      answer.content.items.forEach((item) => append(this.lines, { ...item, ...answer.content.axes[item.axis] }));
    }
    [this.range, this.isPreview] = [range, false];
    this.pause = Math.max(PAUSE_MS, PAUSE_FACTOR * (Date.now() - this.fetched));
    this.draw();
  }

  async readCheckpoints(rank) {
    const { items } = await get(`${this.path}/events`, { name: Object.keys(CHECKPOINTS).join(","), rank, page_size: MAX_CHECKPOINTS });
    this.checkpoints = items.map(({ name, step, step_offset }) => ({ step: step + step_offset, isSaved: CHECKPOINTS[name] })).sort((a, b) => a.step - b.step);
  }

  draw() {
    if (!this.lines) return;
    const { run, range, rows } = this;
    const lines = [...this.lines.values()];
    const known = lines.filter(({ replaced }) => !replaced).flatMap(({ steps }) => [steps[0], steps.at(-1)]);
    const whole = [range ? 0 : Math.min(run.last_step ?? 0, ...known), run.last_step ?? 0];
    const [first, last] = range ?? whole;
    const drawn = [...rows.map((row) => this.filled(row, lines)), this.checkpointRow(first, last)];
    const present = drawn.filter((row) => row.lines.length);
    const missing = drawn.filter((row) => !row.lines.length && row.key !== "checkpoints").map(({ title }) => title.toLowerCase());
    this.picture.hidden = !present.length;
    this.absent.textContent = this.isPreview ? "Loading all readings of these steps …" : missing.length ? `Not measured${range ? " in these steps" : ""}: ${missing.join(", ")}.` : "";
    this.steps.textContent = range ? `Steps ${integer(first)} to ${integer(last)}` : "";
    this.all.hidden = !range;
    if (!present.length) return;
    this.strip.show({
      rows: present, first, last, whole, incidents: this.incidents, boundaries: boundariesOf(run.lives ?? []),
      hint: isTouched ? "Tap or drag to read a step, pinch to select steps." : "Drag to select steps, double-click for all of them.",
      words: `Health over steps ${integer(first)} to ${integer(last)}. ${present.map(({ title, latest, words }) => `${title}: ${latest}${words ? `, ${words}` : ""}`).join(". ")}. ${plural(this.incidents.length, "incident")} marked.`,
    });
  }

  filled(row, all) {
    const named = row.names.filter((name) => name !== "host_rss_bytes" || !all.some((line) => line.name === "device_allocated_bytes"));
    const lines = named.flatMap((name, index) => all.filter((line) => line.name === name && line.steps.length)
      .map((line) => ({ ...line, tone: Math.min(index, 1), word: row.words?.[index] ?? "" })));
    const values = lines.flatMap((line) => line.values.filter((value) => Number.isFinite(value) && (value > 0 || !row.axis.startsWith("log"))));
    const current = lines.filter(({ replaced }) => !replaced);
    const [low, high, place] = AXES[row.axis](values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity));
    const format = (value, word) => `${word ? `${word} ` : ""}${row.format(value)}`;
    const ends = values.length && row.kind !== "ticks" ? `${row.format(low)} to ${row.format(high)}` : "";
    const newest = current.at(0);
    const several = current.length > 1 ? current.filter(({ name }) => name !== "val_loss") : current;
    return {
      ...row, lines, place, format,
      words: [row.unit ?? (row.key === "memory" ? [...new Set(lines.map(({ word }) => word))].join(" and ") : ""), row.kind === "ticks" ? "" : ends].filter(Boolean).join(", "),
      latest: row.kind === "ticks" ? countOf(this.run) : several.slice(0, row.key === "loss" ? 2 : 1).map(({ values: of, word }) => format(of.at(-1), row.key === "loss" && several.length > 1 ? word : "")).join(", "),
      isBad: row.marksBad && newest !== undefined && !Number.isFinite(newest.values.at(-1)),
    };
  }

  title() {
    const { first, last } = this.strip.picture;
    return `Health of ${this.run.name || this.run.id} over steps ${integer(first)} to ${integer(last)}`;
  }

  // The readings that are drawn.
  table() {
    const rows = this.strip.picture.rows.flatMap(({ key, lines }) => lines.flatMap(({ name = key, word, stream = "", steps, values, replaced = false }) =>
      steps.map((step, index) => [key === "checkpoints" ? word : name, stream, replaced ? "yes" : "no", step, values[index]])));
    return [["series", "text"], ["stream", "text"], ["replaced", "text"], ["step", "integer"], ["value", "number"]].map((column, at) => [...column, rows.map((row) => row[at])]);
  }

  checkpointRow(first, last) {
    const within = this.checkpoints.filter(({ step }) => step >= first && step <= last);
    const kinds = [[1, "saved"], [0, "restored"]].map(([isSaved, word]) => ({ word, steps: within.filter((point) => point.isSaved === isSaved).map(({ step }) => step), isSaved }));
    const newest = this.checkpoints.findLast(({ isSaved }) => isSaved);
    return {
      key: "checkpoints", title: "Checkpoints", kind: "diamonds", place: () => 0.5, format: (_, word) => word,
      words: kinds.filter(({ steps }) => steps.length).map(({ steps, word }) => `${integer(steps.length)} ${word}`).join(", ") + (this.checkpoints.length === MAX_CHECKPOINTS ? ", the newest" : ""),
      latest: newest ? `saved at ${integer(newest.step)}` : "none saved",
      lines: kinds.filter(({ steps }) => steps.length).map(({ steps, word, isSaved }) => ({ steps, values: steps.map(() => isSaved), breaks: [], word })),
    };
  }
}

function countOf({ counters = {} }) {
  const attempts = (counters.applied ?? 0) + (counters.skipped ?? 0);
  return attempts ? `${integer(counters.skipped ?? 0)} of ${integer(attempts)} in all` : "–";
}

// Lowest, highest and place(value), from 0 at the bottom to 1 at the top, for values from low to high.
const AXES = {
  linear: (low, high) => within(low, high),
  zero: (low, high) => within(0, Math.max(high, 1e-12)),
  share: () => within(0, 1),
  reversed: (low, high) => [low, high, (value) => 1 - within(Math.min(low, 0), Math.max(high, 1))[2](value)],
  log2: (low, high) => logarithmic(low, high),
  log10: (low, high) => logarithmic(low, high),
};

function within(low, high) {
  const room = high - low;
  return [low, high, (value) => (room > 0 ? (value - low) / room : 0.5)];
}

function logarithmic(low, high) {
  const place = within(Math.log(low), Math.log(high))[2];
  return [low, high, (value) => place(Math.log(value))];
}
