// What the JavaScript client asks of a server, for the corpus of tests/serving/langgraph: each
// scenario gives its requests and what came back, as they went over the wire.
"use strict";
const { randomUUID } = require("node:crypto");
const { Client } = require("@langchain/langgraph-sdk");
const { url, serve } = require("./scenarios.cjs");

const IN = { steps: ["in"] };
const HI = { messages: [{ role: "user", content: "hi", id: "u1" }] };
const NOBODY = "00000000-0000-4000-8000-000000000000";
let heard = [];

const listening = async (target, init) => {
  const { pathname, search } = new URL(target);
  const one = { asked: `${init?.method ?? "GET"} ${pathname}${search}` };
  heard.push(one);
  const response = await fetch(target, init);
  one.status = response.status;
  one.headers = Object.fromEntries(response.headers);
  one.body = response.clone().text().catch(() => "");
  return response;
};

const c = new Client({
  apiUrl: url,
  apiKey: process.env.AGENTRT_KEY || null,
  callerOptions: { fetch: listening, maxRetries: 0 },
});

const all = async (parts) => {
  for await (const _ of parts);
};

// What a server may refuse: what it says is in the record.
const refused = async (...asked) => {
  for (const one of asked) await one().catch(() => undefined);
};

const thread = async (payload) => (await c.threads.create(payload)).thread_id;

