// The read API as this page uses it: answers, problems in words, and signing in once when a token is asked for.

let signingIn = null;

export async function get(path, parameters = {}) {
  return bodyOf(await ask("GET", address(path, parameters)));
}

export async function post(path) {
  return bodyOf(await ask("POST", address(path)));
}

// What an answer says, with its tag; null where it is still the one with the tag that is known.
export async function changed(tag, path, parameters, read = bodyOf) {
  const answer = await ask("GET", address(path, parameters), undefined, tag);
  return answer.status === 304 ? null : { tag: answer.headers.get("ETag"), said: await read(answer) };
}

function address(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return "/api/v1" + path + (query ? "?" + query : "");
}

function bodyOf(answer) {
  return answer.status === 204 ? null : answer.json();
}

// Every page of a list, up to a limit.
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

async function ask(method, url, body, tag) {
  const headers = { Accept: "*/*" };
  if (tag) headers["If-None-Match"] = tag;
  if (method !== "GET") headers["X-Ammeter-Request"] = "page";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(url, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(15000),
  });
  if (answer.status === 401 && !url.endsWith("/session")) {
    await signIn();
    return ask(method, url, body, tag);
  }
  if (!answer.ok && answer.status !== 304) throw await problemOf(answer);
  return answer;
}

async function problemOf(answer) {
  try {
    const said = await answer.json();
    return new Problem(answer.status, said.title, said.detail);
  } catch {
    return new Problem(answer.status, answer.statusText, "");
  }
}

// One dialog however many requests were refused; it stays until a token is accepted.
function signIn() {
  signingIn ??= new Promise((resolve) => {
    const dialog = document.getElementById("sign-in");
    const form = dialog.querySelector("form");
    const said = document.getElementById("sign-in-problem");
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.onsubmit = async (event) => {
      event.preventDefault();
      try {
        await ask("POST", "/api/v1/session", { token: form.elements.token.value.trim() });
      } catch (problem) {
        said.textContent = problem.status === 401 ? "The collector does not know this token." : problem.message;
        form.elements.token.select();
        return;
      }
      form.reset();
      said.textContent = "";
      dialog.close();
      signingIn = null;
      resolve();
    };
    dialog.showModal();
  });
  return signingIn;
}
