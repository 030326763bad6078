"""The demos end with honest results whatever the model says, and their DAGs have their shape."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from agentrt import Runtime, ToolCall
from agentrt.batch import InputFile, batch, summarize
from agentrt.cli.load import load_program
from agentrt.graph import Node, NodeKind, NodeState
from agentrt.program import Program
from agentrt.request import Call
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run
from arithmetic import arithmetic, judge, relative_error, right
from game24 import GOAL, PUZZLES, Numbers, last_move, legal_moves
from mcts import ITERATIONS, WIDTH, mcts
from react import MAX_STEPS, react
from shop import Shop
from tests.doubles.scripted import ScriptedExecutor
from tests.graph.integrity import check_integrity

FILES = sorted((Path(__file__).resolve().parents[2] / "demos").glob("*.py"))
PROGRAM_FILES = [
    file
    for file in FILES
    if "@program" in (text := file.read_text(encoding="utf-8"))
    and f"\n    python demos/{file.name} " not in text  # a script, which runs its program itself
]
GRAPH_FILES = [file for file in FILES if "StateGraph(" in file.read_text(encoding="utf-8")]


async def finish(
    program: Program, executor: ScriptedExecutor, given: Any = None, n: int = 1
) -> list[tuple[Run, dict[str, Any]]]:
    """Run ``n`` of a program to their end, and check what holds for all programs."""
    async with Runtime(executor) as runtime:
        runs = [runtime.start(program, given) for _ in range(n)]
        results = [await run.wait() for run in runs]
        assert len(runtime.table) == 0
        assert (await executor.snapshot())["running"] == []
    for run in runs:
        check_integrity(run.dag)
    assert json.loads(json.dumps(results)) == results
    return list(zip(runs, results, strict=True))


def names(run: Run) -> list[str]:
    return [f"{node.scope.split('/')[-1]} {node.kind}" for node in run.dag.nodes()]


def shopper(*actions: ToolCall | str, answer: dict[str, Any]) -> Callable[[Call], str | ToolCall]:
    """A model that thinks, acts as told, and then answers as told."""
    left = list(actions)

    def say(call: Call) -> str | ToolCall:
        request = call.spec.request or {}
        if request.get("tools"):
            return left.pop(0)
        return json.dumps(answer) if "response_format" in request else "I need a fact."

    return say


@pytest.mark.usefixtures("clean_imports")
@pytest.mark.parametrize("file", PROGRAM_FILES, ids=lambda file: file.stem)
def test_demo_file_has_one_program_and_says_its_command(file: Path) -> None:
    assert load_program(str(file)).name == file.stem
    doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    assert f"\n    agentrt run demos/{file.name} " in f"\n{doc}"


async def test_arithmetic_is_scored_by_three() -> None:
    """The model thinks, answers the first record's number each time, and approves."""
    inputs = InputFile(str(FILES[0].with_name("arithmetic.jsonl")))
    first = next(iter(inputs)).record["answer"]

    def say(call: Call) -> str:
        request = call.spec.request or {}
        form = str(request.get("response_format", ""))
        return json.dumps({"answer": first}) if "answer" in form else '"yes"'

    scores, engine = [right, relative_error, judge], ScriptedExecutor(say)
    results = batch(arithmetic, inputs, executor=engine, scores=scores, samples=2)
    summary = summarize([each async for each in results])
    assert (summary["results"], summary["inputs"], summary["done"]) == (100, 50, 100)
    told = summary["scores"]
    assert told["judge"]["mean"] == 1.0
    assert 0 < told["right"]["mean"] < 0.5
    assert 0 < told["relative_error"]["mean"] < 1


@pytest.mark.usefixtures("clean_imports")
@pytest.mark.parametrize("file", GRAPH_FILES, ids=lambda file: file.stem)
def test_graph_file_has_a_graph_of_its_name_and_says_its_command(file: Path) -> None:
    module = import_module(file.stem)
    assert module.graph.name == file.stem
    assert f"\n    agentrt run demos/{file.name} --input " in f"{module.__doc__}"


