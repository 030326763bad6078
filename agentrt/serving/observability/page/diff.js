// Two runs side by side, with marks at their differences.

import { byId, count, h, mark, roving, say, seconds } from "./dom.js";
import { clip, drawing, nameOf } from "./drawing.js";

const LEAST_SCALE = 0.5;
const PADDING = 24;
const SIGNS = { same: "", other: "≠ ", only: "+ " };
const TOTALS = {
  state: "state", wall_s: "seconds", nodes: "nodes", calls: "calls", prompt_tokens: "prompt tokens", cached_tokens: "of them cached",
  output_tokens: "output tokens", waiting_s: "waiting, s", service_s: "service, s", preemptions: "preemptions",
};

export class Diff {
  constructor() {
    this.oneStop = roving(byId("pair"), ".node");
  }

  none(why) {
    this.told = null;
    byId("diff").hidden = false;
    say(byId("diff-none"), why);
    this.fill();
  }

  show(told) {
    this.told = told;
    this.what = new Map(told.differences.map(({ node, what }) => [node, what]));
    byId("diff").hidden = false;
    this.fill();
    this.draw();
    this.toFirst();
  }

  // The differences as a list, without the graphs.
  fill() {
    const { told } = this;
    byId("diff-none").hidden = Boolean(told);
    for (const id of ["pair", "node-facts", "differences"]) byId(id).hidden = !told;
    byId("diff").querySelector(".legend").hidden = !told;
    say(byId("diff-facts"), told ? summary(told) : "");
    say(byId("node-facts"), "Point at a node, or go to it with Tab and the arrow keys, to see how it differs.");
    if (told) byId("differences").replaceChildren(...list(told), totals(told.programs));
  }

  draw() {
    if (!this.told) return;
    const sides = this.told.graphs.map(() => h("div", { class: "side" }));
    byId("pair").replaceChildren(...sides);
    const graphs = this.told.graphs.map(({ nodes }) => nodes.map((node) => ({ ...node, id: node.place })));
    // Both graphs have the same scale, so that nodes at the same place are next to each other.
    const room = sides[0].clientWidth - PADDING;
    let scale = 1;
    for (const nodes of graphs) drawing(nodes, { scale: (width) => (scale = Math.min(scale, room / width)) });
    this.drawn = graphs.map((nodes, side) =>
      drawing(nodes, {
        label: `Nodes of ${this.told.programs[side].id}`,
        scale: () => Math.max(LEAST_SCALE, scale),
        show: (place) => this.point(place, side),
      }),
    );
    graphs.forEach((nodes, side) => this.side(sides[side], nodes, side));
    this.oneStop();
  }

  side(box, nodes, side) {
    const { before, after } = this.told.graphs[side];
    const { element, boxes } = this.drawn[side];
    const left = (many, where) => (many ? [h("p", { class: "left" }, `${count(many)} ${where} nodes are not drawn`)] : []);
    const none = nodes.length ? element : h("p", { class: "empty" }, "The run has reached no node, or its nodes were deleted (--journal-keep).");
    box.replaceChildren(h("h3", {}, this.told.programs[side].id), ...left(before, "earlier"), none, ...left(after, "later"));
    for (const node of nodes) {
      const drawn = boxes.get(node.id);
      mark(drawn, "data-kind", node.kind);
      mark(drawn, "data-state", node.state);
      mark(drawn, "data-mark", node.mark);
      mark(drawn, "aria-label", this.tellOf(node));
      const [, name, detail] = drawn.children;
      say(name, clip(SIGNS[node.mark] + nameOf(node), 20));
      say(detail, clip(short(node), 26));
    }
  }

  // Scroll to a little before the first difference.
  toFirst() {
    const first = byId("pair").querySelector('.node:not([data-mark="same"])');
    const box = byId("pair");
    if (first) box.scrollTop += first.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 3;
  }

  point(place, side) {
    for (const { boxes } of this.drawn) {
      for (const [id, box] of boxes) box.toggleAttribute("data-chosen", id === place);
    }
    const node = this.told.graphs[side].nodes.find((one) => one.place === place);
    say(byId("node-facts"), this.tellOf(node));
  }

  tellOf(node) {
    const parts = [`${node.place} ${node.kind} ${nameOf(node)}`, node.state, short(node)];
    if (node.cached_tokens) parts.push(`${count(node.cached_tokens)} cached`);
    parts.push(...(this.what.get(node.place) ?? [node.mark === "same" ? "alike in both" : "differs"]));
    return parts.filter(Boolean).join(" · ");
  }
}

function short(node) {
  const time = node.seconds === null ? "" : seconds(node.seconds);
  const tokens = node.prompt_tokens ? `${count(node.prompt_tokens)} → ${count(node.output_tokens ?? 0)} tok` : "";
  return [time, tokens].filter(Boolean).join(" · ");
}

function summary({ same, all_differences, differences, programs }) {
  const part = differences.length ? `the first difference is at ${differences[0].node}` : "the nodes do not differ";
  const unkept = programs.some(({ content }) => content !== "full") ? "; answers were not recorded, and are not compared" : "";
  return `${count(same)} nodes are alike, ${count(all_differences)} are not: ${part}${unkept}`;
}

function list({ input, differences, all_differences, programs }) {
  const items = differences.map(({ node, what }) => h("li", {}, h("b", {}, node), ` ${what.join("; ")}`));
  if (input) items.unshift(h("li", {}, h("b", {}, "input"), ` ${input}`));
  const more = all_differences - differences.length;
  if (more) items.push(h("li", {}, `and ${count(more)} more nodes: agentrt journal diff JOURNAL ${programs.map(({ id }) => id).join(" ")} --json`));
  return items.length ? [h("h3", {}, "What differs: first run, then the other"), h("ul", {}, ...items)] : [];
}

function totals([one, other]) {
  const cell = (value) => h("td", { class: "number" }, typeof value === "number" && !Number.isInteger(value) ? value.toFixed(2) : value === null ? "–" : `${value}`);
  const rows = Object.entries(TOTALS).map(([name, words]) => h("tr", {}, h("th", { scope: "row" }, words), cell(one[name]), cell(other[name])));
  const head = h("tr", {}, h("td"), h("th", { scope: "col", class: "number" }, one.id), h("th", { scope: "col", class: "number" }, other.id));
  return h("table", {}, h("caption", {}, "Costs of each run"), h("tbody", {}, head, ...rows));
}
