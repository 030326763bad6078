"""Programs that clients send as source: what they may do, and what stops them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("pydantic_monty")

from agentrt.errors import ToolArgumentsError
from agentrt.request import Call
from agentrt.runtime.events import Event
from agentrt.runtime.run import Run
from agentrt.serving.server import ServedProgram
from agentrt.serving.tenants import Limits
from tests.serving.local import Held, LocalServer, called, open_server
from tests.serving.submit.sources import CALLS, send
from tests.serving.tenants.plain_keys import PlainKeys

FAN_OUT = """
import asyncio

async def main(ctx, count):
    plan = await ctx.llm("plan", max_tokens=8)
    parts = await asyncio.gather(*[ctx.llm(f"part {i}", max_tokens=8) for i in range(count)])
    last = await ctx.llm([{"role": "user", "content": "sum up"}, parts[0].message], max_tokens=8)
    return {"plan": plan.text, "parts": [part.text for part in parts], "all": last.text}
"""


def seen_runs(local: LocalServer) -> dict[str, Run]:
    """All runs from now on, by their ids."""
    runs: dict[str, Run] = {}

    def saw(event: Event) -> None:
        if event.program_id in local.runtime.runs:
            runs[event.program_id] = local.runtime.runs[event.program_id]

    local.runtime.listen(saw)
    return runs


async def test_a_submitted_program_has_the_graph_of_a_served_one() -> None:
    """Calls beside each other have one parent, and what joins them has them all as parents."""
    async with open_server(submit=True) as local:
        runs = seen_runs(local)
        run = await send(local, FAN_OUT, input=3, name="fan")
        nodes = runs[run["id"]].dag.nodes()
    assert run["state"] == "done"
    assert run["program"] == "fan"
    assert run["calls"] == 5
    assert run["result"]["parts"] == [run["result"]["plan"]] * 3
    assert [node.parents for node in nodes] == [(), (0,), (0,), (0,), (1, 2, 3)]


async def test_a_program_calls_tools_of_its_own() -> None:
    """Tools are told to the model as OpenAI's API has them, and run in the sandbox."""
    source = """
async def main(ctx):
    tools = [{"name": "add", "parameters": {"type": "object", "properties": {
        "a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}]
    chat = [{"role": "user", "content": "2 and 3"}]
    reply = await ctx.llm(chat, tools=tools)
    call = reply.tool_calls[0]
    return call.name, call.arguments["a"] + call.arguments["b"]
"""
    async with open_server(lambda call: called(("add", {"a": 2, "b": 3})), submit=True) as local:
        run = await send(local, source)
    assert run["result"] == ["add", 5]


async def test_a_reply_in_a_prompt_is_its_text() -> None:
    source = """
async def main(ctx):
    one = await ctx.llm("one")
    said = await (await ctx.context(one)).generate(2)
    texts = [str(one), f"{one}", f"{[one, one]}", f"{said}", f"{[said]}"]
    asked = await ctx.llm(one), await ctx.llm([{"role": "user", "content": one}])
    return texts, one.text, said.text, [reply.text for reply in asked]
"""
    async with open_server(lambda call: "tea", submit=True) as local:
        run = await send(local, source)
    texts, one, said, asked = run["result"]
    assert texts == [one, one, f"{[one, one]}", said, f"{[said]}"]
    assert asked == ["tea", "tea"]


async def test_an_option_of_none_is_left_out() -> None:
    source = "async def main(ctx):\n    return str(await ctx.llm('x', n=None, tools=None))\n"
    async with open_server(submit=True) as local:
        run = await send(local, source)
    assert (run["error"], run["result"]) == (None, "one two three")


async def test_a_submitted_program_uses_contexts_of_tokens() -> None:
    """Forks go their own ways; ends of calls, bounds and errors are those of a context."""
    source = """
import asyncio

async def main(ctx):
    context = await ctx.context("rivers of")
    before = context.token_ids()
    left, right = context.fork(), context.fork()
    await right.fill(" Europe")
    wrote = await asyncio.gather(left.generate(3), right.generate(3))
    same = left.token_ids() == before + wrote[0].token_ids
    right.truncate(len(before))
    unchanged = right.token_ids() == before == context.token_ids()
    left.drop()
    try:
        await left.generate(1)
    except ValueError as error:
        return same, unchanged, len(wrote[1].token_ids), str(error)
"""
    async with open_server(submit=True) as local:
        runs = seen_runs(local)
        run = await send(local, source)
        nodes = runs[run["id"]].dag.nodes()
    assert run["result"][:3] == [True, True, 3]
    assert "dropped" in run["result"][3]
    assert [(node.name, node.parents) for node in nodes] == [("generate", ())] * 2


