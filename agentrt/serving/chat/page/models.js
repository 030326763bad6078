// Conversations with a model, on a server without graphs, over the chat completions API. They are
// stored in this browser, and only in the tab if the server needs a key.

import { hasKey, read } from "../dashboard/stream.js";
import { ask, Fault, send } from "./api.js";
import { textOf } from "./conversation.js";

const KEPT = "agentrt-model-chats";
const MOST = 50;
const PREFIX = "model-";

// The models of the server, in the form of the list of graphs.
export async function models() {
  const { data } = await ask("GET", "v1/models");
  return data.map(({ id }) => ({ assistant_id: `${PREFIX}${id}`, name: id, isModel: true }));
}

export const isModelChat = (id) => id !== null && id.startsWith(PREFIX);

const storage = () => (hasKey() ? sessionStorage : localStorage);

function chats() {
  try {
    return JSON.parse(storage().getItem(KEPT)) ?? [];
  } catch {
    return [];
  }
}

// The conversations in the form of the list of threads.
export function modelChats() {
  return chats().map(({ id, model, messages, at }) => ({
    thread_id: id,
    status: "idle",
    updated_at: at,
    metadata: { graph_id: model, title: textOf(messages[0]?.content).slice(0, 80) },
  }));
}

export const modelChat = (id) => chats().find((chat) => chat.id === id) ?? null;
export const newModelChat = (id) => `${PREFIX}${id}`;

// Stores a conversation, and returns it.
export function keep(id, model, messages, fault = null) {
  const others = chats().filter((chat) => chat.id !== id);
  const chat = { id, model, messages, fault, at: new Date().toISOString() };
  for (let most = MOST; most > 0; most = Math.floor(most / 2)) {
    try {
      storage().setItem(KEPT, JSON.stringify([chat, ...others].slice(0, most)));
      return chat;
    } catch {
      // The browser's storage is full: remove the oldest conversations.
    }
  }
  return chat;
}

// Stores what the model answered to the last of the messages `said`, and returns the conversation.
// Another tab may have continued the conversation meanwhile, or gone back to an earlier message.
export function keepAnswer(id, model, said, answer, fault) {
  const chat = modelChat(id);
  const messages = (chat?.messages ?? said).filter((message) => message.id !== answer.id);
  const at = messages.findIndex((message) => message.id === said.at(-1).id);
  if (at < 0) return chat;
  const isLast = at === messages.length - 1;
  if (answer.content) messages.splice(at + 1, 0, answer);
  return keep(id, model, messages, isLast ? fault : chat.fault);
}

// Calls `tell` after another tab has changed the stored conversations.
export function watchChats(tell) {
  window.addEventListener("storage", ({ key }) => {
    if (key === KEPT || key === null) tell();
  });
}

export function forget(id) {
  storage().setItem(KEPT, JSON.stringify(chats().filter((chat) => chat.id !== id)));
}

const ROLES = { human: "user", system: "system", ai: "assistant" };

// Sends a chat to the model, and calls `tell` with each piece of its answer. Returns the reason for
// which the answer has ended, as the API names it.
export async function complete({ id, model, messages, signal }, tell) {
  const said = messages.map(({ type, content }) => ({ role: ROLES[type], content: textOf(content) }));
  const headers = { "x-agentrt-program": id, "x-agentrt-session": id, "x-agentrt-type": "chat" };
  const response = await send("POST", "v1/chat/completions", { model, messages: said, stream: true }, { headers, signal });
  let reason = null;
  try {
    await read(response.body, (name, chunk) => {
      if (chunk.error) throw new Fault(`The model failed: ${chunk.error.message ?? chunk.error}`);
      const [choice] = chunk.choices ?? [];
      reason ??= choice?.finish_reason ?? null;
      if (choice?.delta?.content) tell(choice.delta.content);
    });
  } catch (error) {
    if (error instanceof TypeError) throw new Fault("The connection broke before the answer was whole. Edit your message to ask again.");
    throw error;
  }
  if (!reason) throw new Fault("The answer ended before it was whole. Edit your message to ask again.");
  return reason;
}
