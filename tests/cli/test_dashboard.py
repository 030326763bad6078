"""`agentrt run --dashboard`, on an engine that echoes."""

from __future__ import annotations

import socket

from tests.cli.conftest import Refused, Run, Write
from tests.doubles.ports import reserved_port

ONE = "@program\nasync def one(ctx):\n    return 'ok'\n"
# Looks at its own dashboard, while it runs.
LOOK = """
import asyncio, urllib.request

def fetch(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/programs", timeout=60) as answer:
        return answer.read().decode()

@program
async def look(ctx, port):
    await ctx.llm("hello")
    return await asyncio.to_thread(fetch, port)
"""


# Asks a human, and answers at its own dashboard as one would.
ANSWERS = """
import asyncio, json, urllib.request

def answer(port):
    url = f"http://127.0.0.1:{port}/v1/questions"
    with urllib.request.urlopen(url, timeout=60) as listed:
        [question] = json.load(listed)["data"]
    body = json.dumps({"answer": "tea"}).encode()
    request = urllib.request.Request(f"{url}/{question['id']}", body, method="POST")
    urllib.request.urlopen(request, timeout=60).close()

@program
async def asks(ctx, port):
    asked = asyncio.create_task(ctx.human("Which drink?", choices=["tea", "coffee"]))
    await asyncio.sleep(0)
    await ctx.tool(answer, port)
    return await asked
"""


def test_the_dashboard_shows_a_commands_programs(run_program: Run) -> None:
    port = reserved_port()
    ran = run_program(LOOK, "--input", port, "--dashboard", port)
    assert f"dashboard: http://127.0.0.1:{port}/dashboard" in ran.err
    [program] = ran.json["programs"]
    assert (program["id"], program["calls"]) == ("look-1", 1)


def test_without_a_terminal_a_question_is_answered_at_the_dashboard(run_program: Run) -> None:
    port = reserved_port()
    ran = run_program(ANSWERS, "--input", port, "--dashboard", port)
    assert "asks-1 asks: Which drink? (answer in the dashboard)" in ran.err
    assert ran.out == "tea\n"


def test_without_a_value_any_port_is_taken(run_program: Run) -> None:
    ran = run_program(ONE, "--dashboard", "--seed", 1)
    assert "dashboard: http://127.0.0.1:" in ran.err
    assert ran.out == "ok\n"


def test_a_bad_port_is_a_usage_error(write: Write, refused: Refused) -> None:
    path = write(ONE)
    refused("run", path, "--dashboard=70000", says=["--dashboard", "70000", "65536"])
    for given in ([path, "--dashboard=prog.py"], ["--dashboard", path]):
        refused("run", *given, says=["--dashboard after the program"])


def test_a_port_in_use_is_one_clear_error(run_program: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run_program(ONE, "--dashboard", port)
    assert (ran.code, "Traceback" in ran.err) == (2, False)
    assert f"--dashboard {port}: address already in use; use another port" in ran.said
