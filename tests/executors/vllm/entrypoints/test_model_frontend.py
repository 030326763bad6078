"""vLLM's whole front end without weights: what a program asks for, and what it gets back.

One scripted engine with the embedded model's tokenizer answers what each test gives it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio
from vllm.exceptions import VLLMValidationError

from agentrt import Context, Reply, Runtime, program
from agentrt.errors import CallRejectedError, ConfigError, NotServedError, PromptTooLongError
from agentrt.executors.chat_api import calling
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.entrypoints.client import as_ours
from agentrt.executors.vllm.entrypoints.flags import check_flags, given_flags
from agentrt.executors.vllm.entrypoints.model_frontend import VLLMFrontend
from agentrt.graph import NodeState
from agentrt.program.stream import Delta
from agentrt.request import Call, ToolCall
from agentrt.runtime.run import Run, RunState
from agentrt.tracking.scope import Scope
from tests.doubles.scripted_engine import ScriptedEngine
from tests.graph.integrity import check_integrity

FLAGS = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--max-model-len", "512")
SHARED_LOOP = pytest.mark.asyncio(loop_scope="module")
YES = "<think></think>Yes."
ASK = [{"role": "user", "content": "Hello?"}]
HALF = [{"role": "assistant", "content": "Well, "}]
TWO_CALLS = (
    "<think>\nTwo cities.\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)


def weather(city: str) -> str:
    """The weather of a city."""
    return f"fine in {city}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Runtime]:
    model = str(embedded_model(lambda message: None))
    async with Runtime(ScriptedEngine(lambda call: "", model, FLAGS)) as runtime:
        yield runtime


@pytest.fixture
def engine(shared: Runtime) -> ScriptedEngine:
    """Return the engine, with empty lists of past calls."""
    engine = shared.executor
    assert isinstance(engine, ScriptedEngine)
    for past in (engine.calls, engine.aborted_calls, engine.ended):
        past.clear()
    return engine


Ask = Callable[..., Any]


@pytest.fixture
def ask(shared: Runtime, engine: ScriptedEngine) -> Ask:
    """Return a function that runs a program of one call, which the engine answers with ``says``,
    and returns the run and the reply.
    """

    async def run(
        says: str | Callable[[Call], str], chat: Any = "Hello?", **options: Any
    ) -> tuple[Run, Any]:
        engine.script = (lambda call: says) if isinstance(says, str) else says

        @program
        async def asks(ctx: Context) -> Any:
            if not options.get("stream"):
                return await ctx.llm(chat, **options)
            stream = ctx.llm(chat, **options)
            return [delta async for delta in stream.deltas()], stream.reply

        run = shared.start(asks)
        result = await run.wait()
        check_integrity(run.dag)
        return run, result

    return run


@SHARED_LOOP
async def test_reasoning_text_and_two_calls_come_apart(ask: Ask) -> None:
    _, reply = await ask(TWO_CALLS, tools=[weather])
    assert reply.reasoning.strip() == "Two cities."
    assert reply.text.strip() == "Let me look."
    assert [call.arguments for call in reply.tool_calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert len({call.id for call in reply.tool_calls}) == 2
    assert reply.finish_reason == "tool_calls"
    message = reply.message
    assert message["reasoning"].strip() == "Two cities."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather", "weather"]


@SHARED_LOOP
async def test_a_stream_gives_the_same_in_pieces(ask: Ask) -> None:
    _, whole = await ask(TWO_CALLS, tools=[weather])
    _, (deltas, streamed) = await ask(TWO_CALLS, tools=[weather], stream=True)
    assert "".join(delta.reasoning for delta in deltas) == streamed.reasoning == whole.reasoning
    assert streamed.text.strip() == whole.text.strip()
    assert _named(streamed.tool_calls) == _named(whole.tool_calls)
    heads = [call for delta in deltas for call in delta.tool_calls if call.get("id")]
    assert [call["index"] for call in heads] == [0, 1]
    assert all(isinstance(delta, Delta) for delta in deltas)


def _named(calls: tuple[ToolCall, ...]) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in calls]


@SHARED_LOOP
async def test_every_call_of_a_beam_search_is_the_program_s(
    ask: Ask, engine: ScriptedEngine
) -> None:
    """There is a call for the first token, then one for each beam, each after all calls before."""
    body = {"use_beam_search": True, "n": 2}
    run, reply = await ask("Yes, yes, yes", extra_body=body, max_tokens=3)
    assert len(reply.choices) == 2
    assert {call.program_id for call in engine.calls} == {run.id}
    assert [node.parents for node in run.dag.nodes()] == [(), (0,), (0,), (1, 2), (1, 2)]


@SHARED_LOOP
async def test_each_choice_is_a_sibling_in_the_dag(ask: Ask, engine: ScriptedEngine) -> None:
    run, reply = await ask(YES, n=3, temperature=0.7)
    assert [choice.text for choice in reply.choices] == ["Yes."] * 3
    assert [node.parents for node in run.dag.nodes()] == [()] * 3
    seeds = {call.spec.seed for call in engine.calls}
    assert len(seeds) == 3, "each choice draws a seed of its own"
    assert None not in seeds


@SHARED_LOOP
async def test_choices_begin_one_after_the_other(ask: Ask, engine: ScriptedEngine) -> None:
    """One choice begins in each pass of the event loop, so that other programs continue
    meanwhile.
    """
    passes, begun = [0], list[int]()

    def noted(call: Call) -> str:
        begun.append(passes[0])
        return YES

    async def count() -> None:
        while True:
            passes[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await ask(noted, n=32, temperature=0.7)
    counting.cancel()
    assert len(set(begun)) == 32


@SHARED_LOOP
async def test_a_seed_that_is_given_counts_up(ask: Ask, engine: ScriptedEngine) -> None:
    await ask(YES, n=2, temperature=0.7, seed=5)
    assert sorted(call.spec.seed or 0 for call in engine.calls) == [5, 6]


@SHARED_LOOP
async def test_what_follows_a_call_has_all_choices_for_parents(
    shared: Runtime, engine: ScriptedEngine
) -> None:
    engine.script = lambda call: YES

    @program
    async def twice(ctx: Context) -> Reply:
        await ctx.llm("first?", n=2, temperature=0.7)
        return await ctx.llm("second?")

    run = shared.start(twice)
    await run.wait()
    assert [node.parents for node in run.dag.nodes()] == [(), (), (0, 1)]


@SHARED_LOOP
async def test_sampling_reaches_the_engine(ask: Ask, engine: ScriptedEngine) -> None:
    options = {"top_k": 7, "repetition_penalty": 1.2, "extra_body": {"min_tokens": 2}}
    await ask(YES, temperature=0.5, max_tokens=9, seed=3, **options)
    rendered = engine.calls[0].spec.rendered
    assert rendered is not None
    params = rendered.params
    assert (params.top_k, params.min_tokens, params.max_tokens) == (7, 2, 9)
    assert (params.repetition_penalty, params.temperature, params.seed) == (1.2, 0.5, 3)
    assert engine.calls[0].spec.prompt_token_ids == tuple(rendered.prompt["prompt_token_ids"])


@pytest.mark.parametrize(
    ("chat", "options", "error", "message"),
    [
        ("word " * 600, {}, PromptTooLongError, "maximum context length is 512 tokens"),
        ("x", {"model": "other"}, NotServedError, "serves 'smollm2.*not model 'other'"),
        ("x", {"min_p": 7.0}, CallRejectedError, "min_p must be in"),
        ("x", {"extra_body": {"top_logprobs": "no"}}, CallRejectedError, "top_logprobs"),
        ([{"role": "user", "content": [{"type": "cat"}]}], {}, CallRejectedError, "cat"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@SHARED_LOOP
async def test_what_cannot_be_is_our_error(
    ask: Ask,
    chat: Any,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    stream: bool,
) -> None:
    with pytest.raises(error, match=message):
        await ask(YES, chat, stream=stream, **options)


def test_a_prompt_that_fills_the_context_is_too_long() -> None:
    refusal = VLLMValidationError("at least 1, got 0", parameter="max_tokens", value=0)
    error = as_ours(refusal)
    assert type(error) is PromptTooLongError
    assert "fills the model's context" in str(error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
@SHARED_LOOP
async def test_an_engines_error_is_the_programs(
    shared: Runtime, engine: ScriptedEngine, stream: bool, n: int
) -> None:
    """1. The engine refuses a call. 2. vLLM reports its own error. 3. The program gets ours."""

    def refuse(call: Call) -> str:
        raise CallRejectedError("no such thing")

    engine.script = refuse

    @program
    async def hopeful(ctx: Context) -> None:
        if stream:
            async for _ in ctx.llm("x", stream=True, n=n, temperature=0.7):
                pass
        else:
            await ctx.llm("x", n=n, temperature=0.7)

    run = shared.start(hopeful)
    with pytest.raises(CallRejectedError, match=r"^no such thing$"):
        await run.wait()
    assert {node.state for node in run.dag.nodes()} <= {NodeState.FAILED, NodeState.CANCELLED}
    assert NodeState.FAILED in {node.state for node in run.dag.nodes()}


@SHARED_LOOP
async def test_who_stops_reading_aborts_the_call(shared: Runtime, engine: ScriptedEngine) -> None:
    engine.script = lambda call: "<think></think>one two three four five"

    @program
    async def leaves(ctx: Context) -> str:
        stream = ctx.llm("count", stream=True)
        first = await anext(stream)
        await stream.aclose()
        return first

    run = shared.start(leaves)
    assert "one" in await run.wait()
    assert engine.aborted_calls == [f"{run.id}/0"]
    assert run.dag.node(0).state is NodeState.CANCELLED


@SHARED_LOOP
async def test_tokens_and_profile_are_the_models(shared: Runtime) -> None:
    front = await shared.frontend()
    chat = {"messages": [{"role": "user", "content": "Hello there."}]}
    bare, told = await front.tokenize("Hello there."), await front.count_tokens(chat)
    assert len(bare) == 3
    assert told > len(bare)
    profile = front.profile()
    assert (profile.max_model_len, profile.tools, profile.reasoning) == (512, True, True)
    assert not profile.images


@SHARED_LOOP
async def test_a_chat_that_exceeds_the_context_is_too_long_to_be_counted(shared: Runtime) -> None:
    front = await shared.frontend()
    chat = {"messages": [{"role": "user", "content": "word " * 600}]}
    with pytest.raises(PromptTooLongError, match="512"):
        await front.count_tokens(chat)
    with pytest.raises(CallRejectedError, match="cat"):
        await front.render({"messages": [{"role": "user", "content": [{"type": "cat"}]}]})


@SHARED_LOOP
async def test_nothing_of_ours_is_in_an_answer(shared: Runtime, engine: ScriptedEngine) -> None:
    engine.script = lambda call: YES
    run = shared.registry.open("raw")
    caller = shared.emitter(run).caller(Scope(run))
    front = await shared.frontend()
    request = {"messages": [{"role": "user", "content": "x"}], "return_token_ids": True}
    pieces = [piece async for piece in front.chat_stream(request, caller)]
    answers = [await front.chat(request, caller), *pieces]
    shared.registry.close(run, RunState.DONE)
    assert len(answers) > 3
    assert not any("agentrt" in str(answer) for answer in answers)


# -- a program's way beside that of vLLM's own application -----------------------------------


LOOK = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
SAME: list[tuple[str, dict[str, Any]]] = [
    (YES, {}),
    (TWO_CALLS, {"tools": [LOOK]}),
    (TWO_CALLS, {"tools": [LOOK], "parallel_tool_calls": False}),
    (TWO_CALLS, {"tools": [LOOK], "tool_choice": "none"}),
    (YES, {"tools": [LOOK], "tool_choice": "auto", "include_reasoning": False}),
    ("<think>Long.</think>One two three", {"max_tokens": 4, "n": 2, "seed": 3, "temperature": 0.7}),
    ("<think></think>One two three", {"stop": ["two"], "return_token_ids": True}),
    (YES, {"logprobs": True, "top_logprobs": 0, "temperature": 0.3, "seed": 1}),
    (YES, {"echo": True, "add_generation_prompt": False, "continue_final_message": True}),
    (YES, {"return_prompt_text": True, "chat_template_kwargs": {"enable_thinking": False}}),
    ("Yes, yes, yes", {"use_beam_search": True, "n": 2, "max_tokens": 3}),
]


def said(value: Any) -> Any:
    """Return an answer without empty fields, and without those that are different for each
    request.
    """
    if isinstance(value, list):
        return [said(item) for item in value]
    if not isinstance(value, dict):
        return value
    drawn = ("id", "created", "object", "type")
    return {name: said(item) for name, item in value.items() if item and name not in drawn}


@SHARED_LOOP
@pytest.mark.parametrize(("says", "fields"), SAME)
async def test_a_program_s_answer_is_that_of_vllm_s_application(
    shared: Runtime, engine: ScriptedEngine, says: str, fields: dict[str, Any]
) -> None:
    """The answer is the same as a whole and as a stream, and the engine gets the same calls."""
    engine.script = lambda call: says
    front = await shared.frontend()
    assert isinstance(front, VLLMFrontend)
    chat = {"messages": [*ASK, *HALF] if "echo" in fields else ASK}
    request = {"temperature": 0, **chat, **fields}
    run = shared.registry.open("raw")
    caller = shared.emitter(run).caller(Scope(run))
    transport = httpx.ASGITransport(front.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        with calling(caller):
            whole = (await http.post("/v1/chat/completions", json=request)).json()
            own_whole = await front.chat(request, caller)
            streaming = {**request, "stream": True, "stream_options": {"include_usage": True}}
            events = (await http.post("/v1/chat/completions", json=streaming)).text
    own_pieces = [piece async for piece in front.chat_stream(request, caller)]
    shared.registry.close(run, RunState.DONE)
    lines = [line.removeprefix("data: ") for line in events.splitlines() if line.strip()]
    pieces = [json.loads(line) for line in lines if line != "[DONE]"]
    assert whole["choices"]
    assert said(own_whole) == said(whole)
    assert said(own_pieces) == said(pieces)
    specs = [
        repr((made.params, made.options, made.prompt["prompt_token_ids"]))
        for call in engine.calls
        if (made := call.spec.rendered) is not None
    ]
    assert len(specs) >= 4
    if "n" not in fields:
        assert specs[0] == specs[1]
        assert specs[2] == specs[3]


# -- flags -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port", "1"], "use 'agentrt serve' with --port before the --"),
        (["--api-key", "k"], "use 'agentrt serve' with --api-key-file before the --"),
        (["--model", "m"], "name the model before the '--', with --model"),
        (["--scheduler-cls", "x"], "choose a policy with --policy"),
        (["--uds", "x"], "with --uds before the --"),
        (["--middleware", "a.b"], "with --middleware before the --"),
        (["--ssl-ciphers", "x"], "has no effect in agentrt"),
        (["--allow-credentials"], "has no effect in agentrt"),
        (["--allowed-origins", '["https://a"]'], "with --cors-origin before the --"),
        (["--ssl-certfile", "x"], "with --ssl-certfile before the --"),
        (["--data-parallel-size", "2"], "use --replicas 2 before the --"),
        (["-dp", "4", "--data-parallel-rank", "1"], "use --replicas 4 before the --"),
        (["--no-such-flag"], "no-such-flag"),
    ],
)
def test_flags_that_are_ours_name_the_way_out(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_flags(given_flags(flags))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--lora-modules", "poet=/nowhere"), "--lora-modules needs --enable-lora"),
        (
            ("--enable-lora", "--lora-modules", "poet=/nowhere"),
            "poet=/nowhere: the folder has no adapter_config.json",
        ),
    ],
)
def test_adapters_that_cannot_be_are_refused_at_once(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_flags(given_flags(flags))
    check_flags(given_flags(["--enable-lora", "--lora-modules", "poet=somebody/poet"]))


def test_flags_of_a_front_end_are_known() -> None:
    options = given_flags(["--tool-call-parser", "hermes", "--chat-template", "x", "--enable-lora"])
    check_flags(options)
    assert options == {"tool_call_parser": "hermes", "chat_template": "x", "enable_lora": True}


@SHARED_LOOP
async def test_half_of_a_surrogate_pair_is_refused(shared: Runtime) -> None:
    @program
    async def asks(ctx: Context) -> None:
        await ctx.llm("Hello\ud83d")

    with pytest.raises(CallRejectedError, match="has half of a surrogate pair"):
        await shared.start(asks).wait()
    with pytest.raises(CallRejectedError, match="has half of a surrogate pair"):
        await (await shared.frontend()).tokenize("Hello\ud83d")


async def test_a_long_text_is_tokenized_beside_the_loop(
    shared: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short text is tokenized at once in the event loop: a thread would take longer."""
    front = await shared.frontend()
    assert isinstance(front, VLLMFrontend)
    threads: list[bool] = []

    class Tokenizer:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            threads.append(threading.current_thread() is threading.main_thread())
            return [1]

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            threads.append(threading.current_thread() is threading.main_thread())
            return "x"

    monkeypatch.setattr(front._renderer, "get_tokenizer", Tokenizer)
    assert [await front.tokenize("x"), await front.tokenize("x" * 5000)] == [[1], [1]]
    assert [await front.detokenize([1]), await front.detokenize([1] * 5000)] == ["x", "x"]
    assert threads == [True, False, True, False]