@pytest.mark.parametrize(
    "call",
    [
        "context.generate(2, seed='a')",
        "context.generate(2, stop_token_ids=5)",
        "context.next_tokens(3, allowed=['a'])",
        "context.fill(None)",
        "ctx.context('x', model=5)",
        "ctx.llm('x', tools=5)",
    ],
)
async def test_a_program_may_catch_the_refusal_of_a_wrong_type(call: str) -> None:
    source = f"""
async def main(ctx):
    context = await ctx.context("x")
    try:
        await {call}
    except ValueError as error:
        return str(error)
"""
    async with open_server(submit=True) as local:
        run = await send(local, source)
    assert " must be " in run["result"] or " takes " in run["result"]


async def test_a_token_counts_once_towards_the_maximum_of_all_contexts() -> None:
    """A long context may grow by many small pieces, and its forks share its tokens."""
    source = """
async def main(ctx):
    context = await ctx.context("many words " * 50000)
    for i in range(50):
        fork = context.fork()
        await fork.fill(" more")
    return len(context.token_ids()) * 50 > 4_000_000
"""
    async with open_server(submit=True) as local:
        run = await send(local, source)
    assert (run["error"], run["result"]) == (None, True)


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ("choices=['yes', 'no']", "yes"),
        ("schema={'type': 'object', 'properties': {'age': {'type': 'integer'}}}", {"age": 7}),
    ],
)
async def test_a_submitted_program_asks_a_human(options: str, answer: Any) -> None:
    source = f"async def main(ctx):\n    return await ctx.human('ok?', {options})\n"
    async with open_server(submit=True) as local:
        started = await local.client.post("/v1/programs", json={"source": source, "wait": False})
        url = f"/v1/programs/submitted/runs/{started.json()['id']}"
        await local.until(lambda: local.runtime.questions.open)
        [question] = local.runtime.questions.open.values()
        with pytest.raises(ToolArgumentsError, match="does not fit"):
            local.runtime.questions.answer(question.id, 5)
        local.runtime.questions.answer(question.id, answer)
        await local.until(lambda: not local.runtime.runs)
        run = (await local.client.get(url)).json()
    assert (started.status_code, run["result"]) == (202, answer)


async def test_a_submitted_program_constrains_a_generation() -> None:
    """As with requests, the engine gets the schema, pattern, choices or grammar."""
    source = """
async def main(ctx):
    context = await ctx.context("rivers of")
    texts = choices("a", "b"), json_schema({"type": "integer"}), regex("x+"), ebnf('root ::= "y"')
    for one in texts:
        await context.generate(3, constrain=one)
"""
    asked: list[Any] = []

    def script(call: Call) -> str:
        assert call.spec.sampling is not None
        asked.append(call.spec.sampling.constraint)
        return "one two three"

    async with open_server(script, submit=True) as local:
        assert (await send(local, source))["state"] == "done"
    assert [(one.kind, one.value) for one in asked] == [
        ("choice", ["a", "b"]),
        ("json", '{"type": "integer"}'),
        ("regex", "x+"),
        ("grammar", 'root ::= "y"'),
    ]


async def test_a_call_that_its_options_prevent_uses_no_tokens() -> None:
    """Without a limit of its own, the call reserves all tokens that the program has left."""
    source = """
async def main(ctx):
    context = await ctx.context("rivers of")
    try:
        await context.generate(None, stop=3)
    except Exception:
        return len((await context.generate(3)).token_ids)
"""
    async with open_server(submit=True) as local:
        run = await send(local, source)
    assert (run["error"], run["result"]) == (None, 3)


