"""agentrt programs as agent loops of verl: verl's servers write the tokens, and verl trains.

In the file that verl's ``actor_rollout_ref.rollout.agent.agent_loop_config_path`` names:

    - name: solve
      _target_: agentrt.training.verl.ProgramLoop
      program: my_agents:solve

Each sample is a run of the program. Its calls go to verl's servers by verl's own client, as token
ids; nothing that the model wrote is tokenized again. The calls of a run have one request id, so
that verl sends all of them to the server whose cache has their prefix.

This module imports verl, and is tested with its version 0.9.1.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from uuid import uuid4

import numpy as np
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from agentrt.batch.plain import as_json
from agentrt.batch.targets import Target, lent, opened_target
from agentrt.errors import CallRejectedError, ConfigError, EngineError
from agentrt.executors.base import Chunk, Executor
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.transformers.chats import TransformersFrontend
from agentrt.graph import NodeKind
from agentrt.request import Call, CallReport, Reply
from agentrt.runtime import Runtime
from agentrt.runtime.run import Run, RunState
from agentrt.runtime.tokens import TokenSequence

K = TypeVar("K")
T = TypeVar("T")
Several = Literal["all", "longest"]


@dataclass(frozen=True, slots=True)
class _Model:
    """The parts of a model that a front end needs."""

    name: str
    tokenizer: Any
    max_len: int | None


@dataclass(frozen=True, slots=True)
class _Opened:
    """The runtime on the servers of a worker, and the programs that run on it, until ``stack`` is
    closed. All programs of a worker have the same runtime, because the chat models of their graphs
    cannot tell several runtimes apart.
    """

    runtime: Runtime
    servers: VerlServers
    stack: AsyncExitStack
    targets: dict[int | str, asyncio.Task[Target]] = field(default_factory=dict)

    async def target(self, program: Any) -> Target:
        """Return the target of a program or a graph, or of its place as ``module:name``."""
        key = program if isinstance(program, str) else id(program)
        return await _once(self.targets, key, lambda: self._open(program))

    async def _open(self, program: Any) -> Target:
        if isinstance(program, str):
            module, _, name = program.partition(":")
            program = getattr(importlib.import_module(module), name or "program")
        return await self.stack.enter_async_context(opened_target(program))


async def _once(tasks: dict[K, asyncio.Task[T]], key: K, work: Callable[[], Any]) -> T:
    """Return the result of ``work``, which runs once for each key, and again if it failed."""
    if key not in tasks:
        tasks[key] = asyncio.create_task(work())
    try:
        return await asyncio.shield(tasks[key])
    except Exception:
        tasks.pop(key, None)
        raise


class VerlServers(Executor):
    """An executor that sends calls to verl's servers. ``client`` is verl's ``LLMServerClient``.

    ``sampling`` has verl's sampling parameters for each live program. They replace the temperature,
    top-p and top-k of the program's own calls, because the trainer assumes them.
    """

    def __init__(self, client: Any, tokenizer: Any, max_len: int | None) -> None:
        self.sampling: dict[str, Mapping[str, Any]] = {}
        self._client = client
        self._model = _Model("verl", tokenizer, max_len)

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo((self._model.name,), logprobs=True)

    def own_frontend(self, names: Sequence[str]) -> TransformersFrontend:
        model: Any = self._model
        return TransformersFrontend(model, tuple(names))

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        spec, own = call.spec, call.spec.sampling
        prompt = list(spec.prompt_token_ids or ())
        limit = spec.max_tokens
        if self._model.max_len is not None:
            limit = min(limit, self._model.max_len - len(prompt))
        if limit < 1:
            raise CallRejectedError(
                f"the prompt has {len(prompt)} tokens, and the context of verl's servers has "
                f"{self._model.max_len}, so there is no room for an answer; shorten the prompt, or "
                "set a larger max_model_len"
            )
        parameters = {**self.sampling.get(call.program_id, {}), "max_tokens": limit}
        if spec.ignore_eos:
            parameters["ignore_eos"] = True
        if own is not None:
            if own.constraint is not None or own.allowed_token_ids is not None or own.logits:
                raise CallRejectedError(
                    "verl's servers do not support constraints of a call's output; "
                    "leave the constraint out"
                )
            if own.score_from is not None or own.logprobs or own.attention is not None:
                raise CallRejectedError(
                    "verl's servers give only the log probabilities of the tokens that they write; "
                    "leave out score(), next_tokens(), logprobs= above 0 and attention="
                )
            if own.stop:
                parameters |= {"stop": list(own.stop), "include_stop_str_in_output": True}
            if own.stop_token_ids:
                parameters["stop_token_ids"] = list(own.stop_token_ids)
        began = time.monotonic()
        output = await self._client.generate(
            request_id=call.program_id, prompt_ids=prompt, sampling_params=parameters
        )
        if output.stop_reason == "aborted" and not output.token_ids:
            raise EngineError(f"verl aborted call {call.call_id}")
        ids = tuple(map(int, output.token_ids))
        logprobs = tuple(map(float, output.log_probs or [0.0] * len(ids)))
        text = self._model.tokenizer.decode(list(ids), skip_special_tokens=True)
        for stop in () if own is None else own.stop:
            text = text.partition(stop)[0]
        version = output.extra_fields.get("min_global_steps")
        if version is None:
            version = output.extra_fields.get("global_steps")
        report = CallReport(
            prompt_tokens=len(prompt),
            output_tokens=len(ids),
            service_s=time.monotonic() - began,
            preemptions=max(0, output.num_preempted or 0),
            versions=((0, int(version)),) if version else (),
        )
        reply = Reply(
            text,
            "length" if len(ids) >= limit else "stop",
            token_ids=ids,
            report=report,
            token_logprobs=tuple(((t, v),) for t, v in zip(ids, logprobs, strict=True)),
        )
        yield Chunk(text, reply, token_ids=ids, logprobs=logprobs)


_OPENED: dict[int, asyncio.Task[_Opened]] = {}
"""The opened runtimes by the id of a client. verl makes an agent loop for each sample, but a client
only for each worker.
"""


async def close_loops() -> None:
    """Close all runtimes that agent loops of this process have opened. A worker of verl need not do
    this, because the worker's process ends, too.
    """
    while _OPENED:
        _, opening = _OPENED.popitem()
        await (await opening).stack.aclose()


class ProgramLoop(AgentLoopBase):
    """An agent loop that runs a program or a LangGraph graph.

    ``program`` is the program, or its place as ``module:name``. ``input_field`` is the field of
    verl's data set that the program gets; with None it gets all fields as a dict. The reward is the
    sum of the program's ``ctx.reward`` calls. Without such a call, verl computes the reward. A
    program that raises an error has the reward ``failure_reward``, with the tokens written so far;
    with None, or if nothing was written, the error is raised, and verl drops the sample's group.

    If a program has several sequences, because it forks or shortens its chat, the output is a list
    for verl's trainer V1 (``sequences="all"``), or only the sequence with the most tokens that the
    model wrote (``"longest"``), which other trainers of verl need.
    """

    def __init__(
        self,
        *args: Any,
        program: Any,
        input_field: str | None = "raw_prompt",
        failure_reward: float | None = 0.0,
        sequences: Several = "all",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if sequences not in ("all", "longest"):
            raise ConfigError(f"sequences must be 'all' or 'longest', got {sequences!r}")
        self._program, self._input_field = program, input_field
        self._failure_reward, self._sequences = failure_reward, sequences

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Run the program once, and return its `AgentLoopOutput`, or a list of several."""
        opened = await _once(_OPENED, id(self.server_manager), self._open)
        runtime, servers = opened.runtime, opened.servers
        target = await opened.target(self._program)
        run_id = f"{target.name}-{uuid4().hex}"
        servers.sampling[run_id] = dict(sampling_params)
        try:
            with lent(runtime):  # a graph's chat models look for a runtime at each of their calls
                accepted = target.accept(self._input(kwargs))
                run = await target.start(runtime, accepted, run_id, skips=True, tokens=True)
                assert run.task is not None
                try:
                    await asyncio.wait([run.task])
                finally:
                    if not run.task.done():  # verl has cancelled this sample
                        run.cancel()
                        await asyncio.wait([run.task])
                    await target.forget(run_id)
        finally:
            del servers.sampling[run_id]
        with_logprobs = bool(sampling_params.get("logprobs"))
        outputs = self._outputs(run, with_logprobs=with_logprobs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _input(self, fields: Mapping[str, Any]) -> Any:
        if self._input_field is None:
            return {name: _python(value) for name, value in fields.items()}
        if self._input_field not in fields:
            raise ConfigError(
                f"the data set has no field {self._input_field!r}; name one of "
                f"{', '.join(sorted(fields))} as input_field"
            )
        return _python(fields[self._input_field])

    async def _open(self) -> _Opened:
        limit = self.rollout_config.get("max_model_len")
        servers = VerlServers(self.server_manager, self.tokenizer, limit)
        async with AsyncExitStack() as stack:
            runtime = await stack.enter_async_context(Runtime(servers))
            return _Opened(runtime, servers, stack.pop_all())

    def _outputs(self, run: Run, *, with_logprobs: bool) -> list[AgentLoopOutput]:
        assert run.tokens is not None
        every = run.tokens.sequences()
        error = run.error
        if error is None and run.state is not RunState.DONE:
            error = EngineError(f"run {run.id} was {run.state}")
        if error is not None and (self._failure_reward is None or not every):
            raise error
        if not every:
            raise ConfigError(f"program {run.type!r} ended without a call of the model")
        if self._sequences == "longest":
            every = [max(every, key=lambda sequence: sum(sequence.mask))]
        rewards = [*run.tokens.rewards.values()]
        reward = self._failure_reward if error is not None else None
        reward = sum(rewards) if rewards and error is None else reward
        written = {version for each in every for version in each.versions if version >= 0}
        row = run.row
        metrics = AgentLoopMetrics(
            generate_sequences=row.service_s,
            tool_calls=row.interrupt_s,
            num_preempted=row.usage.preemptions,
        )
        turns = 1 + row.finished_calls
        turns += sum(node.kind is NodeKind.TOOL for node in run.dag.nodes())
        return [
            self._output(
                sequence,
                with_logprobs=with_logprobs,
                reward_score=reward,
                num_turns=turns,
                metrics=metrics,
                extra_fields={
                    "turn_scores": rewards,
                    "tool_rewards": [],
                    "reward_extra_info": {},  # verl reads it if there is a reward
                    "min_global_steps": min(written, default=None),
                    "max_global_steps": max(written, default=None),
                    "agentrt_program": run.id,
                    "agentrt_result": json.loads(as_json(run.result)),
                    "agentrt_error": "" if error is None else f"{type(error).__name__}: {error}",
                },
            )
            for sequence in every
        ]

    def _output(
        self, sequence: TokenSequence, *, with_logprobs: bool, **fields: Any
    ) -> AgentLoopOutput:
        """Return a sequence in verl's form. All tokens before the first token that the model wrote
        are the prompt. As in verl's own loops, a prompt that is too long loses its beginning, and
        a response its end.
        """
        ids = [*map(int, sequence.token_ids)]
        mask = [*map(int, sequence.mask)]
        start = mask.index(1)
        end = start + int(self.rollout_config.response_length)
        logprobs = [*map(float, sequence.logprobs)][start:end] if with_logprobs else None
        return AgentLoopOutput(
            prompt_ids=ids[:start][-int(self.rollout_config.prompt_length) :],
            response_ids=ids[start:end],
            response_mask=mask[start:end],
            response_logprobs=logprobs,
            **fields,
        )


def _python(value: Any) -> Any:
    """Return a value of verl's data set without numpy's types."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return [_python(item) for item in value.tolist()]
    if isinstance(value, Mapping):
        return {name: _python(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_python(item) for item in value]
    return value
