"""The options of ``agentrt serve`` and ``agentrt keys``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.cli.app import Lazy, LazyGroup
from agentrt.cli.options import (
    SIMULATED,
    FilePath,
    FileText,
    Options,
    RunCommand,
    batch_option,
    engine,
    fleet_options,
    host_memory_option,
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
SIGTERM or Ctrl-C finishes the running requests; a second signal stops at once.
Exit codes: 1 the engine failed; 2 bad usage; 130 Ctrl-C; 143 SIGTERM.
"""


class ServeCommand(RunCommand):
    """A command that takes any number of files."""

    TARGETS = "[PROGRAM.py[:NAME] | langgraph.json]…"


_server, _tenants, _events = Options("Server"), Options("Tenants"), Options("Events")


@click.command(cls=ServeCommand, epilog=_EPILOG)
@click.argument("targets", nargs=-1, metavar="[PROGRAM.py[:NAME] | langgraph.json]…")
@_server.text("--host", "ADDRESS", "Address on which the server listens.", default="127.0.0.1")
@_server.text(
    "--port",
    "N",
    "Port on which the server listens; 0: any free port.",
    type=click.IntRange(0, 65535),
    default=8000,
)
@_server.file(
    "--ssl-certfile",
    "PEM file of a certificate. With it, the server uses TLS (https, wss).  [default: no TLS]",
)
@_server.file(
    "--ssl-keyfile",
    "PEM file of the certificate's private key.  [default: the file of --ssl-certfile]",
)
@_server.file(
    "--ssl-ca-certs",
    "PEM file of the authorities that sign the certificates of clients. Needs --ssl-cert-reqs.",
)
@_server.text(
    "--ssl-cert-reqs",
    "0|1|2",
    "Whether clients need a certificate that an authority of --ssl-ca-certs has signed. 0: no; 1: "
    "one that a client sends must be valid; 2: yes.",
    type=click.IntRange(0, 2),
    default=0,
)
@_server.file(
    "--uds",
    "Unix socket on which the server listens, in place of --host and --port. The permissions of "
    "the file and of its folder say who may connect.  [default: none]",
)
@_server.text(
    "--root-path",
    "PATH",
    "Path below which a proxy offers the server, such as /models. The server answers requests "
    "with and without it, so the proxy may leave it in the path or remove it.  [default: none]",
)
@_server.several(
    "--middleware",
    "middleware",
    "MODULE.NAME",
    "ASGI middleware that each request passes before its key is checked: a class, or an async "
    "function with the parameters request and call_next. May be repeated: a request passes the "
    "last one first.",
)
@_server.several(
    "--served-model-name",
    "names",
    "NAME",
    "Name by which clients call the model. May be repeated: answers have the first name.  "
    "[default: the model's own name]",
)
@_server.flag(
    "--strict-requests",
    "Reject requests with fields that vLLM does not know. By default such fields are ignored.",
)
@_server.text(
    "--reminders",
    "[in-place|template]",
    "What to do with a system or developer message in the middle of a chat if the chat template "
    "does not support it. in-place: make it a user message within <system-reminder> tags, so that "
    "the prefix cache still has the messages before it. template: leave it to the template and "
    "vLLM, which reject the request or move the message to the front.",
    type=click.Choice(["in-place", "template"]),
    default="in-place",
)
@_server.text(
    "--database",
    "sqlite:FILE|postgresql://…",
    "Database that stores the threads and runs of graphs, and answers of the Responses API.  "
    "[default: a file in this user's folder for data; servers that are started in different "
    "folders use different files]",
)
@_server.several(
    "--cors-origin",
    "cors_origins",
    "ORIGIN",
    "Origin whose pages may call the server from a browser, such as https://chat.example.com; *: "
    "all origins. May be repeated.  [default: without API keys, pages of this machine; else none]",
)
@_server.several(
    "--webhook-host",
    "webhook_hosts",
    "HOST",
    "Host that webhooks of graph runs may call: a name, *.DOMAIN, or * for any host with a public "
    "address. May be repeated.  [default: none]",
)
@_server.several(
    "--allowed-hosts",
    "allowed_hosts",
    "NAME",
    "Further host name by which clients may call the server: a name, *.NAME, or * for any name. "
    "May be repeated.  [default: localhost and the name of --host; with API keys, any name]",
)
@_server.flag(
    "--check",
    "Only report which parts of the files would be served, and which parts of a langgraph.json "
    "would not. Starts no engine. The exit code is 1 if a part would not be served.",
)
@_server.seconds(
    "--keep-alive",
    "Longest time for which a stream sends nothing, for example because its call waits. Then the "
    "server sends a comment or ping, so that no proxy or client closes the stream; 0: never.",
    least=0,
    default=10.0,
)
@_server.seconds(
    "--early-answers",
    "Seconds after which the server begins an answer that is not streamed, although its content is "
    "not known yet: it sends status 200, and newlines that keep the connection open until the JSON "
    "follows. 0, or --keep-alive 0: wait until the content is known.",
    least=0,
    default=25.0,
)
@_server.seconds(
    "--drain-timeout", "Maximum time that a stop waits for running requests.", least=0, default=30.0
)
@_server.text("--seed", "N", "Seed that makes sampled calls repeatable.", type=int, default=0)
@_tenants.file(
    "--api-key-file",
    "File of API keys, which 'agentrt keys new' creates. With it, requests need a key, and tenants "
    "share the engine fairly.  [default: the key in VLLM_API_KEY for all clients, or no keys]",
)
@_tenants.flag(
    "--submit",
    "Let clients submit programs as source code with POST /v1/programs. They run in a sandbox.",
)
@_tenants.flag("--isolate-cache", "Do not share the prefix cache between tenants.")
@_tenants.count(
    "--max-calls",
    "Maximum number of calls that a tenant may have in flight. Further calls get status 429.",
    default=1024,
)
@_tenants.count("--max-programs", "Maximum number of live programs of a tenant.", default=4096)
@_tenants.count(
    "--max-body",
    "Maximum size of a request's body. Requests with images are large.",
    least=1024,
    default=32 * 1024 * 1024,
    metavar="BYTES",
)
@_tenants.seconds(
    "--idle",
    "Time without requests after which a client's program times out. A program that the server "
    "recognized only by its conversation times out after an eighth of this time.",
    least=1,
    default=900.0,
)
@_events.several(
    "--on",
    "on",
    "mqtt:TOPIC=PROGRAM",
    "Start PROGRAM for each message on TOPIC at the broker, with the message's topic and payload "
    "as input. May be repeated.",
)
@_events.count(
    "--on-max",
    "Maximum number of programs that run at the same time for one --on. Further messages, and "
    "messages whose programs fail, go to the topic PREFIX/dead-letters.",
    default=16,
)
@_events.text("--on-tenant", "NAME", "Tenant of the programs that --on starts.", default="default")
@Options("Journal").text(
    "--journal",
    "FILE|off",
    "File that records each call, tool and answer of @program functions (not of graphs, which have "
    "checkpoints); off: no journal. After a restart of "
    "the server, programs resume if --on started them, or if their client did not wait for them.  "
    "[default: a file next to the database, or the database itself if that is PostgreSQL]",
    type=FileText(),
)
@journal_options
@Options("Journal").count(
    "--journal-keep", "Number of ended programs that stay in the journal.", default=1000
)
@Options("Journal").seconds(
    "--park-after",
    "Remove a recorded program from memory once it has waited only for humans or ctx.sleep for "
    "this time. It resumes when the answer or the end of its sleep comes. 0: never remove.",
    least=0,
    default=60.0,
)
@tool_options
@Options("Tools").several(
    "--server-tool",
    "server_tools",
    "KIND=NAME",
    "Tool of --mcp, --tools or --broker that replaces one of Anthropic's server tools "
    "(web_search, web_fetch, code_execution) for clients of /v1/messages. May be repeated.",
)
@scheduling_options
@engine.text(
    "--engine",
    "[vllm|simulated]",
    f"Kind of engine. vllm is a real engine; {SIMULATED}",
    "kind",
    type=click.Choice(["vllm", "simulated"]),
    default="vllm",
)
@model_option
@batch_option
@host_memory_option
@fleet_options
@traces_option
@output.flag("--verbose", "Show vLLM's own log, and a line for each request, on stderr.")
def serve(targets: tuple[str, ...], engine_flags: tuple[str, ...], **options: Any) -> int:
    """Serve the programs and graphs in the files, and the model, over HTTP.

    Clients of OpenAI's and Anthropic's APIs can use the model. vLLM's own front
    end answers them: /v1/chat/completions, /v1/responses, /v1/messages and the
    other endpoints of 'vllm serve'. Each call belongs to a run: its request names
    the run, or the server recognizes it by the conversation. See docs/identity.md.

    Arguments after -- are flags of 'vllm serve', such as --tool-call-parser.
    """
    # Imported here, so that --help stays fast.
    if options["check"]:
        from agentrt.cli.check import check

        return check(targets)
    from agentrt.cli.engines import check_kind, read_fleet
    from agentrt.cli.serving import read_job, serve_job
    from agentrt.serving.listen import Listener

    check_kind(options["kind"], click.get_current_context(), engine_flags)
    job, fleet = read_job(targets, engine_flags, options), read_fleet(options)
    listener = Listener(
        options["host"],
        options["port"],
        _certificate(options),
        uds=options["uds"],
        root_path=_root_path(options["root_path"]),
    )
    try:
        return serve_job(job, fleet, listener)
    finally:
        listener.close()


