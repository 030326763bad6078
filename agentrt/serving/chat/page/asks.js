// Open questions of a thread, each with a form made from its schema, within the conversation.

import { byId, h, say } from "../dashboard/dom.js";
import { field } from "../dashboard/forms.js";
import { isObject } from "./conversation.js";

export class Asks {
  constructor(answer) {
    this.answer = answer;
    this.drawn = new Map();
  }

  // Forms that stay keep what was typed into them.
  draw(questions, running) {
    const open = running ? [] : questions;
    const wanted = new Set(open.map(({ id }) => id));
    for (const [id, form] of this.drawn) {
      if (wanted.has(id)) continue;
      form.remove();
      this.drawn.delete(id);
    }
    for (const question of open) {
      if (this.drawn.has(question.id)) continue;
      const form = this.form(question);
      this.drawn.set(question.id, form);
      byId("questions").append(form);
      form.scrollIntoView({ block: "nearest" });
    }
  }

  form({ id, value, response_schema: schema }) {
    const note = h("output", {});
    const actions = isObject(value) && Array.isArray(value.action_requests) ? value.action_requests : null;
    const text = h("p", {}, wordsOf(value));
    const give = (answer) => this.answer(id, answer);
    if (actions) {
      const decide = (type) => () => give({ decisions: actions.map(() => ({ type })) });
      const yes = h("button", { type: "button", onclick: decide("approve") }, "Approve");
      const no = h("button", { type: "button", onclick: decide("reject") }, "Reject");
      return h("form", { class: "ask", "data-question": id, "aria-label": "A question to you" }, text, yes, no);
    }
    const { element, read } = field(schema ?? (isObject(value) && isObject(value.schema) ? value.schema : {}));
    element.setAttribute("aria-label", "Your answer");
    const form = h("form", { class: "ask", "data-question": id, "aria-label": "A question to you" }, text, element, h("button", {}, "Answer"), note);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      try {
        give(read() ?? null);
      } catch (error) {
        say(note, error.message);
      }
    });
    return form;
  }
}

function wordsOf(value) {
  if (typeof value === "string") return value;
  if (isObject(value) && typeof value.question === "string") return value.question;
  return JSON.stringify(value, null, 2);
}
