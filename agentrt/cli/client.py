"""``agentrt client``: start a coding agent that uses a server's model."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from agentrt.cli.questions import HOST_AND_PORT
from agentrt.cli.streams import say
from agentrt.files import replacing

_URL = "http://127.0.0.1:8000"
_ADDRESS = re.compile(rf"https?://\S+|{HOST_AND_PORT.pattern}")
"""A server's address. An address with a port needs no scheme."""
_VALUED = ("--url", "--model", "--api-key")
_WITH_VALUE = tuple(f"{name}=" for name in _VALUED)
_FLAGS = ("--print", "--help", "-h")
_NO_KEY = "none"
_KEY = "AGENTRT_API_KEY"
_LEAST_WINDOW = 32_768
"""The smallest useful context window, in tokens. The prompts and tool descriptions of coding agents
fill most of a smaller window.
"""
_LEAST_OUTPUT, _MOST_OUTPUT = 4096, 32_000
"""Lower and upper bound of an answer's token limit. The lower bound is enough to write a file; a
small window can make the limit even smaller.
"""
_TOOL_RESULT = 16_000
"""Tokens to keep free for a tool's result in a large window. OpenCode compacts its context only
after a call whose context was too large, so a result that arrives before that call must still fit.
"""
_OPENCODE_RESERVED = 20_000
"""The number of tokens that OpenCode keeps free of its ``input`` limit. OpenCode keeps fewer tokens
free if the limit of an answer is smaller.
"""
_LEAST_COMPACT = 100_000
"""The smallest value, in tokens, that Claude Code accepts for its setting
``CLAUDE_CODE_AUTO_COMPACT_WINDOW``. If the model's window is smaller, Claude Code uses that window.
"""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of the server at ``url``, with its context window in tokens.

    ``server_tools`` are the names of Anthropic's server tools that the server runs. ``key`` is
    the API key, or None.
    """

    url: str
    name: str
    window: int
    server_tools: Sequence[str] = ()
    key: str | None = None

    @property
    def output(self) -> int:
        """The maximum number of tokens of one answer. Clients keep this part of the window free."""
        return max(1, min(self.window // 4, max(_LEAST_OUTPUT, self.window // 8), _MOST_OUTPUT))


@dataclass(slots=True)
class Setup:
    """The environment and the command that start a client.

    A variable in ``variables`` whose value is None is removed from the environment. ``command``
    is the program and its arguments. ``secrets`` names the variables that hold an API key, which
    is never shown. ``prepare`` is called with the environment before the start.
    """

    variables: dict[str, str | None]
    command: list[str]
    secrets: frozenset[str] = frozenset()
    prepare: Callable[[Mapping[str, str]], None] = field(default=lambda environ: None)

    def shown(self) -> str:
        """Return the set-up as a shell script, without the API key."""
        lines = []
        for name, value in self.variables.items():
            if value is None:
                lines.append(f"unset {name}")
            elif name in self.secrets and value != _NO_KEY:
                if name != _KEY:
                    lines.append(f'export {name}="${_KEY}"')
            else:
                lines.append(f"export {name}={shlex.quote(value)}")
        return "\n".join([*lines, shlex.join(self.command)])


def claude(model: ServedModel, arguments: Sequence[str]) -> Setup:
    """Return the set-up of Claude Code, which uses the Messages API."""
    window = str(model.window)
    names = ("", "DEFAULT_OPUS_", "DEFAULT_SONNET_", "DEFAULT_HAIKU_", "SMALL_FAST_")
    variables: dict[str, str | None] = {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_AUTH_TOKEN": model.key or _NO_KEY,
        "ANTHROPIC_API_KEY": None,  # else Claude Code asks whether to use this key
        "CLAUDE_CODE_USE_BEDROCK": None,
        "CLAUDE_CODE_USE_VERTEX": None,
        "CLAUDE_CODE_USE_FOUNDRY": None,
        # Set the model for every role, also for small tasks and for sub-agents.
        **{_named(name): model.name for name in names},
        "CLAUDE_CODE_SUBAGENT_MODEL": model.name,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": window,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(model.output),
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(max(model.window, _LEAST_COMPACT)),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    # Use "=", because the option would otherwise consume all arguments that follow it.
    without = [] if "web_search" in model.server_tools else ["--disallowedTools=WebSearch"]
    command = ["claude", *without, *arguments]
    return Setup(variables, command, frozenset(["ANTHROPIC_AUTH_TOKEN"]), _skip_onboarding)


def _named(name: str) -> str:
    return f"ANTHROPIC_{name}MODEL"


def _skip_onboarding(environ: Mapping[str, str]) -> None:
    """Let Claude Code skip the questions of its first start, about a theme and an account."""
    home = environ.get("CLAUDE_CONFIG_DIR") or environ.get("HOME")
    if not home:
        return
    path = Path(home) / ".claude.json"
    try:
        settings = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if not isinstance(settings, dict) or settings.get("hasCompletedOnboarding") is True:
            return
        text = json.dumps({**settings, "hasCompletedOnboarding": True}, indent=2)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(text.encode())
    except (OSError, ValueError) as error:
        say(f"cannot change {path}: {error}; Claude Code will ask the questions of its first start")


def codex(model: ServedModel, arguments: Sequence[str]) -> Setup:
    """Return the set-up of Codex, which uses the Responses API. Codex's files stay unchanged."""
    provider = {
        "name": "agentrt",
        "base_url": f"{model.url}/v1",
        "wire_api": "responses",
        "env_key": _KEY,
    }
    settings: dict[str, Any] = {
        "model": model.name,
        "model_provider": "agentrt",
        "model_context_window": model.window,
        "model_auto_compact_token_limit": model.window - model.output,
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        **{f"model_providers.agentrt.{name}": value for name, value in provider.items()},
    }
    options = [part for name, v in settings.items() for part in ("-c", f"{name}={json.dumps(v)}")]
    return Setup({_KEY: model.key or _NO_KEY}, ["codex", *options, *arguments], frozenset([_KEY]))


