// OpenAI's Node SDK, as its documentation uses it.
"use strict";
const { OpenAI } = require("openai");
const { url, model, serve } = require("./scenarios.cjs");

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const get_weather = {
  name: "get_weather",
  description: "The weather in a city",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
  },
};

serve({
  chat: async (word) => {
    const messages = [{ role: "user", content: `Say hello, ${word}.` }];
    const answer = await client.chat.completions.create({ model, messages });
    return answer.choices[0].message.content;
  },

  chat_stream: async (word) => {
    const messages = [{ role: "user", content: `Say hello, ${word}.` }];
    let text = "";
    for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
      text += chunk.choices[0]?.delta?.content ?? "";
    }
    return text;
  },

  // The SDK's own loop: it calls the functions and sends their results.
  chat_tools: async (word) => {
    const called = [];
    const tool = {
      type: "function",
      function: {
        ...get_weather,
        parse: JSON.parse,
        function: ({ city }) => {
          called.push(city);
          return "21 degrees";
        },
      },
    };
    const messages = [{ role: "user", content: `The weather in Paris and Rome, ${word}?` }];
    const runner = client.chat.completions.runTools({ model, messages, tools: [tool] });
    return [called, await runner.finalContent()];
  },

  responses: async (word) => {
    const first = await client.responses.create({ model, input: `Say hello, ${word}.`, store: true });
    const second = await client.responses.create({
      model,
      input: "And again.",
      previous_response_id: first.id,
    });
    return [first.output_text, second.output_text];
  },

  responses_tools_stream: async (word) => {
    const input = [{ role: "user", content: `The weather in Paris and Rome, ${word}?` }];
    const tools = [{ type: "function", ...get_weather }];
    for (const called = []; ; ) {
      const stream = client.responses.stream({ model, input, tools });
      const answer = await stream.finalResponse();
      const calls = answer.output.filter((item) => item.type === "function_call");
      if (calls.length === 0) return [called, answer.output_text];
      input.push(...answer.output.map(({ parsed_arguments, ...item }) => item));
      for (const { call_id, arguments: given } of calls) {
        called.push(JSON.parse(given).city);
        input.push({ type: "function_call_output", call_id, output: "21 degrees" });
      }
    }
  },

  leave: async (word) => {
    const messages = [{ role: "user", content: `Say something long, ${word}.` }];
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    for await (const chunk of stream) {
      const text = chunk.choices[0]?.delta?.content;
      if (text) return text; // leaving the loop closes the stream
    }
  },
});
