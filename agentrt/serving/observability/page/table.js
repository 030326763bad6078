// The table of programs: filtered by state and text, sorted, and shown in pages.

import { arrange, byId, brief, count, h, mark, roving, say, seconds } from "./dom.js";

const ROWS = 100;
const STATES = ["running", "waiting", "in tool", "waiting for an event", "waiting for a human", "between calls", "stale"];

const waited = (program, now) =>
  program.waited_s + program.waiting_calls * Math.max(0, now - program.waiting_since);
const age = (program, now) => (program.ended_at ?? now) - program.started_at;

// Name, heading, sort key, whether it is a number. The State column also has the reason of a wait.
const COLUMNS = [
  ["id", "Program", (p) => p.started_at, false],
  ["state", "State", (p, now, store) => `${store.stateOf(p)} ${store.waitOf(p)}`, false],
  ["service", "Service", (p) => p.attained_s, true],
  ["waiting", "Waiting", waited, true],
  ["path", "Critical path", (p) => p.critical_path_s, true],
  ["calls", "Calls", (p) => p.calls + p.open_calls, true],
  ["tokens", "Tokens", (p) => p.prompt_tokens + p.output_tokens, true],
  ["age", "Age", age, true],
];

export class Table {
  constructor(store, choose, redraw) {
    Object.assign(this, { store, choose, redraw });
    this.sort = { column: 0, down: true };
    this.only = "all";
    this.text = "";
    this.offset = 0;
    this.chosen = null;
    this.rows = new Map();
    this.oneStop = roving(byId("rows"), "button");
    this.head();
    this.tools();
  }

  head() {
    COLUMNS.forEach(([name, title, , number], index) => {
      const button = h("button", { type: "button", onclick: () => this.sortBy(index) }, title);
      byId("columns").append(h("th", { role: "columnheader", scope: "col", class: number ? "number" : null, "data-column": name }, button));
    });
    this.markSort();
  }

  sortBy(column) {
    const again = this.sort.column === column;
    this.sort = { column, down: again ? !this.sort.down : COLUMNS[column][3] || column === 0 };
    this.markSort();
    this.redraw();
  }

  markSort() {
    [...byId("columns").children].forEach((cell, index) => {
      if (index !== this.sort.column) cell.removeAttribute("aria-sort");
      else cell.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
    });
  }

