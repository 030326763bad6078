// The list of conversations, the last one first.

import { byId, h, mark, say } from "../dashboard/dom.js";
import { ask } from "./api.js";
import { textOf } from "./conversation.js";

const MOST = 100;
const STATES = { busy: "running", interrupted: "waiting for a human", error: "failed", idle: "done" };
const IN_WORDS = { busy: "runs", interrupted: "asks you", error: "failed", idle: "" };

export class Threads {
  constructor(choose) {
    this.choose = choose;
    this.chosen = null;
    this.turn = 0;
  }

  async refresh() {
    const turn = (this.turn += 1);
    const found = await ask("POST", "threads/search", {
      limit: MOST,
      sort_by: "updated_at",
      sort_order: "desc",
      select: ["thread_id", "status", "updated_at", "metadata"],
      extract: { title: "values.messages[0].content" },
    });
    if (turn !== this.turn) return;
    this.draw(found.filter((thread) => thread.metadata?.graph_id));
  }

  draw(threads) {
    const rows = new Map([...byId("threads").children].map((row) => [row.dataset.thread, row]));
    byId("threads").replaceChildren(...threads.map((thread) => this.fill(rows.get(thread.thread_id) ?? this.row(thread), thread)));
    this.mark();
  }

  row({ thread_id: id }) {
    const button = h("button", { type: "button", onclick: () => this.choose(id) }, h("span", { class: "dotted" }), h("small"));
    return h("li", { "data-thread": id }, button);
  }

  fill(row, { status, updated_at: at, metadata, extracted }) {
    const [name, facts] = row.firstElementChild.children;
    mark(name, "data-state", STATES[status] ?? "done");
    say(name, textOf(extracted?.title ?? "").slice(0, 80) || metadata.graph_id);
    say(facts, [metadata.graph_id, IN_WORDS[status], ago(at)].filter(Boolean).join(" · "));
    return row;
  }

  mark(id = this.chosen) {
    this.chosen = id;
    for (const row of byId("threads").children) mark(row.firstElementChild, "aria-current", row.dataset.thread === id);
  }
}

function ago(time) {
  const minutes = Math.max(0, (Date.now() - new Date(time).getTime()) / 60000);
  if (minutes < 1) return "now";
  if (minutes < 60) return `${Math.floor(minutes)} min ago`;
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ago`;
  return new Date(time).toLocaleDateString();
}
