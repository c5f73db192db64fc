// A part of the page that is folded away and opened, and asks only while it is open and somebody can see it.

import { make } from "./dom.js";

export class Fold {
  // ask() brings what it shows up to date.
  constructor(place, title, ask) {
    this.place = place;
    this.ask = ask;
    this.stale = this.asking = false;
    this.said = make("span", { class: "quiet" });
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.body = make("div", { class: "card" });
    this.fold = make("details", { class: "fold", open: true, ontoggle: () => this.look() }, make("summary", {}, make("h2", {}, title), this.said), this.problem, this.body);
    place.append(this.fold);
    new IntersectionObserver(() => this.look()).observe(place);
  }

  seen() {
    const { top, bottom } = this.place.getBoundingClientRect();
    return this.fold.open && !document.hidden && bottom > 0 && top < innerHeight;
  }

  // There may be something new. Asks now, or once it is seen.
  due() {
    this.stale = true;
    return this.look();
  }

  async look() {
    if (this.asking) return;
    this.asking = true;
    try {
      while (this.stale && this.seen()) {
        this.stale = false;
        await this.ask();
        this.problem.hidden = true;
      }
    } catch (problem) {
      this.stale = true;
      this.problem.hidden = !problem.status; // that nobody answers is said on top
      this.problem.textContent = problem.message;
    } finally {
      this.asking = false;
    }
  }
}
