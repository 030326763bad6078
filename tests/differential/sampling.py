"""Requests that differ in how tokens are drawn, where an answer ends, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.cases import OMIT, STOPPED, Case, both, chat, complete, message, respond

HOT = {"temperature": 1.2, "seed": 2}
LONGER = {"max_tokens": STOPPED}
EOS = 2
SOME = (260, 284, 28, 216)
"""Ids of common tokens: " the", " and", a comma, a blank."""

SHARED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seed": HOT,
    "seed-zero": {"temperature": 1.2, "seed": 0},
    "seed-below-zero": {"temperature": 1.2, "seed": -5},
    "top-p": {**HOT, "top_p": 0.6},
    "top-k": {**HOT, "top_k": 5},
    "top-k-all": {**HOT, "top_k": -1},
    "min-p": {**HOT, "min_p": 0.2},
    "presence": {"presence_penalty": 1.5},
    "frequency": {**LONGER, "frequency_penalty": -1.0},
    "repetition": {"repetition_penalty": 1.4},
    "logit-bias": {"logit_bias": {"260": 100}},
    "logit-bias-ban": {"logit_bias": {str(token): -100 for token in SOME}},
    "allowed-tokens": {"allowed_token_ids": list(SOME)},
    "bad-words": {"bad_words": ["Hello", " five", "four"]},
    "stop": {**LONGER, "stop": [","]},
    "stop-text": {**LONGER, "stop": "v"},
    "stop-kept": {**LONGER, "stop": [",", "!"], "include_stop_str_in_output": True},
    "stop-across-tokens": {**LONGER, "stop": ["m A", "r, f"]},
    "stop-never": {**LONGER, "stop": ["never said", "zzz"]},
    "stop-token": {**LONGER, "stop_token_ids": [28, 17]},
    "stop-token-unseen": {**LONGER, "stop_token_ids": [11]},
    "stop-both": {**LONGER, "stop": ["ive"], "stop_token_ids": [11]},
    "ignore-eos": {**LONGER, "ignore_eos": True, "logit_bias": {str(EOS): 100}},
    "eos-at-once": {"allowed_token_ids": [EOS]},
    "no-limit": {"max_tokens": OMIT, "allowed_token_ids": [EOS]},
    "one-token": {"max_tokens": 1},
    "min-tokens": {**LONGER, "min_tokens": 3, "logit_bias": {str(EOS): 100}},
    "n": {**HOT, "n": 2},
    "n-greedy": {"n": 3, "max_tokens": 3},
    "n-stop": {**HOT, "n": 2, "stop": [" ", "!"]},
    "special-tokens": {"skip_special_tokens": False, "allowed_token_ids": [EOS]},
    "no-spaces": {"spaces_between_special_tokens": False},
    "token-ids": {"return_token_ids": True},
    "truncate": {"truncate_prompt_tokens": 3},
    "truncate-right": {"truncate_prompt_tokens": 3, "truncation_side": "right"},
    "truncate-to-room": {"truncate_prompt_tokens": -1},
}
"""What chat and completions have in common."""
STREAMED_COMPLETIONS = ("greedy", "seed", "stop", "stop-kept", "stop-token", "n", "token-ids")
PASSED: dict[str, dict[str, Any]] = {
    "salted": {"cache_salt": "a-tenant-of-ours"},
    "request-id": {"request_id": "named-by-the-client"},
    "xargs": {"vllm_xargs": {"something": 1}},
    "session": {"session_id": "of-the-client"},
    "user": {"user": "somebody"},
    "unknown-fields": {"colour": "blue", "deep": {"er": [1, None]}},
    "nulls": {"top_p": None, "stop": None, "seed": None, "presence_penalty": None, "user": None},
    "max-tokens-over-room": {"max_tokens": 5000, "allowed_token_ids": [EOS]},
}
"""What changes nothing of an answer's text, or is refused."""
CHAT: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": True},
    "top-logprobs": {"logprobs": True, "top_logprobs": 3},
    "top-logprobs-n": {**HOT, "logprobs": True, "top_logprobs": 2, "n": 2},
    "logprobs-off": {"logprobs": False, "top_logprobs": None},
    "logprobs-of-tokens": {"logprobs": True, "logprob_token_ids": list(SOME)},
    "logprobs-as-ids": {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True},
    "logprobs-and-stop": {"logprobs": True, "stop": [","]},
    "max-completion-tokens": {"max_tokens": OMIT, "max_completion_tokens": 3},
    "both-limits": {"max_tokens": 2, "max_completion_tokens": 4},
    "prompt-text": {"return_prompt_text": True},
    "store": {"store": True, "metadata": {"a": "b"}, "service_tier": "auto"},
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 2},
    "logprobs-none": {"logprobs": 0},
    "logprobs-of-tokens": {"logprobs": 1, "logprob_token_ids": list(SOME)},
    "logprobs-as-ids": {"logprobs": 1, "return_tokens_as_token_ids": True},
    "logprobs-n": {**HOT, "logprobs": 1, "n": 2},
    "echo": {"echo": True},
    "echo-logprobs": {"echo": True, "logprobs": 1},
    "echo-alone": {"echo": True, "max_tokens": 0},
    "echo-n": {"echo": True, "n": 2, **HOT},
    "default-limit": {"max_tokens": OMIT},
    "no-special-tokens": {"add_special_tokens": False},
    "best-of": {"best_of": 2},
}
PROMPTS: dict[str, Any] = {
    "list": ["One, two, three,", "Four, five, six,"],
    "token-ids": [1, 504, 28, 827, 28],
    "lists-of-token-ids": [[504, 28, 827], [504, 28]],
    "unicode": "naïve café — 漢字 🙂",
    "blank": " ",
}


