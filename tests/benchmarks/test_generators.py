"""`python -m benchmarks generators`: its turns and ratios, and a generator that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrt.errors import AgentrtError, UsageError
from benchmarks.generators.command import COLUMNS, SIDES, GeneratorBench
from benchmarks.generators.others import GENERATORS, Generator
from benchmarks.servers import Server

SLOWER = {"stock": 2.0, "agentrt": 3.0}
"""What the generator below reports of a server, by its address, times 10."""


class Told(Server):
    def __init__(self, side: str) -> None:
        super().__init__()
        self.base_url = f"http://{side}/v1"


SERVERS: dict[str, Server] = {side: Told(side) for side in SIDES}


def installed(clients: Path, script: str) -> Generator:
    """A generator of version 1.5 that is a shell script."""
    program = clients / "a-load" / "bin" / "load"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    program.chmod(0o755)
    (clients / "a-load" / "lib" / "python3" / "site-packages" / "a_load-1.5.dist-info").mkdir(
        parents=True
    )
    return Generator(
        "a-load",
        ("load", "run"),
        lambda target: [target.url.removeprefix("http://"), str(target.folder / "said")],
        "said",
        lambda said: {
            "calls": 4,
            "failed": 1,
            "rate": 60 / SLOWER[said],
            "ttft": SLOWER[said],
            "latency": SLOWER[said] * 10,
        },
    )


async def test_ratios_are_to_stock_in_the_same_repeat(tmp_path: Path) -> None:
    bench = GeneratorBench(tmp_path, [installed(tmp_path, 'echo "\\"$2\\"" >"$3"')])
    await bench.run(SERVERS, "a model", 2)
    [found] = bench.measured.medians()
    expected = {"generator": "a-load 1.5", "calls": 8, "failed": 2, "stock_ttft": 2}
    expected |= {"ttft_to_stock": 1.5, "latency_to_stock": 1.5, "rate_to_stock": 2 / 3}
    assert found.items() >= expected.items(), json.dumps(found)
    assert "| a-load 1.5 | 16 " in bench.measured.table(COLUMNS)


async def test_a_generator_that_fails_ends_it_with_its_last_words(tmp_path: Path) -> None:
    bench = GeneratorBench(tmp_path, [installed(tmp_path, "echo no such model >&2; exit 3")])
    with pytest.raises(AgentrtError, match="a-load ended with exit status 3: no such model"):
        await bench.run(SERVERS, "a model", 1)


async def test_one_that_is_not_installed_is_named(tmp_path: Path) -> None:
    bench = GeneratorBench(tmp_path, [GENERATORS["guidellm"]])
    with pytest.raises(UsageError, match=r"guidellm/bin/guidellm is missing; docs/benchmarks"):
        await bench.run(SERVERS, "a model", 1)
