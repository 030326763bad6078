"""What a policy has learned survives restarts of the engine core; other engines add to it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from agentrt.errors import ConfigError
from agentrt.executors.history import SAVE_EVERY, HistoryFile, read, saved
from agentrt.executors.identity import from_extra_args
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.files import replacing
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler
from agentrt.scheduler import ProgramTotals, SchedulerConfig, make_policy
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.policies.adaptive import Adaptive

pytestmark = pytest.mark.engine


def engine(path: Path | None, policy: str = "adaptive", **more: str) -> HeadlessEngine:
    settings = {"policy": policy, **more, **({} if path is None else {"history": str(path)})}
    scheduler = make_scheduler(ProgramScheduler, max_num_seqs=2, blocks=500, settings=settings)
    return HeadlessEngine(scheduler)


def ours(engine: HeadlessEngine) -> ProgramScheduler:
    assert isinstance(engine.scheduler, ProgramScheduler)
    return engine.scheduler


def live(engine: HeadlessEngine, name: str, steps: int, type: str = "t", **more: Any) -> None:
    """Run a program of one call from its start to its end."""
    nested = {"program_id": name, "program_type": type, "call_id": name, **more}
    engine.add(name, [11, 12, 13], steps, {"agentrt": nested})
    engine.run()
    ours(engine).control("ends", [name])


def expected(engine: HeadlessEngine, type: str = "t") -> float:
    """Return the service that a new program is expected to need."""
    scheduler = ours(engine)
    row = scheduler.table.start_program("asked", type, 0.0)
    policy = scheduler.core.policy
    assert isinstance(policy, Adaptive)
    found = policy._expected_s(row, "", 0.0)
    policy.program_lost(row)
    scheduler.table.end_program("asked")
    return found


# -- over restarts ---------------------------------------------------------------------


def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.json"
    first = engine(path)
    for index in range(20):
        live(first, f"p{index}", 9, session="s", size_hint=3.0, node="plan")
    assert not path.exists(), "not before it is time"
    ours(first).shutdown()
    second = engine(path)
    assert expected(second) == expected(first) > 5.0
    assert ours(second).history.values() == ours(first).history.values()
    assert [file.name for file in path.parent.iterdir()] == ["history.json"], "no drafts"


def test_it_is_written_as_programs_end(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    e = engine(path)
    for index in range(SAVE_EVERY):
        assert not path.exists()
        live(e, f"p{index}", 1)
    written = path.read_text()
    live(e, "one more", 50)
    assert path.read_text() == written
    ours(e).shutdown()
    assert path.read_text() != written


def test_what_is_learned_after_a_restart_is_added(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    for round_ in range(2):
        e = engine(path)
        for index in range(5):
            live(e, f"p{index}", 9)
        ours(e).shutdown()
        rows = read(path)["service"]
        assert {row[4] for row in rows if row[2] == ""} == {5.0 * (round_ + 1)}


def test_new_settings_keep_what_was_learned(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    e = engine(path)
    live(e, "p", 9)
    before = ours(e).history.values()
    settings = {"policy": "adaptive", "history": str(path)}
    ours(e).control("configure", settings)
    assert ours(e).history.values() == before


def test_an_engine_beside_others_begins_with_what_a_file_says() -> None:
    """The file replaces what the engine had learned, and the engine learns on from there."""
    first, second = engine(None), engine(None)
    for index in range(20):
        live(first, f"p{index}", 9)
        live(second, f"p{index}", 40)
    ours(second).control("know", ours(first).history.values())
    assert expected(second) == expected(first) > 5.0
    live(second, "q", 40)
    assert expected(second) > expected(first)


def test_the_service_on_other_engines_counts() -> None:
    """It is told a program's totals. It learns nothing from a program that it did not serve."""
    whole, part = engine(None), engine(None)
    for index in range(20):
        name = f"p{index}"
        live(whole, name, 12)
        part.add(name, [11, 12, 13], 3, {"agentrt": {"program_id": name, "program_type": "t"}})
        part.run()
        for told in (
            ProgramTotals(name, "t", service_s=12.0),
            ProgramTotals("x", "t", service_s=1),
        ):
            ours(part).control("ends", [told])
    assert expected(part) == pytest.approx(expected(whole))


