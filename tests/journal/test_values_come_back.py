"""Values, errors and states come back from a journal as they were, or are refused at once."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from agentrt.errors import AgentrtError, UnrecordableError
from agentrt.executors.simulated import SimulatedEngine
from agentrt.interrupts.events import Event, EventSource, Subscription
from agentrt.interrupts.questions import Question
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.program import Context, Program
from agentrt.runtime import Runtime
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run
from agentrt.scheduler.config import SchedulerConfig
from tests.journal.error_kinds import ERRORS
from tests.journal.same import difference
from tests.journal.value_kinds import VALUES

pytestmark = pytest.mark.asyncio(loop_scope="module")

EQUAL, REFUSED = "equal", "refused"
STATES = (
    *("tuple", "keys that are tuples", "field of a subclass", "dataclass with __post_init__"),
    *("datetime with a zone", "halves in a key", "shared list", "lock"),
)
"""Kinds of values that are also tried as inputs and results of programs, and in other places."""


class Row(NamedTuple):
    """The outcome of a kind of values: the journal returned an ``equal`` value, or ``refused`` the
    value with the error text ``words``. Any other outcome is a fault.
    """

    door: str
    kind: str
    outcome: str
    words: str = ""


class AgainError(AgentrtError):
    """The error that makes the program run again from its start."""


@dataclass
class Life:
    """The values that a program saw in one of its runs (a life), and the kinds of values that it
    made in this life.
    """

    seen: dict[str, Any] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)


async def measure() -> list[Row]:
    """Return all rows of the table."""
    with tempfile.TemporaryDirectory(prefix="agentrt-values-") as folder:
        root = Path(folder)
        rows = await _by_tools(root / "values", "result of a tool", VALUES, _returned)
        rows += await _by_tools(root / "errors", "error of a tool", ERRORS, _raised)
        for door, run in DOORS.items():
            for number, kind in enumerate(STATES):
                rows.append(await run(root / f"{door}-{number}", door, kind))
        return rows


# -- tools -----------------------------------------------------------------------------------------

Caught = Callable[[Callable[[], Any]], Any]


def _returned(make: Callable[[], Any]) -> Any:
    return make()


def _raised(make: Callable[[], Any]) -> Any:
    make()
    raise AssertionError("the function did not raise")


async def _by_tools(
    path: Path, door: str, kinds: Mapping[str, Callable[[], Any]], do: Caught
) -> list[Row]:
    """Run a program twice, in two lives. The program calls a tool for each kind. Return a row for
    each kind.
    """
    lives: list[Life] = []

    async def tools(ctx: Context) -> None:
        life = Life()
        lives.append(life)

        async def make(kind: str) -> Any:
            life.made.append(kind)
            return do(kinds[kind])

        for kind in kinds:
            try:
                life.seen[kind] = await ctx.tool(make, kind)
            except Exception as error:
                life.seen[kind] = error
        raise AgainError

    for _ in range(2):
        run = await _live(path, tools)
        assert isinstance(run.error, AgainError), run.error
    first, second = lives
    assert not second.made, second.made
    return [_row(door, kind, first.seen[kind], second.seen[kind]) for kind in kinds]


def _row(door: str, kind: str, before: Any, after: Any) -> Row:
    if isinstance(before, UnrecordableError):
        is_same = type(after) is UnrecordableError and str(after) == str(before)
        outcome = REFUSED if is_same else "refused, and then something else"
        return Row(door, kind, outcome, str(before).partition(": ")[2].partition(": ")[2])
    wrong = (_differs if door.startswith("error") else difference)(before, after)
    return Row(door, kind, f"other ({wrong})" if wrong else EQUAL)


def _differs(before: BaseException | None, after: BaseException | None) -> str:
    """Return the difference between an error and the recorded error; "" if everything is equal that
    the journal promises to keep.
    """
    if before is None or after is None or "recorded" in vars(type(after)):
        return "" if before is after else "other causes"
    built_in = [kind for kind in type(before).__mro__ if kind.__module__ == "builtins"]
    if missing := [kind.__name__ for kind in built_in if not isinstance(after, kind)]:
        return f"no {missing[0]}"
    if type(before).__qualname__ != type(after).__qualname__:
        return f"class {type(after).__qualname__}"
    is_local = "<locals>" in type(before).__qualname__
    if not is_local and type(before) is not type(after) and _text(before) != _NO_TEXT:
        return "another class"
    for read in (_text, repr, lambda error: getattr(error, "__notes__", None)):
        if read(before) != read(after):
            return f"{read(before)!r} and {read(after)!r}"
    if repr(before.args) != repr(after.args):
        return f"args {before.args} and {after.args}"
    if before.__suppress_context__ != after.__suppress_context__:
        return "its context shows"
    seen = {id(before), id(before.__cause__)}
    if before.__cause__ is not None and id(before.__cause__.__cause__) in seen:
        return "" if after.__cause__.__cause__ is after else "other causes"  # type: ignore[union-attr]
    return _differs(before.__cause__, after.__cause__) or _differs(
        before.__context__, after.__context__
    )


_NO_TEXT = "no text"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except RuntimeError:
        return _NO_TEXT


# -- other doors -----------------------------------------------------------------------------------


async def _as_input(path: Path, door: str, kind: str) -> Row:
    """Record the input of a program, and read it as a server does."""
    value = VALUES[kind]()

    async def takes(ctx: Context, value: Any) -> None:
        raise AgainError

    run = await _live(path, takes, value)
    if isinstance(run.error, UnrecordableError):
        return Row(door, kind, REFUSED, str(run.error).partition(": ")[2])
    async with await Journal.open(partial(SQLiteStore, path)) as journal:
        (row,) = await journal.programs("1 = 1")
        after = journal.input_of(row)
    return _row(door, kind, value, after)


async def _as_result(path: Path, door: str, kind: str) -> Row:
    """Record the result of a program, and read it as a later request does."""
    value, made = VALUES[kind](), list[int]()

    async def returns(ctx: Context) -> Any:
        made.append(1)
        return value

    run = await _live(path, returns)
    if isinstance(run.error, UnrecordableError):
        return Row(door, kind, REFUSED, str(run.error).partition(": ")[2].partition(": ")[2])
    async with await Journal.open(partial(SQLiteStore, path)) as journal:
        ended = await journal.ended_program(run.id)
        assert ended is not None
        record = await journal.program(ended[0], None)
        after = record.result()
    return _row(door, kind, value, after)


async def _as_state(path: Path, door: str, kind: str) -> Row:
    """Record a state of a loop in its checkpoint, and read it in a second life."""
    value, seen = VALUES[kind](), list[Any]()

    async def loops(ctx: Context) -> None:
        kept, state = ctx.checkpoint(), ["first"]
        while True:
            state = kept(state)
            if state != ["first"]:
                seen.append(state[0])
                raise AgainError
            state = [value]

    for _ in range(2):
        run = await _live(path, loops)
    if isinstance(run.error, UnrecordableError):
        return Row(door, kind, REFUSED, str(run.error))
    wrong = difference(value, seen[0]) or difference(value, seen[1])
    return Row(door, kind, f"other ({wrong})" if wrong else EQUAL)


async def _answered(path: Path, door: str, kind: str, wait: Callable[[Context], Any]) -> Row:
    """Record the value that a program waits for, and read it in a second life."""
    value, seen = VALUES[kind](), list[Any]()

    async def waits(ctx: Context) -> None:
        try:
            seen.append(await wait(ctx))
        except UnrecordableError as error:
            seen.append(error)
        raise AgainError

    for _ in range(2):
        await _live(path, waits, answer=value)
    return _row(door, kind, *seen)


async def _as_answer(path: Path, door: str, kind: str) -> Row:
    """Record the answer of a human."""
    return await _answered(path, door, kind, lambda ctx: ctx.human("?", schema={}))


async def _as_event(path: Path, door: str, kind: str) -> Row:
    async def wait(ctx: Context) -> Any:
        return (await ctx.event("plant")).payload

    return await _answered(path, door, kind, wait)


async def _as_spawned(path: Path, door: str, kind: str) -> Row:
    """Spawn a program in two lives. The spawned program's code runs in both lives, and each life
    must get its own result.
    """
    made: list[Any] = []

    async def helper(ctx: Context) -> Any:
        made.append(VALUES[kind]())
        return made[-1]

    async def wait(ctx: Context) -> Any:
        return await ctx.spawn(helper)

    lives: list[Any] = []

    async def spawns(ctx: Context) -> None:
        lives.append(await wait(ctx))
        raise AgainError

    for _ in range(2):
        await _live(path, spawns)
    same = [value is own for value, own in zip(lives, made, strict=True)]
    return Row(door, kind, EQUAL if same == [True, True] else "other")


DOORS = {
    "input": _as_input,
    "result of a program": _as_result,
    "state of a loop": _as_state,
    "answer of a human": _as_answer,
    "payload of an event": _as_event,
    "result of a spawned program": _as_spawned,
}
"""The other ways by which values come into a journal."""


class Once(EventSource):
    """An event source that gives each subscriber one event."""

    name = "once"

    def __init__(self, payload: Any) -> None:
        self._payload = payload

    async def subscribe(self, topic: str, tenant: str = "default") -> Subscription:
        subscription = Subscription()
        subscription.put(Event(topic, self._payload))
        return subscription

    async def refuse(self, event: Event, why: str, program: str, tenant: str = "default") -> None:
        """Do nothing, because no programs are started for these events."""


async def _live(path: Path, code: Callable[..., Any], *inputs: Any, answer: Any = None) -> Run:
    """Run a program to its end, and record it in the journal at ``path``."""

    async def answers(question: Question) -> Any:
        return answer

    async with await Journal.open(partial(SQLiteStore, path)) as journal:
        events = Once(answer)
        engine = SimulatedEngine(SchedulerConfig())
        async with Runtime(engine, ask_human=answers, events=events, journal=journal) as runtime:
            run = runtime.start(Program(code), *inputs, durable=Durable())
            assert run.task is not None
            await asyncio.wait([run.task])
            return run


# -- tests ----------------------------------------------------------------------------------------

UNKEPT = {
    *("3,000 levels", "defaultdict of a lambda", "chain map", "user dict", "generator"),
    *("dict view", "iterator", "memoryview", "datetime of a subclass", "local class", "function"),
    *("lambda", "module", "dataclass without a field", "dataclass with a lock"),
    *("collections.namedtuple", "field of any type with a lock", "secret", "secret alone"),
    *("model of a local class", "array of objects", "array with fields", "object", "lock"),
    *("instance of a plain class", "instance with a codec that errs", "event of a thread"),
    *("instance whose repr fails", "set of what has no order", "partial"),
}
"""What belongs to a process, is not found again by its name, or is secret."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rows() -> list[Row]:
    return await measure()


async def test_each_kind_comes_back_equal_or_is_refused(rows: list[Row]) -> None:
    assert len(rows) >= 150
    assert [row for row in rows if row.outcome not in (EQUAL, REFUSED)] == []
    refused = {row.kind for row in rows if row.outcome == REFUSED}
    assert refused == UNKEPT
    assert not any(row.door.startswith("error") for row in rows if row.outcome == REFUSED)


async def test_a_refusal_names_the_part_and_the_way_out(rows: list[Row]) -> None:
    results = [row for row in rows if row.door == "result of a tool"]
    words = {row.kind: row.words for row in results if row.outcome == REFUSED}
    assert words["lock"].startswith("result['items'][1]['lock'] is of type _thread.lock, ")
    assert words["field of any type with a lock"].startswith("result.v[0] is of type _thread.lock")
    assert words["defaultdict of a lambda"].startswith("result.default_factory is of type function")
    assert words["secret"].endswith(
        "use plain data, or register a codec: agentrt.journal.register(SecretStr, to_plain, "
        "from_plain)"
    )
