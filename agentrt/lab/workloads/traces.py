"""A reader of traces, which are recorded programs of agents, as shapes that can be run again.

A trace is a journal, or a file of JSON or JSON lines in one of the `FORMATS`, gzipped or not, or a
folder with such files. Programs that cannot be read are left out and reported.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from agentrt.cli.streams import counted
from agentrt.errors import ConfigError
from agentrt.files import is_database
from agentrt.lab.workloads import bfcl, dagfile, journals, messages, sessions, timed
from agentrt.lab.workloads.fields import LocatedFields, Notes, read_objects
from agentrt.lab.workloads.replay import UNSCALED, Scales
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.texts import BY_CHARACTERS, TokenCounter

Reader = Callable[[Sequence[LocatedFields], str, Scales, Notes], list[ProgramShape]]
"""A function that reads the programs of one file. Its arguments are the objects of the file, the
type that the programs get, the scales, and the notes, which count what was left out, changed or
guessed.
"""

JOURNAL = "journal"
FORMATS: Mapping[str, tuple[frozenset[str], ...]] = {
    "sessions": (frozenset({"calls"}),),
    "dags": (frozenset({"nodes"}),),
    "weka": (frozenset({"requests"}),),
    "mooncake": (frozenset({"timestamp", "hash_ids"}),),
    "timed": (frozenset({"timestamp", "hash_ids"}),),
    "swe": (
        frozenset({"messages", "instance_id"}),
        frozenset({"messages", "trajectory_format"}),
    ),
    "sharegpt": (frozenset({"messages"}),),
    "bfcl": (frozenset({"question"}), frozenset({"input_token_count"})),
}
"""The sets of fields that identify each JSON format. An entry has the first format one of whose
sets is contained in the entry's fields; ``mooncake`` and ``timed`` are distinguished by the size of
their blocks. The module of each format says where the format is defined.
"""
KNOWN = (*FORMATS, JOURNAL)


def named(text: str, known: Container[str] = ()) -> tuple[str, Path] | None:
    """Return the format ("" if it is not named) and the file of ``FORMAT:FILE`` or ``FILE``.

    Returns None for one of the ``known`` names, and for any other single word that is not a file.
    Raises `ConfigError` for a path that does not exist, unless a format is named before it.
    """
    name, colon, rest = text.partition(":")
    if colon and name in KNOWN:
        return name, Path(rest)
    path = Path(text)
    if text not in known and path.exists():
        return "", path
    if colon or path.suffix or len(path.parts) > 1:
        raise ConfigError(
            f"the file {text!r} does not exist; give recorded programs as FILE or FORMAT:FILE, "
            f"with one of the formats {', '.join(KNOWN)}"
        )
    return None


def _readers(count: TokenCounter) -> Mapping[str, Reader]:
    return {
        "sessions": sessions.read,
        "dags": dagfile.read,
        "weka": sessions.read_weka,
        "mooncake": timed.read,
        "timed": partial(timed.read, units=timed.TIMED),
        "swe": partial(messages.read, count=count, tools=True),
        "sharegpt": partial(messages.read, count=count, tools=False),
        "bfcl": partial(bfcl.read, count=count),
    }


OTHER_FORMAT = "entries of another format or of an unknown format, left out"
UNREADABLE = "files that cannot be read, left out"
RENAMED = "programs with an id that another file uses, too, renamed to FILE/ID"


@dataclass(frozen=True, slots=True)
class Trace:
    """The programs of a trace, with their scales.

    ``notes`` counts, by descriptions, everything that was left out, changed or guessed.
    """

    path: str
    format: str
    programs: tuple[ProgramShape, ...]
    scales: Scales
    notes: Mapping[str, int]

    def report(self) -> str:
        """Return a line about the programs and their scales, and a line for each note."""
        calls = [call for program in self.programs for call in program.calls]
        prompt = sum(call.prompt_tokens for call in calls) / len(calls)
        output = sum(call.output_tokens for call in calls) / len(calls)
        head = (
            f"{self.path} ({self.format}): {counted(len(self.programs), 'program')} with "
            f"{counted(len(calls), 'call')}; "
        )
        if self.scales != UNSCALED:
            head += (
                f"contexts x {self.scales.context:g}, outputs x {self.scales.output:g}, gaps x "
                f"{self.scales.gap:g}; then "
            )
        head += f"{prompt:.0f} prompt and {output:.0f} output tokens per call on average"
        return "\n".join([head, *(f"  {label}: {count}" for label, count in self.notes.items())])


def read_programs(
    path: str | os.PathLike[str],
    *,
    as_format: str = "",
    count: TokenCounter = BY_CHARACTERS,
    scales: Scales = UNSCALED,
) -> Trace:
    """Read the programs of a file, or of the files in a folder, in the order of the files. Multiply
    the numbers of tokens and the gaps (the pauses between calls) of the programs by ``scales``.

    ``as_format`` is one of `FORMATS`; by default, the first entry decides. ``count`` counts the
    tokens of texts.

    In journals and the formats ``dags`` and ``sessions``, a prompt cannot become shorter than the
    earlier prompt and output that it contains. So contexts reach their scaled length only if
    outputs are scaled down, too. The notes count the prompts that stay longer than their scaled
    length. An output has at least one token. Arrival times are in seconds after the first program,
    or 0 if the format has no times.

    Programs that cannot be read are left out. The notes count these programs, with the location and
    the fault of the first of them. Programs of different files with the same id are renamed. Raises
    `ConfigError` if no program is left, if two programs of a file have the same id, or if a single
    file cannot be read.
    """
    source = Path(path)
    notes = Notes()
    programs: list[ProgramShape]
    if is_database(source):
        as_format, programs = JOURNAL, journals.read(source, scales, notes)
    else:
        readers = _readers(count)
        by_file: dict[Path, list[ProgramShape]] = {}
        for file, leaving_out in _files(source, notes):
            with leaving_out:
                as_format, entries = _of_one_format(read_objects(file, notes), as_format, notes)
                if entries:
                    by_file[file] = readers[as_format](entries, stem(source), scales, notes)
        programs = _from_first(_told_apart(source, by_file, notes))
    if not programs:
        raise ConfigError(_nothing_left(source, notes))
    _unique(source, programs)
    return Trace(str(source), as_format, tuple(programs), scales, notes.explained())


def _files(source: Path, notes: Notes) -> list[tuple[Path, AbstractContextManager[None]]]:
    """Return the file, or the .json and .jsonl files of a folder (gzipped or not), each with a
    context manager for reading it.

    In a folder, the context manager leaves an unreadable file out and notes this. Raises
    `ConfigError` for a folder without such files.
    """
    if not source.is_dir():
        return [(source, nullcontext())]
    files = [file for file in sorted(source.rglob("*")) if {".json", ".jsonl"} & {*file.suffixes}]
    if not files:
        raise ConfigError(f"the folder {source} has no .json or .jsonl file, gzipped or not")
    return [(file, notes.leaving_out(UNREADABLE)) for file in files]


def _of_one_format(
    objects: Sequence[LocatedFields], name: str, notes: Notes
) -> tuple[str, list[LocatedFields]]:
    """Return the format and the entries that have it. The format is ``name``, or by default the
    format of the first entry whose format is known.
    """
    entries = []
    for entry in objects:
        with notes.leaving_out(OTHER_FORMAT):
            name = name or _format(entry)
            if not any(entry.values.keys() >= fields for fields in FORMATS.get(name, ())):
                raise entry.complain(f"this entry does not have the fields of the format {name}")
            entries.append(entry)
    return name, entries


def _nothing_left(path: Path, notes: Notes) -> str:
    if not notes:
        return f"{path}: the file holds no programs"
    said = "; ".join(f"{label}: {count}" for label, count in notes.explained().items())
    return notes.only_reason() or f"{path}: no program is left to run ({said})"


def _format(entry: LocatedFields) -> str:
    keys = entry.values.keys()
    if {"results", "programs", "engine"} <= keys:
        raise entry.complain(
            "this is the output of `agentrt run --json`, which does not list the calls of each "
            "program; give the file that `agentrt run --dag FILE.json` writes"
        )
    for name, alternatives in FORMATS.items():
        if any(fields <= keys for fields in alternatives):
            in_short_blocks = name == "mooncake" and not timed.has_blocks(entry.values, 512)
            return "timed" if in_short_blocks else name
    raise entry.complain(
        f"unknown format with the fields {', '.join(list(keys)[:5]) or '(none)'}; known formats: "
        + "; ".join(
            f"{name} has {', '.join(sorted(alternatives[0]))}"
            for name, alternatives in FORMATS.items()
        )
    )


def stem(path: Path) -> str:
    """Return the name of a file without its endings."""
    name = path.name.removesuffix(".gz")
    return name.rsplit(".", 1)[0] or name


def _told_apart(
    folder: Path, by_file: Mapping[Path, Sequence[ProgramShape]], notes: Notes
) -> list[ProgramShape]:
    """Return the programs of all files. An id that occurs in several files of a folder gets the
    file's path before it, because ids are often unique only in one file.
    """
    files = Counter(
        name for shapes in by_file.values() for name in {program.program_id for program in shapes}
    )
    programs: list[ProgramShape] = []
    for file, made in by_file.items():
        for program in made:
            name = program.program_id
            if files[name] > 1:
                notes[RENAMED] += 1
                name = f"{file.relative_to(folder).as_posix()}/{name}"
            programs.append(replace(program, program_id=name))
    return programs


def _from_first(programs: Sequence[ProgramShape]) -> list[ProgramShape]:
    """Return the programs with arrival times that count from the arrival of the first program."""
    first_s = min((program.arrives_s for program in programs), default=0.0)
    return [program.arriving(program.arrives_s - first_s) for program in programs]


def _unique(path: Path, programs: Sequence[ProgramShape]) -> None:
    counts = Counter(program.program_id for program in programs)
    program_id, count = counts.most_common(1)[0]
    if count > 1:
        raise ConfigError(
            f"{path}: {count} programs have the id {program_id!r}; give each its own id"
        )
