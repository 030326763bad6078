"""Replays of the programs of a journal on real engines in real time, under one policy after the
other.

All policies do the same work as the recording. The recorded prompts are rendered by the engine's
own front end, and outputs have as many tokens as recorded. In later prompts, the recorded outputs
are replaced by the new outputs, so that these tokens are in the prefix cache.
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
from agentrt.executors.vllm.options import EngineOptions, check_model, prepare_environment
from agentrt.lab.backends.real import Open, about_engine, by_engine, engine_for, serve, warm_up
from agentrt.lab.commands.options import note
from agentrt.lab.commands.progress import Meter, do_on_engines
from agentrt.lab.engine.engines import LabEngine, started
from agentrt.lab.engine.hardware import hardware
from agentrt.lab.runs.contenders import Contender, check_on_one_engine
from agentrt.lab.runs.grid import RunSpec
from agentrt.lab.runs.replays import Replayed, ended_of
from agentrt.lab.workloads.journals import RecordedCall, Recording, listed
from agentrt.lab.workloads.shape import CallShape, ProgramShape

_NO_TEXTS = (
    "run {}: --depth real needs the prompts, but the journal does not have them; record with "
    "--journal-content full, or leave --depth real out"
)
_ONE_ENGINE = "--depth real runs on one engine, but there are {} replicas; add --replicas 1"
_TOO_LONG = (
    "program {}: a call with {} prompt tokens and {} output tokens does not fit into the engine's "
    "{} tokens; add -- --max-model-len N at the end of the command"
)
_WARM_UP = 3
"""Number of programs that warm an engine up."""
_NO_MODEL = "the journal does not say which model was recorded; add --model"
_FLAGS = {
    "--num-gpu-blocks-override": "kv_blocks",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--block-size": "block_size",
    "--max-model-len": "max_model_len",
}


@dataclass(slots=True)
class RealReplay:
    """The runs of all ``contenders``. ``results`` has the finished runs, even after an error.

    ``progress`` is called with a message, and with the number of programs that have ended in all
    runs together.
    """

    recording: Recording
    spec: RunSpec
    contenders: Sequence[Contender]
    base: EngineOptions
    open: Open
    progress: Callable[..., None]
    results: list[Replayed] = field(default_factory=list)
    sizes: dict[str, Any] = field(default_factory=dict)

    async def run(self) -> None:
        """Do all runs. Raises `ConfigError` for a call that the engine cannot take."""
        for group in by_engine(self.contenders):
            engine = engine_for(group[0], self.base)
            self._tell(message="loading an engine")
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
        await warm_up(engine, group[0], [_first_call(program) for program in programs[:_WARM_UP]])
        for contender in group:
            self._tell(message=contender.name)
            ran = await serve(
                engine, contender, programs, run=f"/{contender.name}", ended=self._tell
            )
            self.results.append(
                ended_of(self.recording, replace(self.spec, contender=contender), ran)
            )

    def _tell(self, ended: int = 0, message: str = "") -> None:
        self.progress(len(self.results) * len(self.recording.programs) + ended, message)


async def rendered(recording: Recording, front: Frontend, most: int) -> list[ProgramShape]:
    """Return the recorded programs with the token ids of their prompts. Raises `ConfigError` for a
    call of more than ``most`` tokens.
    """
    calls, programs = iter(recording.calls), list[ProgramShape]()
    for program in recording.programs:
        shapes = list[CallShape]()
        for shape in program.calls:
            call = next(calls)
            ids = await _prompt(call, front)
            if len(ids) + shape.output_tokens > most:
                lengths = call.program, len(ids), shape.output_tokens, most
                raise ConfigError(_TOO_LONG.format(*lengths))
            salt = call.request.get("cache_salt")
            extends = _extended(shape, ids, program.calls, shapes)
            real = replace(shape, prompt_ids=(ids,), extends=extends, cache_salt=salt)
            shapes.append(replace(real, prompt_tokens=len(ids)))
        programs.append(replace(program, calls=tuple(shapes)))
    return programs


async def _prompt(call: RecordedCall, front: Frontend) -> list[int]:
    if ids := listed(call.request, "prompt_token_ids"):
        return list(ids)
    # Drop the model's name, because one engine replays the calls of all models and adapters.
    return await front.render(
        {name: call.request[name] for name in call.request if name != "model"}
    )


def _extended(
    shape: CallShape, ids: list[int], recorded: Sequence[CallShape], done: Sequence[CallShape]
) -> int | None:
    """Return the index of the earlier call that this call extends: the longest call whose prompt
    and output are the beginning of this call's prompt. Return None if there is no such call.

    The prompts must agree both as recorded texts, which the ids in ``recorded`` represent, and as
    the engine's token ids.
    """
    recorded_ids, extended, longest = list(chain(*shape.prompt_ids)), None, 0
    for index, real in enumerate(done):
        whole = [*chain(*recorded[index].prompt_ids), *recorded[index].output_ids]
        [begin] = real.prompt_ids
        if (
            len(whole) > longest
            and recorded_ids[: len(whole)] == whole
            and ids[: len(begin)] == begin
        ):
            extended, longest = index, len(whole)
    return extended


def _first_call(program: ProgramShape) -> ProgramShape:
    """Return the program with only its first call and without gaps, for a warm-up."""
    first = replace(program.calls[0], after=(), gap_s=0.0)
    return replace(program, calls=(first,), tail_s=0.0)


# -- the command -----------------------------------------------------------------------


def measure(
    recording: Recording,
    contenders: Sequence[Contender],
    spec: RunSpec,
    sizes: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[str, dict[str, Any], list[Replayed], StoppedError | None]:
    """Replay the recording on a real engine under all contenders.

    Return a description of the engine as text, the engine's settings as a dict, and the finished
    runs. If a signal ended the replay early, the last value is the error of the signal; otherwise
    it is None. Raises the error of the signal if no run was finished, and `ConfigError` for a
    recording or contenders that cannot run on an engine.
    """
    check_on_one_engine(contenders)
    if spec.machine.replicas > 1:
        raise ConfigError(_ONE_ENGINE.format(spec.machine.replicas))
    for call in recording.calls:
        if not call.request.get("messages") and not listed(call.request, "prompt_token_ids"):
            raise ConfigError(_NO_TEXTS.format(call.program))
    base = _engine_options(recording, sizes, options)
    lasts_s = max(outcome.ended_s for outcome in recording.outcomes)
    note(f"{len(contenders)} runs, each of about {lasts_s:.0f} s")
    meter = Meter(len(contenders) * len(recording.programs), "programs")
    replay = RealReplay(recording, spec, contenders, base, started, meter.now)
    stop = do_on_engines(replay.run(), replay.results, len(contenders))
    if stop and not replay.results:
        raise stop
    flags, machine = options["engine_flags"], hardware()
    head = about_engine(base.model or "", flags, replay.sizes, machine)
    values = {"depth": "real", "model": base.model, "flags": list(flags), "hardware": machine}
    return head, {**values, **replay.sizes}, replay.results, stop


def _engine_options(
    recording: Recording, sizes: Mapping[str, Any], options: Mapping[str, Any]
) -> EngineOptions:
    """Return the options of the recorded engine, changed by the command's options."""
    known = {"max_model_len": recording.engine.get("max_model_len"), **sizes}
    flags = [(flag, str(known[of])) for flag, of in _FLAGS.items() if known.get(of)]
    model = options["model"] or recording.engine.get("model")
    if not model:
        raise ConfigError(_NO_MODEL)
    all_flags = (*chain(*flags), *options["engine_flags"])
    check_model(model)
    base = EngineOptions(model, sizes.get("max_num_seqs"), flags=all_flags)
    prepare_environment(base)
    return base
