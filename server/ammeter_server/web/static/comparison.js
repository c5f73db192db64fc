// The curves in which runs are compared, two or several.

import { scale, short } from "./words.js";

export const CHARTS = [
  { title: "Loss", name: "loss", format: short },
  { title: "Validation loss", name: "val_loss", format: short },
  { title: "Gradient norm", name: "grad_norm", format: short, log: 10 },
  { title: "Loss scale", name: "scale", format: scale, log: 2 },
  { title: "Step time", name: "step_seconds", format: (value) => `${short(value)} s` },
];
