"""How vLLM's engine is loaded: with the sizes of ``vllm serve``, and none is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
import zmq.asyncio

from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.errors import ConfigError, EngineStartError, ModelLoadError
from agentrt.executors.vllm import lifetime
from agentrt.executors.vllm.entrypoints.models import open_frontend
from agentrt.executors.vllm.options import engine_args
from agentrt.executors.vllm.processes import Activity, stalled
from tests.doubles.ports import reserved_port
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.tinymodel import tiny_model

TEMPLATE = "{% for tool in tools %}{{ tool }}{% endfor %}{{ '<tool_call><think>' }}"
"""A chat template that shows tools, and after which Qwen3's parsers are picked."""


class Slow(VLLMEngine):
    """An engine that loads until it may end. What it loads is not a real engine."""

    def __init__(self) -> None:
        super().__init__(EngineOptions())
        self.begun, self.may_end = threading.Event(), threading.Event()

    def _load(self, core: Any = None) -> Any:
        self.begun.set()
        assert self.may_end.wait(60)
        return "engine"


async def test_an_engine_that_comes_too_late_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()

    async def shut_down(llm: Any) -> None:
        ended.put_nowait(llm)

    monkeypatch.setattr(lifetime, "shut_down", shut_down)
    slow = Slow()
    loading = asyncio.create_task(slow._loaded())
    assert await asyncio.to_thread(slow.begun.wait, 60)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await slow.close()
    slow.may_end.set()
    async with asyncio.timeout(60):
        assert await ended.get() == "engine"


class Hung(VLLMEngine):
    """An engine whose process stops as it loads. It waits for the process like vLLM."""

    def __init__(self) -> None:
        super().__init__(EngineOptions("big"))
        self.model = "big"
        self.process = get_context("spawn").Process(target=stop_itself)

    def _load(self, core: Any = None) -> Any:
        self.process.start()
        self.process.join()
        raise EngineStartError("Engine core initialization failed")


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


async def test_an_engine_that_hangs_as_it_loads_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process is ended, and a replica that is restarted is tried again."""
    monkeypatch.setenv("VLLM_ENGINE_READY_TIMEOUT_S", "1")
    hung = Hung()
    async with asyncio.timeout(120):
        with pytest.raises(EngineStartError, match=r"'big': its processes did nothing for 1 s"):
            await hung._loaded()
    assert hung.process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("work", "looks"),
    [
        ([], 5),
        ([Activity(0.5, 0)] * 9, 10 + 4),
        ([Activity(0.0, 1 << 21)] * 9, 10 + 4),
        ([Activity(0.01, 100)] * 9, 5),
    ],
    ids=["nothing", "computes", "reads", "only monitors"],
)
async def test_a_start_that_works_may_take_as_long_as_it_needs(
    work: list[Activity], looks: int
) -> None:
    """Each look is a quarter of the limit. The first sees a new process."""
    sums = [Activity(0.0, 0)]
    for cpu_s, io_bytes in work:
        sums.append(Activity(sums[-1].cpu_s + cpu_s, sums[-1].io_bytes + io_bytes))
    looked = 0

    def activity(pids: Sequence[int]) -> Activity:
        nonlocal looked
        looked += 1
        return sums[min(looked, len(sums)) - 1]

    await stalled([1], 1e-9, activity)
    assert looked == looks


async def test_a_start_whose_compiler_ends_still_works() -> None:
    """The sums lose what the ended process did. What the others do afterwards counts at once."""
    sums = [Activity(0.0, 0), Activity(900.0, 1 << 40)]
    sums += [Activity(float(cpu_s), cpu_s << 21) for cpu_s in range(20)]
    looked = 0

    def activity(pids: Sequence[int]) -> Activity:
        nonlocal looked
        looked += 1
        return sums[min(looked, len(sums)) - 1]

    await stalled([1], 1e-9, activity)
    assert looked == len(sums) + 4


class Refused(Exception):
    """An engine must not start here, since its configuration is looked at only."""


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations with which engines would have started, and who would have started them."""
    from vllm.v1.engine.async_llm import AsyncLLM

    configs: list[Any] = []

    def look(config: Any, *, usage_context: Any, **_: Any) -> Any:
        configs.append((config, usage_context))
        raise Refused

    monkeypatch.setattr(AsyncLLM, "from_vllm_config", look)
    return configs


def test_the_default_sizes_are_those_of_vllm_serve(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configs: list[Any]
) -> None:
    """vLLM chooses the tokens of a step and the batch slots by GPU and by who starts the engine."""
    import torch
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    tokens = {UsageContext.LLM_CLASS: 512, UsageContext.OPENAI_API_SERVER: 256}
    slots = {UsageContext.LLM_CLASS: 32, UsageContext.OPENAI_API_SERVER: 64}
    monkeypatch.setattr(AsyncEngineArgs, "get_batch_defaults", lambda *_: (tokens, slots))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model = str(tiny_model(tmp_path))
    with pytest.raises(EngineStartError):
        VLLMEngine(EngineOptions(model))._load()
    ours, context = configs[0]
    theirs = AsyncEngineArgs(model=model).create_engine_config(UsageContext.OPENAI_API_SERVER)
    assert context == UsageContext.OPENAI_API_SERVER
    for config in (ours.scheduler_config, theirs.scheduler_config):
        assert (config.max_num_batched_tokens, config.max_num_seqs) == (256, 64)


