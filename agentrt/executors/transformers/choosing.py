"""Chooses the next token from a model's logits, by a call's sampling parameters and constraint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agentrt.errors import CallRejectedError
from agentrt.extras import install_vllm
from agentrt.request import CallSpec
from agentrt.request.sampling import Constraint, Sampling, TokenLogprobs

if TYPE_CHECKING:
    from torch import Tensor


class GrammarCompiler:
    """Compiles constraints for a model with ``vocabulary`` tokens.

    ``stops`` are the ids of the tokens that end a text.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, stops: frozenset[int]) -> None:
        self._of = tokenizer, vocabulary, stops

    @cached_property
    def _compiler(self) -> Any:
        import xgrammar

        tokenizer, vocabulary, stops = self._of
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocabulary, stop_token_ids=sorted(stops)
        )
        return xgrammar.GrammarCompiler(info)

    def follow(self, constraint: Constraint) -> Following:
        """Return a matcher that follows an output under ``constraint`` from its first token.

        Raises `CallRejectedError` for a constraint that cannot be compiled.
        """
        try:
            compiled = self._compiled(constraint.kind, constraint.value)
        except ImportError as error:
            raise CallRejectedError(
                f"constraints of outputs need the package xgrammar ({error}), which is installed "
                f"with vLLM; {install_vllm()}"
            ) from error
        except (RuntimeError, TypeError, ValueError) as error:
            raise CallRejectedError(
                f"the {constraint.kind} constraint of the output is not valid: {error}"
            ) from error
        return Following(compiled, self._of[1])

    def _compiled(self, kind: str, value: Any) -> Any:
        if kind == "json":
            # As agentrt's vLLM engines: small models may fill a JSON value with endless blanks.
            return self._compiler.compile_json_schema(
                value, any_whitespace=False, separators=(",", ":")
            )
        if kind == "regex":
            return self._compiler.compile_regex(value)
        if kind == "choice":
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
            return self._compiler.compile_grammar(f"root ::= {texts}")
        if "::=" in value:
            return self._compiler.compile_grammar(value)
        return self._compiler.compile_lark(value)


class Following:
    """The position of an output in a compiled grammar."""

    def __init__(self, compiled: Any, vocabulary: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._mask = xgrammar.allocate_token_bitmask(1, vocabulary)

    def only_allowed(self, logits: Tensor) -> Tensor:
        """Return a copy of ``logits`` in which all tokens that are not allowed next have minus
        infinity.
        """
        import xgrammar

        self._matcher.fill_next_token_bitmask(self._mask)
        masked = logits.clone()[None]
        xgrammar.apply_token_bitmask_inplace(masked, self._mask.to(logits.device))
        return masked[0]

    def accept(self, token: int) -> None:
        """Advance by a token of the output."""
        self._matcher.accept_token(token)


class Chooser:
    """Chooses a call's tokens. At temperature 0 it chooses the likeliest token; otherwise it
    samples a token with the call's seed.

    With ``following``, only tokens that its grammar allows are chosen.
    """

    def __init__(self, spec: CallSpec, device: Any, following: Following | None = None) -> None:
        import torch

        sampling = spec.sampling or Sampling()
        self._allowed = sampling.allowed_token_ids
        self._following = following
        self._warp = _warpers(spec.temperature, sampling) if spec.temperature > 0 else None
        self._random = torch.Generator(device)
        if spec.seed is not None:
            self._random.manual_seed(spec.seed)

    def __call__(self, logits: Tensor) -> int | None:
        """Return the next token, given the logits (a vector over the vocabulary) for it. Return
        None if the grammar and the allowed tokens together allow no token.
        """
        import torch

        if self._allowed is not None:
            masked = torch.full_like(logits, -torch.inf)
            masked[list(self._allowed)] = logits[list(self._allowed)]
            logits = masked
        if self._following is not None:
            logits = self._following.only_allowed(logits)
            if not bool((logits > -torch.inf).any()):
                return None
        token = int(logits.argmax()) if self._warp is None else self._drawn(self._warp, logits)
        if self._following is not None:
            self._following.accept(token)
        return token

    def _drawn(self, warp: Any, logits: Tensor) -> int:
        import torch

        weights = warp(None, logits[None]).softmax(-1)
        return int(torch.multinomial(weights, 1, generator=self._random))


def _warpers(temperature: float, sampling: Sampling) -> Any:
    from transformers.generation import logits_process

    warpers: list[Any] = [logits_process.TemperatureLogitsWarper(temperature)]
    if sampling.top_k > 0:
        warpers.append(logits_process.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(logits_process.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        warpers.append(logits_process.MinPLogitsWarper(sampling.min_p))
    return logits_process.LogitsProcessorList(warpers)


def logprobs_of(
    logits: Tensor, token: int, most: int, allowed: Sequence[int] | None = None
) -> TokenLogprobs:
    """Return ``token`` with its log probability, followed by the likeliest tokens with theirs.

    ``most`` is the number of likeliest tokens. With ``allowed``, they are the likeliest of the
    allowed tokens. If ``token`` is one of the likeliest tokens, it is not repeated.
    """
    every = logits.log_softmax(-1)
    if allowed is None:
        values, ids = every.topk(min(most, len(every)))
        likely = list(zip(ids.tolist(), values.tolist(), strict=True))
    else:
        likely = sorted(((each, float(every[each])) for each in allowed), key=lambda x: -x[1])
    return ((token, float(every[token])), *(each for each in likely[:most] if each[0] != token))
