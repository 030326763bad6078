"""The graphs of the server, which are opened with the server's checkpointer and the store of the
caller's tenant.

A factory with parameters may make a different graph for each run, so it is called for each run, and
for each request for the graph's schemas or a thread's state. All other graphs are made once.

A native program (``@program``) becomes a graph with a single node. Its calls stream their tokens to
clients that request the stream mode ``messages`` or ``messages-tuple``. `Context.human` becomes an
interrupt of LangGraph: the run ends with the question, and the run that answers the question calls
the function again from its beginning, as LangGraph does with a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from inspect import getdoc
from typing import Any, cast
from uuid import UUID, uuid4

from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt
from langgraph.func import entrypoint, task
from langgraph.types import Interrupt, interrupt
from pydantic import create_model

from agentrt.errors import AgentrtError, InterruptExpiredError, ProgramLoadError, text_of
from agentrt.executors.chat_api import Answer, Request
from agentrt.integrations.langchain.replies import ChunkMaker
from agentrt.integrations.langgraph.graphs import Access, Factory, Graph, is_factory, open_graph
from agentrt.interrupts.answers import AnswerForm
from agentrt.program import Context, Emitter, ForwardingEmitter, Program
from agentrt.request import Reply
from agentrt.runtime import Runtime
from agentrt.serving.langgraph._compat import message_streams
from agentrt.serving.langgraph.database.interrupts import EXPIRED, deadline_for
from agentrt.serving.langgraph.database.storage import Storage
from agentrt.serving.langgraph.responses import not_found
from agentrt.serving.langgraph.store import TenantStore
from agentrt.serving.server import Served, ServedGraph, ServedProgram, Server
from agentrt.steady import SteadyClock

_PROGRAM: ContextVar[Context] = ContextVar("agentrt_native_program")
_INPUT = "input"


def as_graph(program: Program, runtime: Runtime, clock: SteadyClock) -> Graph:
    """Turn ``program`` into a graph of LangGraph's functional API. The program's questions expire
    by ``clock``.
    """

    async def run(input: dict[str, Any]) -> Any:
        outer = _PROGRAM.get()
        live = runtime.emitter(runtime.runs[outer.run_id])
        emitter = _GraphEmitter(live, TokenStream(get_config()), clock)
        context = Context(outer.run_id, outer.program_type, emitter)
        try:
            return await program(context, program.accept_input(input[_INPUT]))
        except (GraphInterrupt, BaseExceptionGroup) as error:
            interrupts = _interrupts_in(error)
            if interrupts is None:
                raise
            raised = [each for interrupted in interrupts for each in interrupted.args[0]]
            questions = {each.id: each for each in (*await emitter.questions(), *raised)}
            raise GraphInterrupt(tuple(questions.values())) from None

    run.__name__ = run.__qualname__ = program.name
    return entrypoint()(run)


def enter_program(context: Context) -> None:
    """Make ``context`` the context of the native program that the current task runs."""
    _PROGRAM.set(context)


def native_input(value: Any) -> dict[str, Any]:
    """Wrap the input of a native program for its graph. None is a valid input."""
    return {_INPUT: value}


class _GraphEmitter(ForwardingEmitter):
    """An emitter that asks humans through LangGraph's interrupts, and streams the ``tokens`` of
    calls.
    """

    def __init__(self, inner: Emitter, tokens: TokenStream, clock: SteadyClock) -> None:
        super().__init__(inner)
        self._tokens, self._clock = tokens, clock
        self._asking: list[asyncio.Future[Any]] = []

    async def call(self, request: Request, after: Iterable[Reply]) -> Reply:
        if not self._tokens.wanted or request.get("n", 1) != 1:
            return await self.inner.call(request, after)
        replies: list[Reply] = []
        async with aclosing(self.stream(request, after, replies.append)) as pieces:
            async for _ in pieces:
                pass
        return replies[0]

    def stream(
        self, request: Request, after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncGenerator[Answer, None]:
        return self._tokens.of(self.inner.stream(request, after, put))

    async def human(
        self, text: str | Reply, form: AnswerForm, timeout: float | None, after: Iterable[Reply]
    ) -> Any:
        question = str(text)
        payload: dict[str, Any] = {"question": question}
        if form.schema is not None:
            payload["schema"] = form.schema
        if timeout is not None:
            payload |= deadline_for(timeout, self._clock)
        answer = await self._answer(payload if len(payload) > 1 else question)
        if timeout is not None and answer == EXPIRED:
            raise InterruptExpiredError(f"nobody answered within {timeout:g} s: {question!r}")
        # Without a schema, clients may answer with any JSON.
        return answer if form.schema is None else form.accept(answer)

    async def questions(self) -> list[Interrupt]:
        """Return the questions that the program has asked and nobody has answered."""
        results = await asyncio.gather(*self._asking, return_exceptions=True)
        interrupts = [result for result in results if isinstance(result, GraphInterrupt)]
        return [each for interrupted in interrupts for each in interrupted.args[0]]

    async def _answer(self, payload: Any) -> Any:
        """Return the answer to a question.

        Each question is a LangGraph task, so that several questions have different ids and can be
        answered in any order. The task is shielded, so that a question counts as asked even if the
        program is cancelled because of another question.
        """
        asking: asyncio.Future[Any] = asyncio.ensure_future(question(payload))
        asking.add_done_callback(_note_exception)
        self._asking.append(asking)
        return await asyncio.shield(asking)


def _note_exception(asking: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved, because a program may end without awaiting the question."""
    if not asking.cancelled():
        asking.exception()


