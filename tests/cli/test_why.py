"""`agentrt journal why`: a table for people, JSON for others, and errors with a way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Refused, Run
from tests.journal.made import BEGAN, Made, spent
from tests.journal.test_misses import RULES, chat, computed


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A program of three calls, the second of which had to wait; its system prompt has a clock."""
    queued = ["queued", 2.0, 3, 4.5, 0, [["main-7", 0, 0.25]]]
    report = spent(queued, ["prefill", 1.0, 3, 4.5, 90], prompt_tokens=90)
    again = spent(
        ["recompute", 2.0, 0, 0.0, 64, [["main-8", -(2**63) + 1, 0.0]]],
        lost_tokens=64,
        prompt_tokens=96,
    )
    loaded = spent(
        ["loading", 0.5, 0, 0.0, 48, [["main-9", 0, 0.0]]],
        ["prefill", 0.5, 0, 0.0, 2],
        prompt_tokens=50,
        cached_tokens=48,
        loaded_tokens=48,
    )
    made, first = Made(11.0), chat(f"1st You\ud83d {RULES}", "a")  # half of a character
    made.node("0#0", "call", 0.0, 1.0, report=computed(90, 0), asked=first)
    made.node("0#1", "call", 1.0, 4.0, report=report, asked=chat(f"2nd {RULES}", "a"))
    made.node("0#2", "call", 4.0, 6.0, report=again, asked=chat(f"2nd {RULES}", "b"))
    made.node("0#3", "tool", 6.0, 10.0)
    made.node("0#4", "call", 10.0, 11.0, report=loaded, asked=chat(f"2nd {RULES}", "b", "c"))
    return made.write(tmp_path / "j")


@pytest.fixture
def why(command: Run) -> Callable[..., str]:
    """Runs the command: its lines, with one blank between words."""

    def run(*given: object) -> str:
        return "\n".join(
            " ".join(line.split()) for line in command("journal", "why", *given).out.splitlines()
        )

    return run


def test_the_table(journal: Path, why: Callable[..., str]) -> None:
    """Without a program it is that of the last."""
    text = why(journal, "p-1")
    assert why(journal) == text
    for words in (
        "p-1 (done)",
        "waiting for a batch slot 2.00 18 main-7, 2.00 s: had a better rank (0.25 s of service",
        "loaded from host memory 0.50 5 48 main-9, 0.50 s: had the same rank and came earlier",
        "recomputed after an eviction 2.00 18 64 main-8, 2.00 s: promoted as the oldest (0.00 s",
        "tools 4.00 36",
        "total 11.00 100",
        "node 0#1: 90 of 90 prompt tokens computed, not cached: the prompt has changed",
        "differs from the prompt of node 0#0 after 9 characters",
        "'[system] ' then '1st You",
        "64 of them had been cached and were evicted for main-8",
    ):
        assert words in text, text


def test_shares_that_would_be_shown_as_zero_are_added_up(
    tmp_path: Path, why: Callable[..., str]
) -> None:
    """1. Each share is below 0.005 s, but their sum is not. 2. Nor is their sum. 3. All are."""
    steps: list[list[Any]] = [["queued", 0.003, 3, 4.5, 0, []], ["preempted", 0.003, 3, 4.5, 0, []]]
    for scale, long, rest in ((1.0, 2.0, "other reasons 0.01"), (0.1, 2.0, None), (0.1, 0.0, None)):
        shares = [[name, scale * seconds, *more] for name, seconds, *more in steps]
        whole = long + sum(share[1] for share in shares)
        made = Made(whole)
        report = spent(*shares, ["decode", long, 3, 4.5, 9], prompt_tokens=9)
        made.node("0#0", "call", 0.0, whole, report=report, asked=chat("hello"))
        lines = why(made.write(tmp_path / f"{scale}{long}"), "p-1").splitlines()
        assert any("decode 2.00" in line for line in lines) == bool(long)
        assert any("waiting for a batch slot" in line for line in lines) == (not long)
        assert any(rest in line for line in lines if rest) == bool(rest)


def test_json(journal: Path, command: Run) -> None:
    found = command("journal", "why", journal, "p-1", "--json").json
    assert found["wall_s"] == pytest.approx(11.0)
    seconds = {one["reason"]: one["seconds"] for one in found["reasons"]}
    assert seconds == pytest.approx(
        {
            "starting": 1.0,
            "queued": 2.0,
            "loading": 0.5,
            "recompute": 2.0,
            "prefill": 1.5,
            "tool": 4.0,
        }
    )
    assert found["pieces"][1]["by"] == [{"program": "main-7", "level": 0, "attained_s": 0.25}]
    assert [one["verdict"] for one in found["misses"]] == ["evicted", "changed"]
    assert found["started"] == BEGAN


def test_a_program_that_runs_and_has_no_texts(tmp_path: Path, why: Callable[..., str]) -> None:
    made = Made(None, content="none").node("0#0", "tool", 0.0, 2.0)
    text = why(made.write(tmp_path / "j"), "p-1")
    assert "p-1 (open, so far)" in text
    assert "recorded with --journal-content none, without texts" in text


def test_the_nodes_that_a_run_is_waiting_for(
    tmp_path: Path, why: Callable[..., str], command: Run
) -> None:
    """The seconds end with the last recorded event. What hangs since then is named."""
    made = Made(None).node("0#0", "call", 0.0, 2.0)
    for number in range(5):
        made.node(f"0.{number}#0", "tool", 2.0, None)
    text = why(made.write(tmp_path / "j"), "p-1")
    assert [line.partition(", begun at ")[0] for line in text.splitlines()[-4:]] == [
        *(f"not ended yet: tool tool (node 0.{number}#0)" for number in range(3)),
        "and 2 more nodes (--json lists all)",
    ]
    unended = command("journal", "why", tmp_path / "j", "--json").json["unended"]
    assert [each["node"] for each in unended] == [f"0.{number}#0" for number in range(5)]
    assert unended[0]["started"] == BEGAN + 2.0
    assert "not ended" not in why(Made(9.0).node("0#0", "tool", 0.0, None).write(tmp_path / "k"))


def test_bad_input(journal: Path, refused: Refused, tmp_path: Path) -> None:
    refused("journal", "why", journal, "p-2", says=["has no run 'p-2'; did you mean 'p-1'?"])
    refused("journal", "why", journal, "other", says=["available: p-1"])
    refused("journal", "why", tmp_path / "none", "p-1", says=["does not exist"])
    (tmp_path / "text").write_text("hello " * 100)
    refused("journal", "why", tmp_path / "text", "p-1", says=["is not a journal"])
    refused("journal", "why", journal, "", says=["has no run ''", "available: p-1"])
    (tmp_path / "empty").touch()
    refused("journal", "why", tmp_path / "empty", says=["is empty: the command that created it"])
