// Links to a run or an incident in other tools, where the collector has addresses of them.

import { make } from "./dom.js";

const TOOLS = [["board", "Grafana board"], ["log", "Log"], ["silence", "Silence in Alertmanager"]];

// Words and addresses.
export function toolsOf(links) {
  return TOOLS.filter(([name]) => links?.[name]).map(([name, words]) => ({ words, href: links[name] }));
}

// isOpen: whether there is an alert to silence.
export function toolLinks(links, isOpen = true) {
  return toolsOf({ ...links, ...(isOpen ? {} : { silence: null }) }).map(({ words, href }) => make("a", { href, rel: "noreferrer" }, words));
}

// The same in a line of text; a narrow window leaves them to the page of the run.
export function toolsInLine(links, isOpen) {
  return make("span", { class: "wide" }, toolLinks(links, isOpen).map((link) => [" · ", link]).flat());
}
