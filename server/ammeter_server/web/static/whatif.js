// What the elements of each tensor would lose in another format or at another scale, and the narrowest format for each.

import { changed } from "./api.js";
import { make, replace, updateChildren } from "./dom.js";
import { Fold } from "./fold.js";
import { integer, plural, scale, share } from "./words.js";

const SHOWN_ROWS = 15;
const PAGE_SIZE = 1000;
const MAX_LOST = 0.01;
const MIN_MARGIN = 0.02;
const FORMATS = { float8_e4m3fn: "FP8 e4m3fn", float8_e5m2: "FP8 e5m2", float16: "float16", bfloat16: "bfloat16" };
const KINDS = { gradient: "gradients", weight: "weights" };
const POWERS = Array.from({ length: 25 }, (_, index) => 2 * index - 16);
const PARTS = [["overflow", "overflow"], ["normal", "kept"], ["subnormal", "subnormal, with fewer bits"], ["flushed", "zero"]];

export class WhatIf {
  constructor(place, run, charts) {
    this.path = `/runs/${encodeURIComponent(run)}/what-if`;
    this.charts = charts;
    this.asked = { of: "gradient", format: "float16", scale: "recorded" };
    this.showAll = false;
    this.fold = new Fold(place, "What if", () => this.update());
    this.emptyNote = make("p", { class: "empty small", hidden: true });
    this.rows = make("tbody");
    this.more = make("p", { class: "more" });
    this.notes = make("p", { class: "quiet" });
    this.picture = make("div", { hidden: true }, make("div", { class: "scroll" }, make("table", { class: "tensors forecasts" }, head(), this.rows)), this.more, legend(), this.notes);
    this.fold.body.append(this.filters(), this.emptyNote, this.picture);
  }

  follow() {
    return this.fold.markStale();
  }

  filters() {
    const choose = (name, label, options) => make("label", {}, `${label} `, make("select", { id: `what-if-${name}`, onchange: ({ target }) => this.ask({ [name]: target.value }) },
      options.map(([value, words]) => make("option", { value, selected: value === this.asked[name] }, words))));
    return make("div", { class: "filters" },
      choose("of", "the", Object.entries(KINDS)), choose("format", "were", Object.entries(FORMATS)),
      choose("scale", "at", [["recorded", "the scale of the run"], ["best", "the best scale of each tensor"], ...POWERS.map((power) => [`2^${power}`, `scale ${scale(2 ** power)}`])]));
  }

  ask(change) {
    Object.assign(this.asked, change);
    return this.fold.markStale();
  }

  async update() {
    const query = { ...this.asked, rank: this.charts.rank, page_size: PAGE_SIZE };
    const queryKey = JSON.stringify(query);
    const answer = await changed(queryKey === this.queryKey ? this.tag : null, this.path, query);
    if (!answer) return;
    this.queryKey = queryKey;
    this.tag = answer.tag;
    this.answer = answer.content;
    this.draw();
  }

  draw() {
    const { items, of, format } = this.answer;
    this.emptyNote.hidden = items.length > 0;
    this.picture.hidden = items.length === 0;
    this.emptyNote.textContent = `No ${KINDS[of]} were counted by tensor yet: the first are, beside the third full reading of the gradients.`;
    this.fold.facts.textContent = items.length ? counted(items) : "";
    const sorted = items.map((item, order) => ({ ...item, order })).sort((a, b) => lost(b) - lost(a) || b.subnormal - a.subnormal || a.order - b.order);
    updateChildren(this.rows, this.showAll ? sorted : sorted.slice(0, SHOWN_ROWS), ({ name }) => name, (item) => row(item));
    const toggle = make("button", { onclick: () => { this.showAll = !this.showAll; this.draw(); } }, this.showAll ? "Show fewer" : `Show all ${integer(items.length)}`);
    replace(this.more, items.length > SHOWN_ROWS ? toggle : null);
    this.notes.textContent = items.length ? noted(items, FORMATS[format], this.answer.next_page_token) : "";
  }
}

function head() {
  const column = (name, kind, title) => make("th", { scope: "col", class: kind, title }, name);
  return make("thead", {}, make("tr", {}, column("Tensor", ""), column("Nonzero elements", "strip"), column("Scale", "num"), column("Overflow", "num", "share that has no finite number in the format"),
    column("Subnormal", "num wide", "share that keeps fewer bits"), column("Zero", "num", "share that becomes zero"), column("Can go down to", "", "the narrowest format that loses at most 1 % of the elements, at its best scale")));
}

function row(item) {
  const { name, scale: factor, overflow, subnormal, flushed, margin } = item;
  const cell = (value, limit, kind, wide = "") => make("td", { class: `num ${wide}${value > limit ? kind : ""}`, title: margin >= MIN_MARGIN ? `few elements were read: ±${share(margin)}` : null }, share(value), margin >= MIN_MARGIN ? make("span", { class: "under" }, `±${share(margin)}`) : null);
  return make("tr", {}, make("th", { scope: "row", class: "code" }, make("bdi", {}, name)), make("td", { class: "strip" }, strip(item)), make("td", { class: "num" }, scale(factor)),
    cell(overflow, MAX_LOST, "bad"), cell(subnormal, 0.3, "warn", "wide "), cell(flushed, MAX_LOST, "bad"), make("td", { class: "down" }, ...recommendation(item)));
}

// The numbers are in the other columns. Styles are set one by one, because the page forbids style attributes.
function strip({ overflow, subnormal, flushed }) {
  const shares = { overflow, subnormal, flushed, normal: overflow === null ? null : 1 - overflow - subnormal - flushed };
  const bar = make("div", { class: "shares", "aria-hidden": "true" });
  for (const [part] of PARTS) {
    if (!(shares[part] > 0)) continue;
    const piece = make("i", { class: part });
    piece.style.flexGrow = String(shares[part]);
    bar.append(piece);
  }
  return bar;
}

function recommendation({ formats, recommended, undecided }) {
  const found = formats.find(({ format }) => format === recommended);
  if (found) return [`${FORMATS[found.format]} `, make("span", { class: "quiet" }, `at ${scale(found.scale)}`)];
  if (!formats.length) return [make("span", { class: "quiet" }, "only zeros were read")];
  return [make("span", { class: "quiet" }, undecided ? "too few elements read" : "float32")];
}

function lost({ overflow, flushed }) {
  return overflow + flushed;
}

function counted(items) {
  const number = (fits) => items.filter(fits).length;
  const parts = Object.entries(FORMATS).map(([format, label]) => [number(({ recommended }) => recommended === format), `down to ${label}`]);
  parts.push([number(({ recommended, undecided, formats }) => !recommended && !undecided && formats.length), "not below float32"], [number(({ undecided }) => undecided), "undecided"]);
  return `Of ${plural(items.length, "tensor")}: ${parts.filter(([count]) => count).map(([count, words]) => `${integer(count)} ${words}`).join(", ")}`;
}

function noted(items, format, more) {
  const first = Math.min(...items.map(({ first_step: step }) => step));
  const last = Math.max(...items.map(({ last_step: step }) => step));
  const cut = more ? ` These are the first ${integer(items.length)} tensors.` : "";
  return `Shares of the nonzero elements as ${format}, from readings at steps ${integer(first)} to ${integer(last)}. A tensor can go down to a format that loses at most 1 % of them at its best scale. This is about the range of the format; what its fewer bits do to training is not judged.${cut}`;
}

function legend() {
  return make("div", { class: "legend" }, PARTS.map(([kind, words]) => make("span", {}, make("i", { class: `swatch ${kind}` }), words)));
}
