// Open questions to humans, each with a form for its schema. Only the first answer counts, so a
// question that was answered elsewhere disappears.

import { answerForm } from "./answers.js";
import { byId, count, h, mark, say } from "./dom.js";
import { request } from "./stream.js";

export class Questions {
  // `tell(open)` is called with the open questions, newest first. `askerOf(question)` names the asker.
  constructor(tell, askerOf) {
    Object.assign(this, { tell, askerOf });
    this.shown = new Map();
    this.turn = 0;
    byId("hide-questions").addEventListener("click", () => {
      byId("open").hidden = !byId("open").hidden;
      this.measure();
    });
  }

  // Loads the open questions from the server. Forms of the same questions keep their input.
  async refresh() {
    const turn = (this.turn += 1);
    const body = await request("v1/questions?limit=1000")
      .then((response) => (response.ok ? response.json() : null))
      .catch(() => null);
    if (!body || turn !== this.turn) return;
    const { data } = body;
    const open = new Map(data.map((question) => [question.id, question]));
    for (const [id, form] of this.shown) {
      if (!open.has(id)) this.remove(id, form);
    }
    for (const question of [...open.values()].reverse()) {
      if (!this.shown.has(question.id)) this.add(question);
    }
    this.measure();
    this.tell(data);
  }

  add(question) {
    const { id } = question;
    const form = answerForm(question.schema, {
      label: question.question,
      attributes: { class: "ask", "data-question": id },
      head: h("p", {}, h("b", { title: question.thread ?? question.program }, this.askerOf(question)), " ", h("bdi", {}, question.question)),
      give: (value) => this.answer(id, form, value),
    });
    this.shown.set(id, form);
    byId("open").prepend(form);
  }

  // Returns a message for people if the answer was refused.
  async answer(id, form, value) {
    const body = JSON.stringify({ answer: value });
    const response = await request(`v1/questions/${id}`, { method: "POST", body }).catch(() => null);
    if (!response?.ok && response?.status !== 409) return response ? why(response) : "no server; try again";
    this.remove(id, form);
    this.measure();
    return "";
  }

  // After an answer by the keyboard, the focus moves to the next question.
  remove(id, form) {
    const hasFocus = form.contains(document.activeElement);
    const next = form.nextElementSibling ?? form.previousElementSibling;
    this.shown.delete(id);
    form.remove();
    if (hasFocus) next?.querySelector("textarea, input, select, button")?.focus();
  }

  measure() {
    byId("questions").hidden = this.shown.size === 0;
    say(byId("questions-count"), count(this.shown.size));
    say(byId("hide-questions"), byId("open").hidden ? "Show" : "Hide");
    mark(byId("hide-questions"), "aria-expanded", !byId("open").hidden);
  }
}

async function why(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `the server answers ${response.status}`;
}