const scenarios = {
  js_assistants: async () => {
    const given = randomUUID();
    const made = await c.assistants.create({ graphId: "memory", metadata: { js: 1 }, name: "js one" });
    const key = made.assistant_id;
    await c.assistants.create({
      graphId: "memory",
      assistantId: given,
      config: { configurable: { who: "Ann" }, tags: ["t"], recursion_limit: 9 },
      description: "of Ann",
      ifExists: "do_nothing",
    });
    await c.assistants.create({ graphId: "memory", assistantId: given, ifExists: "do_nothing" });
    await c.assistants.get(given);
    await c.assistants.update(key, { graphId: "memory", metadata: { b: 2 }, name: "js two" });
    await c.assistants.update(key, { context: { who: "Zoe" } });
    await c.assistants.getVersions(key);
    await c.assistants.getVersions(key, { limit: 1, offset: 1 });
    await c.assistants.setLatest(key, 1);
    await c.assistants.getGraph("nested", { xray: true });
    await c.assistants.getGraph("steps");
    await c.assistants.getSchemas(key);
    await c.assistants.getSubgraphs(key, { recurse: true });
    await c.assistants.search({ metadata: { js: 1 }, limit: 5 });
    await c.assistants.search({
      metadata: { js: 1 }, sortBy: "name", sortOrder: "asc", select: ["name"], includePagination: true,
    });
    await c.assistants.count({ metadata: { js: 1 } });
    await c.assistants.delete(key);
    await c.assistants.delete(given, { deleteThreads: false });
    await refused(
      () => c.assistants.get(key),
      () => c.assistants.create({ graphId: "no_such_graph" }),
      () => c.assistants.getGraph("no_such_graph"),
      () => c.assistants.setLatest(NOBODY, 1),
    );
  },

  js_threads: async () => {
    const key = await thread({ metadata: { js: "t" } });
    await c.threads.get(key);
    await c.threads.create({ threadId: key, ifExists: "do_nothing" });
    await refused(() => c.threads.create({ threadId: key, ifExists: "raise" }));
    await c.threads.update(key, { metadata: { b: 2 } });
    await c.threads.update(key, { metadata: { b: 3 }, returnMinimal: true });
    await c.runs.wait(key, "steps", { input: IN });
    await c.threads.search({ metadata: { js: "t" } });
    await c.threads.search({ metadata: { js: "t" }, sortBy: "updated_at", sortOrder: "asc", limit: 1 });
    await c.threads.search({ ids: [key], select: ["thread_id", "status"], status: "idle" });
    await c.threads.search({ ids: [key], extract: { last: "values.steps[-1]" } });
    await c.threads.count({ metadata: { js: "t" } });
    const copy = await c.threads.copy(key);
    await c.threads.getState(copy.thread_id);
    const past = [
      { updates: [{ values: { steps: ["was"] }, asNode: "__input__" }] },
      { updates: [{ values: { steps: ["then"] }, asNode: "first" }] },
    ];
    const made = await thread({ graphId: "steps", supersteps: past });
    await c.threads.getState(made);
    await c.threads.prune([copy.thread_id]);
    await c.threads.delete(key);
    await refused(
      () => c.threads.get(key),
      () => c.threads.delete(key),
      () => c.threads.copy(NOBODY),
      () => c.threads.getState(key),
    );
  },

  js_states: async () => {
    const key = await thread();
    await c.runs.wait(key, "nested", { input: IN });
    await c.threads.getState(key, undefined, { subgraphs: true });
    const past = await c.threads.getHistory(key);
    await c.threads.getHistory(key, { limit: 1, checkpoint: { checkpoint_ns: "" } });
    await c.threads.getState(key, past[1].checkpoint);
    await c.threads.getState(key, past[1].checkpoint.checkpoint_id);
    const { checkpoint } = await c.threads.updateState(key, { values: { steps: ["me"] }, asNode: "first" });
    await c.threads.updateState(key, { values: { steps: ["fork"] }, checkpoint: past[1].checkpoint });
    await c.threads.updateState(key, { values: null, asNode: "first", checkpointId: checkpoint.checkpoint_id });
    await c.runs.wait(key, "nested", { input: null });
    await c.runs.wait(key, "nested", { input: null, checkpoint: past[1].checkpoint });
    await c.runs.wait(key, "nested", { input: IN, checkpointId: past[1].checkpoint.checkpoint_id });
    await refused(
      () => c.threads.patchState(key, { patched: 1 }),
      () => c.threads.updateState(key, { values: { steps: [] }, asNode: "no_such_node" }),
      () => c.threads.getHistory(NOBODY),
    );
  },

  js_runs: async () => {
    const key = await thread();
    const run = await c.runs.create(key, "steps", {
      input: IN, metadata: { js: 1 }, config: { tags: ["a"], recursion_limit: 30 }, durability: "async",
      multitaskStrategy: "enqueue", ifNotExists: "create", streamMode: ["updates"], streamSubgraphs: false,
    });
    await c.runs.join(key, run.run_id);
    await c.runs.get(key, run.run_id);
    await c.runs.list(key, { limit: 1, offset: 0, status: "success" });
    await c.runs.wait(key, "memory", { input: { steps: [] }, context: { who: "js" } });
    await c.runs.wait(null, "steps", { input: IN, onCompletion: "delete" });
    await c.runs.wait(null, "fail", { input: IN, raiseError: false });
    await refused(() => c.runs.wait(null, "fail", { input: IN }));
    const [one] = await c.runs.createBatch([{ assistantId: "steps", input: IN, streamMode: "updates" }]);
    const later = await c.runs.create(key, "steps", { input: IN, afterSeconds: 3600 });
    await c.runs.cancel(key, later.run_id);
    await c.runs.get(key, later.run_id);
    const last = await c.runs.create(key, "steps", { input: IN, afterSeconds: 3600 });
    await c.runs.cancelMany({ threadId: key, runIds: [last.run_id] });
    await c.runs.get(key, last.run_id);
    await c.runs.delete(key, run.run_id);
    await refused(
      () => c.runs.get(key, run.run_id),
      () => c.runs.wait(key, "no_such_graph", { input: IN }),
      () => c.runs.wait(NOBODY, "steps", { input: IN }),
      () => c.runs.wait(key, "steps", { input: IN, multitaskStrategy: "panic" }),
      () => c.runs.cancel(key, run.run_id, true, "rollback"),
    );
  },

  js_streams: async () => {
    const key = await thread();
    for (const streamMode of [
      "values", "updates", "messages", "messages-tuple", "custom", "tasks",
      ["values", "updates", "custom"], ["messages-tuple", "values"],
    ]) {
      await all(c.runs.stream(key, "chat", { input: HI, streamMode }));
    }
    await all(c.runs.stream(key, "nested", { input: IN, streamMode: ["updates"], streamSubgraphs: true }));
    await all(c.runs.stream(null, "steps", { input: IN, streamMode: ["updates"], onDisconnect: "cancel" }));
    await all(c.runs.stream(key, "fail", { input: IN, streamMode: ["values"] })).catch(() => undefined);
    const run = await c.runs.create(key, "steps", {
      input: IN, streamMode: ["updates", "values"], streamResumable: true,
    });
    await c.runs.join(key, run.run_id);
    await all(c.runs.joinStream(key, run.run_id, { lastEventId: "-1" }));
    await all(c.runs.joinStream(key, run.run_id, { lastEventId: "-1", streamMode: ["updates", "custom"] }));
    await all(c.runs.joinStream(key, run.run_id));
  },

  js_interrupts: async () => {
    const key = await thread();
    await all(c.runs.stream(key, "ask", { input: IN, streamMode: ["values", "updates"] }));
    await c.threads.get(key);
    await all(c.runs.stream(key, "ask", { command: { resume: "left" }, streamMode: ["updates"] }));
    await c.runs.wait(key, "steps", { input: IN, interruptBefore: ["middle"] });
    await c.threads.getState(key);
    await c.runs.wait(key, "steps", { input: null, interruptAfter: "*" });
    await c.runs.wait(key, "steps", { command: { goto: "last", update: { steps: ["mine"] } } });
    await c.runs.wait(key, "steps", { command: { goto: [{ node: "last", input: { steps: ["sent"] } }] } });
    await c.threads.getHistory(key, { limit: 2, metadata: { source: "loop" } }).catch(() => undefined);
  },

  js_store: async () => {
    await c.store.getItem(["js"], "k");
    await c.store.putItem(["js"], "k", { v: 1 });
    await c.store.putItem(["js", "sub"], "i", { v: 2 }, { index: false });
    await c.store.getItem(["js"], "k", { refreshTtl: true });
    await c.store.searchItems(["js"], { filter: { v: 1 }, limit: 3 });
    await c.store.listNamespaces({ prefix: ["js"], maxDepth: 2 });
    await c.store.deleteItem(["js"], "k");
    await c.store.searchItems(["js", "sub"]);
  },
};

const recorded = (scenario) => async () => {
  heard = [];
  await scenario();
  return Promise.all(heard.map(async (one) => ({ ...one, body: await one.body })));
};

serve(Object.fromEntries(Object.entries(scenarios).map(([name, one]) => [name, recorded(one)])));
