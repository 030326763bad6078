// Requests to the server. Their errors have messages for people: what happened, and what to do.

import { read, request, SILENT_MS } from "../dashboard/stream.js";

const MODES = ["messages-tuple", "values", "updates"];
const FIRST_REST_MS = 250;
const LONGEST_REST_MS = 4000;
const HEALTH_MS = 3000;

export class Fault extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export async function ask(method, path, body) {
  const text = await (await send(method, path, body)).text();
  return text ? JSON.parse(text) : null;
}

// Calls `tell` with what is missing ("server", "engine" or null), at once and after each change.
export function watchServer(tell) {
  let before;
  const look = async () => {
    const signal = AbortSignal.timeout(HEALTH_MS);
    const missing = await request("health", { signal }).then(({ status }) => (status === 503 ? "engine" : null), () => "server");
    if (missing !== before) tell((before = missing));
    setTimeout(look, HEALTH_MS);
  };
  look();
}

// Starts a run, calls `tell` with each event, and returns when the run has ended. If the connection
// breaks, calls `tell` with "lost", and after attaching to the run again with "again", followed by
// all events from the run's start.
export async function start(thread, body, tell, isWanted) {
  const options = { stream_mode: MODES, stream_subgraphs: true, stream_resumable: true, on_disconnect: "continue" };
  let run = null;
  const hear = (name, data) => {
    if (name === "metadata") run = data.run_id;
    tell(name, data);
  };
  const response = await send("POST", `threads/${thread}/runs/stream`, { ...options, ...body });
  run = /\/runs\/([^/]+)/.exec(response.headers.get("Content-Location") ?? "")?.[1] ?? null;
  if (!(await isBroken(response, hear))) return;
  tell("lost", null);
  await attach(thread, run, tell, isWanted);
}

// Attaches to a run in progress, from its first event. While the server does not answer, tries again
// as long as `isWanted()`.
export async function attach(thread, run, tell, isWanted) {
  if (run === null) throw new Fault(LOST);
  tell("metadata", { run_id: run });
  for (let rest = FIRST_REST_MS; isWanted(); rest = Math.min(2 * rest, LONGEST_REST_MS)) {
    const response = await send("GET", `threads/${thread}/runs/${run}/stream?${query()}`, undefined, {
      headers: { "Last-Event-ID": "-1" },
    }).catch((fault) => {
      if (fault.status) throw fault;
      return null;
    });
    if (response) {
      tell("again", null);
      if (!(await isBroken(response, tell))) return;
    }
    tell("lost", null);
    await new Promise((resolve) => setTimeout(resolve, rest));
  }
}

const query = () => new URLSearchParams({ stream_mode: JSON.stringify(MODES) });

async function isBroken(response, tell) {
  try {
    await read(response.body, tell, SILENT_MS);
    return false;
  } catch (error) {
    if (error instanceof TypeError) return true;
    throw error;
  }
}

const LOST = "The server does not answer. What you wrote is kept; send it again when the server is back.";

export async function send(method, path, body, { headers = {}, signal } = {}) {
  const options = { method, headers: { ...headers }, signal };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await request(path, options).catch((error) => {
    throw error.name === "AbortError" ? error : new Fault(LOST);
  });
  if (!response.ok) throw new Fault(await why(response), response.status);
  return response;
}

async function why(response) {
  const { status } = response;
  const body = await response.json().catch(() => null);
  const detail = body?.detail ?? body?.error?.message;
  const said = typeof detail === "string" ? detail : JSON.stringify(detail ?? status);
  if (status === 401) return "The server does not know this API key, or needs one. Enter the key above.";
  if (status === 403) return `The server does not allow this: ${said}.`;
  if (status === 404 && said.startsWith("thread ")) return "This conversation does not exist any more. Begin a new one.";
  if (status === 404) return `The server cannot find this: ${said}. Load this page again.`;
  if (status === 429) return `The server is busy: ${said}. Try again in ${response.headers.get("Retry-After") ?? "a few"} s.`;
  if (status === 503) return `The server cannot do this now: ${said}. Try again soon.`;
  if (status >= 500) return `The server failed: ${said}. The server's log says more.`;
  return `The server refused this: ${said}.`;
}