def test_a_policy_that_learns_nothing_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    e = engine(path, "atlas")
    live(e, "p", 3)
    ours(e).shutdown()
    assert not path.exists()
    assert ours(e).history.values() is None


def test_without_a_file_it_is_learned_all_the_same() -> None:
    e = engine(None)
    live(e, "p", 3)
    ours(e).shutdown()
    answer = ours(e).history.values()
    assert answer is not None
    assert answer["version"] == 3
    assert answer["service"]
    assert json.loads(json.dumps(answer)) == answer


def test_the_file_is_whole_or_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk ends the writing halfway. The engine continues, and the file stays as it was."""
    path = tmp_path / "history.json"
    e = engine(path)
    live(e, "p", 3)
    ours(e).shutdown()
    before = path.read_text()

    class Half:
        def __init__(self, file: BinaryIO) -> None:
            self._file = file

        def write(self, content: bytes) -> int:
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            raise OSError(28, "No space left on device")

    @contextmanager
    def half(path: Path, **options: bool) -> Iterator[Half]:
        with replacing(path, **options) as file:
            yield Half(file)

    monkeypatch.setattr("agentrt.executors.history.replacing", half)
    live(e, "q", 9)
    with caplog.at_level(logging.WARNING, logger="agentrt.executors.history"):
        ours(e).shutdown()
    assert path.read_text() == before
    assert "not saved" in caplog.text


def in_a_tool(e: HeadlessEngine, name: str, tool: str, seconds: float) -> None:
    """Run a program whose only tool takes ``seconds`` of the scheduler's clock."""
    scheduler = ours(e)
    nested = {"program_id": name, "program_type": "agent", "call_id": name}
    e.add(name, list(range(40)), 1, {"agentrt": nested})
    e.run()
    scheduler.control("boundary", [(name, "tool", tool)])
    e.now += seconds
    scheduler.control("boundary", [(name, "returned", tool)])
    scheduler.control("ends", [name])


def test_learned_gaps_survive_a_restart_whatever_the_policy(tmp_path: Path) -> None:
    """1. `adaptive` fills the file. 2. `cost` adds gaps, under a policy that learns nothing. 3.
    Both are read again.
    """
    path = tmp_path / "history.json"
    first = engine(path)
    live(first, "p", 9)
    ours(first).shutdown()
    rows = read(path)["service"]

    second = engine(path, "atlas", retention="cost")
    for n in range(12):
        in_a_tool(second, f"a{n}", "build", 100.0)
    kind = ("default", "agent", "build")
    learned = ours(second).core.learned.gaps.expect([kind], 0.0)
    ours(second).shutdown()
    assert read(path)["service"] == rows

    third = engine(path, "atlas", retention="cost")
    assert ours(third).core.learned.gaps.expect([kind], 0.0) == learned
    assert learned.seconds > 50.0


def test_what_is_between_calls_is_kept_though_no_program_has_ended(tmp_path: Path) -> None:
    """With a bare server, no client reports that a program has ended, or what it waits for."""
    path = tmp_path / "history.json"
    e = engine(path)
    for turn in range(9):
        nested = {"program_id": "p", "program_type": "agent", "call_id": f"c{turn}"}
        e.add(f"c{turn}", list(range(40 + turn)), 1, {"agentrt": nested})
        e.run()
        e.now += 100.0
    ours(e).shutdown()
    again = engine(path)
    assert ours(again).history.values() == ours(e).history.values()
    kinds = [("default", "agent", "")]
    assert ours(again).core.learned.gaps.expect(kinds, 0.0).seconds > 30.0