WRONG: list[tuple[str, int | None, str]] = [
    ("async def main(ctx):\n    x = 1\n    return 1 / 0\n", 3, "division by zero"),
    ("def f(:\n    pass\n", 1, "SyntaxError"),
    ("x = 1\n", None, "no 'async def main(ctx)'"),
    ("import socket\n", 1, "No module named 'socket'"),
    ("import os\n\nos.listdir('/')\n", 3, "Permission denied"),
    ("open('/etc/passwd')\n", 1, "Permission denied"),
    ("import os\nos.system('true')\n", 2, "no attribute 'system'"),
    ("async def main(ctx):\n    return ctx._emitter\n", 2, "no attribute '_emitter'"),
    ("async def main(ctx):\n    return await _ask('tool', 0, [], {})\n", 2, "has no operation"),
    ("async def main(ctx):\n    return await ctx.llm('x', after=1)\n", 2, "no option 'after'"),
    (
        "async def main(ctx):\n    x = await ctx.context('x')\n    await x.score('y', top='z')\n",
        3,
        "top must be a whole number from 0 to 64, got 'z'",
    ),
    (
        "async def main(ctx):\n    x = await ctx.context('x')\n    await x.generate(logprobs='')\n",
        3,
        "logprobs must be a whole number from 0 to 64, got ''",
    ),
    ("async def main(ctx):\n    await ctx.llm('x' * 2000000)\n", 2, "exceed 1,048,576"),
    (
        (
            "async def main(ctx):\n    schema = {'type': 'string', 'pattern': 'a' * 5000}\n"
            "    await ctx.llm('x', schema=schema)\n"
        ),
        3,
        "4096",
    ),
    (
        (
            "async def main(ctx):\n    many = [{'role': 'user', 'content': ''}] * 3000\n"
            "    await ctx.context(many)\n"
        ),
        3,
        "2048",
    ),
    (
        "async def main(ctx):\n    await ctx.human('?', schema={'pattern': '(a*)*b'})\n",
        2,
        "may not have 'pattern'",
    ),
    (
        "async def main(ctx):\n    await ctx.human('?', schema={'items': {'$ref': '#'}})\n",
        2,
        "may not have '$ref'",
    ),
    (
        "async def main(ctx):\n    await ctx.human('?', schema={'properties': 5})\n",
        2,
        "a question's schema",
    ),
    (
        (
            "async def main(ctx):\n    c = await ctx.context('x')\n"
            "    await c.generate(constrain=regex('a' * 5000))\n"
        ),
        3,
        "4096",
    ),
    (
        (
            "async def main(ctx):\n    c = await ctx.context('x')\n"
            "    await c.generate(constrain={'model': 'x'})\n"
        ),
        3,
        "constrain= takes choices()",
    ),
    ("async def main(ctx):\n    return _do('fork', 7, [])\n", 2, "unknown context 7"),
    (
        (
            "async def main(ctx):\n    c = await ctx.context('x')\n"
            "    for i in range(10**6):\n        c.fork()\n"
        ),
        4,
        "more than 20 calls",
    ),
    ("async def main(ctx):\n    await ctx.llm('x', n=10**6)\n", 2, "n must be from 1 to"),
    ("async def main(ctx):\n    await ctx.llm('x', tools=5)\n", 2, "tools must be a list, got 5"),
    (
        "async def main(ctx):\n    await ctx.llm('x', extra_body={'max_tokens': 9})\n",
        2,
        "does not accept extra_body",
    ),
    ("async def main(ctx):\n    return await main(ctx)\n", 2, "recursion depth"),
    ("async def main(ctx):\n    raise ValueError('turn time limit')\n", 2, "turn time limit"),
    ("async def main(ctx):\n    return [0] * 10**9\n", 2, "memory limit exceeded"),
    (
        (
            "import asyncio\nasync def main(ctx):\n"
            "    await asyncio.gather(*[ctx.llm('x') for i in range(10**6)])\n"
        ),
        3,
        "memory limit exceeded",
    ),
    (
        "async def main(ctx):\n    while True:\n        await ctx.llm('x', max_tokens=1)\n",
        3,
        "more than 20 calls",
    ),
    (
        (
            "async def main(ctx):\n    while True:\n        try:\n"
            "            await ctx.llm('x', max_tokens=1)\n        except Exception:\n"
            "            pass\n"
        ),
        4,
        "more than 20 calls",
    ),
]


async def test_the_error_of_a_forbidden_operation_names_its_line() -> None:
    # So little memory that it is full before half a second of computing is over.
    limits = Limits(submitted=100, submitted_calls=20, submitted_memory_mib=8)
    async with open_server(submit=True, limits=limits) as local:
        for source, line, message in WRONG:
            run = await send(local, source)
            assert (run["state"], run["error"]["type"]) == ("failed", "SubmittedProgramError")
            assert message in run["error"]["message"], source
            assert (run["error"]["line"], source) == (line, source)
            assert "python-input" not in run["error"]["traceback"]
        assert (await send(local, CALLS))["state"] == "done"  # and the server is as it was


