// The page of one run: incidents on top, then charts, tensors and events. Lists the parts of the page.

import { get } from "./api.js";
import { Charts } from "./charts.js";
import { make, replace } from "./dom.js";
import { showEvents } from "./events.js";
import { Exponents } from "./exponents.js";
import { showDetails, showHead } from "./head.js";
import { Health } from "./health.js";
import { Heat } from "./heat.js";
import { showIncidents } from "./incidents.js";
import { follow, poll } from "./live.js";
import { showTensors } from "./tensors.js";
import { WhatIf } from "./whatif.js";

const place = document.getElementById("run");
const id = place.dataset.run;
const charts = new Charts(document.getElementById("charts"), id);
const health = new Health(document.getElementById("health"), id, charts);
const heat = new Heat(document.getElementById("heat"), id, charts);
const exponents = new Exponents(document.getElementById("exponents"), id, charts);
const whatIf = new WhatIf(document.getElementById("what-if"), id, charts);
let lastProgress = "";
let turnsUntilSlow = 0;
let missing = false;

let run = null;
let incidents = [];
charts.chosen = () => run && showPictures();

poll(async (connected) => {
  try {
    await load();
    connected();
    await follow(`/runs/${encodeURIComponent(id)}/live`, changed);
    return 0;
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    missing = true;
    replace(place, make("div", { class: "empty" }, make("h1", {}, "Run not found"),
      make("p", {}, "The run was deleted, or its first record has not arrived yet. A new run appears here by itself."), make("p", {}, make("a", { href: "/" }, "All runs"))));
    return 2000;
  }
}, 1000);

async function load() {
  const path = `/runs/${encodeURIComponent(id)}`;
  const [now, listed] = await Promise.all([get(path), get(`${path}/incidents`, { page_size: 100 })]);
  if (missing) return location.reload();
  await changed({ run: now, incidents: listed.items });
}

// Starts their own requests; no other part waits for them.
function showPictures() {
  health.follow(run);
  heat.follow(run);
  exponents.follow(run);
  whatIf.follow();
}

// A null member has not changed.
async function changed(changes) {
  run = changes.run ?? run;
  incidents = changes.incidents ?? incidents;
  showHead(document.getElementById("head"), run, incidents);
  showIncidents(document.getElementById("incidents"), run, incidents, { changed: load, zoom: (step) => charts.around(step), isAlone: run.world_size === 1 });
  const now = JSON.stringify([run.last_step, run.last_step_time, run.counters, run.state]);
  if (changes.events?.some(({ name, step, step_offset }) => name === "values.logged" && step + step_offset <= charts.reached)) charts.logLate();
  charts.mark(incidents);
  health.mark(incidents);
  heat.mark(incidents);
  if (now !== lastProgress || charts.late) {
    charts.run ??= run;
    const drawn = health.follow(run);
    if (!lastProgress) await drawn; // the first screen comes first
    await charts.follow(run);
    await showEvents(document.getElementById("events"), id);
    if (turnsUntilSlow-- <= 0 || run.state !== "running") {
      await showTensors(document.getElementById("tensors"), run, charts);
      showPictures();
      turnsUntilSlow = 4;
    }
    lastProgress = now;
  }
  showDetails(document.getElementById("details"), run);
  place.removeAttribute("aria-busy");
}
