"""An executor for transformers' models, and a call on such a model, step by step: first its prompt
in chunks, then token by token.

Calls that run at the same time take turns after each forward pass.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agentrt.contexts.attention import Attention
from agentrt.errors import (
    CallRejectedError,
    ConfigError,
    EngineDiedError,
    EngineError,
    PromptTooLongError,
)
from agentrt.executors.base import Chunk, Executor, Notification, Progress
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.transformers.cache import PrefixCache, TextCache
from agentrt.executors.transformers.chats import TransformersFrontend
from agentrt.executors.transformers.choosing import Chooser, logprobs_of
from agentrt.executors.transformers.model import CausalModel
from agentrt.extras import install_vllm
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.request.sampling import Sampling, TokenLogprobs

if TYPE_CHECKING:
    from torch import Tensor

# -- a call ------------------------------------------------------------------------------


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
        model attend to the whole text, and no forward pass has failed.
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
                token = self._choose(logits[-1])
                if token is None:
                    self.reason, step = "error", StepOutput()  # as vLLM ends such a call
                    break
                step = self._add_token(token, logits[-1], output)
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
    if spec.max_tokens < 1 or not 0 <= spec.temperature < math.inf:
        return (
            f"max_tokens is {spec.max_tokens}, and temperature is {spec.temperature:g}; max_tokens "
            "must be at least 1, and temperature at least 0 and finite"
        )
    if (fault := _fault_of_sampling(model, sampling)) is not None:
        return fault
    if not isinstance(sampling.attention, Attention | None):
        return f"attention= takes an Attention of agentrt.contexts, not {sampling.attention!r}"
    return None


def _fault_of_sampling(model: CausalModel, sampling: Sampling) -> str | None:
    """Return which sampling option has a value that vLLM refuses, too; None if none has."""
    for token in sampling.stop_token_ids:
        if not 0 <= token < model.vocabulary:
            return (
                f"stop_token_ids has the unknown token id {token}: the ids of model "
                f"{model.name!r} are from 0 to {model.vocabulary - 1}"
            )
    if "" in sampling.stop:
        return "stop has an empty string; leave it out"
    if not 0 < sampling.top_p <= 1:
        return f"top_p is {sampling.top_p:g}; it must be above 0 and at most 1"
    if not 0 <= sampling.min_p <= 1:
        return f"min_p is {sampling.min_p:g}; it must be from 0 to 1"
    if sampling.top_k < -1:
        return f"top_k is {sampling.top_k}; it must be at least 1, or 0 for no limit"
    if sampling.logprobs is not None and sampling.logprobs < 0:
        return f"logprobs is {sampling.logprobs}; it must be at least 0"
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


# -- the executor ------------------------------------------------------------------------


T = TypeVar("T")
_ALONE_S = 0.05
"""Maximum seconds of steps in one turn while only one call is running."""
_NOT_RUNNING = "the transformers executor is not running"


class TransformersExecutor(Executor):
    """Runs a model in this process.

    ``model`` is a folder or a hub name; None means the default model, as with vLLM. At most
    ``slots`` calls run at the same time, and take turns step by step, without priorities. ``dtype``
    is the name of a torch type; by default the model's own on a GPU, and float32 on a CPU. Common
    prefixes of prompts are cached in up to ``cache_bytes`` bytes.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        slots: int = 4,
        dtype: str | None = None,
        cache_bytes: int = 1 << 30,
    ) -> None:
        self.model_name = model
        self.slots = slots
        self.steps = 0
        self.prefixes = PrefixCache(cache_bytes)
        self._dtype = dtype
        self._seats = asyncio.Semaphore(slots)
        self._turns: dict[str, _Turn] = {}
        self._cut_off: dict[str, CallReport] = {}
        self._model: CausalModel | None = None
        self._thread: ThreadPoolExecutor | None = None

    @property
    def info(self) -> ExecutorInfo:
        models = (self.model_name,) if self.model_name else ()
        return ExecutorInfo(models, self.slots, logprobs=True)

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        # OpenMP threads that spin at barriers would take CPU time from the event loop.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        try:
            import transformers
        except ImportError as error:
            raise ConfigError(
                f"this executor needs the packages transformers and torch ({error}), "
                f"which are installed with vLLM; {install_vllm()}"
            ) from error
        transformers.utils.logging.disable_progress_bar()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agentrt-transformers")
        self._model = await self._in_thread(lambda: self._load(progress))
        progress("the engine is ready")

    def _load(self, progress: Progress) -> CausalModel:
        from agentrt.executors.vllm.default_model import default_model

        self.model_name = self.model_name or default_model(progress)
        progress(f"loading {self.model_name} into transformers")
        return CausalModel.load(self.model_name, self._dtype)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        self._model = None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown)
        self.prefixes.entries.clear()

    def alive(self) -> bool:
        return self._thread is not None

    @property
    def model(self) -> CausalModel:
        """The model. Raises `EngineDiedError` if it is not loaded."""
        if self._model is None:
            raise EngineDiedError(_NOT_RUNNING)
        return self._model

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        model = self.model
        decoding = await self._in_thread(
            lambda: Decoding(model, self.prefixes, call, stream=stream)
        )
        turn = self._turns[call.call_id] = _Turn(call, decoding, time.monotonic())
        is_delivered = False
        try:
            async with self._seats:
                turn.arrived_step = self.steps + 1
                async for step in self._steps(turn, stream=stream):
                    if decoding.reason:
                        text = step.text if stream else decoding.text
                        ids = step.token_ids if stream else tuple(decoding.ids)
                        is_delivered = True
                        yield Chunk(text, turn.reply(), token_ids=ids)
                    elif stream and step.token_ids:
                        own = decoding.token_logprobs[-1:] if call.spec.with_logprobs else ()
                        logprobs = tuple(position[0][1] for position in own)
                        yield Chunk(step.text, token_ids=step.token_ids, logprobs=logprobs)
        except (asyncio.CancelledError, GeneratorExit):
            # `aborted` is only called for calls whose last output was not delivered.
            if not is_delivered:
                self._cut_off[call.call_id] = turn.report()
            raise
        finally:
            del self._turns[call.call_id]

    async def _steps(self, turn: _Turn, *, stream: bool) -> AsyncGenerator[StepOutput, None]:
        steps = turn.decoding.steps()
        try:
            while not turn.decoding.reason:
                yield await self._in_thread(lambda: self._take_turn(turn, steps, stream=stream))
        finally:
            if self._thread is not None:
                self._thread.submit(steps.close)  # the thread may be computing a step now

    def _take_turn(
        self, turn: _Turn, steps: Generator[StepOutput, None, None], *, stream: bool
    ) -> StepOutput:
        """Compute a call's next step in the thread, and return the step's output.

        If the call is not streamed and is the only call, this computes several steps and returns
        the output of the last step.
        """
        until = time.monotonic() + _ALONE_S
        step = self._step(turn, steps)
        while not (stream or turn.decoding.reason or len(self._turns) > 1):
            if time.monotonic() > until:
                break
            step = self._step(turn, steps)
        return step

    def _step(self, turn: _Turn, steps: Generator[StepOutput, None, None]) -> StepOutput:
        """Compute a step in the thread: one forward pass of the model."""
        began = time.monotonic()
        turn.waiting_s += began - turn.ready
        self.steps += 1
        turn.steps, turn.finished_step = turn.steps + 1, self.steps
        try:
            step = next(steps)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            raise EngineError(f"call {turn.call.call_id}: transformers failed: {why}") from error
        turn.ready = time.monotonic()
        turn.service_s += turn.ready - began
        return step

    async def _in_thread(self, do: Callable[[], T]) -> T:
        if self._thread is None:
            raise EngineDiedError(_NOT_RUNNING)
        return await asyncio.get_running_loop().run_in_executor(self._thread, do)

    async def aborted(self, call_id: str) -> CallReport:
        return self._cut_off.pop(call_id, CallReport())

    def notify(self, note: Notification) -> None:
        if note.kind == "dropped" and self._thread is not None:
            self._thread.submit(self.prefixes.drop, note.name, note.tokens)

    async def snapshot(self) -> Mapping[str, Any]:
        """Return the running and waiting calls, and ``cached``: the texts in the prefix cache.

        For each text, ``tokens`` is its length, and ``positions`` the number of cached tokens.
        """
        turns = [(turn.steps > 0, turn.described()) for turn in self._turns.values()]
        return {
            "steps": self.steps,
            "sizes": {"max_num_seqs": self.slots},
            "running": [described for runs, described in turns if runs],
            "waiting": [described for runs, described in turns if not runs],
            "cached": [
                {"tokens": len(kept.ids), "positions": len(kept.positions)}
                for _, kept in self.prefixes.entries
            ],
        }

    # -- the front end -----------------------------------------------------------------

    def own_frontend(self, names: Sequence[str]) -> TransformersFrontend:
        return TransformersFrontend(self.model, tuple(names))


@dataclass(slots=True)
class _Turn:
    """A call in progress, and the seconds that it has waited and computed so far.

    ``ready`` is the time at which the call became ready for its next step (seconds on the monotonic
    clock).
    """

    call: Call
    decoding: Decoding
    ready: float
    arrived_step: int = 0
    finished_step: int = 0
    steps: int = 0
    service_s: float = 0.0
    waiting_s: float = 0.0

    def described(self) -> dict[str, Any]:
        return {
            "call_id": self.call.call_id,
            "program_id": self.call.program_id,
            "level": 0,
            "preemptions": 0,
        }

    def report(self) -> CallReport:
        return CallReport(
            prompt_tokens=len(self.decoding.prompt),
            output_tokens=len(self.decoding.ids),
            cached_tokens=self.decoding.cached,
            service_s=self.service_s,
            waiting_s=self.waiting_s,
            steps=self.steps,
            arrived_step=self.arrived_step,
            finished_step=self.finished_step,
        )

    def reply(self) -> Reply:
        done = self.decoding
        return Reply(
            done.text,
            done.reason,
            token_ids=tuple(done.ids),
            report=self.report(),
            token_logprobs=tuple(done.token_logprobs),
            prompt_logprobs=tuple(done.prompt_logprobs),
        )
