// Recorded programs: where the time of a program went, and how it differs from another program.

import { byId, h, say, seconds } from "./dom.js";
import { Diff } from "./diff.js";
import { keyNote, request, setKey } from "./stream.js";
import { Why } from "./why.js";

const LISTED = 200;
const STRANGE = new Set([401, 403]);

const why = new Why();
const diff = new Diff();
let turn = 0;

// Requests data of the journal. Throws an Error with a message for people.
async function ask(path, given) {
  const response = await request(`../journal${path}?${new URLSearchParams(given)}`).catch(() => null);
  if (!response) throw new Error("The server does not answer: load the page again.");
  byId("key").hidden = !STRANGE.has(response.status);
  say(byId("key-note"), keyNote());
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(reasonOf(body.detail) ?? `The server answers ${response.status}.`);
  return body;
}

// The reason of a refusal. For values of a wrong form, FastAPI lists the faults.
const reasonOf = (detail) => (Array.isArray(detail) ? detail.map(({ loc, msg }) => `${loc.at(-1)}: ${msg}`).join("; ") : detail);

const asked = () => new URLSearchParams(location.search);

function go(program, other = "") {
  const query = new URLSearchParams({ program, ...(other && { other }) });
  history.pushState(null, "", `?${query}`);
  load();
}

async function load() {
  const now = (turn += 1);
  const isOver = () => now !== turn;
  try {
    await show(isOver);
    if (!isOver()) tell("");
  } catch (error) {
    if (!isOver()) tell(error.message);
  }
}

function tell(problem) {
  say(byId("problem"), problem);
  byId("problem").hidden = !problem || !byId("key").hidden;
  if (problem) byId("why").hidden = byId("diff").hidden = true;
}

async function show(isOver) {
  const { programs } = await ask("", { limit: LISTED });
  const id = asked().get("program") ?? programs[0]?.id;
  if (isOver()) return;
  say(byId("program-facts"), "");
  choose(byId("program"), programs, id);
  byId("program").parentElement.hidden = !id;
  if (!id) throw new Error("No program is recorded yet. Run a served program: it appears here when it begins.");
  const told = await ask("/why", { program: id });
  if (isOver()) return;
  const own = programs.find((program) => program.id === id);
  say(byId("program-facts"), about(told, own));
  why.show(told);
  await showOther(told, own, isOver);
}

async function showOther({ program: id, type }, own, isOver) {
  const { programs } = await ask("", { limit: LISTED, type });
  const others = programs.filter((program) => program.id !== id);
  const other = asked().get("other") ?? own?.fork?.of ?? others.find((program) => program.fork?.of === id)?.id;
  // A fork is on the right, and the older program that it was made from on the left.
  const [left, right] = own?.fork?.of === other ? [other, id] : [id, other];
  const told = other && (await ask("/diff", { program: left, other: right }));
  if (isOver()) return;
  choose(byId("other"), others, other, "choose a run");
  byId("other").hidden = !others.length && !other;
  if (told) diff.show(told);
  else diff.none(others.length ? "Choose another run to compare." : alone(id));
}

const alone = (id) =>
  `There is no other run of this program. Run it again, or stop the server and run it anew from a node: agentrt journal fork JOURNAL ${id} --at NODE PROGRAM.py`;

function choose(select, programs, id, none) {
  const options = programs.map((program) => h("option", { value: program.id }, named(program)));
  if (none) options.unshift(h("option", { value: "" }, none));
  if (id && !programs.some((program) => program.id === id)) options.unshift(h("option", { value: id }, id));
  select.replaceChildren(...options);
  select.value = id ?? "";
}

function named({ id, state, started, ended, fork }) {
  const took = ended === null ? "" : `, ${seconds(ended - started)}`;
  return `${id} (${state}${took}${fork ? `, fork of ${fork.of}` : ""})`;
}

function about(told, own) {
  const state = told.state === "open" ? "open, so far" : told.state;
  const began = new Date(1000 * told.started).toLocaleString("sv");
  const fork = own?.fork ? ` · fork of ${own.fork.of} at ${own.fork.at}` : "";
  return `${state} · ${seconds(told.wall_s)} · began ${began}${fork}`;
}

byId("program").addEventListener("change", (event) => go(event.target.value));
byId("other").addEventListener("change", (event) => go(byId("program").value, event.target.value));
byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(new FormData(event.target).get("key"));
  load();
});
window.addEventListener("popstate", load);
window.addEventListener("resize", () => diff.draw());
load();