def _interrupts_in(error: BaseException) -> list[GraphInterrupt] | None:
    """Return the interrupts that ended a program, or None if ``error`` contains any other error."""
    if isinstance(error, GraphInterrupt):
        return [error]
    if not isinstance(error, BaseExceptionGroup):
        return None
    parts = [_interrupts_in(inner) for inner in error.exceptions]
    if any(part is None for part in parts):
        return None
    return [interrupted for part in parts if part is not None for interrupted in part]


@task
async def question(payload: Any) -> Any:
    """Ask a human, in a task of the program's graph."""
    return interrupt(payload)


# -- tokens ---------------------------------------------------------------------------------


class TokenStream:
    """Sends the tokens of a program's calls to the message streams that the node's ``config`` has,
    as LangGraph does for chat models.
    """

    def __init__(self, config: RunnableConfig) -> None:
        self._streams = message_streams(config)
        self._metadata = config.get("metadata") or {}

    @property
    def wanted(self) -> bool:
        """Whether a client has requested messages in stream modes."""
        return bool(self._streams)

    async def of(self, pieces: AsyncIterator[Answer]) -> AsyncGenerator[Answer, None]:
        """Yield the pieces of a call's answer as they come, and stream each of them."""
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


# -- the graphs of the server --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs of the server, by the ``graph_id`` that clients use.

    ``fixed`` are the graphs that are made once. ``factories`` make a graph for each use. ``native``
    are the native programs, whose graphs are among the ``fixed`` graphs.
    """

    fixed: Mapping[str, Graph]
    factories: Mapping[str, ServedGraph]
    native: Mapping[str, Program]
    storage: Storage

    def __contains__(self, name: object) -> bool:
        return name in self.fixed or name in self.factories

    def names(self) -> list[str]:
        """Return the names of all graphs."""
        return [*self.fixed, *self.factories]

    @asynccontextmanager
    async def opened(self, name: str, tenant: str, access: Access) -> AsyncIterator[Graph]:
        """Open the graph ``name`` with the store of ``tenant``. A graph that a factory makes for
        this use closes when the ``with`` block ends.

        Raises 404 if the graph is not served, and `ProgramLoadError` if the graph cannot be made.
        """
        if name not in self:
            raise not_found("graph", name)
        store = TenantStore(self.storage.store, tenant)
        async with AsyncExitStack() as stack:
            if (graph := self.fixed.get(name)) is None:
                access = replace(access, store=store)
                graph = await made(name, self.factories[name], stack, access)
            yield graph.copy(update={"checkpointer": self.storage.saver, "store": store})

    def varies(self, name: str) -> bool:
        """Return whether a graph may differ between runs."""
        return name in self.factories

    def is_native(self, name: str) -> bool:
        """Return whether a graph is a native program, a ``@program`` function."""
        return name in self.native

    def description(self, name: str) -> str | None:
        """Return the docstring of a native program; None for a program without a docstring, and for
        a graph.
        """
        return (getdoc(self.native[name].function) or None) if name in self.native else None

    def schemas(self, name: str, graph: Graph) -> dict[str, Any]:
        """Return the JSON schemas of an opened graph. The input of a native program has the schema
        of the function's annotation; a program without an input takes null.
        """
        schemas = schemas_of(graph, name)
        if name in self.native:
            own = self.native[name].input_schema()
            schemas["input_schema"] = {"type": "null"} if own is None else own
        return schemas


@asynccontextmanager
async def open_graphs(server: Server, storage: Storage) -> AsyncIterator[Graphs]:
    """Open all graphs and programs that ``server`` serves, except factories with parameters, which
    make a graph for each use. Raises `ProgramLoadError` for a graph that cannot be made.
    """
    fixed: dict[str, Graph] = {}
    factories: dict[str, ServedGraph] = {}
    async with AsyncExitStack() as stack:
        for name, served in server.served.items():
            if isinstance(served, ServedGraph) and varies(name, served):
                factories[name] = served
            else:
                fixed[name] = await opened_graph(
                    name, served, server.runtime, stack, storage.database.clock
                )
        yield Graphs(fixed, factories, server.native, storage)


async def opened_graph(
    name: str,
    served: Served,
    runtime: Runtime,
    stack: AsyncExitStack,
    clock: SteadyClock | None = None,
) -> Graph:
    """Open the graph or program that is served under ``name``, as a graph.

    ``stack`` closes the graph. A factory gets the same arguments as for a request for the graph's
    schemas. The questions of a program expire by ``clock``, by default the runtime's. Raises
    `ProgramLoadError` for a graph that cannot be made.
    """
    if isinstance(served, ServedProgram):
        return as_graph(served.program, runtime, clock or runtime.steady)
    return await made(name, served, stack, Access(purpose="assistants.read"))


def varies(name: str, served: ServedGraph) -> bool:
    """Return whether a graph is a factory with parameters, which may make different graphs. Raises
    `ProgramLoadError` for a factory with unknown parameters.
    """
    try:
        return is_factory(served.value) and Factory(served.value).varies
    except ProgramLoadError as error:
        raise ProgramLoadError(f"{served.source}: {name!r} is not a graph: {error}") from None


async def made(name: str, served: ServedGraph, stack: AsyncExitStack, access: Access) -> Graph:
    """Make the graph that is served under ``name``; ``stack`` closes the graph. Raises
    `ProgramLoadError` if the graph cannot be made.
    """
    try:
        return await open_graph(served.value, stack, access)
    except ProgramLoadError as error:
        raise ProgramLoadError(f"{served.source}: {name!r} is not a graph: {error}") from None
    except AgentrtError as error:
        raise ProgramLoadError(f"{served.source}: {error}") from error
    except Exception as error:
        raise ProgramLoadError(
            f"{served.source}: the function that makes {name!r} raised "
            f"{type(error).__name__}: {text_of(error)}"
        ) from error


def schemas_of(graph: Any, name: str | None = None) -> dict[str, Any]:
    """Return the JSON schemas of a graph; None stands for a schema that cannot be made. The
    config's ``configurable`` has the same schema as the context, or {} if the context has
    none.
    """
    context = _schema(lambda: graph.get_context_jsonschema())
    return {
        "input_schema": input_schema_of(graph),
        "output_schema": _schema(lambda: graph.get_output_jsonschema()),
        "state_schema": _schema(lambda: _state_schema(graph, name)),
        "config_schema": context or {},
        "context_schema": context,
    }


def input_schema_of(graph: Any) -> dict[str, Any] | None:
    """Return the JSON schema of a graph's input, or None."""
    return _schema(lambda: graph.get_input_jsonschema())


def _schema(make: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return the schema that ``make`` returns, or None if ``make`` raises."""
    try:
        return make()
    except Exception:  # a type of the user may raise anything
        return None


def _state_schema(graph: Any, name: str | None) -> dict[str, Any]:
    """Return the schema of a graph's state, which may have more values than its output."""
    values: Any = {key: (graph.channels[key].ValueType, None) for key in graph.stream_channels_list}
    model = create_model(graph.get_name("state", name=name), **values)
    schema: dict[str, Any] = model.model_json_schema()
    return schema


def subgraphs_of(graph: Graph, namespace: str | None, recurse: bool) -> dict[str, Any]:
    """Return the schemas of a graph's subgraphs by their namespaces. ``namespace`` selects a
    subgraph, and ``recurse`` adds the subgraphs of subgraphs.
    """
    subgraphs = graph.get_subgraphs(namespace=namespace, recurse=recurse)
    return {name: schemas_of(subgraph) for name, subgraph in subgraphs}
