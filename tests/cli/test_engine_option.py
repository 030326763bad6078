"""`agentrt run --engine`: what its kinds take, and what vLLM alone has."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Refused, Run, Write
from tests.cli.echo_engine import EchoEngine

ASKS = "@program\nasync def asks(ctx): return str(await ctx.llm('Hello.'))\n"


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("simulated", ["--model", "tiny"], "--model"),
        ("simulated", ["--replicas", "2"], "--replicas"),
        ("simulated", ["--host-memory", "8"], "--host-memory"),
        ("transformers", ["--host-memory", "auto"], "--host-memory"),
        ("simulated", ["--", "--dtype", "float32"], "-- --dtype float32"),
        ("transformers", ["--policy", "atlas"], "--policy"),
        ("transformers", ["--quanta", "1,2"], "--quanta"),
        ("transformers", ["--history", "h.json"], "--history"),
        ("transformers", ["--retention", "lru"], "--retention"),
        ("transformers", ["--admission", "off"], "--admission"),
        ("transformers", ["--replicas", "2"], "--replicas"),
        ("transformers", ["--replica", "other=2"], "--replica"),
        ("transformers", ["--cluster", "auto"], "--cluster"),
        ("transformers", ["--", "--dtype", "float32"], "-- --dtype float32"),
    ],
)
def test_options_of_vllm_are_refused(
    kind: str, options: list[str], named: str, write: Write, refused: Refused
) -> None:
    says = [f"--engine {kind}", f"{named};", "--engine vllm"]
    refused("run", write(ASKS), "--engine", kind, *options, says=says)


def test_it_runs_and_says_that_it_is_slower(
    run_program: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Echo(EchoEngine):
        def __init__(self, model: str | None, *, slots: int) -> None:
            self.model, self.max_num_seqs, self.closed = model or "default", slots, False

    monkeypatch.setattr("agentrt.executors.transformers.TransformersExecutor", Echo)
    ran = run_program(ASKS, "--engine", "transformers", "--max-num-seqs", "3", "--json")
    said = ran.json
    assert (said["results"], said["policy"]) == (["Hello."], "fcfs")
    assert (said["engine"]["model"], said["engine"]["settings"]["max_num_seqs"]) == ("default", 3)
    assert "it is slower than vLLM" in ran.err


@pytest.mark.parametrize("command", ["run", "serve"])
@pytest.mark.parametrize("size", ["much", "-1", "nan", "inf", "8g", ""])
def test_a_host_memory_without_a_size_is_refused(
    command: str, size: str, write: Write, refused: Refused
) -> None:
    says = ["--host-memory", f"{size!r} is not a size of host memory", "auto", "GiB", "0 for no"]
    refused(command, write(ASKS), "--host-memory", size, says=says)
