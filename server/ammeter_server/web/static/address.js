// What is shown, as parameters of the page's address: a copied link opens the same steps, tensor and colouring.

export function shown(name) {
  return new URLSearchParams(location.search).get(name);
}

// A whole number from 0 on, or null.
export function shownNumber(name) {
  const text = shown(name);
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
}

// One of the choices, or the first of them.
export function shownChoice(name, choices) {
  const text = shown(name);
  return choices.includes(text) ? text : choices[0];
}

// The steps, or null.
export function shownSteps() {
  const [from, to] = [shownNumber("from"), shownNumber("to")];
  return from !== null && to !== null && from < to ? [from, to] : null;
}

// Null removes a parameter. The history of the browser gets no entry.
export function show(parameters) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(parameters)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  history.replaceState(history.state, "", `${location.pathname}${text ? "?" + text : ""}${location.hash}`);
}
