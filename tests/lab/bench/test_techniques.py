"""The comparison of techniques: each body runs on both sides, and the table has their ratios."""

from __future__ import annotations

import json

import httpx
import pytest

from agentrt import Runtime
from agentrt.lab.bench.results import Results
from agentrt.lab.bench.technique_bodies import BODIES
from agentrt.lab.bench.technique_threads import HttpThread, counted
from agentrt.lab.bench.techniques import compare, ours
from tests.contexts.real import fresh


@pytest.mark.engine
@pytest.mark.asyncio(loop_scope="session")
async def test_every_technique_runs_on_both_sides(token_runtime: Runtime) -> None:
    """Both are ours here, so that whichever comes second finds what the other has read."""
    await fresh(token_runtime)
    measured = Results({"technique": "technique", "side": "side"})
    side = ours(token_runtime)
    await compare(measured, {"client": side, "contexts": side}, 1)
    assert [(one["technique"], one["side"]) for one in measured.medians()] == [
        (name, side) for name in BODIES for side in ("client", "contexts")
    ]
    for name in BODIES:
        client, contexts = [measured.samples[name, which][0] for which in ("client", "contexts")]
        assert client["steps_to_client"] == client["s_to_client"] == 1.0
        read = max(client["computed"], contexts["computed"])
        assert read - min(client["computed"], contexts["computed"]) > 400  # what both have read


async def test_a_client_sends_its_whole_text_and_reads_scores_by_their_places() -> None:
    asked: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            tokens = 'vllm:iteration_tokens_total_sum{engine="0"} 77.0\n'
            return httpx.Response(
                200, text=f'{tokens}vllm:iteration_tokens_total_count{{a="b"}} 5\n'
            )
        body = json.loads(request.content)
        asked.append(body)
        scores = {"text_offset": [0, 3, 5, 9], "token_logprobs": [None, -1.0, -2.0, -4.0]}
        return httpx.Response(200, json={"choices": [{"text": " two", "logprobs": scores}]})

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(base_url="http://server/v1", transport=transport) as client:
        thread = HttpThread(client, "One")
        other = thread.fork()
        assert await thread.write(4, seed=3) == " two"
        assert await other.worth(" three") == -3.0
        assert await counted(client) == (5.0, 77.0)
    assert [body["prompt"] for body in asked] == ["One", "One three"]
    assert (thread.text, other.text) == ("One two", "One")
