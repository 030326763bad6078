"""`agentrt run --inputs` and `agentrt results`, on an engine that echoes."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pexpect
import pytest

from agentrt.batch.results import Result, ResultFile
from agentrt.scheduler.config import SchedulerConfig
from tests.batch.conftest import Records, lines
from tests.cli.conftest import Run, Write, python

ASK = """
from agentrt import score

@program
async def ask(ctx, question):
    if question == "bad":
        raise ValueError("a bad question")
    return (await ctx.llm(str(question))).text

@score
def right(record, result):
    return result == record["answer"]
"""
QUESTIONS = [
    {"id": "a", "question": "tea", "answer": "tea"},
    {"id": "b", "question": "coffee", "answer": "tea"},
    {"id": "c", "question": "bad", "answer": ""},
]


def test_from_a_file_to_a_table_of_scores(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    arguments = ("run", write(ASK), "--inputs", records(QUESTIONS), "--out", out)
    ran = command(*arguments, "--input-field", "question", "--json")
    assert ran.code == 1  # one has failed
    assert [each["id"] for each in sorted(lines(out), key=lambda each: each["id"])] == [*"abc"]
    assert ran.json["scores"]["right"]["mean"] == 0.5
    assert "3 results: 2 done, 1 failed" in ran.err
    assert "failed: c: ValueError: a bad question" in ran.err
    shown = command("results", "show", out)
    assert shown.code == 0
    assert "0.500" in shown.out
    assert command("results", "show", out, "--json").json == ran.json
    again = command(*arguments, "--input-field", "question")
    assert "all 3 results are in" in again.err
    assert "warming up" not in again.err  # no engine has been started
    assert len(lines(out)) == 3


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ((), ("fcfs", "cost", "memory")),
        (("--retention", "lru"), ("fcfs", "lru", "memory")),
        (("--admission", "off"), ("fcfs", "cost", "off")),
        (("--policy", "adaptive"), ("adaptive", "cost", "memory")),
        (("--policy", "fcfs"), ("fcfs", "lru", "off")),
    ],
)
def test_the_engine_of_a_batch_serves_calls_in_their_order_unless_a_policy_is_named(
    options: tuple[str, ...],
    settings: tuple[str, str, str],
    write: Write,
    records: Records,
    command: Run,
    schedulers: list[SchedulerConfig],
    tmp_path: Path,
) -> None:
    inputs = ("--input-field", "question", "--inputs", records(QUESTIONS[:1]))
    assert command("run", write(ASK), *inputs, "--out", tmp_path / "r.jsonl", *options).code == 0
    (scheduler,) = schedulers
    assert (scheduler.policy, scheduler.retention, scheduler.admission) == settings


def test_two_runs_are_compared_and_their_programs(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    field = ("--input-field", "question", "--inputs", records(QUESTIONS))
    command("run", write(ASK), *field, "--out", tmp_path / "a.jsonl")
    changed = ASK.replace("llm(str(question))", "llm('tea')")
    command("run", write(changed), *field, "--out", tmp_path / "b.jsonl")
    diff = ("results", "diff", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    report = command(*diff)
    assert report.code == 0
    assert "changed: b: right 0 -> 1" in report.out
    assert command(*diff, "--json").json["scores"]["right"]["better"] == 1
    program = command(*diff, "--id", "b")
    assert "coffee" in program.out
    assert command(*diff, "--id", "b", "--dag", tmp_path / "d.json", "--json").code == 0
    assert len(json.loads((tmp_path / "d.json").read_text("utf-8"))) == 2
    for option in (["--sample", 1], ["--dag", tmp_path / "d.json"], ["--journal-a", "a"]):
        refused = command(*diff, *option)
        assert (refused.code, "are for one input: name the input with --id" in refused.err) == (
            2,
            True,
        )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--out", "{tmp}/no/r.jsonl"], "does not exist"),
        ([], "give --out FILE"),
        (["--out", "{tmp}"], "is a folder"),
        (["--out", "."], "--out '.' is a folder; name a file"),
        (["--out", "{inputs}"], "not a result: agentrt did not write this line; name a file of "),
        (["--out", "{out}", "--input-field", "nothing"], "nothing was run"),
        (["--out", "{out}", "--id-field", "nothing"], "nothing was run"),
        (["--out", "{out}", "--where", "answer"], "FIELD=VALUE"),
        (["--out", "{out}", "--where", "=="], "FIELD=VALUE"),
        (["--out", "{out}", "--input-field", ""], "name of a field"),
        (["--out", "{out}", "--id-field", "nothing", "--retry", "all"], "nothing was run"),
        (["--out", "{out}", "--id-field", "nothing", "--tokens", "{tmp}/t"], "reports token ids"),
        (["--out", "{out}", "--where", "nothing=1"], "no record has the field"),
        (["--out", "{out}", "--n", "2"], "--samples"),
        (["--out", "{out}", "--input", "tea"], "leave it out"),
        (["--out", "{out}", "--human", "yes"], "leave it out"),
        (
            ["--out", "{out}", "--stop-when", "often"],
            "--stop-when 'often': give a share",
        ),
        (["--out", "{out}", "--price", "1"], "0.15,0.6"),
        (["--out", "{out}", "--price", "nan,1"], "at least 0"),
        (["--out", "{out}", "--price", "-1,1"], "at least 0"),
        (["--out", "{out}", "--score", "{inputs}"], "neither a Python file"),
        (["--out", "{out}", "--score", "{program}:wrong"], "prog.py has the scores: right"),
        (["--out", "{out}", "--score", "cmd:"], "is empty"),
        (["--out", "{out}", "--score", "cmd:/no/such/grader -v"], "no such executable file"),
        (["--out", "{tmp}/{long}"], "has 250 bytes"),
        (["--out", "{tmp}/{long}{long}/r.jsonl"], "name too long"),
        (["--out", "{out}", "--score", ""], "give a Python file"),
        (["--out", "{out}", "--journal-content", "none"], "must record the full content"),
        (["--out", "{out}", "--checkpointer", "memory"], "LangGraph"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(
    options: list[str], says: str, write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    program, inputs = write(ASK), records(QUESTIONS)
    before = inputs.read_bytes()
    places = {"tmp": tmp_path, "out": tmp_path / "r.jsonl", "inputs": inputs, "program": program}
    names = {"long": "r" * 250}
    raw_value = [option.format(**places, **names) for option in options]
    ran = command("run", program, "--inputs", inputs, *raw_value)
    assert ran.code == 2, ran.err
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert "warming up" not in ran.err
    assert inputs.read_bytes() == before
    kept = {program.name, inputs.name, "__pycache__"}
    assert {path.name for path in tmp_path.iterdir()} <= kept


def test_options_of_a_batch_need_its_inputs(write: Write, command: Run) -> None:
    ran = command("run", write(ASK), "--input", "tea", "--samples", 3)
    assert (ran.code, "--inputs FILE" in ran.said) == (2, True)


def test_a_program_that_takes_no_input_is_refused_once(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    """No field of the records would be its input."""
    path = write("@program\nasync def deaf(ctx): return 1\n")
    ran = command("run", path, "--inputs", records(QUESTIONS), "--out", tmp_path / "r.jsonl")
    assert ran.code == 2
    assert ran.err == (
        "error: program 'deaf' takes no input; add a parameter to it: (ctx, input)\n"
    )


def test_a_question_that_nobody_can_answer_names_the_places_for_answers(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    path = write("@program\nasync def asks(ctx, q): return await ctx.human('Which colour?')\n")
    out = tmp_path / "r.jsonl"
    ran = command("run", path, "--inputs", records(QUESTIONS), "--out", out)
    assert ran.code == 1
    errors = [each["error"] for each in lines(out)]
    assert all("'Which colour?'; add --dashboard or --broker URL" in error for error in errors)


def test_each_broken_record_is_a_line(write: Write, command: Run, tmp_path: Path) -> None:
    inputs = tmp_path / "x.jsonl"
    inputs.write_text('{"id": 1}\n{"id":\n{"id": 1}\n', "utf-8")
    ran = command("run", write(ASK), "--inputs", inputs, "--out", tmp_path / "r.jsonl")
    assert ran.code == 2
    first, second, last = ran.err.splitlines()
    assert "line 2: not JSON" in first
    assert "line 3: id '1' occurs twice, first in line 1" in second
    assert "2 of 3 records cannot be used; nothing was run" in last
    assert not [*tmp_path.glob("r.jsonl*")]


GRAPH = """
from typing import TypedDict
from langgraph.graph import StateGraph
from agentrt.integrations.langchain import ChatAgentRT

