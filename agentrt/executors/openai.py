"""An executor for an OpenAI-compatible endpoint: `agentrt serve`, `vllm serve`, or another
server.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from agentrt.errors import (
    CallRejectedError,
    ConfigError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    PromptTooLongError,
    shown_url,
    url_fault,
)
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.chat_api import Answer, refusal
from agentrt.executors.identity import to_headers
from agentrt.executors.info import ExecutorInfo
from agentrt.extras import install_command
from agentrt.former import warn_of_former_place
from agentrt.proxies import client_options
from agentrt.request import Call, CallReport, Reply

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_NO_KEY = "none"
"""The API key for a server without keys: the client requires a key, but the server ignores it."""


class OpenAIEndpoint(Executor):
    """An executor that sends each chat request to ``base_url`` (``http://host:port/v1``).

    If ``model`` is None, `start` chooses the endpoint's first model. A request is sent with all its
    fields, with this model, and with the further ``headers`` and ``query`` parameters. A streamed
    request without ``stream_options`` also asks for the numbers of tokens. ``max_retries`` is the
    maximum number of retries of a request. Set ``images`` if the model takes images, because
    endpoints do not report whether it does.

    The call's identity is sent in headers (`agentrt.executors.identity`). A call's report contains
    only its numbers of tokens and, as its service time, the seconds from the request to the end of
    the answer, since endpoints report nothing else.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        max_retries: int = 2,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
        images: bool = False,
    ) -> None:
        self.base_url = base_url
        self.images = images
        self.model = model or ""
        self._client_options: dict[str, Any] = {
            "api_key": api_key or _NO_KEY,
            "max_retries": max_retries,
            "default_headers": headers,
            "default_query": query,
            "timeout": None,  # callers set the time limits of their calls
        }
        self._client: AsyncOpenAI | None = None

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo((self.model,) if self.model else (), images=self.images)

    @property
    def _shown(self) -> str:
        return shown_url(self.base_url)

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        try:
            from openai import AsyncOpenAI, DefaultAsyncHttpxClient
        except ImportError as error:
            raise ConfigError(
                f"an OpenAI endpoint needs the package openai ({error}); run: "
                f"{install_command('remote')}"
            ) from error
        fault = url_fault(self.base_url)
        if fault is None and not self.base_url.lower().startswith(("http://", "https://")):
            fault = "it does not begin with http:// or https://"
        if fault is not None:
            raise ConfigError(
                f"base_url {self._shown!r} is not a valid URL ({fault}); use a URL such as "
                "http://host:8000/v1"
            )
        progress(f"asking {self._shown} for its models")
        http = DefaultAsyncHttpxClient(**client_options(self.base_url))
        self._client = AsyncOpenAI(base_url=self.base_url, http_client=http, **self._client_options)
        self.model = _choose(self._shown, self.model, await self._models())
        progress("the engine is ready")

    async def _models(self) -> list[str]:
        import openai

        try:
            names = [model.id async for model in self._running().models.list()]
            ", ".join(names)  # raises TypeError unless all ids are texts
        except openai.APIConnectionError as error:
            raise EngineStartError(
                f"nothing answers at {self._shown} ({_cause(error)}); start the server, or "
                "change base_url"
            ) from error
        except openai.APIStatusError as error:
            raise EngineStartError(
                f"{self._shown} does not list its models: {_reason(error)}; check base_url and "
                "the API key"
            ) from error
        # The client checks no types: HTML, other JSON or models without an id cause these errors.
        except (openai.APIError, AttributeError, TypeError, ValueError) as error:
            raise EngineStartError(
                f"{self._shown} answers, but not with a list of models like an OpenAI-compatible "
                "server; check base_url, which usually ends with /v1"
            ) from error
        return names

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        import openai

        answer: Answer = {"choices": []}
        usage: Mapping[str, Any] = {}
        text, has_choices, began = "", False, time.monotonic()
        try:
            async with contextlib.aclosing(self._answers(call, stream)) as answers:
                async for answer in answers:
                    usage, piece = answer.get("usage") or usage, _text(answer)
                    text += piece
                    has_choices |= bool(answer.get("choices"))
                    if stream:
                        yield Chunk(piece, output=answer)
        except openai.APIConnectionError as error:
            raise EngineDiedError(
                f"the connection to {self._shown} was lost during call {call.call_id}: "
                f"{_cause(error)}; check that the server still runs"
            ) from error
        except openai.APIStatusError as error:
            raise _refused(call, _reason(error), error.code, error.status_code) from error
        except openai.APIError as error:  # an error event in the middle of a stream
            raise _failed(call, error.body or error.message) from error
        except UnicodeEncodeError as error:
            raise CallRejectedError(f"call {call.call_id}: {refusal(error)}") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise self._not_an_answer(call, f"its JSON is invalid: {error}") from error
        if not has_choices:
            raise self._not_an_answer(call, "its answer has no choices")
        reply = Reply(text, report=_report(usage, time.monotonic() - began))
        yield Chunk("", reply, output={"choices": []}) if stream else Chunk(text, reply, answer)

    async def _answers(self, call: Call, stream: bool) -> AsyncGenerator[Answer, None]:
        """Yield the chunks of an answer, or without ``stream`` the whole answer."""
        fields = dict(call.spec.request or {})
        if not fields:
            raise CallRejectedError(
                f"call {call.call_id}: an endpoint takes chat requests, not prompts of token ids; "
                "use chat messages, or an engine in this process (--model)"
            )
        if stream:
            fields.setdefault("stream_options", {"include_usage": True})
        # All fields go into extra_body, because the client's method accepts only parameters that it
        # knows.
        response: Any = await self._running().chat.completions.create(
            model=self.model,
            messages=fields.pop("messages"),
            stream=stream,
            extra_headers=to_headers(call.identity),
            extra_body={**fields, "model": self.model},
        )
        if not stream:
            yield {"model": self.model, **self._checked(call, response, stream)}
            return
        numbers = _CallNumbers()
        async with contextlib.aclosing(response):  # closing it ends the request
            async for event in response:
                chunk = self._checked(call, event, stream)
                numbers.add_to(chunk)
                yield {"model": self.model, **chunk}

    def _checked(self, call: Call, response: Any, stream: bool) -> Answer:
        """Return the fields of an answer, or with ``stream`` of a chunk. Raises `EngineError` for
        any other response, because the client checks no types.
        """
        is_object = hasattr(response, "to_dict")
        answer = response.to_dict(warnings=False) if is_object else {}
        if answer.get("error"):  # some servers send errors with status 200
            raise _failed(call, answer["error"])
        choices, usage = answer.get("choices") or [], answer.get("usage") or {}
        if not (
            is_object
            and isinstance(usage, Mapping)
            and isinstance(choices, list)
            and all(isinstance(choice, Mapping) for choice in choices)
            and all(_has_form(_part(choice, stream)) for choice in choices)
        ):
            raise self._not_an_answer(call, f"it answered {str(answer or response)[:80]!r}")
        for choice in choices:
            _join_content(_part(choice, stream))
        return answer

    def _not_an_answer(self, call: Call, reason: object) -> EngineError:
        return EngineError(
            f"call {call.call_id}: {self._shown} does not answer like an OpenAI-compatible "
            f"server: {reason}; check base_url, which usually ends with /v1"
        )

    def _running(self) -> AsyncOpenAI:
        if self._client is None:
            raise EngineDiedError(f"the endpoint {self._shown} was not started, or was closed")
        return self._client