END = {"reasoning_end_str": "That is enough.</think>"}


@pytest.mark.parametrize(
    ("flags", "theirs"),
    [
        (("--reasoning-parser", "qwen3"), {"reasoning_parser": "qwen3"}),
        (("--chat-template", TEMPLATE), {"reasoning_parser": "qwen3"}),
        (
            ("--chat-template", TEMPLATE, "--reasoning-config", json.dumps(END)),
            {"reasoning_parser": "qwen3", "reasoning_config": END},
        ),
        ((), {}),
        (("--reasoning-parser", "openai_gptoss"), {}),  # it names no texts that begin and end
    ],
    ids=["named", "picked", "with an end", "none", "without texts"],
)
def test_thinking_is_limited_as_by_vllm_serve(
    tmp_path: Path, configs: list[Any], flags: tuple[str, ...], theirs: dict[str, Any]
) -> None:
    """vLLM refuses a request with ``thinking_token_budget`` if the engine cannot limit thinking."""
    from vllm.config import ReasoningConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    model = str(tiny_model(tmp_path))
    with pytest.raises(EngineStartError):
        VLLMEngine(EngineOptions(model, flags=flags))._load()
    ours = configs[0][0].reasoning_config
    if "reasoning_config" in theirs:
        theirs = {**theirs, "reasoning_config": ReasoningConfig(**theirs["reasoning_config"])}
    stock = AsyncEngineArgs(model=model, **theirs).create_engine_config().reasoning_config
    assert _limits(ours) == _limits(stock)
    assert (ours is not None) == bool(theirs)


def _limits(config: Any) -> Any:
    """The tokens that begin thinking, that end it at its limit, and that end it by themselves."""
    return config and (
        config.reasoning_start_token_ids,
        config.reasoning_end_token_ids,
        config.natural_reasoning_end_token_ids,
    )


BROKEN = 'raise OSError("no\\nlicence")'


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--chat-template", "none.jinja"), "--chat-template none.jinja: no such file"),
        (("--chat-template", "latin.jinja"), "--chat-template latin.jinja: 'utf-8' codec"),
        (("--tool-parser-plugin", "none.py"), "--tool-parser-plugin none.py: cannot be loaded"),
        (("--reasoning-parser-plugin", "broken.py"), "cannot be loaded: OSError: no licence"),
        (("--tokenizer", "/none"), "the tokenizer '/none' of model"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.jinja").write_bytes(b"caf\xe9")
    (tmp_path / "broken.py").write_text(BROKEN)
    engine = VLLMEngine(EngineOptions(str(tiny_model(tmp_path / "tiny")), flags=flags))
    with pytest.raises((ConfigError, ModelLoadError)) as refused:
        engine._load()
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_tool_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    address = f"127.0.0.1:{reserved_port()}"
    engine = ScriptedEngine(lambda call: "", str(tiny_model(tmp_path)), ("--tool-server", address))
    await engine.start(lambda message: None)
    with pytest.raises(ConfigError, match=f"--tool-server {address}: .*start this server first"):
        await open_frontend(engine)


@pytest.mark.parametrize("config", ["{", "[]", '{"max_position_embeddings": "many"}'])
def test_a_context_length_that_cannot_be_read_is_left_to_vllm(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config, "utf-8")
    assert engine_args(EngineOptions(), str(tmp_path), on_gpu=False).max_model_len == 4096


@pytest.mark.parametrize(
    ("name", "field", "flags"),
    [
        ("config.json", "max_target_positions", ()),
        ("config.json", "n_positions", ()),
        ("sentence_bert_config.json", "max_seq_length", ("--runner", "pooling")),
    ],
)
def test_a_model_with_a_short_context_gets_this_context_on_a_cpu(
    tmp_path: Path, name: str, field: str, flags: tuple[str, ...]
) -> None:
    """Only vLLM knows all places that limit the context, such as Whisper's, GPT-2's and that of a
    sentence transformer. A limit of the user that exceeds the context is refused.
    """
    file = tiny_model(tmp_path) / name
    config = json.loads(file.read_text("utf-8")) if file.exists() else {"do_lower_case": False}
    file.write_text(json.dumps({**config, field: 448}), "utf-8")
    options = EngineOptions(str(tmp_path), flags=flags)
    _, whole = VLLMEngine(options)._configured(on_gpu=False)
    assert whole.model_config.max_model_len == 448
    longer = replace(options, flags=(*flags, "--max-model-len", "449"))
    with pytest.raises(ConfigError, match="max_model_len"):
        VLLMEngine(longer)._configured(on_gpu=False)


async def test_a_socket_that_vllm_left_open_does_not_stop_the_event_loop() -> None:
    context = zmq.Context()
    asynchronous = zmq.asyncio.Context(context)
    left_open = asynchronous.socket(zmq.PULL)  # `context` does not know this socket
    resources = SimpleNamespace(ctx=context)
    llm: Any = SimpleNamespace(
        output_handler=None,
        engine_core=SimpleNamespace(resources=resources),
        shutdown=lambda seconds: None,
    )
    try:
        await lifetime.shut_down(llm)
        assert not left_open.closed
    finally:
        left_open.close(linger=0)
