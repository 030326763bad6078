// LangGraph's JavaScript SDK, as its documentation uses it.
"use strict";
const { Client } = require("@langchain/langgraph-sdk");
const { url, serve } = require("./scenarios.cjs");

const client = new Client({ apiUrl: url, apiKey: null });
const input = { steps: ["in"] };

const all = async (stream) => {
  const events = [];
  for await (const part of stream) events.push(part.event);
  return events;
};

const protocol = async (transport) => {
  const thread = client.threads.stream({ assistantId: "steps", transport });
  await thread.run.start({ input, multitaskStrategy: "enqueue" });
  const output = await thread.output;
  await thread.close();
  return output;
};

serve({
  batch: async () => {
    const [run] = await client.runs.createBatch([{ assistantId: "steps", input, streamMode: "updates" }]);
    return [run.kwargs.stream_mode, await client.runs.join(run.thread_id, run.run_id)];
  },

  join_stream: async () => {
    const { thread_id } = await client.threads.create();
    const run = await client.runs.create(thread_id, "steps", {
      input,
      streamMode: ["updates", "values"],
      streamResumable: true,
    });
    await client.runs.join(thread_id, run.run_id);
    const options = { streamMode: ["updates", "custom"], lastEventId: "-1" };
    return all(client.runs.joinStream(thread_id, run.run_id, options));
  },

  cancel: async () => {
    const { thread_id } = await client.threads.create();
    const run = await client.runs.create(thread_id, "steps", { input, afterSeconds: 3600 });
    await client.runs.cancel(thread_id, run.run_id);
    const { status } = await client.runs.get(thread_id, run.run_id);
    return [status, await client.runs.join(thread_id, run.run_id)];
  },

  store: async (word) => {
    const nothing = await client.store.getItem(["notes"], word);
    const before = Date.now();
    await client.store.putItem(["notes"], word, { n: 1 });
    const item = await client.store.getItem(["notes"], word);
    const age = new Date(item.updatedAt ?? item.updated_at).getTime() - before;
    return [nothing, item.value, age >= -1 && age < 60000];
  },

  protocol: () => protocol("sse"),
  protocol_socket: () => protocol("websocket"),

  // Subscriptions come and go on one connection, and all of them come back with the next.
  protocol_reconnect: async () => {
    const sockets = [];
    const webSocketFactory = (address) => (sockets.push(new WebSocket(address)), sockets.at(-1));
    const thread = client.threads.stream({ assistantId: "ask", transport: "websocket", webSocketFactory });
    const asked = await thread.subscribe({ channels: ["input"] });
    const gone = await thread.subscribe({ channels: ["checkpoints"] });
    await gone.unsubscribe();
    await thread.run.start({ input });
    const events = asked[Symbol.asyncIterator]();
    const question = (await events.next()).value.params.data;
    const closed = new Promise((resolve) => sockets[0].addEventListener("close", resolve));
    sockets[0].close();
    await closed;
    const tree = await thread.agent.getTree();
    await thread.input.respond({ namespace: [], interrupt_id: question.interrupt_id, response: "left" });
    const answered = (await events.next()).value.method;
    await thread.close();
    return [sockets.length, tree.tree.graph_name, answered];
  },

  protocol_answer: async () => {
    const thread = client.threads.stream({ assistantId: "ask" });
    const asked = await thread.subscribe({ channels: ["input"] });
    await thread.run.start({ input });
    let question;
    for await (const event of asked) {
      question = event.params.data;
      break;
    }
    const { interrupt_id } = question;
    await thread.input.respond({ namespace: [], interrupt_id, response: "left" });
    await thread.close();
    const [run] = await client.runs.list(thread.threadId, { limit: 1 });
    return [question.payload, await client.runs.join(thread.threadId, run.run_id)];
  },

  search: async () => {
    const { thread_id } = await client.threads.create({ metadata: { n: 1 } });
    await client.runs.wait(thread_id, "steps", { input });
    const extract = { last: "values.steps[-1]", n: "metadata.n" };
    const [found] = await client.threads.search({ ids: [thread_id], extract });
    return found.extracted;
  },
});