def sampling_cases() -> Iterator[Case]:
    yield from both(chat(name, **fields) for name, fields in (SHARED | CHAT).items())
    yield from both(complete(name, **fields) for name, fields in COMPLETIONS.items())
    for name, fields in SHARED.items():
        case = complete(name, **fields)
        yield from both([case]) if name in STREAMED_COMPLETIONS else [case]
    for base in (chat, complete):
        yield from (base(name, **fields) for name, fields in PASSED.items())
    yield from both(complete(f"prompt-{name}", prompt) for name, prompt in PROMPTS.items())
    yield complete("prompts-n", ["One, two, three,", "Four, five, six,"], **HOT, n=2)
    for base in (chat, complete):
        yield base("prompt-logprobs", prompt_logprobs=1)
        yield base("prompt-logprobs-none", prompt_logprobs=0)
        yield base("beam", use_beam_search=True, n=2, max_tokens=3)
        yield base("beam-penalty", use_beam_search=True, n=2, max_tokens=3, length_penalty=0.5)
        for name, options in STREAM_OPTIONS.items():
            yield base(f"options-{name}/stream", stream=True, **options)
    yield from both(respond(name, **fields) for name, fields in RESPONSES.items())
    yield from both(message(name, **fields) for name, fields in MESSAGES.items())


STREAM_OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "usage-each-chunk": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "no-usage": {"stream_options": {"include_usage": False}},
    "interval": {**LONGER, "stream_interval": 3},
    "interval-n": {**LONGER, "stream_interval": 2, **HOT, "n": 2},
}
RESPONSES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seed": HOT,
    "top-p": {**HOT, "top_p": 0.5},
    "top-k": {**HOT, "top_k": 4, "min_p": 0.1},
    "penalties": {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "logit-bias": {"logit_bias": {"260": 100}},
    "stop": {"stop": [","]},
    "stop-kept": {"stop": ["!"], "include_stop_str_in_output": True},
    "stop-token": {"stop_token_ids": [28]},
    "ignore-eos": {"ignore_eos": True, "logit_bias": {str(EOS): 100}},
    "eos-at-once": {"max_output_tokens": OMIT, "logit_bias": {str(EOS): 100}},
    "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "metadata": {"metadata": {"a": "b"}, "user": "somebody", "service_tier": "auto"},
    "truncation": {"truncation": "auto"},
    "messages": {"enable_response_messages": True},
    "salted": {"cache_salt": "a-tenant-of-ours"},
    "cache-key": {"prompt_cache_key": "a-key"},
    "not-stored": {"store": False},
    "unknown-fields": {"colour": "blue"},
    "reasoning": {"reasoning": {"effort": "low"}},
    "special-tokens": {"skip_special_tokens": False, "logit_bias": {str(EOS): 100}},
}
MESSAGES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.5},
    "stop": {"stop_sequences": [","]},
    "stop-never": {"stop_sequences": ["never said"]},
    "metadata": {"metadata": {"user_id": "somebody"}},
    "salted": {"cache_salt": "a-tenant-of-ours"},
    "unknown-fields": {"colour": "blue", "service_tier": "auto"},
    "no-thinking": {"thinking": {"type": "disabled"}},
    "adaptive-thinking": {"thinking": {"type": "adaptive"}},
    "effort": {"output_config": {"effort": "low"}},
    "template-arguments": {"chat_template_kwargs": {"enable_thinking": False}},
}
