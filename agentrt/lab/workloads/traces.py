"""Programs from files: what agents really did, as shapes that can be run again.

A file is a journal, or JSON or JSON lines, gzipped or not, of one of the formats of `FORMATS`. A
folder is all such files in it. What cannot be read is left out and reported, as long as something
good is left.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentrt.errors import ConfigError
from agentrt.files import is_database
from agentrt.lab.workloads import bfcl, dagfile, journals, messages, sessions, texts, timed
from agentrt.lab.workloads.fields import Fields, Notes, read_objects
from agentrt.lab.workloads.replay import UNSCALED, Scales
from agentrt.lab.workloads.shape import ProgramShape

Reader = Callable[[Sequence[Fields], str, Scales, Notes], list[ProgramShape]]
"""From the objects of a file, a type for its programs, and scales: the programs. What is
left out, changed or guessed is counted in the last argument, under words for people."""

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
"""Those of JSON, by the fields that an entry has: the first that fits is meant. Their modules say
where each is defined."""
KNOWN = (*FORMATS, JOURNAL)


def named(text: str, known: Container[str] = ()) -> tuple[str, Path] | None:
    """The format, if it is said, and the file of ``FORMAT:FILE`` or ``FILE``.

    None for what is the name of something else, as those that are ``known``. Raises `ConfigError`
    for a file that is not there.
    """
    name, colon, rest = text.partition(":")
    if colon and name in KNOWN:
        return name, Path(rest)
    path = Path(text)
    if text not in known and path.exists():
        return "", path
    if colon or path.suffix or len(path.parts) > 1:
        raise ConfigError(
            f"{text!r}: there is no such file; recorded programs are FILE or FORMAT:FILE, and the "
            f"formats are {', '.join(KNOWN)}"
        )
    return None


def _readers(count: texts.Counter) -> Mapping[str, Reader]:
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


OTHER_FORMAT = "entries of another or of no known format, left out"
UNREADABLE = "files that cannot be read, left out"


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
    as_format: str = "",
    tokenizer: str = "",
    scales: Scales = UNSCALED,
) -> Trace:
    """The programs of a file or a folder, in its order, with their tokens and gaps multiplied.

    ``as_format`` is one of `FORMATS`; else the first entry says it. ``tokenizer`` is the model
    whose tokens texts are counted in.
    A prompt holds the earlier prompt and output that it begins with, so contexts shrink in full
    only if outputs shrink with them; where a prompt had to stay longer than ``scales`` say, it is
    counted. An output has at least a token.
    Programs arrive when they did, in seconds after the first, or at 0 where no format says it.

    What cannot be read is left out. The notes count it, and say where the first one is and what is
    wrong with it.

    Raises `ConfigError`, which names file and line, where nothing is left.
    """
    source = Path(path)
    notes = Notes()
    programs: list[ProgramShape] = []
    if is_database(source):
        as_format, programs = JOURNAL, journals.read(source, scales, notes)
    else:
        readers = _readers(texts.counter(tokenizer))
        for file, leaving_out in _files(source, notes):
            with leaving_out:
                as_format, entries = _of_one_format(read_objects(file, notes), as_format, notes)
                if entries:
                    programs += readers[as_format](entries, stem(source), scales, notes)
    if not programs:
        raise ConfigError(_nothing_left(source, notes))
    _unique(source, programs)
    return Trace(str(source), as_format, tuple(programs), scales, notes.explained())


def _files(source: Path, notes: Notes) -> list[tuple[Path, AbstractContextManager[None]]]:
    """The files of a folder, each of which may be left out, or the file itself."""
    if not source.is_dir():
        return [(source, nullcontext())]
    found = [one for one in sorted(source.rglob("*")) if {".json", ".jsonl"} & {*one.suffixes}]
    if not found:
        raise ConfigError(f"{source}: this folder has no file that ends in .json or .jsonl")
    return [(one, notes.leaving_out(UNREADABLE)) for one in found]


def _of_one_format(objects: Sequence[Fields], name: str, notes: Notes) -> tuple[str, list[Fields]]:
    """The format that is said, or that of the first entry that has a known one; and the entries
    that have it.
    """
    found = []
    for one in objects:
        with notes.leaving_out(OTHER_FORMAT):
            name = name or _format(one)
            if not any(one.values.keys() >= fields for fields in FORMATS.get(name, ())):
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
    for name, alternatives in FORMATS.items():
        if any(fields <= keys for fields in alternatives):
            in_short_blocks = name == "mooncake" and not timed.has_blocks(entry.values, 512)
            return "timed" if in_short_blocks else name
    raise entry.complain(
        f"of no known format, by its fields ({', '.join(list(keys)[:5]) or 'none'}): "
        "of those known, "
        + "; ".join(
            f"{name} has {', '.join(sorted(alternatives[0]))}"
            for name, alternatives in FORMATS.items()
        )
    )


def stem(path: Path) -> str:
    """A file's name without its endings."""
    name = path.name.removesuffix(".gz")
    return name.rsplit(".", 1)[0] or name


def _unique(path: Path, programs: Sequence[ProgramShape]) -> None:
    counts = Counter(program.program_id for program in programs)
    program_id, count = counts.most_common(1)[0]
    if count > 1:
        raise ConfigError(f"{path}: {count} programs have the id {program_id!r}: name them apart")
