// Puts the page together: which graph, which thread, and one run at a time in it.

import { byId, h, oncePerFrame, say } from "../dashboard/dom.js";
import { setKey } from "../dashboard/stream.js";
import { ask, attach, start } from "./api.js";
import { Asks } from "./asks.js";
import { Checkpoints } from "./checkpoints.js";
import { Composer, formOf, takesMessages } from "./composer.js";
import { Conversation } from "./conversation.js";
import { Messages } from "./messages.js";
import { Runs } from "./runs.js";
import { Threads } from "./threads.js";
import { welcome } from "./welcome.js";

const HINT = "Enter sends, Shift+Enter begins a new line.";
const LAST_RUNS = 20;
const ACTIVE = new Set(["pending", "running"]);
const conversation = new Conversation();
const messages = new Messages((id) => edit(id).catch(fault));
const asks = new Asks((id, answer) => run({ command: { resume: { [id]: answer } } }));
const checkpoints = new Checkpoints(look);
const composer = new Composer(send);
const runs = new Runs();
const threads = new Threads((id) => (location.hash = id));
const draw = oncePerFrame(show);
// `thread` null: a new one. `from` is the checkpoint to go on from; `run` the id of what runs;
// `waits`: what is written is sent when that ends.
const now = { graph: null, graphs: [], ready: null, isChat: true, thread: null, run: null, running: false, from: null, waits: false };

function show() {
  const { running, from, isChat, thread } = now;
  const isNew = thread === null && !running;
  byId("welcome").hidden = !isNew || !byId("key").hidden;
  messages.draw(conversation, { isChat, running });
  asks.draw(from ? [] : conversation.questions, running);
  byId("send").hidden = running;
  byId("stop").hidden = !running;
  byId("stop").disabled = now.run === null;
  byId("earlier").hidden = from === null;
  byId("run-on").hidden = !from?.next?.length;
  say(byId("hint"), now.waits ? "This is sent when the run has ended." : HINT);
  byId("delete").hidden = thread === null || running;
  const state = running ? "running" : conversation.questions.length ? "waiting for a human" : "";
  byId("status").dataset.state = state || "done";
  byId("status").hidden = !state;
  say(byId("status"), running ? "running" : "asks you");
}

function fault(error) {
  const isKey = error?.status === 401;
  if (isKey) byId("key").hidden = false;
  byId("fault").hidden = !error || isKey;
  say(byId("fault").firstElementChild, error?.message ?? "");
  draw();
}

const guarded = (work) => (...given) => work(...given).catch(fault);

// -- graphs and threads -----------------------------------------------------------------------

const begin = guarded(async () => {
  now.graphs = (await ask("POST", "assistants/search", { limit: 1000 })).reverse();
  byId("key").hidden = true;
  byId("graphs").replaceChildren(...now.graphs.map((one) => h("option", { value: one.assistant_id }, one.name)));
  byId("graphs").disabled = byId("send").disabled = now.graphs.length === 0;
  await Promise.all([threads.refresh(), open()]);
});

// Settles once the form is that of the graph.
function useGraph(graph) {
  if (graph && graph !== now.graph) {
    now.graph = graph;
    now.ready = load(graph);
  }
  return now.ready;
}

async function load(graph) {
  byId("graphs").value = graph.assistant_id;
  const schemas = await ask("GET", `assistants/${graph.assistant_id}/schemas`);
  if (graph !== now.graph) return;
  now.isChat = takesMessages(schemas.input_schema);
  composer.show(formOf(schemas.input_schema), now.isChat);
}

// Opens the thread that the address names, or a new one.
const open = guarded(async () => {
  const thread = location.hash.slice(1) || null;
  if (thread !== null && thread === now.thread) return;
  Object.assign(now, { thread, run: null, running: false, from: null, waits: false });
  conversation.open();
  messages.clear();
  fault(null);
  threads.mark(thread);
  if (thread === null) {
    await useGraph(now.graph ?? now.graphs[0]);
    say(byId("title"), "New conversation");
    byId("welcome").replaceChildren(...welcome(now.graph, now.isChat));
    composer.focus();
    runs.clear();
    await checkpoints.load(null);
    draw();
    return;
  }
  const [about, past] = await Promise.all([ask("GET", `threads/${thread}`), ask("GET", `threads/${thread}/runs?limit=${LAST_RUNS}`)]);
  const assistant = about.metadata?.assistant_id;
  await useGraph(now.graphs.find((one) => one.assistant_id === assistant) ?? now.graph ?? now.graphs[0]);
  // A run that answers a question has no input of its own.
  conversation.input = past.map((one) => one.kwargs.input).find((input) => input !== null && input !== undefined);
  await settle(thread);
  const [last] = past;
  if (last && ACTIVE.has(last.status)) await follow(thread, (tell) => attach(thread, last.run_id, tell));
});

function fresh() {
  history.pushState(null, "", location.pathname + location.search);
  return open();
}

