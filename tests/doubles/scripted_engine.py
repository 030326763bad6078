"""An engine without weights under vLLM's whole front end: a tokenizer, a configuration, a script.

    engine = ScriptedEngine(lambda call: "<tool_call>…</tool_call>", model=folder)

Chat templates, parsers, detokenization, stop strings and errors are vLLM's own; only what the
model says is scripted, as raw text with its markup, or as token ids.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrt.engines import EngineOptions
from agentrt.errors import CallRejectedError, EngineDiedError
from agentrt.executors.base import Chunk, Executor, FrontSetup, Notification, Progress
from agentrt.executors.chat_api import Frontend
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.vllm.calls import engine_input
from agentrt.executors.vllm.logprobs import LogprobCollector
from agentrt.executors.vllm.options import engine_args, prepare_environment
from agentrt.executors.vllm.processes import in_new_thread
from agentrt.request import Call, CallReport, Reply
from agentrt.scheduler.table import ProgramTotals
from tests.doubles.prefix_cache import PrefixCache
from tests.doubles.token_replay import TokenReplay, model_config_of

RawScript = Callable[[Call], str | Sequence[int]]
"""What the model puts out: text with the markup of its family, or token ids."""


@dataclass(slots=True)
class ScriptedEngine(Executor):
    """Says what ``script`` says, token by token, one engine step of ``step_s`` seconds each.

    ``model`` is a folder with a config.json and a tokenizer; ``flags`` are those of
    `vllm serve`. ``calls`` are all calls so far, ``aborted_calls`` the ids of those that were
    broken off, and ``ended`` the programs that are over. ``replay`` makes vLLM's outputs of what
    it says, once it has started. A ``front`` is used for each runtime, which would open its own.
    ``notes`` are what programs have notified it of.
    With a ``cache`` its calls say how many of their prompts' tokens were cached.
    """

    script: RawScript
    model: str
    flags: tuple[str, ...] = ()
    step_s: float = 0.03
    slots: int | None = None
    calls: list[Call] = field(default_factory=list)
    aborted_calls: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    notes: list[Notification] = field(default_factory=list)
    _config: Any = None
    _renderer: Any = None
    replay: TokenReplay | None = None
    front: Frontend | None = None
    cache: PrefixCache | None = None

    def own_frontend(self, names: Sequence[str]) -> Frontend | None:
        return self.front

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo((self.model,), self.slots)

    async def start(self, progress: Progress) -> None:
        if self._config is None:
            options = EngineOptions(model=self.model, flags=self.flags)
            prepare_environment(options)
            args = engine_args(options, self.model, on_gpu=False)
            self._config, self._renderer, processor = await in_new_thread(model_config_of, args)
            self.replay = TokenReplay(processor, _TASKS)
        progress("ready")

    async def front_setups(self) -> tuple[FrontSetup, ...]:
        return (FrontSetup(self.model, self._config, _TASKS, self.flags),)

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        if self.replay is None:
            raise EngineDiedError("the scripted engine is not running")
        self.calls.append(call)
        room = self._config.model_config.max_model_len
        prompt, params, options = engine_input(call, room, stream=stream)
        over, ids = False, list[int]()
        with self._cached(call, ids) as cached:
            try:
                tokens = self.tokens(self.script(call))
                logprobs = None if call.spec.sampling is None else LogprobCollector(call.spec)
                for output in self.replay.outputs(
                    call.call_id, prompt, params, options, tokens, cached
                ):
                    await asyncio.sleep(0)
                    over, last = output.finished, output.outputs[0]
                    ids += last.token_ids
                    if logprobs is not None:
                        logprobs.add(output)
                    reply = self._reply(call, last, ids, logprobs, cached or 0) if over else None
                    yield Chunk(last.text, reply, output, tuple(last.token_ids))
            except CallRejectedError:
                over = True
                raise
            finally:
                if not over:
                    self.aborted_calls.append(call.call_id)

    @contextlib.contextmanager
    def _cached(self, call: Call, ids: Sequence[int]) -> Iterator[int | None]:
        """Hold a call in the cache, with the ``ids`` of its output as it ends. Give the number of
        the prompt's tokens that were cached; None without a cache.
        """
        prompt = call.spec.prompt_token_ids
        if self.cache is None or not prompt:
            yield None
            return
        with self.cache.holding(call.call_id, prompt, call.spec.cache_salt) as held:
            try:
                yield held.count
            finally:
                held.add(ids)

    def tokens(self, said: str | Sequence[int]) -> list[int]:
        if not isinstance(said, str):
            return list(said)
        tokenizer = self._renderer.get_tokenizer()
        return [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]

    def _reply(
        self,
        call: Call,
        last: Any,
        ids: Sequence[int],
        logprobs: LogprobCollector | None,
        cached: int,
    ) -> Reply:
        steps = len(ids)
        report = CallReport(
            service_s=steps * self.step_s,
            steps=steps,
            prompt_tokens=len(call.spec.prompt_token_ids or ()),
            output_tokens=steps,
            cached_tokens=cached,
        )
        reason = last.finish_reason or "stop"
        reply = Reply(last.text, reason, token_ids=tuple(ids), report=report)
        return reply if logprobs is None else logprobs.added_to(reply)

    def notify(self, note: Notification) -> None:
        self.notes.append(note)

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        if program_id not in self.ended:
            self.ended.append(program_id)

    async def close(self) -> None:
        """Its tokenizer and configuration stay, for another start."""


_TASKS = ("generate",)
