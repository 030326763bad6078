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
import random
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.info import ExecutorInfo, display_name
from agentrt.request import Call, CallReport, CallSpec, Reply, ToolCall
from agentrt.scheduler.table import ProgramTotals
from tests.doubles.choices import Choice, Output, pieces_of, tokens_of
from tests.doubles.madeup import made_up_output, made_up_text

_MADE_UP_WORDS = 8


Script = Callable[[Call], str | ToolCall | Output]
"""What the model says to a call: its answer's text (JSON where the call has a schema), the tool
that it calls, or all of an `Output`. What it raises, the program sees as the engine's error."""


class ScriptedExecutor(Executor):
    """An executor whose replies come from ``script``, or else are made up from ``seed``.

    It takes requests as they are (``call.spec.request``), so that no chat template or parser is
    needed. A token is a word or up to four characters of one. Each takes one engine step of
    ``step_s`` seconds of service, and yields once to the event loop, so that calls of one
    program overlap. Each call has a slot: none waits or is preempted. A scripted
    reply ends at the call's ``max_tokens`` and stop strings, as a model's does; what is made
    up for a schema is whole. ``calls`` are all calls so far, and ``ended`` the programs, with
    the ``totals`` that they came to. ``model``, ``slots`` and ``images`` are what its `info` says.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        seed: int = 0,
        step_s: float = 0.03,
        model: str = "scripted",
        slots: int | None = None,
        images: bool = False,
    ) -> None:
        self.model = model
        self.slots = slots
        self.images = images
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
        return ExecutorInfo((self.model,) if self.model else (), self.slots, images=self.images)

    async def start(self, progress: Progress) -> None:
        self._open = True
        progress("ready")

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.calls.append(call)
        _check_readable(call.spec)
        said = [self._say(call, choice) for choice in range(_choices(call.spec))]
        pieces = [piece for one in said for piece in one.pieces]
        state = _Progress(call.program_id, _prompt_tokens(call.spec), self._steps)
        self._running[call.call_id] = state
        try:
            for piece in pieces:
                await self._step(state)
                if stream:
                    yield Chunk(piece.text, output=self._chunk(call, [piece.delta()]))
        finally:
            del self._running[call.call_id]
            report = state.report(self._step_s)
            if state.steps < len(pieces):
                self._cut_off[call.call_id] = report
        reply = Reply("".join(piece.text for piece in pieces), report=report)
        if stream:
            ends = self._chunk(call, [one.end() for one in said])
            yield Chunk("", reply, output={**ends, "usage": _usage(report)})
        else:
            whole = self._chunk(call, [one.whole() for one in said])
            answer = {**whole, "object": "chat.completion", "usage": _usage(report)}
            yield Chunk(reply.text, reply, output=answer)

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

    def _chunk(self, call: Call, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{call.call_id}",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": display_name(self.model),
            "choices": choices,
        }

    def _say(self, call: Call, choice: int) -> Choice:
        """What one choice of a call is, as far as its ``max_tokens`` go."""
        spec = call.spec
        request = spec.request or {}
        if self._script is None:
            output = self._make_up(call, choice)
        else:
            said = self._script(call)
            output = Output(tool_calls=(said,)) if isinstance(said, ToolCall) else said
        if isinstance(output, str):
            output = Output(output)
        text = output.text
        for stop in _stops(request):
            text = text.split(stop)[0]
        pieces = [*pieces_of(choice, replace(output, text=text), call.call_id)]
        if request.get("logprobs"):
            most = request.get("top_logprobs") or 0
            pieces = [replace(piece, top_logprobs=most) for piece in pieces]
        fits = self._script is None and "response_format" in request
        kept = pieces if fits else pieces[: spec.max_tokens]
        return Choice(choice, kept, is_whole=len(kept) == len(pieces))

    def _make_up(self, call: Call, choice: int) -> Output | str:
        spec = call.spec
        # By the call, not by the order of arrival: concurrent programs get the same again.
        salt = f"/{choice}" if choice else ""
        rng = random.Random(f"{self._seed}/{call.call_id}{salt}")
        made = made_up_output(spec.request or {}, rng)
        if made is not None:
            return made if isinstance(made, str) else Output(tool_calls=(made,))
        if (spec.request or {}).get("ignore_eos", spec.ignore_eos):
            return made_up_text(2 * spec.max_tokens, rng)
        return made_up_text(_MADE_UP_WORDS, rng)


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


_OBJECT = re.compile(r"\b[A-Z]\w+\([a-z_]+=|<[\w.]+ object at 0x")
"""A Python object's ``repr()``."""


def _check_readable(spec: CallSpec) -> None:
    """Fail for a prompt that shows a Python object where its author meant a text.

    So each page, demo and template that a test runs on this executor is checked.
    """
    for message in spec.messages:
        if shown := _OBJECT.search(str(message.get("content"))):
            at = max(0, shown.start() - 60)
            raise AssertionError(
                f"the prompt has a Python object: …{shown.string[at : shown.end() + 60]}…"
            )


def _choices(spec: CallSpec) -> int:
    return int((spec.request or {}).get("n") or 1)


def _stops(request: Mapping[str, Any]) -> Sequence[str]:
    given = request.get("stop") or ()
    return (given,) if isinstance(given, str) else given


def _prompt_tokens(spec: CallSpec) -> int:
    if spec.prompt_token_ids:
        return len(spec.prompt_token_ids)
    return sum(len(tokens_of(str(message.get("content")))) for message in spec.messages or ())


def _usage(report: CallReport) -> dict[str, Any]:
    return {
        "prompt_tokens": report.prompt_tokens,
        "completion_tokens": report.output_tokens,
        "total_tokens": report.prompt_tokens + report.output_tokens,
    }
