"""vLLM's own front end on agentrt's engines: requests are rendered and outputs parsed as in vLLM.

- `model_frontend` is the front end of one model, and keeps long prompts from delaying short ones.
  `models` chooses the front end for a request.
- `submit` makes the calls of a rendered request. `client` is the engine client through which
  vLLM's HTTP application does so.
- `flags` parses the flags of `vllm serve`.
- `parsers` chooses the tool parser and the reasoning parser: vLLM's, by the table in `families`, or
  agentrt's own for models without a tool format (`tool_form`).
- `arranged` makes sure that the prompt of a chat's earlier request is a prefix of the next prompt.

``_compat.cut_off`` corrects how vLLM's parsers read tool calls that were cut off.

An engine core gets and returns token ids. Text becomes tokens, and tokens become text, outside the
core:

1. `VLLMFrontend.chat` calls vLLM's renderer, which applies the chat template and the tokenizer. The
   token ids go into the call's `CallSpec` (`submit`). The text of a token context becomes tokens in
   `VLLMFrontend.tokenize`.
2. vLLM's client of the core converts the output's tokens to text. `VLLMEngine.generate` reads both
   from this client.
3. `format_whole` and `format_stream` of ``_compat.api_server`` make the answer from the text: they
   separate reasoning, content and tool calls.
"""
