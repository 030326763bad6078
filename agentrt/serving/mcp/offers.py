"""The offers of the MCP server: each served program and graph as a tool with an input schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from agentrt.errors import ConfigError, ToolArgumentsError
from agentrt.integrations._compat.langgraph import QUESTIONS
from agentrt.integrations.langgraph.graphs import (
    Access,
    Graph,
    program_of_graph,
    program_result,
)
from agentrt.integrations.langgraph.inputs import Fields, input_fields
from agentrt.integrations.langgraph.threads import answer, thread_config
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


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool of the MCP server.

    ``begin`` returns the program to run for the tool's arguments, and the program's input. It
    raises `ToolArgumentsError` for arguments that do not match ``schema``.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    begin: Begin


async def offers_of(server: Server, stack: AsyncExitStack, *, graphs: bool) -> dict[str, Offer]:
    """Return the tools of ``server``, by name.

    Raises `ProgramLoadError` for a served value that is not a graph.
    """
    offers: dict[str, Offer] = {}
    for name, served in server.served.items():
        if isinstance(served, ServedProgram):
            offers[name] = _of_program(name, served.program)
        elif graphs:
            graph = await opened_graph(name, served, server.runtime, stack)
            assert isinstance(served, ServedGraph)
            factory = served if varies(name, served) else None
            offers[name] = _of_graph(name, graph, factory, server.runtime)
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
    """Return the name of a program's input ("" without an input), and the arguments' schema."""
    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    if not program.takes_input:
        return "", schema
    name = list(inspect.signature(program.function).parameters)[1]
    schema["properties"][name] = program.input_schema()
    if program.needs_input:
        schema["required"] = [name]
    return name, schema


# -- graphs -------------------------------------------------------------------------------


def _of_graph(name: str, graph: Graph, factory: ServedGraph | None, runtime: Runtime) -> Offer:
    fields = input_fields(graph)
    schema = _schema_of_graph(name, graph, fields)

    def begin(arguments: Mapping[str, Any]) -> tuple[Program, Any]:
        missing = [key for key in schema.get("required", ()) if key not in arguments]
        unknown = [key for key in arguments if key not in schema["properties"]]
        if missing or unknown:
            fault = f"needs {', '.join(missing)}" if missing else f"has no {', '.join(unknown)}"
            raise ToolArgumentsError(f"tool {name}: wrong arguments: it {fault}", name=name)
        graph_input = arguments[_INPUT] if fields is None else dict(arguments)
        return _Thread(name, graph, factory, runtime).program(), graph_input

    return Offer(name, f"The graph {name}.", schema, begin)


def _schema_of_graph(name: str, graph: Graph, fields: Fields | None) -> dict[str, Any]:
    """Return the schema of a graph's input, or the names of its fields if it has no schema."""
    schema = schemas_of(graph, name)["input_schema"] or {}
    if fields is None:
        return {"type": "object", "properties": {_INPUT: schema}, "required": [_INPUT]}
    if schema.get("type") == "object" and "properties" in schema:
        return schema
    return {"type": "object", "properties": {field: {} for field in fields}}


class _Thread:
    """A run of a graph in a temporary thread, with a temporary store.

    The graph's interrupts become questions at once. If there is a ``factory``, it makes a new graph
    for the run.
    """

    def __init__(
        self, name: str, graph: Graph, factory: ServedGraph | None, runtime: Runtime
    ) -> None:
        self._name, self._factory = name, factory
        self._store = InMemoryStore()
        self._graph = self._with_thread(graph)
        self._config = thread_config(uuid4().hex)
        self._questions = runtime.questions
        self._runs = runtime.runs

    def program(self) -> Program:
        """Return the program that runs the graph."""
        return program_of_graph(self._run, self._name)

    def _with_thread(self, graph: Graph) -> Graph:
        return graph.copy(
            update={"checkpointer": InMemorySaver(), "store": graph.store or self._store}
        )

    async def _run(self, ctx: Context, graph_input: Any) -> Any:
        async with AsyncExitStack() as stack:
            graph = self._graph
            if self._factory is not None:
                access = Access(self._config, "threads.create_run", store=self._store)
                graph = self._with_thread(await made(self._name, self._factory, stack, access))
            values = await self._until_answered(ctx, graph, graph_input)
        return await program_result(self._graph, self._config, values)

    async def _until_answered(self, ctx: Context, graph: Graph, graph_input: Any) -> Any:
        while True:
            result = await graph.ainvoke(graph_input, self._config, durability="exit")
            open_ones = result.get(QUESTIONS, ()) if isinstance(result, dict) else ()
            if not open_ones:
                return result if isinstance(result, dict) else to_json(result)
            graph_input = answer(
                {question.id: await self._ask(ctx, question.value) for question in open_ones}
            )

    async def _ask(self, ctx: Context, value: Any) -> Any:
        """Ask the question of an interrupt, and return the answer, which may be any JSON.

        The interrupt has a node in the graph of the program already.
        """
        tenant = self._runs[ctx.program_id].row.tenant
        text = value if isinstance(value, str) else str(to_json(value))
        form = AnswerForm({})
        question = Question(text, ctx.program_id, ctx.program_type, tenant, form)
        return await self._questions.ask(question)
