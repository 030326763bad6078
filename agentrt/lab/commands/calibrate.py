"""``agentrt calibrate``: how long an engine's steps take here, for studies in virtual time."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.cli.options import RunCommand, RunOption, batch_option, model_option

if TYPE_CHECKING:
    from agentrt.executors.vllm.options import EngineOptions
    from agentrt.lab.engine.step_time import StepTimeModel

_EPILOG = """\b
Examples:
  agentrt calibrate --out cpu.json
  agentrt calibrate --model Qwen/Qwen3-0.6B --max-num-seqs 32 --out gpu.json
  agentrt calibrate --json -- --dtype float32 | tail -n 1

\b
Let nothing else run meanwhile. Exit codes: 0 done; 1 the engine failed; 2 bad usage;
130 Ctrl-C. The table goes to stdout, all else to stderr.
"""


class EngineCommand(RunCommand):
    """A command about an engine, without a program."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "[-- VLLM_FLAGS]"]


@click.command(cls=EngineCommand, epilog=_EPILOG)
@model_option
@batch_option
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=2,
    metavar="N",
    cls=RunOption,
    group="Measurement",
    help="Run the designed calls N times.  [default: 2]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    cls=RunOption,
    group="Output",
    help="Write the step-time model, for engines in virtual time.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    cls=RunOption,
    group="Output",
    help="Print the step-time model as one JSON object, as the last line.",
)
@click.option(
    "--verbose", is_flag=True, cls=RunOption, group="Output", help="Show vLLM's own log on stderr."
)
def calibrate(engine_flags: tuple[str, ...], **options: Any) -> None:
    """Measure how long steps of an engine take on this machine.

    A designed set of calls runs on an embedded engine: batches of several sizes, prompts
    of several lengths. To each step's seconds a line is fitted: so much for a step, and
    for each token of prompt, each call that decodes, and each token of context.

    What follows -- goes to vLLM as it is, as flags of 'vllm serve'.
    """
    out = options["out"]
    _check_out(out)
    model = _measure(_engine_options(options, engine_flags), options["rounds"])
    from agentrt.lab.bench.calibrate import table

    if out is not None:
        model.save(out)
        _note(f"written: {out}")
    click.echo(table(model))
    if options["as_json"]:
        click.echo(json.dumps(asdict(model)))


def _check_out(path: Path | None) -> None:
    """Refuse what could not be written before anything runs."""
    from agentrt.errors import ConfigError

    if path is None:
        return
    if path.suffix != ".json" or path.is_dir():
        raise ConfigError(f"--out {str(path)!r}: name a file that ends in .json")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--out {str(path)!r}: there is no folder {str(path.parent)!r}; make it")


def _engine_options(options: dict[str, Any], flags: tuple[str, ...]) -> EngineOptions:
    from agentrt.executors.vllm.options import EngineOptions, check_model

    if options["model"] is not None:
        check_model(options["model"])
    return EngineOptions(
        model=options["model"],
        max_num_seqs=options["max_num_seqs"],
        flags=flags,
        verbose=options["verbose"],
    )


def _measure(options: EngineOptions, rounds: int) -> StepTimeModel:
    from agentrt.cli.signals import Interrupts

    return Interrupts(_note).run(_calibrate(options, rounds))


async def _calibrate(options: EngineOptions, rounds: int) -> StepTimeModel:
    from agentrt.cli.engine_log import EngineLog, root_cause
    from agentrt.errors import EngineStartError
    from agentrt.lab.bench.calibrate import Calibration
    from agentrt.lab.engine.engines import LabEngine

    engine = LabEngine(options)
    with EngineLog(verbose=options.verbose) as log:
        try:
            _note("loading the engine")
            with log.collect():
                await engine.start(lambda message: None)
            return await Calibration(engine, _note).run(rounds)
        except EngineStartError as error:
            cause = root_cause(log.lines()) or error
            raise EngineStartError(
                f"the engine did not start: {cause} ({log.name_it()})"
            ) from error
        finally:
            _note("stopping the engine")
            await engine.close()


def _note(message: str) -> None:
    click.echo(message, err=True)
