"""What a program that continues is told: its past as it was, and of the rest what is so now."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, Runtime, program, tool
from agentrt.errors import (
    EngineDiedError,
    InterruptExpiredError,
    ToolLostError,
    UnknownContextError,
)
from agentrt.executors.base import Chunk
from agentrt.interrupts import Tool, ToolContext, ToolOptions, ToolRequest, ToolTransport
from agentrt.interrupts.questions import Question
from agentrt.journal import Journal
from agentrt.journal.analysis.forking import fork_in
from agentrt.journal.analysis.reading import ReadingStore, history
from agentrt.journal.schema import EndRow
from agentrt.request import Call, Reply, ToolCall
from agentrt.runtime.durable import Durable
from tests.doubles.choices import Output
from tests.doubles.scripted import ScriptedExecutor
from tests.journal.killing import (
    Code,
    Engine,
    QuickStore,
    World,
    begins,
    ends,
    killed,
    lived,
    nodes,
    program_of,
    recorded_in,
)

# -- tools that were under way --------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_tool_that_was_under_way(tmp_path: Path, idempotent: bool) -> None:
    """1. The process is killed when the tool has run, before that is recorded. 2. An idempotent one
    runs again, with the same key; of any other the program is told that nobody knows.
    """
    keys: list[str] = []

    @tool(idempotent=idempotent)
    async def pay(amount: int) -> str:
        keys.append(str(amount))
        return "paid"

    async def code(ctx: Context) -> str:
        try:
            return str(await ctx.tool(pay, amount=3))
        except ToolLostError as error:
            return str(await ctx.human(f"unknown: {'unknown' in str(error)}"))

    path = tmp_path / "j"
    await killed(path, code, at=ends("0#0"))
    assert keys == ["3"]
    run = await lived(path, code, world=(world := World()))
    assert run.result == ("paid" if idempotent else "yes")
    assert world.questions == ({} if idempotent else {"unknown: True": 1})
    assert len(keys) == 1 + idempotent
    again = await lived(path, code)
    assert again.result == run.result
    assert len(keys) == 1 + idempotent


async def test_an_unknown_outcome_that_ends_a_program_is_no_answer(tmp_path: Path) -> None:
    """Once its author has said that the tool may run twice, the same command continues."""

    def code(idempotent: bool) -> Code:
        @tool(idempotent=idempotent)
        async def pay(amount: int) -> str:
            return "paid"

        return lambda ctx: ctx.tool(pay, amount=3)

    path = tmp_path / "j"
    await killed(path, code(False), at=ends("0#0"))
    for _ in range(2):
        run = await lived(path, code(False))
        assert isinstance(run.error, ToolLostError)
    assert (await lived(path, code(True))).result == "paid"


class Elsewhere(ToolTransport):
    """Runs tools somewhere else, and notes the keys of their attempts."""

    name = "elsewhere"

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def call(self, request: ToolRequest, context: ToolContext) -> int:
        self.keys.append(request.key)
        return 1


async def test_all_attempts_have_one_key(tmp_path: Path) -> None:
    elsewhere = Elsewhere()
    look = Tool("look", transport=elsewhere, options=ToolOptions(idempotent=True))

    async def code(ctx: Context) -> Any:
        return await ctx.tool(look)

    await killed(tmp_path / "j", code, at=ends("0#0"))
    await lived(tmp_path / "j", code)
    await lived(tmp_path / "other", code)
    first, again, other = elsewhere.keys
    assert first == again != other


async def test_a_tool_that_waits_for_its_turn_has_not_begun(tmp_path: Path) -> None:
    """Two calls of a tool that takes one at a time: a kill leaves one of them unknown, not both."""
    ran: list[str] = []

    @tool(concurrency=1)
    async def print_(page: str) -> str:
        ran.append(page)
        await asyncio.sleep(0)
        return page

    async def code(ctx: Context) -> Any:
        each = (ctx.tool(print_, page=one) for one in "ab")
        return [repr(one) for one in await asyncio.gather(*each, return_exceptions=True)]

    await killed(tmp_path / "j", code, at=ends("0.0#0"))
    run = await lived(tmp_path / "j", code)
    assert ["ToolLostError" in one for one in run.result] == [True, False]
    assert ran == ["a", "b"]


async def test_an_error_of_a_tool_is_recorded(tmp_path: Path) -> None:
    tried: list[int] = []

    async def look() -> None:
        tried.append(1)
        raise KeyError("lamp")

    async def code(ctx: Context) -> str:
        try:
            await ctx.tool(look)
        except KeyError as error:
            return repr(error)
        return "none"

    for _ in range(2):
        assert (await lived(tmp_path / "j", code)).result == "KeyError('lamp')"
    assert tried == [1]


# -- the engine -----------------------------------------------------------------------------


async def test_an_engine_that_dies_ends_a_program_but_is_no_answer(tmp_path: Path) -> None:
    """The same command makes the call again; where the program resumed, it is what it was told."""
    dying = [True]

    def script(call: Call) -> str:
        if dying[0] and "second" in str(call.spec.messages):
            raise EngineDiedError("gone")
        return "fine"

    async def code(ctx: Context) -> str:
        first = await ctx.llm("first")
        return f"{first} {await ctx.llm('second')}"

    async def careful(ctx: Context) -> str:
        try:
            return str(await ctx.llm("second"))
        except EngineDiedError:
            return f"then {await ctx.llm('other')}"

    engine = ScriptedExecutor(script)
    assert isinstance((await lived(tmp_path / "a", code, engine=engine)).error, EngineDiedError)
    await lived(tmp_path / "b", careful, engine=ScriptedExecutor(script))
    dying[0] = False
    again = ScriptedExecutor(script)
    assert (await lived(tmp_path / "a", code, engine=again)).result == "fine fine"
    assert len(again.calls) == 1
    none = ScriptedExecutor(script)
    assert (await lived(tmp_path / "b", careful, engine=none)).result == "then fine"
    assert none.calls == []


async def _first_dies(ctx: Context, died: asyncio.Event) -> str:
    try:
        return str(await ctx.llm("second"))
    finally:
        died.set()


async def _works_on(ctx: Context, died: asyncio.Event) -> str:
    """Reach a node after the call of another task has failed, and before the program knows."""
    await died.wait()
    return str(ctx.random() < 2)


async def _gather(ctx: Context) -> str:
    died = asyncio.Event()
    works = asyncio.ensure_future(_works_on(ctx, died))
    dies = asyncio.ensure_future(_first_dies(ctx, died))
    await asyncio.wait([works])
    return " ".join(await asyncio.gather(works, dies))


async def _spawn(ctx: Context) -> str:
    died = asyncio.Event()
    works = ctx.spawn(_works_on, died)
    dies = ctx.spawn(_first_dies, died)
    return f"{await works} {await dies}"


async def _clean_up(ctx: Context) -> str:
    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ctx.now()

    async with asyncio.TaskGroup() as group:
        cleaner = group.create_task(cleans_up())
        dies = group.create_task(_first_dies(ctx, asyncio.Event()))
        await asyncio.wait([dies])
        cleaner.cancel()
    return f"True {dies.result()}"


async def _handle(ctx: Context) -> str:
    results = await asyncio.gather(ctx.llm("second"), return_exceptions=True)
    if isinstance(results[0], EngineDiedError):
        others = await asyncio.gather(ctx.llm("other"))
        return f"handled {others[0]}"
    return "True fine"


@pytest.mark.parametrize(
    ("code", "resumed", "calls"),
    [
        (_gather, "True fine", 1),
        (_spawn, "True fine", 1),
        (_clean_up, "True fine", 1),
        (_handle, "handled fine", 0),
    ],
)
async def test_only_code_that_knows_of_a_dead_engine_makes_its_error_an_answer(
    tmp_path: Path, code: Code, resumed: str, calls: int
) -> None:
    """Tasks beside the failed call reach further nodes before the program ends with the error."""
    dying = [True]

    def script(call: Call) -> str:
        if dying[0] and "second" in str(call.spec.messages):
            raise EngineDiedError("gone")
        return "fine"

    ended = await lived(tmp_path / "j", code, engine=ScriptedExecutor(script))
    assert (ended.error is None) == (code is _handle)
    dying[0] = False
    engine = ScriptedExecutor(script)
    again = await lived(tmp_path / "j", code, engine=engine)
    assert (again.result, len(engine.calls)) == (resumed, calls)


async def test_a_seed_is_drawn_by_the_place(tmp_path: Path) -> None:
    """A call that was under way is made again with its seed, in whatever order it comes now."""
    seeds: list[dict[str, int | None]] = []

    def engine() -> ScriptedExecutor:
        seen: dict[str, int | None] = {}
        seeds.append(seen)

        def script(call: Call) -> str:
            seen[str(call.spec.messages[0]["content"])] = call.spec.seed
            return "fine"

        return ScriptedExecutor(script)

    async def code(ctx: Context) -> Any:
        return await asyncio.gather(*(ctx.llm(one, temperature=1.0) for one in "abcd"))

    path = tmp_path / "j"
    await killed(path, code, at=ends("0.0#0"), engine=engine())
    await lived(path, code, engine=engine())
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0].values())) == 4


async def test_a_stream_that_was_left_is_left_again(tmp_path: Path) -> None:
    """It comes in the same pieces, up to where its program had closed it."""

    async def code(ctx: Context) -> list[str]:
        seen: list[str] = []
        stream = ctx.llm("count", stream=True)
        async for piece in stream:
            seen.append(piece)
            if len(seen) == 2:
                break
        await stream.aclose()
        return [*seen, str(await ctx.llm("after"))]

    def engine() -> ScriptedExecutor:
        return ScriptedExecutor(lambda call: "one two three four")

    first = await lived(tmp_path / "j", code, engine=engine())
    assert len(first.result) == 3
    none = engine()
    assert (await lived(tmp_path / "j", code, engine=none)).result == first.result
    assert none.calls == []


async def test_early_tools_of_a_reply_that_is_another_one_now(tmp_path: Path) -> None:
    """1. A tool starts while the model still writes; then the process is killed. 2. The model says
    something else now: what was recorded under its first answer is forgotten.
    """
    items: list[str] = []

    @tool(idempotent=True)
    async def look(item: str) -> str:
        items.append(item)
        return item.upper()

    class Slow(ScriptedExecutor):
        """It ends when the tool that it has called ``first`` is recorded."""

        first = ""

        async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().generate(call, stream=stream):
                while chunk.reply is not None and self.first not in recorded_in(path)[1]:
                    await asyncio.sleep(0)
                yield chunk

    def engine(item: str) -> ScriptedExecutor:
        calls = (ToolCall("look", {"item": item}, "a"), ToolCall("look", {"item": "last"}, "b"))
        made = Slow(lambda call: Output("", tool_calls=calls))
        made.first = f"look {item}"
        return made

    async def code(ctx: Context) -> Any:
        step = await ctx.step("?", tools=[look], max_tokens=400)
        return [result.value for result in step.results]

    path = tmp_path / "j"

    def is_call(row: object) -> bool:
        return isinstance(row, EndRow) and "Reply" in row.outcome

    await killed(path, code, at=is_call, engine=engine("lamp"))
    run = await lived(path, code, engine=engine("desk"))
    assert run.error is None
    assert run.result == ["DESK", "LAST"]
    again = engine("none")
    assert (await lived(path, code, engine=again)).result == run.result
    assert again.calls == []
    assert items.count("lamp") == items.count("desk") == 1


async def test_a_program_that_was_done_ended_when_it_did(tmp_path: Path) -> None:
    """Its result is told again: no new attempt, unless the result is another."""
    path, says = tmp_path / "j", ["first"]

    async def code(ctx: Context) -> str:
        await ctx.llm("on")
        return says[-1]

    def ends_of_it() -> list[tuple[int, float]]:
        with closing(sqlite3.connect(path)) as reader:
            return reader.execute(
                "SELECT attempt, ended FROM agentrt_ends WHERE node = '0' ORDER BY attempt"
            ).fetchall()

    await lived(path, code)
    before = ends_of_it()
    assert (await lived(path, code)).result == "first"
    assert ends_of_it() == before
    says.append("second")
    assert (await lived(path, code)).result == "second"
    assert [attempt for attempt, _ in ends_of_it()] == [1, 2]


# -- time and races -------------------------------------------------------------------------


async def test_a_forgotten_context_that_another_program_saved_again_stays(tmp_path: Path) -> None:
    async def code(ctx: Context) -> None:
        for text in ("draft", "story"):
            await (await ctx.context(text)).save("text")
        await (await ctx.context("note")).save("note")
        await ctx.forget("note")
        await (await ctx.context("old")).save("theirs")
        await ctx.forget("theirs")
        await ctx.human("go on?")

    @program
    async def other(ctx: Context) -> None:
        await (await ctx.context("new")).save("theirs")

    @program
    async def reader(ctx: Context) -> list[str]:
        texts = [await (await ctx.open(name)).text() for name in ("text", "theirs")]
        with pytest.raises(UnknownContextError, match="'note'"):
            await ctx.open("note")
        return texts

    async def answer(question: Question) -> str:
        return "yes"

    path = tmp_path / "journal"
    await killed(path, code, begins("human"), after=True)
    async with (
        await Journal.open(lambda: QuickStore(path)) as journal,
        Runtime(Engine(World()), ask_human=answer, journal=journal) as runtime,
    ):
        await runtime.start(other).wait()
        await runtime.start(program_of(code), None, durable=Durable(number=1)).wait()
        assert await runtime.start(reader).wait() == ["story", "new"]


async def test_a_saved_chat_that_was_opened_before_a_kill_goes_on_as_before(
    tmp_path: Path,
) -> None:
    """The model has written nothing in its turn, so the next message comes before this turn."""

    async def code(ctx: Context) -> str:
        await (await ctx.context([{"role": "user", "content": "one"}])).save("chat")
        chat = await ctx.open("chat")
        await ctx.sleep(0.0)
        await chat.fill([{"role": "user", "content": "two"}])
        return await chat.text()

    path = tmp_path / "journal"
    await killed(path, code, begins("sleep"), after=True)
    assert (await lived(path, code)).result == "<user>one</><user>two</><assistant>"


async def test_what_came_first_comes_first_again(tmp_path: Path) -> None:
    order = ["c", "a", "b"]

    async def code(ctx: Context) -> list[str]:
        turns = {one: asyncio.Event() for one in "abc"}
        turns[order[0]].set()

        async def look(item: str) -> str:
            await turns[item].wait()
            rest = order[order.index(item) + 1 :]
            if rest:
                turns[rest[0]].set()
            return item

        made = [ctx.tool(look, item) for item in "abc"]
        return [await one for one in asyncio.as_completed(made)]

    for _ in range(2):
        assert (await lived(tmp_path / "j", code)).result == order


async def test_who_lost_a_race_is_not_asked_again(tmp_path: Path) -> None:
    """A call that its program had called off is not made in a later life: it waits for that."""
    made: list[str] = []

    async def slow() -> None:
        made.append("slow")
        await asyncio.Event().wait()

    async def quick() -> str:
        made.append("quick")
        return "quick"

    async def code(ctx: Context) -> str:
        racing = [asyncio.create_task(ctx.tool(one)) for one in (slow, quick)]
        done, lost = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
        for one in lost:
            one.cancel()
        await asyncio.wait(lost)
        await ctx.llm("on")
        return str(done.pop().result())

    for _ in range(2):
        assert (await lived(tmp_path / "j", code)).result == "quick"
    assert sorted(made) == ["quick", "slow"]


async def test_a_tool_that_a_finished_program_left_open_is_not_run_again(tmp_path: Path) -> None:
    """A killed life had begun the tool. The life that ended did not come to it. A replay that does
    come to it runs nothing and records nothing.
    """
    ran: list[str] = []
    comes_to_it = asyncio.Event()

    @tool(idempotent=True)
    async def beat() -> None:
        ran.append("beat")

    async def code(ctx: Context) -> str:
        async def background() -> None:
            await comes_to_it.wait()
            await ctx.tool(beat)

        task = asyncio.create_task(background())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        return "done"

    path = tmp_path / "j"
    comes_to_it.set()
    await killed(path, code, begins("tool"), after=True)
    comes_to_it.clear()
    assert (await lived(path, code)).result == "done"
    before = nodes(path, "node, attempt, state")
    comes_to_it.set()
    assert (await lived(path, code)).result == "done"
    assert (ran, nodes(path, "node, attempt, state")) == ([], before)


async def test_what_a_program_calls_off_by_itself_is_no_stop_of_it(tmp_path: Path) -> None:
    """A time limit and a failed group cancel the program's own task for a moment: what it does
    then, and after it, is recorded as ever.
    """
    ran: list[str] = []

    async def slow() -> None:
        await asyncio.Event().wait()

    async def clean(name: str) -> str:
        ran.append(name)
        return name

    async def bad() -> None:
        raise KeyError("bad")

    async def code(ctx: Context) -> list[str]:
        seen: list[str] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                try:
                    await ctx.tool(slow)
                finally:
                    seen.append(await ctx.tool(clean, "in the limit"))
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.tool(bad))
        seen.append(await ctx.tool(clean, "after the group"))
        return seen

    for _ in range(2):
        run = await lived(tmp_path / "j", code)
        assert run.result == ["in the limit", "after the group"]
    assert ran == run.result


async def test_what_a_program_does_while_it_is_stopped_belongs_to_no_run(tmp_path: Path) -> None:
    ran: list[str] = []

    async def clean() -> None:
        ran.append("clean")

    async def code(ctx: Context) -> None:
        try:
            await ctx.human("?")
        finally:
            await ctx.tool(clean)

    async def stopped() -> None:
        async with (
            await Journal.open(lambda: QuickStore(tmp_path / "j")) as journal,
            Runtime(ScriptedExecutor(), ask_human=None, journal=journal) as runtime,
        ):
            run = runtime.start(program_of(code), durable=Durable())
            while not runtime.questions.open:
                await asyncio.sleep(0)
            run.left = True
            run.cancel()
            assert run.task is not None
            await asyncio.wait([run.task])

    for _ in range(2):
        await stopped()
    assert ran == ["clean", "clean"]
    assert [kind for (kind,) in nodes(tmp_path / "j", "kind")] == ["program", "human"]


async def test_a_journal_that_does_not_know_when_nodes_began_goes_on(tmp_path: Path) -> None:
    """One of an earlier version: its answers come one after the other, in the order of their ends.
    It gets the column that it does not have when it is written, and is read without it.
    """
    path, ran = tmp_path / "j", list[str]()

    async def look(item: str) -> str:
        ran.append(item)
        for _ in range(5 - len(ran)):
            await asyncio.sleep(0)
        return item

    async def code(ctx: Context) -> Any:
        made = [ctx.tool(look, item) for item in "abc"]
        seen = [await one for one in asyncio.as_completed(made)]
        await ctx.llm(f"saw {seen}")
        raise KeyError(*seen)

    first = await lived(path, code)
    with closing(sqlite3.connect(path)) as writer:
        ends = writer.execute("SELECT * FROM agentrt_ends ORDER BY place").fetchall()
        for place, row in enumerate(ends, 1):
            old = EndRow(*row)._replace(place=place).marked()
            writer.execute(
                "UPDATE agentrt_ends SET place = ?, mark = ? WHERE node = ?",
                (place, old.mark, old.node),
            )
        writer.execute("ALTER TABLE agentrt_starts DROP COLUMN place")
        writer.commit()
    with closing(ReadingStore(path)) as store:
        assert len(history(store, "main-1").nodes) == 4
    for _ in range(2):
        run = await lived(path, code, engine=(engine := ScriptedExecutor()))
        assert isinstance(run.error, KeyError)
        assert run.error.args == first.error.args  # type: ignore[union-attr]
        assert engine.calls == []
    assert len(ran) == 3


async def test_a_sleep_and_a_question_end_when_they_were_to(tmp_path: Path) -> None:
    """The time of a killed process counts: what is due meanwhile is over at once."""

    async def code(ctx: Context) -> str:
        await ctx.sleep(3600)
        with pytest.raises(InterruptExpiredError):
            await ctx.human("?", timeout=3600)
        return "late"

    path = tmp_path / "j"
    for kind in ("sleep", "human"):  # in the middle of each
        await killed(path, code, at=begins(kind), after=True, answers=False)
        with closing(sqlite3.connect(path)) as writer:
            writer.execute("UPDATE agentrt_starts SET started = started - 4000")
            writer.commit()
    assert (await lived(path, code, answers=False)).result == "late"


def _length(reply: Reply, others: Sequence[Reply]) -> int:
    return len(str(reply)) + len(others)


async def _sums(ctx: Context, replies: Sequence[Reply]) -> int:
    return sum([await ctx.tool(_length, reply, replies) for reply in replies])


async def _passes_replies(ctx: Context) -> list[Any]:
    """Passes on the reply of a call that begins second and ends first."""
    has_said = asyncio.Event()
    waiting = asyncio.create_task(ctx.tool(has_said.wait))
    await asyncio.sleep(0)
    reply = await ctx.llm("tea")
    has_said.set()
    await waiting
    save, done = ctx.checkpoint(), ([reply], 0)
    while done[1] < 2:
        done = save(done)
        done = [*done[0], await ctx.llm("milk")], await ctx.tool(_length, done[0][-1], done[0])
    return [
        await ctx.tool(_length, reply, [reply]),
        await ctx.spawn(_sums, [reply]),
        await ctx.human(str(reply)),
    ]


async def test_replies_in_other_requests_are_those_that_were_recorded(tmp_path: Path) -> None:
    """The numbers of nodes differ in a resumed program."""
    path = tmp_path / "j"
    await killed(path, _passes_replies, at=begins("human"))
    run = await lived(path, _passes_replies)
    assert (run.error, run.result) == (None, [9, 9, "yes"])


async def _passes_a_tools_reply(ctx: Context) -> Any:
    context, has_said = await ctx.context("once"), asyncio.Event()
    waiting = asyncio.create_task(ctx.tool(has_said.wait))
    await asyncio.sleep(0)
    reply = await ctx.llm("tea")
    completion: Any = await context.generate(3)
    has_said.set()
    await waiting
    await ctx.sleep(0)
    same = await ctx.tool(lambda: reply)
    length = await ctx.tool(_length, same, [same], after=[completion])
    return length, await ctx.tool(lambda said: str(said), completion), await ctx.human("go on?")


async def test_a_reply_that_a_tool_has_returned_may_name_another_node(tmp_path: Path) -> None:
    """The tool's result has the number that the reply had in the process that ran the tool, and the
    request of the next tool has the number that the call had in the process before.
    """
    path = tmp_path / "j"
    await killed(path, _passes_a_tools_reply, at=begins("sleep"))
    await killed(path, _passes_a_tools_reply, at=begins("human"))
    run = await lived(path, _passes_a_tools_reply)
    assert (run.error, run.result) == (None, (9, "efg", "yes"))


async def test_a_fork_passes_on_the_replies_of_the_recorded_run(tmp_path: Path) -> None:
    """Although it has an id of its own."""
    path = tmp_path / "j"
    await lived(path, _passes_replies)
    with closing(ReadingStore(path)) as store:
        old = history(store, "main-1")
    [question] = [place for place, node in old.nodes.items() if node.start.kind == "human"]
    with closing(QuickStore(path)) as store:
        row = fork_in(store, old, question, {}, old.program.input, {"at": question})
    run = await lived(path, _passes_replies, durable=Durable(id=row.id, draws_as="main-1"))
    assert (run.error, run.result) == (None, [9, 9, "yes"])
