// The charts of a run: what is asked for, how it grows while the run goes on, and which steps are shown.

import { get } from "./api.js";
import { make, replace } from "./dom.js";
import { breaksOf, Plot } from "./plot.js";
import { number, scale, severalLosses, short, whole } from "./words.js";

const POINTS = 2000;
const ANEW_AFTER_MS = 30000;
const AROUND = 60;

// What a program says now and then: between two of its values there was nothing to be read.
const LOGGED = new Set(["val_loss"]);

const CHARTS = [
  { title: "Loss scale", names: ["scale"], words: ["scale"], log: 2, say: scale, skips: true, empty: "No loss scaler: nothing to show for bf16 or float32." },
  { title: "Gradient norm", names: ["grad_norm"], words: ["L2 norm, unscaled"], log: 10, say: short, empty: "Not measured yet." },
  { title: "Loss", names: ["loss", "val_loss"], words: ["training", "validation"], say: short, empty: "Not seen yet. run.log(loss=...) tells it.", losses: true },
];

export class Charts {
  constructor(place, run) {
    this.place = place;
    this.path = `/runs/${encodeURIComponent(run)}/series`;
    this.rank = 0;
    this.tensor = null;
    this.incidents = [];
    this.range = null;
    this.chosen = () => null;
    this.plots = [];
    this.head = make("div", { class: "filters" });
    this.generation = 0;
    this.turn = Promise.resolve();
    this.forget();
  }

  forget() {
    this.lines = new Map();
    this.closeUp = null;
    this.reached = null;
    this.fetched = 0;
    this.late = false;
    this.generation++;
  }

  // A value has come for a step that is drawn already: all of it is asked for anew.
  logLate() {
    this.late = true;
  }

  mark(incidents) {
    this.incidents = incidents.map(({ first_step, step_offset, severity, title, verdict }) => ({ step: first_step + step_offset, severity, title: title || verdict }));
  }

  // Brings the charts up to the run's last step. One at a time, or what is new would be appended twice.
  follow(run) {
    this.turn = this.turn.catch(() => null).then(() => this.update(run));
    return this.turn;
  }

  // What is new only, and everything anew from time to time, where another attempt has begun, and after a late value.
  async update(run) {
    this.run = run;
    const losses = severalLosses(run).join("\n");
    const lives = JSON.stringify((run.lives ?? []).map(({ step_offset, replaced_from }) => [step_offset, replaced_from]));
    if (this.plots.length && (losses !== this.losses || lives !== this.lives)) this.forget();
    this.lives = lives;
    if (!this.plots.length || losses !== this.losses) this.build();
    const anew = this.late || this.reached === null || run.last_step < this.reached || Date.now() - this.fetched > ANEW_AFTER_MS;
    this.late = false;
    if (anew || run.last_step > this.reached) await this.grow(anew);
    if (anew && this.closeUp) await this.closer();
    this.draw();
  }

  // Shows the steps from first to last as finely as they were measured; all() goes back to the whole run. chosen() is
  // told of other steps and of another rank.
  async zoom(first, last) {
    if (this.closeUp?.first === first && this.closeUp.last === last) return;
    this.range = [first, last];
    this.chosen();
    const { generation } = this;
    const closeUp = (this.closeUp = { first, last, lines: new Map() });
    await this.closer();
    if (generation !== this.generation || closeUp !== this.closeUp) return;
    this.draw();
    this.showHead();
  }

  // Reads the steps that were chosen.
  async closer() {
    const { generation, closeUp } = this;
    const items = await this.ask({ from: closeUp.first, to: closeUp.last });
    if (generation !== this.generation || closeUp !== this.closeUp) return;
    closeUp.lines.clear();
    items.forEach((item) => append(closeUp.lines, item));
  }

  all() {
    this.range = this.closeUp = null;
    this.chosen();
    this.draw();
    this.showHead();
  }

  async around(step) {
    this.place.scrollIntoView({ block: "nearest" });
    await this.zoom(Math.max(0, step - AROUND), Math.max(step + 1, Math.min(step + AROUND, this.run.last_step)));
  }

  // A chart of one tensor's gradient norm, behind the others; null takes it away.
  async show(tensor) {
    this.tensor = tensor;
    await this.again();
    if (tensor) this.place.lastElementChild.scrollIntoView({ block: "nearest" });
  }

  async choose(rank) {
    this.rank = rank;
    this.chosen();
    await this.again();
  }

  // Anew, of the steps that were chosen.
  async again() {
    this.forget();
    this.build();
    await this.follow(this.run);
    if (this.range) await this.zoom(...this.range);
  }

