"""`agentrt client`: what coding agents are started with, by clients that only say what they got."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.doubles.forked_python import forked_python

WINDOW = 131_072
CARD = {"id": "local", "max_model_len": WINDOW}
FAKE = """#!{python} -S
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
sys.exit(7)
"""


@contextmanager
def models(*cards: dict[str, Any], key: str | None = None) -> Iterator[str]:
    """A server that lists models, and asks for a key where one is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = key is None or self.headers["authorization"] == f"Bearer {key}"
            body: dict[str, Any] = {"data": cards}
            if not allowed:
                body = {"error": {"message": "an API key is needed"}}
            data = json.dumps(body).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *values: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def clients(tmp_path: Path) -> dict[str, str]:
    """The environment of a person who has all clients."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("claude", "codex", "opencode"):
        path = folder / name
        path.write_text(FAKE.format(python=sys.executable), "utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def start(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [forked_python(), "-m", "agentrt.cli", "client", *args]
    environ = {**os.environ, **environment}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def got(ran: subprocess.CompletedProcess[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of a client that ran, whose exit code came through."""
    assert ran.returncode == 7, ran
    arguments, environ = json.loads(ran.stdout)
    return arguments, environ


def test_claude_code_knows_the_window(clients: dict[str, str]) -> None:
    with models(CARD) as url:
        ran = start(
            "claude", url, "-p", "Fix it.", "--model", "x", ANTHROPIC_API_KEY="k", **clients
        )
        arguments, environ = got(ran)
        assert arguments == ["--disallowedTools=WebSearch", "-p", "Fix it.", "--model", "x"]
        expected = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_MODEL": "local",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "local",
            "CLAUDE_CODE_SUBAGENT_MODEL": "local",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(WINDOW),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(WINDOW),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(WINDOW // 8),
        }
        assert expected.items() <= environ.items()
        assert "ANTHROPIC_API_KEY" not in environ


def test_web_search_is_there_where_the_server_runs_it(clients: dict[str, str]) -> None:
    with models({**CARD, "server_tools": ["web_search"]}) as url:
        arguments, _ = got(start("claude", url, **clients))
        assert arguments == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, {"hasCompletedOnboarding": True}),
        ({"theme": "dark"}, {"theme": "dark", "hasCompletedOnboarding": True}),
        ([1], [1]),
    ],
)
def test_the_first_questions_of_claude_code_are_skipped(
    before: Any, after: Any, clients: dict[str, str]
) -> None:
    path = Path(clients["HOME"]) / ".claude.json"
    if before is not None:
        path.write_text(json.dumps(before), "utf-8")
    with models(CARD) as url:
        got(start("claude", url, **clients))
    assert json.loads(path.read_text("utf-8")) == after


