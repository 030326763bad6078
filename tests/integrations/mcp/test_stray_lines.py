"""MCP servers that write to stdout what is not a message, answer in a wrong form, or hang."""

from __future__ import annotations

import codecs
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, Runtime, program
from agentrt.errors import (
    InterruptExpiredError,
    ToolArgumentsError,
    ToolResultError,
    ToolUnavailableError,
)
from agentrt.integrations.mcp import StdioServer
from agentrt.integrations.mcp.tools import McpTools
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mcp.servers import WAIT_S

SCRIPT = str(Path(__file__).with_name("raw_server.py"))


def raw(name: str, folder: Path | None = None, **how: Any) -> StdioServer:
    arguments = (SCRIPT, name, json.dumps(how), *([str(folder)] if folder else []))
    return StdioServer(name, sys.executable, arguments)


async def run(body: Any, *transports: McpTools) -> Any:
    executor = ScriptedExecutor(lambda call: "done")
    async with Runtime(executor, tools=transports) as runtime:
        return await runtime.start(program(body)).wait()


@pytest.mark.parametrize(
    ("stray", "first"),
    [
        ("log: caf\xe9\n", "'log: caf\ufffd'"),
        ("\xff\xfe\x00 binary \x80\n", "'\ufffd\ufffd\\x00 binary \ufffd'"),
        ("Server v1.2 starting\n\n  ready!\n", "'Server v1.2 starting'"),
        ("no line end: ", "'no line end: {"),
        ("[1, 2]\n", "'[1, 2]'"),
        ("17\n", "'17'"),
        ('{"level": "info", "msg": "called"}\n', '\'{"level": "info", "msg": "called"}\''),
        ('{"jsonrpc": "1.0", "method": "x"}\n', '\'{"jsonrpc": "1.0", "method": "x"}\''),
        ('got {"jsonrpc": "2.0", "id": 2, "method": "ping"}\n', "'got {"),
        ("x" * 100_000 + "\n", "'" + "x" * 80 + "…'"),
        ("\xef\xbb\xbf", None),
        ("\r\n \n\r\n", None),
    ],
)
async def test_lines_that_are_no_messages_are_skipped(
    stray: str, first: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The first is shown to people, once, and the log has no traceback."""

    async def calling(ctx: Context) -> object:
        return [await ctx.tool("bad_tool", timeout=WAIT_S) for _ in range(3)]

    lines: list[str] = []
    with caplog.at_level(logging.WARNING):
        transport = McpTools(raw("bad", stray=stray), lines.append)
        assert await run(calling, transport) == ["of bad"] * 3
    assert caplog.records == []
    if first is None:
        assert lines == []
    else:
        [line] = lines
        assert "'bad'" in line
        assert f"skipped: {first}" in line


@pytest.mark.parametrize(
    "answer",
    [
        '{"jsonrpc": "2.0", "id": {id}, "result": "a text"}',
        '{"jsonrpc": "1.0", "id": {id}, "result": {"content": []}}',
        '{"id": {id}, "result": {"content": []}}',
        '{"jsonrpc": "2.0", "id": {id}, "error": "no"}',
    ],
)
async def test_an_answer_in_a_wrong_form_fails_its_call(answer: str) -> None:
    """The call would wait for ever, as its answer was skipped."""

    async def calling(ctx: Context) -> object:
        with pytest.raises(ToolResultError, match="bad_tool"):
            await ctx.tool("bad_tool", timeout=WAIT_S)
        return await ctx.tool("good_tool")

    servers = raw("bad", answer=answer), raw("good")
    transports = [McpTools(server, lambda line: None) for server in servers]
    assert await run(calling, *transports) == "of good"


RESULT = '"result": {"content": [{"type": "text", "text": "%s"}]}'
AT_MOST = "bytes; at most 4000 are allowed"


@pytest.mark.parametrize("long", [5_000, 300_000])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"jsonrpc": "2.0", "id": {id}, ' + RESULT % "{x}" + "}", AT_MOST),
        ('{"id":{id},"jsonrpc":"2.0",' + RESULT % "{x}" + "}", AT_MOST),
        ("{" + RESULT % "{x}" + ', "jsonrpc": "2.0", "id": {id}}', AT_MOST),
        ("{" + RESULT % "é{x}é" + ',"id":{id},"jsonrpc":"2.0"}\r', AT_MOST),
        ('{"jsonrpc":"2.0","error":{"message":"{x}"},"id":{id}}', AT_MOST),
        ('{"jsonrpc": "2.0", "id": {id}, "result": {"a": ' + "[" * 1900, "nested too deeply"),
        ('{"jsonrpc": "2.0", "id": {id}, "result": {"a": ' + "9" * 3900, "not JSON"),
        ('{"jsonrpc": "2.0", "id": {id}, "result": {"content": [', "not JSON"),
    ],
)
async def test_an_answer_that_cannot_be_read_fails_its_call(
    answer: str, why: str, long: int
) -> None:
    async def calling(ctx: Context) -> object:
        with pytest.raises(ToolResultError, match=why):
            await ctx.tool("bad_tool", timeout=WAIT_S)
        return await ctx.tool("good_tool")

    servers = raw("bad", answer=answer, long=long), raw("good")
    transports = [McpTools(each, lambda line: None, largest=1000) for each in servers]
    assert await run(calling, *transports) == "of good"


@pytest.mark.parametrize(
    "stray",
    [
        "{x}",
        '{"level": "info", "id": 3, "text": "{x}"}',
        '{"jsonrpc": "2.0", "id": 3, "method": "ping", "params": {"a": "{x}"}}',
    ],
)
async def test_a_long_line_that_is_no_answer_is_skipped(stray: str) -> None:
    async def calling(ctx: Context) -> object:
        return [await ctx.tool("bad_tool", timeout=WAIT_S) for _ in range(3)]

    lines: list[str] = []
    server = raw("bad", stray=stray + "\n", long=300_000)
    assert await run(calling, McpTools(server, lines.append, largest=1000)) == ["of bad"] * 3
    [line] = lines
    assert f"... ({300_000 + len(stray) - 3} bytes)" in line


def test_each_byte_of_a_line_is_looked_at_once() -> None:
    """The SDK's reader searched all that it had of a line with each piece that it read."""
    decoder = codecs.getincrementaldecoder("agentrt_mcp_lines_64")("replace")
    text = "é\n\nab" + "c" * 62 + "\n" + "d" * 65 + "\n\xff\n"
    data = text.encode()[:-3] + b"\xff\n"
    for size in (1, 2, 3, 50, len(data)):
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        read = [decoder.decode(piece) for piece in pieces]
        assert all(not line or line.endswith("\n") for line in read)
        whole = "é\nab" + "c" * 62 + "\n" + "d" * 40 + "... (65 bytes)\n\ufffd\n"
        assert "".join(read) == whole


async def test_a_number_of_a_call_may_be_written_with_a_point() -> None:
    async def calling(ctx: Context) -> object:
        return await ctx.tool("bad_tool", timeout=WAIT_S)

    answer = '{"jsonrpc": "2.0", "id": {id}.0, ' + RESULT % "read" + "}"
    assert await run(calling, McpTools(raw("bad", answer=answer), lambda line: None)) == "read"


async def test_half_a_surrogate_pair_is_replaced() -> None:
    """JSON may have one, and UTF-8 may not: the SDK reads no message in it, nor writes one."""

    async def calling(ctx: Context) -> object:
        with pytest.raises(ToolArgumentsError, match="they cannot be written as JSON"):
            await ctx.tool("bad_tool", text="\ud800")
        return await ctx.tool("bad_tool", timeout=WAIT_S)

    content = r'{"content": [{"type": "text", "text": "half \ud800"}]}'
    answer = f'{{"jsonrpc": "2.0", "id": {{id}}, "result": {content}}}'
    transport = McpTools(raw("bad", answer=answer), lambda line: None)
    assert await run(calling, transport) == "half ?"


@pytest.mark.parametrize("hangs", ["initialize", "tools/list"])
async def test_a_server_that_hangs_holds_up_no_tools_of_others(hangs: str) -> None:
    async def calling(ctx: Context) -> object:
        for _ in range(3):
            assert await ctx.tool("good_tool", timeout=WAIT_S) == "of good"
        with pytest.raises(InterruptExpiredError, match=r"bad_tool was not found within 0\.01 s"):
            await ctx.tool("bad_tool", timeout=0.01)
        with pytest.raises(InterruptExpiredError, match=r"bad_tool was not found within 0\.01 s"):
            await ctx.call_tool("bad_tool", {}, timeout=0.01)
        return "went on"

    servers = raw("bad", hangs=hangs), raw("good")
    transports = [McpTools(server, lambda line: None) for server in servers]
    assert await run(calling, *transports) == "went on"


async def test_a_server_that_does_not_list_its_tools_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools of all servers are listed without it, once it is known to hang."""

    async def calling(ctx: Context) -> object:
        with pytest.raises(ToolUnavailableError, match=r"did not list its tools within 0\.05 s"):
            await ctx.mcp("bad")
        assert [tool.name for tool in await ctx.tools()] == ["good_tool"]
        (tmp_path / "well").touch()
        monkeypatch.setattr(bad, "_listed_within", WAIT_S)  # a busy machine lists them late
        while True:
            try:
                return await ctx.tool("bad_tool")
            except ToolUnavailableError:
                pass

    lines: list[str] = []
    bad = McpTools(raw("bad", tmp_path, hangs="tools/list"), lines.append, listed_within=0.05)
    good = McpTools(raw("good"), lines.append)
    assert await run(calling, bad, good) == "of bad"
    assert lines[0].startswith(
        "MCP server 'bad' cannot be reached: it did not list its tools within 0.05 s; "
    )
    assert lines[-1] == "MCP server 'bad' is connected again"


LONG = "n" * 70


@pytest.mark.parametrize(
    ("names", "offered"),
    [
        (["bad_tool"] * 200, ["bad_tool"]),
        (["a.b", "a b", "a_b"], ["a_b", "a_b_2", "a_b_3"]),
        ([LONG + "x", LONG + "y", LONG + "z"], ["n" * 64, "n" * 62 + "_2", "n" * 62 + "_3"]),
        (
            [f"{LONG}{number}" for number in range(12)],
            [
                "n" * 64,
                *(f"{'n' * 62}_{n}" for n in range(2, 10)),
                *(f"{'n' * 61}_{n}" for n in (10, 11, 12)),
            ],
        ),
    ],
)
@pytest.mark.parametrize("cursor", [None, "next"])
async def test_names_that_are_the_same_for_a_model_are_numbered(
    names: list[str], offered: list[str], cursor: str | None
) -> None:
    """A tool that is listed several times is one tool, and a list without an end is cut."""

    async def calling(ctx: Context) -> object:
        listed = [tool.name for tool in await ctx.mcp("bad")]
        return listed, [await ctx.tool(name, timeout=WAIT_S) for name in listed]

    how: dict[str, Any] = {"names": names} | ({"cursor": cursor} if cursor else {})
    transport = McpTools(raw("bad", **how), lambda line: None)
    assert await run(calling, transport) == (offered, ["of bad"] * len(offered))
