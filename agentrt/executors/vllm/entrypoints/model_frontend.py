"""vLLM's own front end for one model, in this process: for programs, and over HTTP as `app`.

By default, vLLM's renderer has a single thread, and reads messages in the event loop. Here long
chats and prompts get another thread, in which tenants take turns, so that short chats need not wait
for them (`work_apart`). A prompt with too many characters for the model's context is refused before
it is tokenized. If it still may not fit, its tokens are counted piece by piece until there are too
many.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import from_json
from vllm.exceptions import VLLMError, VLLMValidationError

from agentrt.errors import (
    AgentrtError,
    CallRejectedError,
    ConfigError,
    EngineError,
    NotServedError,
    first_of,
    text_of,
)
from agentrt.executors.base import Executor, FrontSetup
from agentrt.executors.chat_api import (
    WORKS_FOR,
    Answer,
    Caller,
    Frontend,
    FrontProfile,
    Request,
    refusal,
    stepped,
)
from agentrt.executors.info import display_name, is_model, not_served
from agentrt.executors.vllm._compat.api_server import (
    RenderedChat,
    accept_name,
    beam_outputs,
    end_in_background,
    format_stream,
    format_whole,
    keep_system_messages,
    make_app,
    make_renderer,
    render_chat,
    unmerged_quietly,
)
from agentrt.executors.vllm._compat.cut_off import read_cut_off
from agentrt.executors.vllm._compat.tools import leave_odd_schemas_out
from agentrt.executors.vllm.entrypoints.arranged import arrange_chats
from agentrt.executors.vllm.entrypoints.client import ProgramEngineClient, as_ours
from agentrt.executors.vllm.entrypoints.families import TOOL_FORM
from agentrt.executors.vllm.entrypoints.flags import parse_flags
from agentrt.executors.vllm.entrypoints.parsers import family_of, set_parsers
from agentrt.executors.vllm.entrypoints.submit import submit
from agentrt.executors.vllm.processes import in_new_thread
from agentrt.executors.vllm.turns import SharedThread, Turns
from agentrt.request import CallSpec, RenderedCall

if TYPE_CHECKING:
    from argparse import Namespace

    from fastapi import FastAPI

# -- long prompts ------------------------------------------------------------------------


LONG_PROMPT = 32_000
"""Maximum length of a short prompt: in characters if it is text, in tokens if it is token ids. To
tokenize or decode this much takes about 20 ms.
"""
MANY_MESSAGES = 64
"""Maximum number of messages of a short chat. To read this many takes about 1 ms."""
AHEAD = 8_000
"""While this many characters of short prompts wait for a thread of vLLM's, no further short prompt
is passed to the thread. To tokenize this many takes about 5 ms.

If prompts were passed one by one, the thread and the event loop would wake each other for each
prompt.
"""
_SURE = 6
"""A prompt with at most this many characters per token of the model's context is assumed to fit.

The tokens of longer prompts are counted by `check_tokens` first.
"""
_PIECE = 64_000
"""Characters that `check_tokens` tokenizes at a time."""


def work_apart(renderer: Any, max_model_len: int) -> Any:
    """Make one of vLLM's renderers handle long chats and prompts in a thread of their own.

    Prompts are tokenized, or decoded if they are token ids. Returns the renderer.
    ``max_model_len`` is the model's context in tokens; longer prompts get vLLM's
    `VLLMValidationError`.
    """
    quick, quick_decode = renderer._tokenize_prompt_async, renderer._async_tokenizer_decode
    run_apart, short = (
        SharedThread("long-prompts", equal=True).run,
        Turns(AHEAD * renderer.model_config.renderer_num_workers),
    )

    async def tokenize(prompt: Any, params: Any) -> Any:
        text = prompt["prompt"]
        if len(text) <= LONG_PROMPT:
            # Tenants take turns, since one request may have a thousand prompts.
            await short.take(WORKS_FOR.get(), len(text))
            try:
                return await quick(prompt, params)
            finally:
                short.over(len(text))
        most = params.max_total_tokens or max_model_len
        tokenizer = renderer.get_tokenizer()
        if len(text) > most * tokenizer.max_chars_per_token:
            raise _too_long(most, f"{len(text)} characters")

        def tokenized() -> Any:
            if params.truncate_prompt_tokens is None and len(text) > most * _SURE:
                check_tokens(tokenizer, text, most)
            return renderer._tokenize_prompt(prompt, params)

        return await run_apart(tokenized, WORKS_FOR.get())

    async def decode(ids: Any, *args: Any, **options: Any) -> Any:
        if len(ids) <= LONG_PROMPT:
            return await quick_decode(ids, *args, **options)
        return await run_apart(lambda: renderer._decode(ids, *args, **options), WORKS_FOR.get())

    renderer._tokenize_prompt_async, renderer._async_tokenizer_decode = tokenize, decode
    renderer.render_messages_async = _rendering(renderer, run_apart)
    return renderer


def _rendering(renderer: Any, run_apart: Any) -> Callable[..., Awaitable[Any]]:
    read = renderer.render_messages_async

    async def render(messages: Sequence[Any], params: Any) -> Any:
        if len(messages) <= MANY_MESSAGES or not all(map(_is_text, messages)):
            return await read(messages, params)
        return await run_apart(lambda: renderer.render_messages(messages, params), WORKS_FOR.get())

    return render


def _is_text(message: Any) -> bool:
    """Return whether a message has only text. vLLM loads images in parallel in the event loop."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return content is None or isinstance(content, str)


