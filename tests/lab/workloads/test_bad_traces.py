"""Whatever is in a file, the complaint names it, its line, and what is wrong; the rest is read."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrt.cli.app import call
from agentrt.errors import ConfigError
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.traces import read_programs

CALL = {"t": 0.0, "in": 10, "out": 2, "gap": 0.0, "stop": "tool_use", "api": 1.0}
SESSION = {"id": "s", "calls": [CALL]}
NODE = {"id": 0, "kind": "call", "name": "m", "scope": "", "parents": [], "created_at": 0.0}
DAG = {"version": 1, "program": {"id": "p", "type": "t"}, "nodes": [NODE]}


GOOD = json.dumps(SESSION) + "\n"


def good_then(line: object) -> str:
    return GOOD + (line if isinstance(line, str) else json.dumps(line))


def with_call(**fields: Any) -> str:
    return good_then({"id": "s2", "calls": [CALL, {**CALL, **fields}]})


def with_node(**fields: Any) -> str:
    done = {"report": {"prompt_tokens": 4, "output_tokens": 2}, "ended_at": 1.0}
    return json.dumps({**DAG, "nodes": [{**NODE, **done}, {**NODE, "id": 1, **fields}]})


BAD = {
    "empty": ("", "the file is empty"),
    "blank": ("\n  \n", "the file is empty"),
    "no programs": ("[]", "holds no programs"),
    "not JSON": ("hello", "bad.jsonl:1: not JSON at column 1"),
    "a broken line": (good_then('{"id": "s2", "calls": [}'), "bad.jsonl:2: not JSON at column"),
    "a broken document": ('{\n "version": 1,\n "nodes": [,]\n}', "bad.jsonl:3: not JSON"),
    "cut off": (json.dumps(DAG)[:-9], "bad.jsonl:1: not JSON"),
    "not a number of JSON": (good_then('{"calls": NaN}'), ":2: not JSON: NaN is not JSON"),
    "too long a number": (good_then('{"calls": ' + "1" * 5000 + "}"), ":2: not JSON: "),
    "too deep": ("[" * 200_000, "bad.jsonl:1: not JSON"),
    "a list": (good_then([1]), r":2: expected a JSON object, got \[1\]"),
    "a text in an array": ('["x"]', r"\[0\]: expected a JSON object, got 'x'"),
    "no known format": ('{"a": 1}', ":1: unknown format"),
    "another format": (good_then(DAG), r":2: .* the fields of the format sessions"),
    "a report of a run": (
        '{"results": [], "programs": [], "engine": {}}',
        "--dag FILE.json",
    ),
    "calls are no list": ('{"id": "s", "calls": 5}', ":1: calls: expected a list, got 5"),
    "a call is no object": (
        '{"id": "s", "calls": [5]}',
        r"calls\[0\]: expected a JSON object, got 5",
    ),
    "no tokens": (
        with_call(out=None),
        r":2, calls\[1\]: out: None: .*valid int",
    ),
    "negative tokens": (
        with_call(out=-1),
        r":2, calls\[1\]: out: -1: .*greater",
    ),
    "tokens as text": (with_call(**{"in": "10"}), "in: '10': input should be a valid int"),
    "half a token": (with_call(out=1.5), "out: 1.5: input should be a valid int"),
    "a truth as tokens": (with_call(out=True), "out: True: input should be a valid int"),
    "endless tokens": (
        with_call(out=1).replace('"out": 1,', '"out": 1e999,'),
        "1e999 is too large",
    ),
    "many digits": (with_call(out=10**40), r"out: 1000.*\.\.\.: input should be less than 10"),
    "no start": (with_call(t=None), "t: None: input should be a valid number"),
    "a stop that is no text": (
        good_then({"id": "s2", "calls": [{**CALL, "stop": 5}, CALL]}),
        "stop: 5: input should be a valid string",
    ),
    "no id": (good_then({"calls": [CALL]}), ":2: id: field required"),
    "twins": (good_then(SESSION), "2 programs have the id 's'"),
    "only empty sessions": ('{"id": "s", "calls": []}', "no program is left to run .*left out: 1"),
    "another version": (json.dumps({**DAG, "version": 2}), "version: 2: input should be 1"),
    "nodes are no list": (
        json.dumps({**DAG, "nodes": {}}),
        "nodes: {}: .*valid list",
    ),
    "an unknown kind": (
        with_node(kind="dream"),
        r"nodes\[1\].kind: 'dream': .*'call'",
    ),
    "an unknown parent": (
        with_node(parents=[7]),
        r"nodes\[1\]: the parent 7 is not an earlier node",
    ),
    "a parent of another sort": (
        with_node(parents=[[0]]),
        r"parents\[0\]: \[0\]: .* int",
    ),
    "its own parent": (with_node(parents=[1]), "the parent 1 is not an earlier node"),
    "no parents": (with_node(parents=None), "parents: None: input should be a valid list"),
    "two of an id": (with_node(id=0), "two nodes have the id 0"),
    "a report without tokens": (
        with_node(report={"output_tokens": 3}),
        "prompt_tokens: field required",
    ),
    "no program": (
        json.dumps({"version": 1, "nodes": json.loads(with_node())["nodes"]}),
        "program: field",
    ),
}


@pytest.mark.parametrize(("text", "complaint"), BAD.values(), ids=BAD.keys())
def test_the_complaint_names_what_is_wrong(
    tmp_path: Path, text: str, complaint: str, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="utf-8")
    if text.startswith(GOOD) and "twins" not in request.node.name:
        trace = read_programs(path)
        assert [program.program_id for program in trace.programs] == ["s"]
        said = trace.report().splitlines()[-1]
        assert re.search(rf"left out \(first: .*{complaint}.*\): 1$", said)
    else:
        with pytest.raises(ConfigError, match=complaint) as caught:
            read_programs(path)
        said = str(caught.value)
    assert str(path) in said
    assert len(said) < len(str(path)) + 300


def sub(**fields: Any) -> dict[str, Any]:
    return {"sub": "a", "kind": "Explore", "t": 8.0, "dur_ms": 5000, "calls": [CALL], **fields}


def test_a_bad_subagent_costs_its_session_nothing_else(tmp_path: Path) -> None:
    """1. Two of three subagents are bad, one of them in its second call.
    2. The session is what it would be without these two, and one line says so.
    """
    late = {**CALL, "t": 20.0, "in": 12, "gap": 19.0}
    bad = [sub(calls=[CALL, {**CALL, "in": -1}]), sub(t=None)]
    path = tmp_path / "one.jsonl"
    found = []
    for between in ([sub()], [bad[0], sub(), bad[1]]):
        path.write_text(json.dumps({"id": "s", "calls": [CALL, *between, late]}))
        found.append(read_programs(path))
    clean, mended = found
    assert mended.programs == clean.programs
    assert clean.notes == {}
    _, line = mended.report().splitlines()
    where = f"{path}:1, calls[1]: calls[1].in: -1: input should be greater"
    assert line.startswith(f"  subagents that cannot be read, left out (first: {where}")
    assert line.endswith("): 2")


def test_a_session_that_is_left_out_leaves_no_other_note(tmp_path: Path) -> None:
    odd = {"id": "t", "calls": [{**CALL, "out": 0}, sub(t=None), {**CALL, "in": "x"}]}
    path = tmp_path / "two.jsonl"
    path.write_text("\n".join(map(json.dumps, (odd, SESSION, {"calls": 5}))))
    assert read_programs(path).notes == {
        f"sessions that cannot be read, left out (first: {path}:1, calls[2]: "
        "in: 'x': input should be a valid integer)": 2
    }
    path.write_text(json.dumps(odd))
    with pytest.raises(ConfigError, match=r"two.jsonl:1, calls\[2\]: in: 'x'"):
        read_programs(path)


def test_bad_dags_are_left_out(tmp_path: Path) -> None:
    good = json.loads(with_node(report={"prompt_tokens": 4, "output_tokens": 1}, ended_at=2))
    dags = tmp_path / "dags.json"
    dags.write_text(json.dumps([{**DAG, "version": 2}, good]))
    ((note, count),) = read_programs(dags).notes.items()
    assert re.match(r"programs .*left out \(first: .*, \[0\]: version: 2: input", note)
    assert count == 1


def test_where_nothing_is_good_the_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text('{"id": "s", "calls": 5}\n{"calls": []}\n{"id": "t", "calls": 6}')
    assert call(["simulate", "run", "--workload", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{path}: no program is left to run (sessions that cannot be read" in err
    assert (
        f"first: {path}:1: calls: expected a list, got 5): 2; sessions or subagents without" in err
    )


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        read_programs(path)
    with pytest.raises(ConfigError, match=r"has no .json or .jsonl file"):
        read_programs(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read .*null"):
        read_programs("a\0b")
    path.write_bytes(b'{"id": "s",\n"calls": "\xff"}')
    with pytest.raises(ConfigError, match="bad:2: not UTF-8"):
        read_programs(path)
    packed = gzip.compress(json.dumps(SESSION).encode())
    for damaged in (packed[:-6], packed[:12] + b"\xff" * 9 + packed[21:], packed[:3]):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="gzip data is damaged"):
            read_programs(path)


@pytest.mark.parametrize(
    "scales",
    [{"context": 0}, {"output": -1}, {"gap": math.nan}, {"context": math.inf}, {"gap": math.inf}],
)
def test_impossible_scales_are_refused(scales: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(scales))}_scale must be a .*finite"):
        Scales(**scales)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(data=st.data(), base=st.sampled_from([SESSION, json.loads(with_node())]))
@settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_field_of_any_kind_is_read_or_refused(
    tmp_path: Path, data: st.DataObject, base: dict[str, Any]
) -> None:
    """One field, at any depth, replaced by any JSON value: programs or a complaint."""
    changed = json.loads(json.dumps(base))
    place: Any = changed
    while True:
        key = data.draw(
            st.sampled_from(list(place) if isinstance(place, dict) else range(len(place)))
        )
        inner = place[key]
        if not (isinstance(inner, dict | list) and inner) or data.draw(st.booleans()):
            break
        place = inner
    place[key] = data.draw(JSON)
    path = tmp_path / "fuzz.json"
    path.write_text(json.dumps(changed), encoding="utf-8")
    try:
        trace = read_programs(path)
    except ConfigError as error:
        said = str(error)
    else:
        said = trace.report()
        assert trace.programs
    assert str(path) in said