  build() {
    this.plots.forEach((plot) => plot.remove());
    const several = severalLosses(this.run);
    this.losses = several.join("\n");
    const charts = CHARTS.map((chart) => (chart.losses ? { ...chart, names: [...chart.names, ...several], words: [...chart.words, ...several] } : chart));
    if (this.tensor) charts.push({ title: "Gradient norm of", of: this.tensor, names: [`grad.norm:${this.tensor}`], words: ["L2 norm, unscaled"], log: 10, say: short, empty: "Not measured yet.", close: () => this.show(null) });
    replace(this.place, this.head);
    this.showHead();
    this.plots = charts.map((chart) => new Plot(this.place, chart, { zoom: (first, last) => this.zoom(first, last), all: () => this.all() }));
  }

  showHead() {
    const { closeUp, run } = this;
    replace(this.head,
      run.world_size > 1 ? this.ranks(run.world_size) : null,
      closeUp ? [make("span", {}, `Steps ${whole(closeUp.first)} to ${whole(closeUp.last)}`), make("button", { id: "all-steps", onclick: () => this.all() }, "Show all steps")] : null);
  }

  ranks(count) {
    const select = make("select", { id: "rank", "aria-label": "Charts of", onchange: () => this.choose(Number(select.value)) },
      Array.from({ length: count }, (_, rank) => make("option", { value: rank, selected: rank === this.rank }, `rank ${rank}`)));
    return select;
  }

  async grow(anew) {
    const { generation } = this;
    const items = await this.ask({ from: anew ? null : this.reached + 1 });
    if (generation !== this.generation) return;
    if (anew) {
      this.lines.clear();
      this.fetched = Date.now();
    }
    items.forEach((item) => append(this.lines, item));
    this.reached = Math.max(this.reached ?? -1, ...items.map((item) => item.steps.findLast((step) => holds(item, step)) ?? -1));
  }

  async ask(range) {
    const names = [...new Set([...this.plots.flatMap((plot) => plot.chart.names), "skipped"])];
    const answer = await get(this.path, { names: names.map(inQuestion).join(","), rank: this.rank, points: POINTS, replaced: true, ...range });
    return answer.items.map((item) => ({ ...item, ...answer.axes[item.axis] }));
  }

  draw() {
    const lines = [...(this.closeUp ? this.closeUp.lines : this.lines).values()];
    const range = this.closeUp ? [this.closeUp.first, this.closeUp.last] : null;
    const boundaries = boundariesOf(this.run.lives ?? []);
    const skipped = lines.filter((line) => line.name === "skipped" && !line.replaced).flatMap((line) => line.steps.filter((_, index) => line.values[index] > 0));
    for (const plot of this.plots) {
      const own = plot.chart.names.flatMap((name, tone) => lines.filter((line) => line.name === name).map((line) => ({ ...line, word: plot.chart.words[tone], tone })));
      plot.draw(own, { skipped: plot.chart.skips ? skipped : [], incidents: this.incidents, boundaries }, range);
    }
  }
}

// Attempts of a run follow each other on one line. Steps that a later attempt has replaced are a line of their own, as is
// a process that ran beside another one.
function append(lines, item) {
  const { name, stream, steps, values, complete } = item;
  const cut = steps.findIndex((step) => !holds(item, step));
  const end = cut < 0 ? steps.length : cut;
  const follows = !(lines.get(name)?.steps.at(-1) >= steps[0]);
  extend(lines, follows ? name : `${name}\n${stream}`, { name, stream: follows ? "" : stream, replaced: false }, steps.slice(0, end), values.slice(0, end), complete);
  extend(lines, `${name}\n${stream}\nreplaced`, { name, stream, replaced: true }, steps.slice(end), values.slice(end), complete);
}

// Whether no later attempt has replaced the step.
function holds({ replaced_from }, step) {
  return replaced_from === null || step < replaced_from;
}

function extend(lines, key, about, steps, values, complete) {
  if (!steps.length) return;
  const line = lines.get(key) ?? { ...about, steps: [], values: [], breaks: [] };
  if (!LOGGED.has(about.name)) line.breaks.push(...breaksOf(steps, complete, line.steps.at(-1)));
  steps.forEach((step, index) => {
    line.steps.push(step);
    line.values.push(number(values[index]));
  });
  lines.set(key, line);
}

// Where the attempts of a run begin, but for the first one.
export function boundariesOf(lives) {
  return lives.filter(({ number: count, first_step }) => count > 1 || first_step > 0).map(({ number: count, first_step }) => ({ step: first_step, words: `attempt ${count}` }));
}

// A comma parts the names of a question; one inside a tensor's name is written %2C.
function inQuestion(name) {
  return name.replaceAll("%", "%25").replaceAll(",", "%2C");
}
