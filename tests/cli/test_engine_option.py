"""`agentrt run --engine`: what its kinds take, and what vLLM alone has."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import EchoEngine, Invoke, Write

ASKS = "@program\nasync def asks(ctx): return str(await ctx.llm('Hello.'))\n"


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("simulated", ["--model", "tiny"], "--model"),
        ("simulated", ["--replicas", "2"], "--replicas"),
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
    kind: str,
    options: list[str],
    named: str,
    write: Write,
    invoke: Invoke,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke("run", write(ASKS), "--engine", kind, *options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"has no {named}: leave it out, or use --engine vllm" in err
    assert len(err.splitlines()) == 1


def test_it_runs_and_says_that_it_is_slower(
    write: Write,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Echo(EchoEngine):
        def __init__(self, model: str | None, *, slots: int) -> None:
            self.model, self.max_num_seqs, self.closed = model or "default", slots, False

    monkeypatch.setattr("agentrt.executors.transformers.TransformersExecutor", Echo)
    given = ["--engine", "transformers", "--max-num-seqs", "3", "--json"]
    assert invoke("run", write(ASKS), *given) == 0
    out, err = capfd.readouterr()
    said = json.loads(out.splitlines()[-1])
    assert (said["results"], said["policy"]) == (["Hello."], "fcfs")
    assert (said["engine"]["model"], said["engine"]["settings"]["max_num_seqs"]) == ("default", 3)
    assert "it is slower than vLLM" in err
