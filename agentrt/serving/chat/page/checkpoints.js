// The checkpoints of a thread, newest first, to which the conversation can go back.

import { arrange, byId, h, mark, roving, say } from "../dashboard/dom.js";
import { ask } from "./api.js";

// How many checkpoints are loaded at once. Each has all messages up to it, so that a request for all
// checkpoints of a long conversation takes seconds. Older checkpoints are loaded when they are needed.
const NEWEST = 20;
const OLDER = 50;

export class Checkpoints {
  // `failed(error)` is told why the button did not load older checkpoints.
  constructor(choose, failed) {
    this.choose = choose;
    this.states = [];
    this.isWhole = true;
    this.chosen = null;
    this.turn = 0;
    this.stop = roving(byId("checkpoints"), "button");
    byId("older").addEventListener("click", () => this.showOlder().catch(failed));
  }

  clear() {
    this.turn += 1;
    this.states = [];
    this.isWhole = true;
    this.draw();
  }

  // Loads the newest checkpoints. The older checkpoints that are known stay.
  async load(thread) {
    const turn = (this.turn += 1);
    const states = await ask("POST", `threads/${thread}/history`, { limit: NEWEST });
    if (turn !== this.turn) return;
    const last = states.at(-1);
    const at = this.states.findIndex((state) => last && idOf(state) === idOf(last));
    if (at < 0) this.isWhole = states.length < NEWEST;
    this.states = [...states, ...(at < 0 ? [] : this.states.slice(at + 1))];
    this.draw();
  }

  async showOlder() {
    await this.loadOlder();
    // The button is gone when all checkpoints are shown, and the focus goes on in the list.
    if (byId("older").hidden) byId("checkpoints").querySelector("button[tabindex='0']")?.focus();
  }

  // Loads checkpoints that are older than the known checkpoints. Returns false if another thread, newer
  // checkpoints or older checkpoints were to be shown meanwhile. A `load` in progress goes on.
  async loadOlder() {
    const { turn } = this;
    const last = this.states.at(-1);
    const before = last.checkpoint;
    const states = await ask("POST", `threads/${before.thread_id}/history`, { limit: OLDER, before });
    if (turn !== this.turn || last !== this.states.at(-1)) return false;
    this.states.push(...states);
    this.isWhole = states.length < OLDER;
    this.draw();
    return true;
  }

  draw() {
    const known = new Map(this.states.map((state) => [idOf(state), state]));
    const current = this.path(known);
    const drawn = new Map([...byId("checkpoints").children].map((row) => [row.dataset.checkpoint, row]));
    const rows = this.states.filter((state) => !isInput(state)).map((state) => {
      const row = drawn.get(idOf(state)) ?? this.row(idOf(state));
      const [name, facts] = row.firstElementChild.children;
      const messages = state.values?.messages?.length;
      say(name, nameOf(state, known.get(state.parent_checkpoint?.checkpoint_id)));
      say(facts, messages === undefined ? "" : `${messages} message${messages === 1 ? "" : "s"}`);
      mark(row, "data-current", current.has(idOf(state)));
      return row;
    });
    arrange(byId("checkpoints"), rows);
    mark(byId("checkpoints"), "data-whole", this.isWhole);
    byId("older").hidden = this.isWhole;
    byId("no-checkpoints").hidden = rows.length > 0;
    this.mark();
  }

  row(id) {
    const choose = () => this.choose(this.states.find((state) => idOf(state) === id));
    return h("li", { "data-checkpoint": id }, h("button", { type: "button", onclick: choose }, h("span"), h("small")));
  }

  // The checkpoints that led to the newest checkpoint. Other checkpoints belong to abandoned branches.
  path(known) {
    const path = new Set();
    let state = this.states[0];
    while (state) {
      path.add(idOf(state));
      state = known.get(state.parent_checkpoint?.checkpoint_id);
    }
    return path;
  }

  mark(id = this.chosen) {
    this.chosen = id;
    for (const row of byId("checkpoints").children) mark(row.firstElementChild, "aria-current", row.dataset.checkpoint === id);
    this.stop();
  }

  // Returns the state before a message, null before the thread's first message, or undefined if the
  // checkpoints changed during the search.
  async before(message) {
    const has = (state) => state?.values?.messages?.some(({ id }) => id === message);
    let state = this.states.findLast(has) ?? null;
    while (state && (has(state) || isInput(state))) state = await this.parent(state);
    return state;
  }

  async parent({ parent_checkpoint: parent }) {
    if (!parent) return null;
    const find = () => this.states.find((state) => idOf(state) === parent.checkpoint_id);
    while (!find() && !this.isWhole) {
      if (!(await this.loadOlder())) return undefined;
    }
    return find() ?? null;
  }
}

const idOf = ({ checkpoint }) => checkpoint.checkpoint_id;

// A checkpoint whose input the graph has not read yet has the same state as the checkpoint before it.
const isInput = (state) => state.metadata?.source === "input";

function nameOf(state, parent) {
  const { source, step } = state.metadata ?? {};
  if (source === "fork") return "run on from here";
  if (source === "update") return "changed by hand";
  const ran = parent?.next?.join(", ");
  return ran === "__start__" ? "your input" : ran || `step ${step}`;
}
