// Server-sent events through fetch, which can send a key; EventSource cannot.

const KEY = "agentrt-key";
const FIRST_REST_MS = 500;
const LONGEST_REST_MS = 8000;
// The server sends a comment at least every 10 seconds, unless its option --keep-alive says otherwise.
export const SILENT_MS = 45000;

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
// a pause, but not after an answer 401 or 403 ("refused") or 404 ("gone"). While the page is hidden,
// there is no stream: a browser has only six connections to a server, for all pages together.
// `on` has event(name, body), state("live" | "lost" | "busy" | "refused" | "gone").
export function follow(path, on) {
  let control = null;
  const look = () => {
    if (document.hidden) control = control?.abort();
    else if (!control) run(path, on, (control = new AbortController()).signal);
  };
  document.addEventListener("visibilitychange", look);
  look();
  return () => {
    document.removeEventListener("visibilitychange", look);
    control?.abort();
  };
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
    if (outcome === "silent") continue;
    rest = outcome === "live" ? FIRST_REST_MS : Math.min(2 * rest, LONGEST_REST_MS);
    on.state(outcome === "busy" ? "busy" : "lost");
    await new Promise((resolve) => setTimeout(resolve, rest));
  }
}

async function once(path, on, signal) {
  let outcome = "lost";
  try {
    const response = await request(path, { headers: { Accept: "text/event-stream" }, signal });
    if (response.status === 401 || response.status === 403) return "refused";
    if (response.status === 404) return "gone";
    if (!response.ok) return "busy";
    on.state("live");
    outcome = "live";
    await read(response.body, on.event, SILENT_MS);
  } catch (error) {
    if (error instanceof Silence) return "silent";
    if (error.name !== "AbortError" && !(error instanceof TypeError)) throw error;
  }
  return outcome;
}

// No byte has arrived for a long time: the connection may be dead without a sign, as after the sleep
// of a computer. It is a TypeError, as the error of a connection that breaks.
class Silence extends TypeError {}

// Reads a stream, and calls `tell` with each event. Throws `Silence` after `most` silent milliseconds.
export async function read(body, tell, most = Infinity) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await within(reader, most);
    if (done) return;
    const messages = (left + value).split(/\r?\n\r?\n/);
    left = messages.pop();
    for (const message of messages) {
      const event = parse(message);
      if (event && event.data !== "[DONE]") tell(event.name, JSON.parse(event.data));
    }
  }
}

async function within(reader, most) {
  if (most === Infinity) return reader.read();
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => {
      reader.cancel().catch(() => null);
      reject(new Silence());
    }, most);
  });
  return Promise.race([silence, reader.read()]).finally(() => clearTimeout(timer));
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