class State(TypedDict, total=False):
    question: str
    answer: str

async def reply(state):
    return {"answer": (await ChatAgentRT().ainvoke(state["question"])).text}

builder = StateGraph(State)
builder.add_node(reply)
builder.set_entry_point("reply")
graph = builder.compile(name="asks")
"""


def test_a_refused_batch_of_a_graph_leaves_nothing(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    inputs, program = records(["no object"]), write(GRAPH)
    ran = command("run", program, "--inputs", inputs, "--out", tmp_path / "r.jsonl")
    assert ran.code == 2, ran.err
    kept = {program.name, inputs.name, "__pycache__"}
    assert {path.name for path in tmp_path.iterdir()} <= kept


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--journal", "j.journal", "--journal is for agentrt programs, and 'asks' is a LangGraph"),
        ("--journal-keep", "3", "need a journal, which a graph does not have"),
        ("--on-unrecordable", "go-on", "need a journal, which a graph does not have"),
    ],
)
def test_a_batch_of_a_graph_has_no_journal(
    write: Write,
    records: Records,
    command: Run,
    tmp_path: Path,
    option: str,
    value: str,
    message: str,
) -> None:
    out = tmp_path / "r.jsonl"
    inputs = records([{"id": "a", "question": "tea"}])
    ran = command("run", write(GRAPH), "--inputs", inputs, "--out", out, option, value)
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert not out.exists()


def test_a_graph_takes_the_fields_that_it_has(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    questions = [{"id": "a", "question": "tea", "level": 1}, {"id": "b", "question": "mate"}]
    arguments = ("run", write(GRAPH), "--inputs", records(questions), "--out", out)
    ran = command(*arguments)
    assert ran.code == 0, ran.err
    assert {each["id"]: each["result"]["answer"] for each in lines(out)} == {
        "a": "tea",
        "b": "mate",
    }
    assert {each["calls"] for each in lines(out)} == {1}
    wrong = command(
        "run", write(GRAPH), "--inputs", records([{"id": 1, "question": 5}]), "--out", out
    )
    assert (wrong.code, "takes text as 'question'" in wrong.err) == (2, True)


TWO_NODES = """
from typing import TypedDict
from langgraph.graph import StateGraph
from agentrt.integrations.langchain import ChatAgentRT