def test_codex_knows_the_window(clients: dict[str, str]) -> None:
    with models(CARD) as url:
        arguments, environ = got(start("codex", url, "exec", "Fix it.", **clients))
        assert arguments[-2:] == ["exec", "Fix it."]
        assert arguments[0:-2:2] == ["-c"] * (len(arguments[:-2]) // 2)
        settings = dict(one.split("=", 1) for one in arguments[1:-2:2])
        assert settings["model_context_window"] == str(WINDOW)
        assert int(settings["model_auto_compact_token_limit"]) < WINDOW
        assert settings["model_providers.agentrt.base_url"] == f'"{url}/v1"'
        assert environ[json.loads(settings["model_providers.agentrt.env_key"])] == "none"


def test_opencode_knows_the_window(clients: dict[str, str]) -> None:
    with models(CARD) as url:
        arguments, environ = got(start("opencode", url, "run", "Fix it.", **clients))
        assert arguments == ["run", "Fix it."]
        config = json.loads(environ["OPENCODE_CONFIG_CONTENT"])
        limit = config["provider"]["agentrt"]["models"]["local"]["limit"]
        room = 16_000  # for a tool's result, before the next call compacts
        assert limit == {"context": WINDOW, "input": WINDOW - room, "output": WINDOW // 8}
        assert config["model"] == "agentrt/local"


@pytest.mark.parametrize("client", ["claude", "codex", "opencode"])
def test_the_printed_set_up_starts_the_same(
    client: str, clients: dict[str, str], tmp_path: Path
) -> None:
    with models(CARD, key="secret-key") as url:
        own = {**clients, "AGENTRT_API_KEY": "secret-key"}
        shown = start(client, url, "--print", "run", "it's", **own)
        assert shown.returncode == 0, shown
        assert "secret-key" not in shown.stdout
        bash = ["bash", "-c", shown.stdout]
        environ = {**os.environ, **own}
        by_hand = subprocess.run(bash, env=environ, capture_output=True, text=True, check=False)
        started = got(start(client, url, "run", "it's", **own))
        arguments, variables = got(by_hand)
        assert arguments == started[0]
        same = [name for name in started[1] if name.startswith(("ANTHROPIC", "CLAUDE", "OPENCODE"))]
        assert {n: variables[n] for n in same} == {n: started[1][n] for n in same}


@pytest.mark.parametrize("client", ["claude", "codex", "opencode"])
def test_a_server_of_this_machine_is_reached_past_proxies(
    client: str, clients: dict[str, str]
) -> None:
    """The clients read the variables, and would ask the proxy for the server."""
    names = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    clients |= dict.fromkeys([*names, "no_proxy"], "")
    with models(CARD) as url:
        _, environ = got(start(client, url, **clients, NO_PROXY="example.org"))
        assert (environ["no_proxy"], environ["NO_PROXY"]) == ("", "example.org")
        clients["HTTP_PROXY"] = "http://127.0.0.1:9"
        _, environ = got(start(client, url, **clients, NO_PROXY="example.org"))
        assert environ["no_proxy"] == environ["NO_PROXY"] == "example.org,127.0.0.1"
        shown = start(client, url, "--print", **clients, NO_PROXY="")
        assert "export NO_PROXY=127.0.0.1\n" in shown.stdout


def test_the_address_may_be_short_and_a_dash_ends_own_options(clients: dict[str, str]) -> None:
    with models(CARD) as url:
        short = url.removeprefix("http://")
        arguments, environ = got(start("opencode", short, "--", "--print", "--help", **clients))
        assert (arguments, environ["AGENTRT_API_KEY"]) == (["--print", "--help"], "none")
        for page in ("/v1", "/dashboard", "/dashboard/"):
            _, environ = got(start("claude", f"{url}{page}", **clients))
            assert environ["ANTHROPIC_BASE_URL"] == url
        arguments, _ = got(start("opencode", "run", short, AGENTRT_URL=url, **clients))
        assert arguments == ["run", short]


def test_a_small_window_is_told(clients: dict[str, str]) -> None:
    with models({**CARD, "max_model_len": 8192}) as url:
        ran = start("claude", url, **clients)
        got(ran)
        assert "8192 tokens" in ran.stderr
        assert "--max-model-len" in ran.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["claude"], 2, "not installed"),
        (["claude", "--print", "http://127.0.0.1:9"], 1, "no server answers"),
        (["nobody"], 2, "'nobody' is not one of"),
        ([], 2, "missing argument"),
        (["claude", "--print", "URL", "--model", "other"], 2, "it serves local"),
        (["claude", "--print", "URL", "--api-key", "wrong"], 2, "key"),
        (["claude", "--print", "URL", "--model"], 2, "'--model' requires an argument"),
        (["claude", "--print", "--url", "--", "-p"], 2, "'--url' requires an argument"),
    ],
)
def test_mistakes_are_one_line(
    args: list[str],
    code: int,
    words: str,
    command: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with models(CARD, key="wrong" if "wrong" not in args else "right") as url:
        key = [] if "wrong" in args else ["--api-key", "wrong"]
        named = [url if one == "URL" else one for one in args]
        ran = command("client", *(named[:1]), *(key if args else []), *named[1:])
        assert (ran.code, ran.out) == (code, "")
        assert words in ran.err
        assert ran.err.count("\n") == 1


def test_what_is_no_server_with_models(command: Run) -> None:
    with models() as url:
        ran = command("client", "codex", "--print", url)
        assert (ran.code, ran.out) == (1, "")
        assert "serves no model" in ran.err
