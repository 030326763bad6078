"""The two kinds of code that a batch runs for each input: a program, or a LangGraph graph.

A graph resumes from its checkpointer, which does not record calls. So the tokens of each call are
written to a file next to the results before the graph gets the reply (`_CallFile`). When the graph
resumes, the file has the tokens of the calls in tasks that the checkpointer does not run again. The
file is removed when the batch has ended.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from agentrt import files
from agentrt.batch.inputs import NoInputError, key_of
from agentrt.batch.lines import LineFile
from agentrt.batch.results import ResultFile
from agentrt.errors import ConfigError, JournalWriteError, UsageError
from agentrt.interrupts.schema import name_of
from agentrt.journal.codec import dumps, loads
from agentrt.program import Context, Program
from agentrt.request.tokens import CallTokens
from agentrt.runtime import Runtime
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run
from agentrt.runtime.tokens import TokenLog


class _CallFile(LineFile):
    """The file with the calls of runs that have no result in ``results`` yet. The lock of
    ``results`` protects this file, too.

    A line is either a call or the beginning of a run. A run that is started again from its start
    has several beginnings; only the lines after the last beginning are used. Raises `UsageError`
    for a file that cannot be opened, or that has other content.
    """

    def __init__(self, results: ResultFile) -> None:
        path = results.path.with_name(f"{results.path.name}.calls")
        try:
            super().__init__(path)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written: {error.strerror or error}; make this file writable, "
                "and run the batch again"
            ) from error
        try:
            self.drop(len(self.incomplete()))
            ended = {key_of(result.program) for result in results.all()}
            self.replace(line for key, line in self._lines() if key not in ended)
            self._calls: dict[str, list[CallTokens]] = {}
            for _, line in self._lines():
                value = files.parse_json(line.decode())
                if "call" in value:
                    call = loads(json.dumps(value["call"]))
                    self._calls[value["program"]].append(call)
                else:
                    self._calls[value["program"]] = []
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise UsageError(
                f"{path} is not a file of the calls of a batch; remove this file, and run the "
                "batch again"
            ) from error

    def _lines(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each line with the key of its run."""
        with self.path.open("rb") as file:
            for line in file:
                yield key_of(files.parse_json(line.decode())["program"]), line

    def __contains__(self, run_id: str) -> bool:
        """Return whether the file had the beginning of a run when the file was opened. In this
        case, it also had all calls that the run had made by then. After `take`, return False.
        """
        return run_id in self._calls

    def take(self, run_id: str) -> list[CallTokens]:
        """Return the calls of a run that the file had when it was opened, and remove them from
        memory.
        """
        return self._calls.pop(run_id, [])

    async def begin(self, run_id: str) -> None:
        """Record that a run begins from its start. Raises `JournalWriteError` if the file cannot
        be written.
        """
        await self._put({"program": run_id})

    async def keep(self, run_id: str, call: CallTokens) -> None:
        """Record a call, and return when it is on the disk. Raises `JournalWriteError` if the file
        cannot be written.
        """
        await self._put({"program": run_id, "call": json.loads(dumps(call))})

    async def _put(self, value: dict[str, Any]) -> None:
        try:
            await self.put_line(json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise JournalWriteError(
                f"{self.path} cannot be written: {error.strerror or error}; remove the cause, and "
                "run the same batch again to resume it"
            ) from error

    def remove(self) -> None:
        """Remove the file, because the batch has ended."""
        self.path.unlink(missing_ok=True)


class Target(Protocol):
    """The code that a batch runs on each input. ``name`` is the type of its programs."""

    @property
    def name(self) -> str: ...

    def accept(self, raw_value: Any) -> Any:
        """Return the input in the form that the program takes. Raises `UsageError` for a wrong
        input.
        """

    async def start(
        self, runtime: Runtime, raw_value: Any, run_id: str, *, skips: bool, tokens: bool
    ) -> Run:
        """Start the run of an accepted input, or resume the run with this id. With ``skips``,
        values that cannot be recorded are left out of the journal. With ``tokens``, the run records
        its tokens.
        """

    async def partial(self, run_id: str) -> Any:
        """Return the intermediate result of a run that was stopped, or None if it is unknown."""

    async def forget(self, run_id: str) -> None:
        """Release the memory of a run that has ended."""

    def finish(self) -> None:
        """Remove files that only a resumed batch would need, because the batch has ended."""


class ProgramTarget:
    """An agentrt program, which is resumed from the runtime's journal."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.name = program.name

    def accept(self, raw_value: Any) -> Any:
        if raw_value is None and self._program.needs_input:
            raise UsageError(f"program {self.name!r} needs an input, but this input is null")
        if not self._program.takes_input:
            raise NoInputError(
                f"program {self.name!r} takes no input; add a parameter to it: (ctx, input)"
            )
        return self._program.accept_input(raw_value)

    async def start(
        self, runtime: Runtime, raw_value: Any, run_id: str, *, skips: bool, tokens: bool
    ) -> Run:
        durable = Durable(id=run_id, skips=skips)
        return runtime.start(self._program, raw_value, durable=durable, tokens=tokens)

    async def partial(self, run_id: str) -> Any:
        return None

    async def forget(self, run_id: str) -> None:
        """Do nothing, because the run of a program leaves nothing in memory."""

    def finish(self) -> None:
        """Do nothing. The journal stays, because it also explains the results."""


class GraphTarget:
    """A LangGraph graph. Each run of an item has its own thread, which is resumed from its last
    checkpoint.
    """

    def __init__(
        self, graph: Any, name: str, threads: Any, *, forgets: bool, calls: _CallFile | None = None
    ) -> None:
        self._graph, self._threads, self._forgets = graph, threads, forgets
        self._calls = calls
        self.name = name

    def accept(self, raw_value: Any) -> Any:
        from agentrt.integrations.langgraph.inputs import graph_input, input_fields

        fields = input_fields(self._graph)
        if (
            fields is not None
            and isinstance(raw_value, dict)
            and any(key in fields for key in raw_value)
        ):
            # The other fields of a record are for its id and its scores.
            raw_value = {key: value for key, value in raw_value.items() if key in fields}
        return graph_input(self._graph, self.name, raw_value)

    async def start(
        self, runtime: Runtime, raw_value: Any, run_id: str, *, skips: bool, tokens: bool
    ) -> Run:
        from agentrt.integrations.langgraph.graphs import graph_program, program_terms
        from agentrt.integrations.langgraph.threads import standing_of, thread_config

        terms = program_terms(self._graph)
        is_new = True
        if self._threads is None:
            program = graph_program(self._graph, self.name, {})
        else:
            config = thread_config(run_id)
            standing = await standing_of(self._graph, run_id)
            is_new = not standing.exists
            program = graph_program(self._graph, self.name, config, self._threads.durability)
            if standing.exists and not standing.next:
                program, raw_value = self._ended(run_id), None
            elif standing.exists:
                raw_value = None
        # A graph resumes from its checkpointer. The runtime's journal is only for programs.
        durable = None if runtime.journal is not None else Durable(id=run_id)
        if tokens and is_new and self._calls is not None:
            await self._calls.begin(run_id)
        run = runtime.start(
            program, raw_value, **terms, session=run_id, durable=durable, tokens=tokens
        )
        if run.tokens is not None:
            self._record(run.tokens, run_id, is_new=is_new)
        return run

    def _record(self, tokens: TokenLog, run_id: str, *, is_new: bool) -> None:
        """Start recording the tokens of a run, before its code begins. If the run is resumed,
        restore the tokens of the calls before its checkpoint.
        """
        from agentrt.integrations._compat.langgraph import current_namespace

        if self._calls is None:
            tokens.complete = is_new
            return
        if not is_new:
            tokens.complete = run_id in self._calls
            tokens.restore_tasks(self._calls.take(run_id))
        tokens.task, tokens.keep = current_namespace, partial(self._calls.keep, run_id)

    def _ended(self, thread: str) -> Program:
        """Return a program that returns the result of a thread that has already ended."""

        async def ended(ctx: Context, raw_value: Any) -> Any:
            return await self.partial(thread)

        return Program(ended, self.name)

    async def partial(self, run_id: str) -> Any:
        from agentrt.integrations.langgraph.threads import thread_config

        if self._threads is None:
            return None
        values = (await self._graph.aget_state(thread_config(run_id))).values
        names = self._graph.output_channels
        if isinstance(names, str):
            return values.get(names) if isinstance(values, dict) else values
        return {name: values[name] for name in names if name in values}

    def finish(self) -> None:
        if self._calls is not None:
            self._calls.remove()

    async def forget(self, run_id: str) -> None:
        if self._forgets:
            await self._threads.saver.adelete_thread(run_id)


def threads_beside(out: Path) -> Path:
    """Return the path of a graph's checkpoints. They are next to ``out``, the file of results."""
    return out.with_name(f"{out.name}.threads")


@asynccontextmanager
async def opened_target(
    program: Any,
    *,
    name: str | None = None,
    checkpointer: str | None = None,
    beside: Path | None = None,
    tokens_of: ResultFile | None = None,
) -> AsyncIterator[Target]:
    """Open the target for a program or a graph. Raises `UsageError` for anything else.

    A graph keeps its threads in ``checkpointer`` (``memory`` or ``sqlite:FILE``). Without this
    argument, the threads are in the graph's own checkpointer. If the graph has no checkpointer,
    they are in a file next to ``beside``, the file of the results, or else in memory until they
    end. A graph that was compiled with ``checkpointer=False`` has no threads. With ``tokens_of``,
    the tokens of the graph's calls are kept in a file next to these results until the batch has
    ended.
    """
    if isinstance(program, Program):
        yield ProgramTarget(program)
        return
    if inspect.iscoroutinefunction(program):
        raise ConfigError(f"{name_of(program)} is an async function; decorate it with @program")
    from agentrt.integrations.langgraph.graphs import Access, graph_name, open_graph
    from agentrt.integrations.langgraph.threads import (
        in_memory,
        open_checkpointer,
        own_checkpointer,
    )

    async with AsyncExitStack() as stack:
        graph = await open_graph(program, stack, Access())
        threads, forgets = own_checkpointer(graph), False
        if checkpointer is None and threads is None and beside is not None:
            checkpointer = f"sqlite:{threads_beside(beside)}"
        if graph.checkpointer is False:
            threads = None
        elif checkpointer is not None:
            threads = await stack.enter_async_context(open_checkpointer(checkpointer))
            graph = graph.copy(update={"checkpointer": threads.saver})
        elif threads is None:
            threads, forgets = in_memory(), True
            graph = graph.copy(update={"checkpointer": threads.saver})
        calls = None
        if tokens_of is not None and threads is not None:
            calls = _CallFile(tokens_of)
            stack.callback(calls.close)
        name = graph_name(graph, name or "graph")
        yield GraphTarget(graph, name, threads, forgets=forgets, calls=calls)


def lent(runtime: Runtime) -> Any:
    """Return a context manager. In its ``with`` block, chat models that have no engine use this
    runtime.

    If LangChain is not loaded yet, the context manager does nothing, because loading LangChain
    would take a second.
    """
    if "langchain_core" not in sys.modules:
        return nullcontext()
    from agentrt.integrations.langchain.client import RuntimeClient
    from agentrt.integrations.langchain.shared import lend

    return lend(RuntimeClient.borrow(runtime))