def test_a_file_without_a_program_is_part_of_a_demo() -> None:
    """Imported by one, or offered by a worker, as another says."""
    sources = {file: file.read_text(encoding="utf-8") for file in FILES}
    for file in (file for file in FILES if file not in PROGRAM_FILES + GRAPH_FILES):
        others = sources.values()
        uses = (
            f"from {file.stem} import",
            f"\n    agentrt worker demos/{file.name} ",
            f"\n    python demos/{file.name} ",
        )
        assert any(use in source for use in uses for source in others), file.stem


# -- react -----------------------------------------------------------------------------


async def test_react_is_a_chain_of_calls_and_tools() -> None:
    """1. think, call a tool 2. think, calculate 3. think, answer 4. cite the evidence."""
    executor = ScriptedExecutor(
        shopper(
            ToolCall("price_of", {"item": "coffee"}),
            ToolCall("calculate", {"a": 3, "operator": "*", "b": 7}),
            "21",
            answer={"evidence": "3 * 7 = 21", "answer": "21 euros"},
        )
    )
    [(run, result)] = await finish(react, executor, "How much do 3 packs of coffee cost?")
    assert result["question"] == "How much do 3 packs of coffee cost?"
    assert (result["found"], result["answer"]) == (True, "21 euros")
    facts = [step["observation"] for step in result["steps"]]
    assert facts == ["One pack of coffee costs 7 euros.", "3 * 7 = 21"]
    step = ["think call", "act call", "act tool"]
    assert names(run) == [*step, *step, "think call", "act call", "answer call"]
    assert [node.parents for node in run.dag.nodes()] == [(), *((i,) for i in range(8))]


async def test_react_does_not_claim_what_its_evidence_does_not_say() -> None:
    for evidence, answer, found in [
        ("There are 12 packs of honey in stock.", "12 packs", True),
        ("There are 12 packs of honey in stock.", "90 packs", False),
        ("There are 12 packs of honey in stock.", "OXON", False),
        ("nothing", "nothing", False),
    ]:
        call = ToolCall("stock_of", {"item": "honey"})
        said = shopper(call, call, answer={"evidence": evidence, "answer": answer})
        [(_, result)] = await finish(react, ScriptedExecutor(said), "How much honey?")
        assert result["found"] is found
        assert len(result["steps"]) == 1


async def test_react_ends_when_the_model_never_gets_to_an_answer() -> None:
    calls = [ToolCall("price_of", {"item": item}) for item in ("tea", "salt", "milk", "rice")]
    said = shopper(*calls, answer={"evidence": "nothing", "answer": ""})
    [(run, result)] = await finish(react, ScriptedExecutor(said), "Why?")
    assert len(result["steps"]) == MAX_STEPS
    assert result["found"] is False
    assert names(run)[-1] == "answer call"


async def test_react_ends_when_the_model_talks_past_every_form() -> None:
    [(run, result)] = await finish(react, ScriptedExecutor(lambda call: "blah " * 300))
    assert result["found"] is False
    assert result["steps"] == []
    assert names(run) == ["think call", "act call", "answer call"]


@pytest.mark.parametrize("seed", range(10))
async def test_react_ends_whatever_the_model_says(seed: int) -> None:
    done = await finish(react, ScriptedExecutor(seed=seed), n=8)
    assert len({result["question"] for _, result in done}) == 8
    for run, result in done:
        assert list(result) == ["question", "found", "evidence", "answer", "steps"]
        assert len(result["steps"]) <= MAX_STEPS
        assert all(node.state is not NodeState.FAILED for node in run.dag.nodes())


@pytest.mark.parametrize("program", [react, mcts])
async def test_a_fork_asks_what_its_origin_asked(program: Program) -> None:
    forked = [Durable(id=name) for name in ("it-3", "it-3-fork-2")]
    executor = ScriptedExecutor(seed=1)
    async with Runtime(executor) as runtime:
        runs = [runtime.start(program, durable=one) for one in forked]
        first, second = [await run.wait() for run in runs]
    key = "question" if program is react else "numbers"
    assert first[key] == second[key]