async def test_the_tokens_of_parallel_calls_are_limited() -> None:
    """Ten calls at once may have five tokens together: the others find none left."""
    source = """
import asyncio

async def one(ctx):
    try:
        return len((await ctx.llm("x", max_tokens=2)).token_ids)
    except RuntimeError as error:
        return str(error)

async def main(ctx):
    return await asyncio.gather(*[one(ctx) for i in range(10)])
"""
    asked: list[int] = []

    def script(call: Call) -> str:
        asked.append(call.spec.max_tokens)
        return "one two three"

    async with open_server(script, submit=True, limits=Limits(submitted_tokens=5)) as local:
        run = await send(local, source)
    assert asked == [2, 2, 1]
    refused = "the program has 0 of its 5 tokens left, and this call needs at least 1"
    assert run["result"].count(refused) == 7


@pytest.mark.parametrize("call", ["next_tokens(1)", "score([7])", "generate(1)"])
async def test_each_operation_of_a_context_is_charged_its_computed_prompt(call: str) -> None:
    """A prompt of 400 tokens takes 1000 tokens in three calls: a call begins while one is left."""
    source = f"""
async def main(ctx):
    asked = 0
    try:
        while asked < 20:
            context = await ctx.context([asked + 5] * 400)
            await context.{call}
            asked += 1
    except RuntimeError as error:
        return asked, str(error)
"""
    async with open_server(submit=True, limits=Limits(submitted_tokens=1000)) as local:
        run = await send(local, source)
    assert run["error"] is None
    assert run["result"][0] == 3
    assert "of its 1000 tokens left" in run["result"][1]


async def test_one_tenant_cannot_have_all_programs() -> None:
    """At the limit of its live programs it is told to wait, and the others are not."""
    keys = PlainKeys()
    limits = Limits(submitted=2)
    async with open_server(submit=True, kind=Held, keys=keys, limits=limits) as local:
        body = {"source": CALLS, "wait": False}

        async def start(key: str) -> int:
            said = {"authorization": f"Bearer {key}"}
            answer = await local.client.post("/v1/programs", json=body, headers=said)
            return answer.status_code

        assert [await start("acme") for _ in range(3)] == [202, 202, 429]
        assert await start("best") == 202
        local.engine.go.set()
        await local.until(lambda: not local.runtime.runs)
        assert await start("acme") == 202


async def test_saved_contexts_are_those_of_the_tenant() -> None:
    save = """
async def main(ctx):
    await (await ctx.context("secret plan")).save("plan")
"""
    read = "async def main(ctx):\n    return await (await ctx.open('plan')).text()\n"
    async with open_server(submit=True, keys=PlainKeys()) as local:

        async def as_tenant(key: str, source: str) -> Any:
            body = {"source": source}
            return await local.post("/v1/programs", body, {"authorization": f"Bearer {key}"})

        assert (await as_tenant("acme", save))["state"] == "done"
        assert (await as_tenant("acme", read))["result"] == "secret plan"
        foreign = await as_tenant("best", read)
    assert "unknown saved context 'plan'; available: none" in foreign["error"]["message"]


async def test_a_client_that_goes_ends_its_program_and_its_calls() -> None:
    async with open_server(submit=True, kind=Held) as local:
        runs = seen_runs(local)
        going = asyncio.create_task(local.client.post("/v1/programs", json={"source": CALLS}))
        await local.until(lambda: local.engine.open)
        going.cancel()
        await local.until(lambda: not local.engine.open and not local.runtime.runs)
        [run] = runs.values()
    assert str(run.state) == "cancelled"


async def test_bad_requests_are_refused_and_nothing_runs() -> None:
    from agentrt import Context, program

    @program
    async def mine(ctx: Context) -> None:
        """Nothing."""

    served = {"mine": ServedProgram(mine, "here")}
    async with open_server(submit=True, served=served) as local:
        runs = seen_runs(local)
        for body, status in [
            ({"source": ""}, 400),
            ({"source": "x" * 65537}, 400),
            ({"source": CALLS, "name": "mine"}, 409),
            ({"source": CALLS, "name": ""}, 400),
            ({"sauce": CALLS}, 400),
        ]:
            answer = await local.client.post("/v1/programs", json=body)
            assert (answer.status_code, body) == (status, body)
            assert answer.json()["error"]["message"]
        assert not runs


async def test_a_server_without_submit_has_no_such_route() -> None:
    async with open_server() as local:
        answer = await local.client.post("/v1/programs", json={"source": CALLS})
    assert answer.status_code == 405