class State(TypedDict, total=False):
    question: str
    first: str
    second: str

async def one(state):
    return {"first": (await ChatAgentRT().ainvoke(state["question"])).text}

async def two(state):
    return {"second": (await ChatAgentRT().ainvoke(state["question"])).text}

builder = StateGraph(State)
builder.add_node(one)
builder.add_node(two)
builder.set_entry_point("one")
builder.add_edge("one", "two")
graph = builder.compile(name="asks")
"""


def test_a_score_that_raised_is_mended_without_running_again(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    """1. A score raises for one of two results. 2. It is mended, and another one is added: both are
    there, no call of the program is made again, and what had all scores is left as it was.
    """
    out, inputs = tmp_path / "r.jsonl", records([{"input": "tea", "answer": "tea"}, {"input": "b"}])
    arguments = ("--inputs", inputs, "--out", out)
    assert command("run", write(ASK), *arguments).code == 1
    before = {each["id"]: each for each in lines(out)}
    assert set(before["2"]["score_errors"]) == {"right"}
    mended = ASK.replace("record['answer']", "X").replace(
        'record["answer"]', 'record.get("answer")'
    )
    mended = mended.replace("await ctx.llm(str(question))", "await ctx.llm('not again')")
    ran = command("run", write(mended), *arguments, "--retry", "scores")
    assert (ran.code, "1 of 2 results" in ran.err) == (0, True), ran.err
    after = {each["id"]: each for each in lines(out)}
    assert after["1"] == before["1"]
    assert after["2"] == {**before["2"], "scores": {"right": 0.0}, "score_errors": {}}
    judged = mended + "\n@score\nasync def judge(ctx, record, result):\n    return 7\n"
    assert command("run", write(judged), *arguments, "--retry", "scores").code == 0
    assert [each["scores"] for each in lines(out)] == [
        {**each["scores"], "judge": 7.0} for each in after.values()
    ]


def test_long_errors_and_ids_are_shown_in_part(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    source = """
@program
async def ask(ctx, question):
    raise ValueError("x" * 10_000)