def test_shop_runs_real_sql() -> None:
    shop = Shop()
    assert shop.origin_of("milk") == "The milk comes from Hill Farm in Oslo."
    assert shop.orders_of("Bob") == "Bob ordered 6 packs of rice, 2 packs of salt."
    assert shop.calculate(9, "-", 12) == "9 - 12 = -3"
    shop.close()


# -- mcts ------------------------------------------------------------------------------


def children(run: Run, parents: tuple[int, ...]) -> list[Node]:
    return [node for node in run.dag.nodes() if node.parents == parents]


async def test_mcts_fans_out_and_joins() -> None:
    """1. WIDTH moves are chosen at once 2. all are valued at once 3. then the next iteration."""
    [(run, result)] = await finish(mcts, ScriptedExecutor(), "1 1 2 2")
    chosen, width = children(run, ()), WIDTH
    assert len(chosen) == width
    valued = children(run, tuple(node.id for node in chosen))
    assert [node.scope for node in valued] == ["mcts/evaluate"] * width
    then = children(run, tuple(node.id for node in valued))
    assert [node.scope for node in then] == ["mcts/choose"] * width
    checked = children(run, tuple(node.id for node in then))
    assert [node.kind for node in checked] == [NodeKind.TOOL] * width
    assert (result["found"], result["answer"]) == (False, None)
    assert len(result["trace"]) == ITERATIONS


async def test_mcts_finds_what_the_model_leads_it_to() -> None:
    def say(call: Call) -> str:
        assert call.spec.request is not None
        fields = call.spec.request["response_format"]["json_schema"]["schema"]["properties"]
        if "verdict" in fields:
            good = str(call.spec.messages).count("6 and 4")
            return json.dumps({"why": "", "verdict": "sure" if good else "impossible"})
        moves = fields["move"]["enum"]
        wanted = [move for move in moves if move in ("2 + 1 = 3", "3 + 3 = 6", "3 * 2 = 6")]
        return json.dumps({"move": (wanted or moves)[0]})

    [(_, result)] = await finish(mcts, ScriptedExecutor(say), "1 2 3 4")
    assert result["found"] is True
    numbers = tuple(Fraction(n) for n in result["numbers"])
    for step in result["answer"]:
        numbers = legal_moves(numbers)[step]
    assert numbers == GOAL


@pytest.mark.parametrize("seed", range(5))
async def test_mcts_ends_whatever_the_model_says(seed: int) -> None:
    for run, result in await finish(mcts, ScriptedExecutor(seed=seed), n=8):
        assert list(result) == ["numbers", "found", "answer", "trace"]
        assert result["found"] == (result["answer"] is not None)
        assert len(result["trace"]) <= ITERATIONS
        assert all(node.state is not NodeState.FAILED for node in run.dag.nodes())


async def test_mcts_ends_when_the_model_talks_past_every_form() -> None:
    [(_, result)] = await finish(mcts, ScriptedExecutor(lambda call: "blah"), [3, 3, 8, 8])
    assert result["numbers"] == [3, 3, 8, 8]


async def test_mcts_refuses_what_is_not_four_numbers() -> None:
    async with Runtime(ScriptedExecutor()) as runtime:
        with pytest.raises(ValueError, match="four numbers, got '1 2'"):
            await runtime.start(mcts, "1 2").wait()


def test_every_puzzle_can_be_solved_by_legal_moves() -> None:
    def solvable(numbers: Numbers) -> bool:
        if len(numbers) == 2:
            return last_move(numbers) is not None
        return any(map(solvable, set(legal_moves(numbers).values())))

    for puzzle in PUZZLES:
        assert solvable(tuple(map(Fraction, puzzle.split()))), puzzle
