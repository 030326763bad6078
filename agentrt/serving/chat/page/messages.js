// The conversation on the page. Elements are kept and only filled anew, and the end stays in sight
// while it grows, unless somebody has scrolled up.

import { byId, h, mark, say } from "../dashboard/dom.js";
import { write } from "./text.js";

const NEAR_PX = 80;
// What is shown of a graph without messages, beside those that grow.
const PARTS = new Set(["input", "steps", "working", "result"]);
const NAMES = { you: "You", agent: "Agent", system: "System" };

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

  draw(conversation, { isChat, running }) {
    const talk = byId("talk");
    const atEnd = this.goesToEnd || talk.scrollHeight - talk.scrollTop - talk.clientHeight < NEAR_PX;
    if (isChat) this.chat(conversation, running);
    else this.plain(conversation, running);
    mark(talk, "aria-busy", running);
    if (atEnd) talk.scrollTop = talk.scrollHeight;
    this.goesToEnd = false;
  }

  chat(conversation, running) {
    const messages = conversation.shown();
    const wanted = new Set(messages.map(({ id }) => id));
    for (const [id, element] of this.drawn) {
      if (wanted.has(id)) continue;
      element.remove();
      this.drawn.delete(id);
    }
    let at = byId("messages").firstElementChild;
    for (const message of messages) {
      let element = this.drawn.get(message.id);
      if (!element) this.drawn.set(message.id, (element = this.message(message)));
      if (element === at) at = at.nextElementSibling;
      else byId("messages").insertBefore(element, at);
      this.fill(element, message, running);
    }
  }

  message({ id, who }) {
    const edit = h("button", { type: "button", class: "edit", onclick: () => this.edit(id) }, "Edit");
    return h(
      "article",
      { "data-who": who, "data-message": id, "aria-label": NAMES[who] },
      h("div", { class: "text" }),
      h("div", { class: "calls" }),
      ...(who === "you" ? [edit] : []),
    );
  }

  fill(element, message, running) {
    const [text, calls, edit] = element.children;
    if (text.source !== message.text) write(text, message.text);
    text.source = message.text;
    mark(element, "data-grows", message.grows && running);
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

  // A graph without messages: what was given, the steps, the result.
  plain({ input, steps, values, growing }, running) {
    this.part("input", "you", input === undefined ? null : asText(input));
    this.part("steps", "steps", steps.length ? steps.map((step) => `✓ ${step}`).join("\n") : null);
    for (const key of this.extra.keys()) if (!PARTS.has(key) && !growing.has(key)) this.part(key, "agent", null);
    for (const message of growing.values()) this.part(message.id, "agent", asText(message.content));
    const isQuiet = running && !steps.length && !growing.size;
    this.part("working", "steps", isQuiet ? "It works; its calls are in the graph at the side." : null);
    const isEmpty = values === null || values === undefined || (typeof values === "object" && !Object.keys(values).length);
    this.part("result", "agent", isEmpty || running ? null : asText(values));
  }

  part(key, who, text) {
    let element = this.extra.get(key);
    if (text === null) {
      element?.remove();
      this.extra.delete(key);
      return;
    }
    if (!element) {
      element = h("article", { "data-who": who, "aria-label": NAMES[who] ?? "Steps" }, h("pre", { class: "text" }));
      this.extra.set(key, element);
      byId("messages").append(element);
    }
    mark(element.firstElementChild, "class", /^[[{]/.test(text) ? "text json" : "text");
    say(element.firstElementChild, text);
  }
}

// Arguments as "name: value", once they are whole.
function inWords(args) {
  try {
    const pairs = Object.entries(JSON.parse(args));
    return pairs.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
  } catch {
    return args;
  }
}

function asText(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
