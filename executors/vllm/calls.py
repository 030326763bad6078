"""A call as vLLM takes it, and the hashes of its prompt's blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from agentrt.errors import CallRejectedError, PromptTooLongError
from agentrt.executors.identity import to_extra_args
from agentrt.request import Call, CallSpec, RenderedCall
from agentrt.router.kv_events import short

_REMEMBERED = 16384
"""Blocks whose hashes are remembered: prompts grow, and share their beginnings."""


def engine_input(
    call: Call, max_model_len: int, *, stream: bool
) -> tuple[Any, Any, Mapping[str, Any]]:
    """A call's prompt, its parameters and options, with what the scheduler is told of the call.

    What was set since it was rendered goes into them: the runtime's seed, a tenant's salt, a
    length that is fixed. A call of bare token ids is sampled as its spec says; its prompt and
    output have ``max_model_len`` tokens together. Raises `PromptTooLongError`, and
    `CallRejectedError` for a call without token ids.
    """
    spec = call.spec
    made = spec.rendered or _of_tokens(call, max_model_len, stream=stream)
    params, prompt = made.params.clone(), made.prompt
    if spec.cache_salt is not None:
        prompt = {**prompt, "cache_salt": spec.cache_salt}
    if made.pooled:
        return prompt, params, made.options
    params.extra_args = {**(params.extra_args or {}), **to_extra_args(call.identity)}
    params.seed, params.ignore_eos = spec.seed, spec.ignore_eos
    params.max_tokens = min(spec.max_tokens, params.max_tokens or spec.max_tokens)
    return prompt, params, made.options


def _of_tokens(call: Call, max_model_len: int, *, stream: bool) -> RenderedCall:
    """A call of bare token ids, rendered."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    ids = call.spec.prompt_token_ids
    if ids is None:
        raise CallRejectedError(
            f"call {call.call_id} is not rendered, and the engine has no front end "
            "(--skip-tokenizer-init): give prompt_token_ids"
        )
    room = max_model_len - len(ids)
    if room < 1:
        raise PromptTooLongError(
            f"call {call.call_id}: its prompt has {len(ids)} tokens, and the engine "
            f"takes {max_model_len - 1} and one of output; shorten the chat or raise "
            "--max-model-len"
        )
    params = SamplingParams(
        max_tokens=room,
        temperature=call.spec.temperature,
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
    )
    return RenderedCall({"prompt_token_ids": list(ids)}, params)


class BlockHasher:
    """Hashes prompts in blocks of ``size`` tokens, by the function of that name in vLLM.

    A block's hash covers the ``ahead`` tokens after it, too.
    """

    def __init__(self, algorithm: str, size: int, ahead: int = 0) -> None:
        from agentrt.executors.vllm._compat.prefixes import block_hash

        self.size = size
        self._ahead = ahead

        def chained(before: bytes | None, ids: tuple[int, ...], keys: Any) -> bytes:
            return block_hash(algorithm, before, ids, keys)

        self._hash: Callable[[bytes | None, tuple[int, ...], Any], bytes]
        self._hash = lru_cache(_REMEMBERED)(chained)

    def __call__(self, spec: CallSpec) -> list[int]:
        """64 bits of the hash of each full block of a call's prompt."""
        from agentrt.executors.vllm._compat.prefixes import block_keys

        size, ids = self.size, spec.prompt_token_ids or ()
        rendered = spec.rendered or RenderedCall({}, None)
        adapter = rendered.options.get("lora_request")
        every = block_keys(rendered.prompt, adapter, spec.cache_salt, size, ids, self._ahead)
        before, found = None, []
        for index, keys in enumerate(every):
            before = self._hash(before, ids[index * size : (index + 1) * size], keys)
            found.append(short(before))
        return found
