// Asking again and again: one question at a time, none while nobody looks, and a word when nobody answers. Or asking
// once, and being told what changes.

import { ago } from "./words.js";

export function poll(look, pause) {
  let lost = null;
  const said = document.getElementById("connection");
  const answered = () => {
    if (lost) said.replaceChildren();
    lost = null;
  };
  const turn = async () => {
    let wait = 2000;
    if (document.hidden) wait = 500;
    else {
      try {
        wait = (await look(answered)) ?? pause;
        answered();
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

// Hands on what the collector tells of a path until it does not answer any more, or nobody looks. Where an answer ends,
// the browser asks again by itself and says how far it was told, so that any collector can go on.
export function follow(path, told) {
  return new Promise((resolve, reject) => {
    const source = new EventSource("/api/v1" + path);
    const ages = setInterval(tellAges, 1000);
    const over = (problem) => {
      source.close();
      clearInterval(ages);
      document.removeEventListener("visibilitychange", hidden);
      if (problem) reject(problem);
      else resolve();
    };
    const hidden = () => document.hidden && over();
    let failed = 0;
    let turn = Promise.resolve();
    source.onopen = () => (failed = 0);
    source.onerror = () => (++failed > 1 || source.readyState === EventSource.CLOSED) && over();
    source.onmessage = ({ data }) => (turn = turn.then(() => told(JSON.parse(data))).catch(over));
    document.addEventListener("visibilitychange", hidden);
  });
}

// Elements with data-since show how long ago that was; kept current without rendering anything anew.
export function tellAges() {
  for (const element of document.querySelectorAll("[data-since]")) {
    const text = ago(element.dataset.since);
    if (element.textContent !== text) element.textContent = text;
  }
}
