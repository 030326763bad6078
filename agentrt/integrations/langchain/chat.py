"""`ChatAgentRT`: a LangChain chat model on an embedded engine or behind a URL."""

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
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from agentrt.errors import ConfigError
from agentrt.integrations._compat.langgraph import node_heartbeat
from agentrt.integrations.langchain.client import RuntimeClient, Terms
from agentrt.integrations.langchain.messages import as_chat
from agentrt.integrations.langchain.options import (
    OF_CALLS,
    SENT,
    Method,
    as_choice,
    as_profile,
    as_tools,
    by_own_names,
    expected_profile,
    model_options,
    names_of,
    overflows_translated,
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
    """A LangChain chat model whose calls agentrt schedules.

    Without arguments, the model uses the endpoint in the variable ``AGENTRT_BASE_URL``, or without
    this variable, this process's embedded engine, which starts at the first call and is shared. Set
    ``runtime`` to an open `Runtime` or to a `RuntimeClient`; or set ``base_url`` to an
    OpenAI-compatible endpoint. ``model`` must be the model that is served.

    ``temperature`` 0, the default, is greedy decoding; None uses the temperature that the model's
    authors recommend, and is the default if ``n`` is greater than 1. With ``max_tokens`` None, an
    answer may fill the model's context. ``timeout`` is the limit of a call in seconds; a call that
    takes longer is aborted. ``max_retries`` applies to an endpoint only, because an embedded engine
    has no network that can fail.

    Every call may override these options by keyword, except ``streaming``, ``runtime``, and the
    options of an endpoint: ``base_url``, ``api_key``, ``default_headers``, ``default_query`` and
    ``max_retries``. A call also takes ``tools``, ``tool_choice``, ``response_format`` and
    ``schema``. The options of ``ChatOpenAI`` have the same names here. Other fields of a chat
    request go into ``extra_body``. docs/langchain.md lists all options.
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
        follow()  # must be called before the first graph starts
        if isinstance(self.runtime, RuntimeClient):
            self._borrowed = self.runtime
        elif isinstance(self.runtime, Runtime):
            self._borrowed = RuntimeClient.borrow(self.runtime)
        elif self.runtime is not None:
            raise ConfigError(
                f"runtime is of type {type(self.runtime).__name__}; set it to an open "
                "agentrt.Runtime or a RuntimeClient, or leave it out to use the embedded engine"
            )
        self._learn_profile(self._client(self.model))
        return self

    def _resolve_model_profile(self) -> ModelProfile:
        self._expects = True
        elsewhere = self.runtime is not None or self.base_url is not None
        return expected_profile(self.model, known=not elsewhere)

    def _learn_profile(self, client: RuntimeClient) -> None:
        """Use the engine's own profile of the model once the engine has started."""
        if self._expects and client.front is not None:
            with suppress(ConfigError):  # a call will report the wrong model name
                self.profile = as_profile(client.front.profile(self.model))

    # -- properties that LangChain reads -----------------------------------------------

    @property
    def model_name(self) -> str | None:
        """The same as ``model``, for compatibility with `ChatOpenAI`."""
        return self.model

    @property
    def _llm_type(self) -> str:
        return "chat-agentrt"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """The values by which LangChain's caches tell models apart."""
        params = {name: getattr(self, name) for name in _OPTIONS} | {"base_url": self.base_url}
        if self.model is None and self._borrowed is not None:
            # Runtimes may serve different models, and the cache must not mix their answers. A
            # runtime that is not open yet, and some endpoints, do not say which model they serve.
            params["model"] = next(iter(self._borrowed.info.models), self._borrowed.key)
        return params

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
        with self._prepared(messages, stop, kwargs, run_manager) as prepared:
            return as_result(prepared.client.call(prepared.request, prepared.terms))

    async def _agenerate(
        self, messages: Chat, stop: Stop = None, run_manager: AsyncManager = None, **kwargs: Any
    ) -> ChatResult:
        with self._prepared(messages, stop, kwargs, run_manager) as prepared:
            return as_result(await prepared.client.acall(prepared.request, prepared.terms))

    def _stream(
        self, messages: Chat, stop: Stop = None, run_manager: SyncManager = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        with (
            self._prepared(messages, stop, kwargs, run_manager, stream=True) as prepared,
            closing(prepared.client.stream(prepared.request, prepared.terms)) as pieces,
        ):
            for piece in pieces:
                yield from prepared.maker.chunks(piece)

    async def _astream(
        self, messages: Chat, stop: Stop = None, run_manager: AsyncManager = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        with self._prepared(messages, stop, kwargs, run_manager, stream=True) as prepared:
            async with aclosing(
                prepared.client.astream(prepared.request, prepared.terms)
            ) as pieces:
                async for piece in pieces:
                    for made in prepared.maker.chunks(piece):
                        yield made

    @contextmanager
    def _prepared(
        self,
        messages: Chat,
        stop: Stop,
        kwargs: Mapping[str, Any],
        manager: SyncManager | AsyncManager,
        *,
        stream: bool = False,
    ) -> Iterator[_PreparedCall]:
        prepared = self._prepare(messages, stop, kwargs, manager, stream=stream)
        try:
            with overflows_translated():
                yield prepared
        finally:
            self._learn_profile(prepared.client)

    def _prepare(
        self,
        messages: Chat,
        stop: Stop,
        kwargs: Mapping[str, Any],
        manager: SyncManager | AsyncManager,
        *,
        stream: bool,
    ) -> _PreparedCall:
        options = {name: getattr(self, name) for name in _OPTIONS}
        if stop is not None:
            options["stop"] = stop
        options |= by_own_names(kwargs, OF_CALLS)
        if (options["n"] or 1) > 1 and not {"temperature"} & {*self.model_fields_set, *kwargs}:
            options["temperature"] = None  # several greedy answers would be identical
        request = request_of(as_chat(messages), options)
        if stream and (request.get("n") or 1) > 1:
            raise ConfigError(
                f"a stream has one answer, but n is {request['n']}; set n to 1, or use generate()"
            )
        terms = Terms(seconds(options["timeout"]), node_heartbeat(), scope_of_call(manager))
        maker = ChunkMaker(
            with_usage=options["stream_usage"] is not False,
            first_index=100 if self.output_version == "v1" else 0,
        )
        return _PreparedCall(self._client(options["model"]), request, terms, maker)

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
        """Return the token ids of the text, from the model's own tokenizer. Starts the engine if
        needed.
        """
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        client = self._client(self.model)
        return client.ask(lambda front: front.tokenize(text, self.model))

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """Return the number of tokens of a prompt with these messages and tools, including the
        tokens of the model's chat template.

        With ``custom_get_token_ids``, LangChain counts only the messages, without the tools and the
        template.
        """
        if self.custom_get_token_ids is not None:
            return super().get_num_tokens_from_messages(messages)
        options = {"model": self.model, "tools": as_tools(tools or ())}
        request = request_of(as_chat(messages), options)
        with overflows_translated():
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
        """Bind tools to the model. ``kwargs`` are other options of the calls.

        ``tool_choice`` is ``auto`` (the default: the model calls a tool or answers), ``any`` or
        ``required`` (it must call a tool), ``none``, a tool's name, or True for ``any``.
        """
        shaped = as_tools(tools, strict=strict)
        names = names_of([tool for tool in shaped if "function" in tool])
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
        """Return a runnable whose output is an object of ``schema``.

        Decoding is constrained to the schema with every method. ``function_calling`` describes the
        schema to the model as a tool; with ``json_schema`` and ``json_mode`` the prompt must
        describe it. ``json_mode`` works without a schema. ``kwargs`` are other options of the
        calls. With ``tools``, the model may call a tool in place of an answer with these two
        methods; the output is then None. Raises `ConfigError` for an unknown method or a missing
        schema.
        """
        return structured(self, schema, method, include_raw=include_raw, strict=strict, **kwargs)


@dataclass(frozen=True, slots=True)
class _PreparedCall:
    """A call that is ready to be made: the client that makes it, the request, the terms (timeout,
    heartbeat and scope), and the maker of its chunks.
    """

    client: RuntimeClient
    request: dict[str, Any]
    terms: Terms
    maker: ChunkMaker
