"""Converts a call into the input of a vLLM engine, checks its constraint, and hashes the blocks of
its prompt.

Structured outputs are checked in a thread of the engine's client, before a call is submitted; vLLM
would check them in the event loop. `compiling` compiles their grammars in the engine core.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import orjson

from agentrt.errors import CallRejectedError, PromptTooLongError
from agentrt.executors.identity import to_extra_args
from agentrt.executors.vllm._compat.grammars import validate
from agentrt.executors.vllm.compiling import LONGEST_S
from agentrt.executors.vllm.logprobs import COMPUTE_FROM, OF_MODEL
from agentrt.executors.vllm.turns import SharedThread
from agentrt.request import Call, CallSpec, RenderedCall
from agentrt.request.sampling import Sampling
from agentrt.request.weights import salted
from agentrt.router.kv_events import short

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_REMEMBERED = 16384
"""Number of blocks whose hashes are cached: prompts grow, and share their beginnings."""
_OF_CONSTRAINTS = "the engine cannot follow its constraint: "


def engine_input(
    call: Call, max_model_len: int, *, stream: bool
) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return a call's prompt, sampling parameters and options, as vLLM's engine takes them.

    The prompt has the cache salt of the call's spec. The sampling parameters have the call's
    identity for the scheduler, and the values of the spec that may have been set after rendering:
    the seed, the maximum length, and ``ignore_eos``. The parameters of a ``pooled`` call are
    unchanged. A call whose prompt is token ids is sampled with the parameters in its spec; its
    prompt and output have at most ``max_model_len`` tokens together. For a call that is not
    rendered, raises `PromptTooLongError` if the prompt leaves no room for output, and
    `CallRejectedError` if the call has no token ids, or has an ``attention``, which vLLM does not
    support.
    """
    spec = call.spec
    rendered = spec.rendered
    if rendered is None or spec.sampling is not None:
        rendered = _of_tokens(call, max_model_len, stream=stream)
    params, prompt = rendered.params.clone(), rendered.prompt
    if spec.cache_salt is not None:
        prompt = {**prompt, "cache_salt": spec.cache_salt}
    if rendered.pooled:
        return prompt, params, rendered.options
    params.extra_args = {**(params.extra_args or {}), **to_extra_args(call.identity)}
    params.seed, params.ignore_eos = spec.seed, spec.ignore_eos
    params.max_tokens = min(spec.max_tokens, params.max_tokens or spec.max_tokens)
    if spec.with_logprobs:
        params.extra_args[OF_MODEL] = True
        if params.logprobs is None and not params.logprob_token_ids:
            params.logprobs = 0  # only the log probabilities of the output's own tokens
    return prompt, params, rendered.options


def _of_tokens(call: Call, max_model_len: int, *, stream: bool) -> RenderedCall:
    """Return the rendered form of a call whose prompt is token ids."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    ids = call.spec.prompt_token_ids
    if ids is None:
        raise CallRejectedError(
            f"call {call.call_id} has no token ids, and the engine has no tokenizer "
            "(--skip-tokenizer-init): pass prompt_token_ids, or start the engine with a tokenizer"
        )
    if call.spec.sampling is not None and call.spec.sampling.attention is not None:
        raise CallRejectedError(
            f"call {call.call_id}: vLLM does not support attention= of a call; run the program "
            "with --engine transformers (TransformersExecutor)"
        )
    room = max_model_len - len(ids)
    if room < 1:
        raise PromptTooLongError(
            f"call {call.call_id}: the prompt has {len(ids)} tokens, and the engine takes at most "
            f"{max_model_len - 1} (one position is left for the output); shorten the prompt, or "
            "raise --max-model-len"
        )
    # vLLM checks these values here, and again in its engine core, which reads no further calls
    # after a wrong value. So all of them are set here.
    params = SamplingParams(
        max_tokens=min(call.spec.max_tokens, room),
        temperature=call.spec.temperature,
        seed=call.spec.seed,
        ignore_eos=call.spec.ignore_eos,
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
        skip_clone=True,  # no other call uses this object
        **_sampled(call.spec.sampling or Sampling()),
    )
    options = dict(call.spec.rendered.options) if call.spec.rendered is not None else {}
    if params.structured_outputs is not None:
        options["reasoning_ended"] = True  # the constraint begins with the first token
    # vLLM renders a prompt without a type in a thread. Calls that start together would then arrive
    # at different times, and miss each other's step.
    prompt = {"type": "token", "prompt_token_ids": list(ids)}
    return RenderedCall(prompt, params, options)


def _sampled(sampling: Sampling) -> dict[str, Any]:
    """Return the fields of vLLM's sampling parameters for a call whose prompt is token ids."""
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
            # The most likely tokens of the whole vocabulary may not be among the allowed tokens.
            fields |= {"logprobs": None, "logprob_token_ids": allowed}
    if (constraint := sampling.constraint) is not None:
        fields["structured_outputs"] = StructuredOutputsParams(
            **{constraint.kind: constraint.value}
        )
    return fields | ({} if sampling.score_from is None else _scored(sampling))


