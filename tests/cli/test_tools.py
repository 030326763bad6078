"""Where programs find tools, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Refused, Run, Write
from tests.cli.test_bad_input import GOOD
from tests.doubles.forked_python import forked_python
from tests.integrations.mcp.servers import MODULE

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
    run_program: Run, tmp_path: Path
) -> None:
    file = servers(
        tmp_path,
        things={"command": forked_python(), "args": ["-m", MODULE, "stdio"]},
        dead={"command": "no-such-command"},
    )
    ran = run_program(ADDS, "--mcp", file)
    assert ran.json == {"total": 3}
    [line] = [line for line in ran.err.splitlines() if "MCP server" in line]
    assert "'dead' cannot be reached: [Errno 2]" in line


def test_a_bad_file_is_a_usage_error(write: Write, refused: Refused, tmp_path: Path) -> None:
    file = servers(tmp_path, old={"type": "sse", "url": "http://localhost/sse"})
    for command in ("run", "serve"):
        says = ["mcp.json: server 'old'", "type 'sse'", "set its URL"]
        refused(command, write(GOOD), "--mcp", file, says=says)
