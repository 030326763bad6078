// The checkpoints of a thread, newest first, to which the conversation can go back.

import { byId, h, mark, roving } from "../dashboard/dom.js";
import { ask } from "./api.js";

const MOST = 200; // of one request; older checkpoints are loaded when an edit needs them

export class Checkpoints {
  constructor(choose) {
    this.choose = choose;
    this.states = [];
    this.isWhole = true;
    this.chosen = null;
    this.turn = 0;
    this.stop = roving(byId("checkpoints"), "button");
  }

  clear() {
    this.turn += 1;
    this.states = [];
    this.isWhole = true;
    this.draw();
  }

  // Loads the newest checkpoints, or those that are older than the `known` checkpoints. Returns false
  // if another thread or newer checkpoints were to be shown meanwhile.
  async load(thread, known = []) {
    const turn = (this.turn += 1);
    const before = known.at(-1)?.checkpoint;
    const states = await ask("POST", `threads/${thread}/history`, { limit: MOST, before });
    if (turn !== this.turn) return false;
    this.states = [...known, ...states];
    this.isWhole = states.length < MOST;
    this.draw();
    return true;
  }

  draw() {
    const known = new Map(this.states.map((state) => [state.checkpoint.checkpoint_id, state]));
    const current = this.path(known);
    const rows = this.states.filter((state) => !isInput(state)).map((state) => {
      const id = state.checkpoint.checkpoint_id;
      const parent = known.get(state.parent_checkpoint?.checkpoint_id);
      const messages = state.values?.messages?.length;
      const facts = messages === undefined ? "" : `${messages} message${messages === 1 ? "" : "s"}`;
      const button = h("button", { type: "button", onclick: () => this.choose(state) }, h("span", {}, nameOf(state, parent)), h("small", {}, facts));
      return h("li", { "data-checkpoint": id, "data-current": String(current.has(id)) }, button);
    });
    byId("checkpoints").replaceChildren(...rows);
    byId("no-checkpoints").hidden = rows.length > 0;
    this.mark();
  }

  // The checkpoints that led to the newest checkpoint. Other checkpoints belong to abandoned branches.
  path(known) {
    const path = new Set();
    let state = this.states[0];
    while (state) {
      path.add(state.checkpoint.checkpoint_id);
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
    const find = () => this.states.find(({ checkpoint }) => checkpoint.checkpoint_id === parent.checkpoint_id);
    while (!find() && !this.isWhole) {
      if (!(await this.load(parent.thread_id, this.states))) return undefined;
    }
    return find() ?? null;
  }
}

// A checkpoint whose input the graph has not read yet has the same state as the checkpoint before it.
const isInput = (state) => state.metadata?.source === "input";

function nameOf(state, parent) {
  const { source, step } = state.metadata ?? {};
  if (source === "fork") return "run on from here";
  if (source === "update") return "changed by hand";
  const ran = parent?.next?.join(", ");
  return ran === "__start__" ? "your input" : ran || `step ${step}`;
}
