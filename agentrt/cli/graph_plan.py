"""The plan of a LangGraph graph: threads that begin, go on, ask humans and are answered."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentrt.cli.faults import ImportFailedError
from agentrt.cli.human import FLAG, Human, InterruptReply, UnansweredError, choose, read_reply
from agentrt.cli.load import GraphTarget
from agentrt.cli.plan import OpenQuestion, Plan, Start
from agentrt.errors import AgentrtError, ProgramLoadError, UsageError
from agentrt.integrations.langgraph.graphs import (
    Access,
    Graph,
    graph_name,
    graph_program,
    open_graph,
    program_terms,
)
from agentrt.integrations.langgraph.inputs import graph_input, input_hint
from agentrt.integrations.langgraph.threads import (
    Checkpointer,
    Standing,
    answer,
    in_memory,
    open_checkpointer,
    own_checkpointer,
    sqlite_file,
    standing_of,
    thread_config,
)
from agentrt.interrupts.answers import free_form
from agentrt.interrupts.questions import Answerer, Question
from agentrt.runtime.run import Run, RunState


@dataclass(frozen=True, slots=True)
class GraphTerms:
    """What the command line says of a graph's runs; ``input`` None is none."""

    input: Any = None
    n: int = 1
    thread: str | None = None
    checkpointer: str | None = None
    answers: Sequence[InterruptReply] = ()


def graph_terms(options: Mapping[str, Any], given: Any) -> GraphTerms:
    """What the options say of a graph's runs. Raises `UsageError` for what cannot be."""
    if options["thread"] is not None and not options["thread"].strip():
        raise UsageError("--thread '': give it a name, or leave it out")
    if options["checkpointer"] is not None:
        sqlite_file(options["checkpointer"])
    return GraphTerms(
        input=given,
        n=options["n"],
        thread=options["thread"],
        checkpointer=options["checkpointer"],
        answers=tuple(map(read_reply, options["answers"])),
    )


