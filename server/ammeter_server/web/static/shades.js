// Colours: those of the house, light or dark, and shades for cells that colour-blind people can tell apart too, with the
// scale that a value is looked up on and the legend that says so.

import { make } from "./dom.js";

// Viridis, by Nathaniel Smith and Stéfan van der Walt (CC0), in steps of a tenth.
const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"];
const SHADES = 256;
const SAMPLE = 20000;
const BEYOND = 0.005;

export const dark = matchMedia("(prefers-color-scheme: dark)");

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const named = Object.fromEntries(["ink", "quiet", "line", "card", "page", "ticket", "accent", "nought"].map((name) => [name, colour(name)]));
  return { ...named, tones: [colour("accent"), colour("second")] };
}

// The shades as the pixels of a canvas have them. What would be lost on the paper behind is left out of them.
export function shades() {
  const [from, to] = dark.matches ? [0.15, 1] : [0, 0.97];
  return Uint32Array.from({ length: SHADES }, (_, index) => between(from + ((to - from) * index) / (SHADES - 1)));
}

export function pixel(colour) {
  const [red, green, blue] = parts(colour);
  return packed(red, green, blue);
}

function between(at) {
  const place = at * (VIRIDIS.length - 1);
  const index = Math.min(Math.floor(place), VIRIDIS.length - 2);
  const [low, high] = [parts(VIRIDIS[index]), parts(VIRIDIS[index + 1])];
  return packed(...low.map((part, each) => Math.round(part + (high[each] - part) * (place - index))));
}

function parts(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function packed(red, green, blue) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

// A logarithmic scale for what is above zero of these values: a decade at least, and where few values lie far out it
// ends before them, so that they do not take the shades from all others.
export function scaleOf(values, most = Infinity) {
  const every = Math.ceil(values.length / SAMPLE);
  const some = [];
  for (let index = 0; index < values.length; index += every) if (values[index] > 0 && values[index] < Infinity) some.push(values[index]);
  const sorted = Float64Array.from(some).sort();
  if (!sorted.length) return logarithmic(Math.min(0.1, most / 10), Math.min(1, most));
  const at = (part) => sorted[Math.round(part * (sorted.length - 1))];
  const high = Math.min(up(at(1 - BEYOND)), most);
  const low = Math.min(down(at(BEYOND)), high / 10);
  return { ...logarithmic(low, high), below: sorted[0] < low, above: sorted.at(-1) > high };
}

export function logarithmic(low, high) {
  const [from, to] = [Math.log(low), Math.log(high)];
  return { low, high, middle: Math.sqrt(low * high), shade: (value) => cut(((Math.log(value) - from) / (to - from)) * SHADES) };
}

export function linear(low, high) {
  return { low, high, middle: (low + high) / 2, shade: (value) => cut(((value - low) / (high - low)) * SHADES) };
}

function cut(shade) {
  return Math.max(0, Math.min(SHADES - 1, Math.floor(shade)));
}

// Ends of a scale are 1 or 3 times a power of ten: it stands still while a run goes on.
function down(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return value >= 3 * power ? 3 * power : power;
}

function up(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [power, 3 * power].find((end) => value <= end) ?? 10 * power;
}

// What the shades mean, in numbers; others: [class of a swatch, its words].
export function legend(scale, say, others) {
  const strip = make("canvas", { width: SHADES, height: 1, "aria-hidden": "true" });
  const pen = strip.getContext("2d");
  pen.putImageData(new ImageData(new Uint8ClampedArray(shades().buffer), SHADES, 1), 0, 0);
  return make("div", { class: "legend" },
    make("div", { class: "ramp" }, strip, make("div", {}, [(scale.below ? "≤ " : "") + say(scale.low, 2), say(scale.middle, 2), (scale.above ? "≥ " : "") + say(scale.high, 2)].map((end) => make("span", {}, end)))),
    others.map(([kind, words]) => make("span", {}, make("i", { class: `swatch ${kind}` }), words)));
}
