// One sentence for each kind of event. Lists are named by their length and first member, never written out.

import { answered, refused } from "./answers.js";
import { integer, number, plural, scale, share, short, span } from "./words.js";

const list = (names, most = 3) => (Array.isArray(names) ? names.slice(0, most).join(", ") + (names.length > most ? ` and ${integer(names.length - most)} more` : "") : String(names ?? ""));
const at = (caller) => (caller ? `, at ${caller}` : "");
const inModule = (module) => (module ? ` in ${module}` : "");
const bytes = (count) => (count >= 2 ** 30 ? `${short(count / 2 ** 30, 3)} GiB` : count >= 2 ** 20 ? `${short(count / 2 ** 20, 3)} MiB` : `${integer(count)} bytes`);

function times(operators) {
  const whole = operators.reduce((sum, { typical_seconds: one }) => sum + one, 0);
  const named = operators.filter(({ op }) => op !== "_other").slice(0, 3);
  return list(named.map(({ op, dtype, typical_seconds: one }) => `${share(one / whole)} ${op} in ${dtype}`));
}

const SENTENCES = {
  "scaler.seen": ({ enabled, scale: start, own }) => (enabled === false ? "A disabled loss scaler is in use" : `${own ? "A loss scale of the program itself" : "A loss scaler"} starts at ${scale(start)}`),
  "scaler.growth": ({ from, to }) => `The loss scale grew from ${scale(from)} to ${scale(to)}`,
  "scaler.backoff": ({ from, to }) => `The loss scale fell from ${scale(from)} to ${scale(to)}`,
  "scaler.restored": ({ scale: to }) => `The loss scaler loaded a state, with scale ${scale(to)}`,
  "autocast.entered": ({ device, dtype, grad }) => `Autocast to ${dtype} on ${device} was entered${grad === false ? ", without gradients" : ""}`,
  "optimizer.restored": ({ optimizer, updates }) => `${optimizer} loaded a state${number(updates) > 0 ? ` of ${integer(updates)} updates` : ""}`,
  "optimizer.joined": ({ optimizer, caller }) => `${optimizer} joined the training${at(caller)}`,
  "optimizer.discarded": ({ optimizer, caller }) => `${optimizer} loaded a state, but another optimizer trains${at(caller)}`,
  "scheduler.restored": ({ scheduler, caller }) => `${scheduler} loaded a state${at(caller)}`,
  "model.restored": ({ model, caller }) => `${model} loaded weights${at(caller)}`,
  "run.continued": () => "An earlier process of this run ended; this one continues it",
  "step.skipped": ({ scale: now, consecutive }) => `The step was skipped at loss scale ${scale(now)}${consecutive > 1 ? `, ${integer(consecutive)} in a row` : ""}`,
  "step.unfinished": ({ caller }) => `The program ended within a step that was not finite${at(caller)}`,
  "gradient.nonfinite": ({ count, finite, last, tensors }) => `${plural(count, "gradient")} not finite, ${integer(finite)} finite; the last one is ${last ?? tensors?.at(-1)?.tensor}`,
  "gradient.spectrum": ({ counts }) => `The exponents of ${integer(counts?.reduce((sum, value) => sum + value, 0))} gradient elements were counted`,
  "gradient.unscaled_half": () => "Gradients have the precision of float16 and were never scaled",
  "tensor.exponents": ({ of, tensors }) => `The exponents of ${plural(tensors?.length ?? 0, "tensor")} (${of}) were counted`,
  "weights.nonfinite": ({ count, tensors, last_finite: good }) => `${plural(count, "weight tensor")} with NaN or Inf, first ${list(tensors, 1)}${Number.isInteger(good) ? `; finite at step ${integer(good)}` : ""}`,
  "moments.nonfinite": ({ count, tensors }) => `The optimizer's state has NaN or Inf in ${plural(count, "tensor")}: ${list(tensors, 2)}`,
  "buffers.nonfinite": ({ count, tensors }) => `${plural(count, "buffer")} with NaN or Inf: ${list(tensors, 2)}`,
  "buffers.finite": () => "All buffers are finite again",
  "weights.census": ({ trainable }) => `The weights were counted: ${dtypes(trainable)}`,
  "weights.undone": ({ undone }) => (undone ? "The updates of the weights are undone after each step" : "The updates of the weights are kept again"),
  "evaluation.nonfinite": ({ nonfinite, read, output }) => `${integer(nonfinite)} of ${integer(read)} outputs read in evaluation are not finite${output ? `: ${output}` : ""}`,
  "evaluation.finite": ({ read }) => `${plural(read, "output")} read in evaluation, all finite`,
  "origin.found": ({ kind, module, tensor, input, op, line, caller }) => `The first NaN or Inf came from the ${ORIGINS[kind] ?? kind ?? "step"}${inModule(module)}${op && op !== "loss" ? `, ${op}` : ""}${tensor ? `, ${tensor}` : input ? `, ${input}` : ""}${at(line ?? caller)}`,
  "origin.unknown": ({ reason }) => `The origin of NaN or Inf could not be found: ${ORIGIN[reason] ?? reason}`,
  "origin.functions": ({ functions }) => `Custom functions are between finite and non-finite gradients: ${list(functions?.map(({ name }) => name))}`,
  "targets.missing": ({ count, of, caller }) => `${integer(count)} of ${integer(of)} micro-batches had no target${at(caller)}`,
  "tensors.ordered": () => "The order in which the modules run in the forward pass is known",
  "activation.peaks": ({ modules }) => `The largest activation is ${short(modules?.[0]?.absmax)}${inModule(modules?.[0]?.module)}, ${share(modules?.[0]?.share)} of float16's limit`,
  "kernels.census": ({ share: low }) => `The operators of a step were counted${low === undefined ? "" : `: ${share(low)} of the eligible FLOPs in low precision`}`,
  "kernel.fallback": ({ op, module, reason, flops_share: part }) => `${op}${inModule(module)} does not run in low precision (${reason}), ${share(part)} of the FLOPs`,
  "kernels.timed": ({ phase, steps, operators }) => `Operators of ${plural(steps, "sampled step")} were timed; of their time in the ${phase} pass, ${times(operators ?? [])}`,
  "kernels.sensitive": ({ op, module, error }) => `${op}${inModule(module)} is ${share(error)} off in low precision`,
  "kernels.round_trips": ({ casts, moved_bytes: moved, caller }) => `${plural(casts, "cast")} to float32 and straight back moved ${bytes(moved)}${at(caller)}`,
  "kernels.recomputed": ({ module, dtype, again }) => `${module || "The model"} ran in ${dtype} and was recomputed in ${again}`,
  "kernels.blind": ({ reason }) => `Operators cannot be counted: ${reason}`,
  "kernels.profiled": ({ steps, kernels, refused }) => (refused ? `The profile was refused: ${refused}` : `${plural(kernels?.length ?? 0, "kernel")} of ${plural(steps, "step")} were profiled; the longest is ${kernels?.[0]?.name}`),
  "collectives.census": ({ calls }) => `${plural(calls?.length ?? 0, "kind")} of communication between ranks: ${list(calls?.map(({ op, dtype }) => `${op} in ${dtype}`))}`,
  "checkpoint.saved": ({ path, seconds, missing }) => `A checkpoint was saved${path ? ` to ${path}` : " to memory"} in ${span(seconds)}${missing?.length ? `; it lacks ${list(missing)}` : ""}`,
  "checkpoint.restored": ({ path, fits }) => `A checkpoint was loaded from ${path || "memory"}${fits === false ? "; it does not fit this training" : ""}`,
  "checkpoint.verified": ({ path, outcome, reason }) => `The checkpoint ${path} was read back: ${outcome}${reason ? `, ${reason}` : ""}`,
  "values.logged": (values) => `The program logged ${Object.entries(values).slice(0, 4).map(([name, value]) => `${name} ${short(value)}`).join(", ")}${Object.keys(values).length > 4 ? ` and ${integer(Object.keys(values).length - 4)} more` : ""}`,
  "directive.done": answered,
  "directive.refused": refused,
  "guard.acted": ({ guard, action, reason }) => `The ${guard} guard ${action}: ${reason}`,
  "probe.failed": ({ probe, error }) => `The probe ${probe} of Ammeter failed and is off for the rest of the run: ${error}`,
  "usage.clip_before_unscale": ({ caller }) => `Gradients were clipped while still scaled${at(caller)}`,
  "usage.changed_while_scaled": ({ optimizer, caller }) => `Gradients of ${optimizer} were changed while still scaled${at(caller)}`,
  "usage.loss_not_scaled": ({ optimizer, caller }) => `${optimizer} stepped on gradients of a loss that was not scaled${at(caller)}`,
  "usage.gradients_not_unscaled": ({ optimizer, caller }) => `${optimizer} stepped on gradients that were still scaled${at(caller)}`,
  "usage.update_between_optimizers": ({ optimizer, caller }) => `The loss scale was updated before ${optimizer} stepped${at(caller)}`,
  "usage.mixed_scale": ({ optimizer, after, caller }) => `Gradients of ${optimizer} were accumulated after ${after}, at another scale${at(caller)}`,
  "usage.gradients_not_reset": ({ optimizer, after, caller }) => `Gradients of ${optimizer} from a step that was ${after} were used again${at(caller)}`,
  "usage.step_not_updated": ({ optimizer, caller }) => `The scaler stepped ${optimizer} again without update()${at(caller)}`,
  "usage.scaler_rebuilt": ({ optimizer, scale: start }) => `Another scaler took over ${optimizer}, at ${scale(start)}`,
  "usage.scaler_not_restored": ({ optimizer, scale: start }) => `${optimizer} was resumed without its scaler, which starts at ${scale(start)}`,
  "usage.scaler_disabled": ({ device }) => `The scaler for ${device} is disabled while float16 is in use`,
  "usage.half_weights": ({ optimizer, count, of, dtypes: kinds }) => `${optimizer} updates ${integer(count)} of ${integer(of)} weight tensors in ${list(kinds)} without float32 copies`,
  "usage.eps_below_dtype": ({ where, eps, dtype }) => `The eps of ${where}, ${short(eps)}, is zero in ${dtype}`,
  "usage.unsupported_op": ({ op, dtypes: kinds, module }) => `${op || "An operator"}${inModule(module)} does not accept ${list(kinds)}`,
  "usage.no_gradients": ({ optimizer, reason }) => `${optimizer || "An optimizer"} stepped weights without gradients (${reason})`,
  "usage.not_as_asked": ({ asked, ran }) => `${asked} was asked for, but the loss is computed in ${ran}`,
  "usage.autocast_scope": ({ call, caller }) => `${call} ran inside autocast${at(caller)}`,
  "usage.loss_in_half": ({ dtype, caller }) => `The loss is computed in ${dtype}${at(caller)}`,
  "usage.scheduler_ahead": ({ scheduler, skipped, scheduled }) => `${scheduler} advanced ${integer(skipped)} of ${integer(scheduled)} times after skipped steps`,
  "usage.lopsided_step": ({ skipped, applied }) => `${list(skipped)} skipped a step that ${list(applied)} applied`,
};