  tools() {
    this.chips = ["all", "live", ...STATES, "ended"].map((name) => {
      const chip = h("button", { type: "button", "data-only": name, "data-state": name, onclick: () => this.show(name) });
      byId("states").append(chip);
      return chip;
    });
    byId("filter").addEventListener("input", (event) => {
      this.text = event.target.value.trim().toLowerCase();
      this.offset = 0;
      this.redraw();
    });
    byId("rows").addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) this.choose(row.dataset.program);
    });
    this.label = h("span", { role: "status" });
    this.back = h("button", { type: "button", onclick: () => this.turn(-ROWS) }, "‹ back");
    this.next = h("button", { type: "button", onclick: () => this.turn(ROWS) }, "next ›");
    byId("pages").append(this.label, this.back, this.next);
  }

  show(name) {
    this.only = name;
    this.offset = 0;
    this.redraw();
  }

  turn(by) {
    this.offset += by;
    byId("rows").closest(".scroll").scrollTop = 0;
    this.redraw();
  }

  matches(program) {
    const { only, text } = this;
    if (only === "live" && !this.store.isLive(program)) return false;
    if (only === "ended" && this.store.isLive(program)) return false;
    if (STATES.includes(only) && this.store.stateOf(program) !== only) return false;
    if (!text) return true;
    const { id, type, tenant, session } = program;
    return [id, type, tenant, session ?? "", this.store.wordsOf(program)].some((field) => field.toLowerCase().includes(text));
  }

  draw() {
    const now = this.store.now();
    const programs = [...this.store.programs.values()];
    this.count(programs);
    this.tenants = new Set(programs.map((program) => program.tenant)).size;
    const chosen = programs.filter((program) => this.matches(program));
    const value = COLUMNS[this.sort.column][2];
    const sign = this.sort.down ? -1 : 1;
    const keys = new Map(chosen.map((program) => [program, value(program, now, this.store)]));
    const compare = (a, b) => (keys.get(a) < keys.get(b) ? -sign : keys.get(a) > keys.get(b) ? sign : 0);
    // Live programs come first in every sort order.
    chosen.sort((a, b) => this.store.isLive(b) - this.store.isLive(a) || compare(a, b));
    this.offset = Math.max(0, Math.min(this.offset, Math.floor((chosen.length - 1) / ROWS) * ROWS));
    const shown = chosen.slice(this.offset, this.offset + ROWS);
    this.place(shown, now);
    this.foot(shown.length, chosen.length);
    byId("none").hidden = shown.length > 0;
    say(byId("none"), programs.length ? "No program matches this selection now." : "No programs yet. They appear here as they begin.");
  }

  count(programs) {
    const counts = { all: programs.length, live: 0, ended: 0 };
    for (const program of programs) {
      const isLive = this.store.isLive(program);
      const state = this.store.stateOf(program);
      counts[isLive ? "live" : "ended"] += 1;
      if (isLive) counts[state] = (counts[state] ?? 0) + 1;
    }
    for (const chip of this.chips) {
      const name = chip.dataset.only;
      const of = counts[name] ?? 0;
      chip.hidden = STATES.includes(name) && !of && this.only !== name;
      mark(chip, "aria-pressed", this.only === name);
      if (!chip.firstChild) chip.append(`${name} `, h("b"));
      say(chip.lastChild, count(of));
    }
  }

  // Rows are kept and only their content changes, so that focus and selection stay.
  place(shown, now) {
    const wanted = new Set(shown.map((program) => program.id));
    for (const id of this.rows.keys()) {
      if (!wanted.has(id)) this.rows.delete(id);
    }
    const rows = shown.map((program) => {
      let row = this.rows.get(program.id);
      if (!row) this.rows.set(program.id, (row = this.row(program)));
      this.fill(row, program, now);
      return row;
    });
    arrange(byId("rows"), rows);
    this.oneStop();
  }

  row(program) {
    const name = h("button", { type: "button", title: program.id }, program.id);
    const first = h("td", { role: "cell" }, name, h("small"), h("p", { class: "words", dir: "auto" }));
    const state = h("td", { role: "cell", class: "at-state" }, h("span", { class: "dotted" }), h("p", { class: "at-wait", dir: "auto" }));
    const numbers = COLUMNS.slice(2).map(([, title]) => h("td", { role: "cell", class: "number", "data-title": title }));
    return h("tr", { role: "row", "data-program": program.id }, first, state, ...numbers);
  }

  fill(row, program, now) {
    const current = this.store.stateOf(program);
    const words = this.store.wordsOf(program);
    const why = this.store.waitOf(program);
    mark(row, "data-state", current);
    mark(row, "data-live", this.store.isLive(program));
    mark(row.querySelector("button"), "aria-current", program.id === this.chosen);
    const [name, state, service, waiting, path, calls, tokens, old] = row.children;
    say(name.children[1], this.tenants > 1 ? program.tenant : "");
    say(name.lastChild, words);
    mark(name.lastChild, "title", words);
    say(state.firstChild, current);
    say(state.lastChild, why);
    mark(state.lastChild, "title", why);
    say(service, seconds(program.attained_s));
    say(waiting, seconds(waited(program, now)));
    say(path, seconds(program.critical_path_s));
    say(calls, program.open_calls ? `${program.calls} + ${program.open_calls}` : `${program.calls}`);
    say(tokens, `${brief(program.prompt_tokens)} → ${brief(program.output_tokens)}`);
    say(old, seconds(this.store.waits(program) ? now - program.started_at : age(program, now)));
  }

  foot(rows, of) {
    const first = this.offset + 1;
    say(this.label, of > rows ? `showing ${count(first)}–${count(this.offset + rows)} of ${count(of)}` : `${count(of)} shown`);
    this.back.hidden = this.next.hidden = of <= ROWS;
    this.back.disabled = this.offset === 0;
    this.next.disabled = this.offset + rows >= of;
  }
}
