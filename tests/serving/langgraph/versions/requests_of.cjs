// Prints what a version of LangGraph's JavaScript client can ask: each method, with all its
// options. `NODE_PATH` has the version, which is the first argument. No server answers.
"use strict";
const { Client } = require("@langchain/langgraph-sdk");

const by = `JavaScript ${process.argv[2]}`;
const [thread, run, checkpointId] = ["{thread}", "{run}", "{checkpoint}"];
const checkpoint = { thread_id: thread, checkpoint_ns: "", checkpoint_id: checkpointId };
const config = { tags: ["t"], recursion_limit: 30, configurable: { who: "Ann" } };
const metadata = { m: 1 };
const page = { metadata, limit: 3, offset: 0, sortBy: "created_at", sortOrder: "asc", select: ["metadata"] };
const options = {
  input: { steps: ["in"] }, config, context: { who: "Ann" }, metadata, streamMode: ["values", "updates"],
  streamSubgraphs: true, streamResumable: true, feedbackKeys: ["good"], interruptBefore: ["last"],
  interruptAfter: ["last"], webhook: "http://127.0.0.1:9/hook", strictResume: false,
  multitaskStrategy: "enqueue", onCompletion: "keep", onDisconnect: "continue", afterSeconds: 0,
  ifNotExists: "reject", checkpointDuring: true, durability: "sync", raiseError: false,
  _langsmithTracer: { projectName: "p" }, streamNamespaces: ["n"],
};
const there = [{ ...options, checkpoint }, { ...options, input: undefined, command: { goto: "last" }, checkpointId }];
const supersteps = [{ updates: [{ values: { steps: ["was"] }, asNode: "first" }] }];

const heard = async (target, init) => {
  const { pathname, search } = new URL(target);
  const asked = `${init?.method ?? "GET"} ${decodeURIComponent(pathname + search)}`;
  const body = init?.body ? JSON.parse(init.body) : null;
  process.stdout.write(JSON.stringify({ by, asked, body }) + "\n");
  const type = pathname.endsWith("/stream") ? "text/event-stream" : "application/json";
  return new Response(type === "application/json" ? "{}" : "", { headers: { "content-type": type } });
};

const client = new Client({
  apiUrl: "http://127.0.0.1:9", apiKey: null, callerOptions: { fetch: heard, maxRetries: 0 },
});
const { assistants: a, threads: t, runs: r, store: s } = client;
const assistant = "{assistant}";

const calls = [
  () => a.create({ graphId: "steps", config, context: { who: "Ann" }, metadata, assistantId: assistant, ifExists: "do_nothing", name: "a name", description: "what for" }),
  () => a.update(assistant, { graphId: "steps", config, context: { who: "Ann" }, metadata, name: "a name", description: "what for" }),
  () => a.get(assistant), () => a.getGraph(assistant, { xray: true }), () => a.getSchemas(assistant),
  () => a.getSubgraphs(assistant, { namespace: "first", recurse: true }),
  () => a.search({ ...page, graphId: "steps", name: "a name", includePagination: true }),
  () => a.count({ metadata, graphId: "steps", name: "a name" }),
  () => a.getVersions(assistant, { metadata, limit: 3, offset: 0 }), () => a.setLatest(assistant, 1),
  () => a.delete(assistant, { deleteThreads: false }),
  () => t.create({ metadata, threadId: thread, ifExists: "do_nothing", graphId: "steps", ttl: 60 }),
  () => t.create({ metadata, ifExists: "do_nothing", graphId: "steps", supersteps }),
  () => t.get(thread, { include: ["ttl"] }), () => t.copy(thread),
  () => t.update(thread, { metadata, ttl: 60, returnMinimal: true }), () => t.prune([], { strategy: "delete" }),
  () => t.search({ ...page, ids: [thread], status: "idle", values: { steps: ["in"] }, extract: { a: "values.steps[0]" } }),
  () => t.count({ metadata, values: { steps: ["in"] }, status: "idle" }),
  () => t.getState(thread, undefined, { subgraphs: true }), () => t.getState(thread, checkpoint),
  () => t.getState(thread, checkpointId),
  () => t.updateState(thread, { values: { steps: ["in"] }, checkpoint, asNode: "first" }),
  () => t.updateState(thread, { values: { steps: ["in"] }, checkpointId, asNode: "first" }),
  () => t.getHistory(thread, { limit: 3, before: checkpoint, metadata, checkpoint }),
  () => r.createBatch([{ ...options, streamNamespaces: undefined, _langsmithTracer: undefined, raiseError: undefined, assistantId: "steps" }]),
  ...["create", "wait", "stream"].flatMap((how) => [
    () => r[how](thread, assistant, there[0]), () => r[how](thread, assistant, there[1]), () => r[how](null, assistant, options),
  ]),
  () => r.list(thread, { limit: 3, offset: 0, status: "success", select: ["run_id"] }), () => r.get(thread, run),
  () => r.join(thread, run, { cancelOnDisconnect: false }), () => r.cancel(thread, run, true, "interrupt"),
  () => r.joinStream(thread, run, { streamMode: ["values", "updates"], lastEventId: "-1", cancelOnDisconnect: false }),
  () => r.cancelMany?.({ threadId: thread, runIds: [run], action: "interrupt" }), () => r.delete(thread, run),
  () => s.putItem(["n"], "k", { v: 1 }, { index: ["v"], ttl: 60 }), () => s.getItem(["n"], "k", { refreshTtl: true }),
  () => s.searchItems(["n"], { filter: { v: 1 }, limit: 3, offset: 0, query: "words", refreshTtl: true }),
  () => s.listNamespaces({ prefix: ["n"], suffix: ["n"], maxDepth: 2, limit: 3, offset: 0 }), () => s.deleteItem(["n"], "k"),
  () => t.delete(thread),
];

(async () => {
  for (const call of calls) {
    try {
      const answer = call();
      if (answer?.[Symbol.asyncIterator]) for await (const _ of answer);
      else await answer;
    } catch {
      // Of an answer that says nothing, or a method that this version does not have.
    }
  }
})();
