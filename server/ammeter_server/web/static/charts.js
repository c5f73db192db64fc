// The charts of a run: requests, new values while the run continues, and the displayed steps.

import { show, shown, shownNumber, shownSteps } from "./address.js";
import { get } from "./api.js";
import { Cursor, fitted } from "./cursor.js";
import { make, replace } from "./dom.js";
import { breaksOf } from "./gaps.js";
import { integer, number, scale, severalLosses, short } from "./words.js";

const POINTS = 2000;
const RELOAD_MS = 30000;
const STEPS_AROUND = 60;

// Values that a program logs occasionally; steps between them are no gaps.
const OCCASIONAL = new Set(["val_loss"]);

const CHARTS = [
  { title: "Loss scale", names: ["scale"], words: ["scale"], log: 2, format: scale, marksSkipped: true, empty: "No loss scale was recorded. bfloat16 and float32 need none." },
  { title: "Gradient norm", names: ["grad_norm"], words: ["L2 norm, unscaled"], log: 10, format: short, empty: "Not measured yet." },
  { title: "Loss", names: ["loss", "val_loss"], words: ["training", "validation"], format: short, empty: "Not measured yet. run.log(loss=...) sets it.", losses: true },
];

export class Charts {
  constructor(place, run) {
    this.place = place;
    this.path = `/runs/${encodeURIComponent(run)}/series`;
    this.rank = shownNumber("rank") ?? 0;
    this.tensor = shown("tensor");
    this.incidents = [];
    this.range = shownSteps();
    this.chosen = () => null;
    this.cursor = new Cursor();
    this.actions = { cursor: this.cursor, zoom: (first, last) => this.select(first, last), all: () => this.all() };
    this.plots = [];
    this.head = make("div", { class: "filters" });
    this.generation = 0;
    this.queue = Promise.resolve();
    this.reset();
  }

  reset() {
    this.lines = new Map();
    this.closeUp = null;
    this.reached = null;
    this.fetched = 0;
    this.late = false;
    this.generation++;
  }

  // A value has arrived for a step that is drawn already: all values are requested again.
  logLate() {
    this.late = true;
  }

  mark(incidents) {
    this.incidents = incidents.map(({ first_step, step_offset, severity, title, verdict }) => ({ step: first_step + step_offset, severity, title: title || verdict }));
  }

  // Updates the charts to the run's last step. Updates are serial; otherwise new values would be appended twice.
  follow(run) {
    this.queue = this.queue.catch(() => null).then(() => this.update(run));
    return this.queue;
  }

  // Requests new values only; all values from time to time, after the start of an attempt, and after a late value.
  async update(run) {
    this.run = run;
    const losses = severalLosses(run).join("\n");
    const lives = JSON.stringify((run.lives ?? []).map(({ step_offset, replaced_from }) => [step_offset, replaced_from]));
    this.Plot ??= (await import("./plot.js")).Plot; // large, and the first screen does not need it
    if (this.plots.length && (losses !== this.losses || lives !== this.lives)) this.reset();
    this.lives = lives;
    if (!this.plots.length || losses !== this.losses) this.build();
    const isRestored = this.range && !this.closeUp;
    if (isRestored) this.closeUp = { first: this.range[0], last: this.range[1], lines: new Map() };
    const reload = this.late || this.reached === null || run.last_step < this.reached || Date.now() - this.fetched > RELOAD_MS;
    this.late = false;
    if (reload || run.last_step > this.reached) await this.grow(reload);
    if (reload && this.closeUp) await this.loadCloseUp();
    this.draw();
    if (isRestored) this.showHead();
  }

  // Selects steps by pointer, fingers or keys. Returns false if they are shown already.
  select(first, last) {
    const range = fitted([first, last], this.run?.last_step ?? last);
    if (JSON.stringify(range) === JSON.stringify(this.range)) return false;
    return range ? this.zoom(...range) : this.all();
  }

  // Shows the steps from first to last in full resolution; all() shows the complete run. Both call chosen(), as does a
  // change of rank.
  async zoom(first, last) {
    if (this.closeUp?.first === first && this.closeUp.last === last) return;
    this.range = [first, last];
    show({ from: first, to: last });
    this.chosen();
    if (!this.plots.length) return; // the first update requests these steps
    const { generation } = this;
    const closeUp = (this.closeUp = { first, last, lines: new Map() });
    await this.loadCloseUp();
    if (generation !== this.generation || closeUp !== this.closeUp) return;
    this.draw();
    this.showHead();
  }

  // Requests the chosen steps.
  async loadCloseUp() {
    const { generation, closeUp } = this;
    const items = await this.request({ from: closeUp.first, to: closeUp.last });
    if (generation !== this.generation || closeUp !== this.closeUp) return;
    closeUp.lines.clear();
    items.forEach((item) => append(closeUp.lines, item));
  }

  all() {
    this.range = this.closeUp = null;
    show({ from: null, to: null });
    this.chosen();
    if (!this.plots.length) return;
    this.draw();
    this.showHead();
  }

  async around(step) {
    this.place.scrollIntoView({ block: "nearest" });
    await this.zoom(Math.max(0, step - STEPS_AROUND), Math.max(step + 1, Math.min(step + STEPS_AROUND, this.run.last_step)));
  }

