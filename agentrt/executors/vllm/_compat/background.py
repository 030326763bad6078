"""Ends each response that vLLM's Responses API generates in the background, and each stream of its
events.

vLLM leaves a response whose call has failed in the state ``queued``. A reader of the events waits
for ever if the response fails or is cancelled, or if the reader has all events already.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from pydantic import BaseModel
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

_LOG = logging.getLogger(__name__)
_CODE = "server_error"
_Follow = Callable[..., AsyncGenerator[Any, None]]


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
