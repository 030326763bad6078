// Where the time of a program went: a bar with a colour for each reason, and the sums.

import { byId, count, h, mark, say, seconds, svg } from "./dom.js";

const TICKS = 5;
const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 };

export class Why {
  constructor() {
    const bar = byId("bar");
    for (const name of ["pointermove", "pointerdown"]) bar.addEventListener(name, (event) => this.point(event));
    bar.addEventListener("keydown", (event) => {
      const by = STEPS[event.key];
      if (!by) return;
      event.preventDefault();
      this.at(Math.max(0, Math.min(this.told.pieces.length - 1, (this.index ?? -1) + by)));
    });
  }

  show(told) {
    this.told = told;
    this.index = null;
    this.words = new Map(told.reasons.map(({ reason, words }) => [reason, words]));
    byId("why").hidden = false;
    this.bar(told);
    const reasons = told.reasons.map((share) => this.row(share, told.wall_s));
    byId("reasons").replaceChildren(...reasons, total(told));
    this.misses(told);
  }

  bar({ pieces, wall_s, all_pieces }) {
    const parts = pieces.map(({ since, until, reason }) => svg("rect", { x: since, width: until - since, height: 1, "data-reason": reason }));
    byId("bar").replaceChildren(svg("svg", { viewBox: `0 0 ${wall_s || 1} 1`, preserveAspectRatio: "none", "aria-hidden": true }, ...parts));
    const times = Array.from({ length: TICKS }, (_, index) => h("span", {}, seconds((wall_s * index) / (TICKS - 1))));
    byId("ticks").replaceChildren(...times);
    say(byId("why-facts"), all_pieces > pieces.length ? `The ${count(all_pieces)} pieces are too many to draw: each hundredth of the time shows its reasons in a row.` : "");
    say(byId("bar-facts"), "Point at the bar, or go along it with the arrow keys.");
    mark(byId("bar"), "aria-valuemax", Math.max(0, pieces.length - 1));
    mark(byId("bar"), "aria-valuenow", 0);
    mark(byId("bar"), "aria-valuetext", "before its first piece");
  }

  point(event) {
    const box = byId("bar").getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.told.wall_s;
    const index = this.told.pieces.findIndex(({ until }) => at < until);
    if (index >= 0) this.at(index);
  }

  at(index) {
    const bar = byId("bar");
    const parts = bar.firstChild.children;
    if (this.index !== null) parts[this.index]?.removeAttribute("data-chosen");
    this.index = index;
    const piece = this.told.pieces[index];
    if (!piece) return;
    mark(parts[index], "data-chosen", "");
    const text = this.tellOf(piece);
    mark(bar, "aria-valuenow", index);
    mark(bar, "aria-valuetext", text);
    say(byId("bar-facts"), text);
  }

  tellOf({ since, until, reason, node, by }) {
    const who = by.map(({ program }) => program).join(", ");
    const what = [this.words.get(reason), who].filter(Boolean).join(" ");
    return [`${seconds(since)} – ${seconds(until)}`, what, node && `node ${node}`, `${seconds(until - since)} long`].filter(Boolean).join(" · ");
  }

  row({ reason, words, seconds: spent, tokens, by, more }, wall_s) {
    const who = by.map((blame) => h("li", {}, ...named(blame)));
    if (more) who.push(h("li", {}, `and ${count(more)} more`));
    return line(h("span", { class: "reason", "data-reason": reason }, words), spent, wall_s ? `${Math.round((100 * spent) / wall_s)}` : "", tokens, h("ul", {}, ...who));
  }

  misses({ misses, all_misses, note, program }) {
    const items = misses.map(({ words }) => h("li", {}, words[0], ...(words[1] ? [h("pre", {}, words.slice(1).join("\n"))] : [])));
    const more = all_misses > misses.length ? `And ${count(all_misses - misses.length)} more: agentrt journal why JOURNAL ${program} --json` : "";
    const head = misses.length ? [h("h3", {}, "Prompts that were not in the cache, though they could have been")] : [];
    const notes = [note, more].filter(Boolean).map((text) => h("p", {}, text));
    byId("misses").replaceChildren(...head, h("ul", {}, ...items), ...notes);
    byId("misses").hidden = !items.length && !notes.length;
  }
}

function line(name, spent, part, tokens, by) {
  const number = (text) => h("td", { class: "number" }, text);
  return h("tr", {}, h("th", { scope: "row" }, name), number(spent.toFixed(2)), number(part), number(tokens ? count(tokens) : ""), h("td", {}, by));
}

const total = ({ reasons, wall_s }) =>
  line("in all", reasons.reduce((sum, share) => sum + share.seconds, 0), wall_s ? "100" : "", 0, "");

// The name of a program links to its page; names in parentheses are not programs.
function named({ program, words }) {
  if (program.startsWith("(")) return [words];
  return [h("a", { href: `?${new URLSearchParams({ program })}` }, program), words.slice(program.length)];
}
