"""Other people's load generators on a server's process, and the programs that they made there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.processes import CLIENTS, environment, installed, run
from tests.engine.served import Serving

CONVERSATIONS, TURNS, AT_ONCE = 8, 3, 4
CALLS = CONVERSATIONS * TURNS
PROMPT, ANSWER, BLOCK = 64, 16, 32
"""The numbers of tokens of a turn's prompt, of an answer, and of a block with one hash in a
trace.
"""
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


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a load: the URL of a server, the model's name at this server, the ``tokenizer``
    that counts tokens (a folder or a name on the Hugging Face hub), and a ``folder`` for the files
    of the run.
    """

    url: str
    model: str
    tokenizer: str
    folder: Path


async def drive(name: str, serving: Serving, folder: Path) -> list[dict[str, Any]]:
    """The programs of a run that reports all its calls and metrics, and no failure."""
    target, before = _target(serving, folder), serving.programs()
    generator = _GENERATORS[name]
    if name == "vllm":
        await _bench_serve(serving, target)
    else:
        installed(CLIENTS / name / "bin" / name)
        program = str(CLIENTS / name / "bin" / name)
        command = (program, "profile", *generator.arguments(target), "--api-key", serving.key)
        ended = await run(*command, folder=folder, environ=environment(folder, **_PATIENT))
        assert ended.code == 0, ended
    figures = generator.read(json.loads((folder / generator.report).read_text("utf-8")))
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
        await main_async(parser.parse_args([*_vllm(target), *own]))


def _vllm(target: Target) -> Sequence[str]:
    """Write a trace of requests with growing prompts, a tenth of a second apart. Return the
    arguments with which the generator reads this trace.
    """
    trace = target.folder / "trace.jsonl"
    lines = []
    for at in range(CALLS):
        turn, number = divmod(at, CONVERSATIONS)
        hashes = [number * 1000 + block for block in range((turn + 1) * PROMPT // BLOCK)]
        line = {"timestamp": at * 100, "input_length": len(hashes) * BLOCK, "hash_ids": hashes}
        lines.append(json.dumps({**line, "output_length": ANSWER}))
    trace.write_text("\n".join(lines), "utf-8")
    return (
        *("--base-url", target.url, "--model", target.model, "--tokenizer", target.tokenizer),
        *("--dataset-name", "timed_trace", "--dataset-path", str(trace)),
        *("--timed-trace-chunk-hash-size", str(BLOCK), "--timed-trace-sec-multiplier", "0.001"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--disable-tqdm"),
        *("--save-result", "--result-filename", str(target.folder / "bench.json")),
    )


def _aiperf(target: Target) -> Sequence[str]:
    return (
        *("--url", target.url, "--model", target.model, "--tokenizer", target.tokenizer),
        *("--endpoint-type", "chat", "--streaming", "--concurrency", str(AT_ONCE)),
        *("--num-sessions", str(CONVERSATIONS), "--session-turns-mean", str(TURNS)),
        *("--session-turns-stddev", "0", "--isl", str(PROMPT), "--osl", str(ANSWER)),
        *("--extra-inputs", "ignore_eos:true", "--random-seed", "1", "--ui", "none"),
        *("--no-gpu-telemetry", "--workers-max", "1", "--record-processors", "1"),
        *("--artifact-dir", str(target.folder)),
    )


def _figures(calls: float, failed: float, ms: Iterable[float], rate: float) -> dict[str, float]:
    ttft, latency = ms
    return {"calls": calls, "failed": failed, "ttft": ttft, "latency": latency, "rate": rate}


def _of_vllm(report: Any) -> dict[str, float]:
    ms = (report[f"median_{name}_ms"] for name in ("ttft", "e2el"))
    return _figures(report["completed"], report["failed"], ms, report["request_throughput"])


def _of_aiperf(report: Any) -> dict[str, float]:
    failed = sum(error["count"] for error in report["error_summary"])
    ms = (report[name]["p50"] for name in ("time_to_first_token", "request_latency"))
    return _figures(report["request_count"]["avg"], failed, ms, report["request_throughput"]["avg"])


class _Generator(NamedTuple):
    """A generator's arguments for a target, and its report: the file, and the reader."""

    arguments: Callable[[Target], Sequence[str]]
    report: str
    read: Callable[[Any], dict[str, float]]


_GENERATORS = {
    "vllm": _Generator(_vllm, "bench.json", _of_vllm),
    "aiperf": _Generator(_aiperf, "profile_export_aiperf.json", _of_aiperf),
}
