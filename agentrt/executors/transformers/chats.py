"""The front end of a transformers model. It renders chats with the template of the model's
tokenizer, and answers with plain text.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

from agentrt.errors import CallRejectedError
from agentrt.executors.chat_api import (
    Answer,
    Caller,
    Frontend,
    FrontProfile,
    Request,
    piece_of,
    refusal,
    spec_of,
    whole_of,
)
from agentrt.executors.info import display_name, is_model, not_served
from agentrt.executors.transformers.model import CausalModel
from agentrt.request import CallSpec
from agentrt.request.sampling import Sampling

_READ = {
    *("messages", "model", "stream", "stream_options", "cache_salt"),
    *("add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
    *("max_tokens", "max_completion_tokens", "stop", "stop_token_ids", "ignore_eos"),
    *("temperature", "seed", "top_p", "top_k", "min_p"),
}
_ONLY_TEXT = (
    "the transformers executor answers with plain text and does not support {0}; leave {0} out, or "
    "run with --engine vllm"
)
_AS_WRITTEN = {"response_format": "schema= (response_format)"}
"""The names of fields of a request for which programs write another name."""


def _is_int(value: Any) -> bool:
    return isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())


def _is_number(value: Any) -> bool:
    return isinstance(value, Real)


def _is_list(value: Any, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(of, value))


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) or _is_list(value, lambda each: isinstance(each, str))


_FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("temperature", "top_p", "min_p"), (_is_number, "a number")),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), (_is_int, "an integer")),
    **dict.fromkeys(("seed", "top_k"), (_is_int, "an integer")),
    "stop": (_is_stop, "a text or a list of texts"),
    "stop_token_ids": (lambda value: _is_list(value, _is_int), "a list of integers"),
    "chat_template_kwargs": (lambda value: isinstance(value, Mapping), "an object"),
}
"""The form of fields of a request that may also be None: a check, and a description."""


class TransformersFrontend(Frontend):
    """The front end of ``model``, which clients may also request by ``names``."""

    def __init__(self, model: CausalModel, names: tuple[str, ...] = ()) -> None:
        self._model = model
        self._names = (*names, model.name)

    async def chat(self, request: Request, caller: Caller) -> Answer:
        spec = await self._spec(request)
        async with contextlib.aclosing(caller.chunks(spec, stream=False)) as chunks:
            async for chunk in chunks:
                if chunk.reply is not None:
                    return {"model": self._names[0], **whole_of(chunk.reply)}
        raise AssertionError("an executor's last chunk has the reply")

    async def chat_stream(self, request: Request, caller: Caller) -> AsyncGenerator[Answer, None]:
        spec = await self._spec(request)
        async with contextlib.aclosing(caller.chunks(spec, stream=True)) as chunks:
            async for chunk in chunks:
                yield {"model": self._names[0], **piece_of(chunk)}

    async def _spec(self, request: Request) -> CallSpec:
        """Convert a request to a call whose prompt is token ids.

        Raises `CallRejectedError` for fields that this executor does not support, and for fields of
        a wrong form.
        """
        unread = {
            name
            for name, value in request.items()
            if name not in _READ and value not in (None, False, [], 0) and (name, value) != ("n", 1)
        }
        if "tools" in unread:
            unread.discard("tool_choice")  # `ctx.llm(tools=…)` sets it by itself
        if unread:
            names = (_AS_WRITTEN.get(name, name) for name in sorted(unread))
            raise CallRejectedError(_ONLY_TEXT.format(" and ".join(names)))
        ids = await self.render(request)
        stop = request.get("stop") or ()
        sampling = Sampling(
            top_p=1.0 if request.get("top_p") is None else request["top_p"],
            top_k=int(request.get("top_k") or 0),
            min_p=request.get("min_p") or 0.0,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(request.get("stop_token_ids") or ()),
        )
        spec = replace(
            spec_of(request), request=None, prompt_token_ids=tuple(ids), sampling=sampling
        )
        # A whole number in JSON may be written as 5.0.
        seed = None if spec.seed is None else int(spec.seed)
        return self.addressed(replace(spec, max_tokens=int(spec.max_tokens), seed=seed))

    # -- models and tokens -------------------------------------------------------------

    def _check(self, model: str | None) -> None:
        if model is not None and not any(is_model(model, name) for name in self._names):
            raise not_served(model, self._names)

    def addressed(self, spec: CallSpec) -> CallSpec:
        self._check(spec.model)
        return replace(spec, model=self._model.name)

    def profile(self, model: str | None = None) -> FrontProfile:
        self._check(model)
        return FrontProfile(display_name(self._names[0]), self._model.max_len, tools=False)

    async def render(self, request: Request) -> list[int]:
        _check_forms(request)
        tokenizer = self._model.tokenizer
        if not tokenizer.chat_template:
            raise CallRejectedError(
                f"model {self._model.name!r} has no chat template; generate from a context of "
                "plain text, or use a model that was trained for chats"
            )
        messages = [_plain(message) for message in _messages_of(request)]
        options = {
            "add_generation_prompt": request.get("add_generation_prompt", True),
            "continue_final_message": request.get("continue_final_message", False),
            "return_dict": False,
            **(request.get("chat_template_kwargs") or {}),
        }
        try:
            ids = await asyncio.to_thread(tokenizer.apply_chat_template, messages, **options)
        except Exception as error:  # templates are code of their authors, and may raise anything
            raise CallRejectedError(
                f"the model's chat template refuses the chat: {refusal(error)}"
            ) from error
        return list(ids)

    async def tokenize(self, text: str, model: str | None = None) -> list[int]:
        self._check(model)
        try:
            return list(self._model.tokenizer.encode(text, add_special_tokens=False))
        except (TypeError, ValueError) as error:
            raise CallRejectedError(refusal(error)) from error

    async def detokenize(self, ids: Sequence[int], model: str | None = None) -> str:
        self._check(model)
        return str(self._model.tokenizer.decode(list(ids), skip_special_tokens=False))


def _check_forms(request: Request) -> None:
    """Raise `CallRejectedError` for a field of a wrong form."""
    for name, (has_form, form) in _FORMS.items():
        value = request.get(name)
        if value is not None and not has_form(value):
            raise CallRejectedError(f"{name} is {value!r:.80}; use {form}")


def _messages_of(request: Request) -> Sequence[Mapping[str, Any]]:
    """Return the messages of a request. Raises `CallRejectedError` for a value of another form."""
    messages: Any = request.get("messages") or ()
    if not _is_list(messages, lambda each: isinstance(each, Mapping)):
        raise CallRejectedError(f"messages is {messages!r:.80}; use a list of messages")
    checked: Sequence[Mapping[str, Any]] = messages
    return checked


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its content as a single text.

    Raises `CallRejectedError` for parts that are not text, such as images.
    """
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(map(_text_of, content))
    if not isinstance(content, str):
        raise CallRejectedError(
            f"the content of a message is {content!r:.80}; use a text or a list of parts"
        )
    return {**message, "content": content}


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and part.get("type") != "text":
        raise CallRejectedError(_ONLY_TEXT.format("images or audio"))
    if not isinstance(text, str):
        raise CallRejectedError(
            f"the content of a message has the part {part!r:.80}; use {{'type': 'text', 'text': …}}"
        )
    return text
