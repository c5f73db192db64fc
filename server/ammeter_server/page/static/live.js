// Asking again and again: one question at a time, none while nobody looks, and a word when nobody answers.

import { ago } from "./words.js";

export function poll(look, pause) {
  let lost = null;
  const said = document.getElementById("connection");
  const turn = async () => {
    let wait = 2000;
    if (document.hidden) wait = 500;
    else {
      try {
        wait = (await look()) ?? pause;
        if (lost) said.replaceChildren();
        lost = null;
      } catch (problem) {
        lost ??= new Date();
        said.textContent = `No answer from the collector since ${lost.toLocaleTimeString("en-GB")}. Asking again …`;
        if (problem.status) console.warn(problem.message);
      }
      tellAges();
    }
    setTimeout(turn, wait);
  };
  turn();
}

// Elements with data-since show how long ago that was; kept current without rendering anything anew.
export function tellAges() {
  for (const element of document.querySelectorAll("[data-since]")) {
    const text = ago(element.dataset.since);
    if (element.textContent !== text) element.textContent = text;
  }
}