class _CallNumbers:
    """Numbers the pieces of tool calls in a stream whose server sends no numbers, as Gemini does.

    A piece with a new id begins a call, and so does a piece that has a name, but no id. A piece
    with a known id continues the call with this id, and any other piece continues the last call.
    """

    def __init__(self) -> None:
        self._calls: dict[Any, list[str]] = {}
        """For each choice: the ids of its calls so far, "" for a call without an id."""

    def add_to(self, chunk: Answer) -> None:
        """Add the index to each piece of a call in a chunk that has none."""
        for choice in chunk.get("choices") or ():
            ids = self._calls.setdefault(choice.get("index", 0), [])
            for piece in (choice.get("delta") or {}).get("tool_calls") or ():
                if piece.get("index") is not None:
                    continue
                call_id = piece.get("id") or ""
                if call_id and call_id in ids:
                    piece["index"] = ids.index(call_id)
                    continue
                if not ids or call_id or (piece.get("function") or {}).get("name"):
                    ids.append(call_id)
                piece["index"] = len(ids) - 1


def _part(choice: Mapping[str, Any], stream: bool) -> Any:
    """Return the delta of a choice, which may be missing, or without ``stream`` its message."""
    return (choice.get("delta") or {}) if stream else choice.get("message")


def _has_form(part: Any) -> bool:
    """Return whether a delta or a message is an object that can be read."""
    if not isinstance(part, Mapping):
        return False
    content, calls = part.get("content"), part.get("tool_calls") or []
    if not (isinstance(content, str | list | None) and isinstance(calls, list)):
        return False
    items = [*calls, *(content if isinstance(content, list) else ())]
    return all(isinstance(item, Mapping) for item in items)


