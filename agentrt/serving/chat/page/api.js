// Calls of the server, with errors in words for people: what happened, and the way out.

import { read, request } from "../dashboard/stream.js";

const MODES = ["messages-tuple", "values", "updates"];
const REPEATS = 5;
const FIRST_REST_MS = 400;

export class Fault extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export async function ask(method, path, body) {
  const text = await (await sent(method, path, body)).text();
  return text ? JSON.parse(text) : null;
}

// A run that begins: tells each event, and ends with the run. One whose connection breaks is
// attached to again, from its start: "again" is told first.
export async function start(thread, body, tell) {
  const options = { stream_mode: MODES, stream_subgraphs: true, stream_resumable: true, on_disconnect: "continue" };
  let run = null;
  const hear = (name, data) => {
    if (name === "metadata") run = data.run_id;
    tell(name, data);
  };
  const response = await sent("POST", `threads/${thread}/runs/stream`, { ...options, ...body });
  if (await isBroken(response, hear)) await attach(thread, run, tell);
}

// A run that goes on already, from its first event.
export async function attach(thread, run, tell) {
  if (run === null) throw new Fault(LOST);
  tell("metadata", { run_id: run });
  for (let repeat = 0; repeat < REPEATS; repeat += 1) {
    if (repeat) await new Promise((resolve) => setTimeout(resolve, FIRST_REST_MS * 2 ** repeat));
    tell("again", null);
    const response = await sent("GET", `threads/${thread}/runs/${run}/stream?${query()}`, undefined, {
      "Last-Event-ID": "-1",
    }).catch((fault) => {
      if (fault.status) throw fault;
      return null;
    });
    if (response && !(await isBroken(response, tell))) return;
  }
  throw new Fault(LOST);
}

const query = () => new URLSearchParams({ stream_mode: JSON.stringify(MODES) });

async function isBroken(response, tell) {
  try {
    await read(response.body, tell);
    return false;
  } catch (error) {
    if (error instanceof TypeError) return true;
    throw error;
  }
}

const LOST = "The server does not answer. What you wrote is kept; send it again once it is back.";

async function sent(method, path, body, headers = {}) {
  const options = { method, headers: { ...headers } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await request(path, options).catch(() => {
    throw new Fault(LOST);
  });
  if (!response.ok) throw new Fault(await why(response), response.status);
  return response;
}

async function why(response) {
  const { status } = response;
  const body = await response.json().catch(() => null);
  const detail = body?.detail ?? body?.error?.message;
  const said = typeof detail === "string" ? detail : JSON.stringify(detail ?? status);
  if (status === 401 || status === 403) return `This key may not do that: ${said}.`;
  if (status === 404) return "This conversation is not there any more. Begin a new one.";
  if (status === 409) return "This conversation is busy with another run. Wait for its end, or stop it.";
  if (status === 429) return `The server has enough to do for you now: ${said}. Try again in ${response.headers.get("Retry-After") ?? "a few"} s.`;
  if (status === 503) return `The server takes nothing new now: ${said}. Try again soon.`;
  if (status >= 500) return `The server failed: ${said}. Its log says more.`;
  return `The server refused this: ${said}.`;
}