"""
    inputs = records([{"id": "i" * 10_000, "input": "tea"}])
    ran = command("run", write(source), "--inputs", inputs, "--out", tmp_path / "r.jsonl")
    assert ran.code == 1
    assert "ValueError: xxx" in " ".join(ran.err.split())
    assert len(ran.err) < 5000
    [line] = lines(tmp_path / "r.jsonl")
    assert (len(line["id"]), len(line["error"])) == (10_000, len("ValueError: ") + 10_000)


def test_an_engine_that_dies_starts_again_or_the_same_command_goes_on(
    write: Write, records: Records, tmp_path: Path
) -> None:
    """The first engine dies once; then each dies of one input, until it is given up."""
    out = tmp_path / "r.jsonl"
    command = ("-m", "tests.cli.dying", "run", write(ASK), "--out", out, "--max-live", 1)
    inputs = [{"input": text, "answer": ""} for text in ("tea", "die once", "mate")]
    ran = python(*command, "--inputs", records(inputs))
    assert (ran.returncode, len(lines(out))) == (0, 3), ran.stderr
    inputs = [*inputs, {"input": "die", "answer": ""}, {"input": "milk", "answer": ""}]
    ran = python(*command, "--inputs", records(inputs))
    assert (ran.returncode, len(lines(out))) == (1, 3), ran.stderr
    assert "the same command resumes the batch" in ran.stderr
    assert "Traceback" not in ran.stderr
    inputs[3]["input"] = "soda"
    ran = python(*command, "--inputs", records(inputs))
    assert [each["result"] for each in lines(out)] == ["tea", "die once", "mate", "soda", "milk"]


def test_a_graph_over_a_limit_has_the_state_that_it_came_to(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    out, inputs = tmp_path / "r.jsonl", records([{"id": "a", "question": "tea"}])
    ran = command("run", write(TWO_NODES), "--inputs", inputs, "--out", out, "--max-calls", 1)
    assert (ran.code, "over the limit max-calls: 1 result (a)" in ran.err) == (1, True)
    [line] = lines(out)
    assert (line["state"], line["result"]) == ("stopped", {"question": "tea", "first": "tea"})
    again = command("run", write(TWO_NODES), "--inputs", inputs, "--out", out, "--retry", "failed")
    assert again.code == 0, again.err
    [line] = lines(out)
    assert (line["attempt"], line["result"]["second"]) == (2, "tea")


def test_inputs_that_have_changed_are_told_of(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    arguments = ("run", write(ASK), "--input-field", "question", "--out", out, "--inputs")
    command(*arguments, records(QUESTIONS[:2]))
    changed = [QUESTIONS[0], {**QUESTIONS[1], "question": "mate"}]
    ran = command(*arguments, records(changed))
    assert "warning: the inputs of 1 results" in ran.err
    assert command(*arguments, records(changed), "--retry", "all").code == 0
    assert "warning" not in command(*arguments, records(changed)).err


def test_scores_of_another_file_and_of_a_command(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    scores, out = tmp_path / "more.py", tmp_path / "r.jsonl"
    scores.write_text(
        "from agentrt import score\n@score\nasync def judge(ctx, record, result):\n"
        "    return len((await ctx.llm(f'judge {result}')).text)\n",
        "utf-8",
    )
    grade, fails = tmp_path / "grade.sh", tmp_path / "fails.sh"
    grade.write_text("#!/bin/sh\nread line\necho some words\nprintf '%s' \"${#line}\"\n", "utf-8")
    fails.write_text("#!/bin/sh\necho no reason >&2\nexit 3\n", "utf-8")
    for file in (grade, fails):
        file.chmod(0o755)
    raw_value = ("--score", scores, "--score", f"cmd:{grade}", "--score", f"cmd:{fails}")
    questions = records(QUESTIONS[:1])
    where = ("--inputs", questions, "--input-field", "question", "--out", out)
    ran = command("run", write(ASK), *where, *raw_value)
    assert ran.code == 1  # a score has raised; the result is there
    [line] = lines(out)
    report = json.dumps({"record": QUESTIONS[0], "result": "tea"})
    assert line["scores"] == {"right": 1.0, "judge": len("judge tea"), "grade": len(report)}
    assert "exit code 3: no reason" in line["score_errors"]["fails"]
    assert (line["state"], line["result"]) == ("done", "tea")


def test_stragglers_limits_and_a_retry(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    questions = records([{"id": n, "input": "hang" if n == 5 else "tea"} for n in range(10)])
    arguments = ("run", write(ASK), "--inputs", questions, "--out", out)
    ran = command(*arguments, "--stop-when", "90%", "--where", "id>=0")
    assert "over the limit stop-when: 1" in ran.err
    assert {each["id"]: each["over"] for each in lines(out)}["5"] == "stop-when"
    ran = command(*arguments, "--retry", "failed", "--timeout", "0.05")
    assert (ran.code, "over the limit timeout: 1" in ran.err) == (1, True)
    assert {each["id"]: each["attempt"] for each in lines(out)} == {
        str(n): 2 if n == 5 else 1 for n in range(10)
    }


def test_each_input_has_a_line_when_enough_have_ended(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    """1. The same command with --stop-when begins no others. 2. Without it, it makes all."""
    out, inputs = tmp_path / "r.jsonl", records({"id": n, "input": "tea"} for n in range(10))
    score = "\ndef right(record, result):\n    return True\n"
    program = write(ASK.partition("\ndef right")[0] + score)
    arguments = ("run", program, "--inputs", inputs, "--out", out, "--max-live", 1)
    for _ in range(2):
        ran = command(*arguments, "--stop-when", "50%")
        assert (ran.code, len(lines(out))) == (0, 10), ran.err
        assert "5 runs did not start" in ran.err
        assert "seconds per result: median " in ran.err
        not_begun = [each for each in lines(out) if not each["attempt"]]
        assert [each["id"] for each in not_begun] == [str(n) for n in range(5, 10)]
        assert {(each["state"], each["over"], each["calls"]) for each in not_begun} == {
            ("stopped", "stop-when", 0)
        }
    ran = command("results", "diff", out, out, "--id", 9)
    assert (ran.code, "input '9', sample 0, did not begin" in ran.said) == (2, True)
    assert command(*arguments, "--retry", "scores", "--stop-when", "50%").code == 0
    assert sum(each["state"] == "done" for each in lines(out)) == 5
    assert command(*arguments).code == 0
    assert [each["state"] for each in lines(out)] == ["done"] * 10


TERM = """
import os
ended = []

