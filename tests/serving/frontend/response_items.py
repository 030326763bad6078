"""An item and a tool of each type that the OpenAI package knows, and of some that it does not."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from openai.types.responses import response_input_item_param, tool_param

TEXT = {"type": "input_text", "text": "words"}
CALL = {"call_id": "call-1", "id": "item-1", "status": "completed"}
ITEMS: dict[str, dict[str, Any]] = {
    "message": {"role": "user", "content": [TEXT]},
    "file_search_call": {**CALL, "queries": ["a"], "results": [{"text": "found words"}]},
    "computer_call": {**CALL, "action": {"type": "screenshot"}, "pending_safety_checks": []},
    "computer_call_output": {
        "call_id": "call-1",
        "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"},
    },
    "web_search_call": {**CALL, "action": {"type": "search", "query": "news"}},
    "function_call": {**CALL, "name": "weather", "arguments": "{}"},
    "function_call_output": {"call_id": "call-1", "output": [TEXT]},
    "tool_search_call": {**CALL, "execution": "client", "arguments": {"query": "weather"}},
    "tool_search_output": {
        "call_id": "call-1",
        "execution": "client",
        "tools": [{"type": "function", "name": "tides", "parameters": {"type": "object"}}],
    },
    "additional_tools": {
        "role": "developer",
        "tools": [{"type": "function", "name": "stars", "parameters": {"type": "object"}}],
    },
    "configuration_update": {"id": "item-1", "reasoning": {"effort": "low"}},
    "reasoning": {"id": "item-1", "summary": [], "encrypted_content": "gAAAA"},
    "compaction": {"id": "item-1", "encrypted_content": "gAAAA"},
    "image_generation_call": {**CALL, "result": "AAAA"},
    "code_interpreter_call": {
        **CALL,
        "code": "1",
        "container_id": "c",
        "outputs": [{"type": "logs", "logs": "1"}],
    },
    "local_shell_call": {**CALL, "action": {"type": "exec", "command": ["ls"], "env": {}}},
    "local_shell_call_output": {"id": "item-1", "output": "made.txt"},
    "shell_call": {**CALL, "action": {"commands": ["ls"]}},
    "shell_call_output": {
        "call_id": "call-1",
        "output": [{"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 2}}],
    },
    "apply_patch_call": {
        **CALL,
        "operation": {"type": "update_file", "path": "a.py", "diff": "+b"},
    },
    "apply_patch_call_output": {"call_id": "call-1", "output": "done", "status": "completed"},
    "mcp_list_tools": {"id": "item-1", "server_label": "s", "tools": []},
    "mcp_approval_request": {
        "id": "item-1",
        "server_label": "s",
        "name": "look",
        "arguments": "{}",
    },
    "mcp_approval_response": {"approval_request_id": "item-1", "approve": True},
    "mcp_call": {
        "id": "item-1",
        "server_label": "s",
        "name": "look",
        "arguments": '{"at": 1}',
        "output": "seen words",
    },
    "custom_tool_call_output": {"call_id": "call-1", "output": "done"},
    "custom_tool_call": {**CALL, "name": "apply_patch", "input": "*** Begin Patch"},
    "compaction_trigger": {},
    "item_reference": {"id": "item-9"},
    "program": {**CALL, "code": "x", "fingerprint": "f"},
    "program_output": {"call_id": "call-1", "id": "item-2", "result": "y", "status": "completed"},
    "ghost_snapshot": {"ghost_commit": {"id": "abc"}},
    "context_compaction": {"encrypted_content": "gAAAA"},
    "agent_message": {
        "author": "/root",
        "recipient": "/root/look",
        "content": [
            {"type": "input_text", "text": "Payload:\n"},
            {"type": "encrypted_content", "encrypted_content": "Look around."},
        ],
    },
    "from_the_future": {"anything": [1, {"deep": None}]},
}
ODD: dict[str, dict[str, Any]] = {
    "an assistant without content": {"type": "message", "role": "assistant", "content": []},
    "an assistant with null": {"role": "assistant", "content": None},
    "a refusal": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "refusal", "refusal": "I will not."}],
    },
    "an unknown part": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_hologram", "data": 1}],
    },
    "a file": {
        "role": "user",
        "content": [{"type": "input_file", "file_id": "f", "filename": "n"}],
    },
    "an image by its id": {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
    "an image": {
        "role": "user",
        "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}],
    },
    "a sound": {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}],
    },
    "an unknown role": {"type": "message", "role": "critic", "content": "no"},
    "a user without content": {"role": "user", "content": []},
    "reasoning without anything": {"type": "reasoning", "summary": []},
    "a summary of reasoning": {
        "type": "reasoning",
        "id": "r",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "gAAAA",
    },
    "a reference without a type": {"id": "msg-of-elsewhere"},
    "a call that was cut off": {
        "type": "function_call",
        "call_id": "c",
        "name": "weather",
        "arguments": '{"city": "Pa',
    },
    "a call of a namespace": {
        "type": "function_call",
        "call_id": "c",
        "name": "spawn",
        "namespace": "agents",
        "arguments": "{}",
    },
    "a call without a name": {"type": "function_call", "call_id": "c", "arguments": "{}"},
    "an output with an image": {
        "type": "function_call_output",
        "call_id": "call-1",
        "output": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}],
    },
    "an output of nothing": {"type": "function_call_output", "call_id": "call-1", "output": None},
}
SCHEMA = {"type": "object", "properties": {}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}
TOOLS: dict[str, dict[str, Any]] = {
    "function": {"name": "weather", "parameters": SCHEMA, "strict": False},
    "file_search": {"vector_store_ids": ["v"]},
    "computer": {},
    "computer_use_preview": {"display_height": 1, "display_width": 1, "environment": "linux"},
    "web_search": {},
    "web_search_2025_08_26": {},
    "mcp": {"server_label": "s", "server_url": "http://localhost:1"},
    "code_interpreter": {"container": {"type": "auto"}},
    "programmatic_tool_calling": {},
    "image_generation": {},
    "local_shell": {},
    "shell": {"environment": {"type": "local"}},
    "custom": {"name": "apply_patch", "format": GRAMMAR},
    "namespace": {
        "name": "agents",
        "description": "Agents.",
        "tools": [
            {"type": "function", "name": "spawn", "parameters": SCHEMA},
            {"type": "custom", "name": "tell"},
            {"type": "web_search"},
        ],
    },
    "tool_search": {"execution": "client"},
    "web_search_preview": {},
    "web_search_preview_2025_03_11": {},
    "apply_patch": {},
    "from_the_future": {"anything": 1},
}


def types_of(union: Any) -> set[str]:
    """The types of all members of one of the package's unions."""
    types: set[str] = set()
    for member in get_args(union):
        kind = get_type_hints(member)["type"]
        types |= set(_words(kind))
    return types


def _words(kind: Any) -> list[str]:
    if isinstance(kind, str):
        return [kind]
    return [word for part in get_args(kind) for word in _words(part)]


ITEM_TYPES = types_of(response_input_item_param.ResponseInputItemParam)
TOOL_TYPES = types_of(tool_param.ToolParam)
