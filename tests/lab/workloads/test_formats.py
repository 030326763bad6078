"""Small files in the formats of others become the calls that they record, or a clear complaint."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrt.cli.app import call
from agentrt.errors import ConfigError
from agentrt.lab.workloads import bfcl, messages, replay, sessions, timed, traces
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.lab.workloads.traces import KNOWN, named, read_programs


def lines(path: Path, *objects: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in objects), encoding="utf-8")
    return path


def only(path: Path, **how: Any) -> ProgramShape:
    (program,) = read_programs(path, **how).programs
    return program


def lengths(program: ProgramShape) -> list[tuple[int, int]]:
    return [(one.prompt_tokens, one.output_tokens) for one in program.calls]


# -- timed requests ------------------------------------------------------------------------


def request(at: int, tokens: int, out: int, ids: list[int]) -> dict[str, Any]:
    return {"timestamp": at, "input_length": tokens, "output_length": out, "hash_ids": ids}


MOONCAKE = [
    request(1000, 1200, 9, [0, 1, 2]),
    request(1500, 700, 5, [0, 3]),
    request(4000, 1800, 7, [0, 1, 4, 5]),
    request(4500, 900, 6, [0, 6]),
]


def ids(one: CallShape) -> list[int]:
    return list(chain.from_iterable(one.prompt_ids))


def test_requests_that_go_on_with_the_blocks_of_one_are_its_turns(tmp_path: Path) -> None:
    """1. The second shares a block with the first, and so does the last: all begin alike.
    2. The third has the first one's last whole block as well: it is its next turn, 3 s later.
    """
    trace = read_programs(lines(tmp_path / "m.jsonl", *MOONCAKE))
    first, second, last = trace.programs
    assert trace.format == "mooncake"
    assert [lengths(one) for one in trace.programs] == [
        [(1200, 9), (1800, 7)],
        [(700, 5)],
        [(900, 6)],
    ]
    assert [one.arrives_s for one in trace.programs] == pytest.approx([0, 0.5, 3.5])
    assert [one.gap_s for one in first.calls] == pytest.approx([0, 3])
    assert [(one.after, one.extends) for one in first.calls] == [((), None), ((0,), 0)]
    assert trace.notes == {timed.TURNS: 1}
    everyone = [ids(one) for one in (*first.calls, *second.calls, *last.calls)]
    assert [len(one) for one in everyone] == [1200, 1800, 700, 900]
    assert everyone[0][:1024] == everyone[1][:1024]
    assert len({tuple(one[:512]) for one in everyone}) == 1
    assert len({one[1024] for one in everyone[:2]}) == 2
    assert len({one[512] for one in everyone[1:]}) == 3


def test_blocks_shrink_with_their_prompts(tmp_path: Path) -> None:
    trace = read_programs(lines(tmp_path / "m.jsonl", *MOONCAKE), scales=Scales(0.25))
    one, other = trace.programs[0].calls
    assert (one.prompt_tokens, other.prompt_tokens) == (300, 450)
    assert ids(one)[:256] == ids(other)[:256]
    assert len(ids(other)) == 450


def test_blocks_of_sixteen_are_those_of_a_timed_trace(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", request(0, 40, 2, [7, 8, 9]), request(2, 12, 1, [5]))
    trace = read_programs(path)
    assert trace.format == "timed"
    assert [one.arrives_s for one in trace.programs] == [0, 2]
    [note] = read_programs(path, as_format="mooncake").notes
    assert f"(first: {path}:1: hash_ids has 3 ids, but a prompt of 40 tokens" in note


# -- sessions ------------------------------------------------------------------------------


def weka_request(t: float, tokens: int, out: int, blocks: int, **more: Any) -> dict[str, Any]:
    known = {"type": "n", "model": "m", "stop": "tool_use", "api_time": 2.0, "think_time": 3.0}
    return {**known, "t": t, "in": tokens, "out": out, "hash_ids": [*range(blocks)], **more}


WEKA = {
    "id": "trace_1",
    "block_size": 64,
    "hash_id_scope": "local",
    "tool_tokens": 50,
    "system_tokens": 14,
    "requests": [
        weka_request(0, 640, 90, 10, think_time=0.0),
        {
            "t": 20.0,
            "type": "subagent",
            "subagent_type": "Explore",
            "duration_ms": 17000,
            "requests": [weka_request(0, 128, 8, 2), weka_request(5, 192, 8, 3)],
        },
        weka_request(300, 704, 20, 11, stop="end_turn"),
        weka_request(400, 320, 20, 5, think_time=98.0, hash_ids=[0, 1, 2, 70, 71]),
    ],
}


def test_sessions_of_weka_follow_the_rules_of_agentx(tmp_path: Path) -> None:
    """Prompts are not raised, no beginning is shared, and no gap is above 10 s."""
    trace = read_programs(lines(tmp_path / "w.json", WEKA))
    program = trace.programs[0]
    assert (trace.format, program.program_id, program.system_tokens) == ("weka", "trace_1", 0)
    assert lengths(program) == [(640, 90), (128, 8), (192, 8), (704, 20), (320, 20)]
    assert [one.node for one in program.calls] == ["main", "explore", "explore", "main", "main"]
    assert [one.after for one in program.calls] == [(), (0,), (1,), (0, 2), (3,)]
    assert [one.extends for one in program.calls] == [None, None, 1, 0, None]
    assert [one.gap_s for one in program.calls] == pytest.approx([0, 1, 3, 10, 10])
    assert [one.human for one in program.calls] == [False] * 4 + [True]
    assert trace.notes == {sessions.CUT: 2, replay.REWRITTEN: 1}


def test_a_folder_is_all_files_in_it(tmp_path: Path) -> None:
    for index in range(3):
        lines(tmp_path / "w" / f"{index}.json", {**WEKA, "id": f"trace_{index}"})
    (tmp_path / "w" / "3.json").write_text('{"id": "trace_3", "req')
    trace = read_programs(tmp_path / "w", scales=Scales(gap=0.5))
    assert [one.program_id for one in trace.programs] == ["trace_0", "trace_1", "trace_2"]
    assert {one.type for one in trace.programs} == {"w"}
    assert max(one.gap_s for one in trace.programs[0].calls) == 5
    assert "files that cannot be read, left out (first: " in trace.report()


def test_files_of_a_folder_may_use_the_same_ids(tmp_path: Path) -> None:
    """An id is often unique only in its file: made of the file's name, or of the task's."""
    for day in ("mon", "tue"):
        lines(tmp_path / "days" / day / "trace.jsonl", *MOONCAKE)
    trace = read_programs(tmp_path / "days")
    assert [one.program_id for one in trace.programs] == [
        f"{day}/trace.jsonl/trace-{index}" for day in ("mon", "tue") for index in range(3)
    ]
    assert trace.notes[traces.RENAMED] == 6


def test_requests_count_in_the_order_of_their_times(tmp_path: Path) -> None:
    """A server logs a request when it ends, so a short one comes before a longer earlier one."""
    sorted_, shuffled = (
        read_programs(lines(tmp_path / name / "x.jsonl", *requests))
        for name, requests in (("sorted", MOONCAKE), ("shuffled", MOONCAKE[::-1]))
    )
    assert shuffled.programs == sorted_.programs


def test_sessions_arrive_after_the_first_one(tmp_path: Path) -> None:
    """Also where their starts are seconds since 1970, and in files of their own."""
    for index, start in enumerate((1.7e9 + 8, 1.7e9)):
        session = {"id": f"s{index}", "start": start, "calls": [{"t": 0, "in": 9, "out": 5}]}
        lines(tmp_path / "s" / f"{index}.jsonl", session)
    assert [one.arrives_s for one in read_programs(tmp_path / "s").programs] == [8, 0]


@pytest.mark.engine
def test_recorded_arrivals_run_once_however_many_seeds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Equal runs would look like a result that every seed confirms. Size hints are drawn."""
    run = ["simulate", "run", "--workload", str(lines(tmp_path / "x.jsonl", *MOONCAKE))]
    sizes = ["--kv-blocks", "300", "--jobs", "1", "--seeds", "2", "--json"]
    assert call([*run, *sizes, "--policy", "fcfs"]) == 0
    out, err = capfd.readouterr()
    shown = json.loads(out)
    assert (shown["settings"]["seeds"], shown["complete"]) == ([0], True)
    assert "--seeds 2: recorded arrivals are the same with every seed" in err
    for more in (["--policy", "fcfs+hints"], ["--policy", "fcfs", "--load", "0.9"]):
        assert call([*run, *sizes, *more]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out)["settings"]["seeds"] == [0, 1]
        assert "recorded arrivals" not in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "atlas,srpt", "--lane", "0.2"], "--lane 0.2: none of the policies fcfs, "),
        (["--policy", "default", "--beta", "4"], "(atlas, atlas-scalar, plas, mlfq)"),
    ],
)
def test_a_setting_that_no_policy_uses_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    path = lines(tmp_path / "x.jsonl", *MOONCAKE)
    assert call(["simulate", "run", "--workload", str(path), *options]) == 2
    assert message in capfd.readouterr().err


