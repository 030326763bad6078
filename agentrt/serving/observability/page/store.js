// What the page knows: programs, the calls of the last minutes, the engines.

const KEPT_ENDED = 300;
const KEPT_S = 330;
const RATE_S = 60;

export const ENDED = new Set(["done", "failed", "cancelled", "interrupted"]);
export const isLive = (program) => program.ended_at === null;

export class Store {
  constructor() {
    this.clear();
  }

  clear() {
    this.programs = new Map();
    this.calls = new Map();
    this.engines = { up: true, replicas: [], levels: [] };
    this.rates = [];
    this.offset = 0;
    this.work = null;
    this.finishedTokens = 0;
  }

  // The server's clock now, in seconds.
  now() {
    return performance.now() / 1000 + this.offset;
  }

  snapshot(body) {
    const rates = this.rates;
    this.clear();
    this.rates = rates;
    this.change(body);
  }

  change(body) {
    this.offset = body.at - performance.now() / 1000;
    for (const program of body.programs) this.put(program);
    for (const node of body.nodes) {
      if (node.kind === "call") this.calls.set(`${node.program}/${node.id}`, node);
    }
    if (body.engines) this.engines = body.engines;
    this.forget(body.at);
  }

  put(program) {
    const before = this.programs.get(program.id);
    this.finishedTokens += program.output_tokens - (before ? before.output_tokens : program.output_tokens);
    if (!isLive(program)) this.programs.delete(program.id); // the latest to end comes last
    this.programs.set(program.id, program);
  }

  // Tokens per second: as the engines count them, else those of calls that ended.
  measure(at) {
    const counted = this.engines.replicas.map((replica) => replica.computed_tokens);
    const known = counted.length > 0 && counted.every((tokens) => tokens !== null);
    const work = known ? counted.reduce((sum, tokens) => sum + tokens, 0) : this.finishedTokens;
    if (this.work && at - this.work.at < 0.9) return;
    if (this.work && work >= this.work.work) {
      this.rates.push({ at, rate: (work - this.work.work) / (at - this.work.at) });
    }
    this.work = { at, work: Math.max(work, 0) };
    while (this.rates.length && this.rates[0].at < at - RATE_S) this.rates.shift();
  }

  forget(at) {
    for (const [key, call] of this.calls) {
      if (call.ended_at !== null && call.ended_at < at - KEPT_S) this.calls.delete(key);
    }
    let over = -KEPT_ENDED;
    for (const program of this.programs.values()) over += !isLive(program);
    if (over <= 0) return;
    for (const [id, program] of this.programs) {
      if (over > 0 && !isLive(program)) {
        this.programs.delete(id);
        over -= 1;
      }
    }
  }
}
