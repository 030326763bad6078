"""`agentrt run --engine transformers`: what it takes, and what vLLM alone has."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import EchoEngine, Invoke, Write

ASKS = "@program\nasync def asks(ctx): return str(await ctx.llm('Hello.'))\n"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--policy", "atlas"], "--policy"),
        (["--quanta", "1,2"], "--quanta"),
        (["--history", "h.json"], "--history"),
        (["--retention", "lru"], "--retention"),
        (["--admission", "off"], "--admission"),
        (["--replicas", "2"], "--replicas"),
        (["--replica", "other=2"], "--replica"),
        (["--cluster", "auto"], "--cluster"),
        (["--", "--dtype", "float32"], "-- --dtype float32"),
    ],
)
def test_options_of_vllm_are_refused(
    options: list[str],
    named: str,
    write: Write,
    invoke: Invoke,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke("run", write(ASKS), "--engine", "transformers", *options) == 2
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
