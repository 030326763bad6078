"""Arranges chats so that each request's prompt begins with the prompt of the request before it.

System messages in the middle of a chat stay at their place (`reminders`), and tools are shown where
they are loaded (`late_tools`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from agentrt.executors.vllm.entrypoints.late_tools import shown_late
from agentrt.executors.vllm.entrypoints.reminders import Reminders

_PLAIN = frozenset(["user", "assistant"])


def arrange_chats(renderer: Any, *, reminders: bool = True) -> Any:
    """Change one of vLLM's renderers so that it arranges chats, and return it.

    All APIs use this renderer, and so do the routes that count or show tokens. With ``reminders``,
    system messages in the middle of a chat stay at their place.
    """
    whole, awaited = renderer.render_messages, renderer.render_messages_async
    own = Reminders(whole, renderer.get_tokenizer)

    def arranged(messages: Sequence[Any], params: Any) -> tuple[Sequence[Any], Any]:
        messages, params = shown_late(renderer, messages, params)
        return (own.kept(messages, params) if reminders else messages), params

    def render_messages(messages: Sequence[Any], params: Any) -> Any:
        if not _is_plain(messages, params):
            messages, params = arranged(messages, params)
        return whole(messages, params)

    def render_messages_async(messages: Sequence[Any], params: Any) -> Awaitable[Any]:
        if not _is_plain(messages, params):
            messages, params = arranged(messages, params)
        rendered: Awaitable[Any] = awaited(messages, params)
        return rendered

    renderer.render_messages = render_messages
    renderer.render_messages_async = render_messages_async
    return renderer


def _is_plain(messages: Sequence[Any], params: Any) -> bool:
    """Return whether a chat has nothing to arrange.

    This runs for every chat, so it calls no function for each message.
    """
    if params.chat_template_kwargs.get("tools"):
        return False
    is_first = True
    for message in messages:
        if message.__class__ is not dict or "role" not in message:
            return False
        if message["role"] not in _PLAIN and not (is_first and message["role"] == "system"):
            return False
        is_first = False
    return True
