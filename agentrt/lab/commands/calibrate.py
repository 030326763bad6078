"""``agentrt calibrate``, which measures how long an engine's steps take, for studies in virtual
time.

The command runs a designed set of calls, with prompts of several lengths, batches of several sizes,
and short and long contexts. Each step is timed, and a step-time model is fitted to the times.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import click

from agentrt.cli.options import Options, RunCommand, batch_option, model_option
from agentrt.cli.signals import Interrupts
from agentrt.cli.streams import show_json
from agentrt.cli.values import check_output
from agentrt.executors.base import last_reply
from agentrt.executors.vllm.options import EngineOptions, check_model, has_gpus
from agentrt.lab.commands.options import note, write
from agentrt.lab.engine.engines import LabEngine, StockEngine, started
from agentrt.lab.engine.hardware import hardware
from agentrt.lab.engine.step_time import Sample, StepTimeModel, StepWork, fit
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.machine import vllm_version
from agentrt.request import Call, CallSpec, Identity
from agentrt.scheduler.config import SchedulerConfig

# Token ids that every vocabulary has, and that are rarely special tokens.
_TOKENS = range(100, 500)
_EPILOG = """\b
Examples:
  agentrt calibrate --out cpu.json
  agentrt calibrate --model Qwen/Qwen3-0.6B --max-num-seqs 32 --out gpu.json
  agentrt calibrate --json -- --dtype float32 | tail -n 1

\b
Run nothing else on the machine meanwhile. Exit codes: 0 done; 1 the engine failed; 2 bad usage;
130 Ctrl-C. The table and the JSON object go to stdout, everything else to
stderr.
"""


_measurement, _output = Options("Measurement"), Options("Output")


class EngineCommand(RunCommand):
    """A command that has an engine but takes no program."""

    TARGETS = ""


@click.command(cls=EngineCommand, epilog=_EPILOG)
@model_option
@batch_option
@_measurement.count("--rounds", "Run the designed calls N times.", default=2)
@_output.file(
    "--out",
    "File (.json) for the step-time model, for --step-time of agentrt simulate run and agentrt "
    "journal replay.",
    dir_okay=True,
)
@_output.flag("--json", "Print the step-time model as one JSON object on the last line.", "as_json")
@_output.flag("--verbose", "Show vLLM's own log on stderr.")
def calibrate(engine_flags: tuple[str, ...], **options: Any) -> None:
    """Measure how long steps of an engine take on this machine.

    A designed set of calls runs on an embedded engine: batches of several sizes, prompts
    of several lengths. A linear model is fitted to the seconds of the steps: a base for each step,
    and a coefficient for each token of prompt, each call that decodes, and each token of context.

    Arguments after -- are passed to vLLM, as flags of 'vllm serve'.
    """
    check_output("--out", options["out"], (".json",))
    if options["model"] is not None:
        check_model(options["model"])
    engine = EngineOptions(
        model=options["model"],
        max_num_seqs=options["max_num_seqs"],
        flags=engine_flags,
        verbose=options["verbose"],
    )
    model = Interrupts(note).run(_calibrate(engine, options["rounds"]))
    click.echo(table(model))
    if options["as_json"]:
        show_json(asdict(model))
    # Last, so that the measurement is shown even if the file cannot be written.
    write(options["out"], model.as_text())
    if options["out"] is not None:
        note(f"written: {options['out']}")


async def _calibrate(options: EngineOptions, rounds: int) -> StepTimeModel:
    engine = LabEngine(options)
    if find_spec("vllm") is None:  # the engine's own error names an option of other commands
        raise ModuleNotFoundError("calibrate needs vLLM", name="vllm")
    note("loading the engine")
    async with started(engine, verbose=options.verbose):
        return await Calibration(engine).run(rounds)


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement: ``batch`` calls at a time, each with ``prompt`` and ``output`` tokens."""

    batch: int
    prompt: int
    output: int


def design(max_num_seqs: int, max_model_len: int, *, large: bool = False) -> list[Case]:
    """Return the cases for an engine of this size. Most cases have a single kind of work.

    Contexts are short by default, so that a CPU does not compute prompts for minutes. A ``large``
    machine also gets long contexts, because short contexts do not measurably lengthen its steps.
    """
    cases = [Case(batch, 16, 8) for batch in (1, 2, 4, 8, 16, max_num_seqs)]
    cases += [Case(1, prompt, 2) for prompt in (32, 64, 128, 256, 512)]
    cases += [Case(1, 1536, 8), Case(2, 768, 6), Case(4, 384, 6), Case(8, 192, 6)]
    if large:
        cases += [Case(1, prompt, 2) for prompt in (2048, 4096, 8192)]
        cases += [Case(16, 4096, 16), Case(32, 8192, 16), Case(max_num_seqs, 512, 16)]
    longest = max_model_len - max(case.output for case in cases)
    fitting = (
        Case(min(case.batch, max_num_seqs), min(case.prompt, longest), case.output)
        for case in cases
    )
    return list(dict.fromkeys(fitting))


class Calibration:
    """A calibration of a started engine. If the engine has agentrt's scheduler, the calibration
    sets its policy to ``fcfs``.
    """

    def __init__(self, engine: LabEngine) -> None:
        self._engine = engine
        self._rng = random.Random(0)
        self._calls = 0

    async def run(self, rounds: int) -> StepTimeModel:
        """Run the cases ``rounds`` times, and fit a model. Raises `ConfigError` for too few
        steps.
        """
        engine = self._engine
        if not isinstance(engine, StockEngine):  # a stock engine has no other policy
            await engine.configure(SchedulerConfig(policy="fcfs"))
        sizes = engine.sizes()
        cases = design(sizes["max_num_seqs"], sizes["max_model_len"], large=has_gpus())
        await self._run_case(Case(min(2, sizes["max_num_seqs"]), 16, 4))
        await engine.probe("start", keep_steps=True)
        for number in range(rounds):
            note(f"round {number + 1} of {rounds}: {len(cases)} cases")
            for case in cases:
                await self._run_case(case)
        seen = await engine.probe("stop")
        measured = [Sample(StepWork(*work), seconds) for *work, seconds in seen["samples"]]
        return fit(
            measured[1:],  # the first step warms up caches and memory
            model=engine.model.rstrip("/").split("/")[-1],
            hardware=hardware(),
            engine=f"vLLM {vllm_version()}",
        )

    async def _run_case(self, case: Case) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(case.batch):
                tasks.create_task(self._run_call(case))

    async def _run_call(self, case: Case) -> None:
        self._calls += 1
        spec = CallSpec(
            prompt_token_ids=tuple(self._rng.choices(_TOKENS, k=case.prompt)),
            max_tokens=case.output,
            ignore_eos=True,
        )
        name = f"calibrate-{self._calls}"
        call = Call(Identity(name, name, "calibrate"), spec)
        await last_reply(self._engine.generate(call, stream=False))
        await self._engine.end_program(name)


def table(model: StepTimeModel) -> str:
    """Return the model as a Markdown table, in readable units."""
    rows = [
        ("a step", f"{model.base_s * 1e3:.3f} ms"),
        ("a token of prompt", f"{model.per_prefill_token_s * 1e6:.1f} us"),
        ("a call that decodes", f"{model.per_decode_s * 1e6:.1f} us"),
        ("1000 tokens of context", f"{model.per_context_token_s * 1e9:.1f} us"),
        ("median relative error", f"{100 * (model.error or 0):.1f} %"),
        ("steps measured", str(model.samples)),
    ]
    about = f"{model.model} on {model.hardware}, {model.engine}"
    return f"{about}\n\n{markdown(('what', 'takes'), rows)}"
