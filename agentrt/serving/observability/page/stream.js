// Server-sent events through fetch, which can send a key; EventSource cannot.

const KEY = "agentrt-key";
const FIRST_REST_MS = 500;
const LONGEST_REST_MS = 8000;

export const setKey = (key) => sessionStorage.setItem(KEY, key.trim());
export const hasKey = () => sessionStorage.getItem(KEY) !== null;

// What the form for the key says when the server has refused a request for want of a valid key.
export const keyNote = (otherwise = "") => (hasKey() ? "The server does not accept this key. Enter another key." : otherwise);

// Sends a request to the server, with the key if there is one.
export function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  return fetch(path, { ...options, headers, cache: "no-store" });
}

// Follows `path`, and returns a function that stops this. When the stream ends, connects again after
// a pause, but not after an answer 401 or 403 ("refused") or 404 ("gone").
// `on` has event(name, body), state("live" | "lost" | "refused" | "gone").
export function follow(path, on) {
  const control = new AbortController();
  run(path, on, control.signal);
  return () => control.abort();
}

async function run(path, on, signal) {
  let rest = FIRST_REST_MS;
  while (!signal.aborted) {
    const outcome = await once(path, on, signal);
    if (signal.aborted) return;
    if (outcome === "refused" || outcome === "gone") {
      on.state(outcome);
      return;
    }
    rest = outcome === "live" ? FIRST_REST_MS : Math.min(2 * rest, LONGEST_REST_MS);
    on.state("lost");
    await new Promise((resolve) => setTimeout(resolve, rest));
  }
}

async function once(path, on, signal) {
  let outcome = "lost";
  try {
    const response = await request(path, { headers: { Accept: "text/event-stream" }, signal });
    if (response.status === 401 || response.status === 403) return "refused";
    if (response.status === 404) return "gone";
    if (!response.ok) return "lost";
    on.state("live");
    outcome = "live";
    await read(response.body, on.event);
  } catch (error) {
    if (error.name !== "AbortError" && !(error instanceof TypeError)) throw error;
  }
  return outcome;
}

export async function read(body, tell) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const messages = (left + value).split(/\r?\n\r?\n/);
    left = messages.pop();
    for (const message of messages) {
      const event = parse(message);
      if (event && event.data !== "[DONE]") tell(event.name, JSON.parse(event.data));
    }
  }
}

function parse(message) {
  let name = "message";
  const data = [];
  for (const line of message.split(/\r?\n/)) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { name, data: data.join("\n") } : null;
}
