"""`ChatAgentRT`: a LangChain chat model on the runtime, embedded or behind a URL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
)
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils import from_env, secret_from_env
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from agentrt.errors import ConfigError
from agentrt.executors.info import display_name
from agentrt.integrations._compat.langgraph import node_heartbeat
from agentrt.integrations.langchain.callspec import as_choice, call_spec, choice_name
from agentrt.integrations.langchain.messages import as_chat
from agentrt.integrations.langchain.portal import Portal, Terms
from agentrt.integrations.langchain.replies import ChunkMaker, Origin, as_result
from agentrt.integrations.langchain.shared import endpoint_portal, engine_portal
from agentrt.integrations.langchain.structured import Method, structured
from agentrt.integrations.langgraph import follow, scope_of_call
from agentrt.request import CallSpec
from agentrt.runtime import Runtime

Chat = list[BaseMessage]
Stop = list[str] | None
SyncManager = CallbackManagerForLLMRun | None
AsyncManager = AsyncCallbackManagerForLLMRun | None
_PROVIDER = "agentrt"
_OPTIONS = (
    *("model", "temperature", "top_p", "max_tokens", "timeout", "stop", "seed"),
    *("frequency_penalty", "presence_penalty"),
)


class ChatAgentRT(BaseChatModel):
    """A chat model whose calls agentrt schedules.

    Without arguments it is this process's embedded engine, which starts at the first call
    and is shared. ``runtime`` is an open `Runtime` on the running event loop, or a `Portal`
    to one; ``base_url`` is an OpenAI-compatible endpoint instead. ``model`` must be what is
    served. ``temperature`` 0, the default, is greedy. ``max_tokens`` None is what the
    model's context has room for. ``timeout`` is in seconds for one call, which is aborted
    then. ``max_retries`` is for an endpoint: an embedded engine has no network to fail.

    Every call may override these by keyword, and take ``tools``, ``tool_choice``,
    ``response_format`` and ``schema``. Decoding obeys the schemas of tools and outputs.
    """

    model: str | None = None
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    timeout: float | None = Field(default=None, gt=0)
    stop: list[str] | str | None = Field(default=None, alias="stop_sequences")
    seed: int | None = None
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    max_retries: int = Field(default=2, ge=0)
    streaming: bool = False
    api_key: SecretStr | None = Field(
        default_factory=secret_from_env("AGENTRT_API_KEY", default=None)
    )
    base_url: str | None = Field(default_factory=from_env("AGENTRT_BASE_URL", default=None))
    runtime: Any = Field(default=None, exclude=True, repr=False)

    model_config = ConfigDict(populate_by_name=True)
    _borrowed: Portal | None = PrivateAttr(default=None)

    # -- construction ------------------------------------------------------------------

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        names = {*cls.model_fields, "stop_sequences"}
        for name in values if isinstance(values, Mapping) else ():
            if name not in names:
                raise ConfigError(
                    f"ChatAgentRT has no option {name!r}; it has {', '.join(_OPTIONS)}, "
                    "max_retries, streaming, api_key, base_url, runtime, and those of "
                    "every LangChain chat model"
                )
        return values

    @model_validator(mode="after")
    def _borrow_runtime(self) -> Self:
        follow()  # before the first graph starts
        if isinstance(self.runtime, Portal):
            self._borrowed = self.runtime
        elif isinstance(self.runtime, Runtime):
            self._borrowed = Portal.borrow(self.runtime)
        elif self.runtime is not None:
            raise ConfigError(
                f"runtime is a {type(self.runtime).__name__}; give an open agentrt.Runtime or a "
                "Portal, or leave it out for the embedded engine"
            )
        return self

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(
            text_inputs=True,
            image_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            pdf_inputs=False,
            text_outputs=True,
            tool_calling=True,
            tool_choice=True,
            tool_call_streaming=True,
            structured_output=True,
            temperature=True,
        )

    # -- what LangChain asks about it --------------------------------------------------

    @property
    def _llm_type(self) -> str:
        return "chat-agentrt"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OPTIONS} | {"base_url": self.base_url}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = LangSmithParams(
            ls_provider=_PROVIDER,
            ls_model_name=kwargs.get("model") or self.model or "default",
            ls_model_type="chat",
            ls_temperature=kwargs.get("temperature", self.temperature),
        )
        if (max_tokens := kwargs.get("max_tokens", self.max_tokens)) is not None:
            params["ls_max_tokens"] = max_tokens
        if stops := stop or self.stop:
            params["ls_stop"] = [stops] if isinstance(stops, str) else stops
        return params

    # -- calls -------------------------------------------------------------------------

    def _generate(
        self, messages: Chat, stop: Stop = None, run_manager: SyncManager = None, **kwargs: Any
    ) -> ChatResult:
        portal, spec, terms = self._prepare(messages, stop, kwargs, run_manager)
        return as_result(portal.call(spec, terms), _origin(portal, spec, terms))

    async def _agenerate(
        self, messages: Chat, stop: Stop = None, run_manager: AsyncManager = None, **kwargs: Any
    ) -> ChatResult:
        portal, spec, terms = self._prepare(messages, stop, kwargs, run_manager)
        return as_result(await portal.acall(spec, terms), _origin(portal, spec, terms))

    def _stream(
        self, messages: Chat, stop: Stop = None, run_manager: SyncManager = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        portal, spec, terms = self._prepare(messages, stop, kwargs, run_manager)
        maker: ChunkMaker | None = None
        with closing(portal.stream(spec, terms)) as chunks:
            for chunk in chunks:
                maker = maker or ChunkMaker(_origin(portal, spec, terms))
                yield from maker.chunks(chunk)

    async def _astream(
        self, messages: Chat, stop: Stop = None, run_manager: AsyncManager = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        portal, spec, terms = self._prepare(messages, stop, kwargs, run_manager)
        maker: ChunkMaker | None = None
        async with aclosing(portal.astream(spec, terms)) as chunks:
            async for chunk in chunks:
                maker = maker or ChunkMaker(_origin(portal, spec, terms))
                for made in maker.chunks(chunk):
                    yield made

    def _prepare(
        self,
        messages: Chat,
        stop: Stop,
        kwargs: dict[str, Any],
        manager: SyncManager | AsyncManager,
    ) -> tuple[Portal, CallSpec, Terms]:
        own = {name: getattr(self, name) for name in _OPTIONS}
        if stop is not None:
            own["stop"] = stop
        options = own | kwargs
        spec = call_spec(as_chat(messages), options)
        scope = scope_of_call(manager)
        terms = Terms(options["model"], options["timeout"], node_heartbeat(), scope)
        return self._portal(options["model"]), spec, terms

    def _portal(self, model: str | None) -> Portal:
        if self._borrowed is not None:
            return self._borrowed
        if self.base_url is None:
            return engine_portal(self.model)
        key = None if self.api_key is None else self.api_key.get_secret_value()
        return endpoint_portal(self.base_url, key, model, self.max_retries)

    # -- tools and schemas -------------------------------------------------------------

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Tell the model of tools. Its calls obey their schemas, ``strict`` or not.

        ``tool_choice`` is ``auto`` (the default: call one or answer), ``any`` or
        ``required``, ``none``, a tool's name, or True for ``any``.
        """
        shaped = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        names = [tool["function"]["name"] for tool in shaped if "function" in tool]
        if tool_choice is not None:
            kwargs["tool_choice"] = as_choice(choice_name(tool_choice, names))
        return self.bind(tools=shaped, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        method: Method = "function_calling",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """The model's output as an object of ``schema``, which decoding obeys by every method.

        ``function_calling`` describes it to the model, as a tool; with ``json_schema`` and
        ``json_mode`` the prompt has to describe it. ``json_mode`` needs no schema.
        Raises `ConfigError` for what cannot be.
        """
        if kwargs:
            raise ConfigError(
                f"with_structured_output has no option {', '.join(map(repr, kwargs))}; "
                "it has schema, method, include_raw and strict"
            )
        return structured(self, schema, method, include_raw=include_raw, strict=strict)


def _origin(portal: Portal, spec: CallSpec, terms: Terms) -> Origin:
    """To be asked for once the engine is there: it knows its model and its tools."""
    info = portal.info
    in_form = bool(spec.tools) and spec.tool_choice != "none" and not info.native_tools
    served = None if terms.model is None else info.served_as(terms.model)
    return Origin(display_name(served or info.model), spec, portal.next_number(), in_form)
