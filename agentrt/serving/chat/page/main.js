// Connects the parts of the page: the selected graph and thread, and one run at a time.

import { byId, h, oncePerFrame, say } from "../dashboard/dom.js";
import { keyNote, setKey } from "../dashboard/stream.js";
import { ask, attach, start, watchServer } from "./api.js";
import { Asks } from "./asks.js";
import { Checkpoints } from "./checkpoints.js";
import { Composer, formOf, takesMessages } from "./composer.js";
import { Conversation, titleOf } from "./conversation.js";
import { Drawers } from "./drawers.js";
import { Messages } from "./messages.js";
import { complete, forget, isModelChat, keep, keepAnswer, modelChat, models, newModelChat, watchChats } from "./models.js";
import { isActive, isEmpty, pastOf, runsOf } from "./past.js";
import { Runs } from "./runs.js";
import { Threads } from "./threads.js";
import { welcome } from "./welcome.js";

const KEY_NOTE = byId("key-note").textContent;
const HINT = "Enter sends, Shift+Enter begins a new line.";
const ASKED = "This conversation asks you something. Answer it first, or choose “Write something else”.";
const LEFT = "The page was left before the answer was whole. Edit your message to ask again.";
const conversation = new Conversation();
const messages = new Messages((id) => edit(id).catch(fault));
const asks = new Asks((id, answer) => {
  const undo = conversation.undo();
  conversation.answered(id, answer);
  run({ command: { resume: { [id]: answer } } }, undo, () => itWas(answer));
});
const checkpoints = new Checkpoints(look, fault);
const composer = new Composer(() => send().catch(fault));
const runs = new Runs(() => conversation.questions.length > 0);
const drawers = new Drawers();
const threads = new Threads((id) => {
  drawers.close();
  if (location.hash.slice(1) === id) open(); // it may not have loaded
  else location.hash = id;
});
const draw = oncePerFrame(show);
// The answers of models that are in progress, by the id of the conversation, which may have been left.
const answers = new Map();
// `thread`: null for a new thread. `from`: the checkpoint to continue from. `run`: the id of the run
// in progress. `control`: aborts the answer of a model. `waits`: the written message is sent when the
// run ends. `missing`: "server", "engine" or null. `drops`: another message may be written while a question is open. `lost`: the connection
// to the run is lost. `isStale`: the conversation did not load, or not after its last run. `last`: the last run
// that the page shows, null if there is none, undefined while the conversation loads. `edits`: the end of a
// conversation with a model is hidden, because a message in it is edited. `visit`: how many conversations the page has opened.
const now = {
  graph: null, graphs: [], ready: null, isChat: true, missing: null,
  thread: null, past: [], last: undefined, run: null, control: null, running: false, from: null, waits: false, drops: false, lost: false, isStale: false, edits: false, sending: false, place: "", visit: 0,
};

function show() {
  const { running, from, isChat, thread } = now;
  const isNew = thread === null && !running;
  const open = from || running ? [] : conversation.questions;
  const isAsked = open.length > 0 && !now.drops;
  byId("welcome").hidden = !isNew || !byId("key").hidden;
  const keepEnd = messages.keepEnd();
  messages.draw(conversation, { isChat, running, isDone: !from && now.last?.status === "success" });
  byId("send").hidden = running;
  byId("stop").hidden = !running;
  byId("stop").disabled = now.run === null && now.control === null;
  byId("earlier").hidden = from === null;
  byId("run-on").hidden = !from?.next?.length;
  byId("asked").hidden = !isAsked;
  byId("composer").hidden = isAsked;
  asks.draw(open, running);
  say(byId("hint"), hint(open.length > 0));
  byId("delete").hidden = thread === null || running;
  status(open.length > 0);
  keepEnd();
  place(isAsked ? "asked" : running ? "running" : "composer");
}

function hint(isOpen) {
  if (now.waits) return "This is sent when the run has ended.";
  if (!isOpen) return HINT;
  return now.drops ? "Sending this leaves the question without an answer." : "Enter answers, Shift+Enter begins a new line.";
}

function status(isOpen) {
  const element = byId("status");
  const missing = now.lost ? "server" : now.missing;
  const [state, words] = missing ? ["failed", `no ${missing}; trying again`] : now.running ? ["running", "running"] : ["waiting for a human", "asks you"];
  element.hidden = !(missing || now.running || isOpen);
  element.dataset.state = state;
  say(element, words);
}

