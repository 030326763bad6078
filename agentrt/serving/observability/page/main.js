// Connects the parts of the page: the stream updates the store, and each frame draws the changes.

import { byId, count, h, oncePerFrame, say } from "./dom.js";
import { Engines } from "./engines.js";
import { Graph } from "./graph.js";
import { Questions } from "./questions.js";
import { Store } from "./store.js";
import { follow, keyNote, setKey } from "./stream.js";
import { Table } from "./table.js";
import { Timeline } from "./timeline.js";

const TICK_MS = 500;
const NARROW = matchMedia("(max-width: 980px)");
const STATES = ["running", "waiting", "in tool", "waiting for a human"];
const TOTALS = ["live", ...STATES, "tokens/s"];
const SHORT = { "waiting for a human": "for a human" };
const LINKS = { live: "live", lost: "no server; trying again", busy: "the server is busy or starting; trying again", refused: "a key is needed" };

const store = new Store();
const draw = oncePerFrame(() => {
  const now = store.now();
  store.measure(now);
  table.draw();
  if (store.programs.has(graph.id)) graph.show(store.programs.get(graph.id));
  graph.draw(now);
  engines.draw(now);
  timeline.draw(now);
  totals();
});
const table = new Table(store, choose, draw);
const graph = new Graph(draw);
graph.stateOf = (program) => store.stateOf(program);
const timeline = new Timeline(store, choose, draw);
const engines = new Engines(store);
const questions = new Questions((open) => {
  store.asking = new Map(open.filter(({ thread }) => thread).map(({ thread, question }) => [thread, question]));
  draw();
}, (question) => store.askerOf(question));
const cells = new Map(
  TOTALS.map((name) => {
    const cell = h("dd", { "data-total": name }, "–");
    byId("totals").append(h("div", {}, h("dt", {}, SHORT[name] ?? name), cell));
    return [name, cell];
  }),
);

function choose(id) {
  if (id === table.chosen) return;
  table.chosen = timeline.chosen = id;
  history.replaceState(null, "", `#${encodeURIComponent(id)}`);
  byId("why").href = `dashboard/recorded.html?program=${encodeURIComponent(id)}`;
  byId("why").hidden = false;
  graph.choose(id);
  draw();
  // On a narrow page, the graph is below the table.
  if (NARROW.matches) byId("program").scrollIntoView({ block: "nearest" });
}

// Chooses the program that the page's address names.
function chooseNamed() {
  const name = location.hash.slice(1);
  if (name) choose(decoded(name));
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name; // somebody has typed or cut the address
  }
}

function totals() {
  const live = [...store.programs.values()].filter((program) => store.isLive(program));
  const of = (state) => live.filter((program) => store.stateOf(program) === state).length;
  say(cells.get("live"), count(live.length));
  for (const state of STATES) say(cells.get(state), count(of(state)));
  say(cells.get("tokens/s"), engines.rate());
}

function link(state) {
  byId("link").dataset.state = state;
  say(byId("link"), LINKS[state] ?? state);
  byId("key").hidden = state !== "refused";
  if (state === "refused") say(byId("key-note"), keyNote());
}

let stop = () => {};

function watch() {
  stop();
  stop = follow("events", {
    event(name, body) {
      if (name === "snapshot") store.snapshot(body);
      if (name === "change") store.change(body);
      if (name === "snapshot" || name === "questions") questions.refresh();
      draw();
    },
    state: link,
  });
}

byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(new FormData(event.target).get("key"));
  watch();
  if (graph.id) graph.choose(graph.id); // its stream was refused, too
});
byId("skip").addEventListener("click", () => byId("filter").focus());
watch();
chooseNamed();
window.addEventListener("hashchange", chooseNamed);
// Redraw regularly, because ages and waiting times grow without events.
setInterval(draw, TICK_MS);
window.addEventListener("resize", () => {
  graph.shape = "";
  draw();
});
