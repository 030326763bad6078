"""Where programs find tools, on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke, Write, check
from tests.cli.test_bad_input import GOOD
from tests.integrations.mcp.servers import SCRIPT

ADDS = """
@program
async def adds(ctx):
    tools = {tool.name: tool for tool in await ctx.mcp("things")}
    return await ctx.tool(tools["add"], a=1, b=2)
"""


def servers(folder: Path, **servers: object) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return path


def test_a_program_uses_a_server_of_the_file_beside_one_that_is_not_there(
    write: Write, invoke: Invoke, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = servers(
        tmp_path,
        things={"command": sys.executable, "args": [SCRIPT, "stdio"]},
        dead={"command": "no-such-command"},
    )
    assert invoke("run", write(ADDS), "--mcp", file) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"total": 3}
    lines = [line for line in err.splitlines() if "MCP server" in line]
    assert len(lines) == 1
    assert "'dead' cannot be reached: [Errno 2]" in lines[0]


@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_bad_file_is_a_usage_error(
    command: str, write: Write, invoke: Invoke, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = servers(tmp_path, old={"type": "sse", "url": "http://localhost/sse"})
    code = invoke(command, write(GOOD), "--mcp", file)
    check(capsys, code, "mcp.json: server 'old'", "type 'sse'", "give its URL")
