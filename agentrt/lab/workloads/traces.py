"""Programs from files: what agents really did, as shapes that can be run again.

A file is a **journal** (`agentrt.lab.workloads.journals`), or JSON or JSON lines, gzipped or not,
of one of two formats, told apart by their fields:

* **sessions** of coding agents (`agentrt.lab.workloads.sessions`): objects with ``calls``;
* **DAGs** that ``agentrt run --dag FILE.json`` wrote (`agentrt.lab.workloads.dagfile`).

What cannot be read is left out and reported, as long as something good is left.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrt.errors import ConfigError
from agentrt.files import is_database
from agentrt.lab.workloads import dagfile, journals, sessions
from agentrt.lab.workloads.fields import Fields, Notes, read_objects
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.shape import ProgramShape

Reader = Callable[[Sequence[Fields], str, Scales, Notes], list[ProgramShape]]
"""From the objects of a file, a type for its programs, and scales: the programs. What is
left out, changed or guessed is counted in the last argument, under words for people."""

_READERS: Mapping[str, Reader] = {
    "sessions": sessions.read,
    "DAGs": dagfile.read,
}


OTHER_FORMAT = "entries of another or of no known format, left out"


@dataclass(frozen=True, slots=True)
class Trace:
    """What was read from a file, how it was scaled, and what was left out or changed.

    ``notes`` counts, by a description, everything that is not as it was in the file.
    """

    path: str
    format: str
    programs: tuple[ProgramShape, ...]
    scales: Scales
    notes: Mapping[str, int]

    def report(self) -> str:
        """A line on what was read and at what scale, and one for each note."""
        calls = [call for program in self.programs for call in program.calls]
        prompt = sum(call.prompt_tokens for call in calls) / len(calls)
        output = sum(call.output_tokens for call in calls) / len(calls)
        head = (
            f"{self.path}: {len(self.programs)} programs with {len(calls)} calls "
            f"({self.format}); contexts x {self.scales.context:g}, outputs x "
            f"{self.scales.output:g}, gaps x {self.scales.gap:g}; then "
            f"{prompt:.0f} prompt and {output:.0f} output tokens per call"
        )
        return "\n".join([head, *(f"  {what}: {count}" for what, count in self.notes.items())])


def read_programs(
    path: str | os.PathLike[str],
    *,
    context_scale: float = 1.0,
    output_scale: float = 1.0,
    gap_scale: float = 1.0,
) -> Trace:
    """The programs of a file, in its order, with their tokens and gaps multiplied.

    A prompt is ``context_scale`` times what it was, an output ``output_scale`` times, but
    at least a token. A prompt holds the earlier prompt and output that it begins with,
    so contexts shrink in full only if outputs shrink with them; where a prompt had to stay
    longer than the scale says, it is counted.
    Programs of DAGs and journals arrive when they did, in seconds after the first; sessions at
    their start.

    A session, subagent or DAG that cannot be read is left out. The notes count them, and
    say where the first one is and what is wrong with it.

    Raises `ConfigError`, which names file and line, where nothing is left.
    """
    scales = Scales(context_scale, output_scale, gap_scale)
    source = Path(path)
    notes = Notes()
    if is_database(source):
        name, programs = "a journal", journals.read(source, scales, notes)
    else:
        name, entries = _of_one_format(read_objects(source, notes), notes)
        programs = _READERS[name](entries, _stem(source), scales, notes) if entries else []
    if not programs:
        raise ConfigError(_nothing_left(source, notes))
    _unique(source, programs)
    return Trace(str(source), name, tuple(programs), scales, notes.explained())


def _of_one_format(objects: Sequence[Fields], notes: Notes) -> tuple[str, list[Fields]]:
    """The format of the first entry that has a known one, and the entries that have it."""
    name, found = "", []
    for one in objects:
        with notes.leaving_out(OTHER_FORMAT):
            own = _format(one)
            name = name or own
            if own != name:
                raise one.complain(f"not of the format of the first entry ({name})")
            found.append(one)
    return name, found


def _nothing_left(path: Path, notes: Notes) -> str:
    if not notes:
        return f"{path}: the file holds no programs"
    said = "; ".join(f"{what}: {count}" for what, count in notes.explained().items())
    return notes.only_reason() or f"{path}: no program is left to run ({said})"


def _format(entry: Fields) -> str:
    keys = entry.values.keys()
    if {"results", "programs", "engine"} <= keys:
        raise entry.complain(
            "this is what `agentrt run --json` prints, which has no single calls: "
            "give the file that `agentrt run --dag FILE.json` writes"
        )
    if "nodes" in keys:
        return "DAGs"
    if "calls" in keys:
        return "sessions"
    raise entry.complain(
        "of no known format: an agent session has 'calls', a DAG of `agentrt run --dag` 'nodes'"
    )


def _stem(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    return name.rsplit(".", 1)[0] or name


def _unique(path: Path, programs: Sequence[ProgramShape]) -> None:
    counts = Counter(program.program_id for program in programs)
    program_id, count = counts.most_common(1)[0]
    if count > 1:
        raise ConfigError(f"{path}: {count} programs have the id {program_id!r}: name them apart")
