"""A model that sees, and a LoRA adapter of it, on real engines: by programs, HTTP and replicas.

tests/engine/test_ray.py has them on other nodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from vllm.lora.request import LoRARequest

from agentrt import Context, Runtime, ToolCall, program
from agentrt.engines import EngineOptions, ReplicaSet, VLLMEngine
from agentrt.errors import CallRejectedError, EngineError, NotServedError
from agentrt.executors.base import Executor, last_reply
from agentrt.executors.chat_api import Frontend
from agentrt.executors.checkpoints import mark_of
from agentrt.executors.replicas import Backoff
from agentrt.executors.weights import Weights
from agentrt.program.results import ToolResult, messages_of
from agentrt.request import Call, CallSpec, Identity, RenderedCall, Reply
from agentrt.request.sampling import Sampling
from agentrt.router import make_router
from tests.doubles.tinymodel import tiny_model
from tests.engine.lent import Lent, WithFront, lent_front
from tests.engine.seeing import TOKENS, asking, image, said, seeing_flags
from tests.engine.tiny_vision import tiny_adapter, tiny_vision_model
from tests.serving.local import MODEL, open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ReplicaSet]:
    model = tiny_vision_model(tmp_path_factory.mktemp("model"))
    flags = seeing_flags(tiny_adapter(tmp_path_factory.mktemp("adapter"), model))
    options = EngineOptions(str(model), 8, flags=flags, replicas=2, kv_events=True)
    replicas = ReplicaSet(
        lambda index: VLLMEngine(options),
        2,
        make_router("round-robin"),
        backoff=Backoff(first_s=0.1),
        ready_timeout_s=300.0,
    )
    await replicas.start(lambda message: None)
    await replicas.settled()
    yield replicas
    await replicas.close()


@pytest.fixture
def engines(two: ReplicaSet) -> list[Executor]:
    return [replica.executor for replica in two.replicas]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(two: ReplicaSet) -> AsyncIterator[Runtime]:
    """On the first engine."""
    async with Runtime(Lent(two.replicas[0].executor)) as runtime:
        yield runtime


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(alone: Runtime) -> AsyncIterator[Frontend]:
    async with lent_front(alone) as front:
        yield front


async def test_each_image_and_the_adapter_change_what_is_said(alone: Runtime) -> None:
    """Again, with a warm prefix cache, each gives the same: a block is known by its images and
    its adapter.
    """
    asked: list[tuple[tuple[int, ...], str | None]] = [
        ((), None),
        ((1,), None),
        ((2,), None),
        ((1, 2), None),
        ((2, 1), None),
        ((), "tuned"),
        ((1,), "tuned"),
    ]
    profile = (await alone.frontend()).profile()
    assert profile.images
    assert not profile.audio
    answers = []
    for _ in range(2):
        told = [await said(alone, *map(image, seen), model=by) for seen, by in asked]
        answers.append(told)
    assert answers[0] == answers[1]
    assert len(set(answers[0])) == len(asked)
    assert [await said(alone, image(1)) for _ in range(2)] == [answers[0][1]] * 2


async def test_an_image_from_a_tool_is_seen(alone: Runtime) -> None:
    call = ToolCall("draw", {}, "a")
    asked = {"id": "a", "type": "function", "function": {"name": "draw", "arguments": "{}"}}
    calling = {"role": "assistant", "content": "", "tool_calls": [asked]}

    @program
    async def sees(ctx: Context, seed: int) -> str:
        takes = await ctx._emitter.takes(None)
        results = messages_of([ToolResult(call, [image(seed)], takes=takes)])
        assert [message["role"] for message in results] == ["tool"]
        chat = [*asking(), calling, *results]
        return str(await ctx.llm(chat, max_tokens=TOKENS, ignore_eos=True))

    said_of = [await alone.start(sees, seed).wait() for seed in (1, 2, 1)]
    assert said_of[0] == said_of[2] != said_of[1]


async def test_replicas_say_what_one_engine_says(
    alone: Runtime, front: Frontend, engines: list[Executor]
) -> None:
    """The adapter's calls come apart from the model's own: on a CPU, vLLM adds the adapter to
    both where they share a batch.
    """
    seen, by = [image(seed) for seed in range(6)], (None, "tuned")
    expected = [[await said(alone, one, model=name) for one in seen] for name in by]
    lent = [Lent(engine) for engine in engines]
    replicas = ReplicaSet(lambda index: lent[index], 2, make_router("cost"))
    async with Runtime(WithFront(replicas, front)) as runtime:
        told = [
            await asyncio.gather(*(said(runtime, one, model=name) for one in seen)) for name in by
        ]
    assert told == expected
    assert min(one.calls for one in lent) > 0


async def test_contexts_are_of_the_adapter_that_they_name(
    front: Frontend, engines: list[Executor]
) -> None:
    """On replicas too, and again over a warm cache: they say what a chat with it says."""
    lent = [Lent(engine) for engine in engines]
    replicas = ReplicaSet(lambda index: lent[index], 2, make_router("cost"))

    @program
    async def goes_on(ctx: Context, model: str | None) -> tuple[str, float]:
        context = await ctx.context(asking(), model=model)
        before = context.fork()
        done = await context.generate(TOKENS, ignore_eos=True)
        return done.text, (await before.score(done.token_ids)).total

    async with Runtime(WithFront(replicas, front)) as runtime:
        chats = [await said(runtime, model=by) for by in (None, "tuned")]
        for _ in range(2):
            told = [await runtime.start(goes_on, by).wait() for by in (None, "tuned")]
            assert [text for text, _ in told] == chats
            assert told[0][1] != pytest.approx(told[1][1], abs=1e-3)
    assert chats[0] != chats[1]


async def test_an_update_that_fails_leaves_images_and_adapters(
    alone: Runtime, two: ReplicaSet, tmp_path: Path
) -> None:
    """The engine goes back to its weights. Then an adapter's files are removed, while no engine
    has it: its calls are refused, and the engine lives.
    """
    engine = two.replicas[0].executor
    assert isinstance(engine, VLLMEngine)
    folder = Path(engine.options.flags[-1].removeprefix("tuned="))
    weights = unfit_weights(engine, tmp_path)
    before = [await said(alone, image(7), model=by) for by in (None, "tuned")]

    async def fail_to_update() -> None:
        await engine.pause_generation("keep")
        with pytest.raises(EngineError, match="cannot load the weights"):
            await engine.load_weights(weights)
        await engine.resume_generation()
        await engine.forget_prefixes()

    await fail_to_update()
    assert [await said(alone, image(7), model=by) for by in (None, "tuned")] == before
    gone = shutil.move(folder, tmp_path / "gone")
    await fail_to_update()
    with pytest.raises(CallRejectedError, match="adapter 'tuned' cannot be loaded"):
        await said(alone, image(7), model="tuned")
    shutil.move(gone, folder)
    assert [await said(alone, image(7), model=by) for by in (None, "tuned")] == before


async def test_calls_whose_adapter_is_gone_after_a_pause_are_refused(
    alone: Runtime, two: ReplicaSet, tmp_path: Path
) -> None:
    """They stop for an update, with and without output that was delivered. A call of the model
    itself goes on.
    """
    engine = two.replicas[0].executor
    assert isinstance(engine, VLLMEngine)
    folder = Path(engine.options.flags[-1].removeprefix("tuned="))
    tuned = LoRARequest("tuned", 1, str(folder))
    weights = unfit_weights(engine, tmp_path)
    whole = await last_reply(engine.generate(tokens_for("whole"), stream=False))
    streamed = engine.generate(tokens_for("streamed", tuned), stream=True)
    await anext(streamed)
    waiting = [
        asyncio.create_task(last_reply(engine.generate(tokens_for(name, by), stream=False)))
        for name, by in (("unread", tuned), ("own", None))
    ]
    await asyncio.sleep(0)
    await engine.pause_generation("keep")
    gone = shutil.move(folder, tmp_path / "gone")
    with pytest.raises(EngineError, match="cannot load the weights"):
        await engine.load_weights(weights)
    await engine.resume_generation()
    unread, own = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(own, Reply)
    assert own.token_ids == whole.token_ids
    assert isinstance(unread, CallRejectedError)
    with pytest.raises(CallRejectedError, match="adapter 'tuned' cannot be loaded"):
        [chunk async for chunk in streamed]
    shutil.move(gone, folder)
    assert (await last_reply(engine.generate(tokens_for("again", tuned), stream=False))).token_ids
    assert (await engine.snapshot())["requests"] == 0


async def test_a_relative_path_of_an_adapter_that_is_gone_is_refused(two: ReplicaSet) -> None:
    """The engine has no room to load it before the call runs."""
    engine = two.replicas[0].executor
    assert isinstance(engine, VLLMEngine)
    folder = Path(engine.options.flags[-1].removeprefix("tuned="))
    await engine.add_adapter(engine.model, LoRARequest("tuned", 1, str(folder)))
    gone = LoRARequest("gone", 3, "../" * 20 + str(folder / "gone").lstrip("/"))
    with pytest.raises(CallRejectedError, match="adapter 'gone' cannot be loaded"):
        await last_reply(engine.generate(tokens_for("gone", gone), stream=False))
    assert (await last_reply(engine.generate(tokens_for("own"), stream=False))).token_ids


async def test_a_prompt_is_scored_by_the_adapter_of_its_call(tmp_path: Path) -> None:
    """On a CPU, stock vLLM's engine dies. The adapter changes the logits themselves, too, and
    prompts of other lengths are scored in the same step.
    """
    import torch
    from safetensors.torch import load_file, save_file

    model = tiny_model(tmp_path / "model", says_blanks=False)
    folder = tiny_adapter(tmp_path / "adapter", model)
    file, about = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    config = json.loads(about.read_text("utf-8"))
    config["target_modules"].append("lm_head")
    about.write_text(json.dumps(config), "utf-8")
    shapes = json.loads((model / "config.json").read_text("utf-8"))
    head = "base_model.model.lm_head.lora_{}.weight"
    more = {
        head.format("A"): torch.randn(8, shapes["hidden_size"]),
        head.format("B"): torch.randn(shapes["vocab_size"], 8),
    }
    save_file(load_file(file) | more, file, metadata={"format": "pt"})
    flags = (
        *("--dtype", "float32", "--max-model-len", "256", "--num-gpu-blocks-override", "64"),
        *("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"tuned={folder}"),
    )

    @program
    async def scores(ctx: Context, model: str | None) -> list[tuple[float, float]]:
        befores = [await ctx.context("word " * n, model=model) for n in (9, 30, 60)]
        contexts = [before.fork() for before in befores]
        written = [
            await context.generate(n, logprobs=0, ignore_eos=True)
            for n, context in zip((4, 9, 15), contexts, strict=True)
        ]
        scored = await asyncio.gather(
            *(before.score(each.token_ids) for before, each in zip(befores, written, strict=True))
        )
        sums = [sum(ranked[0][1] for ranked in each.logprobs) for each in written]
        return list(zip(sums, (each.total for each in scored), strict=True))

    async with Runtime(VLLMEngine(EngineOptions(str(model), 8, flags=flags))) as runtime:
        of_model, tuned = [await runtime.start(scores, by).wait() for by in (None, "tuned")]
    for total, scored in of_model + tuned:
        assert scored == pytest.approx(total, abs=1e-3)
    assert of_model != tuned


def unfit_weights(engine: VLLMEngine, folder: Path) -> Weights:
    """Weights that the engine cannot load."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(Path(engine.model) / "model.safetensors")
    name = next(name for name in tensors if name.endswith("1.mlp.down_proj.weight"))
    save_file({**tensors, name: torch.zeros(64, 100)}, folder / "model.safetensors")
    return Weights(1, str(folder), mark_of(str(folder)))


