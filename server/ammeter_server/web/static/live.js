// Polling: one request at a time, none while the page is hidden, and a message while the collector does not respond.
// Or following a stream of server-sent events.

import { ago } from "./words.js";

export function poll(request, pause) {
  let lostSince = null;
  const message = document.getElementById("connection");
  const connected = () => {
    if (lostSince) message.replaceChildren();
    lostSince = null;
  };
  const turn = async () => {
    let wait = 2000;
    if (document.hidden) wait = 500;
    else {
      try {
        wait = (await request(connected)) ?? pause;
        connected();
      } catch (problem) {
        lostSince ??= new Date();
        message.textContent = `No response from the collector since ${lostSince.toLocaleTimeString("en-GB")}. Retrying …`;
        if (problem.status) console.warn(problem.message);
      }
      updateAges();
    }
    setTimeout(turn, wait);
  };
  turn();
}

// Passes on messages of a path until the collector stops responding or the page is hidden. When a response ends, the
// browser reconnects with the last message's id, so that any collector can continue.
export function follow(path, onMessage) {
  return new Promise((resolve, reject) => {
    const source = new EventSource("/api/v1" + path);
    const ages = setInterval(updateAges, 1000);
    const end = (problem) => {
      source.close();
      clearInterval(ages);
      document.removeEventListener("visibilitychange", hidden);
      if (problem) reject(problem);
      else resolve();
    };
    const hidden = () => document.hidden && end();
    let failed = 0;
    let turn = Promise.resolve();
    source.onopen = () => (failed = 0);
    source.onerror = () => (++failed > 1 || source.readyState === EventSource.CLOSED) && end();
    source.onmessage = ({ data }) => (turn = turn.then(() => onMessage(JSON.parse(data))).catch(end));
    document.addEventListener("visibilitychange", hidden);
  });
}

// Updates elements with data-since, which show an age, without other rendering.
export function updateAges() {
  for (const element of document.querySelectorAll("[data-since]")) {
    const text = ago(element.dataset.since);
    if (element.textContent !== text) element.textContent = text;
  }
}
