"""An answer's limit beyond the model's window is cut to what fits, and the answer says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrt.serving.frontend.bounds import within_window
from agentrt.serving.frontend.conversations import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.serving.frontend.test_identity import ask
from tests.serving.local import open_server

pytestmark = pytest.mark.engine

WINDOW = 2048
FLAGS = ("--max-model-len", str(WINDOW))
HEADER = "x-agentrt-max-tokens"
LIMITS = [
    (CHAT, "max_tokens"),
    (CHAT, "max_completion_tokens"),
    (COMPLETIONS, "max_tokens"),
    (MESSAGES, "max_tokens"),
    (RESPONSES, "max_output_tokens"),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("asked", [WINDOW - 1, WINDOW, WINDOW + 1, 32_000, 10**9])
@pytest.mark.parametrize(("path", "field"), LIMITS)
async def test_a_limit_is_cut_to_what_fits(path: str, field: str, asked: int, stream: bool) -> None:
    async with open_server(flags=FLAGS) as local:
        body = {**ask(path, "hi"), field: asked, "stream": stream}
        answer = await local.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        [call] = local.engine.calls
        prompt, most = len(call.spec.prompt_token_ids), call.spec.max_tokens
        assert most == min(asked, WINDOW - prompt)
        assert answer.headers.get(HEADER) == (str(most) if most < asked else None)


@pytest.mark.parametrize(("path", "field"), LIMITS)
async def test_a_limit_that_fits_stays_as_it_is(path: str, field: str) -> None:
    async with open_server(flags=FLAGS) as local:
        answer = await local.client.post(path, json={**ask(path, "hi"), field: 100})
        assert answer.status_code == 200
        assert HEADER not in answer.headers
        assert local.engine.calls[0].spec.max_tokens == 100


@pytest.mark.parametrize("written", ["3.2e4", "32000.0", '"32000"', '" +32_000 "', '"32000.0"'])
@pytest.mark.parametrize(("path", "field"), LIMITS)
async def test_a_limit_is_cut_however_its_number_is_written(
    path: str, field: str, written: str
) -> None:
    """vLLM reads these as integers, too."""
    async with open_server(flags=FLAGS) as local:
        body = json.dumps({**ask(path, "hi"), field: None}).replace("null", written)
        headers = {"content-type": "application/json"}
        answer = await local.client.post(path, content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        [call] = local.engine.calls
        assert call.spec.max_tokens == WINDOW - len(call.spec.prompt_token_ids)
        assert answer.headers[HEADER] == str(call.spec.max_tokens)


@pytest.mark.parametrize(("path", "field"), LIMITS)
async def test_a_prompt_beyond_the_window_stays_a_400(path: str, field: str) -> None:
    async with open_server(flags=FLAGS) as local:
        answer = await local.client.post(
            path, json={**ask(path, "many words " * 3000), field: 32_000}
        )
        assert answer.status_code == 400
        assert HEADER not in answer.headers
        assert not local.engine.calls


@pytest.mark.parametrize("odd", ["32000", 32_000.5, -1, True, None])
@pytest.mark.parametrize(("path", "field"), LIMITS)
async def test_an_invalid_limit_is_passed_to_vllm(path: str, field: str, odd: Any) -> None:
    async with open_server(flags=FLAGS) as local:
        answer = await local.client.post(path, json={**ask(path, "hi"), field: odd})
        assert answer.status_code in (200, 400, 422)
        assert "the server failed" not in answer.text


@pytest.mark.parametrize("most", [1500, 32_000])
async def test_a_budget_for_thinking_that_no_engine_can_hold_is_left_out(most: int) -> None:
    """Claude Code sends one with every request."""
    thinking = {"type": "enabled", "budget_tokens": most - 1}
    async with open_server(flags=FLAGS) as local:
        body = {**ask(MESSAGES, "hi"), "max_tokens": most, "thinking": thinking}
        answer = await local.client.post(MESSAGES, json=body)
        assert answer.status_code == 200, answer.text
        assert (HEADER in answer.headers) == (most > WINDOW)


def test_a_budget_for_thinking_stays_below_a_limit_that_is_cut() -> None:
    thinking = {"type": "enabled", "budget_tokens": 31_999, "display": "omitted"}
    body = {"max_tokens": 32_000, "thinking": thinking}
    cut = within_window(MESSAGES, body, WINDOW)
    assert cut == {
        "max_tokens": WINDOW,
        "thinking": {"type": "enabled", "budget_tokens": WINDOW - 1, "display": "omitted"},
    }
    assert body["thinking"] == thinking
    small = {"max_tokens": 1500, "thinking": {"type": "enabled", "budget_tokens": 1400}}
    assert within_window(MESSAGES, small, WINDOW) is small


async def test_a_program_of_this_process_gets_the_lowered_limit_too() -> None:
    from agentrt import Context, program

    @program
    async def asks(ctx: Context) -> Any:
        return (await ctx.llm("hi", max_tokens=32_000)).text

    async with open_server(flags=FLAGS) as local:
        run = local.runtime.start(asks, {})
        assert run.task is not None
        await run.task
        assert run.error is None
        [call] = local.engine.calls
        assert call.spec.max_tokens == WINDOW - len(call.spec.prompt_token_ids)
