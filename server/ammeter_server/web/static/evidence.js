// The evidence of an incident, drawn: shares and series as bars, groups as tables, everything else as a value.

import { make } from "./dom.js";
import { bars, shareBar } from "./svg.js";
import { integer, number, plain, scale, share, short } from "./words.js";

const MAX_ROWS = 6;
const SHARE = /(^|_)(share|fraction)(_|$)|_share$/;
const SCALE = /(^|_)(scale|scaled_at)(_|$)/;

export function drawEvidence(evidence) {
  const known = Object.entries(evidence ?? {}).filter(([, value]) => !isEmpty(value));
  if (!known.length) return null;
  return make("dl", { class: "evidence" }, known.map(([name, value]) =>
    make("div", { class: isWide(value) ? "across" : "" }, make("dt", {}, make("bdi", {}, words(name))), make("dd", {}, draw(name, value)))));
}

function isEmpty(value) {
  return value === null || value === undefined || value === "" || (typeof value === "object" && Object.keys(value).length === 0);
}

function isWide(value) {
  return Array.isArray(value) ? value.some((item) => typeof item === "object") : typeof value === "object";
}

function words(name) {
  return name.replaceAll("_", " ");
}

function isNumber(value) {
  return typeof value === "number" || value === "NaN" || value === "Infinity" || value === "-Infinity";
}

function draw(name, value) {
  if (isNumber(value)) return drawNumber(name, value);
  if (typeof value !== "object") return make("bdi", {}, plain(value));
  if (!Array.isArray(value)) return drawGroup(value);
  if (value.every(isNumber)) return drawSeries(name, value.map(number));
  return value.every((item) => typeof item === "object" && item !== null && !Array.isArray(item)) ? drawTable(value) : drawNames(value);
}

function drawNumber(name, value) {
  const x = number(value);
  if (SHARE.test(name) && x >= 0 && x <= 1) return [share(x), shareBar(x, `${words(name)} ${share(x)}`)];
  if (SCALE.test(name)) return scale(x);
  return Number.isInteger(x) && Math.abs(x) < 1e15 ? integer(x) : make("span", { class: Number.isFinite(x) ? "" : "bad" }, short(x));
}

function drawSeries(name, values) {
  if (values.length === 1) return drawNumber(name, values[0]);
  const text = SCALE.test(name) ? scale : short;
  return [`${text(values[0])} to ${text(values.at(-1))}, ${integer(values.length)} values`, bars(values, `${words(name)}: ${values.slice(0, 12).map((value) => text(value)).join(", ")}`)];
}

function drawNames(items) {
  const shown = items.slice(0, MAX_ROWS);
  return make("ul", { class: "names" }, shown.map((item) => make("li", {}, make("bdi", {}, plain(item)))), items.length > shown.length ? make("li", { class: "quiet" }, `${integer(items.length - shown.length)} more`) : null);
}

// An object: bars if its values are numbers of one kind, else names with values.
function drawGroup(group) {
  const entries = Object.entries(group).filter(([, value]) => !isEmpty(value));
  const values = entries.map(([, value]) => number(value));
  if (entries.length > 1 && entries.every(([, value]) => isNumber(value)) && values.every((value) => value >= 0)) {
    const top = Math.max(...values.filter(Number.isFinite)) || 1;
    return make("table", { class: "small" }, make("tbody", {}, entries.slice(0, 2 * MAX_ROWS).map(([name], index) => make("tr", {},
      make("th", { scope: "row" }, make("bdi", {}, words(name))), make("td", { class: "num" }, short(values[index])), make("td", { class: "fill" }, shareBar(values[index] / top, `${words(name)} ${short(values[index])}`, !Number.isFinite(values[index])))))));
  }
  return make("dl", { class: "pairs" }, entries.map(([name, value]) => make("div", {}, make("dt", {}, make("bdi", {}, words(name))), make("dd", {}, isWide(value) ? make("bdi", {}, plain(value)) : draw(name, value)))));
}

function drawTable(rows) {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => rows.some((row) => !isEmpty(row[name])));
  const cell = (name, value) => make("td", { class: isNumber(value) ? "num" : "" }, isEmpty(value) ? "–" : isNumber(value) ? drawNumber(name, value) : make("bdi", {}, plain(value)));
  const hidden = rows.length - MAX_ROWS;
  return [make("table", { class: "small" }, make("thead", {}, make("tr", {}, columns.map((name) => make("th", { scope: "col", class: isNumber(rows[0][name]) ? "num" : "" }, words(name))))),
    make("tbody", {}, rows.slice(0, MAX_ROWS).map((row) => make("tr", {}, columns.map((name) => cell(name, row[name])))))), hidden > 0 ? make("p", { class: "quiet" }, `${integer(hidden)} more rows`) : null].filter(Boolean);
}
