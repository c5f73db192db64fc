// The statistics of tensors that a map of layers can show.

// counts: numbers of elements; with share, shares of them. lowest: a cell shows the smallest value of its steps. linear: the
// ends of its shades.
export const STATS = {
  "grad.norm": { words: "Gradient norm", unit: "L2, unscaled" },
  headroom: { words: "Headroom", unit: "powers of 2 from the largest scaled gradient to float16's largest number", lowest: true, linear: [0, 16] },
  "grad.subnormals": { words: "Underflow in the gradient", unit: "share of elements below 2⁻¹⁴ while scaled, subnormal in float16", share: true, counts: true },
  "update.lost": { words: "Lost updates", unit: "share of sampled elements that a step did not change", share: true },
  "update.ratio": { words: "Update to weight", unit: "update norm over weight norm" },
  "grad.absmax": { words: "Largest gradient", unit: "finite, unscaled" },
  "grad.zeros": { words: "Zeros in the gradient", unit: "share of elements", share: true, counts: true },
  "grad.nans": { words: "NaN in the gradient", unit: "share of elements", share: true, counts: true },
  "grad.infs": { words: "Inf in the gradient", unit: "share of elements", share: true, counts: true },
  "grad.fp16_grid": { words: "Gradient on float16's grid", unit: "share of small elements that are multiples of 2⁻²⁴", share: true },
  "grad.agreement": { words: "Gradient agreement", unit: "cosine between neighbouring readings", lowest: true, linear: [-1, 1] },
  "weight.norm": { words: "Weight norm", unit: "L2, of sampled elements" },
  "weight.nonfinite": { words: "Non-finite weights", unit: "of sampled elements", counts: true },
};
