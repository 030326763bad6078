"""A batch that is killed at random moments has each result once, and needs no more memory for more
inputs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from agentrt.batch import read_tokens
from tests.batch.conftest import lines
from tests.doubles.forked_python import forked_python, forks
from tests.doubles.letters import logprob, text_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from agentrt import program, score

@program
async def ask(ctx, question):
    first = await ctx.llm(f"first {question}")
    second = await ctx.llm(f"second {question}")
    return f"{first.text}; {second.text}"

@score
def right(record, result):
    return result == f"said first {record['input']}; said second {record['input']}"
"""
GRAPH = """
from typing import TypedDict
from agentrt.integrations.langchain import ChatAgentRT
from langgraph.graph import StateGraph

class State(TypedDict, total=False):
    question: str
    first: str
    second: str

model = ChatAgentRT()

async def one(state):
    return {"first": (await model.ainvoke(f"first {state['question']}")).text}

async def two(state):
    return {"second": (await model.ainvoke(f"second {state['question']}")).text}

builder = StateGraph(State)
builder.add_node(one)
builder.add_node(two)
builder.set_entry_point("one")
builder.add_edge("one", "two")
builder.set_finish_point("two")
graph = builder.compile(name="ask")
"""


class Lives:
    """One batch, in as many processes as it takes."""

    def __init__(self, folder: Path, source: str, count: int, field: str, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self.out, self.calls = folder / "results.jsonl", folder / "calls.txt"
        program, inputs = folder / "prog.py", folder / "inputs.jsonl"
        program.write_text(source, "utf-8")
        records = ({"id": f"q{n}", field: f"what {n}"} for n in range(count))
        inputs.write_text("".join(f"{json.dumps(each)}\n" for each in records), "utf-8")
        self._command = ["-m", "tests.batch.killed_batch", "run", str(program)]
        self._command += ["--inputs", str(inputs), "--out", str(self.out), *options]

    def start(self, python: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [python, *self._command],
            cwd=ROOT,
            env={**os.environ, "CALLS": str(self.calls), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def made(self) -> int:
        """How many bytes the calls so far have written."""
        return self.calls.stat().st_size if self.calls.exists() else 0

    def killed(self, calls: int, delay_s: float) -> bool:
        """One life, which is killed so long after so many of its calls. False: it has ended."""
        python, others = forked_python(), forks()
        process, least = self.start(python), self.made() + calls * len("first what 1000\n")
        while process.poll() is None and self.made() < least:
            time.sleep(0.0005)
        batch = set(forks()) - set(others)
        time.sleep(delay_s)
        for pid in batch:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, said = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), said.decode()
        return process.returncode != 0

    def ended(self) -> str:
        """The last life, to its end; what it said."""
        process = self.start(forked_python())
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said.decode()
        return said.decode()


@pytest.mark.parametrize(
    ("source", "field", "count", "kills", "calls", "live"),
    [
        pytest.param(PROGRAM, "input", 800, 10, 150, 64, id="program"),
        pytest.param(GRAPH, "question", 120, 4, 40, 16, id="graph"),
    ],
)
def test_killed_at_random_moments_each_result_is_there_once(
    source: str, field: str, count: int, kills: int, calls: int, live: int, tmp_path: Path
) -> None:
    """1. A process works on the inputs. 2. It is killed at a random moment, and again. 3. The last
    one ends. Each input has one whole line with the right result, and only calls that were under
    way at a kill were made again.
    """
    batch = Lives(tmp_path, source, count, field, "--max-live", str(live))
    rng = random.Random(48)
    deaths, halves = 0, 0
    for _ in range(kills):
        deaths += batch.killed(rng.randrange(calls // 2, calls), rng.uniform(0, 0.02))
        halves += batch.out.exists() and not batch.out.read_bytes().endswith(b"\n")
    batch.ended()
    results = lines(batch.out)
    assert Counter(each["id"] for each in results) == {f"q{n}": 1 for n in range(count)}
    assert {each["state"] for each in results} == {"done"}
    for each in results:
        question = f"what {each['id'][1:]}"
        if source == PROGRAM:
            assert each["result"] == f"said first {question}; said second {question}"
            assert each["scores"] == {"right": 1.0}
            assert (each["calls"], each["output_tokens"]) == (2, 10)
        else:
            assert each["result"]["second"] == f"said second {question}"
    requests = Counter(batch.calls.read_text("utf-8").splitlines())
    again = sum(requests.values()) - len(requests)
    sys.stdout.write(
        f"\n{count} inputs, killed {deaths} times: {len(results)} results, each once; {halves} "
        f"half lines repaired; {again} of {len(requests)} calls made again for want of a record\n"
    )
    assert deaths == kills
    assert len(requests) == 2 * count
    assert again <= deaths * live


CHAT = """
from agentrt import program

@program
async def ask(ctx, question):
    chat = [{"role": "user", "content": f"first {question}"}]
    first = await ctx.llm(chat)
    chat += [first.message, {"role": "user", "content": f"second {question}"}]
    second = await ctx.llm(chat)
    ctx.reward(1)
    return f"{first.text}; {second.text}"
"""


@pytest.mark.parametrize(
    ("source", "field", "count", "calls", "live"),
    [
        pytest.param(CHAT, "input", 400, 90, 64, id="program"),
        pytest.param(GRAPH, "question", 100, 30, 16, id="graph"),
    ],
)
def test_killed_at_random_moments_each_result_has_its_tokens(
    source: str, field: str, count: int, calls: int, live: int, tmp_path: Path
) -> None:
    """The turns of the program are one sequence; the graph begins a new chat for its second call,
    which another process may have made than the first.
    """
    file = tmp_path / "tokens.jsonl"
    options = ("--max-live", str(live), "--tokens", str(file))
    batch = Lives(tmp_path, source, count, field, *options)
    rng = random.Random(4)
    deaths = sum(
        batch.killed(rng.randrange(calls // 2, calls), rng.uniform(0, 0.02)) for _ in range(4)
    )
    batch.ended()
    assert deaths == 4
    assert Counter(each["id"] for each in lines(batch.out)) == {f"q{n}": 1 for n in range(count)}
    every = [*read_tokens(file)]
    assert Counter(each.id for each in every) == {f"q{n}": 1 for n in range(count)}
    for each in every:
        question, marked = f"what {each.id[1:]}", list[str]()
        assert each.complete
        for sequence in each.sequences:
            ids = list(sequence.token_ids)
            written = [token if sequence.mask[at] else 0 for at, token in enumerate(ids)]
            marked += text_of(written).strip("\0").split("\0")
            for at, token in enumerate(ids):
                exact = logprob(ids[:at], token) if sequence.mask[at] else 0.0
                assert sequence.logprobs[at] == pytest.approx(exact, rel=1e-6)
        assert sorted(filter(None, marked)) == [
            f"said first {question}>",
            f"said second {question}>",
        ]
        assert len(each.sequences) == (1 if source == CHAT else 2)
        assert each.reward == (1.0 if source == CHAT else None)
    assert not batch.out.with_name("results.jsonl.calls").exists()


@pytest.mark.parametrize("tokens", [False, True])
def test_memory_does_not_grow_with_the_inputs(tokens: bool, tmp_path: Path) -> None:
    """The peak of a process with 2,000 inputs is at most 1.2 times that with 200."""
    peaks = []
    for count in (200, 2000):
        options = ("--tokens", str(tmp_path / f"{count}.tokens.jsonl")) if tokens else ()
        source = CHAT if tokens else PROGRAM
        batch = Lives(tmp_path / str(count), source, count, "input", *options)
        process = batch.start(sys.executable)
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, said.decode()
        process.stderr.close()
        peaks.append(usage.ru_maxrss)
    ratio = peaks[1] / peaks[0]
    sys.stdout.write(f"\npeak memory with 2,000 inputs: {ratio:.2f} times that with 200\n")
    assert peaks[1] <= 1.2 * peaks[0]
