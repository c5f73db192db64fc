// Colours of the page, light or dark, and shades for cells that colour-blind people can distinguish, with scale and legend.

import { make } from "./dom.js";

// Viridis, by Nathaniel Smith and Stéfan van der Walt (CC0), in steps of a tenth.
const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"];
const SHADES = 256;
const SAMPLE_VALUES = 20000;
const OUTLIER_SHARE = 0.005;

// Of further curves, beside accent and second.
const OTHERS = {
  light: ["#0f7f73", "#b3590a", "#b8286f", "#5f7308", "#0a7ea4", "#6d4c3d"],
  dark: ["#4fc9b8", "#f0a35e", "#f484b4", "#b5c94a", "#5cc4e8", "#c9a594"],
};

export const dark = matchMedia("(prefers-color-scheme: dark)");

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const named = Object.fromEntries(["ink", "quiet", "line", "card", "page", "ticket", "accent", "second", "nought"].map((name) => [name, colour(name)]));
  return { ...named, tones: [colour("accent"), colour("second"), ...OTHERS[dark.matches ? "dark" : "light"]] };
}

// The shades as pixels of a canvas, without those that are too close to the background.
export function shades() {
  const [from, to] = dark.matches ? [0.15, 1] : [0, 0.97];
  return Uint32Array.from({ length: SHADES }, (_, index) => between(from + ((to - from) * index) / (SHADES - 1)));
}

export function pixel(colour, alpha = 1) {
  const [red, green, blue] = parts(colour);
  return ((packed(red, green, blue) & 0xffffff) | (Math.round(255 * alpha) << 24)) >>> 0;
}

function between(at) {
  const place = at * (VIRIDIS.length - 1);
  const index = Math.min(Math.floor(place), VIRIDIS.length - 2);
  const [low, high] = [parts(VIRIDIS[index]), parts(VIRIDIS[index + 1])];
  return packed(...low.map((part, channel) => Math.round(part + (high[channel] - part) * (place - index))));
}

function parts(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function packed(red, green, blue) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

// A logarithmic scale for the positive values: at least a decade, without a few outliers, which would take the shades from
// all other values.
export function scaleOf(values, most = Infinity) {
  const every = Math.ceil(values.length / SAMPLE_VALUES);
  const some = [];
  for (let index = 0; index < values.length; index += every) if (values[index] > 0 && values[index] < Infinity) some.push(values[index]);
  const sorted = Float64Array.from(some).sort();
  if (!sorted.length) return logarithmic(Math.min(0.1, most / 10), Math.min(1, most));
  const at = (part) => sorted[Math.round(part * (sorted.length - 1))];
  const high = Math.min(up(at(1 - OUTLIER_SHARE)), most);
  const low = Math.min(down(at(OUTLIER_SHARE)), high / 10);
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

// Ends of a scale are 1 or 3 times a power of ten, so that it stays the same while a run continues.
function down(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return value >= 3 * power ? 3 * power : power;
}

function up(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [power, 3 * power].find((end) => value <= end) ?? 10 * power;
}

// The legend of the shades; others: [class of a swatch, its text].
export function legend(scale, format, others) {
  const strip = make("canvas", { width: SHADES, height: 1, "aria-hidden": "true" });
  const pen = strip.getContext("2d");
  pen.putImageData(new ImageData(new Uint8ClampedArray(shades().buffer), SHADES, 1), 0, 0);
  return make("div", { class: "legend" },
    make("div", { class: "ramp" }, strip, make("div", {}, [(scale.below ? "≤ " : "") + format(scale.low, 2), format(scale.middle, 2), (scale.above ? "≥ " : "") + format(scale.high, 2)].map((end) => make("span", {}, end)))),
    others.map(([kind, words]) => make("span", {}, make("i", { class: `swatch ${kind}` }), words)));
}
