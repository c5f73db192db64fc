// Two groups of runs with several seeds: a form, and the decision with its reasons.

import { get } from "./api.js";
import { make, replace } from "./dom.js";
import { plural, short } from "./words.js";

const WORDS = { better: "A is better than B", worse: "A is worse than B", "not distinguishable": "A and B are not distinguishable", "too few runs": "Too few runs", "not comparable": "Not comparable" };

export function showGroups(place, project) {
  const answer = make("div", { id: "decision", role: "status" });
  const field = (name, hint) => make("label", {}, `${name.toUpperCase()} `, make("input", { id: `group-${name}`, name, required: true, placeholder: hint, autocomplete: "off" }));
  const form = make("form", { class: "filters pins", onsubmit: (event) => submit(event, project, answer) },
    field("a", "name, ids, or tag=value"), field("b", "name, ids, or tag=value"), make("button", { id: "compare-groups", type: "submit", class: "primary" }, "Compare"));
  replace(place, make("h2", {}, "Compare groups of runs"), make("p", { class: "quiet" }, "Several seeds of one training against several of another. One run each decides nothing."), form, answer);
}

async function submit(event, project, answer) {
  event.preventDefault();
  const { a, b } = event.target.elements;
  try {
    replace(answer, decision(await get("/compare", { a: a.value, b: b.value, project })));
  } catch (problem) {
    if (!problem.status) throw problem;
    replace(answer, make("p", { class: "problem" }, problem.message));
  }
}

function decision({ decision: result, reasons, notes, a, b }) {
  return make("div", { class: "stack" },
    make("p", { class: `calm ${result === "better" ? "good" : ""}` }, make("strong", {}, WORDS[result] ?? result)),
    make("ul", {}, [...reasons, ...notes].map((text) => make("li", {}, make("bdi", {}, text)))),
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ["Group", "Runs", "Mean", "Standard deviation", "Values"].map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, [["A", a], ["B", b]].map(([name, group]) => make("tr", {}, make("th", { scope: "row" }, name),
        make("td", {}, `${plural(group.runs.length, "run")}, ${group.independent} independent`), make("td", {}, short(group.mean, 6)), make("td", {}, short(group.deviation)),
        make("td", {}, group.runs.map(({ value }) => short(value, 6)).join(", "))))))));
}
