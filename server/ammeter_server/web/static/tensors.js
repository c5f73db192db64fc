// The tensors of a run, worst first: recently non-finite ones, the last in the model first, because a NaN of the backward
// pass begins there; then by underflow, then by norm.

import { all } from "./api.js";
import { dotted, make, updateChildren } from "./dom.js";
import { integer, number, plural, share, short } from "./words.js";

const STATS = ["grad.norm", "grad.absmax", "grad.zeros", "grad.subnormals", "grad.nans", "grad.infs"];
const SHOWN_ROWS = 15;
let showAll = false;

export async function showTensors(place, run, charts) {
  const items = await all(`/runs/${encodeURIComponent(run.id)}/tensors`, { stat: STATS.join(","), page_size: 1000 }, 20000);
  const tensors = gather(items).sort((a, b) => b.badness - a.badness || (a.badness ? b.order - a.order : 0) || b.flushed - a.flushed || (b.norm ?? -1) - (a.norm ?? -1));
  place.hidden = tensors.length === 0;
  if (!place.firstChild) place.append(make("div", { class: "title" }, make("h2", {}, "Tensors, worst first"), make("span", { class: "quiet" })), make("div", { class: "scroll" }, table()), make("p", { class: "more" }));
  place.firstChild.lastChild.textContent = plural(tensors.length, "watched parameter");
  const shown = showAll ? tensors : tensors.slice(0, SHOWN_ROWS);
  updateChildren(place.querySelector("tbody"), shown, (tensor) => tensor.name, (tensor) => row(tensor, charts));
  const button = () => make("button", { onclick: () => { showAll = !showAll; showTensors(place, run, charts); } }, showAll ? "Show fewer" : `Show all ${integer(tensors.length)}`);
  updateChildren(place.lastChild, tensors.length > SHOWN_ROWS ? [{ showAll, count: tensors.length }] : [], () => "all", button);
}

// All ranks have the same parameters: the worst value of any rank counts.
function gather(items) {
  const tensors = new Map();
  for (const item of items) {
    const tensor = tensors.get(item.name) ?? { name: item.name, shape: item.shape, dtype: item.dtype, numel: item.numel, order: tensors.size, stats: {} };
    const value = number(item.value);
    const before = tensor.stats[item.stat];
    if (!before || !(before.value >= value)) tensor.stats[item.stat] = { value, step: item.step };
    tensors.set(item.name, tensor);
  }
  return [...tensors.values()].map(rate);
}

function rate({ name, shape, dtype, numel, order, stats }) {
  const value = (stat) => stats[stat]?.value ?? null;
  const bad = (value("grad.nans") ?? 0) + (value("grad.infs") ?? 0);
  const norm = value("grad.norm");
  const broken = bad > 0 && stats["grad.nans"].step >= (stats["grad.norm"]?.step ?? 0);
  return {
    name, dtype, order, shape: shape.join(" × ") || "scalar", norm,
    absmax: value("grad.absmax"), zeros: part(value("grad.zeros"), numel), subnormals: part(value("grad.subnormals"), numel),
    nans: value("grad.nans"), infs: value("grad.infs"), badStep: bad > 0 ? stats["grad.nans"].step : null,
    badness: broken || (norm !== null && !Number.isFinite(norm)) ? 2 : bad > 0 ? 1 : 0,
    flushed: (value("grad.subnormals") ?? 0) / Math.max(numel, 1),
  };
}

function part(count, numel) {
  return count === null || !numel ? null : count / numel;
}

function table() {
  const column = (name, kind = "num", title = null) => make("th", { scope: "col", class: kind, title }, name);
  return make("table", { class: "tensors" },
    make("thead", {}, make("tr", {}, column("Tensor", ""), column("Shape", "wide"), column("Gradient norm"), column("Largest", "num wide", "largest finite |gradient|, unscaled"),
      column("Zero", "num wide"), column("Subnormal", "num", "share of elements below 2⁻¹⁴ while scaled, where float16 loses bits"), column("NaN / Inf"))),
    make("tbody"));
}

function row(tensor, charts) {
  const broken = tensor.badStep === null ? "–" : `${integer(tensor.nans)} / ${integer(tensor.infs)} at ${integer(tensor.badStep)}`;
  return make("tr", {},
    make("th", { scope: "row" }, make("button", { class: "link code", title: "Show the gradient norm over steps", onclick: () => charts.show(tensor.name) }, dotted(tensor.name))),
    make("td", { class: "wide quiet" }, `${tensor.shape} ${tensor.dtype}`),
    make("td", { class: "num" + (tensor.norm !== null && !Number.isFinite(tensor.norm) ? " bad" : "") }, short(tensor.norm)),
    make("td", { class: "num wide" }, short(tensor.absmax)),
    make("td", { class: "num wide" }, share(tensor.zeros)),
    make("td", { class: "num" + (tensor.subnormals > 0.3 ? " warn" : "") }, share(tensor.subnormals)),
    make("td", { class: "num" + (tensor.badness === 2 ? " bad" : "") }, broken));
}
