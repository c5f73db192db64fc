// A collapsible section that requests data only while it is open and visible.

import { make } from "./dom.js";

export class Fold {
  // update() refreshes the content.
  constructor(place, title, update) {
    this.place = place;
    this.update = update;
    this.stale = this.updating = false;
    this.facts = make("span", { class: "quiet" });
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.body = make("div", { class: "card" });
    this.fold = make("details", { class: "fold", open: true, ontoggle: () => this.updateIfVisible() }, make("summary", {}, make("h2", {}, title), this.facts), this.problem, this.body);
    place.append(this.fold);
    new IntersectionObserver(() => this.updateIfVisible()).observe(place);
  }

  isVisible() {
    const { top, bottom } = this.place.getBoundingClientRect();
    return this.fold.open && !document.hidden && bottom > 0 && top < innerHeight;
  }

  // Marks the content as outdated. Updates now, or when the section becomes visible.
  markStale() {
    this.stale = true;
    return this.updateIfVisible();
  }

  async updateIfVisible() {
    if (this.updating) return;
    this.updating = true;
    try {
      while (this.stale && this.isVisible()) {
        this.stale = false;
        await this.update();
        this.problem.hidden = true;
      }
    } catch (problem) {
      this.stale = true;
      this.problem.hidden = !problem.status; // the page's header reports a collector that does not respond
      this.problem.textContent = problem.message;
    } finally {
      this.updating = false;
    }
  }
}
