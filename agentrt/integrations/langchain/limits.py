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
    """The profile before an engine has given its own; ``known``: it is one of our engines here."""
    limit = None
    if known:
        from agentrt.executors.vllm.options import expected_context

        limit = expected_context(model)
    return as_profile(FrontProfile(model or "", limit))


def as_profile(profile: FrontProfile) -> ModelProfile:
    """A front end's profile of a model, as LangChain's middleware reads it."""
    found = ModelProfile(
        text_inputs=True,
        image_inputs=profile.images,
        image_url_inputs=profile.images,
        image_tool_message=profile.images,
        audio_inputs=profile.audio,
        video_inputs=profile.video,
        pdf_inputs=False,
        pdf_tool_message=False,
        text_outputs=True,
        reasoning_output=profile.reasoning,
        tool_calling=profile.tools,
        tool_choice=profile.tools,
        tool_call_streaming=profile.tools,
        structured_output=True,
        temperature=True,
    )
    if profile.max_model_len is not None:
        found["max_input_tokens"] = profile.max_model_len
    return found
