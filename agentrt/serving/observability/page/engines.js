// The engines: replicas with their batch and KV cache, the queue levels, the speed.

import { brief, byId, count, h, mark, say, svg } from "./dom.js";

const REPLICA_STATES = { ready: "done", starting: "waiting", down: "failed", out: "failed" };

// A whole prompt counts in a single step, so each point is the mean of the last seconds.
function smooth(rates) {
  return rates.map(({ at }, index) => {
    const last = rates.slice(Math.max(0, index - 3), index + 1);
    return { at, rate: last.reduce((sum, { rate }) => sum + rate, 0) / last.length };
  });
}

export class Engines {
  constructor(store) {
    this.store = store;
    this.shape = "";
    this.line = svg("path", { fill: "none", stroke: "var(--accent)", "stroke-width": 1.6, "stroke-linejoin": "round", "vector-effect": "non-scaling-stroke" });
    this.area = svg("path", { fill: "var(--accent)", "fill-opacity": 0.13 });
    byId("spark").append(svg("svg", { viewBox: "0 0 60 20", preserveAspectRatio: "none" }, this.area, this.line));
  }

  draw(now) {
    const { replicas, levels } = this.store.engines;
    const shape = JSON.stringify([replicas.map((r) => r.name), levels.map((l) => [l.replica, l.level])]);
    if (shape !== this.shape) this.build(replicas, levels);
    this.shape = shape;
    replicas.forEach((replica, index) => this.replica(byId("replicas").children[index], replica));
    this.levels(levels);
    this.spark(now);
  }

  build(replicas, levels) {
    byId("replicas").replaceChildren(
      ...replicas.map(() =>
        h("div", { class: "replica" }, h("span", { class: "dotted" }), h("span"), h("div", { class: "meter", role: "img" }, h("i")), h("small")),
      ),
    );
    const rows = [h("h3", {}, levels.length ? "Calls by queue level: in the batch, and waiting" : "All queues are empty.")];
    for (const { replica, level } of levels) {
      const name = level === null ? "calls" : `Q${level + 1}`;
      const where = replicas.length > 1 ? ` ${replica}` : "";
      rows.push(h("b", {}, name + where), h("div", { class: "meter", role: "img" }, h("i"), h("i", { class: "waiting" })), h("span"));
    }
    byId("queues").replaceChildren(...rows);
  }

  replica(box, replica) {
    const [name, calls, meter, kv] = box.children;
    mark(name, "data-state", REPLICA_STATES[replica.state] ?? "waiting");
    say(name, replica.state === "ready" ? replica.name : `${replica.name}, ${replica.state}`);
    say(calls, `${replica.running} in the batch · ${replica.waiting} waiting`);
    const used = replica.blocks ? (replica.blocks - replica.free_blocks) / replica.blocks : 0;
    meter.hidden = !replica.blocks;
    meter.firstChild.style.width = `${100 * used}%`;
    const text = replica.blocks ? `KV cache ${Math.round(100 * used)} %, ${count(replica.free_blocks)} of ${count(replica.blocks)} blocks free` : "KV cache not known";
    mark(meter, "aria-label", text);
    say(kv, [text, replica.deaths ? `died ${replica.deaths} ×` : "", replica.last_error].filter(Boolean).join(" · "));
  }

  levels(levels) {
    const most = Math.max(1, ...levels.map((level) => level.running + level.waiting));
    const cells = [...byId("queues").children].slice(1);
    levels.forEach(({ running, waiting }, index) => {
      const [, meter, text] = cells.slice(3 * index, 3 * index + 3);
      meter.children[0].style.width = `${(100 * running) / most}%`;
      meter.children[1].style.width = `${(100 * waiting) / most}%`;
      mark(meter, "aria-label", `${running} in the batch, ${waiting} waiting`);
      say(text, `${running} + ${waiting}`);
    });
  }

  spark(now) {
    const rates = smooth(this.store.rates);
    const most = Math.max(1, ...rates.map(({ rate }) => rate));
    const points = rates.length < 3 ? [] : rates.map(({ at, rate }) => `${(60 - (now - at)).toFixed(2)} ${(19 - (17 * rate) / most).toFixed(2)}`);
    mark(this.line, "d", points.length > 1 ? `M${points.join("L")}` : "");
    const first = rates.length ? (60 - (now - rates[0].at)).toFixed(2) : 0;
    const last = rates.length ? (60 - (now - rates[rates.length - 1].at)).toFixed(2) : 0;
    mark(this.area, "d", points.length > 1 ? `M${first} 20L${points.join("L")}L${last} 20Z` : "");
  }

  rate() {
    const last = smooth(this.store.rates).at(-1);
    return last ? brief(last.rate) : "–";
  }
}
