"""The plan of a LangGraph graph's runs. It starts or resumes threads, passes a thread's questions
to humans, and passes the answers back to the thread.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentrt.cli.faults import ImportFailedError
from agentrt.cli.human import FLAG, Human, InterruptReply, UnansweredError, choose, read_reply
from agentrt.cli.load import LoadedGraph
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
    """The options of a graph's runs. ``input`` is None if there is no input."""

    input: Any = None
    n: int = 1
    thread: str | None = None
    checkpointer: str | None = None
    answers: Sequence[InterruptReply] = ()


def graph_terms(options: Mapping[str, Any], raw_input: Any) -> GraphTerms:
    """Read the options of a graph's runs. Raises `UsageError` for an invalid value."""
    if options["thread"] is not None and not options["thread"].strip():
        raise UsageError("--thread '' is empty; write the thread's name, or leave --thread out")
    if options["checkpointer"] is not None:
        sqlite_file(options["checkpointer"])
    return GraphTerms(
        input=raw_input,
        n=options["n"],
        thread=options["thread"],
        checkpointer=options["checkpointer"],
        answers=tuple(map(read_reply, options["answers"])),
    )


class GraphPlan(Plan):
    """A plan that runs instances of one graph, each in its own thread. Each resume of a thread is a
    new program.

    From the command line ``invocation``, the plan makes the command that answers open questions.
    """

    def __init__(self, target: LoadedGraph, terms: GraphTerms, invocation: Invocation) -> None:
        # `Human` gets no answers, because `_replies` uses the prepared answers. `Human` would count
        # them anew for each resume, which is another program.
        super().__init__()
        self.continues = terms.input is None
        self._target = target
        self._terms = terms
        self._invocation = invocation
        self._answers: dict[str, Sequence[InterruptReply]] = {}
        self._checkpointer: Checkpointer | None = None
        # The threads that have started and not finished, in the order of their start.
        self._live: dict[str, None] = {}

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
            if not self.may_start():
                return
            start = await self._begin(thread)
            if start is not None:
                yield start

    def started(self, start: Start) -> None:
        if start.session is not None:
            self._live[start.session] = None

    async def after(self, start: Start, run: Run) -> Start | None:
        if run.state is RunState.DONE and start.session is not None:
            self._live.pop(start.session, None)
        if run.state is RunState.DONE or start.session is None:
            return None
        standing = await standing_of(self._graph, start.session)
        if not standing.next:
            self._live.pop(start.session, None)
        if run.state is RunState.INTERRUPTED:
            return await self._answered(start.session, standing, run.id) if standing.next else None
        if standing.next and self._is_lasting:
            self.resumes[run.id] = self._invocation.answering(start.session, ())
        return None

    def unused_answers(self, human: Human) -> int:
        return min(map(len, self._answers.values()), default=0)

    def unfinished(self) -> list[tuple[str, str]]:
        if not self._is_lasting:
            return []
        return [(thread, self._invocation.answering(thread, ())) for thread in self._live]

    @property
    def _is_lasting(self) -> bool:
        return self._checkpointer is not None and self._checkpointer.lasting

    # -- before the first start --------------------------------------------------------

    async def _open_graph(self, stack: AsyncExitStack) -> Graph:
        path = self._target.path
        config = thread_config(self._terms.thread) if self._terms.thread else {}
        try:
            return await open_graph(self._target.value, stack, Access(config))
        except ProgramLoadError as error:
            raise ProgramLoadError(
                f"{path}: {self._target.name!r} is not a graph: {error}"
            ) from None
        except AgentrtError as error:
            raise ProgramLoadError(f"{path}: {error}") from error
        except Exception as error:
            raise ImportFailedError(str(path)) from error

    async def _open_checkpointer(self, stack: AsyncExitStack) -> Checkpointer | None:
        """Open the checkpointer: the requested checkpointer, else the graph's own, else a
        checkpointer in memory. Return None if none is requested and the graph refuses one
        (``checkpointer=False``). Raises `UsageError` if ``--thread`` needs a checkpointer.
        """
        graph, requested = self._graph, self._terms.checkpointer
        if requested is None and (own := own_checkpointer(graph)) is not None:
            return own
        if requested is None and self._terms.thread is not None:
            raise UsageError(
                f"--thread {self._terms.thread}: graph {self._name!r} has no checkpointer, so it "
                "has no threads to resume; add --checkpointer sqlite:FILE"
            )
        if requested is None and graph.checkpointer is False:
            return None
        if requested is None:
            threads = in_memory()
        else:
            threads = await stack.enter_async_context(open_checkpointer(requested))
        self._graph = graph.copy(update={"checkpointer": threads.saver})
        return threads

    def _threads(self) -> Iterator[str]:
        thread, n = self._terms.thread, self._terms.n
        for number in range(1, n + 1):
            if thread is None:
                yield uuid.uuid4().hex[:12]
            else:
                yield thread if n == 1 else f"{thread}-{number}"

    async def _begin(self, thread: str) -> Start | None:
        """Return the program that starts or resumes a thread; None if the thread waits for a human
        and nobody can answer.
        """
        terms = self._terms
        self._answers[thread] = terms.answers
        standing = Standing(exists=False)
        if self._checkpointer is not None:
            standing = await standing_of(self._graph, thread)
        if terms.input is None:
            return await self._resume(thread, standing)
        if terms.answers and standing.questions:
            raise UsageError(
                f"thread {thread!r} waits for an answer, but both --input and {FLAG} are set; "
                f"leave --input out to answer, or leave {FLAG} out to start again"
            )
        return self._start(thread, graph_input(self._graph, self._name, terms.input))

    async def _resume(self, thread: str, standing: Standing) -> Start | None:
        hint = input_hint(self._graph)
        if self._terms.thread is None:
            raise UsageError(f"graph {self._name!r} needs an input; add {hint}")
        assert self._checkpointer is not None
        if not standing.exists:
            raise UsageError(
                f"unknown thread {thread!r}: {self._checkpointer.label} has no checkpoint of it; "
                f"start it with {hint}"
            )
        if self._terms.answers and not standing.questions:
            raise UsageError(
                f"{FLAG}: thread {thread!r} has no pending interrupt to answer; leave {FLAG} out"
            )
        if standing.questions:
            return await self._answered(thread, standing, None)
        if not standing.next:
            raise UsageError(f"thread {thread!r} has ended; start it again with {hint}")
        return self._start(thread, None)

    # -- questions ---------------------------------------------------------------------

    async def _answered(self, thread: str, standing: Standing, asker: str | None) -> Start | None:
        """Return the program that resumes the thread with answers to its questions. Without
        answers, leave the questions open and return None.
        """
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
        prepared = self._answers[thread]
        if prepared:
            return choose(prepared, standing.questions)
        replies: dict[str, Any] = {}
        if self._human.is_there:
            for interrupt in standing.questions:
                form = free_form(interrupt.response_schema)
                question = Question(str(interrupt.value), asker or f"thread {thread}", form=form)
                try:
                    replies[interrupt.id] = await self._ask(question)
                except UnansweredError:
                    break
        return replies, ()

    def _leave_open(self, thread: str, standing: Standing, asker: str | None) -> None:
        assert self._checkpointer is not None
        lasting = self._checkpointer.lasting
        ids = [interrupt.id for interrupt in standing.questions]
        again = self._invocation.answering(thread if lasting else None, ids)
        for interrupt in standing.questions:
            self.questions.append(OpenQuestion(asker, thread, interrupt.id, interrupt.value, again))
        if not standing.questions:
            value = f"stopped before {', '.join(standing.next)}"
            self.questions.append(OpenQuestion(asker, thread, None, value, again))

    def _start(self, thread: str, input: Any) -> Start:
        threads = self._checkpointer
        if threads is None:
            program = graph_program(self._graph, self._name, {})
            return Start(program, input, None, program_terms(self._graph))
        config = thread_config(thread)
        program = graph_program(self._graph, self._name, config, threads.durability)
        return Start(program, input, thread, program_terms(self._graph))


_OF_ITS_BEGINNING = ("--input", "--n", "--thread", FLAG)
"""Options that take a value and concern only the start of a thread. The command that resumes the
thread does not repeat these options.
"""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The arguments that ``agentrt run`` was called with."""

    arguments: Sequence[str] = ()

    def answering(self, thread: str | None, ids: Sequence[str]) -> str:
        """Return the command that answers the questions ``ids`` of ``thread``. With a thread and
        without ids, the command only resumes the thread.

        ``thread`` is None if the thread ends with this process. Then the graph runs again from its
        start and its questions get new ids, so the command can answer a single question only. For
        any other number of questions, it runs the graph again with a checkpointer in a file.
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
            replies = [word for question in ids for word in (FLAG, f"{question}=TEXT")]
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
