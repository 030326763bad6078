"""vLLM's APIs of chats and of responses: renders chats and formats their outputs without vLLM's
engine client, and ends the responses that are generated in the background.

**Chats.** `OpenAIServingChat.create_chat_completion` renders a request, gets the outputs from an
engine client and formats them, all in one method. This module offers rendering and formatting as
separate functions, which call the same methods of vLLM. Programs in this process submit the call
themselves between the two.

**Responses in the background.** vLLM leaves a response whose call has failed in the state
``queued``. A reader of a response's events waits for ever if the response fails or is cancelled, or
if the reader has all events already.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata
from vllm.entrypoints.openai.chat_completion.serving import _get_mm_token_counts
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens

_LOG = logging.getLogger(__name__)
_CODE = "server_error"

# -- chats -----------------------------------------------------------------------------------


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


# -- responses in the background ---------------------------------------------------------


class _FailedEvent(BaseModel):
    """The last event of a response that has failed."""

    type: str = "response.failed"
    sequence_number: int
    response: Any


def end_in_background(state: Any) -> None:
    """Make vLLM's Responses API end the events of each response that it generates in the
    background: it adds None after a response's last event, and readers of the events stop at None.
    ``state`` is the state of vLLM's application.
    """
    responses = getattr(state, "openai_serving_responses", None)
    if responses is None:
        return

    def ending(generate: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def generate_to_the_end(request: Any, *args: Any, **options: Any) -> None:
            try:
                await generate(request, *args, **options)
            except Exception as error:
                _fail(responses, request.request_id, error)
            finally:
                _put_event(responses, request.request_id, None)

        return generate_to_the_end

    responses._run_background_request = ending(responses._run_background_request)
    responses._run_background_request_stream = ending(responses._run_background_request_stream)
    follow: Callable[..., AsyncGenerator[Any, None]] = (
        responses.responses_background_stream_generator
    )

    async def follow_to_the_end(
        response_id: str, starting_after: int | None = None
    ) -> AsyncGenerator[Any, None]:
        events, _ = responses.event_store.get(response_id, ((), None))
        if starting_after is not None and events and events[-1] is None:
            starting_after = min(starting_after, len(events) - 2)
        async with contextlib.aclosing(follow(response_id, starting_after)) as followed:
            async for event in followed:
                if event is None:
                    return
                yield event

    responses.responses_background_stream_generator = follow_to_the_end


def _fail(responses: Any, response_id: str, error: Exception) -> None:
    """Record that a response has failed."""
    text = create_error_response(error).error.message
    _LOG.warning("response %s failed in the background: %s", response_id, text)
    response = responses.response_store.get(response_id)
    if response is None:  # it was dropped, because its tenant has too many responses
        return
    response.status, response.error = "failed", {"code": _CODE, "message": text}
    events, _ = responses.event_store.get(response_id, ((), None))
    number = events[-1].sequence_number + 1 if events else 0
    _put_event(responses, response_id, _FailedEvent(sequence_number=number, response=response))


def _put_event(responses: Any, response_id: str, event: _FailedEvent | None) -> None:
    """Give an event to the readers of a response, if it was requested as a stream."""
    events, is_new = responses.event_store.get(response_id, ((), None))
    if is_new is not None:
        events.append(event)
        is_new.set()
