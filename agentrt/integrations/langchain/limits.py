"""A model's limits: its LangChain profile, and the error for a prompt that is too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models.model_profile import ModelProfile

from agentrt.errors import PromptTooLongError
from agentrt.executors.chat_api import FrontProfile


class ContextTooLongError(PromptTooLongError, ContextOverflowError):
    """The error of a prompt that is too long, as a subclass of agentrt's and LangChain's errors."""


@contextmanager
def overflows_translated() -> Iterator[None]:
    """If a prompt in the ``with`` block is too long, raise `ContextTooLongError`, which LangChain's
    summarizers catch.
    """
    try:
        yield
    except PromptTooLongError as error:
        raise ContextTooLongError(str(error)) from error


def expected_profile(model: str | None, *, known: bool) -> ModelProfile:
    """Return the expected profile of a model whose engine has not started. ``known`` means that the
    model runs on an embedded engine, so that the length of its context can be read from its files.
    """
    limit = None
    if known:
        from agentrt.executors.vllm.options import expected_context

        limit = expected_context(model)
    return as_profile(FrontProfile(model or "", limit))


def as_profile(profile: FrontProfile) -> ModelProfile:
    """Convert a front end's profile of a model into LangChain's form."""
    converted = ModelProfile(
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
        converted["max_input_tokens"] = profile.max_model_len
    return converted
