// The conversation of a thread: the messages of its state, the messages that grow during a run, and
// the past events that are not in the state (past.js).

import { choicesOf } from "../dashboard/forms.js";

export class Conversation {
  constructor() {
    this.open({});
  }

  // Shows a thread's state, or an empty conversation.
  open({ values = null, interrupts = [], input, past = [] } = {}) {
    this.values = values;
    this.messages = values?.messages ?? [];
    this.questions = interrupts;
    this.input = input;
    this.past = past;
    this.growing = new Map();
    this.steps = [];
  }

  say(message) {
    this.growing.set(message.id, message);
  }

  // Returns a function that restores the conversation's current content.
  undo() {
    const { values, messages, questions, input } = this;
    const before = { values, messages, questions, input, past: [...this.past], steps: [...this.steps], growing: new Map(this.growing) };
    return () => Object.assign(this, before);
  }

  // An open question was answered: the question and its answer stay in the conversation.
  answered(id, answer) {
    const question = this.questions.find((open) => open.id === id);
    const after = this.messages.at(-1)?.id ?? null;
    if (question) {
      this.past.push({ kind: "question", id: `now/${id}/question`, after, value: question.value });
      this.past.push({ kind: "answer", id: `now/${id}/answer`, after, value: answer, question });
    }
    this.questions = this.questions.filter((open) => open.id !== id);
  }

  // The events of a run will be repeated from the first.
  again() {
    this.growing.clear();
    this.steps = [];
  }

  // Handles an event of a run by its name. The name of a subgraph's event ends in "|" and the
  // subgraph's place.
  tell(name, data) {
    const [mode, place] = name.split("|");
    if (mode === "messages") this.grow(data[0]);
    else if (mode === "updates" && !place) this.step(data);
    else if (mode === "values" && !place) this.settle(data);
  }

  grow(message) {
    const known = this.growing.get(message.id);
    if (!known || message.type !== "AIMessageChunk") {
      this.growing.set(message.id, { ...message, calls: pieces(message) });
      return;
    }
    known.content = joined(known.content, message.content);
    for (const piece of pieces(message)) add(known.calls, piece);
  }

  step(update) {
    for (const name of Object.keys(update)) if (!name.startsWith("__")) this.steps.push(name);
  }

  settle(values) {
    const { __interrupt__: questions, ...rest } = isObject(values) ? values : { value: values };
    this.questions = questions ?? [];
    if (questions && !Object.keys(rest).length) return;
    this.values = isObject(values) ? rest : values;
    this.messages = this.values?.messages ?? this.messages; // the graph's output may have no messages
    for (const message of this.messages) this.growing.delete(message.id);
  }

  // All messages, each with its speaker, its text, and its tool calls with their results. Past
  // events come after the message that they followed.
  shown() {
    const all = [...this.messages, ...this.growing.values()];
    const results = new Map(all.filter((m) => m.type === "tool").map((m) => [m.tool_call_id, m]));
    const asides = Map.groupBy(this.past, ({ after }) => after);
    const shown = [];
    for (const message of all) {
      if (message.type !== "tool") {
        shown.push({
          id: message.id,
          who: message.type === "human" ? "you" : message.type === "system" ? "system" : "agent",
          text: textOf(message.content),
          isEmpty: message.type === "ai" && !message.content?.length && !callsOf(message).length,
          grows: this.growing.has(message.id) && message.type !== "human",
          calls: callsOf(message).map((call) => ({ ...call, result: results.get(call.id) ?? null })),
        });
      }
      shown.push(...(asides.get(message.id) ?? []).map(aside));
    }
    // The error of a run that has no message of its own.
    const known = new Set(all.map(({ id }) => id));
    shown.push(...this.past.filter((item) => item.kind === "fault" && item.isLast && !known.has(item.after)).map(aside));
    return shown;
  }
}

const SPEAKERS = { input: "you", question: "asks", answer: "you", result: "agent", fault: "fault" };

// A past event as a message that cannot be edited.
export function aside(item) {
  const text = item.kind === "fault" ? item.text : item.kind === "question" ? wordsOf(item.value) : item.kind === "answer" ? wordsOfAnswer(item) : asText(item.value);
  return { id: item.id, who: SPEAKERS[item.kind], text, grows: false, calls: [], isFixed: true };
}

export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// A value as text for people.
export const asText = (value) => (typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? ""));

// The text of a question. For tools that need approval, this is a description of each call, or its
// name and arguments.
export function wordsOf(value) {
  if (typeof value === "string") return value;
  if (isObject(value) && typeof value.question === "string") return value.question;
  if (isObject(value) && Array.isArray(value.action_requests)) {
    const action = ({ name, action: other, args, arguments: more }) => `${name ?? other}(${short(args ?? more)})`;
    return value.action_requests.map((request) => request.description ?? action(request)).join("\n");
  }
  return asText(value);
}

// The schema of the answer to a question.
export function schemaOf({ value, response_schema: schema }) {
  return schema ?? (isObject(value) && isObject(value.schema) ? value.schema : {});
}

// An answer as text: the name of the choice, the decisions on tools, or the value itself.
function wordsOfAnswer({ value, question }) {
  const choice = choicesOf(schemaOf(question))?.find((way) => way.value === value);
  if (choice) return choice.name;
  const decisions = isObject(value) && Array.isArray(value.decisions) ? value.decisions : [];
  return decisions.length ? decisions.map(({ type, message }) => (message ? `${type}: ${message}` : type)).join(", ") : asText(value);
}

function short(args) {
  if (!isObject(args)) return args === undefined ? "" : JSON.stringify(args);
  return Object.entries(args).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
}

// The title of a conversation from its first input: a text, or the first text in an object.
export function titleOf(input) {
  if (typeof input === "string") return input.trim().slice(0, 80);
  const [first] = Array.isArray(input?.messages) ? input.messages : [];
  if (first !== undefined) return textOf(Array.isArray(first) ? first[1] : (first.content ?? first)).trim().slice(0, 80);
  if (!isObject(input)) return input === null || input === undefined ? "" : JSON.stringify(input).slice(0, 80);
  return (Object.values(input).find((value) => typeof value === "string" && value.trim()) ?? short(input)).slice(0, 80);
}

// The text of a message's content, which is a text, or blocks that may be texts.
export function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((block) => (typeof block === "string" ? block : (block.text ?? ""))).join("");
}

function joined(before, more) {
  return typeof before === "string" && typeof more === "string" ? before + more : textOf(before) + textOf(more);
}

function pieces(message) {
  return (message.tool_call_chunks ?? []).map(({ index, id, name, args }) => ({ index, id, name, args: args ?? "" }));
}

function add(calls, piece) {
  const call = calls.find(({ index }) => index === piece.index);
  if (call) call.args += piece.args;
  else calls.push(piece);
}

function callsOf(message) {
  if (message.calls?.length) return message.calls;
  return (message.tool_calls ?? []).map(({ id, name, args }) => ({ id, name, args: JSON.stringify(args) }));
}
