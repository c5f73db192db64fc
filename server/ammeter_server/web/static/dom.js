// Creates elements from data. Text is inserted as text only, so hostile names cannot become markup.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  const shown = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...shown.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

// A name of a tensor, which continues in the next line behind a dot.
export function dotted(name) {
  return make("bdi", {}, name.split(".").map((part, index) => (index ? [".", make("wbr"), part] : part)).flat());
}

// Makes characters visible that reverse the direction of writing, so that gnp.exe cannot appear as exe.png.
export function visible(text) {
  return String(text).replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f]/g, "\ufffd");
}

// Updates children by key and renders only changed items: focus, selection and open details survive a poll.
export function updateChildren(parent, items, key, render) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const after = items.map((item) => {
    const name = String(key(item));
    const content = JSON.stringify(item);
    const old = before.get(name);
    if (old && old.content === content) return old;
    const fresh = render(item);
    fresh.dataset.key = name;
    fresh.content = content;
    if (old) transferState(old, fresh);
    return fresh;
  });
  after.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  while (parent.children.length > after.length) parent.lastElementChild.remove();
}

export function replace(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.id : "";
  parent.replaceChildren(...children.flat().filter(Boolean));
  if (focused) document.getElementById(focused)?.focus();
}

function transferState(old, fresh) {
  const open = [...old.querySelectorAll("details")].map((fold) => fold.open);
  [...fresh.querySelectorAll("details")].forEach((fold, index) => (fold.open = open[index] ?? fold.open));
  const reachable = "a, button, summary, input, select";
  const index = [...old.querySelectorAll(reachable)].indexOf(document.activeElement);
  if (index >= 0) queueMicrotask(() => fresh.querySelectorAll(reachable)[index]?.focus());
}