@program
async def ask(ctx, number):
    if not ended:
        os.kill(os.getpid(), {signal})
    ended.append(number)
    return str(await ctx.llm(str(number)))
"""


def test_a_term_signal_finishes_what_is_live(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    """1. SIGTERM comes during the first of two programs that are live at once. 2. They end, and
    nothing new starts. 3. The same command continues.
    """
    out, inputs = tmp_path / "r.jsonl", records({"id": n, "input": n} for n in range(20))
    source = TERM.format(signal=int(signal.SIGTERM))
    arguments = ("--inputs", inputs, "--out", out, "--max-live", 2)
    ran = command("run", write(source), *arguments)
    assert (ran.code, "the same command resumes it" in ran.said) == (1, True)
    assert 1 <= len(lines(out)) < 20
    before = out.read_bytes()
    ran = command("run", write(source.replace("if not ended", "if False")), *arguments)
    assert ran.code == 0, ran.err
    assert out.read_bytes().startswith(before)
    assert sorted(int(each["id"]) for each in lines(out)) == list(range(20))


def test_a_term_signal_after_the_last_start_leaves_a_complete_batch(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    out, inputs = tmp_path / "r.jsonl", records({"id": n, "input": n} for n in range(2))
    source = TERM.format(signal=int(signal.SIGTERM))
    ran = command("run", write(source), "--inputs", inputs, "--out", out)
    assert (ran.code, "resumes" in ran.said) == (0, False)
    assert sorted(int(each["id"]) for each in lines(out)) == [0, 1]


def test_a_retry_that_is_killed_after_its_last_result_does_not_prevent_the_next(
    write: Write, records: Records, command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A retry ends all its runs, and is killed before it replaces the old lines. 2. The same
    command replaces them, and runs nothing. 3. The next retry runs what still failed.
    """
    out, inputs = tmp_path / "r.jsonl", records([{"input": "tea"}, {"input": "bad"}])
    source = ASK.replace("@score", "").replace("from agentrt import score", "")
    arguments = ("--inputs", inputs, "--out", out)
    retry = (*arguments, "--retry", "failed")
    assert command("run", write(source), *arguments).code == 1
    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "finish", lambda self: None)
        assert command("run", write(source), *retry).code == 1
    assert len(lines(out)) == 3
    mended = source.replace("if question", "if 'not' in question and question")
    for attempts in ([1, 2], [1, 3]):
        command("run", write(mended), *retry)
        assert [each["attempt"] for each in lines(out)] == attempts
    assert [each["state"] for each in lines(out)] == ["done", "done"]


