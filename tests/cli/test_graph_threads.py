"""`agentrt run` on threads: questions and their answers, and what is kept between commands."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, Write
from tests.cli.echo_engine import EchoEngine
from tests.cli.graphs import ASKS, ECHO, FORK, HEAD

pytestmark = pytest.mark.usefixtures("clean_imports")
Command = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs the command with --json, without a terminal: its exit code, and what it printed."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> tuple[int, Any]:
        ran = command("run", *args, "--json")
        return ran.code, ran.json

    return run


def states(value: Any) -> list[str]:
    return [one["state"] for one in value["programs"]]


def test_a_question_ends_the_command_and_names_the_one_that_answers(
    write: Write, run: Command
) -> None:
    """Each printed command is run as it stands, with words for TEXT, until the graph is done."""
    path = write(ASKS)
    where = ["--checkpointer", "sqlite:t.db"]
    code, value = run(path, "--input", '{"cups": 1}', *where, "--thread", "tea")
    assert (code, states(value), value["results"]) == (3, ["interrupted"], [None])
    [question] = value["interrupts"]
    assert (question["program"], question["thread"]) == ("graph-1", "tea")
    assert question["value"] == "Is it good?"
    assert value["programs"][0]["session"] == "tea"

    answering = shlex.split(question["answer_with"])[2:]
    reply = ["--thread", "tea", "--human", "TEXT"]
    assert answering == [str(path), *where, "--json", *reply]
    code, value = run(*answering)
    assert code == 3
    assert [one["value"] for one in value["interrupts"]] == ["Who signs?"]

    answering = shlex.split(value["interrupts"][0]["answer_with"].replace("TEXT", "I"))[2:]
    code, value = run(*answering)
    assert (code, states(value)) == (0, ["done"])
    assert value["results"] == [{"cups": 1, "seen": ["draft", "'TEXT'", "'I'"]}]
    assert value["programs"][0]["calls"] == 0  # the draft was made two commands ago


def test_a_thread_whose_calls_were_all_made_is_not_told_to_change_its_model(
    write: Write, command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last answer resumes a node that makes no call."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    run = ["run", write(ASKS), "--checkpointer", "sqlite:t.db", "--thread", "tea"]
    assert command(*run, "--input", '{"cups": 1}', "--human", "yes").code == 3
    answered = command(*run, "--human", "Ann")
    assert (answered.code, "graph-1 done" in " ".join(answered.err.split())) == (0, True)
    assert "no call reached this engine" not in answered.err


def test_a_question_that_is_still_open_needs_no_engine(
    write: Write, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--checkpointer", "sqlite:t.db", "--thread", "tea"]
    path = write(ASKS)
    run(path, "--input", '{"cups": 1}', *where)
    monkeypatch.delattr(EchoEngine, "start")
    code, value = run(path, *where)
    assert (code, value["programs"]) == (3, [])
    assert [(one["program"], one["value"]) for one in value["interrupts"]] == [
        (None, "Is it good?")
    ]


def test_answers_in_advance_each_begin_a_program(
    write: Write, run: Command, tmp_path: Path
) -> None:
    """1. Three runs of two threads: each asks twice. 2. All answers go to each thread."""
    replies = ["--human", "true", "--human", '{"name": "Ann"}']
    code, value = run(write(ASKS), "--input", '{"cups": 1}', "--n", 2, *replies)
    assert code == 0
    assert sorted(states(value)) == ["done"] * 2 + ["interrupted"] * 4
    done = [result for result in value["results"] if result]
    assert [one["seen"] for one in done] == [["draft", "True", "{'name': 'Ann'}"]] * 2
    assert value["interrupts"] == []


@pytest.mark.parametrize("more", [0, 1, 2])
def test_answers_that_no_thread_needed_are_told_of(
    write: Write, command: Run, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    replies = ["--human", "true", "--human", '{"name": "Ann"}', *["--human", "x"] * more]
    said = command("run", write(ASKS), "--input", '{"cups": 1}', *replies).err
    assert (f"{more} answer" in said, "not used, because" in said) == (more > 0, more > 0)


def test_what_memory_forgets_is_answered_from_the_start(write: Write, run: Command) -> None:
    path = write(ASKS)
    code, value = run(path, "--input", '{"cups": 1}', "--human", "yes")
    assert code == 3
    again = shlex.split(value["interrupts"][0]["answer_with"])[2:]
    code, value = run(*again)
    assert (code, value["results"][-1]["seen"]) == (0, ["draft", "'yes'", "'TEXT'"])


def test_several_questions_are_answered_by_their_ids(write: Write, run: Command) -> None:
    where = ["--checkpointer", "sqlite:t.db", "--thread", "t"]
    path = write(FORK)
    _, value = run(path, "--input", '{"cups": 1}', *where)
    ids = {one["value"]: one["id"] for one in value["interrupts"]}
    code, value = run(path, *where, "--human", f"{ids['right?']}=r")
    assert code == 3
    assert [one["value"] for one in value["interrupts"]] == ["left?"]
    code, value = run(path, *where, "--human", "l")
    assert (code, value["results"]) == (0, [{"cups": 1, "seen": ["left l", "right r"]}])


def test_each_instance_has_a_thread_of_its_own(write: Write, run: Command) -> None:
    where = ["--checkpointer", "sqlite:t.db", "--thread", "t"]
    path = write(ASKS)
    _, value = run(path, "--input", '{"cups": 1}', "--n", 2, *where)
    assert [one["thread"] for one in value["interrupts"]] == ["t-1", "t-2"]
    command_of_second = shlex.split(value["interrupts"][1]["answer_with"])[2:]
    code, value = run(*command_of_second)
    assert (code, [one["session"] for one in value["programs"]]) == (3, ["t-2"])


def test_a_breakpoint_stops_and_goes_on(write: Write, run: Command) -> None:
    path = write(ECHO.replace("say, again)", "say, again, interrupt_before=['again'])"))
    where = ["--checkpointer", "sqlite:t.db", "--thread", "t"]
    code, value = run(path, "--input", '{"text": "a"}', *where)
    assert (code, states(value), value["results"]) == (3, ["interrupted"], [None])
    assert value["interrupts"][0]["value"] == "stopped before again"
    code, value = run(*shlex.split(value["interrupts"][0]["answer_with"])[2:])
    assert (code, value["results"]) == (0, [{"text": "a!", "seen": []}])
    assert value["programs"][0]["calls"] == 1


def test_a_new_input_goes_on_with_the_threads_state(write: Write, run: Command) -> None:
    path = write(f"{HEAD}def one(state: Tea) -> Tea:\n    return {{}}\ngraph = chain(Tea, one)\n")
    where = ["--checkpointer", "sqlite:t.db", "--thread", "t"]
    run(path, "--input", '{"seen": ["a"]}', *where)
    _, value = run(path, "--input", '{"seen": ["b"]}', *where)
    assert value["results"] == [{"seen": ["a", "b"]}]


def test_a_graph_keeps_its_own_checkpointer(write: Write, run: Command) -> None:
    path = write(
        f"from langgraph.checkpoint.memory import InMemorySaver\nsaver = InMemorySaver()\n{HEAD}"
        "def one(state: Tea) -> Tea:\n    return {}\n"
        "def two(state: Tea) -> Tea:\n    return {'seen': list(saver.storage)}\n"
        "graph = chain(Tea, one, two, checkpointer=saver)\n"
    )
    code, value = run(path, "--input", '{"cups": 1}', "--thread", "mine")
    assert (code, value["results"]) == (0, [{"cups": 1, "seen": ["mine"]}])


def test_an_entrypoint_is_asked_too(write: Write, run: Command) -> None:
    path = write(
        f"{HEAD}@entrypoint()\nasync def agent(given):\n    return [given, interrupt('Go?')]\n"
    )
    code, value = run(path, "--input", "[1]", "--human", "yes")
    assert (code, value["results"]) == (0, [None, [[1], "yes"]])


def test_questions_are_asked_on_the_terminal(
    write: Write, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are typed ahead: one line, one answer."""
    master, slave = os.openpty()
    os.write(master, b"true\nAnn\n")
    with os.fdopen(master, "wb"), os.fdopen(slave, "r") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        code, value = run(write(ASKS), "--input", '{"cups": 1}')
    assert (code, states(value)) == (0, ["interrupted", "interrupted", "done"])
    assert value["results"][-1]["seen"] == ["draft", "True", "'Ann'"]


