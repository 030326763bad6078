"""Rendered calls whose engine dies: the answers of vLLM's front end, from scripted engines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("vllm")

from agentrt.engines import ReplicaSet
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk
from agentrt.executors.chat_api import Frontend
from agentrt.executors.replicas import Backoff
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.entrypoints.models import open_frontend
from agentrt.request import Call, CallSpec, Identity
from agentrt.request.sampling import Sampling
from agentrt.router import make_router
from tests.doubles.scripted_engine import ScriptedEngine
from tests.executors.replicas.reading import Calls, streamed, whole, without_names

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

SAID = (
    'Both then.<tool_call>{"name": "look", "arguments": {"at": "Köln ☂"}}</tool_call>'
    '<tool_call>{"name": "look", "arguments": {"at": "Rom"}}</tool_call>'
)
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-model-len", "2048")
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
LOOK = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
REQUEST: dict[str, Any] = {
    "messages": [{"role": "user", "content": "How is it in Köln and in Rom?"}],
    "tools": [LOOK],
    "logprobs": True,
    "top_logprobs": 1,
    "max_tokens": 200,
}


@dataclass(slots=True)
class Dies(ScriptedEngine):
    """An engine whose calls take the next item of ``runs``: the number of pieces after which the
    engine dies (None: never), and the number of tokens in a piece. Without an item, it does not
    die, and pieces have one token.
    """

    runs: list[tuple[int | None, int]] = field(default_factory=list)

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        dies_after, width = self.runs.pop(0) if self.runs else (None, 1)
        pieces, gathered, outputs = 0, None, ScriptedEngine.generate(self, call, stream=stream)
        async with contextlib.aclosing(outputs) as chunks:
            async for chunk in chunks:
                gathered = chunk if gathered is None else _joined(gathered, chunk)
                whole = len(gathered.output.outputs[0].token_ids) >= width
                if not whole and chunk.reply is None:
                    continue
                if pieces == dies_after:
                    raise EngineDiedError("killed")
                yield gathered
                pieces, gathered = pieces + 1, None


def _joined(one: Chunk, other: Chunk) -> Chunk:
    """Return two pieces as one, joined as vLLM does for a slow reader."""
    one.output.add(other.output, aggregate=True)
    ids = one.token_ids + other.token_ids
    return replace(other, text=one.text + other.text, output=one.output, token_ids=ids)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> Dies:
    model = str(await asyncio.to_thread(embedded_model, lambda message: None))
    one = Dies(lambda call: SAID, model, FLAGS)
    await one.start(lambda message: None)
    return one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(engine: Dies) -> AsyncIterator[ReplicaSet]:
    """Yield a set of two engines that share the list ``engine.runs``."""
    one = ReplicaSet(
        lambda index: replace(engine),
        2,
        make_router("round-robin"),
        backoff=Backoff(first_s=0.0, tries=10**6),
    )
    await one.start(lambda message: None)
    yield one
    await one.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frontend(replicas: ReplicaSet) -> AsyncIterator[Frontend]:
    front = await open_frontend(replicas)
    yield front
    await front.close()


async def test_a_stream_goes_on_as_if_its_engine_had_not_died(
    engine: Dies, replicas: ReplicaSet, frontend: Frontend
) -> None:
    """The engine dies after each even number of pieces. The reader gets the same deltas of text, of
    both tool calls and of log probabilities, piece by piece.
    """
    expected = await streamed(frontend, engine, REQUEST)
    message = whole(expected)["choices"][0]["message"]
    functions = [call["function"] for call in message["tool_calls"]]
    assert message["content"] == "Both then."
    assert functions == [
        {"name": "look", "arguments": '{"at": "Köln ☂"}'},
        {"name": "look", "arguments": '{"at": "Rom"}'},
    ]
    tokens = len(engine.tokens(SAID))
    before = reruns(replicas)
    cuts = range(0, tokens, 2)
    for cut in cuts:
        engine.runs[:] = [(cut, 1)]
        assert await streamed(frontend, replicas, REQUEST) == expected
        await replicas.settled()
    assert reruns(replicas) == before + len(cuts)


@pytest.mark.parametrize("widths", [(1, 4), (3, 2), (40, 5)])
async def test_engines_may_cut_their_pieces_as_they_like(
    engine: Dies, replicas: ReplicaSet, frontend: Frontend, widths: tuple[int, int]
) -> None:
    """Two engines die before a third engine has finished. The pieces together are the same
    answer.
    """
    expected, before = whole(await streamed(frontend, engine, REQUEST)), reruns(replicas)
    first, second = widths
    for cut in range(0, len(engine.tokens(SAID)) // first, 7):
        engine.runs[:] = [(cut, first), (cut, second), (None, first)]
        assert whole(await streamed(frontend, replicas, REQUEST)) == expected
        await replicas.settled()
    assert reruns(replicas) > before


async def test_a_whole_answer_of_a_call_that_died_is_the_same(
    engine: Dies, replicas: ReplicaSet, frontend: Frontend
) -> None:
    expected = without_names(await frontend.chat(REQUEST, Calls(engine)))
    before = reruns(replicas)
    engine.runs[:] = [(0, 1), (0, 1)]
    assert without_names(await frontend.chat(REQUEST, Calls(replicas))) == expected
    assert reruns(replicas) == before + 2


def reruns(replicas: ReplicaSet) -> int:
    return sum(replica.reruns for replica in replicas.replicas)


async def test_token_ids_go_on_as_if_their_engine_had_not_died(
    engine: Dies, replicas: ReplicaSet
) -> None:
    """The call is made of token ids. Its reader gets each token once."""
    said = tuple(engine.tokens(SAID))
    for cut in range(len(said)):
        engine.runs[:] = [(cut, 2)]
        spec = CallSpec((5, 6, 7), max_tokens=99, sampling=Sampling())
        call = Call(Identity(f"p/{cut}", "p", "t"), replace(spec, model=engine.model))
        chunks = [chunk async for chunk in replicas.generate(call, stream=True)]
        assert tuple(token for chunk in chunks for token in chunk.token_ids) == said
        assert chunks[-1].reply is not None
        assert chunks[-1].reply.token_ids == said
