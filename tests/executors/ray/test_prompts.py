"""A rendered call on its way to an actor and back, without Ray: its prompt is sent once each
way.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm import CompletionOutput, RequestOutput, SamplingParams
from vllm.lora.request import LoRARequest

from agentrt.engines import EngineOptions
from agentrt.executors.base import Chunk
from agentrt.executors.ray.engine import EngineActor, PromptRestorer, without_copies
from agentrt.request import Call, CallSpec, Identity, RenderedCall, Reply
from tests.doubles.scripted import ScriptedExecutor

pytestmark = pytest.mark.engine

PROMPT = list(range(100_000, 102_000))
PIECES = 5


def output(number: int) -> RequestOutput:
    """Return a piece of an output, as vLLM streams it: a token, and the whole prompt."""
    last = number == PIECES - 1
    one = CompletionOutput(0, f" t{number}", [number], -0.5, [], "stop" if last else None)
    return RequestOutput("p/0", "the prompt's text", PROMPT, None, [one], last)


class Engine(ScriptedExecutor):
    def __init__(self, options: EngineOptions) -> None:
        super().__init__()
        self.adapters: list[tuple[str, Any]] = []

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.calls.append(call)
        for number in range(PIECES):
            made = output(number)
            yield Chunk(f" t{number}", Reply("") if made.finished else None, output=made)

    async def add_adapter(self, model: str, adapter: Any) -> None:
        self.adapters.append((model, adapter))

    def on_kv_events(self, listener: Any) -> None: ...


@pytest.fixture
async def actor(monkeypatch: pytest.MonkeyPatch) -> EngineActor:
    monkeypatch.setattr("agentrt.executors.ray.engine.VLLMEngine", Engine)
    return EngineActor(EngineOptions())


def rendered() -> Call:
    adapter = LoRARequest("poet", 1, "/adapters/poet")
    prompt = {"type": "token", "prompt_token_ids": PROMPT, "cache_salt": "alice"}
    params = SamplingParams(max_tokens=9, stop=["END"], extra_args={"a": 1})
    what = RenderedCall(prompt, params, {"lora_request": adapter})
    spec = CallSpec(prompt_token_ids=tuple(PROMPT), max_tokens=9, rendered=what)
    return Call(Identity("p/0", "p", "t"), spec)


async def pieces_of(actor: EngineActor, call: Call) -> list[Chunk]:
    await actor.begin(call, True)
    pieces: list[Chunk] = []
    while True:
        for _, piece in await actor.collect():
            if piece is None:
                return pieces
            assert isinstance(piece, Chunk)
            pieces.append(piece)


async def test_the_prompt_comes_with_the_first_piece_alone(actor: EngineActor) -> None:
    pieces = await pieces_of(actor, rendered())
    sizes = [len(pickle.dumps(piece)) for piece in pieces]
    assert sizes[0] > 4000
    assert max(sizes[1:]) < 1000


async def test_a_front_end_gets_every_piece_whole(actor: EngineActor) -> None:
    restorer = PromptRestorer()
    travelled = [pickle.loads(pickle.dumps(one)) for one in await pieces_of(actor, rendered())]
    restored = [restorer.restored(one) for one in travelled]
    assert [repr(one.output) for one in restored] == [repr(output(n)) for n in range(PIECES)]
    assert [one.reply is not None for one in restored] == [False] * (PIECES - 1) + [True]


def test_a_call_travels_with_its_prompt_once() -> None:
    """The call is pickled, as Ray sends it. Parameters, adapter and salt arrive unchanged."""
    call = rendered()
    sent = pickle.dumps(without_copies(call))
    assert len(sent) < 0.6 * len(pickle.dumps(call))
    there = pickle.loads(sent)
    assert there == replace(call, spec=replace(call.spec, prompt_token_ids=None))
    assert there.spec.rendered.options["lora_request"].lora_path == "/adapters/poet"


def test_a_call_that_is_not_rendered_is_left_as_it_is() -> None:
    call = Call(Identity("p/0", "p", "t"), CallSpec(prompt_token_ids=(1, 2)))
    assert without_copies(call) is call


async def test_outputs_of_another_kind_are_left_as_they_are() -> None:
    restorer = PromptRestorer()
    chunks = [Chunk("a"), Chunk("b", Reply("ab"))]
    assert [restorer.restored(chunk) for chunk in chunks] == chunks


async def test_an_adapter_is_loaded_there(actor: EngineActor) -> None:
    adapter = LoRARequest("poet", 1, "/adapters/poet")
    await actor.add_adapter("m", adapter)
    engine: Any = actor._engine
    assert engine.adapters == [("m", adapter)]
