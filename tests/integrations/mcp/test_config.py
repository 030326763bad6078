"""The file of MCP servers: what it can say, and what it says wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.integrations.mcp import HttpServer, StdioServer, read_servers

ENV = {"HOME": "/somewhere", "TOKEN": "s3cret", "EMPTY": "", "LINE": "s3cret\n"}


def file(folder: Path, **servers: Any) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return path


def test_servers_are_commands_or_urls(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        files={
            "type": "stdio",
            "command": "npx",
            "args": ["files", "${HOME}/notes", "$HOME", "${NONE:-x}"],
            "env": {"KEY": "${TOKEN}"},
            "cwd": "${HOME}",
            "autoApprove": ["of another client"],
        },
        web={"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
        old={"type": "streamable-http", "url": "http://localhost:1/${EMPTY}mcp"},
        off={"disabled": True, "command": "${NOT_SET}"},
    )
    assert read_servers([path], ENV) == [
        StdioServer(
            "files",
            "npx",
            ("files", "/somewhere/notes", "$HOME", "x"),
            {"KEY": "s3cret"},
            "/somewhere",
        ),
        HttpServer("web", "https://example.org/mcp", {"Authorization": "Bearer s3cret"}),
        HttpServer("old", "http://localhost:1/mcp"),
    ]
    assert read_servers([]) == []


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("npx", ["write {"]),
        ({}, ["either 'command' or 'url'"]),
        ({"command": "a", "url": "http://b"}, ["either 'command' or 'url'"]),
        ({"command": ""}, ["command: String should have at least 1 character"]),
        ({"command": "a", "args": "b"}, ["args", "should be a valid"]),
        ({"command": "a", "args": [1]}, ["args", "should be a valid"]),
        ({"command": "a", "env": {"B": 1}}, ["env.B: Input should be a valid string"]),
        ({"command": "a", "cwd": 1}, ["cwd: Input should be a valid string"]),
        ({"command": "a", "type": "http"}, ["type 'http' does not match 'command'", "'stdio'"]),
        ({"url": "http://a", "type": "ws"}, ["type 'ws' does not match 'url'", "'http'"]),
        ({"url": "http://a", "type": "sse"}, ["type 'sse'", "streamable HTTP", "type 'http'"]),
        ({"url": "a/mcp"}, ["url: String should match pattern '^https?://"]),
        ({"url": "http://a", "headers": []}, ["headers: Input should be a valid"]),
        (
            {"url": "http://a", "headers": {"X": "${NOT_SET}"}},
            ["headers.X", "variable NOT_SET, which is not set", "${NOT_SET:-default}"],
        ),
        (
            {"url": "http://a", "headers": {"X": "Bearer ${LINE}"}},
            ["headers.X: its value begins or ends with a blank or a line break"],
        ),
        ({"url": "http://a", "headers": {"X Y": "z"}}, ["headers.X Y: a header's name has only"]),
    ],
)
def test_a_mistake_is_named_with_its_server_and_field(
    server: Any, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_servers([file(tmp_path, thing=server)], ENV)
    for word in ("mcp.json: server 'thing'", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["not JSON"]),
        ("[]", ['no object "mcpServers"', "write {"]),
        ('{"servers": {}}', ['no object "mcpServers"']),
        (None, ["No such file"]),
    ],
)
def test_a_file_that_is_none(text: str | None, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_servers([path])
    for word in ("mcp.json", *words):
        assert word in str(caught.value)


def test_two_files_may_not_name_one_server(tmp_path: Path) -> None:
    path = file(tmp_path, thing={"command": "a"})
    with pytest.raises(ConfigError, match="server 'thing' is also in another"):
        read_servers([path, path])


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.integrations.mcp.config.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package mcp; run: pip install .*\[mcp\]'"):
        read_servers([file(tmp_path)])
