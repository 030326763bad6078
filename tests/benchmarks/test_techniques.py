"""The comparison of techniques: each body runs on both sides, and the table has their ratios."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from click.testing import CliRunner

from agentrt import Context, Runtime, program
from agentrt.engines import TransformersExecutor
from benchmarks.harness import Results
from benchmarks.techniques.attention import ATTENTIONS, PlainModel, PlainThread
from benchmarks.techniques.command import Bench, ours, techniques, text_of, timed
from benchmarks.techniques.table import TECHNIQUES
from benchmarks.techniques.threads import HttpClient, HttpThread, OurThread, Thread
from tests.contexts.real import fresh
from tests.doubles.tinymodel import tiny_model

IN_THE_ENGINE = "watermarking"
"""It needs a logits processor, which the shared engine has not loaded."""


@pytest.mark.engine
@pytest.mark.asyncio(loop_scope="session")
async def test_every_technique_runs(token_runtime: Runtime) -> None:
    """Each body once on our side, and one on two, of which the second finds what the first read."""
    await fresh(token_runtime)
    side = ours(token_runtime)
    bodies = {one.ours: name for name, one in TECHNIQUES.items() if name != IN_THE_ENGINE}
    for name in bodies.values():
        did = await timed(side, TECHNIQUES[name], [text_of(name, 0, 0)])
        assert did["computed"] > 400  # nobody has read its text
    measured = Results({"technique": "technique", "side": "side"})
    one = TECHNIQUES["Skeleton of Thought"]
    await Bench(measured, 1).compare({"skeleton": one}, {"client": side, "contexts": side})
    [[client], [contexts]] = [
        measured.samples["skeleton", which] for which in ("client", "contexts")
    ]
    assert client["steps_to_client"] == client["s_to_client"] == 1.0
    computed = sorted([client["computed"], contexts["computed"]])
    assert computed[1] - computed[0] > 400  # what both have read


class Scripted:
    """An OpenAI server's answers by hand, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            tokens = 'vllm:iteration_tokens_total_sum{engine="0"} 77.0\n'
            return httpx.Response(
                200, text=f'{tokens}vllm:iteration_tokens_total_count{{a="b"}} 5\n'
            )
        body = json.loads(request.content)
        if request.url.path == "/tokenize":
            return httpx.Response(200, json={"tokens": list(map(len, body["prompt"].split()))})
        self.asked.append(body)
        if body.get("stream"):
            lines = [json.dumps({"choices": [{"text": text}]}) for text in (" a", " b")]
            return httpx.Response(
                200, text="".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
            )
        scores: dict[str, Any] = {
            "text_offset": [0, 3, 5, 9],
            "token_logprobs": [None, -1.0, -2.0, -4.0],
            "top_logprobs": [{"token_id:7": -2.0, "token_id:8": -1.0}],
        }
        places = [{"4": {"rank": 1}, "5": {"rank": 9}}, {"6": {"rank": 2}, "3": {"rank": 1}}]
        choice = {"text": " two", "logprobs": scores, "token_ids": [9]}
        choices = [choice | {"prompt_logprobs": [None, *places]}] * body.get("n", 1)
        return httpx.Response(200, json={"choices": choices})


@contextlib.asynccontextmanager
async def client_of(server: Scripted) -> AsyncIterator[HttpClient]:
    transport = httpx.MockTransport(server)
    async with httpx.AsyncClient(base_url="http://server/v1", transport=transport) as client:
        yield HttpClient(client)


async def test_a_client_sends_its_whole_text_and_reads_scores_by_their_places() -> None:
    async with client_of(server := Scripted()) as client:
        thread = HttpThread(client, "One")
        other = thread.fork()
        assert await thread.write(4, seed=3) == " two"
        assert await other.worth(" three") == -3.0
        assert await client.counted() == (5.0, 77.0)
        both = await thread.answers(2, 8)
        assert [piece async for piece in other.pieces(8, "g")] == [" a", " b"]
    assert [body["prompt"] for body in server.asked] == ["One", "One three", "One two", "One"]
    assert (thread.prompt, other.prompt) == ("One two", "One a b")
    assert [one.prompt for _, one in both] == ["One two two"] * 2


async def test_a_client_that_decodes_sends_token_ids() -> None:
    async with client_of(server := Scripted()) as client:
        thread = HttpThread(client, "a bb ccc")
        assert await thread.likeliest(2) == [(8, -1.0), (7, -2.0)]
        assert await thread.corrected([5, 6]) == [4, 3, 9]
        await thread.push([4])
    assert [body["prompt"] for body in server.asked] == [[1, 2, 3], [1, 2, 3, 5, 6]]
    assert thread.prompt == [1, 2, 3, 4]


@pytest.mark.engine
async def test_plain_code_for_transformers_has_the_same_attention(tmp_path: Path) -> None:
    """Where positions are those of the text on both sides, the tokens are the same."""
    folder = str(tiny_model(tmp_path / "model"))
    plain, text = PlainModel(folder), "The river is wide, and the bridge is old. " * 20
    wrote: list[tuple[int, ...]] = []

    @program
    async def body(ctx: Context) -> None:
        context = await ctx.context(text)
        first = len(context)
        await ATTENTIONS["hierarchical attention"].ours(OurThread(ctx, context))
        wrote.append(context.token_ids[first:])

    async with Runtime(TransformersExecutor(folder)) as runtime:
        await runtime.start(body).wait()
    thread = PlainThread(plain, text)
    await ATTENTIONS["hierarchical attention"].theirs(cast(Thread, thread))
    assert tuple(thread.wrote) == wrote[0]
    assert (await plain.counted())[0] == 64


def test_a_technique_that_there_is_not_is_named() -> None:
    result = CliRunner().invoke(techniques, ["--only", "ReAct,chess"])
    assert result.exit_code == 2
    assert "unknown technique 'chess'; available: text completion" in result.output
