// The data of the page: programs, the calls of the last minutes, and the engines.

const KEPT_ENDED = 300;
const KEPT_S = 330;
const RATE_S = 60;

const HUMAN = "waiting for a human";

export class Store {
  constructor() {
    this.asking = new Map(); // the text of the open question by its thread
    this.clear();
  }

  clear() {
    this.programs = new Map();
    this.sessions = new Map(); // by session: the last program, and the words of the first program that has any
    this.calls = new Map();
    this.engines = { up: true, replicas: [], levels: [] };
    this.rates = [];
    this.offset = 0;
    this.work = null;
    this.finishedTokens = 0;
  }

  // The current time of the server's clock, in seconds.
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

  // A program that returned with a question waits for a human while its thread has the question.
  waits(program) {
    const { state, session } = program;
    return state === "interrupted" && this.asking.has(session) && this.sessions.get(session)?.last === program.id;
  }

  isLive(program) {
    return program.ended_at === null || this.waits(program);
  }

  stateOf(program) {
    return this.waits(program) ? HUMAN : program.state;
  }

  waitOf(program) {
    return program.error ?? (this.waits(program) ? this.asking.get(program.session) : program.wait);
  }

  // The first words of a program's input. A program that continues a thread has the thread's words.
  wordsOf(program) {
    return this.sessions.get(program.session)?.words || program.first_words || "";
  }

  // The name of a question's asker for people: its type or id, and the first words of its input.
  askerOf({ program, thread, type }) {
    const known = thread ? this.sessions.get(thread)?.words : this.wordsOf(this.programs.get(program) ?? {});
    return [program ?? type, known || (thread ? `thread ${thread.slice(0, 8)}` : "")].filter(Boolean).join(" · ");
  }

  noteSession({ id, session, started_at: at, first_words: words }) {
    if (session === null) return;
    const known = this.sessions.get(session) ?? { last: id, lastAt: at, words: "", wordsAt: Infinity };
    if (at >= known.lastAt) Object.assign(known, { last: id, lastAt: at });
    if (words && at < known.wordsAt) Object.assign(known, { words, wordsAt: at });
    this.sessions.set(session, known);
  }

  put(program) {
    const before = this.programs.get(program.id);
    this.finishedTokens += program.output_tokens - (before ? before.output_tokens : program.output_tokens);
    this.noteSession(program);
    if (program.ended_at !== null) this.programs.delete(program.id); // the program that ended last comes last
    this.programs.set(program.id, program);
  }

  // Tokens per second: from the engines' counters, or else from the calls that ended.
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
    for (const program of this.programs.values()) over += !this.isLive(program);
    if (over <= 0) return;
    for (const [id, program] of this.programs) {
      if (over > 0 && !this.isLive(program)) {
        this.programs.delete(id);
        over -= 1;
      }
    }
    const sessions = new Set([...this.programs.values()].map(({ session }) => session));
    for (const session of this.sessions.keys()) {
      if (!sessions.has(session)) this.sessions.delete(session);
    }
  }
}