def test_a_question_after_the_last_prepared_answer_is_asked_on_the_terminal(
    write: Write, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = os.openpty()
    os.write(master, b"Ann\n")
    with os.fdopen(master, "wb"), os.fdopen(slave, "r") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        code, value = run(write(ASKS), "--input", '{"cups": 1}', "--human", "yes")
    assert (code, states(value)) == (0, ["interrupted", "interrupted", "done"])
    assert value["results"][-1]["seen"] == ["draft", "'yes'", "'Ann'"]


def test_what_failed_goes_on_from_its_last_checkpoint(
    run_program: Run, command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without --thread, the printed command alone knows the thread's name."""
    monkeypatch.chdir(tmp_path)
    source = (
        f"{HEAD}import os\n"
        "async def first(state: Tea) -> Tea:\n"
        "    return {'seen': [(await model.ainvoke('first')).content]}\n"
        "def second(state: Tea) -> Tea:\n    return {'seen': [os.environ['SECOND']]}\n"
        "graph = chain(Tea, first, second)\n"
    )
    failed = run_program(source, "--input", '{"cups": 1}', "--checkpointer", "sqlite:t.db")
    lines = failed.err.splitlines()
    [told] = [line for line in lines if line.startswith("resume graph-1 with: ")]
    assert lines[-1] == "error: run graph-1 failed: KeyError: 'SECOND'"
    monkeypatch.setenv("SECOND", "second")
    value = command(*shlex.split(told.partition(": ")[2])[1:], "--json").json
    assert value["results"] == [{"cups": 1, "seen": ["first", "second"]}]
    assert value["programs"][0]["calls"] == 0


def test_what_ctrl_c_stopped_goes_on_from_its_last_checkpoint(
    run_program: Run, command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command of each thread that has not ended is printed, since the same command would send
    the input again. Threads in memory are gone.
    """
    monkeypatch.chdir(tmp_path)
    source = (
        f"{HEAD}import asyncio, os, signal\n"
        "async def first(state: Tea) -> Tea:\n"
        "    return {'seen': [(await model.ainvoke('first')).content]}\n"
        "async def second(state: Tea) -> Tea:\n"
        "    if not os.path.exists('stopped'):\n"
        "        open('stopped', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        await asyncio.Event().wait()\n"
        "    return {'seen': ['second']}\n"
        "graph = chain(Tea, first, second)\n"
    )
    stopped = run_program(source, "--input", '{"cups": 1}')
    assert (stopped.code, "resume" in stopped.err) == (130, False)
    (tmp_path / "stopped").unlink()
    threads = ["--checkpointer", "sqlite:t.db", "--n", 2, "--max-live", 1]
    stopped = run_program(source, "--input", '{"cups": 1}', *threads)
    *_, told, last = stopped.err.splitlines()
    assert (stopped.code, last[:11], told[:13]) == (130, "interrupted", "resume with: ")
    assert stopped.err.count("resume with: ") == 1, "the other thread has not begun"
    value = command(*shlex.split(told.partition(": ")[2])[1:], "--json").json
    assert value["results"] == [{"cups": 1, "seen": ["first", "second"]}]


def test_each_thread_that_ctrl_c_stopped_is_named(
    run_program: Run, command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of many threads, the first have their commands, and the others are named below."""
    monkeypatch.chdir(tmp_path)
    source = (
        f"{HEAD}import asyncio, os, signal\n"
        "waiting = 0\n"
        "async def first(state: Tea) -> Tea:\n"
        "    return {'seen': ['first']}\n"
        "async def second(state: Tea) -> Tea:\n"
        "    global waiting\n"
        "    waiting += 1\n"
        "    if not os.path.exists('stopped') and waiting == 5:\n"
        "        open('stopped', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    if not os.path.exists('resumed'):\n"
        "        await asyncio.Event().wait()\n"
        "    return {'seen': ['second']}\n"
        "graph = chain(Tea, first, second)\n"
    )
    threads = ["--checkpointer", "sqlite:t.db", "--n", 5]
    stopped = run_program(source, "--input", '{"cups": 1}', *threads)
    *_, last_line, rest, _ = stopped.err.splitlines()
    words, _, names = rest.partition(": ")
    assert words == "2 more threads can be resumed in the same way, with --thread"
    assert stopped.err.count("resume with: ") == 3
    assert len({*names.split()}) == 2
    (tmp_path / "resumed").touch()
    *same, _ = shlex.split(last_line.partition(": ")[2])[1:]
    for name in names.split():
        value = command(*same, name, "--json").json
        assert value["results"] == [{"cups": 1, "seen": ["first", "second"]}]


def test_ctrl_c_while_the_engine_loads_names_no_thread(
    run_program: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No thread has begun, so a command that resumes one would be refused."""
    monkeypatch.chdir(tmp_path)

    async def start(self: EchoEngine, progress: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(EchoEngine, "start", start)
    options = ["--input", '{"cups": 1}', "--checkpointer", "sqlite:t.db", "--n", 2]
    stopped = run_program(ECHO, *options)
    assert (stopped.code, "resume" in stopped.err) == (130, False)


def test_questions_are_in_the_drawing(write: Write, run: Command, tmp_path: Path) -> None:
    code, _ = run(write(ASKS), "--input", '{"cups": 1}', "--dag", "dag.json")
    assert code == 3
    call, question = json.loads((tmp_path / "dag.json").read_text())["nodes"]
    assert (call["kind"], call["scope"], call["state"]) == ("call", "graph/draft", "done")
    assert (question["kind"], question["scope"]) == ("human", "graph/approve")
    assert (question["name"], question["state"]) == ("Is it good?", "interrupted")
    assert question["parents"] == [call["id"]]


def test_after_sigterm_questions_are_left_open(write: Write, run: Command) -> None:
    """The answers are there in advance, but nothing new is begun; another command continues."""
    path = write(
        "import asyncio, os, signal\n"
        + ASKS.replace(
            "async def draft(state: Tea) -> Tea:\n",
            "async def draft(state: Tea) -> Tea:\n"
            "    if state.get('cups') == 1: os.kill(os.getpid(), signal.SIGTERM)\n"
            "    await asyncio.sleep(0)\n",
        )
    )
    answers = ["--human", "yes", "--human", "Ann"]
    where = ["--checkpointer", "sqlite:t.db", "--thread", "tea"]
    code, value = run(path, "--input", '{"cups": 1}', *where, *answers)
    assert (code, states(value)) == (3, ["interrupted"])
    assert [one["value"] for one in value["interrupts"]] == ["Is it good?"]
    code, value = run(path, *where, *answers)
    assert code == 0
    assert value["results"][-1]["seen"] == ["draft", "'yes'", "'Ann'"]


HOLDS = f"""{HEAD}
import threading

class Held(TypedDict, total=False):
    text: str
    lock: threading.Lock

def connect(state: Held) -> Held:
    return {{"lock": threading.Lock()}}

def approve(state: Held) -> Held:
    with state["lock"]:
        return {{"text": f"{{state['text']}} {{interrupt('Good?')}}"}}

def leave(state: Held) -> Held:
    return {{"lock": None}}

graph = chain(Held, connect, approve, leave)
"""


def test_a_state_may_have_values_that_langgraph_cannot_write(
    write: Write, run: Command, command: Run, tmp_path: Path
) -> None:
    """In a thread that ends with the command, as without a checkpointer; a file cannot."""
    path = write(HOLDS)
    code, value = run(path, "--input", '{"text": "tea"}', "--human", "yes")
    assert (code, value["results"]) == (0, [None, {"text": "tea yes", "lock": None}])

    where = ["--checkpointer", "sqlite:t.db", "--thread", "tea"]
    ran = command("run", path, "--input", '{"text": "tea"}', *where)
    assert ran.code == 2
    says = "state to a file: Type is not msgpack serializable: _thread.lock; keep such values"
    assert says in ran.err

    inputs, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    inputs.write_text('{"text": "tea"}', encoding="utf-8")
    batch = ["--inputs", inputs, "--out", out, "--checkpointer", "memory"]
    path = write(HOLDS.replace("interrupt('Good?')", "'good'"))
    assert command("run", path, *batch).code == 0
    assert json.loads(out.read_text(encoding="utf-8"))["result"]["text"] == "tea good"