@pytest.mark.engine
def test_more_programs_than_recorded_need_a_load(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the head of the table says on how many engines they ran."""
    path = lines(tmp_path / "x.jsonl", *MOONCAKE)
    args = [
        "--programs",
        "9",
        "--policy",
        "fcfs",
        "--jobs",
        "1",
        "--replicas",
        "2",
        "--router",
        "cost",
    ]
    assert call(["simulate", "run", "--workload", str(path), *args]) == 0
    out, err = capfd.readouterr()
    assert "--programs 9: the file has 3 programs" in err
    assert "2 engines behind the router cost, each: 32 batch slots" in out


# -- conversations -------------------------------------------------------------------------


def says(role: str, content: str, **extra: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | ({"extra": extra} if extra else {})


CHAT = {"id": "c1", "messages": [says(role, 40 * "x") for role in ["user", "assistant"] * 2]}
TALK = [says("system", 80 * "s"), says("user", 60 * "u"), says("assistant", 20 * "a")]


def test_a_chat_is_counted_by_its_characters(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps([CHAT]))
    trace = read_programs(path)
    assert trace.format == "sharegpt"
    assert lengths(trace.programs[0]) == [(14, 14), (42, 14)]
    assert [one.extends for one in trace.programs[0].calls] == [None, 0]
    assert trace.notes == {
        "calls whose tokens are estimated as 4 characters each": 2,
        messages.UNKNOWN_PAUSE: 1,
    }


@pytest.mark.parametrize(
    ("ids", "names"),
    [([{}, {}], ["c-0", "c-1"]), ([{"id": 7}, {"id": 8}], ["7", "8"])],
    ids=["none", "numbers"],
)
def test_chats_need_no_ids_and_may_have_numbers(
    tmp_path: Path, ids: list[dict[str, int]], names: list[str]
) -> None:
    chats = [{"messages": CHAT["messages"]} | each for each in ids]
    trace = read_programs(lines(tmp_path / "c.jsonl", *chats))
    assert [one.program_id for one in trace.programs] == names


def test_trajectories_of_swe_smith_have_their_messages_as_text(tmp_path: Path) -> None:
    talk = [*TALK, says("tool", 400 * "t"), says("assistant", "done")]
    both = [
        {"instance_id": "i", "traj_id": name, "messages": json.dumps(talk)} for name in ("a", "b")
    ]
    trace = read_programs(lines(tmp_path / "swe.jsonl", *both))
    assert [one.program_id for one in trace.programs] == ["a", "b"]
    assert lengths(trace.programs[1]) == [(24 + 19, 9), (24 + 19 + 9 + 104, 5)]
    assert {one.system_tokens for one in trace.programs} == {24}
    assert [one.gap_s for one in trace.programs[0].calls] == [0, messages.TOOL_S]
    assert trace.notes[messages.UNKNOWN_TOOL] == 2


def test_what_mini_swe_agent_measured_is_taken(tmp_path: Path) -> None:
    def reply(prompt: int, output: int, at: float) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 0}
        return says("assistant", "x", response={"id": "r", "usage": usage}, timestamp=at)

    talk = [*TALK[:2], reply(500, 30, 100.0), says("tool", "y", timestamp=102.5)]
    run: dict[str, Any] = {"info": {}, "trajectory_format": "mini-swe-agent-1.1"}
    run["messages"] = [*talk, reply(520, 40, 109.0), says("exit", "")]
    program = only(lines(tmp_path / "one.traj.json", run))
    assert program.program_id == "one.traj.json"
    assert lengths(program) == [(500, 30), (520, 40)]
    assert [one.gap_s for one in program.calls] == [0, 2.5]
    assert [one.extends for one in program.calls] == [None, 0]


# -- BFCL ----------------------------------------------------------------------------------

QUESTION = {
    "id": "multi_turn_base_0",
    "question": [[says("user", 40 * "q")], []],
    "involved_classes": ["MathAPI"],
}
ANSWER = {"id": "multi_turn_base_0", "ground_truth": [["add(a=1, b=2)", "mean([1])"], []]}


def questions(folder: Path) -> Path:
    lines(folder / "multi_turn_func_doc" / "math_api.json", {"name": "add"}, {"name": "mean"})
    lines(folder / "possible_answer" / "q.json", ANSWER)
    return lines(folder / "q.json", QUESTION)


def test_a_question_of_bfcl_is_answered_as_is_right(tmp_path: Path) -> None:
    """Two functions are called, then the turn ends; the second turn has words alone."""
    trace = read_programs(questions(tmp_path))
    held = len('{"name": "add"}') // 4 + 1 + len('{"name": "mean"}') // 4 + 4 + 10
    assert trace.format == "bfcl"
    assert lengths(trace.programs[0]) == [
        (held, 8),
        (held + 8 + bfcl.RESULT, 7),
        (held + 15 + 2 * bfcl.RESULT, bfcl.CLOSING),
        (held + 15 + 2 * bfcl.RESULT + bfcl.CLOSING, bfcl.CLOSING),
    ]
    assert [one.gap_s for one in trace.programs[0].calls] == [0, 1, 1, 0]
    assert trace.notes[bfcl.GUESSED] == 4
    assert (trace.programs[0].type, trace.programs[0].system_tokens) == ("q+MathAPI", held - 14)


def test_what_a_model_did_in_bfcl_is_taken_as_counted(tmp_path: Path) -> None:
    result = {
        "id": "r",
        "input_token_count": [[9, 30.0], [70]],
        "output_token_count": [[3, 4], [5]],
    }
    assert lengths(only(lines(tmp_path / "r.json", result))) == [(9, 3), (30, 4), (70, 5)]
    uneven = {**result, "output_token_count": [[3], [4, 5]]}
    with pytest.raises(
        ConfigError, match=r"r.json:1: input_token_count and .* different numbers of steps"
    ):
        read_programs(lines(tmp_path / "r.json", uneven))


# -- any of them ---------------------------------------------------------------------------

EACH: dict[str, dict[str, Any]] = {
    "mooncake": MOONCAKE[0],
    "timed": request(0, 40, 2, [7, 8, 9]),
    "weka": WEKA,
    "sharegpt": CHAT,
    "swe": {"instance_id": "i", "messages": TALK},
    "bfcl": {"id": "r", "input_token_count": [[9]], "output_token_count": [[3]]},
}


@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[*HealthCheck])
def test_calls_are_as_many_and_as_long_as_recorded(tmp_path: Path, data: st.DataObject) -> None:
    count = st.integers(1, 4000)
    told = data.draw(st.lists(st.tuples(count, count, st.integers(0, 90_000)), min_size=1))
    size, unit = data.draw(st.sampled_from([(512, "mooncake"), (16, "timed")]))
    several = [request(at, n, out, [*range(-(-n // size))]) for n, out, at in told]
    session = {
        "id": "s",
        "requests": [weka_request(at, n, out, n // 64, think_time=at) for n, out, at in told],
    }
    steps = {"id": "s", "input_token_count": [[n for n, _, _ in told]]}
    steps["output_token_count"] = [[out for _, out, _ in told]]
    for name, objects in ((unit, several), ("weka", [session]), ("bfcl", [steps])):
        path = lines(tmp_path / "any.jsonl", *objects)
        calls = [one for p in read_programs(path, as_format=name).programs for one in p.calls]
        found = [(one.prompt_tokens, one.output_tokens) for one in calls]
        assert sorted(found) == sorted((n, out) for n, out, _ in told)
        assert all(one.gap_s >= 0 for one in calls)


@pytest.mark.parametrize("name", EACH)
def test_bad_lines_end_with_exit_code_2_and_say_where(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut off, of a wrong type, negative, no text, empty: each by the format's name."""
    good = json.dumps(EACH[name])
    path = tmp_path / "bad.jsonl"
    for number in (b"-5", b'"5"', b"1.5", b"null"):
        bad = good.encode()
        for field in ("input_length", "in", "messages", "input_token_count"):
            bad = _with(bad, field, number)
        path.write_bytes(bad)
        assert call(["simulate", "run", "--workload", f"{name}:{path}"]) == 2, number
        assert f"{path}:1" in capsys.readouterr().err
    for raw in (good[:-3].encode(), b"\xff" + good.encode(), b"", b"\n"):
        path.write_bytes(raw)
        assert call(["simulate", "run", "--workload", f"{name}:{path}"]) == 2
        assert str(path) in capsys.readouterr().err


def _with(text: bytes, field: str, value: bytes) -> bytes:
    """With a field of some object, wherever it is, replaced."""

    def replaced(one: Any) -> Any:
        if isinstance(one, dict):
            new = json.loads(value)
            return {key: new if key == field else replaced(kept) for key, kept in one.items()}
        return [replaced(inner) for inner in one] if isinstance(one, list) else one

    return json.dumps(replaced(json.loads(text))).encode()


def test_formats_are_told_where_none_fits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown format with the fields a, b; .*hash_ids"):
        read_programs(lines(tmp_path / "x.jsonl", {"a": 1, "b": 2}))
    with pytest.raises(ConfigError, match=r"the file 'weka2:x.json' does not exist; .*mooncake"):
        named("weka2:x.json")
    assert named("chat") is None
    assert named(f"swe:{tmp_path}") == ("swe", tmp_path)
    assert set(EACH) | {"sessions", "dags", "journal"} == set(KNOWN)


@pytest.mark.engine
def test_policies_retention_and_replicas_run_on_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path / "x.jsonl", *MOONCAKE)
    sizes = ("--depth", "virtual", "--kv-blocks", "300", "--replicas", "2", "--jobs", "1")
    args = ("run", "--workload", f"mooncake:{path}", "--policy", "adaptive+cost+memory", *sizes)
    assert call(["simulate", *args]) == 0
    assert "arrivals: recorded" in capfd.readouterr().out
