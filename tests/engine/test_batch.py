"""A batch on a real engine: two samples of each input, a judge, a limit, and the same again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrt.cli.app import call
from tests.batch.conftest import lines
from tests.doubles.tinymodel import tiny_model

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

PROGRAM = """
from agentrt import program, score

@program
async def ask(ctx, question):
    first = await ctx.llm(question, max_tokens=4, temperature=1.0)
    return (await ctx.llm(f"{question} {first}", max_tokens=4)).text

@score
async def judge(ctx, record, result):
    return len((await ctx.llm(f"Judge: {result}", max_tokens=4)).text)
"""


def test_a_batch_on_a_real_engine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """1. Half of the inputs. 2. All of them, by the same command: the first ones stay. 3. A second
    file of the same command has the same results. 4. Each has its tokens and its scores.
    """
    program, inputs, outs = tmp_path / "prog.py", tmp_path / "q.jsonl", []
    program.write_text(PROGRAM, "utf-8")
    records = ({"id": n, "input": f"What is {n}?"} for n in range(6))
    inputs.write_text("".join(f"{json.dumps(each)}\n" for each in records), "utf-8")
    model = str(tiny_model(tmp_path / "tiny"))
    for name, limits in (("a", ["3", "6"]), ("b", ["6"])):
        out = tmp_path / f"{name}.jsonl"
        for limit in limits:
            command = ["run", str(program), "--inputs", str(inputs), "--out", str(out)]
            command += ["--limit", limit, "--samples", "2", "--model", model, "--max-live", "4"]
            code = call([*command, "--max-num-seqs", "4", "--max-tokens-total", "1000"])
            assert code == 0, capfd.readouterr().err
        outs.append({(each["id"], each["sample"]): each for each in lines(out)})
    first, second = outs
    assert len(first) == len(second) == 12
    for key, each in first.items():
        assert (each["state"], each["calls"], each["output_tokens"]) == ("done", 2, 8)
        assert each["prompt_tokens"] > 0
        assert (each["result"], each["scores"]) == (second[key]["result"], second[key]["scores"])
    assert len({each["result"] for each in first.values()}) > 6  # samples have seeds of their own