// Moves the focus of somebody who types: to a new question, or to the next message.
function place(next) {
  const hasChanged = next !== now.place;
  now.place = next;
  const active = document.activeElement;
  const isLost = !active || active === document.body || active.closest("[hidden]") !== null;
  if (!hasChanged || !isLost || !matchMedia("(hover: hover)").matches) return;
  if (next === "asked") asks.focus();
  else composer.focus();
}

function fault(error) {
  const isKey = error?.status === 401;
  now.isLostFault = error?.status === 0 || error?.status === 503;
  if (isKey) askForKey();
  byId("fault").hidden = !error || isKey;
  say(byId("fault").firstElementChild, error?.message ?? "");
  draw();
}

function askForKey() {
  const { key } = byId("key").elements;
  const isFirst = byId("key").hidden;
  byId("key").hidden = false;
  say(byId("key-note"), keyNote(KEY_NOTE));
  if (isFirst && document.activeElement === document.body) key.focus();
}

const guarded = (work) => (...parts) => work(...parts).catch(fault);

// Returns a function that says whether the conversation that is open now has not been left. The id of
// the thread does not say this: a thread that was left may have been opened again.
function presence() {
  const { visit } = now;
  return () => visit === now.visit;
}

// -- graphs and threads -----------------------------------------------------------------------

const begin = guarded(async () => {
  const graphs = (await ask("POST", "assistants/search", { limit: 1000 })).reverse();
  now.graphs = graphs.length ? graphs : await models().catch(() => []);
  byId("key").hidden = true;
  byId("graphs").replaceChildren(...now.graphs.map((graph) => h("option", { value: graph.assistant_id }, graph.name)));
  now.graph = now.graphs.find(({ assistant_id: id }) => id === now.graph?.assistant_id) ?? now.graph;
  if (now.graph) byId("graphs").value = now.graph.assistant_id;
  byId("graphs").disabled = byId("send").disabled = now.graphs.length === 0;
  await Promise.all([threads.refresh(), open()]);
});

// Selects a graph. Returns a promise that resolves when the graph's form is shown. A graph that did not
// load is loaded again when it is selected again.
function useGraph(graph) {
  if (graph && (graph !== now.graph || !now.ready)) {
    now.graph = graph;
    now.ready = load(graph);
    now.ready.catch(() => {
      if (graph === now.graph) now.ready = null;
    });
  }
  return now.ready;
}

async function load(graph) {
  byId("graphs").value = graph.assistant_id;
  const schemas = graph.isModel ? null : await ask("GET", `assistants/${graph.assistant_id}/schemas`);
  if (graph !== now.graph) return;
  now.isChat = graph.isModel || takesMessages(schemas.input_schema);
  composer.show(formOf(schemas?.input_schema), now.isChat);
}

// Opens the thread that the page's address names, or a new thread.
async function open() {
  const thread = location.hash.slice(1) || null;
  if (thread !== null && thread === now.thread && !now.isStale) return;
  Object.assign(now, { thread, past: [], last: undefined, run: null, control: null, running: false, from: null, waits: false, drops: false, lost: false, isStale: false, edits: false, visit: now.visit + 1 });
  const isHere = presence();
  conversation.open();
  messages.clear();
  fault(null);
  threads.mark(thread);
  runs.clear();
  checkpoints.clear();
  try {
    if (thread === null) await openNew(isHere);
    else if (isModelChat(thread)) await openModelChat(thread, isHere);
    else await openThread(thread, isHere);
  } catch (error) {
    if (!isHere()) return;
    Object.assign(now, { waits: false, isStale: true });
    fault(error);
  }
}

async function openNew(isHere) {
  await useGraph(now.graph ?? now.graphs[0]);
  if (!isHere()) return;
  say(byId("title"), "New conversation");
  byId("welcome").replaceChildren(...welcome(now.graph, now.isChat));
  composer.focus();
  draw();
}

async function openModelChat(id, isHere) {
  const known = modelChat(id);
  if (!known) throw new Error("This browser has no such conversation. Begin a new one.");
  await useGraph(now.graphs.find((graph) => graph.isModel && graph.name === known.model) ?? now.graph ?? now.graphs[0]);
  if (!isHere()) return;
  const control = answers.get(id)?.control ?? null;
  Object.assign(now, { running: control !== null, control });
  showModelChat(modelChat(id) ?? known);
  await runs.show(id);
  draw();
}

