"""The comparison of transports with the bare libraries: both sides run, and the JSON's shape."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest

from benchmarks.__main__ import call
from benchmarks.harness import Results
from benchmarks.interrupts import command as interrupts


def test_the_last_line_has_each_transports_ratios(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "_QUICK", {"calls": 20, "repeat": 1, "rounds": 1})
    monkeypatch.setattr(interrupts, "AT_ONCE", 2)
    names = ["thread", "process"]
    given = ["--transport", ",".join(names), "--quick", "--json"]
    assert call(["interrupts", *given]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["transports"]
    assert [one["transport"] for one in found] == names
    for one in found:
        assert one["p50_ratio"] == pytest.approx(one["p50_us"] / one["bare_p50_us"])
        assert {"p99_ratio", "at_once_ratio"} <= set(one)


@pytest.mark.parametrize("number", [5, 20, 25])
async def test_each_side_makes_exactly_the_calls_that_are_requested(number: int) -> None:
    calls: Counter[str] = Counter()

    async def bare(x: int) -> None:
        calls["bare"] += 1

    async def ours(x: int) -> None:
        calls["ours"] += 1

    await interrupts.one_by_one({"bare_": bare, "": ours}, number, 0)
    assert calls == {"bare": number, "ours": number}


@pytest.mark.parametrize("name", ["mcp-stdio", "mcp-http", "mqtt"])
async def test_both_sides_reach_a_server(name: str) -> None:
    measured = Results({"transport": "transport"})
    await interrupts.measure(measured, [name], 10, 1, lambda line: None, at_once=5)
    (figures,) = measured.samples[name,]
    assert min(figures.values()) > 0


def test_without_mosquitto_the_error_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *args, **options: None)
    assert call(["interrupts", "--transport", "mqtt"]) == 2
    *_, error = capsys.readouterr().err.splitlines()
    assert "the transport mqtt needs the broker Mosquitto" in error
    assert "--transport" in error


def test_an_unknown_transport_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["interrupts", "--transport", "pigeon"]) == 2
    assert "unknown --transport 'pigeon'; available: thread" in capsys.readouterr().err
