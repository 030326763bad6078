// The conversation on the page. Elements are kept and only their content changes. While the
// conversation grows, its end stays visible, unless the user has scrolled up.

import { arrange, byId, h, mark, say } from "../dashboard/dom.js";
import { aside, asText } from "./conversation.js";
import { isEmpty } from "./past.js";
import { write } from "./text.js";

const NEAR_PX = 80;
// The parts that are shown for a graph without messages, besides past events and growing messages.
const PARTS = new Set(["input", "steps", "working", "result", "end"]);
const NAMES = { you: "You", agent: "Agent", system: "System", asks: "A question that was answered", fault: "An error" };

export class Messages {
  constructor(edit) {
    this.edit = edit;
    this.drawn = new Map();
    this.extra = new Map();
    this.goesToEnd = true;
  }

  toEnd() {
    this.goesToEnd = true;
  }

  clear() {
    this.drawn.clear();
    this.extra.clear();
    this.goesToEnd = true;
    byId("messages").replaceChildren();
  }

  // Returns a function to call after a change of the page: the end of the conversation stays visible.
  keepEnd() {
    const talk = byId("talk");
    const atEnd = this.goesToEnd || talk.scrollHeight - talk.scrollTop - talk.clientHeight < NEAR_PX;
    this.goesToEnd = false;
    return () => {
      if (atEnd) talk.scrollTop = talk.scrollHeight;
    };
  }

  // `isDone`: the last run has ended as it should, and its result is shown.
  draw(conversation, { isChat, running, isDone }) {
    if (isChat) this.chat(conversation, running);
    else this.plain(conversation, running, isDone);
    mark(byId("talk"), "aria-busy", running);
  }

  chat(conversation, running) {
    const messages = conversation.shown();
    const wanted = new Set(messages.map(({ id }) => id));
    for (const id of this.drawn.keys()) if (!wanted.has(id)) this.drawn.delete(id);
    const elements = messages.map((message) => {
      let element = this.drawn.get(message.id);
      if (!element) this.drawn.set(message.id, (element = this.message(message)));
      this.fill(element, message, running);
      return element;
    });
    arrange(byId("messages"), elements);
  }

  message({ id, who, isFixed }) {
    const edit = h("button", { type: "button", class: "edit", onclick: () => this.edit(id) }, "Edit");
    return h(
      "article",
      { "data-who": who, "data-message": id, "aria-label": NAMES[who] },
      h("div", { class: "text" }),
      h("div", { class: "calls" }),
      ...(who === "you" && !isFixed ? [edit] : []),
    );
  }

  fill(element, message, running) {
    const [text, calls, edit] = element.children;
    const grows = message.grows && running;
    const words = message.isEmpty && !grows ? "*The answer is empty.*" : message.text;
    // Only texts of models are rendered as Markdown; texts of people are shown unchanged.
    if (message.who !== "agent") say(text, words);
    else if (text.source !== words) write(text, words);
    text.source = words;
    mark(element, "data-grows", grows);
    if (edit) edit.disabled = running;
    message.calls.forEach((call, index) => this.call(calls, call, index, running));
  }

  call(box, call, index, running) {
    let card = box.children[index];
    if (!card) {
      const parts = [h("span", { class: "dotted" }), h("code", {}), h("em", {})];
      card = h("details", { class: "call" }, h("summary", {}, ...parts), h("pre", {}));
      box.append(card);
    }
    const { result } = call;
    const failed = result?.status === "error";
    const [name, given, short] = card.firstElementChild.children;
    mark(name, "data-state", failed ? "failed" : result ? "done" : running ? "running" : "waiting for a human");
    say(name, call.name ?? "tool");
    say(given, inWords(call.args));
    const said = result === null ? "" : asText(result.content);
    say(short, result === null ? (running ? "…" : "no result yet") : `→ ${said.split("\n")[0]}`);
    say(card.lastElementChild, said || "It has no result yet.");
  }

  // Shows a graph without messages: past events, the input, the steps and the result.
  plain({ input, steps, values, growing, past, questions }, running, isDone) {
    this.last = null;
    const items = past.map(aside);
    const kept = new Set([...PARTS, ...items.map(({ id }) => id), ...growing.keys()]);
    for (const key of this.extra.keys()) if (!kept.has(key)) this.part(key, "agent", null);
    for (const { id, who, text } of items) this.part(id, who, text);
    this.part("input", "you", input === undefined || input === null ? null : asText(input));
    this.part("steps", "steps", steps.length ? steps.map((step) => `✓ ${step}`).join("\n") : null);
    for (const message of growing.values()) this.part(message.id, "agent", asText(message.content));
    const isQuiet = running && !steps.length && !growing.size;
    this.part("working", "steps", isQuiet ? "The agent is working. The panel “What runs” shows its calls." : null);
    const isOver = !running && !questions.length && past.at(-1)?.kind !== "fault";
    this.part("result", "agent", isOver && !isEmpty(values) ? asText(values) : null);
    this.part("end", "steps", isOver && isDone && isEmpty(values) ? "The run has ended without a result." : null);
  }

  part(key, who, text) {
    let element = this.extra.get(key);
    if (text === null) {
      element?.remove();
      this.extra.delete(key);
      return;
    }
    if (!element) {
      element = h("article", { "data-who": who, "aria-label": NAMES[who] ?? "Steps" }, h("div", { class: "text" }));
      this.extra.set(key, element);
    }
    // The parts are in the order in which they were filled.
    const at = this.last ? this.last.nextElementSibling : byId("messages").firstElementChild;
    if (at !== element) byId("messages").insertBefore(element, at);
    this.last = element;
    const box = element.firstElementChild;
    const isJson = /^[[{]/.test(text);
    mark(box, "class", isJson ? "text json" : "text");
    if (who !== "agent" || isJson) say(box, text);
    else if (box.source !== text) write(box, text);
    box.source = text;
  }
}

// Arguments as "name: value", when they are complete.
function inWords(args) {
  try {
    const pairs = Object.entries(JSON.parse(args));
    return pairs.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
  } catch {
    return args;
  }
}
