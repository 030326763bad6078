"""A call as vLLM takes it, with the hashes of its prompt's blocks; what vLLM puts out as ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from agentrt.errors import CallRejectedError, PromptTooLongError
from agentrt.executors.identity import NESTED, to_extra_args
from agentrt.executors.toolcalls import check_schema, output_schema, read_output, with_tools
from agentrt.request import Call, CallReport, CallSpec, RenderedCall, Reply, TokenLogprob
from agentrt.router.kv_events import short

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput

_REMEMBERED = 16384
"""Blocks whose hashes are remembered: prompts grow, and share their beginnings."""


def engine_input(call: Call, rendered: RenderedCall) -> tuple[Any, SamplingParams]:
    """A rendered call's prompt and parameters, with what the scheduler is told of the call.

    What was set since it was rendered goes into them: the runtime's seed, a tenant's salt, a
    length that is fixed.
    """
    spec, params = call.spec, rendered.params.clone()
    params.extra_args = {**(params.extra_args or {}), **to_extra_args(call.identity)}
    params.seed, params.max_tokens, params.ignore_eos = spec.seed, spec.max_tokens, spec.ignore_eos
    prompt = rendered.prompt
    if spec.cache_salt is not None:
        prompt = {**prompt, "cache_salt": spec.cache_salt}
    return prompt, params


def prompt_of(spec: CallSpec, tokenizer: Any, model: str) -> dict[str, Any]:
    """A call's prompt, as token ids, and its salt."""
    salt = {} if spec.cache_salt is None else {"cache_salt": spec.cache_salt}
    return {"prompt_token_ids": prompt_ids_of(spec, tokenizer, model), **salt}


def prompt_ids_of(spec: CallSpec, tokenizer: Any, model: str) -> list[int]:
    """The token ids of a call's prompt, by ``tokenizer`` (None where the engine has none)."""
    if spec.prompt_token_ids is not None:
        return list(spec.prompt_token_ids)
    if tokenizer is None:
        raise CallRejectedError(
            f"the engine has no tokenizer for {model}: give prompt_token_ids, or leave "
            "--skip-tokenizer-init out"
        )
    if spec.messages is None:
        return list(tokenizer.encode(spec.prompt or ""))
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            [dict(message) for message in with_tools(spec)],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
    except Exception as error:
        raise CallRejectedError(f"the chat template of {model}: {error}") from error
    return ids


def sampling_params(
    call: Call, prompt_length: int, max_model_len: int, *, stream: bool
) -> SamplingParams:
    """How vLLM samples a call, and what our scheduler is told of it.

    Prompt and output have ``max_model_len`` tokens together.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    spec = call.spec
    room = max_model_len - prompt_length
    if room < 1:
        raise PromptTooLongError(
            f"call {call.call_id}: its prompt has {prompt_length} tokens, and the engine "
            f"takes {max_model_len - 1} and one of output; shorten the chat or raise "
            "--max-model-len"
        )
    schema = output_schema(spec)
    if schema is not None:
        check_schema(schema)
    return SamplingParams(
        max_tokens=min(spec.max_tokens, room),
        temperature=spec.temperature,
        top_p=spec.top_p,
        seed=spec.seed,
        stop=list(spec.stop),
        ignore_eos=spec.ignore_eos,
        frequency_penalty=spec.frequency_penalty,
        presence_penalty=spec.presence_penalty,
        logprobs=spec.logprobs,
        structured_outputs=schema and StructuredOutputsParams(json=dict(schema)),
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
        extra_args=to_extra_args(call.identity),
    )


def reply_of(spec: CallSpec, output: RequestOutput, whole: str) -> Reply:
    """The reply to a call whose last output this is, and whose text is ``whole``."""
    report = (output.kv_transfer_params or {}).get(NESTED) or {}
    text, tool_calls, parsed = read_output(spec, whole)
    last = output.outputs[0]
    return Reply(
        text=text,
        finish_reason=last.finish_reason or "stop",
        tool_calls=tool_calls,
        parsed=parsed,
        token_ids=tuple(last.token_ids),
        report=CallReport(**report),
    )


def logprobs_of(spec: CallSpec, output: RequestOutput | None = None) -> tuple[TokenLogprob, ...]:
    """Those of the tokens that came now; none unless the call asked for them."""
    if spec.logprobs is None or output is None or not output.outputs[0].logprobs:
        return ()
    last = output.outputs[0]
    new = last.logprobs[-len(last.token_ids) :] if last.token_ids else ()
    return tuple(
        _logprob(token, options, spec.logprobs)
        for token, options in zip(last.token_ids, new, strict=False)
    )


def _logprob(token: int, options: Mapping[int, Any], most: int) -> TokenLogprob:
    likeliest = sorted(options.values(), key=lambda option: option.rank or 0)[:most]
    own = options[token]
    top = tuple((option.decoded_token or "", option.logprob) for option in likeliest)
    return TokenLogprob(own.decoded_token or "", own.logprob, top)


class BlockHasher:
    """Hashes prompts in blocks of ``size`` tokens, by the function of that name in vLLM."""

    def __init__(self, algorithm: str, size: int) -> None:
        from agentrt.executors.vllm._compat.prefixes import block_hash

        self.size = size

        def chained(before: bytes | None, ids: tuple[int, ...], keys: Any) -> bytes:
            return block_hash(algorithm, before, ids, keys)

        self._hash: Callable[[bytes | None, tuple[int, ...], Any], bytes]
        self._hash = lru_cache(_REMEMBERED)(chained)

    def __call__(self, spec: CallSpec) -> list[int]:
        """64 bits of the hash of each full block of a call's prompt."""
        from agentrt.executors.vllm._compat.prefixes import block_keys

        size, ids = self.size, spec.prompt_token_ids or ()
        rendered = spec.rendered or RenderedCall({}, None)
        adapter, blocks = rendered.options.get("lora_request"), len(ids) // size
        every = block_keys(rendered.prompt, adapter, spec.cache_salt, size, blocks)
        before, found = None, []
        for index, keys in enumerate(every):
            before = self._hash(before, ids[index * size : (index + 1) * size], keys)
            found.append(short(before))
        return found