def check_tokens(tokenizer: Any, text: str, most: int) -> None:
    """Raise vLLM's error as soon as the beginning of ``text`` has more than ``most`` tokens."""
    count = 0
    for start in range(0, len(text), _PIECE):
        piece = tokenizer(text[start : start + _PIECE], add_special_tokens=False)
        # A cut may split a token, so the whole text may have this many tokens less.
        count += len(piece["input_ids"]) - tokenizer.max_chars_per_token
        if count > most:
            raise _too_long(most, f"at least {count} input tokens")


def _too_long(most: int, has: str) -> VLLMValidationError:
    return VLLMValidationError(
        f"This model's maximum context length is {most} tokens. However, your prompt contains "
        f"{has}. Please reduce the length of the input prompt.",
        parameter="input_text",
    )


_DATA = "data: "
_END = "[DONE]"
_QUICK = 4096
"""Maximum number of characters to encode, or of tokens to decode, in the event loop. This many take
a few milliseconds.
"""


class VLLMFrontend(Frontend):
    """The front end of ``setup``'s model. Create it with `open`.

    ``app`` is vLLM's application, and ``args`` are its parsed flags. ``name`` is the model's name
    in answers. With ``reminders``, system messages in the middle of a chat stay at their place.
    ``budgets`` says whether the engines can limit the number of thinking tokens.
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
        """Open a front end whose calls run on ``executor``.

        ``names`` are the names under which clients request the model; by default its own name, and
        the text that named it when the engine started, such as a folder. Clients of `vllm serve`
        use this text. Raises `ConfigError` for flags that vLLM's front end refuses.
        """
        args: Namespace | None = None
        try:
            args = front_args(setup, names)
            # Error messages contain this name, and must not show clients the model's folder.
            setup.vllm_config.model_config.served_model_name = args.served_model_name[0]
            renderer, processor = await in_new_thread(make_renderer, setup.vllm_config)
            if args.tool_call_parser == TOOL_FORM:
                from agentrt.executors.vllm.entrypoints.tool_form import explain_tools

                renderer = explain_tools(renderer)
            # The last wrapper runs first: long chats go to their thread, then chats are arranged,
            # then tools are explained.
            renderer = arrange_chats(renderer, reminders=reminders)
            work_apart(renderer, setup.vllm_config.model_config.max_model_len)
            client = ProgramEngineClient(setup, renderer, processor, executor)
            with unmerged_quietly() if reminders else contextlib.nullcontext():
                app = await make_app(client, args, setup.tasks)
            if reminders:
                keep_system_messages(app.state)
            if not names:
                accept_name(app.state, setup.model)
            end_in_background(app.state)
            read_cut_off(app.state, client.model_config, renderer.get_tokenizer())
            leave_odd_schemas_out(app.state, setup.vllm_config, renderer.get_tokenizer())
        except (TypeError, ValueError, KeyError, OSError, VLLMError) as error:
            text = f"vLLM's front end for model {setup.model!r} refuses its options: {error}"
            raise ConfigError(text) from error
        except Exception as error:  # vLLM's client of a tool server has errors of its own
            if args is None or not args.tool_server:
                raise
            reason = " ".join(text_of(first_of(error)).split()) or type(error).__name__
            text = f"--tool-server {args.tool_server}: {reason}; start this server first"
            raise ConfigError(text) from error
        return cls(setup, args, app, renderer, reminders=reminders)

    # -- chats -------------------------------------------------------------------------

    async def chat(self, request: Request, caller: Caller) -> Answer:
        with _own_errors():
            chat = await self._rendered(request, stream=False)
            async with contextlib.aclosing(self._submitted(chat, caller)) as outputs:
                whole = [output async for output in outputs]
            answer = await format_whole(self._serving, chat, whole)
        if hasattr(answer, "error"):
            raise _refused(answer.error.model_dump())
        body: Answer = answer.model_dump(exclude_unset=True, mode="json")
        return body

    async def chat_stream(self, request: Request, caller: Caller) -> AsyncGenerator[Answer, None]:
        errors: list[AgentrtError] = []
        with _own_errors():
            chat = await self._rendered(request, stream=True)
            outputs = self._submitted(chat, caller, errors.append)
        # vLLM 0.33 leaves the outputs of several choices to the garbage collector.
        async with (
            contextlib.aclosing(outputs),
            contextlib.aclosing(format_stream(self._serving, chat, outputs)) as events,
        ):
            async for event in events:
                data = event.removeprefix(_DATA).strip()
                if not event.startswith(_DATA) or data == _END:
                    continue
                piece = from_json(data)
                if "error" in piece:
                    raise errors[0] if errors else _refused(piece["error"])
                yield piece

    async def _rendered(self, request: Request, *, stream: bool) -> RenderedChat:
        """Render a request. Raises `NotServedError`, `EngineError` and vLLM's errors."""
        chat = await render_chat(self._serving, self._parsed(request, stream))
        if hasattr(chat, "error"):
            raise _refused(chat.error.model_dump())
        rendered: RenderedChat = chat
        return rendered

    def _submitted(
        self,
        chat: RenderedChat,
        caller: Caller,
        note: Callable[[AgentrtError], None] = lambda error: None,
    ) -> AsyncGenerator[Any, None]:
        """Return the outputs of a rendered request.

        ``note`` is called with the error of a call that fails, because vLLM's formatting replaces
        this error by its own. The calls of a beam search do not call ``note``.
        """
        if chat.request.use_beam_search:
            return stepped(caller, beam_outputs(self._serving, chat))

        def failed(raised: BaseException) -> AgentrtError | None:
            if (error := caller.failed(raised)) is not None:
                note(error)
            return error

        model, options = self.setup.model, chat.options
        return submit(caller, model, chat.prompt, chat.params, options, chat.request_id, failed)

    @property
    def _serving(self) -> Any:
        serving = getattr(self.app.state, "openai_serving_chat", None)
        if serving is None:
            raise CallRejectedError(f"model {self.name!r} does not generate text")
        return serving

    def _parsed(self, request: Request, stream: bool) -> Any:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        body = {**request, "model": self.served_as(request.get("model")), "stream": stream}
        if body.get("max_tokens") is not None:  # deprecated: vLLM would log a warning
            limit = body.pop("max_tokens")
            body.setdefault("max_completion_tokens", limit)
        limit = body.get("max_completion_tokens")
        if isinstance(limit, int) and limit > self.max_model_len:  # as agentrt's server does
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
        """Maximum number of tokens of a call, prompt and output together."""
        return int(self.setup.vllm_config.model_config.max_model_len)

    @property
    def images(self) -> bool:
        """Whether the model takes images."""
        return "image" in self._limits

    # -- models ------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names by which requests may name the model and its adapters."""
        models = self.app.state.openai_serving_models
        return [*self.args.served_model_name, *models.lora_requests]

    def served_as(self, model: str | None) -> str:
        """Return the served name of a model or adapter that a request names; None means the model.

        Raises `NotServedError` for a name that is not served.
        """
        if model in (names := self.names):  # an adapter may have the name of the model's folder
            return model
        if model is None or is_model(model, self.setup.model):
            return self.name
        raise not_served(model, tuple(names))

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
        with _own_errors():
            rendered = await self._serving.render_chat_request(self._parsed(request, False))
        if hasattr(rendered, "error"):
            raise _refused(rendered.error.model_dump())
        _, (prompt, *_) = rendered
        return list(prompt["prompt_token_ids"])

    async def tokenize(self, text: str, model: str | None = None) -> list[int]:
        self.served_as(model)
        encode = self._renderer.get_tokenizer().encode
        with _own_errors():
            return list(await self._patient(len(text), encode, text, add_special_tokens=False))

    async def detokenize(self, ids: Sequence[int], model: str | None = None) -> str:
        self.served_as(model)
        decode = self._renderer.get_tokenizer().decode
        return str(await self._patient(len(ids), decode, ids, skip_special_tokens=False))

    async def _patient(self, size: int, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of ``work``. If ``size`` (characters to encode, or tokens to decode) is
        more than `_QUICK`, ``work`` runs in a thread, after all earlier work of this size.
        """
        if size <= _QUICK:
            return work(*args, **kwargs)
        async with self._long:
            return await in_new_thread(partial(work, *args, **kwargs))

    def addressed(self, spec: CallSpec) -> CallSpec:
        adapter = self.app.state.openai_serving_models.lora_requests.get(self.served_as(spec.model))
        options = {} if adapter is None else {"lora_request": adapter}
        rendered = RenderedCall(options=options) if options else None
        return replace(spec, model=self.setup.model, rendered=rendered)

    async def close(self) -> None:
        self._renderer.shutdown()


def front_args(setup: FrontSetup, names: Sequence[str]) -> Namespace:
    """Return the options of a front end, as `vllm serve` would parse them.

    ``family`` is added: the parsers of the model.
    """
    args = parse_flags(setup.flags)
    args.model = setup.model
    args.served_model_name = list(names) or [display_name(setup.model)]
    args.enable_prompt_tokens_details = True
    args.family = family_of(setup.vllm_config, setup.flags)
    set_parsers(args, args.family, setup.flags)
    return args


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Convert vLLM's errors in the ``with`` block to agentrt's.

    If vLLM's error was made from an error of agentrt's, raise that error.
    """
    try:
        yield
    except VLLMError as error:
        if isinstance(own := error.__cause__, AgentrtError):  # see `for_vllm`
            raise own from own.__cause__
        raise as_ours(error) from error
    except AgentrtError:
        raise
    except (ValueError, TypeError, NotImplementedError) as error:
        raise CallRejectedError(refusal(error)) from error


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
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(
        f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".lstrip(": ") for fault in faults
    )
