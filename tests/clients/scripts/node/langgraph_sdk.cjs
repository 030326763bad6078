// The streaming protocol of LangGraph's JavaScript SDK. All else of it is in langgraph_corpus.cjs.
"use strict";
const { Client } = require("@langchain/langgraph-sdk");
const { url, serve } = require("./scenarios.cjs");

const client = new Client({ apiUrl: url, apiKey: null });
const input = { steps: ["in"] };

const protocol = async (transport) => {
  const thread = client.threads.stream({ assistantId: "steps", transport });
  await thread.run.start({ input, multitaskStrategy: "enqueue" });
  const output = await thread.output;
  await thread.close();
  return output;
};

serve({
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
});