// Takes the thread's state as the server has it.
async function settle(thread) {
  const state = await ask("GET", `threads/${thread}/state`);
  if (thread !== now.thread) return;
  conversation.open({ values: state.values, interrupts: state.interrupts, input: conversation.input });
  await Promise.all([checkpoints.load(thread), runs.show(thread)]);
  checkpoints.mark(state.checkpoint?.checkpoint_id);
  say(byId("title"), titleOf());
  draw();
}

const titleOf = () => conversation.shown()[0]?.text.slice(0, 80) || now.graph.name;

// -- runs -------------------------------------------------------------------------------------

function send() {
  now.waits = now.running;
  if (now.running) return draw();
  let given;
  try {
    given = composer.read();
  } catch (error) {
    fault(error);
    return;
  }
  if (!now.isChat) {
    conversation.input = given;
    run({ input: given ?? null });
    return;
  }
  if (given === undefined) return;
  const message = { type: "human", id: newId(), content: given };
  conversation.say(message);
  messages.toEnd();
  composer.put("");
  run({ input: { messages: [message] } }, given);
}

// `said` goes back to where it was written if it does not reach the server.
async function run(body, said) {
  let thread = now.thread;
  now.running = true;
  fault(null);
  try {
    thread ??= await newThread();
    const checkpoint = now.from?.checkpoint;
    now.from = null;
    const options = { assistant_id: now.graph.assistant_id, ...body, ...(checkpoint ? { checkpoint } : {}) };
    await follow(thread, (tell) => start(thread, options, tell));
  } catch (error) {
    if (thread !== now.thread) return;
    if (said !== undefined && now.run === null) {
      conversation.again();
      composer.put(said);
    }
    Object.assign(now, { running: false, waits: false });
    fault(error);
  }
  if (now.waits) send();
}

async function newThread() {
  const { thread_id: thread } = await ask("POST", "threads", {});
  now.thread = thread;
  threads.mark(thread);
  say(byId("title"), titleOf());
  history.pushState(null, "", `#${thread}`);
  return thread;
}

async function follow(thread, work) {
  now.running = true;
  now.run = null;
  let failed = null;
  const tell = (name, data) => {
    if (thread !== now.thread) return;
    if (name === "again") conversation.again();
    else if (name === "metadata") {
      now.run = data.run_id;
      threads.refresh().catch(() => null);
      runs.next(thread, () => now.running && now.run === data.run_id).catch(() => null);
    } else if (name === "error") failed = new Error(`The run failed: ${data.message ?? data.error}`);
    else conversation.tell(name, data);
    draw();
  };
  draw();
  try {
    await work(tell);
    if (thread !== now.thread) return;
    await threads.refresh();
    await settle(thread);
    threads.mark(thread);
  } finally {
    if (thread === now.thread) now.running = false;
    draw();
  }
  if (failed) throw failed;
}

const stop = guarded(async () => {
  byId("stop").disabled = true;
  now.waits = false;
  await ask("POST", `threads/${now.thread}/runs/${now.run}/cancel?action=interrupt`);
});

// -- going back -------------------------------------------------------------------------------

// Shows an earlier state; what is sent next goes on from it.
function look(state) {
  if (now.running) return;
  const isLatest = state === checkpoints.states[0];
  now.from = isLatest ? null : state;
  conversation.open({ values: state.values, interrupts: state.interrupts ?? [], input: conversation.input });
  messages.clear();
  checkpoints.mark(state.checkpoint.checkpoint_id);
  say(byId("earlier").firstElementChild, "You look at an earlier point. What you send now goes on from here; the rest stays in the list of checkpoints.");
  draw();
  composer.focus();
}

// A message said otherwise: from the state before it. The first one begins a new conversation.
async function edit(id) {
  const { text } = conversation.shown().find((message) => message.id === id);
  const before = checkpoints.before(id);
  if (before) look(before);
  else await fresh();
  composer.put(text);
}

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// -- the page's own buttons -------------------------------------------------------------------

byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(new FormData(event.target).get("key"));
  begin();
});
byId("graphs").addEventListener("change", guarded(async (event) => {
  const graph = now.graphs.find((one) => one.assistant_id === event.target.value);
  useGraph(graph).catch(() => null); // `open` tells of it
  await fresh();
}));
byId("new").addEventListener("click", guarded(fresh));
byId("delete").addEventListener("click", guarded(async () => {
  if (!confirm("Delete this conversation and all its checkpoints?")) return;
  await ask("DELETE", `threads/${now.thread}`);
  await Promise.all([fresh(), threads.refresh()]);
}));
byId("stop").addEventListener("click", stop);
byId("run-on").addEventListener("click", () => run({ input: null }));
byId("latest").addEventListener("click", () => look(checkpoints.states[0]));
byId("fault").lastElementChild.addEventListener("click", () => fault(null));
byId("show-panel").addEventListener("click", (event) => {
  const isShown = document.body.classList.toggle("without-panel") === false;
  event.target.setAttribute("aria-expanded", isShown);
});
window.addEventListener("hashchange", open);
begin();
