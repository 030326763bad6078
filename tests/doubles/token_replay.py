"""vLLM's outputs made of given tokens, by its own input and output processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrt.errors import CallRejectedError


class TokenReplay:
    """Turns token ids that somebody gives into what vLLM's engine would give for them:
    detokenized, ended at stop strings, with log probabilities.
    """

    def __init__(self, processor: Any, tasks: tuple[Any, ...]) -> None:
        self._processor = processor
        self._tasks = tasks

    def outputs(
        self,
        call_id: str,
        prompt: Any,
        params: Any,
        options: Mapping[str, Any],
        tokens: Sequence[int],
        cached: int | None = None,
    ) -> Iterator[Any]:
        """A ``RequestOutput`` for each token that has one, until a stop. They tell how many tokens
        of the prompt were ``cached``, unless it is None.

        Raises `CallRejectedError` for a call that an engine would not take.
        """
        from vllm.exceptions import VLLMError
        from vllm.v1.engine.output_processor import OutputProcessor
        from vllm.v1.metrics.stats import PrefillStats

        adapter = options.get("lora_request")
        try:
            request = self._processor.process_inputs(
                call_id, prompt, params, self._tasks, lora_request=adapter
            )
        except (VLLMError, ValueError) as error:
            raise CallRejectedError(f"call {call_id}: {error}") from error
        request.external_req_id = call_id
        outputs = OutputProcessor(self._processor.renderer.tokenizer, log_stats=False)
        outputs.add_request(request, None)
        stops = {*(request.sampling_params.all_stop_token_ids or ())}
        limit = request.sampling_params.max_tokens or len(tokens)
        kept = list(tokens[:limit])
        for index, token in enumerate(kept):
            ended = token in stops and not request.sampling_params.ignore_eos
            reason = self._reason(index + 1, kept, len(tokens), ended=ended)
            output = _core_output(request, token, reason, index == 0)
            if index == 0 and cached is not None:
                output.prefill_stats = PrefillStats()
                output.prefill_stats.set(len(request.prompt_token_ids), cached, 0)
            made = outputs.process_outputs([output])
            yield from made.request_outputs
            if reason is not None or made.reqs_to_abort:
                return

    def _reason(self, count: int, kept: Sequence[int], whole: int, *, ended: bool) -> Any:
        from vllm.v1.engine import FinishReason

        if ended:
            return FinishReason.STOP
        if count < len(kept):
            return None
        return FinishReason.STOP if len(kept) == whole else FinishReason.LENGTH


def _core_output(request: Any, token: int, reason: Any, is_first: bool) -> Any:
    from vllm.v1.engine import EngineCoreOutput

    params = request.sampling_params
    logprobs = None if params.logprobs is None else _certain([token], params.logprobs)
    scored = None
    rest = request.prompt_token_ids[1:]  # there is nothing before the first
    if is_first and rest and params.prompt_logprobs is not None:
        scored = _as_tensors(_certain(rest, params.prompt_logprobs))
    return EngineCoreOutput(
        request.request_id,
        [token],
        new_logprobs=logprobs,
        new_prompt_logprobs_tensors=scored,
        finish_reason=reason,
    )


def _certain(tokens: Sequence[int], most: int) -> Any:
    """Log probabilities of tokens that are certain, and of the ``most`` likeliest at each place."""
    import numpy as np
    from vllm.v1.outputs import LogprobsLists

    ids, values = [], []
    for token in tokens:
        others = [other for other in range(most + 1) if other != token][: max(0, most - 1)]
        ids.append([token, *([token] if most else []), *others])
        values.append([0.0, *([0.0] if most else []), *(-9.0 - n for n in range(len(others)))])
    ranks = np.ones(len(ids), np.int32)
    return LogprobsLists(np.array(ids, np.int32), np.array(values, np.float32), ranks)


def _as_tensors(lists: Any) -> Any:
    """Those of a prompt, which come as tensors."""
    import torch
    from vllm.v1.outputs import LogprobsTensors

    return LogprobsTensors(*map(torch.from_numpy, lists[:3]))


def model_config_of(args: Any) -> tuple[Any, Any, Any]:
    """An engine's whole configuration without an engine, a renderer and an input processor."""
    from vllm.renderers import renderer_from_config
    from vllm.v1.engine.input_processor import InputProcessor

    config = args.create_engine_config()
    renderer = renderer_from_config(config)
    return config, renderer, InputProcessor(config, renderer)
