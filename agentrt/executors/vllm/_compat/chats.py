"""vLLM's chat completions without its engine client: render a request, and format outputs.

`OpenAIServingChat.create_chat_completion` renders a request, gets the outputs from an engine client
and formats them, all in one method. This module offers rendering and formatting as separate
functions, which call the same methods of vLLM. Programs in this process submit the call themselves
between the two.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata
from vllm.entrypoints.openai.chat_completion.serving import _get_mm_token_counts
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A rendered chat request.

    An engine gets ``prompt``, the sampling ``params`` and ``options``. The other fields are needed
    to format its outputs.
    """

    request: Any
    prompt: Any
    params: Any
    options: Mapping[str, Any]
    request_id: str
    model_name: str
    conversation: Any
    parser: Any
    template_options: Mapping[str, Any]
    media_tokens: Mapping[str, int]


async def render_chat(serving: Any, request: Any) -> Any:
    """Render a ``ChatCompletionRequest``: return a `RenderedChat`, or vLLM's ``ErrorResponse``."""
    template_options = serving._effective_chat_template_kwargs(request)
    parser = None
    if serving.parser_cls is not None:
        parser = serving._make_parser(request, serving.renderer.tokenizer, template_options)
    rendered = await serving.render_chat_request(request)
    if hasattr(rendered, "error"):
        return rendered
    conversation, (prompt,) = rendered
    request_id = f"chatcmpl-{serving._base_request_id(None, request.request_id)}"
    adapter = serving._maybe_get_adapters(request, supports_default_mm_loras=True)
    limit = request.max_completion_tokens
    limit = get_max_tokens(
        serving.model_config.max_model_len,
        request.max_tokens if limit is None else limit,
        serving._extract_prompt_len(prompt),
        serving.default_sampling_params,
        serving.override_max_tokens,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
    )
    sampling = request.to_sampling_params
    if request.use_beam_search:
        sampling = request.to_beam_search_params
    params = sampling(limit, serving.default_sampling_params)
    serving._log_inputs(request_id, prompt, params=params, lora_request=adapter)
    ids = serving._extract_prompt_components(prompt).token_ids
    reasoning = serving._engine_reasoning_kwargs(request, parser, template_options, ids)
    return RenderedChat(
        request,
        prompt,
        params,
        {"lora_request": adapter, **reasoning},
        request_id,
        serving.models.model_name(adapter),
        conversation,
        parser,
        template_options,
        _get_mm_token_counts(prompt),
    )


def beam_outputs(serving: Any, chat: RenderedChat) -> AsyncGenerator[Any, None]:
    """Return the outputs of a beam search, for which vLLM makes many calls by its engine client."""
    outputs: AsyncGenerator[Any, None] = serving.beam_search(
        prompt=chat.prompt,
        request_id=chat.request_id,
        params=chat.params,
        lora_request=chat.options["lora_request"],
    )
    return outputs


async def format_whole(serving: Any, chat: RenderedChat, outputs: Iterable[Any]) -> Any:
    """Format a call's outputs as vLLM's ``ChatCompletionResponse``, or as its ``ErrorResponse``."""
    return await serving.chat_completion_full_generator(
        chat.request,
        _each(outputs),
        chat.request_id,
        chat.model_name,
        chat.conversation,
        serving.renderer.tokenizer,
        RequestResponseMetadata(request_id=chat.request_id),
        parser=chat.parser,
        mm_token_counts=chat.media_tokens,
    )


async def _each(outputs: Iterable[Any]) -> AsyncGenerator[Any, None]:
    for output in outputs:
        yield output


def format_stream(
    serving: Any, chat: RenderedChat, outputs: AsyncIterator[Any]
) -> AsyncGenerator[str, None]:
    """Format a call's ``outputs`` as server-sent events. An error in ``outputs`` is an event,
    too.
    """
    events: AsyncGenerator[str, None] = serving.chat_completion_stream_generator(
        chat.request,
        outputs,
        chat.request_id,
        chat.model_name,
        chat.conversation,
        serving.renderer.tokenizer,
        RequestResponseMetadata(request_id=chat.request_id),
        chat_template_kwargs=chat.template_options,
        mm_token_counts=chat.media_tokens,
    )
    return events
