// The channels of notifications: what they receive, what was delivered, and a test of each.

import { get, post } from "./api.js";
import { make, replace, updateChildren } from "./dom.js";
import { delivery } from "./handling.js";
import { poll } from "./live.js";
import { toolLinks } from "./tools.js";
import { ago, moment, plural } from "./words.js";

const PAUSE_MS = 5000;
const place = document.getElementById("channels");
const results = new Map();

poll(show, PAUSE_MS);

async function show() {
  const { items } = await get("/channels");
  if (!items.length) replace(place, none());
  else {
    place.querySelector(".empty")?.remove();
    updateChildren(place, items.map((channel) => ({ ...channel, result: results.get(channel.name) })), ({ name }) => name, card);
  }
  place.removeAttribute("aria-busy");
}

function none() {
  return make("div", { class: "empty" }, make("h2", {}, "No channels"),
    make("p", {}, "Nobody is notified of incidents. Set ", make("code", {}, "AMMETER_SERVER_NOTIFY"), " to Apprise URLs of chat, mail or a pager, or ", make("code", {}, "AMMETER_SERVER_ALERTMANAGER_URL"), " to an Alertmanager, and restart the collector."));
}

function card({ name, stateful, receives, deliveries, result }) {
  const waiting = deliveries.filter(({ state, error }) => error && state !== "sent");
  const sent = deliveries.find((item) => item.sent);
  const state = waiting.length ? make("span", { class: "bad" }, `${plural(waiting.length, "notification")} not delivered`)
    : sent ? make("span", {}, "last delivery ", make("time", { "data-since": sent.sent, datetime: sent.sent, title: moment(sent.sent) }, ago(sent.sent))) : make("span", { class: "quiet" }, "nothing sent yet");
  const button = make("button", { class: "test", onclick: () => test(name, button) }, "Send a test");
  return make("article", { class: "card channel" },
    make("header", {}, make("h2", {}, make("bdi", {}, name)), state, button),
    make("p", { class: "quiet" }, `${stateful ? "Alertmanager: alerts are repeated until they end. " : ""}Receives ${receives.length ? receives.join(", ") : "every incident"}.`),
    make("p", { class: "result", role: "status" }, result ? make("span", { class: result.error ? "problem" : "good" }, result.error ? `The test failed: ${result.error}` : `The test was accepted at ${moment(result.at)}.`) : null),
    deliveries.length ? make("details", { open: waiting.length > 0 }, make("summary", {}, `${plural(deliveries.length, "newest notification")}`), make("ul", { class: "deliveries" }, deliveries.map((item) => make("li", {}, line(item))))) : null);
}

function line(item) {
  const [, ...how] = delivery({ ...item, channel: "" });
  return [make("a", { href: `/runs/${encodeURIComponent(item.run)}#${encodeURIComponent(item.verdict)}` }, make("bdi", {}, item.title || item.verdict)), make("span", { class: "quiet" }, " ", make("a", { class: "plain", href: `/runs/${encodeURIComponent(item.run)}` }, make("bdi", {}, item.run_name || item.run.slice(0, 8)))), how, make("span", { class: "under links" }, toolLinks(item.links, item.kind !== "resolved"))].flat();
}

async function test(name, button) {
  button.disabled = true;
  button.textContent = "Sending …";
  try {
    const { error } = await post(`/channels/${encodeURIComponent(name)}/test`);
    results.set(name, { error, at: new Date().toISOString() });
  } catch (problem) {
    results.set(name, { error: problem.status ? problem.message : "the collector does not respond", at: new Date().toISOString() });
  }
  button.disabled = false;
  button.textContent = "Send a test";
  await show().catch(() => {});
}