class GraphPlan(Plan):
    """Instances of one graph, each in a thread of its own; each resume is a program more.

    ``invocation`` is the command itself, for the one that answers what is left open.
    """

    def __init__(self, target: GraphTarget, terms: GraphTerms, invocation: Invocation) -> None:
        super().__init__()
        self._target = target
        self._terms = terms
        self._invocation = invocation
        self._answers: dict[str, Sequence[InterruptReply]] = {}

    @asynccontextmanager
    async def opened(
        self, human: Human, ask: Answerer
    ) -> AsyncIterator[AsyncGenerator[Start, None]]:
        self._human, self._ask = human, ask
        async with AsyncExitStack() as stack:
            self._graph = await self._open_graph(stack)
            self._name = graph_name(self._graph, self._target.name)
            self._checkpointer = await self._open_checkpointer(stack)
            yield await stack.enter_async_context(aclosing(self._each()))

    async def _each(self) -> AsyncGenerator[Start, None]:
        for thread in self._threads():
            if self._draining:
                return
            start = await self._begin(thread)
            if start is not None:
                yield start

    async def after(self, start: Start, run: Run) -> Start | None:
        if run.state is RunState.DONE or start.session is None:
            return None
        standing = await standing_of(self._graph, start.session)
        if run.state is RunState.INTERRUPTED:
            return await self._answered(start.session, standing, run.id) if standing.next else None
        if standing.next and self._checkpointer is not None and self._checkpointer.lasting:
            self.resumes[run.id] = self._invocation.answering(start.session, ())
        return None

    # -- before the first start --------------------------------------------------------

    async def _open_graph(self, stack: AsyncExitStack) -> Graph:
        path = self._target.path
        config = thread_config(self._terms.thread) if self._terms.thread else {}
        try:
            return await open_graph(self._target.value, stack, Access(config))
        except ProgramLoadError as error:
            raise ProgramLoadError(f"{path}: {self._target.name!r} is no graph: {error}") from None
        except AgentrtError as error:
            raise ProgramLoadError(f"{path}: {error}") from error
        except Exception as error:
            raise ImportFailedError(str(path)) from error

    async def _open_checkpointer(self, stack: AsyncExitStack) -> Checkpointer | None:
        """What keeps the threads: what was asked for, the graph's own, or this process."""
        graph, asked = self._graph, self._terms.checkpointer
        if asked is None and (own := own_checkpointer(graph)) is not None:
            return own
        if asked is None and self._terms.thread is not None:
            raise UsageError(
                f"--thread {self._terms.thread}: graph {self._name!r} has no checkpointer that "
                "could know it; give --checkpointer sqlite:FILE"
            )
        if asked is None and graph.checkpointer is False:
            return None
        if asked is None:
            threads = in_memory()
        else:
            threads = await stack.enter_async_context(open_checkpointer(asked))
        self._graph = graph.copy(update={"checkpointer": threads.saver})
        return threads

    def _threads(self) -> Iterator[str]:
        given, n = self._terms.thread, self._terms.n
        for number in range(1, n + 1):
            if given is None:
                yield uuid.uuid4().hex[:12]
            else:
                yield given if n == 1 else f"{given}-{number}"

    async def _begin(self, thread: str) -> Start | None:
        """How a thread starts; None if it waits, and nobody is there to answer."""
        terms = self._terms
        self._answers[thread] = terms.answers
        standing = Standing(exists=False)
        if self._checkpointer is not None:
            standing = await standing_of(self._graph, thread)
        if terms.input is None:
            return await self._resume(thread, standing)
        if terms.answers and standing.questions:
            raise UsageError(
                f"thread {thread!r} waits for an answer: leave --input out to give it, or leave "
                f"{FLAG} out to begin anew"
            )
        return self._start(thread, graph_input(self._graph, self._name, terms.input))

    async def _resume(self, thread: str, standing: Standing) -> Start | None:
        hint = input_hint(self._graph)
        if self._terms.thread is None:
            raise UsageError(f"graph {self._name!r} needs an input; give it with {hint}")
        assert self._checkpointer is not None
        if not standing.exists:
            raise UsageError(
                f"unknown thread {thread!r}: {self._checkpointer.label} has no checkpoint of it; "
                f"begin it with {hint}"
            )
        if self._terms.answers and not standing.questions:
            raise UsageError(f"{FLAG}: thread {thread!r} has no pending interrupt; leave it out")
        if standing.questions:
            return await self._answered(thread, standing, None)
        if not standing.next:
            raise UsageError(f"thread {thread!r} has come to its end; go on with {hint}")
        return self._start(thread, None)

    # -- questions ---------------------------------------------------------------------

    async def _answered(self, thread: str, standing: Standing, asker: str | None) -> Start | None:
        """The program that goes on with the answers; None if there are none."""
        if standing.questions and not self._draining:
            replies, left = await self._replies(thread, standing, asker)
            self._answers[thread] = left
            if replies:
                return self._start(thread, answer(replies))
        self._leave_open(thread, standing, asker)
        return None

    async def _replies(
        self, thread: str, standing: Standing, asker: str | None
    ) -> tuple[dict[str, Any], Sequence[InterruptReply]]:
        given = self._answers[thread]
        if given:
            return choose(given, standing.questions)
        replies: dict[str, Any] = {}
        if self._human.is_there:
            for one in standing.questions:
                who, form = asker or f"thread {thread}", free_form(one.response_schema)
                try:
                    replies[one.id] = await self._ask(Question(str(one.value), who, form=form))
                except UnansweredError:
                    break
        return replies, ()

    def _leave_open(self, thread: str, standing: Standing, asker: str | None) -> None:
        assert self._checkpointer is not None
        lasting = self._checkpointer.lasting
        ids = [one.id for one in standing.questions]
        again = self._invocation.answering(thread if lasting else None, ids)
        for one in standing.questions:
            self.questions.append(OpenQuestion(asker, thread, one.id, one.value, again))
        if not standing.questions:
            value = f"stopped before {', '.join(standing.next)}"
            self.questions.append(OpenQuestion(asker, thread, None, value, again))

    def _start(self, thread: str, given: Any) -> Start:
        threads = self._checkpointer
        if threads is None:
            program = graph_program(self._graph, self._name, {})
            return Start(program, given, None, program_terms(self._graph))
        config = thread_config(thread)
        program = graph_program(self._graph, self._name, config, threads.durability)
        return Start(program, given, thread, program_terms(self._graph))


_OF_ITS_BEGINNING = ("--input", "--n", "--thread", FLAG)
"""Options, each with a value, that a command which goes on with one thread has anew or not."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The arguments that ``agentrt run`` was called with."""

    arguments: Sequence[str] = ()

    def answering(self, thread: str | None, ids: Sequence[str]) -> str:
        """The command that answers the questions ``ids`` in ``thread``; without any it goes on
        there.

        Without a thread that outlives the process everything runs again from its start, and
        its questions get new ids: only a single one can be answered in advance.
        """
        border = self.arguments.index("--") if "--" in self.arguments else len(self.arguments)
        own, flags = list(self.arguments[:border]), self.arguments[border:]
        if thread is not None:
            own = [*_without(own, _OF_ITS_BEGINNING), "--thread", thread]
        elif len(ids) != 1:
            own = [*_without(own, ("--checkpointer",)), "--checkpointer", "sqlite:threads.db"]
            ids = ()
        replies = [FLAG, "TEXT"] * (len(ids) == 1)
        if len(ids) > 1:
            replies = [word for one in ids for word in (FLAG, f"{one}=TEXT")]
        return shlex.join(["agentrt", "run", *own, *replies, *flags])


def _without(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    left: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in names:
            next(words, None)
        elif word.partition("=")[0] not in names:
            left.append(word)
    return left
