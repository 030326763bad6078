// The input of the page: a message to a graph that has messages, else a form for the graph's input.

import { byId, h } from "../dashboard/dom.js";
import { choicesOf, field } from "../dashboard/forms.js";

export class Composer {
  constructor(send) {
    this.form = byId("composer");
    this.read = () => undefined;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      send();
    });
    this.form.addEventListener("keydown", (event) => {
      const isSend = event.key === "Enter" && !event.shiftKey && !event.isComposing;
      if (!isSend || event.target.tagName !== "TEXTAREA") return;
      event.preventDefault();
      this.form.requestSubmit();
    });
  }

  // Shows the input for a graph with this schema.
  show(schema, isChat) {
    if (isChat) {
      const text = h("textarea", { rows: 1, dir: "auto", placeholder: "Write a message", "aria-label": "Message", required: true });
      byId("entry").replaceChildren(text);
      this.read = () => text.value.trim() || undefined;
    } else if (schema?.type === "null") {
      byId("entry").replaceChildren(h("p", {}, "It takes no input: press Send to run it."));
      this.read = () => undefined;
    } else if (schema?.type === "string" && !choicesOf(schema)) {
      const text = h("textarea", { rows: 1, dir: "auto", placeholder: schema.default ?? "The input", "aria-label": "Input" });
      byId("entry").replaceChildren(text);
      this.read = () => text.value || undefined;
    } else {
      const { element, read } = field(schema ?? {}, schema ?? {}, false);
      if (element.tagName === "TEXTAREA" && !Object.keys(schema ?? {}).length) element.placeholder = "The input: text or JSON, or nothing";
      element.setAttribute("aria-label", "Input");
      byId("entry").replaceChildren(element);
      this.read = read;
    }
  }

  // Empties the fields. Returns a function that restores the values of the fields that are still empty,
  // and returns whether all values are shown again: the person may have written something else or
  // selected another graph meanwhile.
  clear() {
    const fields = [...byId("entry").querySelectorAll("textarea, input, select")];
    const values = fields.map(({ value }) => value);
    for (const entry of fields) entry.value = "";
    return () => {
      fields.forEach((entry, index) => (entry.value ||= values[index]));
      return fields.every((entry, index) => entry.isConnected && entry.value === values[index]);
    };
  }

  put(text) {
    const [entry] = byId("entry").querySelectorAll("textarea, input");
    if (!entry || typeof text !== "string") return;
    entry.value = text;
    entry.focus();
  }

  focus() {
    byId("entry").querySelector("textarea, input, select")?.focus();
  }
}

// Whether a graph accepts messages, according to the schema of its input.
export function takesMessages(schema) {
  return schema?.properties?.messages !== undefined;
}

// A schema of an object without properties allows any value.
export function formOf(schema) {
  const isAny = schema?.type === "object" && !schema.properties;
  return isAny ? {} : schema;
}