def _scored(sampling: Sampling) -> dict[str, Any]:
    """Return the fields for a call whose prompt is scored from a position on.

    vLLM would compute the whole prompt. Here the tokens before the position may be read from the
    prefix cache, and the scheduler makes sure that later tokens are not. For positions that were
    not computed, vLLM returns invalid token ids, so the output must not be detokenized.
    """
    assert sampling.score_from is not None
    return {
        "prompt_logprobs": sampling.score_top,
        "skip_reading_prefix_cache": False,
        "detokenize": False,
        "extra_args": {**sampling.logits, COMPUTE_FROM: sampling.score_from - 1},
    }


_FORBIDDING = ("allowed_token_ids", "bad_words")
"""The parameters that may forbid each token which a constraint allows."""


def check_compiled(call: Call, params: Any, output: Any) -> None:
    """Raise `CallRejectedError` for a call that the core ended because of its grammar.

    vLLM's output does not say why the call ended: its ``finish_reason`` is just "error". Calls of a
    context are not checked here, because the context raises an error of its own.
    """
    constraint = getattr(params, "structured_outputs", None)
    if output.finish_reason == "error" and constraint is not None and call.spec.sampling is None:
        text = (
            f"call {call.call_id}: the constraint of its output (JSON schema, regex or grammar) "
            f"could not be compiled, took more than {LONGEST_S:g} s to compile, or takes too long "
            "for each token; make it smaller, with fewer repetitions inside of repetitions"
        )
        if fields := [name for name in _FORBIDDING if getattr(params, name, None)]:
            names = " and ".join(fields)
            text += f". If {names} forbid every token that the constraint allows, leave them out"
        raise CallRejectedError(text)


def refused(call: Call, error: Exception) -> CallRejectedError:
    """Return the error for a call that vLLM refuses with ``error``."""
    sampling = call.spec.sampling
    prefix = "" if sampling is None or sampling.constraint is None else _OF_CONSTRAINTS
    cause = str(error.__cause__ or "")
    reason = f"{error}" if cause in str(error) else f"{error} ({cause})"
    if isinstance(error, OverflowError):
        reason = "a number in the request is too large; the engine takes numbers of 64 bits"
    return CallRejectedError(f"call {call.call_id}: {prefix}{reason}")


class BlockHasher:
    """Hashes prompts in blocks of ``size`` tokens with a hash algorithm of vLLM's.

    A block's hash also covers the ``ahead`` tokens after the block.
    """

    def __init__(self, algorithm: str, size: int, ahead: int = 0) -> None:
        from agentrt.executors.vllm._compat.prefixes import block_hash

        self.size = size
        self._ahead = ahead

        def chained(before: bytes | None, ids: tuple[int, ...], keys: Any) -> bytes:
            return block_hash(algorithm, before, ids, keys)

        self._hash: Callable[[bytes | None, tuple[int, ...], Any], bytes]
        self._hash = lru_cache(_REMEMBERED)(chained)

    def __call__(self, spec: CallSpec, version: int = 0) -> list[int]:
        """Return 64 bits of the hash of each full block of a call's prompt, under a version of the
        weights.
        """
        from agentrt.executors.vllm._compat.prefixes import block_keys

        size, ids = self.size, spec.prompt_token_ids or ()
        rendered = spec.rendered or RenderedCall()
        adapter, salt = rendered.options.get("lora_request"), salted(spec.cache_salt, version)
        every = block_keys(rendered.prompt, adapter, salt, size, ids, self._ahead)
        before, hashes = None, []
        for index, keys in enumerate(every):
            before = self._hash(before, ids[index * size : (index + 1) * size], keys)
            hashes.append(short(before))
        return hashes


# -- constraints -------------------------------------------------------------------------


_CHECKS_KEPT = 1024
_DIGEST = "_agentrt_digest"


def digest_of(constraint: Any) -> bytes:
    """Return a hash of a constraint, and store it as an attribute of the constraint.

    The hash is stored, because hashing a large schema takes milliseconds of the event loop.
    """
    known: bytes | None = getattr(constraint, _DIGEST, None)
    if known is None:
        try:
            text = orjson.dumps(constraint)
        except TypeError:
            text = repr(constraint).encode("utf-8", "replace")
        known = hashlib.sha256(text).digest()
        setattr(constraint, _DIGEST, known)
    return known


class Grammars:
    """Checks the constraints of one engine's calls, one at a time, and remembers the results."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Any] = OrderedDict()
        self._thread = SharedThread("grammars")

    async def check(self, llm: AsyncLLM, params: Any, tenant: str) -> None:
        """Check the constraint of ``params``, if any, when it is the tenant's turn.

        The check changes the constraint: choices become a grammar, and the backend is chosen.
        Raises vLLM's error for a constraint that it refuses.
        """
        constraint = getattr(params, "structured_outputs", None)
        if constraint is None:
            return
        digest = digest_of(constraint)
        if digest not in self._known:
            await self._thread.run(partial(validate, llm, params), tenant)
            self._known[digest] = params.structured_outputs
            if len(self._known) > _CHECKS_KEPT:
                self._known.popitem(last=False)
        params.structured_outputs = copy.copy(self._known[digest])