def tokens_for(name: str, adapter: LoRARequest | None = None) -> Call:
    """A call of 200 tokens, with an adapter."""
    rendered = None if adapter is None else RenderedCall(options={"lora_request": adapter})
    spec = CallSpec(
        prompt_token_ids=(7,) * 20,
        max_tokens=200,
        ignore_eos=True,
        sampling=Sampling(),
        rendered=rendered,
    )
    return Call(Identity(f"{name}/0", name, "t"), spec)


async def test_calls_with_more_adapters_than_the_engine_holds_drop_no_adapter_before_they_run(
    alone: Runtime, two: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine holds one adapter. An adapter that is loaded while its calls wait drops the
    adapter of the calls that run, which the next step would load again.
    """
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = two.replicas[0].executor
    assert isinstance(engine, VLLMEngine)
    folder = Path(engine.options.flags[-1].removeprefix("tuned="))
    other = LoRARequest("other", 2, str(tiny_adapter(tmp_path / "other", Path(engine.model), 1)))
    before = await said(alone, model="tuned")
    await engine.add_adapter(engine.model, other)
    loaded: list[str] = []
    whole = AsyncLLM.add_lora

    async def add_lora(llm: AsyncLLM, adapter: LoRARequest) -> bool:
        loaded.append(adapter.lora_name)
        return await whole(llm, adapter)

    monkeypatch.setattr(AsyncLLM, "add_lora", add_lora)
    assert await said(alone, model="tuned") == before
    assert loaded == []
    await engine.add_adapter(engine.model, other)
    gone = shutil.move(folder, tmp_path / "gone")
    with pytest.raises(CallRejectedError, match=r"has no file adapter_config\.json"):
        await said(alone, model="tuned")
    shutil.move(gone, folder)
    assert await said(alone, model="tuned") == before
    assert loaded == ["other"]


async def test_what_a_model_cannot_see_is_refused(alone: Runtime) -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(CallRejectedError, match="image"):
        await said(alone, broken)
    with pytest.raises(CallRejectedError, match=r"[Aa]t most 2 image"):
        await said(alone, *map(image, range(3)))
    with pytest.raises(NotServedError, match="tuned"):
        await said(alone, model="untuned")
    assert await said(alone)


Asked = tuple[str, dict[str, Any], Callable[[Any], str]]
"""An API's path, what it is asked, and the text in its answer."""


def http_requests(picture: dict[str, Any], model: str) -> list[Asked]:
    """One question in the form of each API."""
    text, url = asking()[0]["content"][0]["text"], picture["image_url"]["url"]
    seen = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    shown = [{"type": "text", "text": text}, {"type": "image", "source": source}]
    same = {"model": model, "temperature": 0}
    limited = {**same, "max_tokens": TOKENS}
    return [
        (
            "/v1/chat/completions",
            {**limited, "messages": asking(picture)},
            lambda answer: str(answer["choices"][0]["message"]["content"]),
        ),
        (
            "/v1/messages",
            {**limited, "messages": [{"role": "user", "content": shown}]},
            lambda answer: str(answer["content"][0]["text"]),
        ),
        (
            "/v1/responses",
            {**same, "max_output_tokens": TOKENS, "input": [{"role": "user", "content": seen}]},
            lambda answer: str(answer["output"][0]["content"][0]["text"]),
        ),
    ]


async def test_http_says_what_programs_say(two: ReplicaSet, alone: Runtime) -> None:
    """Each API, with the model and with its adapter, which is a model of its own to clients."""
    expected = {by: await said(alone, image(1), model=by) for by in (None, "tuned")}
    async with open_server(real=Lent(two)) as server:
        listed = (await server.client.get("/v1/models")).json()["data"]
        assert {one["id"] for one in listed} == {MODEL, "tuned"}
        for by, model in ((None, MODEL), ("tuned", "tuned")):
            for path, body, text in http_requests(image(1), model):
                answer = await server.post(path, body)
                assert (text(answer), answer["model"]) == (expected[by], model), path
        body = {"model": MODEL, "messages": asking(*map(image, range(3)))}
        refused = await server.client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400
        assert "most 2 image" in refused.json()["error"]["message"]


async def test_an_engine_that_came_back_loads_its_adapter_again(
    two: ReplicaSet, front: Frontend
) -> None:
    """Its core is killed while the adapter's calls run. They, and those after, say the same."""
    seen = [image(seed) for seed in range(4)]
    async with Runtime(WithFront(Lent(two), front)) as runtime:
        expected = [await said(runtime, one, model="tuned") for one in seen]
        running = [asyncio.create_task(said(runtime, one, model="tuned")) for one in seen]
        async with asyncio.timeout(60):
            while not two.replicas[0].calls:
                await asyncio.sleep(0.005)
        [pid] = two.replicas[0].executor.pids()
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.gather(*running) == expected
        async with asyncio.timeout(300):
            while not two.replicas[0].deaths:
                await asyncio.sleep(0.05)
            await two.settled()
        assert [await said(runtime, one, model="tuned") for one in seen] == expected
        assert (await two.replicas[0].executor.snapshot())["steps"] > 0
    assert two.replicas[0].deaths == 1
