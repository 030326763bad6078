"""`agentrt worker` and `--broker`, as far as the command line goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Refused, Run, Write, python
from tests.cli.test_bad_input import GOOD
from tests.integrations.mqtt.mosquitto import Mosquitto
from tests.integrations.mqtt.processes import WorkerProcess, workers

TOOLS = """
from agentrt import tool

@tool
def drill(depth: int) -> int:
    return depth

def mill(depth: int) -> int:
    return depth

def strange(what: type(lambda: 0)) -> None: ...
"""
CALLS = """
@program
async def asks(ctx):
    return await ctx.tool("once", number=7, until="gate1")
"""


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        (TOOLS, [], ["a worker needs a broker", "--broker mqtt://HOST"]),
        (TOOLS, ["--broker", "http://x"], ["'http://x' is not a broker"]),
        (TOOLS, ["--broker", "mqtt://x", "--broker-ca", "no.pem"], ["certificates need TLS"]),
        (TOOLS, ["--broker", "mqtt://x", "--name", "a b"], ["'a b'"]),
        ("x = 1", ["--broker", "mqtt://x"], ["no tools", "@tool"]),
    ],
)
def test_bad_input(
    target: str, options: list[str], said: list[str], write: Write, refused: Refused
) -> None:
    refused("worker", write(target), *options, says=said)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("hammer", ["function 'hammer'", "drill, mill, strange"]),
        ("drill,drill", ["two tools", "'drill'"]),
        ("strange", ["tool strange has a parameter whose type has no JSON form"]),
    ],
)
def test_names_that_are_no_tools(
    names: str, said: list[str], write: Write, refused: Refused
) -> None:
    refused("worker", f"{write(TOOLS)}:{names}", "--broker", "mqtt://x", says=said)


def test_certificates_without_a_broker_are_refused_by_all_commands(
    write: Write, refused: Refused
) -> None:
    says = ["--broker-ca", "--broker mqtts://"]
    for command in ("run", "serve", "worker"):
        refused(command, write(GOOD), "--broker-ca", "ca.pem", says=says)


def test_a_worker_loads_no_engine(write: Write) -> None:
    script = (
        "import sys; from agentrt.cli.app import call; import agentrt.integrations.mqtt;"
        "code = call(sys.argv[1:]);"
        "print(code, [one for one in ('vllm', 'torch', 'transformers') if one in sys.modules])"
    )
    done = python("-c", script, "worker", write(TOOLS), "--broker", "mqtt://x/+")
    assert done.stdout == "2 []\n"
    assert "is not a prefix for MQTT topics" in done.stderr


def test_a_program_calls_a_worker(run_program: Run, tmp_path: Path) -> None:
    (tmp_path / "gate1").touch()
    with Mosquitto(tmp_path) as mosquitto:
        url = f"mqtt://127.0.0.1:{mosquitto.port}/cli"
        with workers(1, url, "--name", "drill", folder=tmp_path) as (worker,):
            assert worker.name().startswith("drill-")
            assert run_program(CALLS, "--broker", url).json == 7


def test_a_worker_that_the_broker_refuses_says_so_and_ends(tmp_path: Path) -> None:
    """Neither the password nor a traceback is printed."""
    with Mosquitto(tmp_path, ("allow_anonymous false",)) as mosquitto:
        url = f"mqtt://robot@127.0.0.1:{mosquitto.port}"
        worker = WorkerProcess(url, folder=tmp_path, AGENTRT_BROKER_PASSWORD="hidden")
        _, said = worker.process.communicate(timeout=60)
    assert worker.process.returncode == 2
    assert said.startswith(f"error: broker {url}: ")
    assert said.count("\n") == 1
    assert "'robot'" in said
    assert "hidden" not in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--on", "mqtt:a=good"], "--on needs a broker"),
        (["--on", "http:a=good", "--broker", "mqtt://x"], "mqtt:TOPIC=PROGRAM"),
        (
            ["--on", "mqtt:a/#/b=good", "--broker", "mqtt://x"],
            "'a/#/b' is not a valid topic filter",
        ),
        (["--on", "mqtt:a=bad", "--broker", "mqtt://x"], "unknown program; served programs: "),
        (["--on", "mqtt:a=good", "--broker", "mqtt://x"], "the program takes no input"),
    ],
)
def test_what_no_event_can_start(
    options: list[str], said: str, write: Write, refused: Refused
) -> None:
    refused("serve", write(GOOD), *options, says=[said])
