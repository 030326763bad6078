"""Native programs as graphs of LangGraph, each of one node. Its calls of the model stream their
tokens to clients that ask for messages.

`Context.human` becomes an interrupt of LangGraph: the run ends with the question, and the run that
answers it starts the function again from its top, as LangGraph does with a node.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, cast
from uuid import UUID, uuid4

from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.func import entrypoint
from langgraph.types import interrupt

from agentrt.errors import InterruptExpiredError
from agentrt.executors.frontend import Answer, Request
from agentrt.integrations.langchain.replies import ChunkMaker
from agentrt.integrations.langgraph.graphs import Graph
from agentrt.interrupts.answers import AnswerForm
from agentrt.program import Context, Program
from agentrt.request import Reply
from agentrt.runtime import Runtime
from agentrt.runtime.emitter import RunEmitter
from agentrt.runtime.run import Run
from agentrt.runtime.services import Services
from agentrt.serving.langgraph._compat import message_streams
from agentrt.serving.langgraph.interrupts import EXPIRED

_PROGRAM: ContextVar[Context] = ContextVar("agentrt_native_program")
_INPUT = "input"


def as_graph(program: Program, runtime: Runtime) -> Graph:
    """``program`` as a graph of LangGraph's functional API."""

    async def run(given: dict[str, Any]) -> Any:
        outer = _PROGRAM.get()
        program_run = runtime.runs[outer.program_id]
        services = runtime.emitter(program_run).services
        emitter = _GraphEmitter(program_run, services, TokenStream(get_config()))
        context = Context(outer.program_id, outer.program_type, emitter)
        return await program(context, given[_INPUT])

    run.__name__ = run.__qualname__ = program.name
    return entrypoint()(run)


def enter_program(context: Context) -> None:
    """Make ``context`` the program that the calling task runs."""
    _PROGRAM.set(context)


def native_input(given: Any) -> dict[str, Any]:
    """A program's input as its graph takes it; None is an input too."""
    return {_INPUT: given}


class _GraphEmitter(RunEmitter):
    """Asks humans through LangGraph's interrupts, and streams the ``tokens`` of calls."""

    def __init__(self, run: Run, services: Services, tokens: TokenStream) -> None:
        super().__init__(run, services)
        self._tokens = tokens

    async def call(self, request: Request, after: Iterable[Reply]) -> Reply:
        if not self._tokens.wanted or request.get("n", 1) != 1:
            return await super().call(request, after)
        replies: list[Reply] = []
        async with aclosing(self.stream(request, after, replies.append)) as pieces:
            async for _ in pieces:
                pass
        return replies[0]

    def stream(
        self, request: Request, after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncGenerator[Answer, None]:
        return self._tokens.of(super().stream(request, after, put))

    async def human(
        self, text: str, form: AnswerForm, timeout: float | None, after: Iterable[Reply]
    ) -> Any:
        asked: dict[str, Any] = {"question": text}
        if form.schema is not None:
            asked["schema"] = form.schema
        if timeout is not None:
            asked["expires_at"] = time.time() + timeout
        answer = interrupt(asked if len(asked) > 1 else text)
        if answer == EXPIRED:
            raise InterruptExpiredError(f"nobody answered within {timeout:g} s: {text!r}")
        # Without a schema, clients of LangGraph may answer with any JSON.
        return answer if form.schema is None else form.accept(answer)


# -- tokens ---------------------------------------------------------------------------------


class TokenStream:
    """Gives the tokens of a program's calls to the message streams of its node's ``config``, as
    LangGraph gives those of a chat model.
    """

    def __init__(self, config: RunnableConfig) -> None:
        self._streams = message_streams(config)
        self._metadata = config.get("metadata") or {}

    @property
    def wanted(self) -> bool:
        """Whether a client asked for messages."""
        return bool(self._streams)

    async def of(self, pieces: AsyncIterator[Answer]) -> AsyncGenerator[Answer, None]:
        """The pieces of a call's answer as they come, each of them streamed."""
        call, maker = uuid4(), ChunkMaker()
        for stream in self._streams:
            stream.on_chat_model_start({}, [], run_id=call, metadata=dict(self._metadata))
        try:
            async with aclosing(cast("AsyncGenerator[Answer, None]", pieces)) as answer:
                async for piece in answer:
                    self._put(call, maker.chunks(piece))
                    yield piece
        finally:
            for stream in self._streams:
                stream.on_llm_end(LLMResult(generations=[]), run_id=call)

    def _put(self, call: UUID, chunks: Iterable[ChatGenerationChunk]) -> None:
        for chunk in chunks if self.wanted else ():
            chunk.message.id = f"run--{call}"
            for stream in self._streams:
                stream.on_llm_new_token("", chunk=chunk, run_id=call)