# -- files that are none ---------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"{}",
        b'{"version": 2, "service": [], "gaps": []}',
        b'{"version": 3, "service": [["d", "t", "", 1, NaN, 1, 1, 1]], "gaps": []}',
        b'{"version": 3, "service": [["d", "t", "", 1, 1, Infinity, 1, 1]], "gaps": []}',
        b'{"version": 3, "service": [["d", "t", "", Infinity, 1, 1, 1, 1]], "gaps": []}',
        b'{"version": 3, "service": [["d", "t", "", 1, 1, 1]], "gaps": []}',
        b'{"version": 3, "service": [], "gaps": [["t", "a", "g", 0, 1, 1, 1, 1.5]]}',
        b'{"version": 3, "service": [], "gaps": 7}',
        b"[" * 100_000,
    ],
)
def test_a_corrupt_file_is_refused_by_its_name_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "history.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"history\.json: .*; name a file that this version"):
        engine(path)
    assert path.read_bytes() == content


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "history.json", tmp_path / ("x" * 300)):
        with pytest.raises(ConfigError, match="name a file that this version"):
            engine(path)


def test_no_file_yet_is_an_empty_history(tmp_path: Path) -> None:
    assert read(tmp_path / "none.json") == saved(Learned())
    policy = make_policy(SchedulerConfig("adaptive"))
    HistoryFile(policy, str(tmp_path / "none.json"), learns=True).save()
    assert not (tmp_path / "none.json").exists(), "nothing was learned"


def test_refused_settings_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text("{")
    e = engine(None)
    live(e, "p", 3)
    scheduler = ours(e)
    before = (scheduler.config, scheduler.history.values())
    for settings in ({"policy": "adaptive", "history": str(path)}, {"policy": "lifo"}):
        with pytest.raises(ConfigError):
            scheduler.control("configure", settings)
        assert (scheduler.config, scheduler.history.values()) == before
        live(e, "q", 3)
        before = (scheduler.config, scheduler.history.values())


# -- who a call belongs to -------------------------------------------------------------


def test_a_row_has_what_the_identity_carried() -> None:
    e = engine(None)
    nested = {"program_id": "p", "session": "monday", "size_hint": 700, "node": "plan"}
    e.add("r", [11, 12], 3, {"agentrt": nested})
    e.step()
    row = ours(e).table.get("p")
    assert row is not None
    assert (row.session, row.size_hint) == ("monday", 700.0)
    assert ours(e).core.calls["r"].node == "plan"


ODD = [math.nan, math.inf, -math.inf, "many", [1], {}, None]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("flat", [False, True])
def test_a_clients_odd_values_count_as_not_given_and_stop_nothing(value: Any, flat: bool) -> None:
    keys = ("path_s", "size_hint", "service_s", "program_path_s", "node", "session", "tenant")
    if flat:
        extra = {"agentrt_program": "p", **{f"agentrt_{key}": value for key in keys}}
    else:
        extra = {"agentrt": {"program_id": "p", **dict.fromkeys(keys, value)}}
    found = from_extra_args("r", extra, None)
    assert (found.path_s, found.size_hint, found.service_s) == (None, None, 0.0)
    e = engine(None)
    e.add("r", [11, 12], 3, extra)
    e.run()
    assert "p" in ours(e).table
    ours(e).control("ends", ["none", ["p", "t"]])
    assert "p" not in ours(e).table


@pytest.mark.parametrize("policy", ["adaptive", "round-robin"])
def test_a_program_that_ended_before_its_calls_leaves_nothing_behind(policy: str) -> None:
    e = engine(None, policy)
    for name in ("a", "b", "c"):
        e.add(name, [11, 12], 30, {"agentrt": {"program_id": "p"}})
    e.step()
    assert "p" in ours(e).table
    ours(e).control("ends", ["p"])
    e.run()
    noted = vars(ours(e).core.policy)
    assert not noted["_visits" if policy == "adaptive" else "_offsets"]
