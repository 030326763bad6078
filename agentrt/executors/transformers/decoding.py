"""A call on a causal model, step by step: first its prompt in chunks, then token by token."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrt.contexts.attention import Attention
from agentrt.errors import CallRejectedError, PromptTooLongError
from agentrt.executors.transformers.cache import PrefixCache, TextCache
from agentrt.executors.transformers.choosing import Chooser, logprobs_of
from agentrt.executors.transformers.model import CausalModel
from agentrt.request import Call, CallSpec
from agentrt.request.sampling import Sampling, TokenLogprobs

if TYPE_CHECKING:
    from torch import Tensor


_PART = "\ufffd"
"""The replacement character, which a tokenizer returns for an incomplete character."""


class OutputText:
    """Converts tokens to pieces of text. Text that may be the beginning of a stop string is held
    back.

    ``stopped`` is true after a stop string; the text ends before this string. With ``whole``, all
    text is returned at the end; this requires that there are no stop strings.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str], *, whole: bool = False) -> None:
        self.stopped = False
        self._whole = whole
        self._tokenizer = tokenizer
        self._stops = [stop for stop in stops if stop]
        self._ids: list[int] = []
        self._from = self._decoded = 0
        self._held = ""

    def add(self, token: int) -> str:
        """Add a token, and return the new text that no later token can change."""
        self._ids.append(token)
        if self._whole:
            return ""
        before, now = self._decode(self._from, self._decoded), self._decode(self._from)
        if now.endswith(_PART):
            return ""
        self._from, self._decoded = self._decoded, len(self._ids)
        return self._certain(now[len(before) :])

    def end(self) -> str:
        """End the output, and return the text that was held back."""
        if self.stopped:
            return ""
        before, now = self._decode(self._from, self._decoded), self._decode(self._from)
        return self._held + now[len(before) :]

    def _certain(self, piece: str) -> str:
        self._held += piece
        stops = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if stops:
            self.stopped = True
            return self._held[: min(stops)]
        longest = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        size = len(self._held) - longest
        certain, self._held = self._held[:size], self._held[size:]
        return certain

    def _decode(self, start: int, end: int | None = None) -> str:
        text: str = self._tokenizer.decode(
            self._ids[start:end], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of ``stop``."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)


_CHUNK = 256
"""Maximum number of prompt tokens in a step. A call can be cancelled only between steps."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The output of a step; empty while the prompt is computed."""

    text: str = ""
    token_ids: tuple[int, ...] = ()


class Decoding:
    """The computation of a call whose prompt is token ids. `steps` computes the call; the
    attributes have the results so far.

    ``cached`` is the number of prompt tokens that were cached. ``reason`` is the finish reason; ""
    until the end. Without ``stream`` and without stop strings, only the last step has text. Raises
    `CallRejectedError` for a call that this executor does not support, and `PromptTooLongError` if
    the prompt leaves no room for output.
    """

    def __init__(
        self, model: CausalModel, prefixes: PrefixCache, call: Call, *, stream: bool = True
    ) -> None:
        self.sampling = call.spec.sampling or Sampling()
        self.prompt = _checked_prompt(model, call, self.sampling)
        self.cached = 0
        self.ids: list[int] = []
        self.text = self.reason = ""
        self.token_logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self._top = self.sampling.logprobs
        if self._top is None and call.spec.with_logprobs:
            self._top = 0
        self._model, self._prefixes, self._call_id = model, prefixes, call.call_id
        self._empty = model.start(self.sampling.attention)
        self._whole = not (stream or self.sampling.stop)
        self._most = min(call.spec.max_tokens, _room(model, call, self.sampling))
        self._sharing = call.spec.cache_salt, self.sampling.attention
        ends = frozenset() if call.spec.ignore_eos else model.stops
        self._ends = ends | set(self.sampling.stop_token_ids)
        constraint = self.sampling.constraint
        following = None if constraint is None else model.grammars.follow(constraint)
        try:
            self._choose = Chooser(call.spec, model.device, following)
        except (ValueError, RuntimeError) as error:
            raise CallRejectedError(f"call {call.call_id}: {error}") from error

    def steps(self) -> Generator[StepOutput, None, None]:
        """Compute the call, one forward pass of the model in each step.

        At the end, the computed keys and values are cached for later calls if all layers of the
        model attend to the whole text.
        """
        # Tokens that are scored must be computed, and so must the last token of the prompt.
        most = min(len(self.prompt), self.sampling.score_from or len(self.prompt)) - 1
        cache = self._prefixes.longest(self._sharing, self.prompt, most) or self._empty
        cache.calls = frozenset([self._call_id])
        self.cached = len(cache.ids)
        output = OutputText(self._model.tokenizer, self.sampling.stop, whole=self._whole)
        try:
            logits = yield from self._read(cache)
            while True:
                step = self._add_token(self._choose(logits[-1]), logits[-1], output)
                if self.reason:
                    break
                yield step
                logits = self._model.extend(cache, step.token_ids)
        finally:
            if cache.ids and self._model.plain:
                self._prefixes.put(self._sharing, cache)
        yield step

    def _read(self, cache: TextCache) -> Generator[StepOutput, None, Tensor]:
        """Prefill the prompt, and return the logits after its last token."""
        logits: Tensor | None = None
        for chunk in self._chunks():
            if logits is not None:
                yield StepOutput()
            if self.sampling.attention is not None and len(cache.ids) == len(self.prompt) - 1:
                # With an attention, the cache drops tokens and cannot be shortened later. The next
                # call with this prompt needs it without the last token: keep a copy.
                self._prefixes.put(self._sharing, cache.first(len(cache.ids)))
            logits = self._model.extend(cache, chunk, self._rows(cache.ids, chunk))
            self._score(logits, len(cache.ids))
        assert logits is not None
        return logits

    def _chunks(self) -> Iterator[list[int]]:
        """Yield the parts of the prompt that are computed in one step each.

        With an attention, the last token is a part of its own.
        """
        end = len(self.prompt)
        border = end if self.sampling.attention is None else end - 1
        for start in range(self.cached, border, _CHUNK):
            yield self.prompt[start : min(start + _CHUNK, border)]
        if border < end:
            yield self.prompt[border:]

    def _rows(self, before: list[int], chunk: list[int]) -> int:
        """Return how many rows of a chunk's logits are needed: the last row, and the rows for
        scored tokens.
        """
        first = self.sampling.score_from
        end = len(before) + len(chunk)
        return 1 if first is None else max(1, min(len(chunk), end - first + 1))

    def _score(self, logits: Tensor, end: int) -> None:
        """Score prompt tokens by the logits of a chunk that ends before position ``end``."""
        first = self.sampling.score_from
        if first is None:
            return
        for position, row in enumerate(logits, start=end - len(logits) + 1):
            if first <= position < len(self.prompt):
                logprobs = logprobs_of(row, self.prompt[position], self.sampling.score_top)
                self.prompt_logprobs.append(logprobs)

    def _add_token(self, token: int, logits: Tensor, output: OutputText) -> StepOutput:
        """Add a token to the output, and set ``reason`` if the token is the last."""
        self.ids.append(token)
        if self._top is not None:
            allowed = self.sampling.allowed_token_ids
            self.token_logprobs.append(logprobs_of(logits, token, self._top, allowed))
        ends = token in self._ends
        text = "" if ends else output.add(token)
        if ends or output.stopped:
            self.reason = "stop"
        elif len(self.ids) >= self._most:
            self.reason = "length"
        if self.reason:
            text += output.end()
        self.text += text
        return StepOutput(text, (token,))


def _checked_prompt(model: CausalModel, call: Call, sampling: Sampling) -> list[int]:
    fault = _fault(model, call.spec, sampling)
    if fault is not None:
        raise CallRejectedError(f"call {call.call_id}: {fault}")
    return list(call.spec.prompt_token_ids or ())


def _fault(model: CausalModel, spec: CallSpec, sampling: Sampling) -> str | None:
    """Return why this executor cannot run a call; None if it can."""
    prompt, allowed = spec.prompt_token_ids, sampling.allowed_token_ids
    if not prompt:
        return "the transformers executor needs a prompt of at least one token id"
    if sampling.logits:
        return (
            "the transformers executor has no logits processors (logits=); run the program with "
            "--engine vllm, or choose among next_tokens() in the program"
        )
    for token in (*prompt, *(allowed or ())):
        if not 0 <= token < model.vocabulary:
            return (
                f"unknown token id {token}: the ids of model {model.name!r} are from 0 to "
                f"{model.vocabulary - 1}"
            )
    if allowed is not None and not allowed:
        return "allowed= is empty; it needs at least one token id"
    if spec.max_tokens < 1 or spec.temperature < 0:
        return (
            f"max_tokens is {spec.max_tokens}, and temperature is {spec.temperature:g}; max_tokens "
            "must be at least 1, and temperature at least 0"
        )
    if not isinstance(sampling.attention, Attention | None):
        return f"attention= takes an Attention of agentrt.contexts, not {sampling.attention!r}"
    return None


def _room(model: CausalModel, call: Call, sampling: Sampling) -> int:
    """Return the maximum number of output tokens. Raises `PromptTooLongError` if the prompt leaves
    no room for output.
    """
    longest, tokens = model.longest(sampling.attention), len(call.spec.prompt_token_ids or ())
    if longest is None:
        return call.spec.max_tokens
    if tokens >= longest:
        raise PromptTooLongError(
            f"call {call.call_id}: the prompt has {tokens} tokens, and the model takes at most "
            f"{longest - 1} (one position is left for the output); shorten the prompt, or use "
            "attention= with a window"
        )
    return longest - tokens