  // Adds a chart of one tensor's gradient norm after the others; null removes it.
  async show(tensor) {
    this.tensor = tensor;
    show({ tensor });
    this.chosen();
    await this.restart();
    if (tensor) this.place.lastElementChild.scrollIntoView({ block: "nearest" });
  }

  async choose(rank) {
    this.rank = rank;
    show({ rank: rank || null });
    this.chosen();
    await this.restart();
  }

  // Requests the displayed steps again.
  async restart() {
    this.reset();
    this.build();
    await this.follow(this.run);
    if (this.range) await this.zoom(...this.range);
  }

  build() {
    this.plots.forEach((plot) => plot.remove());
    const lossNames = severalLosses(this.run);
    this.losses = lossNames.join("\n");
    const charts = CHARTS.map((chart) => (chart.losses ? { ...chart, names: [...chart.names, ...lossNames], words: [...chart.words, ...lossNames] } : chart));
    if (this.tensor) charts.push({ title: "Gradient norm of", tensor: this.tensor, names: [`grad.norm:${this.tensor}`], words: ["L2 norm, unscaled"], log: 10, format: short, empty: "Not measured yet.", close: () => this.show(null) });
    replace(this.place, this.head);
    this.showHead();
    this.plots = charts.map((chart) => new this.Plot(this.place, chart, this.actions));
  }

  showHead() {
    const { closeUp, run } = this;
    replace(this.head,
      run.world_size > 1 ? this.ranks(run.world_size) : null,
      closeUp ? [make("span", {}, `Steps ${integer(closeUp.first)} to ${integer(closeUp.last)}`), make("button", { id: "all-steps", onclick: () => this.all() }, "Show all steps")] : null);
  }

  ranks(count) {
    const select = make("select", { id: "rank", "aria-label": "Charts of", onchange: () => this.choose(Number(select.value)) },
      Array.from({ length: count }, (_, rank) => make("option", { value: rank, selected: rank === this.rank }, `rank ${rank}`)));
    return select;
  }

  async grow(reload) {
    const { generation } = this;
    const items = await this.request({ from: reload ? null : this.reached + 1 });
    if (generation !== this.generation) return;
    if (reload) {
      this.lines.clear();
      this.fetched = Date.now();
    }
    items.forEach((item) => append(this.lines, item));
    this.reached = Math.max(this.reached ?? -1, ...items.map((item) => item.steps.findLast((step) => isCurrent(item, step)) ?? -1));
  }

  async request(range) {
    const names = [...new Set([...this.plots.flatMap((plot) => plot.chart.names), "skipped"])];
    const answer = await get(this.path, { names: names.map(encodeName).join(","), rank: this.rank, points: POINTS, replaced: true, times: false, ...range });
    return answer.items.map((item) => ({ ...item, ...answer.axes[item.axis] }));
  }

  draw() {
    const lines = [...(this.closeUp ? this.closeUp.lines : this.lines).values()];
    const range = this.closeUp ? [this.closeUp.first, this.closeUp.last] : null;
    const boundaries = boundariesOf(this.run.lives ?? []);
    const skipped = lines.filter((line) => line.name === "skipped" && !line.replaced).flatMap((line) => line.steps.filter((_, index) => line.values[index] > 0));
    for (const plot of this.plots) {
      const own = plot.chart.names.flatMap((name, tone) => lines.filter((line) => line.name === name).map((line) => ({ ...line, word: plot.chart.words[tone], tone })));
      plot.draw(own, { skipped: plot.chart.marksSkipped ? skipped : [], incidents: this.incidents, boundaries }, range);
    }
  }
}

// Attempts of a run continue one line. Steps that a later attempt has replaced have a line of their own, and so has a
// process that ran at the same time as another one.
export function append(lines, item) {
  const { name, stream, steps, values, complete } = item;
  const cut = steps.findIndex((step) => !isCurrent(item, step));
  const end = cut < 0 ? steps.length : cut;
  const follows = !(lines.get(name)?.steps.at(-1) >= steps[0]);
  extend(lines, follows ? name : `${name}\n${stream}`, { name, stream: follows ? "" : stream, replaced: false }, steps.slice(0, end), values.slice(0, end), complete);
  extend(lines, `${name}\n${stream}\nreplaced`, { name, stream, replaced: true }, steps.slice(end), values.slice(end), complete);
}

// Whether no later attempt has replaced the step.
function isCurrent({ replaced_from }, step) {
  return replaced_from === null || step < replaced_from;
}

function extend(lines, key, about, steps, values, complete) {
  if (!steps.length) return;
  const line = lines.get(key) ?? { ...about, steps: [], values: [], breaks: [] };
  if (!OCCASIONAL.has(about.name)) line.breaks.push(...breaksOf(steps, complete, line.steps.at(-1)));
  steps.forEach((step, index) => {
    line.steps.push(step);
    line.values.push(number(values[index]));
  });
  lines.set(key, line);
}

// The first steps of the run's attempts, except for the first attempt.
export function boundariesOf(lives) {
  return lives.filter(({ number: count, first_step }) => count > 1 || first_step > 0).map(({ number: count, first_step }) => ({ step: first_step, words: `attempt ${count}` }));
}

// Commas separate the names of a request; a comma inside a tensor's name is encoded as %2C.
function encodeName(name) {
  return name.replaceAll("%", "%25").replaceAll(",", "%2C");
}
