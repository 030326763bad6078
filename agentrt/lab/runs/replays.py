"""What recorded programs would have had under other policies: who replays them, and the runs."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrt.lab.oracles import check_policy
from agentrt.lab.outcome import Outcome, Ran, summarize
from agentrt.lab.runs.contenders import Contender, contenders
from agentrt.lab.runs.grid import RunResult, RunSpec, run
from agentrt.lab.workloads.journals import Recording, read_recording
from agentrt.scheduler.config import SchedulerConfig

RECORDED = "recorded"
_PLAIN = ("lru", "off")


@dataclass(frozen=True, slots=True)
class Replayed(RunResult):
    """The recording itself, or a run of its programs; ``outcomes`` are of those that had ended, in
    the order of their ends.
    """

    outcomes: tuple[Outcome, ...] = ()


def replay(spec: RunSpec) -> Replayed:
    """Run the programs of a journal, which the spec's source names, at their times."""
    assert spec.setting.source.path is not None
    recording = read_recording(spec.setting.source.path)
    return ended_of(recording, spec, run(spec, recording.programs))


def ended_of(recording: Recording, spec: RunSpec, ran: Ran) -> Replayed:
    """A run of the recorded programs."""
    known = {one.program_id for one in recording.outcomes}
    ended = tuple(one for one in ran.outcomes if one.program_id in known)
    return Replayed(spec, summarize(ended, ran.counts, ran.busy_s), outcomes=ended)


def as_recorded(recording: Recording, spec: RunSpec) -> Replayed:
    """The recording itself, beside a run of it."""
    accounts = [call.account for call in recording.calls]
    cached, prompt = (
        sum(one.get(name, 0) for one in accounts) for name in ("cached_tokens", "prompt_tokens")
    )
    summary = replace(summarize(recording.outcomes), prefix_hit_share=cached / max(1, prompt))
    itself = replace(spec, contender=Contender(RECORDED, SchedulerConfig()))
    return Replayed(itself, summary, outcomes=recording.outcomes)


def policies(recording: Recording, names: Sequence[str]) -> list[Contender]:
    """Who replays a recording: the recorded policy first, if it is known; the others have its other
    settings, such as quanta. Raises `ConfigError` for one that is not known here.
    """
    if "scheduler" not in recording.engine:
        return contenders(names)
    ours = SchedulerConfig.from_dict({**recording.engine["scheduler"], "history": None})
    check_policy(ours.policy)
    more = [word for word in (ours.retention, ours.admission) if word not in _PLAIN]
    first = Contender("+".join([ours.policy, *more]), ours)
    return [first, *contenders((name for name in names if name != first.name), ours)]


def same_order(recorded: Sequence[Outcome], replayed: Sequence[Outcome]) -> float:
    """The share of pairs of programs that end in the same order in both; 1 for fewer than two."""
    places = {one.program_id: place for place, one in enumerate(replayed)}
    seen, same = list[int](), 0
    for one in recorded:
        same += bisect(seen, places[one.program_id])
        insort(seen, places[one.program_id])
    pairs = len(seen) * (len(seen) - 1) // 2
    return same / pairs if pairs else 1.0
