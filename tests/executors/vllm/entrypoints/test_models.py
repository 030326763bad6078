"""Several models under vLLM's front end: each model and each adapter has a name of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from agentrt import Context, Runtime, program
from agentrt.engines import ReplicaSet
from agentrt.errors import ConfigError
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.entrypoints.models import FrontendsByModel, open_frontend
from agentrt.request import CallSpec
from agentrt.router import make_router
from tests.doubles.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.engine

NAME = "checkpoint"


@asynccontextmanager
async def engines_of(*engines: ScriptedEngine) -> AsyncIterator[ReplicaSet]:
    replicas = ReplicaSet(lambda index: engines[index], len(engines), make_router("least-used"))
    await replicas.start(lambda message: None)
    try:
        yield replicas
    finally:
        await replicas.close()


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., ScriptedEngine]:
    """Return a function that makes an engine of a folder, and whose calls answer with ``text``."""
    model = embedded_model(lambda message: None)

    def make(text: str, *flags: str) -> ScriptedEngine:
        folder = tmp_path / text / NAME
        folder.parent.mkdir()
        folder.symlink_to(model, target_is_directory=True)
        return ScriptedEngine(lambda call: text, str(folder), flags)

    return make


@program
async def asks(ctx: Context, model: str | None) -> str:
    return (await ctx.llm("hello", model=model)).text


async def test_two_folders_of_one_name(made: Callable[..., ScriptedEngine]) -> None:
    """The second model has its path as its name, and requests reach it by this name."""
    one, two = made("one"), made("two")
    async with engines_of(one, two) as replicas:
        front = await open_frontend(replicas)
        assert isinstance(front, FrontendsByModel)
        assert [each.names for each in front.fronts] == [[NAME], [two.model]]
        await front.close()
        async with Runtime(replicas) as runtime:
            models = (None, NAME, one.model, two.model)
            texts = [await runtime.start(asks, model).wait() for model in models]
            assert texts == ["one", "one", "one", "two"]


async def test_a_name_is_that_of_the_model_that_is_listed_under_it(
    made: Callable[..., ScriptedEngine],
) -> None:
    """The first model has another name, so that the second is listed under its folder's name."""
    one, two = made("one"), made("two")
    async with engines_of(one, two) as replicas, Runtime(replicas, model_names=["own"]) as runtime:
        models = (None, "own", one.model, NAME, two.model)
        texts = [await runtime.start(asks, model).wait() for model in models]
        assert texts == ["one", "one", "one", "two", "two"]


async def test_an_adapter_has_the_name_of_the_folder_of_its_model(
    made: Callable[..., ScriptedEngine], tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    await asyncio.to_thread(adapter.mkdir)
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    engine = made("one", "--enable-lora", "--lora-modules", f"{NAME}={adapter}")
    async with engines_of(engine) as replicas:
        front = await open_frontend(replicas, ["own"])
        calls = [front.addressed(CallSpec(model=name)) for name in (NAME, "own", engine.model)]
        assert [call.rendered is not None for call in calls] == [True, False, False]
        await front.close()


async def test_two_adapters_of_one_name(
    made: Callable[..., ScriptedEngine], tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    await asyncio.to_thread(adapter.mkdir)
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    flags = ("--enable-lora", "--lora-modules", f"sql={adapter}")
    async with engines_of(made("one", *flags), made("two", *flags)) as replicas:
        with pytest.raises(ConfigError, match="two models have the name 'sql'"):
            await open_frontend(replicas)
