// What a person can ask of a live run, and its answers as sentences.

import { integer, plural, share, short } from "./words.js";

export const READINGS = {
  origin: {
    words: "Where NaN or Inf begins", steps: 5,
    text: "Hooks on every module find where NaN or Inf begins, and the largest activation. These steps are slower; weights and results stay as they are.",
  },
  census: {
    words: "Operators and their dtypes", steps: 1,
    text: "The operators of the forward pass are counted: dtypes, casts and fallbacks. These steps are a little slower; weights and results stay as they are.",
  },
  trial: {
    words: "A bad operator, run again", steps: 20,
    text: "The operator of the next NaN or Inf, of a loss or a gradient, runs again beside the training: its numbers or its kernel are to blame. On the CPU only. These steps are slower; weights and results stay as they are.",
  },
  tensors: {
    words: "All tensors", steps: 5,
    text: "The statistics of all gradients and of the weights are read, whatever the budget allows. These steps are a little slower; weights and results stay as they are.",
  },
};

const REFUSED = {
  unknown: "its version of Ammeter does not know this reading",
  busy: "it still answers an earlier request of this kind",
  limit: "it has answered as many requests as a run accepts",
  device: "operators run again on the CPU only, and it trains on another device",
  failed: "this part of Ammeter has failed and is off for the rest of the run",
};

const REASONS = {
  compiled: "the model is compiled, so that its modules cannot be watched",
  unheard: "no forward pass of the watched model was observed in these steps",
  busy: "the program has a profiler, a dispatch mode or a transform of its own",
  cost: "the reading ended early because of its cost",
  ended: "the run ended before all of these steps",
  failed: "this part of Ammeter has failed and is off for the rest of the run",
};

const TRIALS = {
  range: "it has a finite result in float64, beyond the range of its dtype",
  undefined: "it has no finite result in float64 either",
  rounded: "it is finite in float64 as a whole, but divides by what its dtype has rounded to zero",
  kernel: "its kernel makes NaN or Inf again, although the result in float64 fits its dtype",
  differs: "its kernel makes NaN or Inf in one of two runs",
  unsteady: "it makes no NaN or Inf when it runs again",
};

const ANSWERS = {
  origin: ({ read_steps: read, steps, bad_steps: bad, modules, origins, largest }) => [
    !read ? "No module was watched" : bad ? `${integer(bad)} of ${plural(steps, "step")} had NaN or Inf, with hooks on ${plural(modules, "module")}` : `Nothing was found: losses and gradients were finite in ${plural(read, "step")}, with hooks on ${plural(modules, "module")}`,
    ...(origins ?? []).map((origin) => `it came from the ${origin.kind === "backward" ? "backward pass" : origin.kind === "forward" ? "forward pass" : origin.kind}${place(origin)}`),
    read && bad && !origins?.length ? "its origin is not known" : "",
    largest ? `the largest activation was ${short(largest.absmax)}${inModule(largest.module)}, in ${largest.dtype}${largest.dtype === "float16" ? `, ${share(largest.absmax / 65504)} of its limit` : ""}` : "",
  ],
  census: ({ read_steps: read, share: low, casts, fallbacks, whole }) => [
    !read ? "No operator was counted" : low === null || low === undefined ? "No matrix product, convolution or attention ran" : `${share(low)} of the FLOPs of matrix products, convolutions and attention ran in low precision`,
    read ? plural(casts, "cast") : "",
    read ? (fallbacks?.length ? `${plural(fallbacks.length, "kind")} of operators ran inefficiently` : "none ran inefficiently") : "",
    whole === false ? "the first operators only, because there are too many" : "",
  ],
  trial: ({ steps, bad_steps: bad, trial, exact, ...origin }) => [
    !bad ? `No operator ran again: ${steps === 1 ? "the step had" : `all ${integer(steps)} steps had`} a finite loss and finite gradients` : trial ? `${origin.op || "An operator"}${inModule(origin.module)} ran again: ${TRIALS[trial] ?? trial}` : `${integer(bad)} of ${plural(steps, "step")} had NaN or Inf${place(origin)}; no operator could run again`,
    trial && exact !== null && exact !== undefined ? `the largest number in float64 is ${short(exact)}` : "",
  ],
  tensors: ({ read_steps: read, gradients, full_gradients: full, weights, nonfinite_gradients: badGradients, nonfinite_weights: badWeights, largest }) => [
    read ? `${plural(gradients, "gradient")} and ${plural(weights, "weight tensor")} were read in ${plural(read, "step")}` : "No tensor was read",
    read && full < gradients ? `${full ? `all statistics of ${integer(full)} of them` : "their norms only"}` : "",
    !read ? "" : badGradients || badWeights ? `NaN or Inf in ${plural(badGradients, "gradient")} and ${plural(badWeights, "weight tensor")}` : "all are finite",
    largest ? `the largest gradient norm is ${short(largest.norm)} in ${largest.tensor}` : "",
  ],
};

export function answered({ arm, reason, seconds, steps, step_seconds: whole, ...facts }) {
  const said = ANSWERS[arm]?.({ steps, ...facts }) ?? [`The reading ${arm} has ended`];
  const cost = seconds > 0 ? `It cost ${milliseconds(seconds)} in ${plural(steps, "step")}${whole > 0 ? ` of ${milliseconds(whole)}${steps > 1 ? " together" : ""}` : ""}` : "";
  return [said.filter(Boolean).join("; "), reason ? capital(REASONS[reason] ?? reason) : "", cost].filter(Boolean).map((words) => `${words}.`).join(" ");
}

export function refused({ arm, reason }) {
  return `The run refuses "${READINGS[arm]?.words ?? arm}": ${REFUSED[reason] ?? reason}`;
}

function place({ module, tensor, input, op, line, caller }) {
  return `${inModule(module)}${op && op !== "loss" ? `, ${op}` : ""}${tensor ? `, ${tensor}` : input ? `, ${input}` : ""}${line || caller ? `, at ${line || caller}` : ""}`;
}

function inModule(module) {
  return module ? ` in ${module}` : "";
}

function milliseconds(seconds) {
  return `${short(1000 * seconds, 3)} ms`;
}

function capital(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}