def opencode(model: ServedModel, arguments: Sequence[str]) -> Setup:
    """Return the set-up of OpenCode, which uses chat completions. OpenCode's files stay
    unchanged.
    """
    room = min(model.window // 4, _TOOL_RESULT) + max(0, model.output - _OPENCODE_RESERVED)
    limit = {"context": model.window, "input": model.window - room, "output": model.output}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "agentrt",
        "options": {"baseURL": f"{model.url}/v1", "apiKey": f"{{env:{_KEY}}}"},
        "models": {model.name: {"name": model.name, "limit": limit}},
    }
    config = {
        "model": f"agentrt/{model.name}",
        "small_model": f"agentrt/{model.name}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"agentrt": provider},
    }
    variables: dict[str, str | None] = {
        _KEY: model.key or _NO_KEY,
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    return Setup(variables, ["opencode", *arguments], frozenset([_KEY]))


CLIENTS: Mapping[str, tuple[str, str, Callable[[ServedModel, Sequence[str]], Setup]]] = {
    "claude": ("Claude Code", "npm install -g @anthropic-ai/claude-code", claude),
    "codex": ("Codex", "npm install -g @openai/codex", codex),
    "opencode": ("OpenCode", "npm install -g opencode-ai", opencode),
}
"""For each client's command, the client's name, the command that installs the client, and the
function that makes its set-up.
"""


class ClientCommand(click.Command):
    """A command that takes its own arguments first. The first argument that is not its own, and all
    arguments after that, go to the client.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options, names, urls, rest = list[str](), list[str](), list[str](), list(args)
        while rest:
            head = rest[0]
            if head in _VALUED:
                if rest[1:2] in ([], ["--"]):  # click would take the inserted -- as the value
                    message = f"Option {head!r} requires an argument."
                    raise click.BadOptionUsage(head, message, ctx)
                options += rest[:2]
                del rest[:2]
            elif head in _FLAGS or head.startswith(_WITH_VALUE):
                options.append(rest.pop(0))
            elif not names and head[:1] != "-":
                names.append(rest.pop(0))
            elif not urls and _ADDRESS.fullmatch(head):
                urls.append(rest.pop(0))
            else:
                break
        if rest[:1] == ["--"]:
            del rest[0]
        options += [part for url in urls for part in ("--url", url)]
        return super().parse_args(ctx, [*options, "--", *names, *rest])

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(
            ctx.command_path, f"[{'|'.join(CLIENTS)}] [OPTIONS] [URL] [ARGUMENTS OF THE CLIENT]…"
        )


_EPILOG = """\b
Examples:
  agentrt client claude
  agentrt client claude http://gpu.local:8000 -p "Make the tests pass."
  agentrt client codex exec "Make the tests pass."
  agentrt client opencode --print
"""


@click.command(cls=ClientCommand, epilog=_EPILOG)
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.option(
    "--url",
    envvar="AGENTRT_URL",
    default=_URL,
    metavar="URL",
    help="Address of the server. You may also write it without --url, or set AGENTRT_URL.  "
    f"[default: {_URL}]",
)
@click.option("--model", metavar="NAME", help="Model to use.  [default: the server's first model]")
@click.option(
    "--api-key",
    envvar=_KEY,
    metavar="KEY",
    help=f"API key, if the server requires one. You may also set {_KEY}.",
)
@click.option(
    "--print",
    "shows",
    is_flag=True,
    help="Print the set-up as a shell script instead of starting the client.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def client(
    client: str,
    url: str,
    model: str | None,
    api_key: str | None,
    shows: bool,
    arguments: tuple[str, ...],
) -> None:
    """Start a coding agent that uses a server's model: Claude Code, Codex or OpenCode.

    The client gets the server's address, the model and the size of the model's context
    window, so that it compacts its context in time. Write options before the client's
    own arguments, which are passed on. The exit code is the client's.
    """
    from agentrt.errors import UsageError
    from agentrt.proxies import exemptions

    name, install, make = CLIENTS[client]
    program = shutil.which(client)
    if program is None and not shows:
        raise UsageError(
            f"{name} is not installed: there is no {client!r} on PATH; install it with: {install}"
        )
    served = _served(url, model, api_key)
    if served.window < _LEAST_WINDOW:
        say(
            f"{served.name} has a context window of {served.window} tokens, and {name}'s own "
            f"prompt and tools fill most of it; serve the model with a window of at least "
            f"{_LEAST_WINDOW} tokens (-- --max-model-len {_LEAST_WINDOW})"
        )
    setup = make(served, arguments)
    setup.variables |= exemptions(served.url)  # the clients read the variables for proxies, too
    if shows:
        click.echo(setup.shown())
        return
    assert program is not None
    _become(program, setup)


def _become(program: str, setup: Setup) -> None:
    """Replace this process by the client, so that the client gets the terminal and the signals."""
    from agentrt.cli.faults import RefusedError

    environ = {**os.environ, **{name: v for name, v in setup.variables.items() if v is not None}}
    for name, value in setup.variables.items():
        if value is None:
            environ.pop(name, None)
    setup.prepare(environ)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, setup.command, environ)
    except OSError as error:
        raise RefusedError(f"cannot start {program}: {error.strerror}") from error


def _served(url: str, model: str | None, key: str | None) -> ServedModel:
    """Ask the server about a model, by default the first model that the server lists.

    Raises `UsageError` for an unknown model, and `RefusedError` for a server that does not answer,
    lists no models, or does not report the model's context window.
    """
    from agentrt.cli.faults import RefusedError
    from agentrt.cli.questions import list_at_server
    from agentrt.errors import UsageError, shown_url

    base = (url if "://" in url else f"http://{url}").rstrip("/")
    base = base.removesuffix("/v1").removesuffix("/dashboard")
    cards = list_at_server(base, key, "models", ["id"])
    if not cards:
        raise RefusedError(
            f"{shown_url(base)} serves no model; start the server with: agentrt serve --model NAME"
        )
    for card in cards:
        if model in (None, card["id"]):
            break
    else:
        names = ", ".join(card["id"] for card in cards)
        raise UsageError(
            f"--model {model!r}: {shown_url(base)} does not serve this model; it serves {names}"
        )
    window = card.get("max_model_len")
    if not isinstance(window, int) or window < 1:
        raise RefusedError(
            f"{shown_url(base)} does not report the context window of {card['id']} "
            "(max_model_len); use a server that reports it, such as agentrt serve or vllm serve"
        )
    return ServedModel(base, card["id"], window, card.get("server_tools") or (), key)