const ORIGINS = { input: "inputs", weights: "weights", forward: "forward pass", backward: "backward pass", gradient: "recorded backward pass" };

const ORIGIN = {
  unheard: "the forward pass runs where modules cannot be watched",
  compiled: "the model is compiled",
  finite: "all modules had finite inputs and outputs",
  windows: "the number of searches is used up",
};

function dtypes(counts) {
  return Object.entries(counts ?? {}).map(([dtype, count]) => `${integer(count)} in ${dtype}`).join(", ") || "none";
}

export function sentence(name, data) {
  try {
    const text = SENTENCES[name]?.(data);
    if (text) return text;
  } catch {
    // data of another version is described by its members
  }
  const words = name.replace(/[._]/g, " ");
  const members = Object.entries(data).map(([key, value]) => member(key.replaceAll("_", " "), value)).filter(Boolean);
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${members.length ? `: ${members.slice(0, 5).join(", ")}` : ""}`;
}

function member(name, value) {
  if (value === null || value === undefined || value === "") return null;
  if (Array.isArray(value)) return `${name} (${integer(value.length)})`;
  if (typeof value === "object") return `${name} (${integer(Object.keys(value).length)})`;
  if (typeof value === "boolean") return value ? name : `not ${name}`;
  return typeof value === "number" ? `${name} ${short(value)}` : `${name} ${value}`;
}
