"""`ChatAgentRT`: a LangChain chat model on the runtime, embedded or behind a URL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import dataclass
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
from agentrt.integrations._compat.langgraph import node_heartbeat
from agentrt.integrations.langchain.client import RuntimeClient, Terms
from agentrt.integrations.langchain.limits import as_profile, expected_profile, overflows_told
from agentrt.integrations.langchain.messages import as_chat
from agentrt.integrations.langchain.options import (
    OF_CALLS,
    SENT,
    Method,
    as_choice,
    by_own_names,
    model_options,
    request_of,
    seconds,
    structured,
)
from agentrt.integrations.langchain.replies import PROVIDER, ChunkMaker, as_result
from agentrt.integrations.langchain.shared import endpoint_client, engine_client
from agentrt.integrations.langgraph import follow, scope_of_call
from agentrt.runtime import Runtime

Chat = list[BaseMessage]
Stop = list[str] | None
SyncManager = CallbackManagerForLLMRun | None
AsyncManager = AsyncCallbackManagerForLLMRun | None
_OPTIONS = ("model", *SENT, "max_tokens", "timeout", "stream_usage", "model_kwargs", "extra_body")


class ChatAgentRT(BaseChatModel):
    """A chat model whose calls agentrt schedules.

    Without arguments it is this process's embedded engine, which starts at the first call
    and is shared. ``runtime`` is an open `Runtime` on the running event loop, or a `RuntimeClient`
    to one; ``base_url`` is an OpenAI-compatible endpoint instead. ``model`` must be what is
    served. ``temperature`` 0, the default, is greedy; None is what the model's makers
    recommend. ``max_tokens`` None is what the model's context has room for. ``timeout`` is in
    seconds for one call, which is aborted then. ``max_retries`` is for an endpoint: an embedded
    engine has no network to fail.

    Every call may override these by keyword, and take ``tools``, ``tool_choice``,
    ``response_format`` and ``schema``. The options of ``ChatOpenAI`` are taken under its names,
    and any other field of a chat request in ``extra_body``: docs/langchain.md has them all.
    """

    model: str | None = None
    temperature: float | None = Field(default=0.0, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1)
    timeout: float | None = Field(default=None, gt=0)
    stop: list[str] | str | None = Field(default=None, alias="stop_sequences")
    seed: int | None = None
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[int, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0)
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    extra_body: dict[str, Any] | None = None
    stream_usage: bool | None = None
    streaming: bool = False
    max_retries: int | None = Field(default=None, ge=0)
    default_headers: dict[str, str] | None = None
    default_query: dict[str, Any] | None = None
    api_key: SecretStr | None = Field(
        default_factory=secret_from_env("AGENTRT_API_KEY", default=None)
    )
    base_url: str | None = Field(default_factory=from_env("AGENTRT_BASE_URL", default=None))
    runtime: Any = Field(default=None, exclude=True, repr=False)

    model_config = ConfigDict(populate_by_name=True)
    _borrowed: RuntimeClient | None = PrivateAttr(default=None)
    _expects: bool = PrivateAttr(default=False)

    # -- construction ------------------------------------------------------------------

    @model_validator(mode="before")
    @classmethod
    def _by_own_names(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return model_options(values, cls.model_fields)

    @model_validator(mode="after")
    def _borrow_runtime(self) -> Self:
        follow()  # before the first graph starts
        if isinstance(self.runtime, RuntimeClient):
            self._borrowed = self.runtime
        elif isinstance(self.runtime, Runtime):
            self._borrowed = RuntimeClient.borrow(self.runtime)
        elif self.runtime is not None:
            raise ConfigError(
                f"runtime is a {type(self.runtime).__name__}; give an open agentrt.Runtime or a "
                "RuntimeClient, or leave it out for the embedded engine"
            )
        self._learn_profile(self._client(self.model))
        return self

    def _resolve_model_profile(self) -> ModelProfile:
        self._expects = True
        elsewhere = self.runtime is not None or self.base_url is not None
        return expected_profile(self.model, known=not elsewhere)

    def _learn_profile(self, client: RuntimeClient) -> None:
        """Take over what the engine says of itself, once it is there."""
        if self._expects and client.front is not None:
            with suppress(ConfigError):  # a call will say what is wrong with the model's name
                self.profile = as_profile(client.front.profile(self.model))

    # -- what LangChain asks about it --------------------------------------------------

    @property
    def model_name(self) -> str | None:
        """The same as ``model``, as `ChatOpenAI` has it."""
        return self.model

    @property
    def _llm_type(self) -> str:
        return "chat-agentrt"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OPTIONS} | {"base_url": self.base_url}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = LangSmithParams(
            ls_provider=PROVIDER,
            ls_model_name=kwargs.get("model") or self.model or "default",
            ls_model_type="chat",
        )
        if (temperature := kwargs.get("temperature", self.temperature)) is not None:
            params["ls_temperature"] = temperature
        if (max_tokens := kwargs.get("max_tokens", self.max_tokens)) is not None:
            params["ls_max_tokens"] = max_tokens
        if stops := stop or self.stop:
            params["ls_stop"] = [stops] if isinstance(stops, str) else stops
        return params

    # -- calls -------------------------------------------------------------------------

    def _generate(
        self, messages: Chat, stop: Stop = None, run_manager: SyncManager = None, **kwargs: Any
    ) -> ChatResult:
        with self._asking(messages, stop, kwargs, run_manager) as asked:
            return as_result(asked.client.call(asked.request, asked.terms))

    async def _agenerate(
        self, messages: Chat, stop: Stop = None, run_manager: AsyncManager = None, **kwargs: Any
    ) -> ChatResult:
        with self._asking(messages, stop, kwargs, run_manager) as asked:
            return as_result(await asked.client.acall(asked.request, asked.terms))

    def _stream(
        self, messages: Chat, stop: Stop = None, run_manager: SyncManager = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        with (
            self._asking(messages, stop, kwargs, run_manager, stream=True) as asked,
            closing(asked.client.stream(asked.request, asked.terms)) as pieces,
        ):
            for piece in pieces:
                yield from asked.maker.chunks(piece)

    async def _astream(
        self, messages: Chat, stop: Stop = None, run_manager: AsyncManager = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        with self._asking(messages, stop, kwargs, run_manager, stream=True) as asked:
            async with aclosing(asked.client.astream(asked.request, asked.terms)) as pieces:
                async for piece in pieces:
                    for made in asked.maker.chunks(piece):
                        yield made

    @contextmanager
    def _asking(
        self,
        messages: Chat,
        stop: Stop,
        kwargs: Mapping[str, Any],
        manager: SyncManager | AsyncManager,
        *,
        stream: bool = False,
    ) -> Iterator[_Asked]:
        asked = self._ask(messages, stop, kwargs, manager, stream=stream)
        try:
            with overflows_told():
                yield asked
        finally:
            self._learn_profile(asked.client)

    def _ask(
        self,
        messages: Chat,
        stop: Stop,
        kwargs: Mapping[str, Any],
        manager: SyncManager | AsyncManager,
        *,
        stream: bool,
    ) -> _Asked:
        options = {name: getattr(self, name) for name in _OPTIONS}
        if stop is not None:
            options["stop"] = stop
        options |= by_own_names(kwargs, OF_CALLS)
        if (options["n"] or 1) > 1 and not {"temperature"} & {*self.model_fields_set, *kwargs}:
            options["temperature"] = None  # several greedy answers would be the same
        request = request_of(as_chat(messages), options)
        if stream and (request.get("n") or 1) > 1:
            raise ConfigError("a stream has one answer: leave n at 1, or take generate()")
        terms = Terms(seconds(options["timeout"]), node_heartbeat(), scope_of_call(manager))
        maker = ChunkMaker(
            with_usage=options["stream_usage"] is not False,
            first_index=100 if self.output_version == "v1" else 0,
        )
        return _Asked(self._client(options["model"]), request, terms, maker)

    def _client(self, model: str | None) -> RuntimeClient:
        if self._borrowed is not None:
            return self._borrowed
        if self.base_url is None:
            return engine_client(self.model)
        return endpoint_client(
            self.base_url,
            model=model,
            api_key=None if self.api_key is None else self.api_key.get_secret_value(),
            max_retries=2 if self.max_retries is None else self.max_retries,
            headers=self.default_headers,
            query=self.default_query,
        )

    # -- tokens ------------------------------------------------------------------------

    def get_token_ids(self, text: str) -> list[int]:
        """The text's tokens, by the model's own tokenizer; it starts an engine that has not."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        client = self._client(self.model)
        return client.ask(lambda front: front.tokenize(text, self.model))

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """The tokens of a prompt with these messages and tools, the model's template included."""
        if self.custom_get_token_ids is not None:
            return super().get_num_tokens_from_messages(messages)
        shaped = [convert_to_openai_tool(tool) for tool in tools or ()]
        request = request_of(as_chat(messages), {"model": self.model, "tools": shaped})
        return self._client(self.model).ask(lambda front: front.count_tokens(request))

    # -- tools and schemas -------------------------------------------------------------

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Tell the model of tools; ``kwargs`` are other options of the calls.

        ``tool_choice`` is ``auto`` (the default: call one or answer), ``any`` or
        ``required``, ``none``, a tool's name, or True for ``any``.
        """
        shaped = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        names = [tool["function"]["name"] for tool in shaped if "function" in tool]
        if (choice := as_choice(tool_choice, names)) is not None:
            kwargs["tool_choice"] = choice
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
        ``kwargs`` are other options of the calls. Raises `ConfigError` for what cannot be.
        """
        return structured(self, schema, method, include_raw=include_raw, strict=strict, **kwargs)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call that is about to be made: by way of what, and what is asked on what terms."""

    client: RuntimeClient
    request: dict[str, Any]
    terms: Terms
    maker: ChunkMaker
