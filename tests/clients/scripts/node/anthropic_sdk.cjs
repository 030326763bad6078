// Anthropic's Node SDK, as its documentation uses it.
"use strict";
const { Anthropic } = require("@anthropic-ai/sdk");
const { url, model, serve } = require("./scenarios.cjs");

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const tools = [
  {
    name: "get_weather",
    description: "The weather in a city",
    input_schema: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
    },
  },
];

const loop = async (word, ask) => {
  const messages = [{ role: "user", content: `The weather in Paris and Rome, ${word}?` }];
  for (const called = []; ; ) {
    const answer = await ask({ model, max_tokens: 500, messages, tools });
    messages.push({ role: "assistant", content: answer.content });
    const uses = answer.content.filter((block) => block.type === "tool_use");
    if (uses.length === 0) return [called, answer.content[0].text];
    called.push(...uses.map((use) => use.input.city));
    messages.push({
      role: "user",
      content: uses.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: "21 degrees" })),
    });
  }
};

serve({
  messages: async (word) => {
    const messages = [{ role: "user", content: `Say hello, ${word}.` }];
    const answer = await client.messages.create({ model, max_tokens: 100, messages });
    return [answer.content[0].text, answer.stop_reason];
  },

  tools: (word) => loop(word, (body) => client.messages.create(body)),

  tools_stream: (word) => loop(word, (body) => client.messages.stream(body).finalMessage()),

  count_tokens: async (word) => {
    const messages = [{ role: "user", content: `Say hello, ${word}.` }];
    return (await client.messages.countTokens({ model, messages, tools })).input_tokens > 0;
  },
});
