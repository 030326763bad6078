// Open questions of a thread, inside the conversation, each with a form for its schema.

import { answerForm } from "../dashboard/answers.js";
import { byId, h } from "../dashboard/dom.js";
import { isObject, schemaOf, wordsOf } from "./conversation.js";

const DECISIONS = { approve: "Approve", reject: "Reject" };

export class Asks {
  constructor(answer) {
    this.answer = answer;
    this.drawn = new Map();
  }

  // Forms of the same questions keep their input, also while an answer is being sent.
  draw(questions, running) {
    const wanted = new Set(questions.map(({ id }) => id));
    for (const [id, form] of this.drawn) {
      form.hidden = running;
      if (running || wanted.has(id)) continue;
      form.remove();
      this.drawn.delete(id);
    }
    for (const question of questions) {
      if (this.drawn.has(question.id)) continue;
      const form = this.form(question);
      this.drawn.set(question.id, form);
      byId("questions").append(form);
      form.scrollIntoView({ block: "nearest" });
    }
  }

  // Moves the focus to the first open question's field, or to its first choice.
  focus() {
    byId("questions").querySelector("textarea, input, select, button")?.focus();
  }

  form(question) {
    const { id, value } = question;
    const actions = isObject(value) && Array.isArray(value.action_requests) ? value.action_requests : null;
    const give = (answer) => this.answer(id, answer);
    const words = h("p", {}, wordsOf(value));
    const attributes = { class: "ask", "data-question": id, "aria-label": "A question to you" };
    if (actions) return h("form", { ...attributes, onsubmit: (event) => event.preventDefault() }, words, ...decisions(value, actions, give));
    return answerForm(schemaOf(question), { label: "Your answer", attributes, head: words, give });
  }
}

// A button for each decision that all actions of the question allow.
function decisions({ review_configs: configs }, actions, give) {
  const lists = (configs ?? []).map((config) => config.allowed_decisions).filter(Array.isArray);
  const allowed = Object.keys(DECISIONS).filter((type) => lists.every((list) => list.includes(type)));
  const all = actions.length > 1 ? ` all ${actions.length}` : "";
  return allowed.map((type) => {
    const decide = () => give({ decisions: actions.map(() => ({ type })) });
    return h("button", { type: "button", onclick: decide }, DECISIONS[type] + all);
  });
}
