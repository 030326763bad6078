"""`agentrt run --dashboard`, on an engine that echoes."""

from __future__ import annotations

import json
import socket

import pytest

from tests.cli.conftest import Invoke, Write
from tests.doubles.ports import reserved_port

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


def test_the_dashboard_shows_a_commands_programs(
    write: Write, invoke: Invoke, capfd: pytest.CaptureFixture[str]
) -> None:
    port = reserved_port()
    assert invoke("run", write(LOOK), "--input", port, "--dashboard", port) == 0
    seen = capfd.readouterr()
    assert f"dashboard: http://127.0.0.1:{port}/dashboard" in seen.err
    [program] = json.loads(seen.out)["programs"]
    assert (program["id"], program["calls"]) == ("look-1", 1)


def test_without_a_terminal_a_question_is_answered_at_the_dashboard(
    write: Write, invoke: Invoke, capfd: pytest.CaptureFixture[str]
) -> None:
    port = reserved_port()
    assert invoke("run", write(ANSWERS), "--input", port, "--dashboard", port) == 0
    seen = capfd.readouterr()
    assert "asks-1 asks: Which drink? (answer in the dashboard)" in seen.err
    assert seen.out == "tea\n"


def test_without_a_value_any_port_is_taken(
    write: Write, invoke: Invoke, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write("@program\nasync def one(ctx):\n    return 'ok'\n")
    assert invoke("run", path, "--dashboard", "--seed", 1) == 0
    seen = capfd.readouterr()
    assert "dashboard: http://127.0.0.1:" in seen.err
    assert seen.out == "ok\n"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("prog.py", "put --dashboard after the program"),
        ("70000", "70000 is no port: give one below 65536"),
    ],
)
def test_a_bad_port_is_a_usage_error(
    write: Write, invoke: Invoke, capfd: pytest.CaptureFixture[str], value: str, message: str
) -> None:
    path = write("@program\nasync def one(ctx):\n    return 'ok'\n")
    assert invoke("run", path, f"--dashboard={value}") == 2
    assert message in capfd.readouterr().err


def test_a_program_in_the_place_of_the_port_is_explained(
    write: Write, invoke: Invoke, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write("@program\nasync def one(ctx):\n    return 'ok'\n")
    assert invoke("run", "--dashboard", path) == 2
    assert "put --dashboard after the program" in capfd.readouterr().err


def test_a_port_in_use_is_one_clear_error(
    write: Write, invoke: Invoke, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write("@program\nasync def one(ctx):\n    return 'ok'\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert invoke("run", path, "--dashboard", port) == 2
    error = capfd.readouterr().err
    assert f"--dashboard {port}: " in error
    assert "Traceback" not in error
