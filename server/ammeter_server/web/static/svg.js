// Small drawings as SVG: bars and lines. Attributes only, because the security policy allows no inline styles.

import { short } from "./words.js";

const SPACE = "http://www.w3.org/2000/svg";

export function shape(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

function drawing(kind, width, height, label, ...shapes) {
  return shape("svg", { class: kind, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...shapes);
}

// A share from 0 to 1 as the filled part of a bar.
export function shareBar(value, label, bad = false) {
  const filled = Math.max(0, Math.min(1, value)) * 100;
  return drawing("bar-of", 100, 8, label, shape("rect", { class: "rest", width: 100, height: 8 }), shape("rect", { class: bad ? "part bad" : "part", width: filled, height: 8 }));
}

// Numbers in order, as bars from zero. Values that are not finite fill the height in the colour of faults.
export function bars(values, label) {
  const finite = values.filter(Number.isFinite);
  const top = Math.max(0, ...finite), low = Math.min(0, ...finite), range = top - low || 1;
  const step = 100 / values.length;
  return drawing("bars", 100, 24, label, ...values.map((value, index) => {
    const place = { x: index * step, width: Math.max(0.5, step * 0.8) };
    if (!Number.isFinite(value)) return shape("rect", { ...place, class: "bad", y: 0, height: 24 });
    const from = 24 * ((top - Math.max(0, value)) / range), height = Math.max(0.6, (24 * Math.abs(value)) / range);
    return shape("rect", { ...place, class: "part", y: from, height });
  }));
}

// A curve without axes; gaps where values are not finite, marked at the bottom. values: number or null.
export function spark(values, label, logarithmic = false) {
  const shown = values.map((value) => (Number.isFinite(value) ? (logarithmic ? (value > 0 ? Math.log2(value) : null) : value) : null));
  const finite = shown.filter((value) => value !== null);
  if (finite.length < 2) return null;
  const top = Math.max(...finite), low = Math.min(...finite), range = top - low || 1;
  const x = (index) => (index * 100) / (values.length - 1);
  const y = (value) => (top === low ? 12 : 2 + (20 * (top - value)) / range);
  let path = "", pen = false;
  shown.forEach((value, index) => {
    if (value === null) return (pen = false);
    path += `${pen ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = true;
  });
  const faults = values.flatMap((value, index) => (value !== null && !Number.isFinite(value) ? [shape("rect", { class: "bad", x: Math.max(0, x(index) - 1), y: 20, width: 2, height: 4 })] : []));
  return drawing("spark", 100, 24, `${label}: ${short(finite.at(0) === undefined ? null : (logarithmic ? 2 ** finite.at(0) : finite.at(0)))} to ${short(logarithmic ? 2 ** finite.at(-1) : finite.at(-1))}${faults.length ? `, ${faults.length} not finite` : ""}`,
    shape("path", { d: path, class: "line", "vector-effect": "non-scaling-stroke" }), ...faults);
}
