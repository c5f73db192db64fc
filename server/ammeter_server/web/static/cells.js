// Values of cells as colours and words.

import { colours, pixel, shades } from "./shades.js";
import { share, short } from "./words.js";

export function isBroken(value) {
  return value !== null && !Number.isFinite(value);
}

export function percent(value) {
  return Number.isFinite(value) && value > 0 && value < 0.001 ? `${short(100 * value, 3)} %` : Number.isFinite(value) ? share(value) : short(value);
}

// The pixels of a row: shades, one colour for zero, transparent without a measurement.
export function shader(columns, at, scale) {
  const ramp = shades();
  const nought = pixel(colours().nought);
  return (row) => {
    const pixels = new Uint32Array(columns);
    for (let column = 0; column < columns; column++) {
      const value = at(row, column);
      if (value === null || !Number.isFinite(value)) continue;
      pixels[column] = value === 0 && scale.low > 0 ? nought : ramp[scale.shade(value)];
    }
    return pixels;
  };
}
