"""What docs/batches.md shows works."""

from __future__ import annotations

import asyncio
import json
import re
from importlib import import_module
from pathlib import Path

import click
import pytest

from agentrt.batch import batch, read_results
from agentrt.cli.run import inputs_options
from agentrt.request import Call
from tests.doubles.letters import LettersEngine
from tests.doubles.scripted import ScriptedExecutor
from tests.pages import blocks, saved, text_of


def say(call: Call) -> str:
    assert call.spec.messages
    requests = str(call.spec.messages[-1]["content"])
    return "Paris" if "France" in requests else "yes, it is"


async def test_a_program_that_returns_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    improve = saved(blocks("batches.md")[0], tmp_path / "improve_of_the_page.py")
    [each] = [
        entry
        async for entry in batch(improve, ["tea"], executor=ScriptedExecutor(say), max_calls=3)
    ]
    assert (each.state, each.result, each.over) == ("done", "yes, it is", "max-calls")


def test_the_scores_and_the_loop_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agentrt.batch.runner._engine", lambda *options: ScriptedExecutor(say))
    _, scores, _, loop, _ = blocks("batches.md")
    (tmp_path / "capital.py").write_text(scores, "utf-8")
    (tmp_path / "loop_of_the_page.py").write_text(loop, "utf-8")
    (tmp_path / "countries.csv").write_text("id,input,answer\nf,France,Paris\n", "utf-8")
    asyncio.run(import_module("loop_of_the_page").main())
    assert capsys.readouterr().out == "f Paris {'right': 1.0, 'judge': 1.0}\n"
    [result] = read_results(tmp_path / "results.jsonl")
    shown, *_ = blocks("batches.md", "json")
    assert list(json.loads(result.to_line())) == list(json.loads(shown))


async def test_the_tokens_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    engine = LettersEngine(lambda prompt, call: "it is 42")
    monkeypatch.setattr("agentrt.batch.runner._engine", lambda *options: engine)
    (tmp_path / "tokens_of_the_page.py").write_text(blocks("batches.md")[2], "utf-8")
    code = import_module("tokens_of_the_page")
    for _ in range(2):
        await code.rollouts()
        expected = [f"1 {sample} 1.0" for sample in range(4)] + ["[9]"] * 4
        assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected)
    shown = json.loads(blocks("batches.md", "json")[1])
    [line, *_] = (tmp_path / "tokens.jsonl").read_text("utf-8").splitlines()
    assert list(json.loads(line)) == list(shown)
    assert list(json.loads(line)["sequences"][0]) == list(shown["sequences"][0])


def test_each_option_of_a_batch_is_on_the_page() -> None:
    options = click.command()(inputs_options(lambda: None)).params
    flags = {option.opts[0] for option in options}
    named = set(re.findall(r"--[a-z][a-z-]+", text_of("batches.md")))
    assert len(flags) > 10
    assert flags - named == set()
