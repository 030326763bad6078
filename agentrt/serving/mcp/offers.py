"""The offers of the MCP server: each served program and graph as a tool with an input schema."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from agentrt.errors import ConfigError, ProgramLoadError, ToolArgumentsError
from agentrt.integrations._compat.langgraph import QUESTIONS
from agentrt.integrations.langgraph.graphs import (
    Access,
    Graph,
    program_of_graph,
    program_result,
)
from agentrt.integrations.langgraph.inputs import input_fields
from agentrt.integrations.langgraph.threads import answer, memory_saver, thread_config
from agentrt.interrupts.answers import AnswerForm
from agentrt.interrupts.questions import Question
from agentrt.interrupts.schema import mistake_in
from agentrt.program import Context, Program
from agentrt.runtime import Runtime
from agentrt.serving.langgraph.assistants.graphs import made, opened_graph, schemas_of, varies
from agentrt.serving.langgraph.responses import to_json
from agentrt.serving.server import ServedGraph, ServedProgram, Server

Begin = Callable[[Mapping[str, Any]], tuple[Program, Any]]
_INPUT = "input"
_DEFINITIONS = ("$defs", "definitions")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool of the MCP server.

    ``begin`` returns the program to run for the tool's arguments, and the program's input. It
    raises `ToolArgumentsError` for arguments that do not match ``schema``. For a graph, it checks
    only the names of the arguments.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    begin: Begin


async def offers_of(server: Server, stack: AsyncExitStack, *, graphs: bool) -> dict[str, Offer]:
    """Return the tools of ``server``, by name; without ``graphs``, only the programs.

    Raises `ProgramLoadError` for a value that is not a graph, and for a graph that cannot be made,
    unless the graph may differ between runs (`varies`).
    """
    offers: dict[str, Offer] = {}
    for name, served in server.served.items():
        if isinstance(served, ServedProgram):
            offers[name] = _of_program(name, served.program)
        elif graphs and varies(name, served):
            offers[name] = await _of_factory(name, served, server.runtime)
        elif graphs:
            graph = await opened_graph(name, served, server.runtime, stack)
            offers[name] = _of_graph(name, _form_of(name, graph), _always(graph), server.runtime)
    return offers


# -- programs -----------------------------------------------------------------------------


def _of_program(name: str, program: Program) -> Offer:
    parameter, schema = _input_of(program)

    def begin(arguments: Mapping[str, Any]) -> tuple[Program, Any]:
        if (wrong := mistake_in(arguments, schema)) is not None:
            raise ToolArgumentsError(f"tool {name}: wrong arguments: {wrong}", name=name)
        try:
            return program, program.accept_input(arguments.get(parameter))
        except ConfigError as error:
            raise ToolArgumentsError(f"tool {name}: {error}", name=name) from error

    return Offer(name, inspect.getdoc(program) or f"The program {name}.", schema, begin)


def _input_of(program: Program) -> tuple[str, dict[str, Any]]:
    """Return the name of a program's input ("" without an input), and the JSON schema of the tool's
    arguments.
    """
    if not program.takes_input:
        return "", {"type": "object", "properties": {}, "additionalProperties": False}
    name = program.input_name
    schema = {**_object_with(name, program.input_schema() or {}), "additionalProperties": False}
    if program.needs_input:
        schema["required"] = [name]
    return name, schema


def _object_with(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object whose property ``name`` has this schema.

    The definitions move to the root, because references such as ``#/$defs/Item`` begin there.
    """
    own = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    moved = {key: schema[key] for key in _DEFINITIONS if key in schema}
    return {"type": "object", "properties": {name: own}, **moved}


# -- graphs -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _InputForm:
    """The form of a graph's input: the JSON schema of a tool's arguments, and whether the arguments
    are the graph's input themselves (``is_whole``) or have the input under the name ``input``.
    """

    schema: Mapping[str, Any]
    is_whole: bool


_UNKNOWN_FORM = _InputForm({"type": "object"}, is_whole=True)
_Opener = Callable[[RunnableConfig, BaseStore, AsyncExitStack], Awaitable[Graph]]
"""Opens a graph for a run with a config and a store. The graph stays open until the stack is
closed.
"""