function showModelChat(chat) {
  const answer = answers.get(chat.id)?.answer;
  conversation.open({ values: { messages: chat.messages }, past: answer ? [] : faultOf(chat) });
  if (answer?.content) conversation.say(answer);
  say(byId("title"), titleOf(chat) || "Conversation");
  draw();
}

// Shows what another tab has added to the conversations that this browser stores. While a message is
// edited, the end of its conversation stays hidden: the edited message would be added to the end.
function showStored() {
  threads.refresh().catch(() => null);
  const chat = isModelChat(now.thread) && !now.edits ? modelChat(now.thread) : null;
  if (chat) showModelChat(chat);
}

const faultOf = ({ fault: text, messages: said }) => (text ? [{ kind: "fault", id: "fault", after: said.at(-1)?.id ?? null, text, isLast: true }] : []);

async function openThread(thread, isHere) {
  const about = await ask("GET", `threads/${thread}`);
  if (!isHere()) return;
  const assistant = about.metadata?.assistant_id;
  const graph = now.graphs.find(({ assistant_id: id }) => id === assistant);
  await useGraph(graph ?? now.graph ?? now.graphs[0]);
  if (!isHere()) return;
  const [last] = await settle(thread);
  if (isHere() && isActive(last)) await follow(thread, isHere, (tell, isWanted) => attach(thread, last.run_id, tell, isWanted));
}

function fresh() {
  history.pushState(null, "", location.pathname + location.search);
  drawers.close();
  return open();
}

// Loads the thread's state from the server, and returns its runs, newest first.
async function settle(thread) {
  const isHere = presence();
  const [state, latest] = await Promise.all([ask("GET", `threads/${thread}/state`), runsOf(thread)]);
  const past = await pastOf(thread, latest, now.isChat);
  if (!isHere()) return latest;
  Object.assign(now, { past, last: latest[0] ?? null });
  conversation.open({ values: state.values, interrupts: state.interrupts, past });
  await Promise.all([checkpoints.load(thread), runs.show(thread)]);
  if (!isHere()) return latest;
  checkpoints.mark(state.checkpoint?.checkpoint_id);
  say(byId("title"), titleNow());
  draw();
  return latest;
}

// Shows what other pages have done since this page was looked at.
const lookAgain = guarded(async () => {
  if (document.hidden || !now.graphs.length) return;
  threads.refresh().catch(() => null);
  const { thread, last } = now;
  const isIdle = () => last !== undefined && last === now.last && !now.running && !now.sending && !now.from;
  if (!isIdle()) return;
  const [newest] = await runsOf(thread, 1).catch((error) => {
    if (error.status === 401) throw error;
    return [last]; // the page's state already says that there is no server
  });
  if (!isIdle() || (newest?.run_id === last?.run_id && newest?.status === last?.status)) return;
  now.isStale = true;
  await open();
});

function titleNow() {
  const [first] = conversation.shown();
  const input = now.past.find(({ kind }) => kind === "input")?.value ?? conversation.input;
  return (now.isChat ? first?.text.slice(0, 80) : titleOf(input)) || now.graph?.name || "Conversation";
}

// -- runs -------------------------------------------------------------------------------------

async function send() {
  if (now.sending) return;
  const input = composer.read();
  now.waits = now.running && !isEmpty(input);
  if (now.running) return draw();
  if (now.isChat && input === undefined) return;
  now.sending = true;
  const isHere = presence();
  const refill = composer.clear();
  try {
    if (await isAsked()) throw new Error(ASKED);
  } catch (error) {
    refill();
    if (isHere()) throw error;
  } finally {
    now.sending = false;
  }
  if (!isHere()) return refill(); // this message was not written for the conversation that is open now
  const message = { type: "human", id: newId(), content: input };
  messages.toEnd();
  if (now.isChat && now.graph.isModel) return chat(message);
  const undo = conversation.undo();
  if (now.isChat) conversation.say(message);
  else showInput(input ?? null);
  run({ input: now.isChat ? { messages: [message] } : (input ?? null) }, undo, () => {
    if (refill() || input === undefined) return "It is in the field for messages again.";
    return itWas(input);
  });
}

const itWas = (value) => `It was: ${typeof value === "string" ? value : JSON.stringify(value)}`;

