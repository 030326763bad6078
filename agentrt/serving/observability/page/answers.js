// The form for the answer to a question: a button for each of a few choices, else a field for the
// schema with the button Answer. Enter sends the answer, Shift+Enter begins a new line.

import { h, say } from "./dom.js";
import { choicesOf, field } from "./forms.js";

const MOST_BUTTONS = 8;

// `give(answer)` may return a promise of a message that says why the answer was refused.
export function answerForm(schema, { label, attributes, head, give }) {
  const note = h("output", {});
  const choices = choicesOf(schema);
  const answer = async (read) => {
    say(note, "");
    try {
      say(note, (await give(read())) ?? "");
    } catch (error) {
      say(note, error.message);
    }
  };
  if (choices && choices.length <= MOST_BUTTONS) {
    const button = ({ name, value }) => h("button", { type: "button", onclick: () => answer(() => value) }, name);
    const group = h("div", { class: "choices", role: "group", "aria-label": label }, ...choices.map(button));
    return h("form", { ...attributes, onsubmit: (event) => event.preventDefault() }, head, group, note);
  }
  const { element, read } = field(schema);
  element.setAttribute("aria-label", label);
  const form = h("form", attributes, head, element, h("button", {}, "Answer"), note);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    answer(() => read() ?? null);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target.tagName !== "TEXTAREA") return;
    event.preventDefault();
    form.requestSubmit();
  });
  return form;
}
