"""Replays of recorded programs under other policies: the policies, and their runs."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrt.lab.oracles import check_policy
from agentrt.lab.outcome import Outcome, RunOutcome, summarize
from agentrt.lab.runs.contenders import RUN, Contender, check_parts, contenders
from agentrt.lab.runs.grid import RunResult, RunSpec, run
from agentrt.lab.workloads.journals import Recording, read_recording
from agentrt.scheduler.config import SchedulerConfig

RECORDED = "recorded"
_PLAIN = ("lru", "off")


@dataclass(frozen=True, slots=True)
class Replayed(RunResult):
    """The recording itself, or a run of its programs. ``outcomes`` has the outcomes of the programs
    that had ended in the recording, in the order in which they ended in this run.
    """

    outcomes: tuple[Outcome, ...] = ()


def replay(spec: RunSpec) -> Replayed:
    """Run the programs of the journal that the spec's source names, at their recorded arrival
    times.
    """
    assert spec.setting.source.path is not None
    recording = read_recording(spec.setting.source.path)
    return ended_of(recording, spec, run(spec, recording.programs))


def ended_of(recording: Recording, spec: RunSpec, ran: RunOutcome) -> Replayed:
    """Return a run of the recorded programs, without the programs that had not ended in the
    recording.
    """
    known = {outcome.program_id for outcome in recording.outcomes}
    ended = tuple(outcome for outcome in ran.outcomes if outcome.program_id in known)
    return Replayed(spec, summarize(ended), outcomes=ended)


def as_recorded(recording: Recording, spec: RunSpec) -> Replayed:
    """Return the recording itself in the form of a run."""
    itself = replace(spec, contender=Contender(RECORDED, SchedulerConfig()))
    return Replayed(itself, summarize(recording.outcomes), outcomes=recording.outcomes)


def policies(recording: Recording, names: Sequence[str]) -> list[Contender]:
    """Return the contenders of a replay. The recorded policy comes first, if it is known.

    The other policies get the recorded values of all other settings, such as quanta. Raises
    `ConfigError` for an unknown policy, and for size hints, which a recording does not have.
    """
    if "scheduler" not in recording.engine:
        return _checked(contenders(names))
    ours = SchedulerConfig.from_dict({**recording.engine["scheduler"], "history": None})
    check_policy(ours.policy)
    suffixes = [word for word in (ours.retention, ours.admission) if word not in _PLAIN]
    first = Contender("+".join([ours.policy, *suffixes]), ours)
    others = contenders((name for name in names if name != first.name), ours)
    return [first, *_checked(others)]


def _checked(policies: list[Contender]) -> list[Contender]:
    check_parts(policies, RUN)
    return policies


def same_order(recorded: Sequence[Outcome], replayed: Sequence[Outcome]) -> float:
    """Return the share of pairs of programs that end in the same order in both runs; 1 for fewer
    than two programs.
    """
    places = {outcome.program_id: place for place, outcome in enumerate(replayed)}
    seen, same = list[int](), 0
    for outcome in recorded:
        same += bisect(seen, places[outcome.program_id])
        insort(seen, places[outcome.program_id])
    pairs = len(seen) * (len(seen) - 1) // 2
    return same / pairs if pairs else 1.0
