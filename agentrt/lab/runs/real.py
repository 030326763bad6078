"""The programs of a journal on real engines, in real time, under one policy after the other.

All do the work of the recording: its prompts, as the engine's own front end renders them, and
outputs of as many tokens, whatever the model says. What it says takes the place of what was
recorded in later prompts, which find it in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from agentrt.cli.engine_log import EngineLog
from agentrt.cli.faults import StoppedError
from agentrt.errors import ConfigError
from agentrt.executors.chat_api import Frontend
from agentrt.executors.vllm.entrypoints.models import open_frontend
from agentrt.executors.vllm.options import EngineOptions, prepare_environment
from agentrt.lab.backends.serving import Open, about_engine, by_engine, engine_for, serve, warm_up
from agentrt.lab.commands.options import note
from agentrt.lab.commands.progress import Meter, do_on_engines
from agentrt.lab.engine.engines import LabEngine, engine_options, started
from agentrt.lab.engine.hardware import hardware
from agentrt.lab.runs.contenders import Contender, check_on_one_engine
from agentrt.lab.runs.grid import RunSpec
from agentrt.lab.runs.replays import Replayed, ended_of
from agentrt.lab.workloads.journals import RecordedCall, Recording, listed
from agentrt.lab.workloads.shape import CallShape, ProgramShape

_NO_TEXTS = (
    "program {}: --depth real needs its prompts, which the journal does not have: record with "
    "--journal-content full, or leave --depth real out"
)
_ONE = "--depth real runs on one engine, and these are {}: give --replicas 1, or leave it out"
_TOO_LONG = (
    "program {}: a call of {} tokens with {} of output does not fit into the {} that the engine "
    "takes: end the command in -- --max-model-len N"
)
_NO_MODEL = "which model was recorded is not known: give --model"
_FLAGS = {
    "--num-gpu-blocks-override": "kv_blocks",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--block-size": "block_size",
    "--max-model-len": "max_model_len",
}


@dataclass(slots=True)
class RealReplay:
    """The runs of ``everyone``; ``results`` has those that are done, whatever happens then.

    ``progress`` hears how many programs have ended in all runs, and what comes.
    """

    recording: Recording
    spec: RunSpec
    everyone: Sequence[Contender]
    base: EngineOptions
    open: Open
    progress: Callable[..., None]
    results: list[Replayed] = field(default_factory=list)
    sizes: dict[str, Any] = field(default_factory=dict)

    async def run(self) -> None:
        """All of them. Raises `ConfigError` for what the engine cannot take."""
        for group in by_engine(self.everyone):
            engine = engine_for(group[0], self.base)
            self._tell(what="loading an engine")
            async with self.open(engine):
                self.sizes = self.sizes or engine.sizes()
                with EngineLog(verbose=False) as log:
                    with log.collect():
                        front = await open_frontend(engine)
                    await self._on(engine, front, group)

    async def _on(self, engine: LabEngine, front: Frontend, group: Sequence[Contender]) -> None:
        try:
            programs = await rendered(self.recording, front, engine.max_model_len)
        finally:
            await front.close()
        await warm_up(engine, group[0], [_first_call(one) for one in programs])
        for one in group:
            self._tell(what=one.name)
            run, gate = f"/{one.name}", one.make_gate(self.spec.machine.virtual_options())
            ran = await serve(engine, one, programs, run=run, gate=gate, ended=self._tell)
            self.results.append(ended_of(self.recording, replace(self.spec, contender=one), ran))

    def _tell(self, ended: int = 0, what: str = "") -> None:
        self.progress(len(self.results) * len(self.recording.programs) + ended, what)


async def rendered(recording: Recording, front: Frontend, most: int) -> list[ProgramShape]:
    """The recorded programs, each prompt as the engine's tokens. Raises `ConfigError` for a call
    of more than ``most`` tokens.
    """
    calls, programs = iter(recording.calls), list[ProgramShape]()
    for program in recording.programs:
        shapes = list[CallShape]()
        for shape in program.calls:
            call = next(calls)
            ids = await _prompt(call, front)
            if len(ids) + shape.output_tokens > most:
                told = call.program, len(ids), shape.output_tokens, most
                raise ConfigError(_TOO_LONG.format(*told))
            salt = call.asked.get("cache_salt")
            extends = _extended(shape, ids, program.calls, shapes)
            real = replace(shape, prompt_ids=(ids,), extends=extends, cache_salt=salt)
            shapes.append(replace(real, prompt_tokens=len(ids)))
        programs.append(replace(program, calls=tuple(shapes)))
    return programs


async def _prompt(call: RecordedCall, front: Frontend) -> list[int]:
    if ids := listed(call.asked, "prompt_token_ids"):
        return list(ids)
    # Of adapters and other models there is one engine here.
    return await front.render({name: call.asked[name] for name in call.asked if name != "model"})


def _extended(
    shape: CallShape, ids: list[int], recorded: Sequence[CallShape], done: Sequence[CallShape]
) -> int | None:
    """The longest earlier call whose prompt and output this one's begins with: as texts, which
    ``recorded`` shapes tell by their ids, and in the engine's tokens.
    """
    asked, found, longest = list(chain(*shape.prompt_ids)), None, 0
    for index, real in enumerate(done):
        whole = [*chain(*recorded[index].prompt_ids), *recorded[index].output_ids]
        [begin] = real.prompt_ids
        if len(whole) > longest and asked[: len(whole)] == whole and ids[: len(begin)] == begin:
            found, longest = index, len(whole)
    return found


def _first_call(program: ProgramShape) -> ProgramShape:
    """For a warm-up, which waits for nothing."""
    first = replace(program.calls[0], after=(), gap_s=0.0)
    return replace(program, calls=(first,), tail_s=0.0)


# -- the command -----------------------------------------------------------------------


def measure(
    recording: Recording,
    everyone: Sequence[Contender],
    spec: RunSpec,
    sizes: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[str, dict[str, Any], list[Replayed], StoppedError | None]:
    """What they ran on, in words and as values; the runs; and what ended them early."""
    check_on_one_engine(everyone)
    if spec.machine.replicas > 1:
        raise ConfigError(_ONE.format(spec.machine.replicas))
    for call in recording.calls:
        if not call.asked.get("messages") and not listed(call.asked, "prompt_token_ids"):
            raise ConfigError(_NO_TEXTS.format(call.program))
    base = _engine_options(recording, sizes, options)
    lasts_s = max(one.ended_s for one in recording.outcomes)
    note(f"{len(everyone)} runs, each of about {lasts_s:.0f} s")
    meter = Meter(len(everyone) * len(recording.programs), "programs")
    replay = RealReplay(recording, spec, everyone, base, started, meter.now)
    stop = do_on_engines(replay.run(), replay.results, len(everyone))
    if stop and not replay.results:
        raise stop
    flags, machine = options["engine_flags"], hardware()
    head = about_engine(base.model or "", flags, replay.sizes, machine)
    told = {"depth": "real", "model": base.model, "flags": list(flags), "hardware": machine}
    return head, {**told, **replay.sizes}, replay.results, stop


def _engine_options(
    recording: Recording, sizes: Mapping[str, Any], options: Mapping[str, Any]
) -> EngineOptions:
    """The recorded engine, but for what is given."""
    known = {"max_model_len": recording.engine.get("max_model_len"), **sizes}
    flags = [(flag, str(known[of])) for flag, of in _FLAGS.items() if known.get(of)]
    model = options["model"] or recording.engine.get("model")
    if not model:
        raise ConfigError(_NO_MODEL)
    given = (*chain(*flags), *options["engine_flags"])
    base = engine_options(model, None, sizes.get("max_num_seqs"), given)
    prepare_environment(base)
    return base
