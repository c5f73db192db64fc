// Client of the API: responses, errors as Problem, and one sign-in when a token is required.

const TIMEOUT_MS = 15000;

let signingIn = null;

export async function get(path, parameters = {}) {
  return readBody(await request("GET", address(path, parameters)));
}

export async function post(path, parameters = {}) {
  return readBody(await request("POST", address(path, parameters)));
}

export async function remove(path, parameters = {}) {
  return readBody(await request("DELETE", address(path, parameters)));
}

// Returns the content of a response and its tag; null if the known tag is still current.
export async function changed(tag, path, parameters, read = readBody, timeout = TIMEOUT_MS) {
  const answer = await request("GET", address(path, parameters), undefined, tag, timeout);
  return answer.status === 304 ? null : { tag: answer.headers.get("ETag"), content: await read(answer) };
}

function address(path, parameters = {}) {
  const present = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(present).toString();
  return "/api/v1" + path + (query ? "?" + query : "");
}

function readBody(answer) {
  return answer.status === 204 ? null : answer.json();
}

// Reads all pages of a list, up to a limit.
export async function all(path, parameters = {}, limit = 2000) {
  const items = [];
  let page = null;
  do {
    const answer = await get(path, { ...parameters, page_token: page });
    items.push(...answer.items);
    page = answer.next_page_token;
  } while (page && items.length < limit);
  return items;
}

export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
  }
}

async function request(method, url, body, tag, timeout = TIMEOUT_MS) {
  const headers = { Accept: "*/*" };
  if (tag) headers["If-None-Match"] = tag;
  if (method !== "GET") headers["X-Ammeter-Request"] = "page";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(url, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(timeout),
  });
  if (answer.status === 401 && !url.endsWith("/session")) {
    await signIn();
    return request(method, url, body, tag, timeout);
  }
  if (!answer.ok && answer.status !== 304) throw await problemOf(answer);
  return answer;
}

async function problemOf(answer) {
  try {
    const body = await answer.json();
    return new Problem(answer.status, body.title, body.detail);
  } catch {
    return new Problem(answer.status, answer.statusText, "");
  }
}

// Shows one dialog for all refused requests, until a token is accepted.
function signIn() {
  signingIn ??= new Promise((resolve) => {
    const dialog = document.getElementById("sign-in");
    const form = dialog.querySelector("form");
    const message = document.getElementById("sign-in-problem");
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.onsubmit = async (event) => {
      event.preventDefault();
      try {
        await request("POST", "/api/v1/session", { token: form.elements.token.value.trim() });
      } catch (problem) {
        message.textContent = problem.status === 401 ? "The token is unknown or has expired." : problem.message;
        form.elements.token.select();
        return;
      }
      form.reset();
      message.textContent = "";
      dialog.close();
      signingIn = null;
      resolve();
    };
    dialog.showModal();
  });
  return signingIn;
}
