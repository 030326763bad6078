// The text of an empty conversation: what this page is, and what to type.

import { h } from "../dashboard/dom.js";

const HOW = [
  h("p", {}, "To talk to an agent, start the server with a graph or a program, and load this page again:"),
  h("pre", {}, "agentrt serve langgraph.json\nagentrt serve my_agent.py"),
];

export function welcome(graph, isChat) {
  if (!graph) return [h("h3", {}, "Neither a model nor an agent is served"), ...HOW];
  if (graph.isModel) {
    return [
      h("h3", {}, `Talk to ${graph.name}`),
      h("p", {}, "Write a message below. The model answers word by word. This browser keeps the conversation; the server does not."),
      ...HOW,
    ];
  }
  const first = isChat
    ? "Write a message below. The answer appears word by word as the model makes it."
    : "Give its input below. Its steps and its result appear here.";
  return [
    h("h3", {}, `Talk to ${graph.name}`),
    ...(graph.description ? [h("p", {}, graph.description)] : []),
    h(
      "ul",
      {},
      h("li", {}, first),
      h("li", {}, "Tool calls and questions to you appear in the conversation. A question waits for you, also when you close this page."),
      h("li", {}, "The panel “What runs” shows the graph of all calls. Choose a checkpoint there, or edit your message, to continue from an earlier point."),
    ),
  ];
}
