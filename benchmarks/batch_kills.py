"""``benchmarks batch-kills``: batches whose processes are killed, and the memory that they need."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from agentrt.errors import UsageError
from agentrt.lab.commands.options import count_option, note, seed_option
from agentrt.lab.reports.tables import markdown
from tests.batch.lives import PROGRAM, Lives
from tests.serving.batches.killing import killed_batches
from tests.serving.langgraph.postgres import cluster, new_database

DOORS = ("run", "sqlite", "postgres")
_FACTOR = 10
"""The memory of a batch with all inputs is compared with the memory of a batch with this many times
fewer inputs.
"""


@dataclass(frozen=True, slots=True)
class _Measured:
    """The figures of a batch with kills. ``starts_s`` are the seconds from the start of each
    process to its first call. ``peaks_kib`` are the peaks of memory in KiB: with fewer inputs, and
    with all inputs.
    """

    inputs: int
    kills: int
    halves: int
    results: Counter[str]
    calls: Counter[str]
    starts_s: Sequence[float]
    peaks_kib: Sequence[int]
    journal_bytes: int

    @property
    def is_right(self) -> bool:
        """Whether each input has one result, and the memory with all inputs is at most 1.2 times
        the memory with fewer inputs.
        """
        return (
            len(self.results) == self.results.total() == self.inputs
            and self.peaks_kib[1] <= 1.2 * self.peaks_kib[0]
        )

    def row(self, door: str) -> list[str]:
        """Return a row of the table. Its first cell is ``door``, the way in which the batch was
        started.
        """
        twice = self.results.total() - len(self.results)
        grown = (self.peaks_kib[1] - self.peaks_kib[0]) * 1024 / (self.inputs * (1 - 1 / _FACTOR))
        return [
            door,
            f"{self.inputs:,}",
            str(self.kills),
            str(self.inputs - len(self.results)),
            str(twice),
            str(self.halves),
            f"{self.calls.total() - len(self.calls)} of {len(self.calls):,}",
            f"{self.peaks_kib[1] / self.peaks_kib[0]:.2f}",
            f"{max(0.0, grown):,.0f}",
            f"{self.journal_bytes / self.inputs:,.0f}",
            self._later_starts(),
        ]

    def _later_starts(self) -> str:
        """Return the median start of the later half of the processes, as a ratio to the first
        half's; "-" if fewer than two starts were measured.
        """
        half = len(self.starts_s) // 2
        if not half:
            return "-"
        early, late = map(statistics.median, (self.starts_s[:half], self.starts_s[half:]))
        return f"{late / early:.2f}"


_COLUMNS = (
    "door",
    "inputs",
    "kills",
    "lost",
    "twice",
    "incomplete lines repaired",
    "calls made again",
    f"peak memory / with a {_FACTOR}th",
    "bytes of memory an input",
    "bytes of journal an input",
    "start, later half / first half",
)


@click.command("batch-kills")
@count_option(
    "--inputs",
    "Number of inputs of agentrt run; for a server, number of requests in each of its two batches.",
    default=2000,
    least=_FACTOR,
)
@count_option("--kills", "Number of kills, at most --inputs minus 2.", default=10)
@click.option(
    "--door",
    "doors",
    type=click.Choice(DOORS),
    multiple=True,
    help="Way in which batches are started: by agentrt run --inputs (run), or at /v1/batches of a "
    "server with this database (sqlite, postgres). Repeat the option for several.  [default: all]",
)
@seed_option
def batch_kills(inputs: int, kills: int, doors: tuple[str, ...], seed: int) -> int:
    """Kill batches by SIGKILL at random moments, on the scripted engine, and count their results.

    The benchmark also compares the peak memory with the peak memory of a batch that has a tenth of
    the inputs. It fails if a result is missing or occurs twice, or if the larger batch needs more
    than 1.2 times the memory of the smaller batch. With --door sqlite and --door postgres, the
    server gets two batches, one of chats and one of programs, with --inputs requests each.
    """
    if kills > inputs - 2:
        raise UsageError(
            f"--kills {kills}: a batch of {inputs} inputs can be killed at most {inputs - 2} "
            "times; give fewer --kills, or more --inputs"
        )
    rows, is_right = [], True
    for door in doors or DOORS:
        with tempfile.TemporaryDirectory(prefix="agentrt-kills-") as name:
            folder = Path(name)
            measured = (
                _through_run(folder, inputs, kills, seed)
                if door == "run"
                else asyncio.run(_through_http(folder, door, inputs, kills, seed))
            )
        note(f"{door}: starts {', '.join(f'{each:.1f}' for each in measured.starts_s)} s")
        rows.append(measured.row({"run": "run --inputs"}.get(door, f"/v1/batches, {door}")))
        is_right = is_right and measured.is_right
    click.echo(markdown(_COLUMNS, rows))
    return int(not is_right)


def _through_run(folder: Path, inputs: int, kills: int, seed: int) -> _Measured:
    rng, peaks = random.Random(seed), list[int]()
    for count in (inputs // _FACTOR, inputs):
        undisturbed = Lives(folder / str(count), PROGRAM, count, "input")
        undisturbed.ended()
        peaks.append(undisturbed.peaks[0])
    batch, between = Lives(folder / "killed", PROGRAM, inputs, "input"), 2 * inputs // (kills + 2)
    deaths = sum(
        batch.killed(rng.randrange(between // 2, between), rng.uniform(0, 0.02))
        for _ in range(kills)
    )
    batch.ended()
    results = [json.loads(line) for line in batch.out.read_text("utf-8").splitlines()]
    return _Measured(
        inputs,
        deaths,
        batch.halves,
        Counter(each["id"] for each in results if each["scores"] == {"right": 1.0}),
        Counter(batch.calls.read_text("utf-8").splitlines()),
        batch.starts_s,
        [peaks[0], max(peaks[1], *batch.peaks)],
        _size(undisturbed.out.with_name("results.jsonl.journal")),
    )


async def _through_http(folder: Path, door: str, inputs: int, kills: int, seed: int) -> _Measured:
    with _databases(door) as new:
        peaks, journals = list[int](), list[int]()
        for name, count, deaths in (("few", inputs // _FACTOR, 0), ("all", inputs, kills)):
            place = folder / name
            place.mkdir()
            outcome = await killed_batches(place, new(place), count, count, deaths, seed)
            peaks.append(outcome.peak_kib)
            journals.append(_size(place / "journal.db"))
    results = Counter(
        line["custom_id"]
        for line in (*outcome.runs, *outcome.chats)
        if line["response"]["status_code"] == 200
    )
    return _Measured(
        2 * inputs,
        outcome.kills,
        outcome.halves,
        results,
        outcome.events,
        outcome.starts_s,
        peaks,
        2 * journals[1],  # only programs have a journal, and half of the inputs are for programs
    )


@contextmanager
def _databases(door: str) -> Iterator[Callable[[Path], str]]:
    """Yield a function that returns the URL of a new database. The function gets a folder, in which
    an SQLite database is created.
    """
    if door == "postgres":
        with cluster() as url:
            yield lambda folder: new_database(url)
    else:
        yield lambda folder: f"sqlite:{folder / 'a.db'}"


def _size(journal: Path) -> int:
    """Return the bytes of a journal, after its last changes were moved into its file."""
    with closing(sqlite3.connect(journal)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return journal.stat().st_size
