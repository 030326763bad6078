"""A model that makes embeddings, through vLLM's front end and two real engines."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from agentrt import Context, Runtime, program
from agentrt.engines import EngineOptions, ReplicaSet, VLLMEngine
from agentrt.errors import CallRejectedError
from agentrt.executors.base import Chunk, Executor
from agentrt.executors.chat_api import Frontend
from agentrt.executors.replicas import Backoff
from agentrt.executors.vllm.entrypoints.models import open_frontend
from agentrt.request import Call
from agentrt.router import make_router
from agentrt.serving.tenants import Limits
from tests.doubles.tinymodel import tiny_model
from tests.engine.lent import Lent
from tests.serving.batches.client import request, serve_batches
from tests.serving.local import MODEL, open_server

pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:ORJSONResponse is deprecated"),  # in vLLM's answers
]

TEXTS = ["a cat on a mat", "a dog in the fog", "Köln", "the quick brown fox " * 30]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ReplicaSet]:
    model = tiny_model(tmp_path_factory.mktemp("model"))
    flags = ("--dtype", "float32", "--runner", "pooling", "--max-model-len", "512")
    options = EngineOptions(str(model), 8, flags=flags, replicas=2)
    one = ReplicaSet(
        lambda index: VLLMEngine(options),
        2,
        make_router("round-robin"),
        backoff=Backoff(first_s=3600.0),
    )
    await one.start(lambda message: None)
    yield one
    await one.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frontend(replicas: ReplicaSet) -> AsyncIterator[Frontend]:
    front = await open_frontend(replicas, ["tiny"])
    yield front
    await front.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(frontend: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(frontend.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://agentrt") as one:
        yield one


async def embedded(client: httpx.AsyncClient, texts: Sequence[str]) -> list[list[float]]:
    answer = await client.post("/v1/embeddings", json={"model": "tiny", "input": texts})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["usage"]["prompt_tokens"] >= len(texts)
    return [one["embedding"] for one in sorted(body["data"], key=lambda one: one["index"])]


async def test_embeddings_are_those_of_one_engine(
    replicas: ReplicaSet, client: httpx.AsyncClient
) -> None:
    """Both engines make some, in the order of the texts, and nothing of them is left."""
    many = await embedded(client, TEXTS)
    assert len({tuple(one) for one in many}) == len(TEXTS)
    for text, vector in zip(TEXTS, many, strict=True):
        assert [await embedded(client, [text]) for _ in range(2)] == [[pytest.approx(vector)]] * 2
    steps = [(await replica.snapshot())["steps"] for replica in replicas.replicas]
    assert min(steps) > 0
    for replica in replicas.replicas:
        assert not replica.programs
        assert (replica.calls, replica.view.in_flight) == (0, 0)
    assert not replicas._where


async def test_texts_are_scored(client: httpx.AsyncClient) -> None:
    asked = {"model": "tiny", "text_1": TEXTS[0], "text_2": TEXTS[:3]}
    scores = (await client.post("/score", json=asked)).json()["data"]
    assert scores[0]["score"] == pytest.approx(1.0, abs=1e-3)
    assert max(one["score"] for one in scores[1:]) < 0.999


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/embeddings", {"input": TEXTS}),
        ("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS[1:3]}),
        ("/v1/rerank", {"query": TEXTS[0], "documents": TEXTS[1:3]}),
    ],
)
async def test_batches(url: str, body: Any, replicas: ReplicaSet, tmp_path: Path) -> None:
    """Each line has the answer that the same request has over HTTP."""
    async with serve_batches(tmp_path, real=Lent(replicas)) as server:
        lines = [request(f"r{n}", url=url, model=MODEL, **body) for n in range(20)]
        wrong = request("wrong", url=url, model=MODEL)
        batch = await server.until(await server.batch(*lines, wrong, endpoint=url))
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 21, "completed": 20, "failed": 1}
        over_http = await server.local.post(url, {"model": MODEL, **body})
        for line in await server.lines(batch.output_file_id):
            answer = line["response"]["body"]
            assert answer["usage"] == over_http["usage"]
            assert answer.keys() == over_http.keys()
        assert batch.usage is not None
        assert batch.usage.input_tokens == 20 * over_http["usage"]["prompt_tokens"]
        [error] = await server.lines(batch.error_file_id)
        assert (error["custom_id"], error["response"]["status_code"]) == ("wrong", 400)


class Seeing(Lent):
    """Keeps the calls that it gets."""

    def __init__(self, inner: Executor) -> None:
        super().__init__(inner)
        self.seen: list[Call] = []

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.seen.append(call)
        return super().generate(call, stream=stream)


async def test_embeddings_count_for_the_tenant_that_asks_for_them(replicas: ReplicaSet) -> None:
    engine, limits = Seeing(replicas), {"acme": Limits(tokens_per_minute=8)}
    async with open_server(real=engine, limits_of=limits, isolate=True) as local:
        statuses = []
        for tenant in ("acme", "acme", "other"):
            body, who = {"model": MODEL, "input": TEXTS[3]}, {"x-agentrt-tenant": tenant}
            answer = await local.client.post("/v1/embeddings", json=body, headers=who)
            statuses.append(answer.status_code)
        assert statuses == [200, 429, 200]
        assert [call.identity.tenant for call in engine.seen] == ["acme", "other"]
        assert [call.spec.cache_salt for call in engine.seen] == ["acme", "other"]


async def test_a_text_that_is_too_long_is_refused(client: httpx.AsyncClient) -> None:
    long = await client.post("/v1/embeddings", json={"model": "tiny", "input": "word " * 600})
    assert long.status_code == 400
    assert "512" in long.json()["error"]["message"]


async def test_a_chat_is_refused_with_what_the_model_can_do(replicas: ReplicaSet) -> None:
    async with open_server(real=Lent(replicas)) as local:
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        refused = await local.client.post("/v1/chat/completions", json=chat)
    assert refused.status_code == 404
    said = refused.json()["error"]["message"]
    assert " generates no text, and has no /v1/chat/completions; it has /v1/embeddings" in said


async def test_a_program_is_told_that_the_model_does_not_generate(replicas: ReplicaSet) -> None:
    @program
    async def asks(ctx: Context) -> str:
        return str(await ctx.llm("hello"))

    async with Runtime(Lent(replicas)) as runtime:
        with pytest.raises(CallRejectedError, match="does not generate text"):
            await runtime.start(asks).wait()


async def test_embeddings_outlive_an_engine(
    replicas: ReplicaSet, client: httpx.AsyncClient
) -> None:
    expected = await embedded(client, TEXTS)
    [pid] = replicas.replicas[0].executor.pids()
    asking = asyncio.gather(*(embedded(client, TEXTS) for _ in range(20)))
    async with asyncio.timeout(60):
        while not replicas.replicas[0].calls:
            await asyncio.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    for vectors in await asking:
        assert vectors == [pytest.approx(one, abs=1e-4) for one in expected]
    assert replicas.replicas[0].reruns > 0
