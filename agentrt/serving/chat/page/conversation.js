// What was said in a thread: the state's messages, and those that grow while a run goes on.

export class Conversation {
  constructor() {
    this.open({});
  }

  // A thread's state, or nothing.
  open({ values = null, interrupts = [], input } = {}) {
    this.values = values;
    this.messages = values?.messages ?? [];
    this.questions = interrupts;
    this.input = input;
    this.growing = new Map();
    this.steps = [];
  }

  say(message) {
    this.growing.set(message.id, message);
  }

  // A run is told of again from its first event.
  again() {
    this.growing.clear();
    this.steps = [];
  }

  // What a run tells, by the name of its event; of a subgraph's, its place follows "|".
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
    this.messages = this.values?.messages ?? [];
    for (const message of this.messages) this.growing.delete(message.id);
  }

  // All messages: each has who, text, its tools' calls with their results.
  shown() {
    const all = [...this.messages, ...this.growing.values()];
    const results = new Map(all.filter((m) => m.type === "tool").map((m) => [m.tool_call_id, m]));
    return all.filter((m) => m.type !== "tool").map((message) => ({
      id: message.id,
      who: message.type === "human" ? "you" : message.type === "system" ? "system" : "agent",
      text: textOf(message.content),
      grows: this.growing.has(message.id) && message.type !== "human",
      calls: callsOf(message).map((call) => ({ ...call, result: results.get(call.id) ?? null })),
    }));
  }
}

export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// The text of a message's content: a text, or blocks of which some are texts.
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
  const call = calls.find((one) => one.index === piece.index);
  if (call) call.args += piece.args;
  else calls.push(piece);
}

function callsOf(message) {
  if (message.calls?.length) return message.calls;
  return (message.tool_calls ?? []).map(({ id, name, args }) => ({ id, name, args: JSON.stringify(args) }));
}
