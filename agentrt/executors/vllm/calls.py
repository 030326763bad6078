"""A call as vLLM takes it, and the hashes of its prompt's blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from agentrt.errors import CallRejectedError, PromptTooLongError
from agentrt.executors.identity import to_extra_args
from agentrt.executors.vllm.compiling import LONGEST_S
from agentrt.executors.vllm.scored import COMPUTE_FROM
from agentrt.request import Call, CallSpec, RenderedCall
from agentrt.request.sampling import Sampling
from agentrt.router.kv_events import short

_REMEMBERED = 16384
"""Blocks whose hashes are remembered: prompts grow, and share their beginnings."""
_OF_CONSTRAINTS = "the engine cannot follow its constraint: "


def engine_input(
    call: Call, max_model_len: int, *, stream: bool
) -> tuple[Any, Any, Mapping[str, Any]]:
    """A call's prompt, sampling parameters and options, with the call's identity for the scheduler.

    Settings that came after rendering are applied: the runtime's seed, a tenant's salt, a fixed
    length. A call of token ids is sampled as its spec says; its prompt and output have at most
    ``max_model_len`` tokens together. Raises `PromptTooLongError`, and `CallRejectedError` for a
    call without token ids.
    """
    spec = call.spec
    made = spec.rendered
    if made is None or spec.sampling is not None:
        made = _of_tokens(call, max_model_len, stream=stream)
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
    if call.spec.sampling is not None and call.spec.sampling.attention is not None:
        raise CallRejectedError(
            f"call {call.call_id}: vLLM computes its model's own attention, and no attention= of a "
            "call's; run the program with --engine transformers (TransformersExecutor)"
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
        skip_clone=True,  # it is this call's own
        **_sampled(call.spec.sampling or Sampling()),
    )
    options = dict(call.spec.rendered.options) if call.spec.rendered is not None else {}
    if params.structured_outputs is not None:
        options["reasoning_ended"] = True  # it binds the output from its first token on
    # Of a prompt without a type vLLM takes care in a thread, and siblings miss each other's step.
    prompt = {"type": "token", "prompt_token_ids": list(ids)}
    return RenderedCall(prompt, params, options)


def _sampled(sampling: Sampling) -> dict[str, Any]:
    """The fields of vLLM's sampling parameters that a call of token ids sets."""
    from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS, StructuredOutputsParams

    fields: dict[str, Any] = {
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": sampling.logprobs,
        "detokenize": sampling.as_text,
        "extra_args": dict(sampling.logits),
    }
    if sampling.allowed_token_ids is not None:
        fields["allowed_token_ids"] = allowed = list(sampling.allowed_token_ids)
        if sampling.logprobs is not None and len(allowed) <= MAX_LOGPROB_TOKEN_IDS:
            # The likeliest of all may not be among them.
            fields |= {"logprobs": None, "logprob_token_ids": allowed}
    if (constraint := sampling.constraint) is not None:
        fields["structured_outputs"] = StructuredOutputsParams(
            **{constraint.kind: constraint.value}
        )
    return fields | ({} if sampling.score_from is None else _scored(sampling))


def _scored(sampling: Sampling) -> dict[str, Any]:
    """The fields of a call whose prompt is scored from a position on.

    vLLM would compute the whole prompt; here what comes before is read from the prefix cache, and
    the scheduler sees to it that no more is. The places that were not computed hold token ids
    that are none, so that nothing may be detokenized.
    """
    assert sampling.score_from is not None
    return {
        "prompt_logprobs": sampling.score_top,
        "skip_reading_prefix_cache": False,
        "detokenize": False,
        "extra_args": {**sampling.logits, COMPUTE_FROM: sampling.score_from - 1},
    }


def check_compiled(call: Call, params: Any, output: Any) -> None:
    """Raise `CallRejectedError` for a call that the core ended because of its grammar.

    vLLM's output has no reason, only ``finish_reason`` "error". Contexts raise their own error.
    """
    held = getattr(params, "structured_outputs", None)
    if output.finish_reason == "error" and held is not None and call.spec.sampling is None:
        raise CallRejectedError(
            f"call {call.call_id}: the engine could not compile what its output is held to, or not "
            f"within {LONGEST_S:g} s, or it takes too long for each token: make it smaller, with "
            "fewer repetitions inside of repetitions"
        )


def refused(call: Call, error: Exception) -> CallRejectedError:
    """Our error for a call that vLLM does not take."""
    sampling = call.spec.sampling
    what = "" if sampling is None or sampling.constraint is None else _OF_CONSTRAINTS
    cause = str(error.__cause__ or "")
    why = f"{error}" if cause in str(error) else f"{error} ({cause})"
    return CallRejectedError(f"call {call.call_id}: {what}{why}")


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
