"""What benchmarks share: turns, figures that a side cannot tell, and what is told at an end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from math import nan
from typing import Any

import pytest

from agentrt.cli.faults import StoppedError
from benchmarks import harness as results
from benchmarks.harness import Column, Results, run_shown, table


async def stopped_by(number: int) -> None:
    signal.raise_signal(number)
    await asyncio.Event().wait()


async def failing() -> None:
    raise ValueError("no engine")


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (lambda: stopped_by(signal.SIGINT), StoppedError),
        (lambda: stopped_by(signal.SIGTERM), StoppedError),
        (failing, ValueError),
    ],
)
def test_what_was_measured_is_told_once_whatever_ends_the_work(
    work: Callable[[], Coroutine[Any, Any, None]], error: type[Exception]
) -> None:
    told: list[str] = []
    with pytest.raises(error):
        run_shown(work(), lambda: told.append("a table"))
    assert told == ["a table"]


def test_it_is_told_before_a_slow_end_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut:
        def __init__(self, last_words: Callable[[str], None]) -> None:
            self._last_words = last_words

        def run(self, work: Coroutine[Any, Any, None]) -> None:
            work.close()
            self._last_words("by force")

    monkeypatch.setattr(results, "Interrupts", Cut)
    told: list[str] = []
    run_shown(failing(), lambda: told.append("a table"), told.append)
    assert told == ["a table", "by force"]


def test_nothing_is_shown_where_nothing_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    measured = Results({"side": "side"})
    measured.expect([("a",)])
    results.show(measured.table((Column("s", "s"),)), measured.medians(), as_json=True)
    assert capsys.readouterr().out == ""


def test_a_figure_that_one_repeat_lacks_is_not_shown() -> None:
    measured = Results({"side": "", "size": "size"})
    measured.expect([("b", 2), ("a", 1)])
    for known in (1.0, 3.0):
        measured.add("a", 1, figures={"s": known, "steps": nan if known > 1 else 2.0})
        measured.add("b", 2, figures={"s": 2 * known})
    columns = (
        Column("s", "s"),
        Column("in all", "s", "{total:.0f}"),
        Column("x", "steps", "", "-"),
    )
    rows = [line.replace(" ", "") for line in measured.table(columns).splitlines()[2:]]
    assert rows == ["|b|2|4.00(2.00-6.00)|8|-|", "|a|1|2.00(1.00-3.00)|4|-|"]
    assert measured.medians() == [
        {"side": "b", "size": 2, "s": 4.0},
        {"side": "a", "size": 1, "s": 2.0},
    ]
    assert measured.medians(spread=True)[1] == {
        "side": "a",
        "size": 1,
        "s": 2.0,
        "spread": {"s": [1.0, 3.0]},
    }


def test_a_column_of_other_rows_is_a_function_of_the_row() -> None:
    text = table([2, 30], Column("number", lambda row: row), Column("square", lambda row: row**2))
    assert [line.replace(" ", "") for line in text.splitlines()] == [
        "|number|square|",
        "|--------|--------|",
        "|2|4|",
        "|30|900|",
    ]
    assert table([], Column("number", str)) == ""
