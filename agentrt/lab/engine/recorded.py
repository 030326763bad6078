"""What a recording of a scheduler holds, and how to read it. Needs no vLLM.

`agentrt.lab.engine.recording` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.engine.step_time import Sample, StepWork

FORMAT = 1
Event = Mapping[str, Any]
"""One line of a recording: plain values, ``event`` is its kind.

``start``: the engine's dimensions and the scheduler's settings. ``add``: a request,
with its prompt's token ids. ``schedule``: what a step runs, {request: tokens}, what of
it was computed before, and who was preempted. ``update``: the tokens that came out of
step ``step``, and who finished. ``finish``: requests aborted. ``control``: a client's
message. ``reset``: the prefix cache was emptied. ``stop``: how much there was.
``clock`` are the scheduler's clock readings within an event, in seconds.
"""


def read(path: Path) -> Iterator[Event]:
    """The events of a recording. Raises `ConfigError` for a file that is none."""
    try:
        with path.open(encoding="utf-8") as lines:
            events = (json.loads(line) for line in lines)
            first: Event = next(events, {})
            if first.get("event") != "start" or first.get("format") != FORMAT:
                raise ConfigError(f"{str(path)!r} is no recording of format {FORMAT}")
            yield first
            yield from events
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{str(path)!r} is no recording: {error}") from error


def samples(events: Iterable[Event]) -> list[Sample]:
    """The recorded steps with the seconds that each held the model executor.

    The last clock reading of ``schedule`` is when the step left; the first of
    ``update`` when its output came. With steps in flight one begins as the other ends.
    """
    found: list[Sample] = []
    left: dict[int, tuple[StepWork, float]] = {}
    last = 0.0
    for event in events:
        if event["event"] == "schedule" and event["scheduled"]:
            work = StepWork.of(event["scheduled"], event["computed"])
            left[event["step"]] = work, event["clock"][-1]
        elif event["event"] == "update" and event["step"] in left:
            work, at = left.pop(event["step"])
            now = event["clock"][0]
            found.append(Sample(work, now - max(at, last)))
            last = now
    return found
