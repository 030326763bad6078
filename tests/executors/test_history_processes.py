"""Several processes that read and write one history file at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agentrt.executors.history import read

WRITERS, ROUNDS, PROGRAMS = 4, 6, 8
WRITER = """
import sys
from pathlib import Path

from agentrt.executors.history import HistoryFile, read
from agentrt.scheduler import ProgramTotals, SchedulerConfig, make_policy

path, name, rounds, programs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
file = HistoryFile(make_policy(SchedulerConfig()), path, learns=True)
print("ready", flush=True)
sys.stdin.readline()
for number in range(rounds):
    for kind in ("shared", name):
        for program in range(programs):
            file.learn(ProgramTotals(f"{kind}-{number}-{program}", kind, service_s=2.0))
    file.save()
    read(Path(path))
"""


def test_no_writer_loses_what_another_one_learned(tmp_path: Path) -> None:
    """1. All processes have read the same file. 2. They learn, write and read at once. 3. The file
    has what all learned, and no process ever read half a file.
    """
    path = tmp_path / "data" / "history.json"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [
        subprocess.Popen(
            [*command, f"own-{number}", str(ROUNDS), str(PROGRAMS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(WRITERS)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.communicate("go\n", timeout=240)
        assert writer.returncode == 0
    ended = {row[1]: row[4:6] for row in read(path)["service"] if row[2:4] == ["", 0] and row[0]}
    each = [float(ROUNDS * PROGRAMS), 2.0]
    assert {name: figures for name, figures in ended.items() if name != "shared"} == {
        f"own-{number}": each for number in range(WRITERS)
    }
    assert ended["shared"] == [WRITERS * each[0], 2.0]
    assert [file.name for file in path.parent.iterdir()] == ["history.json"], "no drafts"