function showInput(input) {
  const { values, past } = conversation;
  if (!isEmpty(values) && !conversation.questions.length && past.at(-1)?.kind !== "fault") past.push({ kind: "result", id: "now/result", value: values });
  Object.assign(conversation, { input, values: null });
}

// Whether the thread has a question that this page does not show yet.
async function isAsked() {
  const { thread, from, drops } = now;
  if (thread === null || from || drops || isModelChat(thread)) return false;
  const state = await ask("GET", `threads/${thread}/state`);
  if (!state.interrupts?.length) return false;
  await settle(thread);
  return true;
}

// If the input does not reach the server, `undo()` removes it from the conversation again, and
// `save()` keeps what the person has written and says where, also if the conversation was left meanwhile.
async function run(body, undo = () => {}, save = () => null) {
  const isHere = presence();
  const { graph, from } = now;
  let { thread } = now;
  let isStarted = false;
  Object.assign(now, { running: true, run: null, from: null, drops: false, isStale: false });
  fault(null);
  try {
    thread ??= await newThread(titleOf(body.input), isHere);
    const options = { assistant_id: graph.assistant_id, ...body, ...(from ? { checkpoint: from.checkpoint } : {}) };
    await follow(thread, isHere, (tell, isWanted) => start(thread, options, (...event) => {
      isStarted = true;
      tell(...event);
    }, isWanted));
  } catch (error) {
    if (!isHere()) {
      const saved = isStarted ? null : save();
      if (saved) fault(new Error(`What you wrote for another conversation was not sent. ${error.message} ${saved}`));
      return;
    }
    if (now.run === null) {
      undo();
      save();
      now.from = from;
    }
    Object.assign(now, { running: false, waits: false, isStale: isStarted });
    fault(error);
  }
}

// Sends the message that waited for the end of a run. While a question is open, the message stays in
// the composer.
function sendWaiting() {
  const isDue = now.waits && !conversation.questions.length;
  now.waits = false;
  if (isDue) send().catch(fault);
  draw();
}

async function newThread(title, isHere) {
  const { thread_id: thread } = await ask("POST", "threads", title ? { metadata: { title } } : {});
  if (!isHere()) return thread;
  now.thread = thread;
  threads.mark(thread);
  say(byId("title"), titleNow());
  history.pushState(null, "", `#${thread}`);
  return thread;
}

// Shows a run of a thread while `isHere()`, and then sends the message that waited for the run's end.
async function follow(thread, isHere, work) {
  if (isHere()) Object.assign(now, { running: true, run: null });
  const isWanted = () => isHere() && now.running;
  let hasContent = false;
  const tell = (name, data) => {
    if (!isHere()) return;
    now.lost = name === "lost";
    // A restarted server runs the program again, and the new events follow the earlier events.
    const isNewAttempt = name === "metadata" && hasContent;
    hasContent = !["again", "lost", "metadata"].includes(name);
    if (name === "again" || isNewAttempt) conversation.again();
    if (name === "metadata") {
      now.run = data.run_id;
      threads.refresh().catch(() => null);
      runs.next(thread, () => now.running && now.run === data.run_id).catch(() => null);
    } else if (hasContent && name !== "error") conversation.tell(name, data);
    draw();
  };
  draw();
  try {
    await work(tell, isWanted);
    await threads.refresh();
    if (!isHere()) return;
    await settle(thread); // this also shows the run's error
    if (!isHere()) return;
    threads.mark(thread);
  } finally {
    if (isHere()) Object.assign(now, { running: false, lost: false });
    draw();
  }
  sendWaiting();
}

// Sends a message to a model on a server without graphs, and shows its answer.
async function chat(message) {
  const { graph } = now;
  const id = now.thread ?? newModelChat(newId());
  const said = [...conversation.messages, message];
  const answer = { type: "ai", id: newId(), content: "" };
  const control = new AbortController();
  answers.set(id, { model: graph.name, said, answer, control });
  Object.assign(now, { thread: id, running: true, control, isStale: false, edits: false });
  if (location.hash.slice(1) !== id) history.pushState(null, "", `#${id}`);
  conversation.open({ values: { messages: said } });
  say(byId("title"), titleNow());
  keep(id, graph.name, said);
  threads.mark(id);
  threads.refresh().catch(() => null);
  fault(null);
  let failed = null;
  runs.next(id, () => now.control === control).catch(() => null);
  try {
    const reason = await complete({ id, model: graph.name, messages: said, signal: control.signal }, (piece) => {
      answer.content += piece;
      if (control !== now.control) return;
      conversation.say(answer);
      draw();
    });
    if (reason === "length") failed = "The answer is cut off: it has reached the limit on its tokens.";
    else if (!answer.content) failed = "The model's answer is empty. Edit your message to ask again.";
  } catch (error) {
    if (error.status === 401) fault(error);
    if (error.name !== "AbortError") failed = error.message;
  }
  answers.delete(id);
  const chat = keepAnswer(id, graph.name, said, answer, failed);
  threads.refresh().catch(() => null);
  if (control !== now.control) return;
  Object.assign(now, { running: false, control: null });
  showModelChat(chat);
  runs.show(id).catch(() => null);
  sendWaiting();
}

