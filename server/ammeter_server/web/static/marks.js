// What events say of layers: where the first NaN or Inf was born, and which modules ran in float32 below autocast.

import { get } from "./api.js";

const MAX_EVENTS = 100;
const WIDE = new Set(["float32", "float64"]);
const NUMBER = /^\d+$/;

// births: module, tensor and step. fallbacks: module, the number of similar modules, step of the count, dtype and reason.
export async function readMarks(run, rank) {
  const { items } = await get(`/runs/${encodeURIComponent(run)}/events`, { name: "origin.found,kernel.fallback", rank, page_size: MAX_EVENTS });
  const marks = { births: [], fallbacks: [] };
  for (const { name, step, step_offset, data } of items) {
    const { module = "", tensor = "", direction = "", dtype = "", reason = "", modules: count = 1 } = data ?? {};
    const at = step + step_offset;
    if (name === "origin.found") marks.births.push({ step: at, module: String(module), tensor: String(tensor ?? ""), direction });
    else if (WIDE.has(dtype) && module) marks.fallbacks.push({ step: at, module: String(module), count, dtype, reason });
  }
  return marks;
}

// Whether a tensor is the one, or belongs to the module.
export function isOf({ module, tensor }, name) {
  return tensor ? name === tensor : Boolean(module) && name.startsWith(module + ".");
}

// Maps the names of tensors to the fallback of their module. The event names one of several similar modules, such as those
// of all blocks; the others count only if they are exactly as many.
export function fallbacksOf(fallbacks, names) {
  const found = new Map();
  for (const fallback of fallbacks) {
    const pattern = fallback.module.split(".").map((part) => (NUMBER.test(part) ? null : part));
    const own = new Set();
    for (const name of names) {
      const parts = name.split(".");
      if (parts.length > pattern.length && pattern.every((part, index) => (part === null ? NUMBER.test(parts[index]) : part === parts[index]))) own.add(parts.slice(0, pattern.length).join("."));
    }
    const modules = fallback.count === own.size ? [...own] : [fallback.module];
    for (const name of names) if (modules.some((module) => name.startsWith(module + "."))) found.set(name, fallback);
  }
  return found;
}
