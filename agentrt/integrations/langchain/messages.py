"""Converting LangChain messages into OpenAI's form: LangChain's conversion and some additions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    InvalidToolCall,
    ToolMessage,
    convert_to_openai_messages,
)

from agentrt.errors import ConfigError, text_of

Block = str | dict[str, Any]
Said = dict[str, Any]
# Blocks to leave out: tool calls and the model's reasoning are sent in fields of the message.
_IN_FIELDS = frozenset(
    {
        *("tool_call", "tool_call_chunk", "invalid_tool_call", "function_call"),
        *("thinking", "redacted_thinking", "reasoning", "reasoning_content"),
    }
)
_TEXTS = frozenset({"text", "text-plain", "input_text", "output_text", "refusal"})


def as_chat(messages: Sequence[BaseMessage]) -> list[Said]:
    """Convert messages into the messages of a chat request. Raises `ConfigError` for a message that
    cannot be converted.
    """
    if not messages:
        raise ConfigError("the list of messages is empty; pass at least one message")
    return [said for message in messages for said in _converted(message)]


def _converted(message: BaseMessage) -> list[Said]:
    try:
        return [_said(part) for part in _parts(message)]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        wrong = f"a block has no field {error}" if isinstance(error, KeyError) else in_line(error)
        raise ConfigError(f"cannot convert a {type(message).__name__}: {wrong}") from error


def in_line(error: BaseException) -> str:
    """Return the text of an error in one line."""
    return " ".join(text_of(error).split())


def _parts(message: BaseMessage) -> Iterator[BaseMessage]:
    """Yield each tool result among a message's blocks, as in Anthropic's form, as a message of its
    own. Then yield the message without these blocks, if anything is left of it.
    """
    blocks = _blocks(message)
    results = [block for block in blocks if _type(block) == "tool_result"]
    for block in results:
        assert isinstance(block, dict)
        if not isinstance(block.get("tool_use_id"), str):
            raise ConfigError(
                f"a tool_result block has the tool_use_id {block.get('tool_use_id')!r}; set it to "
                "the id of the tool_use block, a text"
            )
        yield ToolMessage(
            block.get("content") or "",
            tool_call_id=block["tool_use_id"],
            status="error" if block.get("is_error") else "success",
        )
    rest = [block for block in blocks if block not in results]
    if rest or not results:
        yield message.model_copy(update={"content": rest}) if results else message


def _said(message: BaseMessage) -> Said:
    blocks = _blocks(message)
    if blocks:
        content = [_known(block) for block in blocks if _type(block) not in _IN_FIELDS]
        message = message.model_copy(update={"content": content})
    said: Any = convert_to_openai_messages(message)
    if isinstance(message, AIMessage):
        said |= _thought(message, blocks)
        if message.invalid_tool_calls:
            bad = [_invalid(call) for call in message.invalid_tool_calls]
            said["tool_calls"] = [*said.get("tool_calls", ()), *bad]
    elif isinstance(message, ToolMessage) and message.status == "error":
        said["content"] = _failed(said["content"])
    return dict(said)


def _thought(message: AIMessage, blocks: Sequence[Block]) -> Said:
    """Return the model's reasoning, which many models must see again while they call tools."""
    thought = message.additional_kwargs.get("reasoning_content") or "".join(
        block.get("reasoning") or block.get("thinking") or ""
        for block in blocks
        if isinstance(block, dict)
    )
    return {"reasoning": thought} if thought else {}


def _invalid(call: InvalidToolCall) -> Said:
    function = {"name": call["name"] or "unknown", "arguments": call["args"] or ""}
    return {"type": "function", "id": call["id"], "function": function}


def _failed(content: str | list[Block]) -> str | list[Block]:
    """Mark a tool's result as an error in its text, because OpenAI's form has no field for it."""
    if isinstance(content, list):
        return [{"type": "text", "text": "Error:"}, *content]
    return content if content.lower().startswith("error") else f"Error: {content}"


def _known(block: Block) -> Block:
    """Convert a block into a form that LangChain's conversion or vLLM knows."""
    kind = _type(block)
    if isinstance(block, str):
        return block
    if kind in _TEXTS or (kind is None and "text" in block):
        return {"type": "text", "text": block.get("text") or block.get("refusal") or ""}
    if kind in ("audio", "video") and (url := _url(block, kind)):
        return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
    return block


def _url(block: dict[str, Any], kind: str) -> str | None:
    if kind == "video" and "base64" in block:
        return f"data:{block.get('mime_type') or 'video/mp4'};base64,{block['base64']}"
    url: str | None = block.get("url")
    return url


def _blocks(message: BaseMessage) -> Sequence[Block]:
    return message.content if isinstance(message.content, list) else ()


def _type(block: Block) -> str | None:
    return "text" if isinstance(block, str) else block.get("type")