def test_ctrl_c_writes_no_result_of_what_is_live(
    write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    out, inputs = tmp_path / "r.jsonl", records({"id": n, "input": n} for n in range(3))
    source = TERM.format(signal=int(signal.SIGINT))
    ran = command("run", write(source), "--inputs", inputs, "--out", out)
    assert ran.code == 130
    assert f"results so far: {out}; the same command resumes the batch\n" in ran.err
    assert lines(out) == []
    ran = command(
        "run", write(source.replace("if not ended", "if False")), "--inputs", inputs, "--out", out
    )
    assert (ran.code, len(lines(out))) == (0, 3)


def test_results_of_what_is_no_file_of_results(command: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello\n", "utf-8")
    for file in ("x", "none", "."):
        ran = command("results", "show", tmp_path / file)
        assert (ran.code, "name a file of results" in ran.said) == (2, True)


def test_results_of_runs_that_never_began_have_no_times(command: Run, tmp_path: Path) -> None:
    result = {"id": "a", "sample": 0, "state": "stopped", "over": "stop-when", "attempt": 0}
    (tmp_path / "r.jsonl").write_text(f"{json.dumps(result)}\n", "utf-8")
    ran = command("results", "show", tmp_path / "r.jsonl")
    assert "1 result: 0 done, 0 failed, 1 stopped" in ran.out
    assert "seconds per result" not in ran.out
    assert "slowest" not in ran.out


@pytest.mark.parametrize("name", ["scores.svg", "scores.png"])
def test_scores_are_drawn_with_their_intervals(
    name: str, write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    first, second, plot = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / name
    arguments = ("run", write(ASK), "--inputs", records(QUESTIONS[:2]), "--input-field", "question")
    for out in (first, second):
        assert command(*arguments, "--out", out).code == 0
    shown = command("results", "show", first, "--plot", plot, "--json")
    assert (shown.code, shown.json["scores"]["right"]["mean"]) == (0, 0.5)
    alone = plot.read_bytes()
    assert command("results", "diff", first, second, "--plot", plot).code == 0
    assert len(plot.read_bytes()) > len(alone) > 1000


@pytest.mark.parametrize(
    ("plot", "says"),
    [("plot.txt", "must end in .png or .svg or .pdf"), ("none/plot.svg", "does not exist")],
)
def test_a_drawing_that_cannot_be_made_is_one_line(
    plot: str, says: str, write: Write, records: Records, command: Run, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    source = "@program\nasync def ask(ctx, question): return question"
    command("run", write(source), "--inputs", records([{"input": "a"}]), "--out", out)
    for arguments in (("show", out), ("diff", out, out)):
        ran = command("results", *arguments, "--plot", tmp_path / plot)
        assert (ran.code, says in ran.err, "Traceback" in ran.err) == (2, True, False)
        ran = command("results", *arguments, "--plot", tmp_path / "plot.svg")
        assert (ran.code, "no scores to draw" in ran.err) == (2, True)


def test_stopped_runs_are_not_shown_as_failed(command: Run, tmp_path: Path) -> None:
    stopped = [Result(str(n), 0, "stopped", error="limit", over="max-calls") for n in range(5)]
    failed = [Result(str(n), 0, "failed", error="Oops") for n in range(5, 12)]
    out = tmp_path / "r.jsonl"
    out.write_bytes(b"".join(result.to_line() for result in (*stopped, *failed)))
    lines = command("results", "show", out).out.splitlines()
    assert [line for line in lines if line.startswith("failed: ")] == [
        *(f"failed: {n}: Oops" for n in range(5, 10)),
        "failed: 2 more",
    ]


def test_no_name_of_a_score_is_cut_off(command: Run, tmp_path: Path) -> None:
    """Neither in a pipe, where each line is whole, nor in a terminal that is too narrow."""
    names = [f"the_answer_{'and_its_reason_' * 4}{end}" for end in ("differ", "fit")]
    scored = {name: float(n) for n, name in enumerate(names)}
    out = tmp_path / "r.jsonl"
    long = Result("b", 0, "failed", error="no tea " * 30)
    done = [Result("a", n, "done", scores=scored) for n in range(2)]
    out.write_bytes(b"".join(result.to_line() for result in (*done, long)))
    shown = command("results", "show", out).out.splitlines()
    assert [line.split()[0] for line in shown if line.startswith("the_answer")] == names
    assert f"failed: b: {long.error}".rstrip() in map(str.rstrip, shown)
    for words in (["show", out], ["diff", out, out]):
        arguments = ["-m", "agentrt.cli", "results", *map(str, words)]
        child = pexpect.spawn(
            sys.executable, arguments, dimensions=(24, 40), timeout=120, encoding="utf-8"
        )
        child.expect(pexpect.EOF)
        rows = [line for line in (child.before or "").splitlines() if line[:9].strip()]
        first = next(n for n, row in enumerate(rows) if row.startswith("the_answer"))
        assert "".join(row.split()[0] for row in rows[first:]).startswith("".join(names))
        assert "…" not in "".join(rows[first : first + 8])
