"""The routes over the journal: what a page draws, whose programs it sees, and its limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrt import Runtime
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.serving.observability import api, journal_routes
from agentrt.serving.server import Server
from agentrt.serving.tenants import KeyRing
from tests.doubles.scripted import ScriptedExecutor
from tests.journal.made import Made
from tests.serving.observability.pair import write_pair
from tests.serving.observability.test_routes import Served, made_keys
from tests.serving.observability.test_routes import served as without_journal
from tests.serving.watchdog import opened_app

FORK = {"of": "p-1", "at": "0#2"}


@asynccontextmanager
async def served(path: Path, keys: KeyRing | None = None) -> AsyncIterator[Served]:
    async with (
        await Journal.open(partial(SQLiteStore, path)) as journal,
        Runtime(ScriptedExecutor(), journal=journal) as runtime,
    ):
        server = Server(runtime, ("scripted",), keys=keys)
        async with opened_app(server, [api]) as app:
            yield Served(app, server)


async def test_programs_are_listed(tmp_path: Path) -> None:
    async with served(write_pair(tmp_path / "j")) as at:
        found = (await at.json("/journal"))["programs"]
        assert {one["id"]: one["fork"] for one in found} == {
            "p-1": None,
            "p-1-fork-1": FORK,
            "q-1": None,
        }
        assert {(one["state"], one["ended"] - one["started"]) for one in found} == {
            ("done", 10.0),
            ("done", 5.0),
        }
        assert len((await at.json("/journal", limit=2))["programs"]) == 2
        assert (await at.json("/journal", type="other"))["programs"] == []
        assert (await at.get("/journal", type="a\0b")).status_code == 400


async def test_each_second_has_a_reason(tmp_path: Path) -> None:
    async with served(write_pair(tmp_path / "j")) as at:
        told = await at.json("/journal/why", program="p-1")
        assert sum(one["seconds"] for one in told["reasons"]) == pytest.approx(told["wall_s"])
        queued = next(one for one in told["reasons"] if one["reason"] == "queued")
        assert queued["words"] == "waiting for a batch slot, behind"
        assert queued["by"][1]["words"] == (
            "q-1, 1.00 s: had a better rank (0.50 s of service so far, p-1 4.50 s)"
        )
        edges = [(one["since"], one["until"]) for one in told["pieces"]]
        assert [left for left, _ in edges[1:]] == [right for _, right in edges[:-1]]
        assert (edges[0][0], edges[-1][1]) == (0.0, 10.0)
        assert [one["node"] for one in told["misses"]] == ["0#2"]


async def test_two_runs_with_what_differs_marked(tmp_path: Path) -> None:
    async with served(write_pair(tmp_path / "j")) as at:
        told = await at.json("/journal/diff", program="p-1", other="p-1-fork-1")
        assert [one["node"] for one in told["differences"]] == ["0#2", "0#3", "0#4"]
        marks = [{n["place"]: n["mark"] for n in graph["nodes"]} for graph in told["graphs"]]
        both = {"0.0#0": "same", "0.1#0": "same", "0#2": "other", "0#3": "other"}
        assert marks == [both, {**both, "0#4": "only"}]
        assert told["graphs"][0]["nodes"][2]["parents"] == ["0.0#0", "0.1#0"]


async def test_a_tenant_sees_its_own_alone(tmp_path: Path) -> None:
    """Neither is another's program named that made its own wait, nor is it known how that stood."""
    keys, (ann, bob, root) = made_keys(tmp_path, "ann", "bob", "root", operator="root")
    async with served(write_pair(tmp_path / "j"), keys) as at:
        seen = [
            {one["id"] for one in (await at.json("/journal", key))["programs"]}
            for key in (ann, bob, root)
        ]
        assert seen == [{"p-1", "p-1-fork-1"}, {"q-1"}, {"p-1", "p-1-fork-1", "q-1"}]
        assert (await at.get("/journal/why", program="p-1")).status_code == 401
        for path, given in (
            ("/journal/why", {"program": "p-1"}),
            ("/journal/diff", {"program": "q-1", "other": "p-1"}),
            ("/journal/diff", {"program": "p-1", "other": "q-1"}),
        ):
            missing = await at.get(path, bob, **{**given, "program": "none"})
            refused = await at.get(path, bob, **given)
            assert (refused.status_code, missing.status_code) == (404, 404)
            assert refused.text.replace("p-1", "none") == missing.text
        whole = (await at.get("/journal/why", ann, program="p-1")).text
        assert "q-1" not in whole
        assert "p-9" not in whole
        told = await at.json("/journal/why", ann, program="p-1")
        for reason, seconds in (("queued", 1.0), ("preempted", 1.5)):
            by = next(one["by"] for one in told["reasons"] if one["reason"] == reason)
            assert [(one["words"], one["attained_s"]) for one in by] == [
                (f"(another tenant's program), {seconds:.2f} s", 0.0)
            ]
        assert "q-1" in (await at.get("/journal/why", root, program="p-1")).text


async def test_a_large_program_is_drawn_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A bar shows the reasons of each part in a row, as long as they were. 2. A graph begins
    before both part. 3. Of a program that is larger still, another way is named.
    """
    for name in ("p-1", "p-2"):
        made = Made(200.0, id=name)
        for step in range(200):
            kind = "human" if step % 4 == 0 or (name == "p-2" and step == 181) else "tool"
            before = [f"0#{step - 1}"] if step else []
            made.node(f"0#{step}", kind, float(step), step + 1.0, parents=before)
        made.write(tmp_path / "j")
    monkeypatch.setattr(journal_routes, "MOST_DRAWN", 30)
    monkeypatch.setattr(journal_routes, "MOST_PIECES", 100)
    async with served(tmp_path / "j") as at:
        why = await at.json("/journal/why", program="p-1")
        assert {one["reason"]: one["seconds"] for one in why["reasons"]} == {
            "tool": 150.0,
            "human": 50.0,
        }
        assert why["all_pieces"] == 200
        assert [one["reason"] for one in why["pieces"]] == ["tool", "human"] * 10
        widths = [one["until"] - one["since"] for one in why["pieces"]]
        assert widths == pytest.approx([15.0, 5.0] * 10)
        graphs = (await at.json("/journal/diff", program="p-1", other="p-2"))["graphs"]
        for graph in graphs:
            assert (graph["before"], len(graph["nodes"]), graph["after"]) == (161, 30, 9)
            marks = [node["place"] for node in graph["nodes"] if node["mark"] != "same"]
            assert marks == ["0#181"]
        monkeypatch.setattr(journal_routes, "MOST_NODES", 199)
        refused = await at.get("/journal/why", program="p-1")
        assert (refused.status_code, "agentrt journal why" in refused.json()["detail"]) == (
            413,
            True,
        )


async def test_recorded_programs_without_texts_or_without_a_journal(tmp_path: Path) -> None:
    Made(None, content="none").node("0#0", "tool", 0.0, 2.0).write(tmp_path / "j")
    async with served(tmp_path / "j") as at:
        told = await at.json("/journal/why", program="p-1")
        assert (told["state"], "--journal-content none" in told["note"]) == ("open", True)
        told = await at.json("/journal/diff", program="p-1", other="p-1")
        assert (told["same"], told["programs"][0]["content"]) == (1, "none")
    async with without_journal() as at:
        refused: Any = await at.get("/journal")
        assert (refused.status_code, "--journal off" in refused.json()["detail"]) == (404, True)
