"""An engine for tests: it says what the test tells it to, at once and always the same.

    executor = ScriptedExecutor(lambda call: "42")
    async with Runtime(executor) as runtime:
        assert await runtime.start(my_program, "the question").wait() == "42"
    assert len(executor.calls) == 1

Without a function it makes up replies that fit each call: text, a value that obeys the call's
schema, or a call of one of its tools. Nothing sleeps, and no model is loaded.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrt.errors import ConfigError, EngineDiedError
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.toolcalls import output_schema, read_output, with_tools
from agentrt.request import Call, CallReport, CallSpec, Reply, TokenLogprob, ToolCall
from agentrt.scheduler.table import ProgramTotals
from agentrt.testing.madeup import made_up_text, made_up_value

Script = Callable[[Call], str | ToolCall]
"""What the model says to a call: its output as text (JSON where the call has a schema), or
the tool that it calls. What it raises, the program sees as the engine's error."""

_MADE_UP_WORDS = 8


class ScriptedExecutor(Executor):
    """An executor whose replies come from ``script``, or else are made up from ``seed``.

    A token is a word or up to four characters of one. Each takes one engine step of
    ``step_s`` seconds of service, and yields once to the event loop, so that calls of one
    program overlap. There are seats for all: no call waits or is preempted. A scripted
    reply ends at the call's ``max_tokens`` and stop strings, as a model's does; what is made
    up for a schema is whole. ``calls`` are all calls so far, and ``ended`` the programs, with
    the ``totals`` that they came to. ``model`` and ``slots`` are what its `info` says.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        seed: int = 0,
        step_s: float = 0.03,
        model: str = "scripted",
        slots: int | None = None,
    ) -> None:
        self.model = model
        self.slots = slots
        self.calls: list[Call] = []
        self.ended: list[str] = []
        self.totals: dict[str, ProgramTotals | None] = {}
        self._script = script
        self._seed = seed
        self._step_s = step_s
        self._steps = 0
        self._running: dict[str, _Progress] = {}
        self._cut_off: dict[str, CallReport] = {}
        self._open = False

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo((self.model,) if self.model else (), self.slots)

    async def start(self, progress: Progress) -> None:
        self._open = True
        progress("ready")

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.calls.append(call)
        tokens, whole = self._say(call)
        state = _Progress(call.program_id, _prompt_tokens(call.spec), self._steps)
        self._running[call.call_id] = state
        try:
            for token in tokens:
                await self._step(state)
                if stream:
                    yield Chunk(token, None, _logprobs(call.spec, [token]))
        finally:
            del self._running[call.call_id]
            report = state.report(self._step_s)
            if state.steps < len(tokens):
                self._cut_off[call.call_id] = report
        reply = _reply(call, "".join(tokens), report, whole=whole)
        reply = replace(reply, logprobs=_logprobs(call.spec, tokens))
        yield Chunk("", reply) if stream else Chunk(reply.text, reply, reply.logprobs)

    async def aborted(self, call_id: str) -> CallReport:
        return self._cut_off.pop(call_id, CallReport())

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        if program_id not in self.ended:
            self.ended.append(program_id)
            self.totals[program_id] = totals

    async def snapshot(self) -> Mapping[str, Any]:
        running = [
            {"call_id": call_id, "program_id": state.program_id, "level": 0, "preemptions": 0}
            for call_id, state in self._running.items()
        ]
        return {"steps": self._steps, "running": running, "waiting": []}

    async def close(self) -> None:
        self._open = False

    # -- inside ------------------------------------------------------------------------

    async def _step(self, state: _Progress) -> None:
        await asyncio.sleep(0)
        if not self._open:
            raise EngineDiedError("the scripted executor is not running")
        state.steps += 1
        # Calls that run at the same time share their steps, as in a batch.
        self._steps = max(self._steps, state.after_step + state.steps)

    def _say(self, call: Call) -> tuple[list[str], bool]:
        """The tokens of the output, and whether it is whole."""
        spec = call.spec
        if self._script is None:
            return self._make_up(call), True
        said = self._script(call)
        text = (
            json.dumps({"name": said.name, "arguments": said.arguments})
            if isinstance(said, ToolCall)
            else said
        )
        for stop in spec.stop:
            text = text.split(stop)[0]
        tokens = _tokens(text)
        return tokens[: spec.max_tokens], len(tokens) <= spec.max_tokens

    def _make_up(self, call: Call) -> list[str]:
        spec = call.spec
        # By the call, not by the order of arrival: concurrent programs get the same again.
        rng = random.Random(f"{self._seed}/{call.call_id}")
        schema = output_schema(spec)
        if schema is not None:
            return _tokens(json.dumps(made_up_value(schema, rng)))
        if spec.ignore_eos:
            return _tokens(made_up_text(2 * spec.max_tokens, rng))[: spec.max_tokens]
        return _tokens(made_up_text(_MADE_UP_WORDS, rng))[: spec.max_tokens]


@dataclass(slots=True)
class _Progress:
    """A call that runs: ``after_step`` is the engine's last step before it came."""

    program_id: str
    prompt_tokens: int
    after_step: int
    steps: int = 0

    def report(self, step_s: float) -> CallReport:
        return CallReport(
            service_s=self.steps * step_s,
            steps=self.steps,
            arrived_step=self.after_step + 1,
            finished_step=self.after_step + self.steps,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.steps,
        )


def _tokens(text: str) -> list[str]:
    """Pieces that joined are the text again; at least one, as an engine makes."""
    return re.findall(r"\s*\S{1,4}|\s+$", text) or [text]


def _prompt_tokens(spec: CallSpec) -> int:
    if spec.prompt_token_ids is not None:
        return len(spec.prompt_token_ids)
    if spec.messages is None:
        return len(_tokens(spec.prompt or ""))
    return sum(len(_tokens(str(message["content"]))) for message in with_tools(spec))


def _logprobs(spec: CallSpec, tokens: Sequence[str]) -> tuple[TokenLogprob, ...]:
    """Every token is certain, and the others are not."""
    if spec.logprobs is None:
        return ()
    others = tuple((f" other{n}", -9.0 - n) for n in range(1, spec.logprobs))
    return tuple(
        TokenLogprob(token, 0.0, ((token, 0.0), *others) if spec.logprobs else ())
        for token in tokens
    )


def _reply(call: Call, output: str, report: CallReport, *, whole: bool) -> Reply:
    try:
        text, tool_calls, parsed = read_output(call.spec, output)
    except (KeyError, TypeError):
        raise ConfigError(
            f"the script says {output!r} to call {call.call_id}, which must call one of its "
            'tools or say {"answer": …}'
        ) from None
    reason = "stop" if whole else "length"
    return Reply(text, reason, tool_calls, parsed, report=report)