def _join_content(part: dict[str, Any]) -> None:
    """If the content of a message or delta is a list of parts, as Mistral's reasoning models send,
    replace the list by the text of its parts. Thoughts in the list become the ``reasoning`` of the
    message.
    """
    if not isinstance(items := part.get("content"), list):
        return
    thoughts = [item["thinking"] for item in items if item.get("thinking")]
    part["content"] = _texts(items)
    if thoughts:
        part["reasoning"] = "".join(map(_texts, thoughts))


def _texts(items: Any) -> str:
    """Return a text, or the joined texts of a list of parts."""
    if not isinstance(items, list):
        return str(items)
    return "".join(str(item.get("text") or "") for item in items if isinstance(item, Mapping))


def _text(answer: Answer) -> str:
    """Return the text of the first choice of an answer, or of a chunk of an answer."""
    for choice in answer.get("choices") or ():
        if choice.get("index", 0) == 0:
            return (choice.get("delta") or choice.get("message") or {}).get("content") or ""
    return ""


def _report(usage: Mapping[str, Any], seconds: float) -> CallReport:
    return CallReport(
        service_s=seconds,
        prompt_tokens=usage.get("prompt_tokens") or 0,
        output_tokens=usage.get("completion_tokens") or 0,
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
    )


# -- errors --------------------------------------------------------------------------------


def _choose(endpoint: str, model: str, served: list[str]) -> str:
    if model in served:
        return model
    names = ", ".join(served) or "no model at all"
    if model:
        raise ConfigError(f"{endpoint} does not serve model {model!r}; it serves {names}")
    if not served:
        raise EngineStartError(f"{endpoint} serves {names}; start a model there first")
    return served[0]


def _refused(call: Call, reason: str, code: object, status: int) -> EngineError:
    text = f"call {call.call_id}: {reason}"
    if status >= 500:
        return EngineError(text)
    too_long = code == "context_length_exceeded" or "maximum context length" in reason
    return PromptTooLongError(text) if too_long else CallRejectedError(text)


def _failed(call: Call, error: object) -> EngineError:
    """Return the error for an error object in the body of a response with status 200."""
    fields: Mapping[str, Any] = error if isinstance(error, Mapping) else {"message": error}
    code = fields.get("code")
    status = code if isinstance(code, int) else 500
    if fields.get("type") == "invalid_request_error" or code == "context_length_exceeded":
        status = 400
    return _refused(call, str(fields.get("message") or error), code, status)


def _reason(error: Any) -> str:
    body = error.body if isinstance(error.body, Mapping) else {}
    return f"{body.get('message') or error.message} (status {error.status_code})"


def _cause(error: Exception) -> str:
    return str(error.__cause__ or error)


warn_of_former_place(__name__, "OpenAIEndpoint")
