"""Load generators of other projects: the command line of each generator, and the reader of its
report.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrt.errors import UsageError
from benchmarks.harness import Figures

CONVERSATIONS, TURNS, AT_ONCE = 8, 3, 4
CALLS = CONVERSATIONS * TURNS
PROMPT, ANSWER, BLOCK = 64, 16, 32
"""The numbers of tokens of a turn's prompt, of an answer, and of a block with one hash in a
trace.
"""
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""``vllm bench serve``. With vLLM's build for CPUs, it does not start as a command."""


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


@dataclass(frozen=True, slots=True)
class Generator:
    """A load generator. ``program`` is a file in the folder ``bin`` of the generator's own
    environment, with its first arguments; it is empty for vLLM's own generator, which runs in this
    environment. ``arguments`` makes the further arguments for a target. ``report`` is the name of
    the file with the generator's report, and ``read`` converts the report to figures.
    """

    package: str
    program: tuple[str, ...]
    arguments: Callable[[Target], Sequence[str]]
    report: str
    read: Callable[[Any], Figures]

    def command(self, clients: Path, target: Target) -> list[str]:
        """Return the command line. Raises `UsageError` if the folder ``clients`` does not have the
        generator.
        """
        if not self.program:
            return [sys.executable, "-c", BENCH_SERVE, *self.arguments(target)]
        program = clients.absolute() / self.package / "bin" / self.program[0]
        if not program.exists():
            raise UsageError(f"{program} is missing; docs/benchmarks.md says how to install it")
        return [str(program), *self.program[1:], *self.arguments(target)]

    def is_in(self, clients: Path) -> bool:
        """Return whether the folder ``clients`` has the generator."""
        return (clients / self.package).is_dir()

    def label(self, clients: Path) -> str:
        """Return the name of the generator with its version."""
        if not self.program:
            import vllm

            return f"vllm bench serve {vllm.__version__}"
        name = self.package.replace("-", "_")
        [package] = clients.glob(f"{self.package}/lib/python*/site-packages/{name}-*.dist-info")
        return f"{self.package} {package.stem.removeprefix(f'{name}-')}"

    def figures(self, folder: Path) -> Figures:
        """Read the generator's report: the number of ``calls`` that were answered, the number of
        calls that ``failed``, the medians of ``ttft`` and ``latency`` in ms, and the ``rate`` in
        calls per second.
        """
        return self.read(json.loads((folder / self.report).read_text("utf-8")))


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


def _guidellm(target: Target) -> Sequence[str]:
    data = f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER},turns={TURNS}"
    return (
        *("--backend", f"kind=openai_http,target={target.url},model={target.model}"),
        *("--tokenizer", f"kind=hf_auto,model={target.tokenizer}", "--data", data),
        *("--profile", f"kind=concurrent,streams={AT_ONCE}", "--seed", "kind=static,value=1"),
        *("--constraint", f"kind=max_requests,count={CALLS}", "--disable-console"),
        *("--output", f"kind=json,path={target.folder}/guidellm.json"),
    )


def _inference_perf(target: Target) -> Sequence[str]:
    def fixed(tokens: int) -> dict[str, Any]:
        return {"type": "fixed", "min": tokens, "max": tokens, "mean": tokens}

    conversations = {
        "seed": 1,
        "num_conversations": CONVERSATIONS,
        "shared_system_prompt_len": BLOCK,
        "turns_per_conversation": fixed(TURNS),
        "input_tokens_per_turn": fixed(PROMPT),
        "output_tokens_per_turn": fixed(ANSWER),
    }
    stage = {"num_requests": CALLS, "concurrency_level": AT_ONCE}
    server = {"type": "vllm", "model_name": target.model, "base_url": target.url}
    settings = {
        "api": {"type": "completion", "streaming": True, "session_id_header_key": "x-session-id"},
        "server": {**server, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": target.tokenizer},
        "load": {"type": "concurrent", "num_workers": 1, "stages": [stage]},
        "data": {"type": "conversation_replay", "conversation_replay": conversations},
        "storage": {"local_storage": {"path": str(target.folder)}},
    }
    config = target.folder / "inference-perf.yml"
    config.write_text(json.dumps(settings), "utf-8")  # JSON is YAML, too
    return ("--config_file", str(config))


def _figures(calls: float, failed: float, ms: Iterable[float], rate: float) -> Figures:
    ttft, latency = ms
    return {"calls": calls, "failed": failed, "ttft": ttft, "latency": latency, "rate": rate}


def _of_vllm(report: Any) -> Figures:
    ms = (report[f"median_{name}_ms"] for name in ("ttft", "e2el"))
    return _figures(report["completed"], report["failed"], ms, report["request_throughput"])


def _of_aiperf(report: Any) -> Figures:
    failed = sum(error["count"] for error in report["error_summary"])
    ms = (report[name]["p50"] for name in ("time_to_first_token", "request_latency"))
    return _figures(report["request_count"]["avg"], failed, ms, report["request_throughput"]["avg"])


def _of_guidellm(report: Any) -> Figures:
    metrics = report["benchmarks"][0]["metrics"]
    count = metrics["request_totals"]
    parts = ("time_to_first_token_ms", "request_latency", "requests_per_second")
    ttft, latency, rate = (metrics[name]["successful"] for name in parts)
    failed = count["total"] - count["successful"]
    return _figures(
        count["successful"], failed, (ttft["median"], latency["median"] * 1e3), rate["mean"]
    )


def _of_inference_perf(report: Any) -> Figures:
    done = report["successes"]
    latency = done["latency"]
    ms = (latency[name]["median"] * 1e3 for name in ("time_to_first_token", "request_latency"))
    rate = done["throughput"]["requests_per_sec"]
    return _figures(done["count"], report["failures"]["count"], ms, rate)


_EACH = (
    Generator("vllm", (), _vllm, "bench.json", _of_vllm),
    Generator("aiperf", ("aiperf", "profile"), _aiperf, "profile_export_aiperf.json", _of_aiperf),
    Generator("guidellm", ("guidellm", "run"), _guidellm, "guidellm.json", _of_guidellm),
    Generator(
        "inference-perf",
        ("inference-perf",),
        _inference_perf,
        "summary_lifecycle_metrics.json",
        _of_inference_perf,
    ),
)
GENERATORS = {generator.package: generator for generator in _EACH}
"""The generators by the name of their package, which is also their name for ``--only``."""
