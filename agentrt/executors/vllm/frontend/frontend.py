"""vLLM's own front end for one model, in this process: over HTTP as `app`, and for programs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import from_json

from agentrt.errors import (
    CallRejectedError,
    ConfigError,
    EngineError,
    NotServedError,
)
from agentrt.executors.base import Executor, FrontSetup
from agentrt.executors.frontend import (
    Answer,
    Frontend,
    FrontProfile,
    Request,
    caller,
    calling,
    stepped,
)
from agentrt.executors.info import display_name, is_model, not_served
from agentrt.executors.vllm._compat.cut_off import read_cut_off
from agentrt.executors.vllm._compat.frontend import (
    keep_system_messages,
    make_app,
    make_renderer,
    unmerged_quietly,
)
from agentrt.executors.vllm.frontend.arranged import arrange_chats
from agentrt.executors.vllm.frontend.client import ProgramEngineClient, ProgramRequest
from agentrt.executors.vllm.frontend.families import TOOL_FORM
from agentrt.executors.vllm.frontend.flags import parse_flags
from agentrt.executors.vllm.frontend.long_prompts import work_apart
from agentrt.executors.vllm.frontend.parsers import family_of, set_parsers
from agentrt.executors.vllm.processes import apart
from agentrt.request import CallSpec, RenderedCall

if TYPE_CHECKING:
    from argparse import Namespace

    from fastapi import FastAPI

_DATA = "data: "
_END = "[DONE]"
_QUICK = 4096
"""Characters, or tokens to decode, that take a few milliseconds."""


class VLLMFrontend(Frontend):
    """The front end of ``setup``'s model. Make it by `open`.

    ``app`` is vLLM's application, and ``args`` its parsed flags. ``name`` is what answers call
    the model. With ``reminders``, system messages in the middle of a chat stay at their place.
    ``budgets`` says whether the engines can hold thinking to a number of tokens.
    """

    def __init__(
        self,
        setup: FrontSetup,
        args: Namespace,
        app: FastAPI,
        renderer: Any,
        *,
        reminders: bool = True,
    ) -> None:
        self.setup = setup
        self.reminders = reminders
        reasoning = getattr(setup.vllm_config, "reasoning_config", None)
        self.budgets = reasoning is not None and bool(reasoning.enabled)
        self.args = args
        self.app = app
        self.name: str = args.served_model_name[0]
        self._renderer = renderer
        self._long = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        setup: FrontSetup,
        executor: Executor,
        names: Sequence[str] = (),
        *,
        reminders: bool = True,
    ) -> VLLMFrontend:
        """A front end whose calls run on ``executor``. ``names`` are what clients call the
        model; by default its own. With ``reminders``, system messages in the middle of a chat
        stay at their place. Raises `ConfigError` for flags that it cannot take.
        """
        try:
            args = front_args(setup, names)
            # Its messages name the model, and must not tell clients of folders.
            setup.vllm_config.model_config.served_model_name = args.served_model_name[0]
            renderer, processor = await apart(make_renderer, setup.vllm_config)
            if args.tool_call_parser == TOOL_FORM:
                from agentrt.executors.vllm.frontend.held import explain_tools

                renderer = explain_tools(renderer)
            # Before tools are explained in the messages, and apart if they are long.
            renderer = arrange_chats(renderer, reminders=reminders)
            most = setup.vllm_config.model_config.max_model_len
            work_apart(renderer, most)
            client = ProgramEngineClient(setup, renderer, processor, executor)
            with unmerged_quietly() if reminders else contextlib.nullcontext():
                app = await make_app(client, args, setup.tasks)
            if reminders:
                keep_system_messages(app.state)
            read_cut_off(app.state, client.model_config, renderer.get_tokenizer())
        except (TypeError, ValueError, KeyError, OSError) as error:
            text = f"vLLM's front end for model {setup.model!r} refuses its options: {error}"
            raise ConfigError(text) from error
        return cls(setup, args, app, renderer, reminders=reminders)

    # -- chats -------------------------------------------------------------------------

    async def chat(self, request: Request) -> Answer:
        asking = ProgramRequest(caller())
        with calling(asking), asking.errors():
            answer = await self._serving.create_chat_completion(self._parsed(request, False), None)
        if hasattr(answer, "error"):
            _raise_if_cancelled()
            raise _refused(answer.error.model_dump())
        body: Answer = answer.model_dump(exclude_unset=True, mode="json")
        return body

    def chat_stream(self, request: Request) -> AsyncGenerator[Answer, None]:
        return self._pieces(ProgramRequest(caller()), request)

    async def _pieces(
        self, asking: ProgramRequest, request: Request
    ) -> AsyncGenerator[Answer, None]:
        with calling(asking), asking.errors():
            events = await self._serving.create_chat_completion(self._parsed(request, True), None)
        if hasattr(events, "error"):
            raise _refused(events.error.model_dump())
        async with asking, contextlib.aclosing(stepped(asking, events)) as steps:
            async for event in steps:
                data = event.removeprefix(_DATA).strip()
                if not event.startswith(_DATA) or data == _END:
                    continue
                piece = from_json(data)
                if "error" in piece:
                    raise asking.error or _refused(piece["error"])
                yield piece

    @property
    def _serving(self) -> Any:
        serving = getattr(self.app.state, "openai_serving_chat", None)
        if serving is None:
            raise CallRejectedError(f"model {self.name!r} does not generate text")
        return serving

    def _parsed(self, request: Request, stream: bool) -> Any:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        body = {**request, "model": self.served_as(request.get("model")), "stream": stream}
        if body.get("max_tokens") is not None:  # the name is deprecated, and vLLM warns of it
            limit = body.pop("max_tokens")
            body.setdefault("max_completion_tokens", limit)
        limit = body.get("max_completion_tokens")
        if isinstance(limit, int) and limit > self.max_model_len:  # as the server's clients have it
            body["max_completion_tokens"] = self.max_model_len
        if stream:
            body.setdefault("stream_options", {"include_usage": True})
        try:
            return ChatCompletionRequest.model_validate(body)
        except ValidationError as error:
            raise CallRejectedError(_reasons(error)) from error
        except ValueError as error:
            raise CallRejectedError(str(error)) from error

    @property
    def max_model_len(self) -> int:
        """Tokens that one call may have, prompt and output together."""
        return int(self.setup.vllm_config.model_config.max_model_len)

    @property
    def images(self) -> bool:
        """Whether the model takes images."""
        return "image" in self._limits

    # -- models ------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """What requests may call the model, and its adapters."""
        models = self.app.state.openai_serving_models
        return [*self.args.served_model_name, *models.lora_requests]

    def served_as(self, model: str | None) -> str:
        """The name of a model or adapter as requests have it. Raises `NotServedError`."""
        if model is None or is_model(model, self.setup.model):
            return self.name
        if model not in self.names:
            raise not_served(model, tuple(self.names))
        return model

    def profile(self, model: str | None = None) -> FrontProfile:
        self.served_as(model)
        limits = self._limits
        return FrontProfile(
            model=display_name(model or self.name),
            max_model_len=self.max_model_len,
            images="image" in limits,
            audio="audio" in limits,
            video="video" in limits,
            tools=self.args.tool_call_parser is not None,
            reasoning=bool(self.args.structured_outputs_config.reasoning_parser),
        )

    @cached_property
    def _limits(self) -> Mapping[str, Any]:
        return _modalities(self.setup.vllm_config.model_config)

    # -- tokens ------------------------------------------------------------------------

    async def render(self, request: Request) -> list[int]:
        rendered = await self._serving.render_chat_request(self._parsed(request, False))
        if hasattr(rendered, "error"):
            raise _refused(rendered.error.model_dump())
        _, (prompt, *_) = rendered
        return list(prompt["prompt_token_ids"])

    async def tokenize(self, text: str, model: str | None = None) -> list[int]:
        self.served_as(model)
        encode = self._renderer.get_tokenizer().encode
        return list(await self._patient(len(text), encode, text, add_special_tokens=False))

    async def detokenize(self, ids: Sequence[int], model: str | None = None) -> str:
        self.served_as(model)
        decode = self._renderer.get_tokenizer().decode
        return str(await self._patient(len(ids), decode, ids, skip_special_tokens=False))

    async def _patient(self, size: int, work: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """What ``work`` gives. What is long is done in a thread, one at a time."""
        if size <= _QUICK:
            return work(*args, **more)
        async with self._long:
            return await apart(partial(work, *args, **more))

    def addressed(self, spec: CallSpec) -> CallSpec:
        adapter = self.app.state.openai_serving_models.lora_requests.get(self.served_as(spec.model))
        options = {} if adapter is None else {"lora_request": adapter}
        rendered = RenderedCall({}, None, options) if options else None
        return replace(spec, model=self.setup.model, rendered=rendered)

    async def close(self) -> None:
        self._renderer.shutdown()


def front_args(setup: FrontSetup, names: Sequence[str]) -> Namespace:
    """The flags of a front end, as `vllm serve` would have parsed them."""
    args = parse_flags(setup.flags)
    args.model = setup.model
    args.served_model_name = list(names) or [display_name(setup.model)]
    args.enable_prompt_tokens_details = True
    args.family = family_of(setup.vllm_config, setup.flags)
    set_parsers(args, args.family, setup.flags)
    return args


def _raise_if_cancelled() -> None:
    """vLLM answers a task that is cancelled with an error, as if its client were gone."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _modalities(config: Any) -> Mapping[str, Any]:
    if not config.is_multimodal_model:
        return {}
    from vllm.multimodal import MULTIMODAL_REGISTRY

    info = MULTIMODAL_REGISTRY.create_processor(config).info
    limits: Mapping[str, Any] = info.allowed_mm_limits
    return limits


def _refused(error: Mapping[str, Any]) -> EngineError | NotServedError:
    text, code = str(error.get("message")), error.get("code") or 500
    if code == 404:
        return NotServedError(text)
    return CallRejectedError(text) if int(code) < 500 else EngineError(text)


def _reasons(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    reasons = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}".lstrip(": ") for one in found)
    return "; ".join(reasons)
