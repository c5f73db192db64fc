// The charts of a run: what is asked for, how it grows while the run goes on, and which chart shows what.

import { get } from "./api.js";
import { make, replace } from "./dom.js";
import { Plot } from "./plot.js";
import { number, scale, short } from "./words.js";

const POINTS = 2000;
const ANEW_AFTER_MS = 30000;

const CHARTS = [
  { title: "Loss scale", names: ["scale"], words: ["scale"], log: 2, say: scale, skips: true, empty: "No loss scaler: nothing to show for bf16 or float32." },
  { title: "Gradient norm", names: ["grad_norm"], words: ["L2 norm, unscaled"], log: 10, say: short, empty: "Not measured yet." },
  { title: "Loss", names: ["loss", "val_loss"], words: ["training", "validation"], say: short, empty: "Not seen yet. run.log(loss=...) tells it." },
];

export class Charts {
  constructor(place, run) {
    this.place = place;
    this.path = `/runs/${encodeURIComponent(run)}/series`;
    this.rank = 0;
    this.tensor = null;
    this.incidents = [];
    this.plots = [];
    this.forget();
  }

  forget() {
    this.lines = new Map();
    this.reached = null;
    this.since = 0;
    this.wanted = (this.wanted ?? 0) + 1;
  }

  // Brings the charts up to the run's last step: what is new only, and everything anew from time to time.
  async follow(run) {
    this.run = run;
    if (!this.plots.length) this.build(run);
    const stale = Date.now() - this.since > ANEW_AFTER_MS || (this.reached !== null && run.last_step < this.reached);
    const from = stale || this.reached === null ? null : this.reached + 1;
    if (from === null || run.last_step >= from) await this.fetch(from);
    this.draw();
  }

  mark(incidents) {
    this.incidents = incidents.map(({ first_step, severity, title, verdict }) => ({ step: first_step, severity, title: title || verdict }));
  }

  // A chart of one tensor's gradient norm, below the others; null takes it away.
  async show(tensor) {
    this.tensor = tensor;
    this.build(this.run);
    this.forget();
    await this.follow(this.run);
    if (tensor) this.place.lastElementChild.scrollIntoView({ block: "nearest" });
  }

  build(run) {
    this.plots.forEach((plot) => plot.remove());
    const charts = [...CHARTS];
    if (this.tensor) {
      charts.push({ title: "Gradient norm of", of: this.tensor, names: [`grad.norm:${this.tensor}`], words: ["L2 norm, unscaled"], log: 10, say: short, empty: "Not measured yet.", close: () => this.show(null) });
    }
    replace(this.place, run.world_size > 1 ? this.ranks(run.world_size) : null);
    this.plots = charts.map((chart) => new Plot(this.place, chart));
  }

  ranks(count) {
    const select = make("select", { id: "rank", onchange: () => this.choose(Number(select.value)) },
      Array.from({ length: count }, (_, rank) => make("option", { value: rank, selected: rank === this.rank }, `rank ${rank}`)));
    return make("p", { class: "filters" }, make("label", { for: "rank" }, "Charts of "), select);
  }

  async choose(rank) {
    this.rank = rank;
    this.forget();
    await this.follow(this.run);
  }

  async fetch(from) {
    const names = [...new Set(this.plots.flatMap((plot) => plot.chart.names)), "skipped"];
    const wanted = this.wanted;
    const answer = await get(this.path, { names: names.map(encodeName).join(","), rank: this.rank, from, points: POINTS });
    if (wanted !== this.wanted) return;
    if (from === null) {
      this.lines.clear();
      this.since = Date.now();
    }
    for (const item of answer.items) this.append(item);
  }

  append({ name, stream, steps, values }) {
    const key = `${name}\n${stream}`;
    const line = this.lines.get(key) ?? { name, stream, steps: [], values: [] };
    steps.forEach((step, index) => {
      line.steps.push(step);
      line.values.push(number(values[index]));
    });
    this.lines.set(key, line);
    if (steps.length) this.reached = Math.max(this.reached ?? -1, steps.at(-1));
  }

  draw() {
    const lines = [...this.lines.values()];
    const skipped = lines.filter((line) => line.name === "skipped").flatMap((line) => line.steps.filter((_, index) => line.values[index] > 0));
    for (const plot of this.plots) {
      const own = plot.chart.names.flatMap((name, index) => lines.filter((line) => line.name === name).map((line) => ({ ...line, word: plot.chart.words[index], tone: index })));
      plot.draw(own, { skipped: plot.chart.skips ? skipped : [], incidents: this.incidents });
    }
  }
}

// A comma parts names in a question; one inside a tensor's name is written %2C there.
function encodeName(name) {
  return name.replaceAll("%", "%25").replaceAll(",", "%2C");
}
