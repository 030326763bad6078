"""`agentrt questions` and `agentrt questions answer` at a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pydantic import BaseModel

from agentrt import Context, Runtime, program
from agentrt.cli.app import call
from agentrt.cli.execute import dashboard
from tests.doubles.scripted import ScriptedExecutor


class Order(BaseModel):
    drink: str
    cups: int


@program
async def waiter(ctx: Context) -> str:
    order: Order = await ctx.human("What may\nI bring?\x1b[2J", schema=Order)
    return f"{order.cups} {order.drink}"


@program
async def chooser(ctx: Context) -> Any:
    return await ctx.human("Which?", choices=["red", "blue"])


class Commands:
    """A server on this loop, and the command line in a thread."""

    def __init__(self, runtime: Runtime, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runtime = runtime
        self.url = url
        monkeypatch.setenv("AGENTRT_URL", url)

    async def call(self, *args: str) -> int:
        return await asyncio.to_thread(call, args)

    async def asked(self, count: int = 1) -> list[str]:
        """The ids of the open questions, once there are so many."""
        async with asyncio.timeout(60):
            while len(self.runtime.questions.open) < count:
                await asyncio.sleep(0)
        return list(self.runtime.questions.open)


@pytest_asyncio.fixture
async def at(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Commands]:
    async with (
        Runtime(ScriptedExecutor(), ask_human=None) as runtime,
        dashboard(runtime) as url,
    ):
        yield Commands(runtime, url, monkeypatch)


async def test_questions_are_listed_and_answered(
    at: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await at.call("questions") == 0
    seen = capsys.readouterr()
    assert (seen.out, seen.err) == ("", f"no questions are open at {at.url}\n")
    order, colour = at.runtime.start(waiter), at.runtime.start(chooser)
    first, second = await at.asked(2)
    assert await at.call("questions") == 0
    schema = json.dumps(Order.model_json_schema())
    assert capsys.readouterr().out.splitlines() == [
        second,
        "  chooser-2 asks: Which?",
        "    1 red",
        "    2 blue",
        first,
        "  waiter-1 asks: What may",
        "  I bring?\ufffd[2J",
        f"  (JSON that fits the schema {schema})",
    ]
    assert await at.call("questions", "answer", first, '{"drink": "tea", "cups": 2}') == 0
    assert await at.call("questions", "answer", second, "2") == 0
    assert capsys.readouterr().err == (
        "answered the question of waiter-1\nanswered the question of chooser-2\n"
    )
    assert (await order.wait(), await colour.wait()) == ("2 tea", "blue")


async def test_an_answer_may_begin_with_a_dash(
    at: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    @program
    async def cold(ctx: Context) -> Any:
        degrees = await ctx.human("How cold?", schema={"type": "number"})
        return degrees, await ctx.human("Why?")

    run = at.runtime.start(cold)
    [question] = await at.asked()
    assert await at.call("questions", "answer", question, "-5.5", "--ulr", at.url) == 2
    assert "unexpected extra arguments (--ulr " in capsys.readouterr().err
    assert await at.call("questions", "answer", question, "-5.5", "--url", at.url) == 0
    async with asyncio.timeout(60):
        while [question] == (asked := await at.asked()):
            await asyncio.sleep(0)
    assert await at.call("questions", "answer", *asked, "- winter") == 0
    assert await run.wait() == (-5.5, "- winter")


async def test_questions_as_json_of_one_program(
    at: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [at.runtime.start(chooser) for _ in range(2)]
    await at.asked(2)
    assert await at.call("questions", "--json", "--run", runs[1].id) == 0
    [question] = json.loads(capsys.readouterr().out)
    assert (question["program"], question["schema"]) == (runs[1].id, {"enum": ["red", "blue"]})


async def test_more_than_a_hundred_questions_are_listed(
    at: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(103):
        at.runtime.start(chooser)
    await at.asked(103)
    assert await at.call("questions") == 0
    seen = capsys.readouterr()
    assert (seen.out.count("Which?"), seen.err) == (103, "")


def test_a_list_that_may_be_incomplete_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = "id", "run", "type", "thread", "question", "schema", "state"
    question = {name: None if name == "schema" else name for name in fields}
    monkeypatch.setattr(httpx, "request", refusing(200, json.dumps({"data": [question] * 1000})))
    assert call(["questions", "--json"]) == 0
    seen = capsys.readouterr()
    assert len(json.loads(seen.out)) == 1000
    assert "the newest 1000 questions" in seen.err


async def test_a_bad_answer_is_a_usage_error_and_a_late_one_fails(
    at: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    at.runtime.start(chooser)
    [question] = await at.asked()
    assert await at.call("questions", "answer", question, "green") == 2
    error = "error: the answer does not fit: 'green' is not one of ['red', 'blue']\n"
    assert capsys.readouterr().err == error
    assert await at.call("questions", "answer", question, "red") == 0
    capsys.readouterr()
    assert await at.call("questions", "answer", question, "blue") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: question {question} ")
    assert "answered" in error
    assert await at.call("questions", "answer", "nobodys", "blue") == 2
    assert capsys.readouterr().err == "error: unknown question 'nobodys'\n"


def refusing(status: int, body: str) -> Callable[..., httpx.Response]:
    def request(method: str, url: str, **more: Any) -> httpx.Response:
        return httpx.Response(status, text=body, request=httpx.Request(method, url))

    return request


@pytest.mark.parametrize(
    ("status", "body", "code", "told"),
    [
        (401, '{"error": {"message": "a key is needed"}}', 2, "--api-key or AGENTRT_API_KEY"),
        (403, '{"error": {"message": "operators only"}}', 2, "error: operators only"),
        (404, "<html>", 2, "answers with status 404"),
        (200, "<html>", 1, "does not answer like an agentrt server"),
        (503, '{"error": {"message": "it is stopping"}}', 1, "error: it is stopping"),
    ],
)
def test_what_a_server_refuses_is_told(
    status: int,
    body: str,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(httpx, "request", refusing(status, body))
    assert call(["questions"]) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        "questions",
        "questions answer x yes",
        "weights show",
        "weights update /w",
        "weights pause",
        "weights resume",
        "client claude --print",
    ],
)
@pytest.mark.parametrize("body", ["{}", "[]", '"data"', '{"data": [{}]}', '{"data": 1}', "<html>"])
def test_another_program_at_the_address_is_not_a_server(
    args: str, body: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(httpx, "request", refusing(200, body))
    assert call(args.split()) == 1
    seen = capsys.readouterr()
    assert (seen.out, seen.err.count("\n")) == ("", 1)
    assert "does not answer like an agentrt server" in seen.err


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["--url", "http://127.0.0.1:1"], 1, "no server answers at http://127.0.0.1:1: "),
        (["--url", "127.0.0.1:1/v1"], 1, "no server answers at http://127.0.0.1:1/v1: "),
        (["--url", "here"], 2, "--url 'here' is not an address of a server ("),
        (
            ["--url", "http://here:port"],
            2,
            "--url 'http://here:port' is not an address of a server",
        ),
        (["--url", "http://me:secret/x@here"], 2, "--url 'http://…@here' is not an address of"),
        (["--url", "http://me:secret@127.0.0.1:1"], 1, "no server answers at http://…@127.0.0.1:1"),
        (["--api-key", "a\nb"], 2, "--api-key"),
        (["--api-key", "a "], 2, "--api-key"),
    ],
)
def test_bad_options_are_one_clear_error(
    args: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["questions", *args]) == code
    error = capsys.readouterr().err
    assert told in error
    assert "secret" not in error
    assert "Traceback" not in error
