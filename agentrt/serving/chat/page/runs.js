// The running program: its graph, drawn as in the dashboard.

import { byId, h, oncePerFrame, say } from "../dashboard/dom.js";
import { Graph } from "../dashboard/graph.js";
import { ask } from "./api.js";

const TICK_MS = 500;
const REST_MS = 250;
const NOTHING = "The graph of calls and tools grows here during a run.";

export class Runs {
  // `isAsked()` says whether the conversation has an open question.
  constructor(isAsked) {
    this.offset = 0;
    this.turn = 0;
    this.graph = new Graph(oncePerFrame(() => this.graph.draw(this.now())));
    this.graph.stateOf = ({ state }) => (state === "interrupted" && isAsked() ? "waiting for a human" : state);
    const tell = this.graph.tell.bind(this.graph);
    this.graph.tell = (name, body) => {
      this.offset = body.at - performance.now() / 1000;
      tell(name, body);
    };
    setInterval(() => {
      if (this.graph.program?.ended_at === null) this.graph.redraw();
    }, TICK_MS);
  }

  now() {
    return performance.now() / 1000 + this.offset;
  }

  // Shows the last program of a thread, if the server still knows it. Returns whether the thread has a
  // live program.
  async show(thread) {
    const turn = (this.turn += 1);
    const { runs, recent } = await ask("GET", `v1/runs?session=${encodeURIComponent(thread)}`);
    const last = runs.at(-1) ?? recent[0];
    if (last && turn === this.turn) this.graph.show(last);
    return runs.length > 0;
  }

  // Shows the program that begins next, while `waits()` is true.
  async next(thread, waits) {
    while (waits() && !(await this.show(thread))) await new Promise((resolve) => setTimeout(resolve, REST_MS));
  }

  clear() {
    this.turn += 1;
    this.graph.clear();
    say(byId("program-title"), "Execution graph");
    say(byId("program-facts"), "");
    say(byId("node-facts"), "");
    byId("graph").replaceChildren(h("p", { class: "empty" }, NOTHING));
  }
}