const stop = guarded(async () => {
  byId("stop").disabled = true;
  now.waits = false;
  if (now.control) now.control.abort();
  else await ask("POST", `threads/${now.thread}/runs/${now.run}/cancel?action=interrupt`);
});

// -- going back -------------------------------------------------------------------------------

// Shows an earlier state. The next message continues from it.
function look(state) {
  if (now.running) return;
  const isLatest = state === checkpoints.states[0];
  now.from = isLatest ? null : state;
  now.drops = false;
  conversation.open({ values: state.values, interrupts: state.interrupts ?? [], past: isLatest ? now.past : pastUntil(state) });
  messages.clear();
  checkpoints.mark(state.checkpoint.checkpoint_id);
  say(byId("earlier").firstElementChild, "You look at an earlier point. What you send now continues from here; the rest stays in the list of checkpoints.");
  drawers.close();
  draw();
  composer.focus();
}

// The past events up to a checkpoint.
function pastUntil(state) {
  const last = state.values?.messages?.at(-1)?.id;
  if (now.isChat) return now.past.filter(({ kind, after }) => kind !== "fault" && after !== last);
  const input = now.past.findLastIndex(({ id, kind }) => kind === "input" && id.startsWith(state.metadata?.run_id));
  return now.past.slice(0, input + 1);
}

// Goes back to the state before a message, and puts the message's text into the composer. Before the
// first message of a thread, there is no state, so a new thread begins.
async function edit(id) {
  const { text } = conversation.shown().find((message) => message.id === id);
  if (isModelChat(now.thread)) {
    const at = conversation.messages.findIndex((message) => message.id === id);
    conversation.open({ values: { messages: conversation.messages.slice(0, at) } });
    now.edits = true;
    draw();
  } else {
    const isHere = presence();
    const before = await checkpoints.before(id);
    if (before === undefined || !isHere() || now.running) return;
    if (before) look(before);
    else await fresh();
  }
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
  const graph = now.graphs.find(({ assistant_id: id }) => id === event.target.value);
  useGraph(graph).catch(() => null); // `open` shows the error
  await fresh();
}));
byId("skip").addEventListener("click", () => (byId("composer").hidden ? asks : composer).focus());
byId("new").addEventListener("click", guarded(fresh));
byId("delete").addEventListener("click", guarded(async () => {
  if (!confirm("Delete this conversation and all its checkpoints?")) return;
  const isHere = presence();
  if (isModelChat(now.thread)) forget(now.thread);
  else await ask("DELETE", `threads/${now.thread}`);
  await Promise.all([isHere() && fresh(), threads.refresh()]);
}));
byId("stop").addEventListener("click", stop);
byId("drop").addEventListener("click", () => {
  now.drops = true;
  show();
  composer.focus();
});
byId("run-on").addEventListener("click", () => run({ input: null }));
byId("latest").addEventListener("click", () => look(checkpoints.states[0]));
byId("fault").lastElementChild.addEventListener("click", () => fault(null));
window.addEventListener("hashchange", open);
window.addEventListener("focus", lookAgain);
document.addEventListener("visibilitychange", lookAgain);
window.addEventListener("pagehide", () => {
  for (const [id, { model, said, answer }] of answers) keepAnswer(id, model, said, answer, LEFT);
});
watchChats(showStored);
watchServer((missing) => {
  const isBack = !missing && now.missing !== null;
  now.missing = missing;
  if (isBack && now.isLostFault) fault(null);
  if (isBack && !now.graphs.length) begin();
  else if (isBack && now.isStale) open();
  if (isBack && !now.running) threads.refresh().catch(() => null);
  draw();
});
begin();
