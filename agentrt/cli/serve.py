"""``agentrt serve`` and ``agentrt keys``: their options, and what they do with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.cli.options import (
    RunCommand,
    batch_option,
    fleet_options,
    grouped,
    model_option,
    scheduling_options,
    tool_options,
    traces_option,
)

if TYPE_CHECKING:
    from agentrt.serving.listen import Certificate

_EPILOG = """\b
Examples:
  agentrt serve
  agentrt serve demos/react.py langgraph.json --port 8080
  agentrt serve --check langgraph.json
  agentrt keys new acme --file keys.json
  agentrt serve --api-key-file keys.json --isolate-cache --replicas 2
  agentrt serve plant.py --broker mqtt://plant.local --on 'mqtt:plant/+/alarm=react'
  agentrt serve --model Qwen/Qwen2.5-7B-Instruct -- --max-model-len 8192

\b
SIGTERM or Ctrl-C finishes what runs, a second one stops at once.
Exit codes: 1 the engine failed; 2 bad usage; 130 Ctrl-C, 143 SIGTERM.
"""


class ServeCommand(RunCommand):
    """It takes any number of files."""

    TARGETS = "[PROGRAM.py[:NAME] | langgraph.json]…"


_server, _tenants, _events = grouped("Server"), grouped("Tenants"), grouped("Events")


@click.command(cls=ServeCommand, epilog=_EPILOG)
@click.argument("targets", nargs=-1, metavar="[PROGRAM.py[:NAME] | langgraph.json]…")
@_server("--host", default="127.0.0.1", metavar="ADDRESS", help="[default: 127.0.0.1]")
@_server(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    metavar="N",
    help="0 takes any that is free.  [default: 8000]",
)
@_server(
    "--ssl-certfile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Serve over TLS (https, wss), with the certificate in this PEM file.",
)
@_server(
    "--ssl-keyfile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="And its private key.  [default: in the same file]",
)
@_server(
    "--served-model-name",
    metavar="NAME",
    help="What clients call the model.  [default: its own name]",
)
@_server(
    "--strict-requests",
    is_flag=True,
    help="Refuse fields of requests that vLLM does not know; else it ignores them.",
)
@_server(
    "--database",
    default="sqlite:agentrt.db",
    metavar="sqlite:FILE|postgresql://…",
    help="Where threads and runs of graphs are kept.  [default: sqlite:agentrt.db]",
)
@_server(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Pages of this origin, such as https://chat.example.com, may call the server from a "
    "browser; * for all. Repeat it for more.  [default: without keys, those of this machine]",
)
@_server(
    "--webhook-host",
    "webhook_hosts",
    multiple=True,
    metavar="HOST",
    help="Runs of graphs may have this host called at their end; *.DOMAIN, or * for any with a "
    "public address. Repeat it for more.  [default: none]",
)
@_server(
    "--allowed-hosts",
    multiple=True,
    metavar="NAME",
    help="Without keys, a name beside localhost that clients may call the server by; *.NAME, "
    "or * for any. Repeat it for more.",
)
@_server(
    "--check",
    is_flag=True,
    help="Only say what of the files would be served, and what of a langgraph.json would not; "
    "no engine starts. Exit code 1 if something would not.",
)
@_server(
    "--drain-timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    metavar="SECONDS",
    help="How long a stop waits for what runs.  [default: 30]",
)
@_server(
    "--seed", type=int, default=0, metavar="N", help="Makes sampled calls repeatable.  [default: 0]"
)
@_tenants(
    "--api-key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Ask for keys, which 'agentrt keys new' makes; tenants share the engine fairly.",
)
@_tenants(
    "--submit",
    is_flag=True,
    help="Clients may send programs as source, which run in a sandbox: POST /v1/programs.",
)
@_tenants(
    "--isolate-cache",
    is_flag=True,
    help="No tenant's prompt finds another's prefixes in the cache.",
)
@_tenants(
    "--max-calls",
    type=click.IntRange(min=1),
    default=1024,
    metavar="N",
    help="Calls that one tenant may have under way; more are answered 429.  [default: 1024]",
)
@_tenants(
    "--max-programs",
    type=click.IntRange(min=1),
    default=4096,
    metavar="N",
    help="Live programs of one tenant.  [default: 4096]",
)
@_tenants(
    "--max-body",
    type=click.IntRange(min=1024),
    default=32 * 1024 * 1024,
    metavar="BYTES",
    help="The largest request; images make them large.  [default: 33554432]",
)
@_tenants(
    "--idle",
    type=click.FloatRange(min=1),
    default=900.0,
    metavar="SECONDS",
    help="A client's program that was not heard of for so long has ended; one that the server "
    "found out from a conversation, after an eighth of it.  [default: 900]",
)
@_events(
    "--on",
    multiple=True,
    metavar="mqtt:TOPIC=PROGRAM",
    help="Start PROGRAM for each message on TOPIC at the broker, with its topic and payload as "
    "input. Repeat it for more.",
)
@_events(
    "--on-max",
    type=click.IntRange(min=1),
    default=16,
    metavar="N",
    help="How many programs one --on may have running; what comes beyond, or fails, goes to the "
    "topic PREFIX/dead-letters.  [default: 16]",
)
@_events("--on-tenant", default="default", metavar="NAME", help="Whose they are.")
@tool_options
@scheduling_options
@model_option
@batch_option
@fleet_options
@traces_option
@grouped("Output")("--verbose", is_flag=True, help="Show vLLM's own log on stderr.")
def serve(targets: tuple[str, ...], engine_flags: tuple[str, ...], **options: Any) -> int:
    """Serve the programs and graphs in the files, and the model, over HTTP.

    Clients of OpenAI's and Anthropic's APIs can use the model, by vLLM's own
    front end: /v1/chat/completions, /v1/responses, /v1/messages and the others
    that 'vllm serve' has. Each call belongs to a program: its headers say
    which, or the conversation shows it. docs/serve.md has the rest.

    What follows -- are flags of 'vllm serve', such as --tool-call-parser.
    """
    # Here and not above, so that --help does not pay for it.
    _check_packages()
    if options["check"]:
        from agentrt.cli.check import check

        return check(targets)
    from agentrt.cli.engines import read_fleet
    from agentrt.cli.serve_job import read_job
    from agentrt.cli.serving import serve_job
    from agentrt.serving.listen import Listener

    job, fleet = read_job(targets, engine_flags, options), read_fleet(options)
    listener = Listener(options["host"], options["port"], _certificate(options))
    try:
        return serve_job(job, fleet, listener)
    finally:
        listener.close()


def _certificate(options: dict[str, Any]) -> Certificate | None:
    from agentrt.errors import UsageError
    from agentrt.serving.listen import Certificate

    chain, key = options["ssl_certfile"], options["ssl_keyfile"]
    if chain is None and key is not None:
        raise UsageError("--ssl-keyfile is the key of --ssl-certfile: give that, too")
    return None if chain is None else Certificate(chain, key)


def _check_packages() -> None:
    from importlib.util import find_spec

    from agentrt.errors import ConfigError

    for package in ("fastapi", "uvicorn", "httptools", "sse_starlette", "jsonschema", "uvloop"):
        if find_spec(package) is None:
            raise ConfigError(f"a server needs the package {package}; install agentrt[serve]")


@click.group()
def keys() -> None:
    """Make API keys for the tenants of 'agentrt serve --api-key-file'."""


@keys.command()
@click.argument("tenant")
@click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file of keys; it is made if there is none. It keeps a hash only.",
)
def new(tenant: str, path: Path) -> None:
    """Make a key for TENANT and print it, once.

    A server that reads FILE knows it a second later. Limits of the tenant go
    into FILE by hand: weight, concurrency, calls, programs,
    requests_per_minute, tokens_per_minute, http_requests_per_minute. A key is
    revoked by deleting its entry.
    """
    from agentrt.serving.tenants.keys import new_key

    click.echo(new_key(path, tenant))
    click.echo(f"this key of {tenant} is shown once; {path} has its hash only", err=True)
