// The execution graph of the selected program, which is drawn while it grows.

import { byId, count, h, mark, roving, say, seconds } from "./dom.js";
import { clip, drawing, nameOf } from "./drawing.js";
import { follow } from "./stream.js";

const MOST_NODES = 400;
const LEAST_SCALE = 0.75;
const HOW = "Point at a node, or go to it with Tab and the arrow keys, to see its times and tokens.";
const OPEN = new Set(["waiting", "running"]);
// A program that has ended in one of these states does not change any more, unless its id is used again.
const ENDED = new Set(["done", "failed", "cancelled"]);

export class Graph {
  constructor(redraw) {
    this.redraw = redraw;
    this.stop = () => {};
    this.program = null;
    this.nodes = [];
    this.drawn = new Map();
    this.shape = "";
    this.facts = "";
    this.pointed = null;
    this.stateOf = (program) => program.state;
    this.oneStop = roving(byId("graph"), ".node");
  }

  choose(id) {
    this.clear();
    this.id = id;
    this.facts = HOW;
    this.follow();
    this.redraw();
  }

  follow() {
    this.stop(); // a stream that found no program begins again when the page is looked at
    this.isOver = false;
    this.stop = follow(`events?program=${encodeURIComponent(this.id)}`, {
      event: (name, body) => this.tell(name, body),
      state: (state) => state === "gone" && this.gone(),
    });
  }

  // Shows a program. If the drawn program has ended, or the server had forgotten it, its id may belong to
  // a later program, or to the same program after a restart of the server.
  show({ id, started_at: at }) {
    if (id !== this.id) this.choose(id);
    else if (this.isOver && at !== this.startedAt) {
      this.startedAt = at;
      this.follow();
    }
  }

  // Clears the graph: no program is selected.
  clear() {
    this.stop();
    Object.assign(this, { id: null, program: null, startedAt: null, nodes: [], shape: "", facts: "", pointed: null });
  }

  gone() {
    this.isOver = true;
    if (!this.program) this.facts = "The server no longer has this program.";
    this.redraw();
  }

  tell(name, body) {
    if (name === "snapshot") this.nodes = [];
    for (const program of body.programs ?? []) {
      this.program = program;
      this.startedAt = program.started_at;
    }
    for (const node of body.nodes ?? []) this.nodes[node.id] = node;
    this.isOver = this.program !== null && this.program.ended_at !== null && ENDED.has(this.program.state);
    if (this.isOver) this.stop(); // its connection is free for other requests
    this.redraw();
  }

  draw(now) {
    const pointed = this.nodes[this.pointed];
    say(byId("node-facts"), pointed ? this.tellOf(pointed) : this.facts);
    if (!this.id) return;
    const { program } = this;
    say(byId("program-title"), this.id);
    say(byId("program-facts"), program ? this.about(program, now) : "");
    const known = this.nodes.filter(Boolean);
    const nodes = known.slice(-MOST_NODES);
    const ids = nodes.map((node) => node.id);
    const shape = `${ids[0]}-${ids[ids.length - 1]}-${ids.length}`;
    if (shape !== this.shape) this.build(nodes, known.length);
    this.shape = shape;
    this.fill(nodes, now);
  }

  about(program, now) {
    const age = seconds((program.ended_at ?? now) - program.started_at);
    const known = this.nodes.filter(Boolean).length;
    const left = known > MOST_NODES ? `last ${MOST_NODES} of ${count(known)} nodes` : `${count(known)} node${known === 1 ? "" : "s"}`;
    return `${this.stateOf(program)} · ${age} · ${left} · critical path ${seconds(program.critical_path_s)}`;
  }

  build(nodes) {
    const box = byId("graph");
    const room = { width: box.clientWidth - 28, height: box.clientHeight - 20 };
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 60;
    const made = drawing(nodes, {
      label: `Nodes of ${this.id}`,
      scale: (width, height) => Math.max(LEAST_SCALE, Math.min(1, room.width / width, Math.max(room.height / height, 0.8))),
      show: (id) => this.point(id),
    });
    this.lines = made.lines;
    this.drawn = made.boxes;
    // The focus stays at its node while the graph grows.
    const focused = box.contains(document.activeElement) ? document.activeElement.dataset.node : undefined;
    if (nodes.length) box.replaceChildren(made.element);
    else box.replaceChildren(h("p", { class: "empty" }, "The program has made no call and used no tool."));
    if (atEnd) box.scrollTop = box.scrollHeight;
    this.oneStop();
    if (focused !== undefined) this.drawn.get(Number(focused))?.focus({ preventScroll: true });
  }

  point(id) {
    this.pointed = id;
    this.redraw();
  }

  fill(nodes, now) {
    const before = this.critical(nodes);
    for (const node of nodes) {
      const box = this.drawn.get(node.id);
      mark(box, "data-state", node.state);
      mark(box, "data-kind", node.kind);
      mark(box, "data-live", OPEN.has(node.state));
      mark(box, "data-pointed", node.id === this.pointed);
      const [, name, detail] = box.children;
      say(name, clip(nameOf(node), 20));
      say(detail, clip(this.short(node, now), 26));
      mark(box, "aria-label", this.tellOf(node));
    }
    for (const { from, to, line } of this.lines ?? []) {
      mark(line, "class", before.get(to) === from ? "edge critical" : "edge");
    }
  }

  // The path with the most service, found from its last node back: the next node is the parent with
  // the longest path. Returns the node before each node of the path.
  critical(nodes) {
    const end = (node) => node.path_s + node.service_s;
    const best = nodes.reduce((a, b) => (a && end(a) >= end(b) ? a : b), null);
    const path = new Map();
    let step = best && end(best) > 0 ? best : null;
    while (step) {
      const parents = step.parents.map((id) => this.nodes[id]).filter(Boolean);
      const parent = parents.reduce((a, b) => (a && end(a) >= end(b) ? a : b), null);
      path.set(step.id, parent?.id);
      step = parent;
    }
    return path;
  }

  short(node, now) {
    const time = seconds((node.ended_at ?? now) - node.created_at);
    if (node.wait || node.progress) return node.wait || node.progress;
    return node.output_tokens ? `${time} · ${node.output_tokens} tok` : time;
  }

  tellOf(node) {
    const parts = [`#${node.id} ${node.kind} ${nameOf(node)}`, node.state];
    if (node.wait) parts.push(node.wait);
    if (node.transport) parts.push(node.transport);
    if (node.attempt > 1) parts.push(`attempt ${node.attempt}`);
    if (node.progress) parts.push(node.progress);
    if (node.replica) parts.push(`on ${node.replica}`);
    if (node.service_s) parts.push(`service ${seconds(node.service_s)}`);
    if (node.waiting_s) parts.push(`waited ${seconds(node.waiting_s)}`);
    if (node.prompt_tokens) parts.push(`${count(node.prompt_tokens)} → ${count(node.output_tokens)} tokens, ${count(node.cached_tokens)} cached`);
    if (node.preemptions) parts.push(`preempted ${node.preemptions} ×`);
    if (node.error) parts.push(node.error);
    return parts.join(" · ");
  }
}