async def _of_factory(name: str, served: ServedGraph, runtime: Runtime) -> Offer:
    """Return the tool of a graph that is made for each run.

    Some factories work only with the config or the context of a run. If the factory fails here,
    without them, the tool takes any object.
    """

    async def opened(config: RunnableConfig, store: BaseStore, stack: AsyncExitStack) -> Graph:
        return await made(name, served, stack, Access(config, "threads.create_run", store=store))

    form = _UNKNOWN_FORM
    try:
        async with AsyncExitStack() as stack:
            form = _form_of(name, await opened_graph(name, served, runtime, stack))
    except ProgramLoadError as error:
        _LOG.warning(
            "the MCP tool %s takes any object, since its graph cannot be made without a run: %s",
            name,
            error,
        )
    return _of_graph(name, form, opened, runtime)


def _always(graph: Graph) -> _Opener:
    async def opened(config: RunnableConfig, store: BaseStore, stack: AsyncExitStack) -> Graph:
        return graph

    return opened


def _of_graph(name: str, form: _InputForm, open_graph: _Opener, runtime: Runtime) -> Offer:
    def begin(arguments: Mapping[str, Any]) -> tuple[Program, Any]:
        schema = form.schema
        missing = [key for key in schema.get("required", ()) if key not in arguments]
        known = schema.get("properties")
        allowed = ", ".join(known or ()) or "none"
        unknown = [] if known is None else [key for key in arguments if key not in known]
        if missing or unknown:
            fault = (
                f"missing arguments: {', '.join(missing)}"
                if missing
                else f"unknown arguments: {', '.join(unknown)}; use {allowed}"
            )
            raise ToolArgumentsError(f"tool {name}: {fault}", name=name)
        graph_input = dict(arguments) if form.is_whole else arguments[_INPUT]
        return _Thread(name, open_graph, runtime).program(), graph_input

    return Offer(name, f"The graph {name}.", form.schema, begin)


def _form_of(name: str, graph: Graph) -> _InputForm:
    """Return the form of a graph's input. If the input has fields but no schema of an object, the
    form names the fields and allows all values. An input without fields is the argument ``input``.
    """
    fields = input_fields(graph)
    schema = schemas_of(graph, name)["input_schema"] or {}
    if fields is None:
        whole = {**_object_with(_INPUT, schema), "required": [_INPUT]}
        return _InputForm(whole, is_whole=False)
    if schema.get("type") == "object" and "properties" in schema:
        return _InputForm(schema, is_whole=True)
    return _InputForm(
        {"type": "object", "properties": {field: {} for field in fields}}, is_whole=True
    )


class _Thread:
    """A run of a graph in a temporary thread. The run uses the graph's own store, or a temporary
    store if the graph has none.

    Each interrupt of the graph becomes a question to a human, and the answers continue the run.
    """

    def __init__(self, name: str, open_graph: _Opener, runtime: Runtime) -> None:
        self._name, self._open = name, open_graph
        self._config = thread_config(uuid4().hex)
        self._questions = runtime.questions
        self._runs = runtime.runs

    def program(self) -> Program:
        """Return the program that runs the graph."""
        return program_of_graph(self._run, self._name)

    async def _run(self, ctx: Context, graph_input: Any) -> Any:
        store = InMemoryStore()
        async with AsyncExitStack() as stack:
            graph = await self._open(self._config, store, stack)
            own = {"checkpointer": memory_saver(), "store": graph.store or store}
            graph = graph.copy(update=own)
            values = await self._until_answered(ctx, graph, graph_input)
            return await program_result(graph, self._config, values)

    async def _until_answered(self, ctx: Context, graph: Graph, graph_input: Any) -> Any:
        while True:
            result = await graph.ainvoke(graph_input, self._config, durability="exit")
            openeds = result.get(QUESTIONS, ()) if isinstance(result, dict) else ()
            if not openeds:
                return result if isinstance(result, dict) else to_json(result)
            graph_input = answer(
                {question.id: await self._ask(ctx, question.value) for question in openeds}
            )

    async def _ask(self, ctx: Context, value: Any) -> Any:
        """Ask the question of an interrupt, and return the answer, which may be any JSON.

        The question gets no node, because the interrupt has a node in the program's graph already.
        """
        tenant = self._runs[ctx.run_id].row.tenant
        text = value if isinstance(value, str) else str(to_json(value))
        form = AnswerForm({})
        question = Question(text, ctx.run_id, ctx.program_type, tenant, form)
        return await self._questions.ask(question)
