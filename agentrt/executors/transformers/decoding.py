"""One call on a causal model, step by step: its prompt in chunks, then token by token."""

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
"""What a tokenizer gives for bytes that are only a part of a character."""


class OutputText:
    """Turns tokens into pieces of text. What may become a stop string is held back.

    ``stopped`` is true once a stop string was there; the text ends before it. A text that is
    wanted as a ``whole``, without stop strings, comes at its end.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str], *, whole: bool = False) -> None:
        self.stopped = False
        self._whole = whole
        self._tokenizer = tokenizer
        self._stops = [stop for stop in stops if stop]
        self._ids: list[int] = []
        self._from = self._given = 0
        self._held = ""

    def add(self, token: int) -> str:
        """One more token: the piece of text that is certain now."""
        self._ids.append(token)
        if self._whole:
            return ""
        before, now = self._decode(self._from, self._given), self._decode(self._from)
        if now.endswith(_PART):
            return ""
        self._from, self._given = self._given, len(self._ids)
        return self._certain(now[len(before) :])

    def end(self) -> str:
        """There are no more tokens: what was still held back."""
        if self.stopped:
            return ""
        before, now = self._decode(self._from, self._given), self._decode(self._from)
        return self._held + now[len(before) :]

    def _certain(self, piece: str) -> str:
        self._held += piece
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._held[: min(found)]
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
    """How many characters at the end of ``text`` may be the beginning of ``stop``."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)


_CHUNK = 256
"""So many tokens of a prompt are computed at once; between them a call can be cancelled."""


@dataclass(frozen=True, slots=True)
class Step:
    """What came of a step: nothing while the prompt is computed."""

    text: str = ""
    token_ids: tuple[int, ...] = ()


class Decoding:
    """A call of bare token ids. `steps` computes; the other attributes say what has come of it.

    ``cached`` tokens of the prompt needed no computing. Without ``stream`` the steps have no text,
    but for the last one. Raises `CallRejectedError` for what cannot
    be asked of this executor.
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

    def steps(self) -> Generator[Step, None, None]:
        """Each one a forward of the model. Its end keeps what was computed for later calls."""
        # What is scored has to be computed, and so has what the next token hangs on.
        most = min(len(self.prompt), self.sampling.score_from or len(self.prompt)) - 1
        cache = self._prefixes.longest(self._sharing, self.prompt, most) or self._empty
        cache.calls = frozenset([self._call_id])
        self.cached = len(cache.ids)
        said = OutputText(self._model.tokenizer, self.sampling.stop, whole=self._whole)
        try:
            logits = yield from self._read(cache)
            while True:
                step = self._say(self._choose(logits[-1]), logits[-1], said)
                if self.reason:
                    break
                yield step
                logits = self._model.extend(cache, step.token_ids)
        finally:
            if cache.ids and self._model.plain:
                self._prefixes.put(self._sharing, cache)
        yield step

    def _read(self, cache: TextCache) -> Generator[Step, None, Tensor]:
        """Compute the prompt, and return the logits after it."""
        logits: Tensor | None = None
        for chunk in self._chunks():
            if logits is not None:
                yield Step()
            if self.sampling.attention is not None and len(cache.ids) == len(self.prompt) - 1:
                # Nothing can be cut off what has forgotten some of its tokens, and the next
                # call with this prompt needs all but the last.
                self._prefixes.put(self._sharing, cache.first(len(cache.ids)))
            logits = self._model.extend(cache, chunk, self._rows(cache.ids, chunk))
            self._score(logits, len(cache.ids))
        assert logits is not None
        return logits

    def _chunks(self) -> Iterator[list[int]]:
        """What of the prompt is computed at once; with an attention its last token by itself."""
        end = len(self.prompt)
        border = end if self.sampling.attention is None else end - 1
        for start in range(self.cached, border, _CHUNK):
            yield self.prompt[start : min(start + _CHUNK, border)]
        if border < end:
            yield self.prompt[border:]

    def _rows(self, before: list[int], chunk: list[int]) -> int:
        """How many of a chunk's logits are needed: the last, and those before what is scored."""
        first = self.sampling.score_from
        end = len(before) + len(chunk)
        return 1 if first is None else max(1, min(len(chunk), end - first + 1))

    def _score(self, logits: Tensor, end: int) -> None:
        """Score the tokens that follow those of a chunk, which ends before ``end``."""
        first = self.sampling.score_from
        if first is None:
            return
        for place, row in enumerate(logits, start=end - len(logits) + 1):
            if first <= place < len(self.prompt):
                found = logprobs_of(row, self.prompt[place], self.sampling.score_top)
                self.prompt_logprobs.append(found)

    def _say(self, token: int, logits: Tensor, said: OutputText) -> Step:
        """The next token of the output, and whether it is the last."""
        self.ids.append(token)
        if self.sampling.logprobs is not None:
            most, allowed = self.sampling.logprobs, self.sampling.allowed_token_ids
            self.token_logprobs.append(logprobs_of(logits, token, most, allowed))
        ends = token in self._ends
        text = "" if ends else said.add(token)
        if ends or said.stopped:
            self.reason = "stop"
        elif len(self.ids) >= self._most:
            self.reason = "length"
        if self.reason:
            text += said.end()
        self.text += text
        return Step(text, (token,))


def _checked_prompt(model: CausalModel, call: Call, sampling: Sampling) -> list[int]:
    fault = _fault(model, call.spec, sampling)
    if fault is not None:
        raise CallRejectedError(f"call {call.call_id}: {fault}")
    return list(call.spec.prompt_token_ids or ())


def _fault(model: CausalModel, spec: CallSpec, sampling: Sampling) -> str | None:
    """What of a call cannot be; None for nothing."""
    prompt, allowed = spec.prompt_token_ids, sampling.allowed_token_ids
    if not prompt:
        return "the transformers executor takes prompts of token ids, of at least one token"
    if sampling.logits:
        return (
            "the transformers executor has no logits processors (logits=); run the program with "
            "--engine vllm, or choose among next_tokens() in the program"
        )
    for token in (*prompt, *(allowed or ())):
        if not 0 <= token < model.vocabulary:
            return f"{token} is no token of model {model.name!r}, which has {model.vocabulary}"
    if allowed is not None and not allowed:
        return "no token is allowed: name at least one"
    if spec.max_tokens < 1 or spec.temperature < 0:
        return "max_tokens must be at least 1, and the temperature at least 0"
    if not isinstance(sampling.attention, Attention | None):
        return f"attention= takes an Attention of agentrt.contexts, not {sampling.attention!r}"
    return None


def _room(model: CausalModel, call: Call, sampling: Sampling) -> int:
    """How many tokens the output may have at most. Raises `PromptTooLongError`."""
    longest, tokens = model.longest(sampling.attention), len(call.spec.prompt_token_ids or ())
    if longest is None:
        return call.spec.max_tokens
    if tokens >= longest:
        raise PromptTooLongError(
            f"call {call.call_id}: its prompt has {tokens} tokens, and the model takes "
            f"{longest - 1} and one of output; shorten it, or give attention= a window"
        )
    return longest - tokens
