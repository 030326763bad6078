"""A function as a tool: its schema, its arguments in its own types, and what it may ask for."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from agentrt import Context, Progress, Runtime, ToolContext, program, tool
from agentrt.errors import ConfigError, ToolArgumentsError, ToolFailedError
from agentrt.interrupts.questions import Question
from tests.doubles.scripted import ScriptedExecutor


class Material(Enum):
    WOOD = "wood"
    STEEL = "steel"


class Hole(BaseModel):
    mm: int
    material: Material = Material.WOOD


@tool
def drill(hole: Hole, depth: Annotated[float, Field(gt=0)], *, speed: int = 3) -> str:
    """Drill a hole.

    Not for models.
    """
    return f"{hole.mm} {hole.material.name} {depth} {speed}"


async def run(body: Callable[[Context], Any], answer: str = "yes") -> Any:
    async def ask(question: Question) -> str:
        return answer

    @program
    async def main(ctx: Context) -> Any:
        return await body(ctx)

    async with Runtime(ScriptedExecutor(), ask_human=ask) as runtime:
        started = runtime.start(main)
        result = await started.wait()
        return result, started


def test_a_tools_schema_is_its_functions() -> None:
    assert drill.spec is not None
    assert (drill.spec.name, drill.spec.description) == ("drill", "Drill a hole.")
    parameters = drill.spec.parameters
    assert list(parameters["properties"]) == ["hole", "depth", "speed"]
    assert parameters["required"] == ["hole", "depth"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["depth"] == {
        "exclusiveMinimum": 0,
        "title": "Depth",
        "type": "number",
    }


async def test_arguments_from_json_come_in_the_functions_types() -> None:
    given: dict[str, Any] = {"hole": {"mm": 3, "material": "steel"}, "depth": 2}
    assert (await run(lambda ctx: ctx.tool(drill, **given)))[0] == "3 STEEL 2.0 3"
    assert (await run(lambda ctx: ctx.tool(drill, Hole(mm=4), 1.5, speed=9)))[0] == "4 WOOD 1.5 9"
    assert drill(Hole(mm=1), 1) == "1 WOOD 1 3"  # without a program: the function itself


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"depth": 1}, "hole: Field required"),
        ({"hole": {"mm": "x"}, "depth": 1}, "hole.mm: Input should be a valid integer"),
        ({"hole": {"mm": 1}, "depth": 0}, "depth: Input should be greater than 0"),
        ({"hole": {"mm": 1}, "depth": 1, "p0": 2}, "p0: Extra inputs are not permitted"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolArgumentsError, match=f"tool drill: wrong arguments: {says}"):
        drill.checked(given)


def test_too_many_arguments_are_refused() -> None:
    with pytest.raises(ToolArgumentsError, match="too many positional arguments"):
        drill.bind((1, 2, 3), {})
    with pytest.raises(ToolArgumentsError, match="multiple values for argument 'hole'"):
        drill.bind((1,), {"hole": 2})


def test_a_parameter_may_have_any_name() -> None:
    @tool
    def odd(json: str, model_config: int, _private: int, schema: str = "s") -> None: ...

    given = {"json": "a", "model_config": 1, "_private": 2}
    assert odd.checked(given) == given
    assert odd.spec is not None
    assert list(odd.spec.parameters["properties"]) == ["json", "model_config", "_private", "schema"]


def test_functions_that_no_schema_fits_are_refused() -> None:
    def every(*args: int) -> None: ...
    def named(**rest: int) -> None: ...
    def by_position(a: int, /) -> None: ...
    def handle(file: Callable[[], int]) -> None: ...

    for function, says in (
        (every, r"tool every takes \*args; give each of its parameters a name"),
        (named, r"tool named takes \*\*rest; give each of its parameters a name"),
        (by_position, "takes a by position only; remove the /"),
        (handle, "has a parameter whose type has no JSON form"),
    ):
        with pytest.raises(ConfigError, match=says):
            tool(function)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timeout": 0}, "timeout must be above 0 seconds, got 0"),
        ({"timeout": "3"}, "timeout must be a number, got '3'"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
        ({"retries": None}, "retries must be a number, got None"),
        ({"concurrency": "4"}, "concurrency must be a number, got '4'"),
        ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ({"isolation": "cage"}, "isolation must be 'thread' or 'process', not 'cage'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tool(**options)(lambda: None)


@tool
def in_a_thread(context: ToolContext, n: int) -> str:
    import asyncio

    context.progress(Progress(n, 10, "drilling"))
    return str(asyncio.run(context.ask("Go on?")))


@tool
async def on_the_loop(n: int, context: ToolContext | None = None) -> str:
    assert context is not None
    context.progress(Progress(n, 10, "drilling"))
    return str(await context.ask("Go on?"))


def plain(n: int, how: ToolContext) -> str:
    return in_a_thread.function(how, n)  # type: ignore[misc, no-any-return]


@pytest.mark.parametrize("which", [in_a_thread, on_the_loop, plain])
async def test_a_running_tool_says_how_far_it_is_and_asks(which: Any) -> None:
    answer, started = await run(lambda ctx: ctx.tool(which, n=3), answer="go")
    assert answer == "go"
    tool_node, question = started.dag.nodes()
    assert tool_node.interrupt.progress == Progress(3, 10, "drilling")
    assert (question.name, question.state) == ("Go on?", "done")


def test_models_are_told_nothing_of_the_context() -> None:
    for one in (in_a_thread, on_the_loop):
        assert one.spec is not None
        assert list(one.spec.parameters["properties"]) == ["n"]
    with pytest.raises(ToolArgumentsError, match="Extra inputs"):
        in_a_thread.checked({"n": 1, "context": 2})


@pytest.mark.parametrize(
    "error", [SystemExit(3), StopIteration("x"), KeyboardInterrupt(), GeneratorExit()]
)
async def test_what_would_end_the_event_loop_only_fails_the_tool(error: BaseException) -> None:
    @tool
    def leave() -> None:
        raise error

    async def caught(ctx: Context) -> str:
        with pytest.raises(ToolFailedError, match="the tool raised") as got:
            await ctx.tool(leave)
        return got.value.type

    assert (await run(caught))[0] == type(error).__name__


def test_only_what_a_process_finds_can_run_there() -> None:
    def inner() -> None: ...

    for given in (inner, lambda: None):
        with pytest.raises(ConfigError, match="define the function at the top level of a file"):
            tool(isolation="process")(given)


async def test_copies_of_a_tool_share_a_limit_if_they_have_the_same() -> None:
    running = Counter[str]()
    peaks = Counter[str]()

    @tool(concurrency=4)
    async def count(name: str) -> None:
        running[name] += 1
        peaks[name] = max(peaks[name], running[name])
        for _ in range(10):
            await asyncio.sleep(0)
        running[name] -= 1

    async def body(ctx: Context) -> None:
        for name, copies in (
            ("four", (count, count.but(timeout=60))),
            ("one", (count.but(concurrency=1), count.but(concurrency=1, timeout=60))),
        ):
            calls = [ctx.tool(copy, name) for copy in copies for _ in range(5)]
            await asyncio.gather(*calls)

    await run(body)
    assert peaks == {"four": 4, "one": 1}


async def test_a_tool_that_each_run_defines_anew_is_forgotten() -> None:
    """With its limit, which belongs to it alone."""
    schemas: list[Any] = []

    @program
    async def main(ctx: Context) -> str:
        @tool(concurrency=1)
        async def look() -> str:
            return "tea"

        schemas.append(weakref.ref(look.schema))
        return str(await ctx.tool(look))

    async with Runtime(ScriptedExecutor()) as runtime:
        for _ in range(3):
            assert await runtime.start(main).wait() == "tea"
        await asyncio.sleep(0)
        gc.collect()
        assert [schema() for schema in schemas] == [None, None, None]


class Measuring:
    """An object with an async ``__call__``."""

    async def __call__(self, mm: int) -> int:
        return 2 * mm


async def _doubled(mm: int) -> int:
    return 2 * mm


async def _exits(mm: int) -> int:
    raise SystemExit(mm)


def _undeclared(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@pytest.mark.parametrize("function", [Measuring(), lambda mm: _doubled(mm), _undeclared(_doubled)])
async def test_the_coroutine_that_a_function_returns_is_awaited(
    function: Callable[..., Any],
) -> None:
    result, _ = await run(lambda ctx: ctx.tool(function, 4))
    assert result == 8
    result, _ = await run(lambda ctx: ctx.tool(tool(Measuring()), mm=4))
    assert result == 8


async def test_such_a_coroutine_may_not_end_the_event_loop() -> None:
    with pytest.raises(ToolFailedError, match="the tool raised SystemExit: 4"):
        await run(lambda ctx: ctx.tool(_undeclared(_exits), 4))


class Scale:
    """Weighs."""

    def __init__(self, grams: int) -> None:
        self.grams = grams

    def __call__(self, spoons: int, context: ToolContext) -> int:
        context.progress(Progress(1, 1, "weighed"))
        return self.grams * spoons


@dataclass
class AnnotatedScale:
    """Weighs."""

    grams: int

    __call__ = Scale.__call__


def _weigh(spoons: int, grams: int, context: ToolContext) -> int:
    """Weigh spoons."""
    return Scale(grams)(spoons, context)


@pytest.mark.parametrize(
    ("function", "name", "doc"),
    [
        (Scale(5), "Scale", "Weighs."),
        (AnnotatedScale(5), "AnnotatedScale", "Weighs."),
        (functools.partial(_weigh, grams=5), "_weigh", "Weigh spo"),
    ],
)
async def test_objects_and_partial_functions_can_be_tools(
    function: Callable[..., Any], name: str, doc: str
) -> None:
    made = tool(function)
    assert made.spec is not None
    assert made.spec.name == name
    assert made.spec.description.startswith(doc)
    assert made.spec.parameters["properties"]["spoons"]["type"] == "integer"
    assert "context" not in made.spec.parameters["properties"]
    for weigh in (made, function):

        async def weighed(ctx: Context, weigh: Callable[..., Any] = weigh) -> Any:
            return await ctx.tool(weigh, spoons=2)

        result, started = await run(weighed)
        assert result == 10
        assert started.dag.node(0).interrupt.progress == Progress(1, 1, "weighed")


def _calls(function: Callable[..., Any], **arguments: Any) -> Callable[[Context], Any]:
    return lambda ctx: ctx.tool(function, **arguments)


class Search:
    """Search the shop."""

    def __init__(self) -> None:
        self.name, self.options, self.spec, self.checked = "shop", {"most": 3}, None, False

    def __call__(self, word: str) -> str:
        return word.upper()


async def test_an_object_may_have_attributes_that_tools_have_too() -> None:
    made = tool(Search())
    assert made.spec is not None
    assert made.name == made.spec.name == "Search"
    cases: list[tuple[Callable[..., Any], str]] = [(made, "Search"), (Search(), "shop")]
    for each, name in cases:
        result, started = await run(_calls(each, word="tea"))
        assert (result, started.dag.node(0).name) == ("TEA", name)


async def test_a_partial_function_may_have_a_context_of_its_own() -> None:
    def look(context: ToolContext, spoons: int) -> tuple[Any, int]:
        return context, spoons

    own: Any = "own"
    functions: list[Callable[..., Any]] = [
        functools.partial(look, own),
        functools.partial(look, context=own),
    ]
    for each in functions:
        result, _ = await run(_calls(each, spoons=2))
        assert result == (own, 2)
    assert tool(functools.partial(look, own)).checked({"spoons": 2}) == {"spoons": 2}


async def test_a_context_may_stand_before_or_after_arguments_by_position() -> None:
    def first(context: ToolContext, *spoons: int) -> tuple[bool, Any]:
        return hasattr(context, "ask"), spoons

    def last(one: int, two: int, context: ToolContext) -> tuple[bool, Any]:
        return hasattr(context, "ask"), (one, two)

    async def named(*spoons: int, context: ToolContext) -> tuple[bool, Any]:
        return hasattr(context, "ask"), spoons

    functions: list[Callable[..., Any]] = [first, last, named]
    for function in functions:
        result, _ = await run(functools.partial(_by_position, function))
        assert result == (True, (1, 2))


async def _by_position(function: Callable[..., Any], ctx: Context) -> Any:
    return await ctx.tool(function, 1, 2)


def test_a_class_takes_the_types_of_its_constructor() -> None:
    assert tool(Scale).checked({"grams": "3"}) == {"grams": 3}


def test_only_the_annotations_of_parameters_are_evaluated() -> None:
    def weigh(grams: int) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821
    def unclear(grams: Missing) -> int: ...  # type: ignore[name-defined, empty-body]  # noqa: F821

    assert tool(weigh).checked({"grams": 3}) == {"grams": 3}
    says = (
        "tool unclear: the annotation 'Missing' of its parameter 'grams' cannot be evaluated: nam"
    )
    with pytest.raises(ConfigError, match=says):
        tool(unclear)
