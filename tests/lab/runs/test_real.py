"""A journal on real engines, on one that answers at once: what it is asked, and who comes when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from agentrt.engines import EngineOptions
from agentrt.errors import ConfigError
from agentrt.lab.runs import real
from agentrt.lab.runs.contenders import contenders
from agentrt.lab.runs.grid import Setting, Source, grid
from agentrt.lab.runs.real import RealReplay, rendered
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.journals import Recording, read_recording
from tests.lab.answering import WholeEngine
from tests.lab.virtual_world import ATLAS, MACHINE, record_burst
from tests.lab.workloads.test_journals import Written

pytestmark = pytest.mark.engine


async def recorded(path: Path) -> Recording:
    """A burst, without the time between its calls."""
    await record_burst(ATLAS, path)
    recording = read_recording(path)
    programs = []
    for one in recording.programs:
        calls = tuple(replace(call, gap_s=0.0) for call in one.calls)
        programs.append(replace(one, calls=calls, arrives_s=0.0, tail_s=0.0))
    return replace(recording, programs=tuple(programs))


def real_replay(
    path: Path, recording: Recording, engine: WholeEngine, names: list[str], **more: Any
) -> RealReplay:
    setting = Setting(Source("j", path), Pressure("recorded"))
    everyone = contenders(names)
    [spec, *_] = grid([setting], everyone, [0], MACHINE)
    given = {"open": engine.started, "progress": lambda done, message="": None, **more}
    return RealReplay(recording, spec, everyone, EngineOptions("m"), **given)


async def test_all_do_the_recorded_work_with_what_the_engine_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts and outputs are as long as recorded. A prompt is what its program has asked and been
    answered here, and beside that the recorded text.
    """
    recording, engine = await recorded(tmp_path / "j"), WholeEngine()
    monkeypatch.setattr(real, "engine_for", lambda one, base: engine)
    monkeypatch.setattr(real, "open_frontend", engine.front)
    replay = real_replay(tmp_path / "j", recording, engine, ["fcfs"])
    await replay.run()
    asked = {call.call_id: call.spec for call in engine.calls if "warm-up" not in call.call_id}
    assert len(asked) == len(recording.calls) == 83
    numbered: dict[str, int] = {}
    for call in recording.calls:
        index = numbered[call.program] = numbered.get(call.program, -1) + 1
        spec = asked[f"{call.program}/fcfs/{index}"]
        ids = spec.prompt_token_ids or ()
        assert len(ids) == call.account["prompt_tokens"]
        assert (spec.max_tokens, spec.ignore_eos) == (call.account["output_tokens"], True)
        told = [one for one in call.request["messages"] if one["role"] == "assistant"]
        assert ids.count(9) == sum(len(one["content"]) + 1 for one in told)
        assert bytes(one for one in ids if one != 9).decode().startswith("system\nYou answer in a")
    [result] = replay.results
    assert [one.program_id for one in result.outcomes]
    assert result.summary.programs == 16


async def test_who_shares_an_engine_and_what_is_said_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours in one engine, each with an empty cache; then vLLM's own scheduler in another."""
    journal, engine = Written(tmp_path / "j"), WholeEngine()
    write_two(journal)
    recording = read_recording(journal.write())
    monkeypatch.setattr(real, "engine_for", lambda one, base: engine)
    monkeypatch.setattr(real, "open_frontend", engine.front)
    said: list[tuple[int, str]] = []
    replay = real_replay(
        *(journal.path, recording, engine, ["fcfs", "stock", "atlas"]),
        progress=lambda done, message="": said.append((done, message)),
    )
    await replay.run()
    assert engine.starts == 2
    assert [one for one in engine.told if one in ("fcfs", "atlas", "forget")] == [
        *("fcfs", "forget", "atlas", "forget", "forget"),
    ]
    assert [one.spec.contender.name for one in replay.results] == ["fcfs", "atlas", "stock"]
    assert said == [
        *((0, "loading an engine"), (0, "fcfs"), (1, ""), (2, ""), (2, "atlas"), (3, ""), (4, "")),
        *((4, "loading an engine"), (4, "stock"), (5, ""), (6, "")),
    ]


async def test_salts_and_token_ids_are_as_recorded(tmp_path: Path) -> None:
    journal, engine = Written(tmp_path / "j"), WholeEngine()
    write_two(journal)
    recording = read_recording(journal.write())
    front = await engine.front(engine)
    first, second = await rendered(recording, front, 40)
    assert [call.cache_salt for call in first.calls] == [None, None]
    assert [call.extends for call in first.calls] == [None, 0]
    assert first.calls[1].prompt_ids == ([*range(20), 7, 8, 9],)
    [salted] = second.calls
    assert (salted.cache_salt, salted.extends) == ("mine", None)
    assert bytes(*salted.prompt_ids) == b"user\n?\nassistant\n"
    with pytest.raises(
        ConfigError, match=r"p-1: a call with 23 prompt tokens and 3 .* engine's 25 tokens"
    ):
        await rendered(recording, front, 25)


def write_two(journal: Written) -> None:
    """One program of two calls, by token ids, and one that asks a question with a salt."""
    journal.program(0.0, 0.03)
    ids, said = [*range(20)], {"token_ids": {"$": "tuple", "value": [7, 8]}}
    journal.call("0#0", 0.0, 0.01, asked={"prompt_token_ids": ids}, outcome=said)
    more = {"prompt_token_ids": {"$": "tuple", "value": [*ids, 7, 8, 9]}}
    account = {"prompt_tokens": 23, "output_tokens": 3}
    journal.call("0#1", 0.02, 0.03, parents="0#0", asked=more, account=account)
    journal.program(0.01, 0.02, "p-2")
    salted = {"messages": [{"role": "user", "content": "?"}], "cache_salt": "mine", "model": "m"}
    journal.call("0#0", 0.01, 0.02, "p-2", asked=salted)
