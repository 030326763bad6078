"""``agentrt serve`` and ``agentrt keys``: their options, and what they do with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.cli.options import (
    SIMULATED,
    Options,
    RunCommand,
    batch_option,
    engine,
    fleet_options,
    journal_options,
    model_option,
    output,
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


_server, _tenants, _events = Options("Server"), Options("Tenants"), Options("Events")


@click.command(cls=ServeCommand, epilog=_EPILOG)
@click.argument("targets", nargs=-1, metavar="[PROGRAM.py[:NAME] | langgraph.json]…")
@_server.text("--host", "ADDRESS", "", default="127.0.0.1")
@_server.text(
    "--port", "N", "0 takes any that is free.", type=click.IntRange(0, 65535), default=8000
)
@_server.file(
    "--ssl-certfile", "Serve over TLS (https, wss), with the certificate in this PEM file."
)
@_server.file("--ssl-keyfile", "And its private key.  [default: in the same file]")
@_server.text(
    "--served-model-name", "NAME", "What clients call the model.  [default: its own name]"
)
@_server.flag(
    "--strict-requests", "Refuse fields of requests that vLLM does not know; else it ignores them."
)
@_server.text(
    "--reminders",
    "[in-place|template]",
    "Where a system or developer message in the middle of a chat goes, if the chat template does "
    "not take it there: in-place makes it a user turn in <system-reminder> marks, so that the "
    "prompt's beginning stays cached; template leaves it to the template and vLLM, which refuse "
    "it or move it to the front.",
    type=click.Choice(["in-place", "template"]),
    default="in-place",
)
@_server.text(
    "--database",
    "sqlite:FILE|postgresql://…",
    "Where threads and runs of graphs are kept.",
    default="sqlite:agentrt.db",
)
@_server.several(
    "--cors-origin",
    "cors_origins",
    "ORIGIN",
    "Pages of this origin, such as https://chat.example.com, may call the server from a browser; "
    "* for all. Repeat it for more.  [default: without keys, those of this machine]",
)
@_server.several(
    "--webhook-host",
    "webhook_hosts",
    "HOST",
    "Runs of graphs may have this host called at their end; *.DOMAIN, or * for any with a public "
    "address. Repeat it for more.  [default: none]",
)
@_server.several(
    "--allowed-hosts",
    "allowed_hosts",
    "NAME",
    "Without keys, a name beside localhost that clients may call the server by; *.NAME, or * for "
    "any. Repeat it for more.",
)
@_server.flag(
    "--check",
    "Only say what of the files would be served, and what of a langgraph.json would not; no "
    "engine starts. Exit code 1 if something would not.",
)
@_server.seconds(
    "--keep-alive",
    "A stream without a byte for so long, such as one that waits for its turn, sends a comment or "
    "ping, so that no proxy or client takes it for dead; 0: never.",
    least=0,
    default=10.0,
)
@_server.seconds(
    "--early-answers",
    "An answer in one piece that takes longer than this begins with status 200, and newlines keep "
    "its connection open until its JSON comes; 0: it begins when it is known.",
    least=0,
    default=25.0,
)
@_server.seconds("--drain-timeout", "How long a stop waits for what runs.", least=0, default=30.0)
@_server.text("--seed", "N", "Makes sampled calls repeatable.", type=int, default=0)
@_tenants.file(
    "--api-key-file",
    "Ask for keys, which 'agentrt keys new' makes; tenants share the engine fairly.",
)
@_tenants.flag(
    "--submit",
    "Clients may send programs as source, which run in a sandbox: POST /v1/programs.",
)
@_tenants.flag("--isolate-cache", "No tenant's prompt finds another's prefixes in the cache.")
@_tenants.count(
    "--max-calls",
    "Calls that one tenant may have under way; more are answered 429.",
    default=1024,
)
@_tenants.count("--max-programs", "Live programs of one tenant.", default=4096)
@_tenants.count(
    "--max-body",
    "The largest request; images make them large.",
    least=1024,
    default=32 * 1024 * 1024,
    metavar="BYTES",
)
@_tenants.seconds(
    "--idle",
    "A client's program that was not heard of for so long has ended; one that the server found "
    "out from a conversation, after an eighth of it.",
    least=1,
    default=900.0,
)
@_events.several(
    "--on",
    "on",
    "mqtt:TOPIC=PROGRAM",
    "Start PROGRAM for each message on TOPIC at the broker, with its topic and payload as input. "
    "Repeat it for more.",
)
@_events.count(
    "--on-max",
    "How many programs one --on may have running; what comes beyond, or fails, goes to the topic "
    "PREFIX/dead-letters.",
    default=16,
)
@_events.text("--on-tenant", "NAME", "Whose they are.", default="default")
@Options("Journal").text(
    "--journal",
    "FILE|off",
    "Where each call, tool and answer of programs is recorded: after a restart those go on whose "
    "client did not wait.  [default: beside the database, or in it if that is PostgreSQL]",
)
@journal_options
@Options("Journal").count(
    "--journal-keep", "How many programs that have ended are kept.", default=1000
)
@Options("Journal").seconds(
    "--park-after",
    "A recorded program that has waited so long, for humans or ctx.sleep alone, leaves memory "
    "until an answer or its time comes; 0: never.",
    least=0,
    default=60.0,
)
@tool_options
@Options("Tools").several(
    "--server-tool",
    "server_tools",
    "KIND=NAME",
    "Run a tool of Anthropic's servers that a client of /v1/messages asks for (web_search, "
    "web_fetch, code_execution) by this tool of --mcp, --tools or --broker. Repeat it for more.",
)
@scheduling_options
@engine.text(
    "--engine",
    "[vllm|simulated]",
    f"What computes; {SIMULATED}",
    "kind",
    type=click.Choice(["vllm", "simulated"]),
    default="vllm",
)
@model_option
@batch_option
@fleet_options
@traces_option
@output.flag("--verbose", "Show vLLM's own log on stderr.")
def serve(targets: tuple[str, ...], engine_flags: tuple[str, ...], **options: Any) -> int:
    """Serve the programs and graphs in the files, and the model, over HTTP.

    Clients of OpenAI's and Anthropic's APIs can use the model, by vLLM's own
    front end: /v1/chat/completions, /v1/responses, /v1/messages and the others
    that 'vllm serve' has. Each call belongs to a program: its headers say
    which, or the conversation shows it. docs/serve.md has the rest.

    What follows -- are flags of 'vllm serve', such as --tool-call-parser.
    """
    # Here and not above, so that --help does not pay for it.
    if options["check"]:
        from agentrt.cli.check import check

        return check(targets)
    from agentrt.cli.engines import check_kind, read_fleet
    from agentrt.cli.serve_job import read_job
    from agentrt.cli.serving import serve_job
    from agentrt.serving.listen import Listener

    check_kind(options["kind"], click.get_current_context(), engine_flags)
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
