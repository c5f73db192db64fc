// Floating-point formats of mixed precision: their limits as powers of two.

import { raised } from "./words.js";

// largest: log2 of the largest number. normal, smallest: exponents of the smallest normal and subnormal numbers. An element
// below half the smallest one becomes zero.
export const FORMATS = {
  float16: { words: "float16", largest: Math.log2(65504), normal: -14, smallest: -24, maximum: "65504" },
  bfloat16: { words: "bfloat16", largest: 128, normal: -126, smallest: -133, maximum: `2${raised(128)}` },
  float8_e4m3fn: { words: "FP8 e4m3fn", largest: Math.log2(448), normal: -6, smallest: -9, maximum: "448" },
  float8_e5m2: { words: "FP8 e5m2", largest: Math.log2(57344), normal: -14, smallest: -16, maximum: "57344" },
};

// Shares of elements by what a format makes of them. A bin that a limit divides counts as representable, so that "overflow"
// is a lower bound; beyond: whether the lowest bin reaches below the smallest number, so that "zero" is unknown.
export function fates({ counts, lowest, all }, shift, { largest, normal, smallest }) {
  const shares = { overflow: 0, subnormal: 0, below: 0, zero: 0, beyond: false };
  counts.forEach((count, index) => {
    if (!count) return;
    const exponent = lowest + index + shift;
    if (exponent > largest) shares.overflow += count / all;
    if (exponent < normal) shares.subnormal += count / all;
    if (exponent < smallest) shares.below += count / all;
    if (exponent < smallest - 1) shares.zero += count / all;
  });
  shares.beyond = lowest + shift >= smallest;
  return shares;
}
