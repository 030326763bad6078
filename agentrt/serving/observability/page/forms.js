// A form field for a JSON schema: text, number, yes or no, a choice, or an object of these; other
// values are typed as JSON. A field has its `element`, and `read()`, which returns its value, or
// undefined if it is empty, and throws an Error with a message for people.

import { h } from "./dom.js";

const TEXTS = new Set(["string", undefined]);

export function field(schema, root = schema, needed = true) {
  const form = resolved(schema ?? { type: "string" }, root);
  const choices = choicesIn(form);
  if (choices) return choice(choices, needed);
  if (form.type === "integer" || form.type === "number") return number(form, needed);
  if (form.type === "string") return text(form, needed);
  if (form.type === "object" && isFlat(form, root)) return object(form, root);
  return json(form, needed);
}

// The choices of a schema, each with its name and its value; null for a schema that is not a choice.
export function choicesOf(schema) {
  return choicesIn(resolved(schema ?? {}, schema));
}

function choicesIn(form) {
  const ways = form.oneOf ?? form.anyOf;
  if (Array.isArray(form.enum)) return form.enum.map((value, index) => ({ name: form.enumNames?.[index] ?? asName(value), value }));
  if ("const" in form) return [{ name: asName(form.const), value: form.const }];
  if (form.type === "boolean") return [{ name: "yes", value: true }, { name: "no", value: false }];
  if (Array.isArray(ways) && ways.length && ways.every((way) => "const" in way)) {
    return ways.map((way) => ({ name: way.title ?? asName(way.const), value: way.const }));
  }
  return null;
}

const asName = (value) => (typeof value === "string" ? value : JSON.stringify(value));

// Resolves a reference within the schema. For a value that may be null, returns the other type.
function resolved(schema, root) {
  if (typeof schema.$ref === "string" && schema.$ref.startsWith("#/")) {
    const parts = schema.$ref.slice(2).split("/");
    const found = parts.reduce((inner, name) => inner?.[name], root);
    return found && found !== schema && !found.$ref ? { ...found, ...without(schema, "$ref") } : {};
  }
  const ways = schema.anyOf?.filter((way) => way.type !== "null");
  return ways?.length === 1 ? resolved({ ...without(schema, "anyOf"), ...ways[0] }, root) : schema;
}

function without(schema, key) {
  const { [key]: dropped, ...rest } = schema;
  return rest;
}

const SCALARS = new Set(["string", "integer", "number", "boolean"]);

function isFlat(form, root) {
  const parts = Object.values(form.properties ?? {}).map((part) => resolved(part, root));
  return parts.length > 0 && parts.every((p) => SCALARS.has(p.type) || choicesIn(p));
}

function choice(choices, needed) {
  const options = choices.map(({ name }, index) => h("option", { value: index }, name));
  const element = h("select", { required: needed }, h("option", { value: "" }, "…"), ...options);
  return { element, read: () => (element.value === "" ? undefined : choices[element.value].value) };
}

function number(form, needed) {
  const step = form.type === "integer" ? 1 : "any";
  const element = h("input", { type: "number", step, min: form.minimum, max: form.maximum, placeholder: form.default, required: needed });
  return { element, read: () => (element.value === "" ? undefined : element.valueAsNumber) };
}

function text(form, needed) {
  const element = h("input", { type: "text", dir: "auto", maxlength: form.maxLength, placeholder: form.default, required: needed, autocomplete: "off" });
  return { element, read: () => (element.value === "" && !needed ? undefined : element.value) };
}

function json(form, needed) {
  const hint = Object.keys(form).length ? JSON.stringify(form) : "text or JSON";
  const element = h("textarea", { rows: 3, dir: "auto", required: needed, placeholder: hint, spellcheck: "false" });
  // Without a schema, a value is text unless it is an object, a list, true, false or null.
  const free = TEXTS.has(form.type) && !Object.keys(form).length;
  return { element, read: () => readJson(element.value, free) };
}

function readJson(typed, free) {
  if (typed.trim() === "") return undefined;
  try {
    const value = JSON.parse(typed);
    return free && (typeof value === "number" || typeof value === "string") ? typed : value;
  } catch (error) {
    if (free) return typed;
    throw new Error(`this is not JSON: ${error.message}`);
  }
}

function object(form, root) {
  const required = new Set(form.required ?? []);
  const parts = Object.entries(form.properties).map(([name, part]) => {
    const inner = field(part, root, required.has(name));
    const words = part.description ? `${name}: ${part.description}` : name;
    return { name, inner, row: h("label", {}, h("span", {}, words), inner.element) };
  });
  const element = h("fieldset", {}, ...parts.map((part) => part.row));
  const read = () => {
    const filled = parts.map(({ name, inner }) => [name, inner.read()]);
    return Object.fromEntries(filled.filter(([, value]) => value !== undefined));
  };
  return { element, read };
}
