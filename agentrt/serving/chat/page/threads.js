// The list of conversations, newest first.

import { arrange, byId, h, mark, roving, say } from "../dashboard/dom.js";
import { ask } from "./api.js";
import { textOf, titleOf } from "./conversation.js";
import { modelChats } from "./models.js";
import { runsOf } from "./past.js";

const MOST = 100;
const STATES = { busy: "running", interrupted: "waiting for a human", error: "failed", idle: "done" };
const IN_WORDS = { busy: "runs", interrupted: "asks you", error: "failed", idle: "" };

export class Threads {
  constructor(choose) {
    this.choose = choose;
    this.chosen = null;
    this.turn = 0;
    this.titles = new Map();
    this.stop = roving(byId("threads"), "button");
  }

  async refresh() {
    const turn = (this.turn += 1);
    const threads = await ask("POST", "threads/search", {
      limit: MOST,
      sort_by: "updated_at",
      sort_order: "desc",
      select: ["thread_id", "status", "updated_at", "metadata"],
      extract: { title: "values.messages[0].content" },
    });
    if (turn !== this.turn) return;
    const own = threads.filter((thread) => thread.metadata?.graph_id);
    const all = [...own, ...modelChats()].sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1));
    this.draw(all);
    await this.find(own, turn);
    if (turn === this.turn) this.draw(all);
  }

  // A conversation that has neither a title nor messages has the input of its first run as its title.
  async find(threads, turn) {
    for (const thread of threads) {
      const { thread_id: id } = thread;
      if (turn !== this.turn) return;
      if (this.titles.has(id) || this.nameOf(thread)) continue;
      const runs = await runsOf(id).catch(() => null);
      if (runs) this.titles.set(id, titleOf(runs.findLast(({ kwargs }) => kwargs.input !== null && kwargs.input !== undefined)?.kwargs.input));
    }
  }

  nameOf({ thread_id: id, metadata, extracted }) {
    const title = typeof metadata.title === "string" ? metadata.title : "";
    return title.slice(0, 80) || textOf(extracted?.title ?? "").slice(0, 80) || this.titles.get(id);
  }

  draw(threads) {
    const rows = new Map([...byId("threads").children].map((row) => [row.dataset.thread, row]));
    arrange(byId("threads"), threads.map((thread) => this.fill(rows.get(thread.thread_id) ?? this.row(thread), thread)));
    this.mark();
  }

  row({ thread_id: id }) {
    const button = h("button", { type: "button", onclick: () => this.choose(id) }, h("span", { class: "dotted" }, h("bdi")), h("small"));
    return h("li", { "data-thread": id }, button);
  }

  fill(row, thread) {
    const { status, updated_at: at, metadata } = thread;
    const [name, facts] = row.firstElementChild.children;
    mark(name, "data-state", STATES[status] ?? "done");
    say(name.firstChild, this.nameOf(thread) || metadata.graph_id);
    say(facts, [metadata.graph_id, IN_WORDS[status], ago(at)].filter(Boolean).join(" · "));
    return row;
  }

  mark(id = this.chosen) {
    this.chosen = id;
    for (const row of byId("threads").children) mark(row.firstElementChild, "aria-current", row.dataset.thread === id);
    this.stop();
  }
}

function ago(time) {
  const minutes = Math.max(0, (Date.now() - new Date(time).getTime()) / 60000);
  if (minutes < 1) return "now";
  if (minutes < 60) return `${Math.floor(minutes)} min ago`;
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ago`;
  return new Date(time).toLocaleDateString();
}
