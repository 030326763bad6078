// Open questions to humans, each with a form made from its schema. The first answer counts: a
// question that was answered elsewhere goes away.

import { byId, count, h, say } from "./dom.js";
import { field } from "./forms.js";
import { request } from "./stream.js";

export class Questions {
  constructor() {
    this.shown = new Map();
    this.turn = 0;
  }

  // Asks the server for what is open. Forms that stay keep what was typed into them.
  async refresh() {
    const turn = (this.turn += 1);
    const response = await request("v1/questions").catch(() => null);
    if (!response?.ok || turn !== this.turn) return;
    const open = new Map((await response.json()).data.map((question) => [question.id, question]));
    for (const [id, form] of this.shown) {
      if (!open.has(id)) this.remove(id, form);
    }
    for (const question of [...open.values()].reverse()) {
      if (!this.shown.has(question.id)) this.add(question);
    }
    this.measure();
  }

  add(question) {
    const { element, read } = field(question.schema);
    const note = h("output", {});
    const who = question.program ?? `${question.type}, thread ${question.thread}`;
    const form = h(
      "form",
      { "data-question": question.id },
      h("p", {}, h("b", {}, who), " ", question.question),
      element,
      h("button", {}, "Answer"),
      note,
    );
    element.setAttribute("aria-label", question.question);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.answer(question.id, form, read, note);
    });
    this.shown.set(question.id, form);
    byId("open").prepend(form);
  }

  async answer(id, form, read, note) {
    say(note, "");
    let value;
    try {
      value = read() ?? null;
    } catch (error) {
      say(note, error.message);
      return;
    }
    const body = JSON.stringify({ answer: value });
    const response = await request(`v1/questions/${id}`, { method: "POST", body }).catch(() => null);
    if (response?.ok || response?.status === 409) this.remove(id, form);
    else say(note, response ? await why(response) : "no server; try again");
    this.measure();
  }

  remove(id, form) {
    this.shown.delete(id);
    form.remove();
  }

  measure() {
    byId("questions").hidden = this.shown.size === 0;
    say(byId("questions-count"), count(this.shown.size));
  }
}

async function why(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `the server answers ${response.status}`;
}
