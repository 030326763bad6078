"""What a model can take: its model profile, and LangChain's error for a prompt that is too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models.model_profile import ModelProfile

from agentrt.errors import PromptTooLongError
from agentrt.executors.frontend import FrontProfile


class ContextTooLongError(PromptTooLongError, ContextOverflowError):
    """A prompt that is too long, for those who catch LangChain's error and for those who ours."""


@contextmanager
def overflows_told() -> Iterator[None]:
    """Raise what LangChain's summarizers catch for a prompt that is too long."""
    try:
        yield
    except PromptTooLongError as error:
        raise ContextTooLongError(str(error)) from error


def expected_profile(model: str | None, *, known: bool) -> ModelProfile:
    """The profile before an engine has told its own; ``known`` says that it is one of ours here."""
    limit = None
    if known:
        from agentrt.executors.vllm.options import expected_context

        limit = expected_context(model)
    return as_profile(FrontProfile(model or "", limit))


def as_profile(told: FrontProfile) -> ModelProfile:
    """What a front end tells of a model, as LangChain's middleware reads it."""
    profile = ModelProfile(
        text_inputs=True,
        image_inputs=told.images,
        image_url_inputs=told.images,
        image_tool_message=told.images,
        audio_inputs=told.audio,
        video_inputs=told.video,
        pdf_inputs=False,
        pdf_tool_message=False,
        text_outputs=True,
        reasoning_output=told.reasoning,
        tool_calling=told.tools,
        tool_choice=told.tools,
        tool_call_streaming=told.tools,
        structured_output=True,
        temperature=True,
    )
    if told.max_model_len is not None:
        profile["max_input_tokens"] = told.max_model_len
    return profile
