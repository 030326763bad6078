"""Other people's load generators on a server's process, and the programs that they made there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.generators.others import CALLS, CONVERSATIONS, GENERATORS, PROMPT, TURNS, Target
from tests.clients.processes import CLIENTS, environment, installed, run
from tests.engine.served import Serving

MADE = {"vllm": [1] * CALLS, "aiperf": [TURNS] * CONVERSATIONS}
"""The calls of each program: a timed trace has no conversations, and aiperf names them."""
SHARED = PROMPT * CONVERSATIONS
"""At least so many tokens are not computed again: later prompts begin as earlier ones."""
_PATIENT = {
    "AIPERF_SERVICE_COMMAND_RESPONSE_TIMEOUT": "240",
    "AIPERF_SERVICE_REGISTRATION_MAX_ATTEMPTS": "240",
    "AIPERF_SERVICE_REGISTRATION_TIMEOUT": "240",
    "AIPERF_SERVICE_START_TIMEOUT": "240",
}
"""aiperf is six processes, which else wait half a minute for each other."""


async def drive(name: str, serving: Serving, folder: Path) -> list[dict[str, Any]]:
    """The programs of a run that reports all its calls and metrics, and no failure."""
    target, before = _target(serving, folder), serving.programs()
    if name == "vllm":
        await _bench_serve(serving, target)
    else:
        installed(CLIENTS / name / "bin" / name)
        command = *GENERATORS[name].command(CLIENTS, target), "--api-key", serving.key
        ended = await run(*command, folder=folder, environ=environment(folder, **_PATIENT))
        assert ended.code == 0, ended
    figures = GENERATORS[name].figures(folder)
    assert (figures["calls"], figures["failed"]) == (CALLS, 0)
    assert all(value > 0 for name, value in figures.items() if name != "failed")
    return [one for name, one in serving.programs().items() if name not in before]


def _target(serving: Serving, folder: Path) -> Target:
    return Target(serving.url, "tiny", str(serving.log.parent / "tiny"), folder)


async def _bench_serve(serving: Serving, target: Target) -> None:
    """In this process, which has vLLM's imports."""
    from vllm.benchmarks.serve import add_cli_args, main_async
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    own = ("--timed-trace-sec-multiplier", "0.0001")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", serving.key)
        await main_async(parser.parse_args([*GENERATORS["vllm"].arguments(target), *own]))