def _certificate(options: dict[str, Any]) -> Certificate | None:
    import ssl

    from agentrt.errors import UsageError
    from agentrt.serving.listen import Certificate

    chain, key = options["ssl_certfile"], options["ssl_keyfile"]
    authorities, requests = options["ssl_ca_certs"], ssl.VerifyMode(options["ssl_cert_reqs"])
    if chain is None and key is not None:
        raise UsageError("--ssl-keyfile needs the certificate of the key; add --ssl-certfile FILE")
    if authorities is not None and not requests:
        raise UsageError(
            "--ssl-ca-certs has no effect without --ssl-cert-reqs; add --ssl-cert-reqs 2 to refuse "
            "clients without a certificate"
        )
    if requests and authorities is None:
        raise UsageError(
            f"--ssl-cert-reqs {int(requests)} needs the authorities that sign the certificates of "
            "clients; add --ssl-ca-certs FILE"
        )
    if requests and chain is None:
        raise UsageError("--ssl-cert-reqs needs the server's certificate; add --ssl-certfile FILE")
    return None if chain is None else Certificate(chain, key, authorities, requests)


def _root_path(value: str | None) -> str:
    """Return the path of ``--root-path`` without a slash at its end; "" for none."""
    from agentrt.errors import UsageError

    path = (value or "").rstrip("/")
    if path and not re.fullmatch(r"(/[\w.~-]+)+", path, re.ASCII):
        raise UsageError(
            f"--root-path {value!r}: invalid path; use a slash and letters, digits, '-', '_', '.' "
            "or '~', such as /models"
        )
    return path


_KEYS: Lazy = {"new": (f"{__name__}:new", "Create a key for TENANT and print it.")}


@click.group(cls=LazyGroup, lazy=_KEYS)
def keys() -> None:
    """Create API keys for the tenants of 'agentrt serve --api-key-file'."""


@click.command()
@click.argument("tenant")
@click.option(
    "--file",
    "path",
    required=True,
    type=FilePath(dir_okay=False),
    metavar="FILE",
    help="File of keys. It is created if it does not exist. It stores only a hash of each key.",
)
def new(tenant: str, path: Path) -> None:
    """Create a key for TENANT and print it. The key is shown only once.

    A running server that uses FILE accepts the key a second later. To limit a
    tenant, add limits to the tenant's entry in FILE: weight, concurrency, calls,
    programs, requests_per_minute, tokens_per_minute, http_requests_per_minute. To
    revoke a key, delete the key's entry.
    """
    from agentrt.serving.tenants.keys import new_key

    click.echo(new_key(path, tenant))
    click.echo(f"this key of {tenant} is shown only once; {path} stores only its hash", err=True)
