"""A batch on the scripted engine whose processes are killed, and the programs that it runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.doubles.forked_python import forked_python, forks

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


class Lives:
    """One batch, in as many processes as it takes: of Python's own, or ``forked``, which start in a
    tenth of the time.

    ``starts_s`` has for each process the seconds until its first call, and ``peaks`` its peak
    memory in KiB, which is not known of forks. ``halves`` is the number of kills that left an
    incomplete line in the results.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        count: int,
        field: str,
        *options: str,
        forked: bool = False,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._forked, self._others = forked, set[int]()
        self.out, self.calls = folder / "results.jsonl", folder / "calls.txt"
        self.starts_s: list[float] = []
        self.peaks: list[int] = []
        self.halves = 0
        program, inputs = folder / "prog.py", folder / "inputs.jsonl"
        program.write_text(source, "utf-8")
        records = ({"id": f"q{n}", field: f"what {n}"} for n in range(count))
        inputs.write_text("".join(f"{json.dumps(each)}\n" for each in records), "utf-8")
        python = forked_python() if forked else sys.executable
        self._command = [python, "-m", "tests.batch.killed_batch", "run", str(program)]
        self._command += ["--inputs", str(inputs), "--out", str(self.out), *options]

    def _start(self) -> subprocess.Popen[bytes]:
        if self._forked:
            self._others = set(forks())
        return subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**os.environ, "CALLS": str(self.calls), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def _calls_bytes(self) -> int:
        """Return the number of bytes that the calls so far have written."""
        return self.calls.stat().st_size if self.calls.exists() else 0

    def killed(self, calls: int, delay_s: float) -> bool:
        """Run a process, and kill it ``delay_s`` seconds after a number of its calls. Return False
        if the process ended before.
        """
        before, began = self._calls_bytes(), time.monotonic()
        process, least = self._start(), before + calls * len("first what 1000\n")
        has_begun = False
        while process.poll() is None and (size := self._calls_bytes()) < least:
            if size > before and not has_begun:
                has_begun = True
                self.starts_s.append(time.monotonic() - began)
            time.sleep(0.0005)
        time.sleep(delay_s)
        if process.returncode is None:
            self._kill(process)
        said = self._wait(process)
        assert process.returncode in (0, -signal.SIGKILL), said
        self.halves += self.out.exists() and not self.out.read_bytes().endswith(b"\n")
        return process.returncode != 0

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if not self._forked:
            process.kill()
            return
        for pid in {*forks()} - self._others:  # its command ends as it does
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ended(self) -> str:
        """Run a process to its end, and return what it printed on stderr."""
        process = self._start()
        said = self._wait(process)
        assert process.returncode == 0, said
        return said

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for the end of a process, and return what it printed on stderr."""
        assert process.stderr is not None
        with process.stderr:
            said = process.stderr.read()
        if process.returncode is None:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.peaks.append(usage.ru_maxrss)
        return said.decode()
