"""``benchmarks cliff``: sessions that grow, a fall of throughput, and its table."""

from __future__ import annotations

import json
from random import Random

import pytest

from agentrt.lab.runs.contenders import DEFAULT, STOCK
from benchmarks import cliff
from benchmarks.__main__ import call
from benchmarks.cliff import (
    LONGEST,
    OUTPUT,
    SYSTEM,
    Counted,
    Session,
    Spec,
    cells,
    first_session,
    medians,
    run,
    table,
)
from benchmarks.workloads.sizes import Sizes

FIGURES = {"tokens": 5_000.0, "hits": 0.5, "ttft_p50_s": 2.0, "ttft_p95_s": 9.0, "calls": 40}


def test_a_turn_extends_the_prompt_and_the_output_of_the_turn_before() -> None:
    session = Session(Random(1), "s", turns=3)
    other = Session(Random(2), "t", turns=3)
    assert session.prompt[:SYSTEM] == other.prompt[:SYSTEM]
    assert session.prompt[SYSTEM:] != other.prompt[SYSTEM:]
    name, prompt, output = session.send()
    before = [*prompt]
    assert session.advance()
    assert session.prompt[: len(before)] == before
    assert len(session.prompt) > len(before) + output
    assert name != session.send()[0]
    assert session.advance()
    session.send()
    assert not session.advance()


def test_a_session_ends_before_its_context_exceeds_the_model() -> None:
    session = Session(Random(1), "s", turns=100_000)
    session.skip(100_000)
    assert LONGEST // 2 < len(session.prompt) + OUTPUT.high < LONGEST


def test_first_sessions_are_under_way() -> None:
    sessions = [first_session(Random(seed), "s") for seed in range(40)]
    assert all(0 <= session.turn < session.turns for session in sessions)
    assert all(len(session.prompt) + OUTPUT.high < LONGEST for session in sessions)
    shares = [session.turn / session.turns for session in sessions]
    assert 0.35 < sum(shares) / len(shares) < 0.65


@pytest.mark.engine
def test_contexts_that_do_not_fit_cost_stock_its_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same two sessions, smaller ones, with a pool for all of their contexts and without."""
    for name, mean in (("FIRST", 2_000), ("ADDED", 300), ("OUTPUT", 30)):
        monkeypatch.setattr(cliff, name, Sizes(mean=mean, spread=0.5, low=1, high=10 * mean))
    spec = Spec(2, 3, STOCK, 0.5)
    monkeypatch.setattr(cliff, "POOL", 200_000)
    ample = run(spec)
    contexts = [len(first_session(Random(f"cliff/3/{at}"), "s").prompt) for at in (0, 1)]
    monkeypatch.setattr(cliff, "POOL", max(contexts) + 4_000)
    short = run(spec)
    assert ample["hits"] > 0.9
    assert short["hits"] < 0.9 * ample["hits"]
    assert short["tokens"] < 0.9 * ample["tokens"]


def test_calls_that_still_wait_count_in_the_tail() -> None:
    counted = Counted(10.0, 900, 100, 450, first_s=[1.0, 2.0, 3.0], still_s=[50.0])
    figures = counted.figures
    assert (figures["tokens"], figures["hits"], figures["calls"]) == (12.5, 0.5, 3)
    assert (figures["ttft_p50_s"], figures["longest_s"]) == (2.0, 50.0)
    assert figures["ttft_p95_s"] > 3.0


def test_a_row_has_the_measurement_and_the_medians_of_the_seeds() -> None:
    results = {
        Spec(clients, seed, name, 5.0): {**FIGURES, "tokens": 1_000.0 * (seed + 1)}
        for clients in (16, 64)
        for seed in (0, 1, 2)
        for name in (STOCK, DEFAULT)
    }
    assert medians(results)[16, STOCK]["tokens"] == 2_000.0
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table(results).splitlines()]
    assert rows[0] == ["sessions", "measured", STOCK, DEFAULT]
    assert rows[2] == ["16", "3,421 / 0.39 / 14.2", *["2,000 / 0.50 / 2.0 / 9.0"] * 2]
    assert rows[3] == ["64", "", *["2,000 / 0.50 / 2.0 / 9.0"] * 2]
    assert json.loads(json.dumps(cells(results)))[0]["clients"] == 16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--clients", "0"], "--clients"),
        (["--policy", "fastest"], "fastest"),
        (["--minutes", "0"], "--minutes"),
    ],
)
def test_bad_options(line: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["cliff", *line]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
