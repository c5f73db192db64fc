// One run: what is wrong on top, then its charts, tensors and events. Reads like a table of contents.

import { get } from "./api.js";
import { Charts } from "./charts.js";
import { make, replace } from "./dom.js";
import { showEvents } from "./events.js";
import { Exponents } from "./exponents.js";
import { showDetails, showHead } from "./head.js";
import { Heat } from "./heat.js";
import { showIncidents } from "./incidents.js";
import { follow, poll } from "./live.js";
import { showTensors } from "./tensors.js";

const place = document.getElementById("run");
const id = place.dataset.run;
const charts = new Charts(document.getElementById("charts"), id);
const heat = new Heat(document.getElementById("heat"), id, charts);
const exponents = new Exponents(document.getElementById("exponents"), id, charts);
let seen = "";
let slow = 0;
let missing = false;

let run = null;
let incidents = [];
charts.chosen = () => run && showPictures();

poll(async (answered) => {
  try {
    await look();
    answered();
    await follow(`/runs/${encodeURIComponent(id)}/live`, changed);
    return 0;
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    missing = true;
    replace(place, make("div", { class: "empty" }, make("h1", {}, "There is no such run"),
      make("p", {}, "It may have been deleted, or its first record has not arrived yet; then it will appear here."), make("p", {}, make("a", { href: "/" }, "All runs"))));
    return 2000;
  }
}, 1000);

async function look() {
  const path = `/runs/${encodeURIComponent(id)}`;
  const [now, listed] = await Promise.all([get(path), get(`${path}/incidents`, { page_size: 100 })]);
  if (missing) return location.reload();
  await changed({ run: now, incidents: listed.items });
}

// Their own questions, which nothing else waits for.
function showPictures() {
  heat.follow(run);
  exponents.follow(run);
}

// What is null has not changed.
async function changed(told) {
  run = told.run ?? run;
  incidents = told.incidents ?? incidents;
  showHead(document.getElementById("head"), run, incidents);
  showIncidents(document.getElementById("incidents"), run, incidents, { changed: look, zoom: (step) => charts.around(step) });
  const now = JSON.stringify([run.last_step, run.last_step_time, run.counters, run.state]);
  if (told.events?.some(({ name, step, step_offset }) => name === "values.logged" && step + step_offset <= charts.reached)) charts.logLate();
  charts.mark(incidents);
  heat.mark(incidents);
  if (now !== seen || charts.late) {
    await charts.follow(run);
    await showEvents(document.getElementById("events"), id);
    if (slow-- <= 0 || run.state !== "running") {
      await showTensors(document.getElementById("tensors"), run, charts);
      showPictures();
      slow = 4;
    }
    seen = now;
  }
  showDetails(document.getElementById("details"), run);
  place.removeAttribute("aria-busy");
}
