// Filters of a list that are kept in the address of the page.

import { make } from "./dom.js";

export class Filters {
  // changed(): requests the list again.
  constructor(changed) {
    this.chosen = new URLSearchParams(location.search);
    this.changed = changed;
  }

  get(name) {
    return this.chosen.get(name);
  }

  set(name, value) {
    if (value) this.chosen.set(name, value);
    else this.chosen.delete(name);
    history.replaceState(null, "", this.chosen.size ? `?${this.chosen}` : location.pathname);
    return this.changed();
  }

  // values: names, or [value, words].
  choice(name, allLabel, values) {
    const options = values.map((value) => (Array.isArray(value) ? value : [value, value]));
    const select = make("select", { id: `filter-${name}`, "aria-label": name, onchange: () => this.set(name, select.value) },
      make("option", { value: "" }, allLabel),
      options.map(([value, words]) => make("option", { value, selected: value === this.get(name) }, words)),
    );
    return select;
  }

  // The distinct values of a column, and the chosen one.
  valuesOf(name, items) {
    return [...new Set([...items, this.get(name)].filter((value) => typeof value === "string" && value))].sort();
  }
}
