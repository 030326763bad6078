"""What a tool of an MCP server gave, as a program gets it."""

from __future__ import annotations

import json
from typing import Any

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from agentrt.errors import ToolFailedError, ToolResultError

_AUDIO_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}


def value_of(result: CallToolResult, name: str, largest: int) -> Any:
    """Its structured content, else its text, else what a model's message takes: a list of parts
    as in OpenAI's API.

    Raises `ToolFailedError` for an error, and `ToolResultError` for more than ``largest``
    characters.
    """
    if (size := _size(result)) > largest:
        raise ToolResultError(
            f"tool {name}: its result has {size} characters, and may have {largest}", name=name
        )
    if result.is_error:
        message = text_of(result.content) or "it failed, and did not say why"
        raise ToolFailedError(f"tool {name} failed: {message}", name=name)
    if "structured_content" in result.model_fields_set and result.structured_content is not None:
        return result.structured_content
    parts = [_part(block) for block in result.content]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def text_of(content: list[ContentBlock]) -> str:
    """The texts of a result."""
    return "\n".join(block.text for block in content if isinstance(block, TextContent))


def _size(result: CallToolResult) -> int:
    size = sum(_length(block) for block in result.content)
    if size == 0 and result.structured_content is not None:  # most repeat it as a text
        size = len(json.dumps(result.structured_content))
    return size


def _length(block: ContentBlock) -> int:
    match block:
        case TextContent(text=data) | ImageContent(data=data) | AudioContent(data=data):
            return len(data)
        case EmbeddedResource(resource=BlobResourceContents(blob=data)):
            return len(data)
        case EmbeddedResource(resource=TextResourceContents(text=data)):
            return len(data)
    return 0


def _part(block: ContentBlock) -> dict[str, Any]:
    match block:
        case TextContent(text=text):
            return {"type": "text", "text": text}
        case ImageContent(data=data, mime_type=mime) | AudioContent(data=data, mime_type=mime):
            return _binary(data, mime, "")
        case ResourceLink(uri=uri, description=description):
            return {"type": "text", "text": f"{uri} {description or ''}".strip()}
        case EmbeddedResource(resource=BlobResourceContents(blob=blob, mime_type=mime, uri=uri)):
            return _binary(blob, mime or "application/octet-stream", str(uri))
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return {"type": "text", "text": text}
    raise AssertionError(f"a content block of type {block.type}")


def _binary(data: str, mime: str, uri: str) -> dict[str, Any]:
    """A part with base64 ``data``: an image, a sound, or a file."""
    kind, _, subtype = mime.partition("/")
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}
    if kind == "audio":
        sound = {"data": data, "format": _AUDIO_FORMATS.get(subtype, subtype)}
        return {"type": "input_audio", "input_audio": sound}
    name = uri.rpartition("/")[2] or "file"
    return {"type": "file", "file": {"filename": name, "file_data": f"data:{mime};base64,{data}"}}
