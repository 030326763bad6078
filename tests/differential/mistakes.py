"""Requests that are wrong in some way: what is refused, how, and what is let pass."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.differential.cases import (
    CHAT,
    COMPLETIONS,
    COUNT,
    DETOKENIZE,
    MESSAGES,
    MODEL,
    OMIT,
    RESPONSES,
    TOKENIZE,
    Case,
    chat,
    complete,
    message,
    respond,
    streamed,
    user,
)
from tests.differential.tools import ANTHROPIC_TOOLS, CHAT_TOOLS, CITY, NAMED, RESPONSES_TOOLS

LONG = "river " * 5000
BAD_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}

VALUES: dict[str, dict[str, Any]] = {
    "unknown-model": {"model": "other"},
    "no-model": {"model": OMIT},
    "null-model": {"model": None},
    "empty-model": {"model": ""},
    "number-as-model": {"model": 5},
    "max-tokens-zero": {"max_tokens": 0},
    "max-tokens-below-zero": {"max_tokens": -1},
    "max-tokens-text": {"max_tokens": "many"},
    "max-tokens-digits": {"max_tokens": "3"},
    "max-tokens-fraction": {"max_tokens": 1.5},
    "temperature-below-zero": {"temperature": -1},
    "temperature-three": {"temperature": 3, "seed": 1},
    "temperature-text": {"temperature": "hot"},
    "top-p-zero": {"top_p": 0},
    "top-p-two": {"top_p": 2},
    "top-k-below": {"top_k": -2},
    "min-p-two": {"min_p": 2},
    "n-zero": {"n": 0},
    "n-below-zero": {"n": -1},
    "n-too-large": {"n": 100_000},
    "n-text": {"n": "two"},
    "n-digits": {"n": "2", "temperature": 1, "seed": 1},
    "presence-three": {"presence_penalty": 3},
    "frequency-three": {"frequency_penalty": -3},
    "repetition-zero": {"repetition_penalty": 0},
    "stop-number": {"stop": 5},
    "stop-empty": {"stop": ""},
    "stop-too-many": {"stop": [str(number) for number in range(2000)]},
    "stop-token-text": {"stop_token_ids": ["a"]},
    "seed-too-large": {"seed": 2**64},
    "seed-text": {"seed": "x"},
    "priority": {"priority": 1},
    "bias-over-vocabulary": {"logit_bias": {"99999999": 1}},
    "bias-text": {"logit_bias": {"the": 1}},
    "bias-too-large": {"logit_bias": {"260": 500}},
    "allowed-none": {"allowed_token_ids": []},
    "allowed-over-vocabulary": {"allowed_token_ids": [99_999_999]},
    "min-over-max": {"min_tokens": 9},
    "min-below-zero": {"min_tokens": -1},
    "truncate-below": {"truncate_prompt_tokens": -2},
    "truncate-too-large": {"truncate_prompt_tokens": 100_000},
    "truncation-side": {"truncation_side": "middle"},
    "salt-empty": {"cache_salt": ""},
    "salt-number": {"cache_salt": 5},
    "stream-options": {"stream_options": {"include_usage": True}},
    "stream-text": {"stream": "maybe"},
    "stream-number": {"stream": 1},
    "format-unknown": {"response_format": {"type": "poem"}},
    "format-text": {"response_format": "json"},
    "format-no-schema": {"response_format": {"type": "json_schema"}},
    "schema-bad": {"response_format": BAD_SCHEMA},
    "schema-text": {"structured_outputs": {"json": "{not json"}},
    "regex-bad": {"structured_outputs": {"regex": "[a-"}},
    "grammar-bad": {"structured_outputs": {"grammar": "root ::= ("}},
    "choice-none": {"structured_outputs": {"choice": []}},
    "two-forms": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    "no-form": {"structured_outputs": {}},
    "tag-bad": {"structured_outputs": {"structural_tag": "{"}},
    "beam-wide": {"use_beam_search": True, "n": -2},
    "prompt-logprobs-below": {"prompt_logprobs": -2},
    "prompt-logprobs-text": {"prompt_logprobs": "all"},
    "prompt-logprobs-many": {"prompt_logprobs": 1000},
    "bad-words-text": {"bad_words": "the"},
    "bad-words-empty": {"bad_words": [""]},
    "xargs-list": {"vllm_xargs": [1]},
    "ignore-eos-text": {"ignore_eos": "perhaps"},
    "token-ids-of-unknown": {"logprob_token_ids": [1]},
    "interval-zero": {"stream_interval": 0},
}
"""Wrong in the same field of chat and completions."""
CHATS: dict[str, dict[str, Any]] = {
    "no-messages": {"messages": OMIT},
    "empty-messages": {"messages": []},
    "null-messages": {"messages": None},
    "messages-text": {"messages": "hello"},
    "message-text": {"messages": ["hello"]},
    "no-role": {"messages": [{"content": "hello"}]},
    "null-role": {"messages": [{"role": None, "content": "hello"}]},
    "no-content": {"messages": [{"role": "user"}]},
    "null-content": {"messages": [{"role": "user", "content": None}]},
    "content-number": {"messages": [{"role": "user", "content": 5}]},
    "content-object": {"messages": [{"role": "user", "content": {"text": "a"}}]},
    "unknown-part": {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
    "image": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}],
            }
        ]
    },
    "audio": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}],
            }
        ]
    },
    "too-long": {"messages": [user(LONG)]},
    "no-room": {"messages": [user("river " * 1000)], "max_tokens": 4000, "stop": "i"},
    "top-logprobs-many": {"logprobs": True, "top_logprobs": 1000},
    "top-logprobs-below": {"logprobs": True, "top_logprobs": -2},
    "top-logprobs-alone": {"top_logprobs": 2},
    "top-logprobs-text": {"logprobs": True, "top_logprobs": "all"},
    "effort-unknown": {"reasoning_effort": "extreme"},
    "template-not-trusted": {"chat_template": "{{ messages }}"},
    "continued-and-prompted": {"continue_final_message": True, "add_generation_prompt": True},
    "tools-empty": {"tools": []},
    "tools-text": {"tools": "weather"},
    "tool-without-function": {"tools": [{"type": "function"}]},
    "tool-without-name": {"tools": [{"type": "function", "function": {}}]},
    "tool-type": {"tools": [{"type": "magic", "function": {"name": "x"}}]},
    "tool-schema": {
        "tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "no"}}}],
        "tool_choice": "required",
    },
    "choice-without-tools": {"tool_choice": "required"},
    "choice-auto-without-tools": {"tool_choice": "auto"},
    "choice-named-without-tools": {"tool_choice": NAMED},
    "choice-unknown": {"tools": CHAT_TOOLS, "tool_choice": "maybe"},
    "choice-of-unknown": {
        "tools": CHAT_TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "other"}},
    },
    "choice-without-name": {
        "tools": CHAT_TOOLS,
        "tool_choice": {"type": "function", "function": {}},
    },
    "tool-id-missing": {"messages": [user("a"), {"role": "tool", "content": "b"}]},
    "processor-arguments": {"mm_processor_kwargs": {"a": 1}},
}
PROMPTS: dict[str, dict[str, Any]] = {
    "no-prompt": {"prompt": OMIT},
    "null-prompt": {"prompt": None},
    "empty-prompt": {"prompt": ""},
    "empty-list": {"prompt": []},
    "number": {"prompt": 5},
    "mixed-list": {"prompt": ["a", 5]},
    "ids-over-vocabulary": {"prompt": [99_999_999]},
    "ids-below-zero": {"prompt": [-5]},
    "too-long": {"prompt": LONG},
    "no-room": {"prompt": "river " * 1000, "max_tokens": 4000, "stop": "i"},
    "suffix": {"suffix": "the end"},
    "logprobs-many": {"logprobs": 1000},
    "logprobs-below": {"logprobs": -2},
    "logprobs-text": {"logprobs": "all"},
    "echo-and-stream": {"echo": True, "stream": True, "logprobs": 1, "prompt_logprobs": 1},
}
REFUSED_RESPONSES: dict[str, dict[str, Any]] = {
    "unknown-model": {"model": "other"},
    "no-model": {"model": OMIT},
    "no-input": {"input": OMIT},
    "null-input": {"input": None},
    "empty-input": {"input": []},
    "number": {"input": 5},
    "item-without-type": {"input": [{"a": 1}]},
    "unknown-item": {"input": [{"type": "dream", "text": "a"}]},
    "unknown-role": {"input": [{"role": "critic", "content": "a"}]},
    "too-long": {"input": LONG},
    "too-long-cut": {"input": LONG, "truncation": "auto"},
    "max-tokens-zero": {"max_output_tokens": 0},
    "max-tokens-below-zero": {"max_output_tokens": -1},
    "max-tokens-text": {"max_output_tokens": "many"},
    "temperature-below-zero": {"temperature": -1},
    "top-p-two": {"top_p": 2},
    "presence-three": {"presence_penalty": 3},
    "previous-unknown": {"previous_response_id": "resp_unknown"},
    "previous-odd": {"previous_response_id": "unknown"},
    "background-unstored": {"background": True, "store": False},
    "prompt-template": {"prompt": {"id": "p"}},
    "include-unknown": {"include": ["everything"]},
    "truncation-unknown": {"truncation": "middle"},
    "effort-unknown": {"reasoning": {"effort": "extreme"}},
    "format-unknown": {"text": {"format": {"type": "poem"}}},
    "schema-bad": {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 5}}}},
    "two-forms": {
        "text": {"format": {"type": "json_object"}},
        "structured_outputs": {"choice": ["a"]},
    },
    "choice-without-tools": {"tool_choice": "required"},
    "choice-of-unknown": {
        "tools": RESPONSES_TOOLS,
        "tool_choice": {"type": "function", "name": "other"},
    },
    "tools-text": {"tools": "weather"},
    "tool-type": {"tools": [{"type": "magic"}]},
    "custom-grammar": {
        "tools": [{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "lark"}}]
    },
    "hosted-tool": {"tools": [{"type": "web_search_preview"}]},
    "salt-empty": {"cache_salt": ""},
    "seed-too-large": {"seed": 2**64},
    "priority": {"priority": 1},
}
REFUSED_MESSAGES: dict[str, dict[str, Any]] = {
    "unknown-model": {"model": "other"},
    "no-model": {"model": OMIT},
    "empty-model": {"model": ""},
    "no-messages": {"messages": OMIT},
    "empty-messages": {"messages": []},
    "no-max-tokens": {"max_tokens": OMIT},
    "max-tokens-zero": {"max_tokens": 0},
    "max-tokens-text": {"max_tokens": "many"},
    "unknown-role": {"messages": [{"role": "critic", "content": "a"}]},
    "no-content": {"messages": [{"role": "user"}]},
    "unknown-block": {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
    "system-number": {"system": 5},
    "temperature-below-zero": {"temperature": -1},
    "top-p-two": {"top_p": 2},
    "stop-too-many": {"stop_sequences": [str(number) for number in range(2000)]},
    "stop-text": {"stop_sequences": "a"},
    "too-long": {"messages": [user(LONG)]},
    "no-room": {
        "messages": [user("river " * 1000)],
        "max_tokens": 4000,
        "stop_sequences": ["i"],
    },
    "tool-without-schema": {"tools": [{"name": "x"}]},
    "tool-schema": {"tools": [{"name": "x", "input_schema": 5}]},
    "choice-without-tools": {"tool_choice": {"type": "any"}},
    "choice-unknown": {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "maybe"}},
    "choice-without-name": {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool"}},
    "choice-of-unknown": {
        "tools": ANTHROPIC_TOOLS,
        "tool_choice": {"type": "tool", "name": "other"},
    },
    "thinking-small": {"thinking": {"type": "enabled", "budget_tokens": 5}},
    "thinking-large": {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    "thinking-unknown": {"thinking": {"type": "deep"}},
    "format-bad": {"output_config": {"format": {"type": "json_schema", "schema": {"type": 5}}}},
    "image": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": ""},
                    }
                ],
            }
        ]
    },
}
STREAMED = (
    "unknown-model",
    "too-long",
    "schema-bad",
    "max-tokens-zero",
    "empty-messages",
    "n-zero",
)
"""Mistakes that are also asked for as a stream: they must be refused before it begins."""
PLAIN = {
    CHAT: chat("").body,
    COMPLETIONS: complete("").body,
    RESPONSES: respond("").body,
    MESSAGES: message("").body,
    COUNT: {"model": MODEL, "messages": [user("Hello.")]},
    TOKENIZE: {"model": MODEL, "prompt": "Hello."},
    DETOKENIZE: {"model": MODEL, "tokens": [1]},
}
CONTENTS: dict[str, bytes | None] = {
    "nothing": None,
    "no-json": b'{"model": ',
    "a-word": b"hello",
    "a-list": b"[]",
    "a-text": b'"hello"',
    "null": b"null",
    "empty-object": b"{}",
    "not-utf8": b'{"model": "\xff\xfe"}',
}


def mistake_cases() -> Iterator[Case]:
    yield from _wrong(chat("error"), VALUES | CHATS)
    yield from _wrong(complete("error"), VALUES | PROMPTS)
    yield from _wrong(respond("error"), REFUSED_RESPONSES)
    yield from _wrong(message("error"), REFUSED_MESSAGES)
    counted = ("unknown-model", "no-messages", "empty-messages", "unknown-role", "too-long")
    for name in counted:
        fields = {**REFUSED_MESSAGES[name], "max_tokens": OMIT, "temperature": OMIT}
        yield replace(message("error").but(name, **fields), name=f"count/{name}", path=COUNT)
    yield from _envelopes()


def _wrong(base: Case, mistakes: dict[str, dict[str, Any]]) -> Iterator[Case]:
    for name, fields in mistakes.items():
        case = base.but(name, **fields)
        yield case
        if name in STREAMED:
            yield streamed(case)


def _envelopes() -> Iterator[Case]:
    """What is wrong before a body's fields are looked at."""
    for path, body in PLAIN.items():
        for name, content in CONTENTS.items():
            yield Case(f"wrong{path}/{name}", path, content)
        yield Case(f"wrong{path}/with-bom", path, codecs.BOM_UTF8 + json.dumps(body).encode())
        plain = Case(f"wrong{path}", path, body)
        yield replace(plain, name=f"wrong{path}/as-text", headers={"content-type": "text/plain"})
        for method in ("GET", "DELETE", "PUT"):
            yield replace(plain, name=f"wrong{path}/{method}", method=method)
    yield Case("wrong/path", "/v1/poems", {"model": MODEL})
    yield Case("wrong/path-get", "/v1/poems", method="GET")
    yield Case("wrong/slash", f"{CHAT}/", PLAIN[CHAT])
    yield Case("wrong/models-post", "/v1/models", {})
    yield Case("wrong/response-unknown", f"{RESPONSES}/resp_unknown", method="GET")
    yield Case("wrong/response-odd", f"{RESPONSES}/unknown", method="GET")
    yield Case("wrong/cancel-unknown", f"{RESPONSES}/resp_unknown/cancel")
    deep: Any = CITY
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    yield chat("error-deep-schema", structured_outputs={"json": deep}, max_tokens=2)
