"""``agentrt questions``: list and answer the questions that a server's programs ask humans."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click

from agentrt.cli.lazy import LazyGroup
from agentrt.cli.options import run_option
from agentrt.cli.streams import printable, typed

if TYPE_CHECKING:
    import httpx

    from agentrt.interrupts.answers import AnswerForm

T = TypeVar("T", bound=Callable[..., Any])
_TIMEOUT_S = 30.0


def server_options(command: T) -> T:
    """Add the options that name a server and its API key."""
    url = click.option(
        "--url",
        envvar="AGENTRT_URL",
        default="http://127.0.0.1:8000",
        metavar="URL",
        help="Address of the server. You may also set AGENTRT_URL.  "
        "[default: http://127.0.0.1:8000]",
    )
    key = click.option(
        "--api-key",
        envvar="AGENTRT_API_KEY",
        metavar="KEY",
        help="API key, if the server requires one. You may also set AGENTRT_API_KEY.",
    )
    return url(key(command))


class _Questions(LazyGroup):
    """A group whose default subcommand is ``ls``, as in earlier versions."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["ls", *args]
        return super().parse_args(ctx, args)


@click.command(
    cls=_Questions,
    lazy={
        "ls": ("agentrt.cli.questions:ls", "List the open questions. This is the default."),
        "answer": ("agentrt.cli.questions:answer", "Answer a question."),
    },
)
def questions() -> None:
    """List and answer the questions that programs on a server ask humans."""


@click.command()
@server_options
@run_option("List only the questions of this run.")
@click.option("--thread", metavar="ID", help="List only the questions of this graph thread.")
@click.option("--json", "as_json", is_flag=True, help="Print the questions as one JSON list.")
def ls(url: str, api_key: str | None, run: str | None, thread: str | None, as_json: bool) -> None:
    """List the open questions of the programs and graphs on a server.

    Answer a question with 'agentrt questions answer ID VALUE'. For 'agentrt run
    --dashboard', use the dashboard's address as --url.
    """
    wanted = {"run": run, "thread": thread}
    params = {name: value for name, value in wanted.items() if value is not None}
    open_questions = ask_server(url, api_key, "GET", "questions", params=params)["data"]
    if as_json:
        click.echo(json.dumps(open_questions))
    elif not open_questions:
        from agentrt.errors import shown_url

        click.echo(f"no questions are open at {shown_url(url)}", err=True)
    else:
        click.echo("".join(map(_listed, open_questions)), nl=False)


@click.command()
@click.argument("question", metavar="ID")
@click.argument("value", metavar="VALUE")
@server_options
def answer(question: str, value: str, url: str, api_key: str | None) -> None:
    """Answer the question ID on a server with VALUE. Only the first answer counts.

    VALUE is text or JSON, as the question's schema requires: the name or number of a
    choice, yes or no, a number, or an object such as '{"cups": 2}'.

    Exit codes: 0 the server accepted the answer; 1 the question is not open any more, or
    the server cannot be reached; 2 the answer does not fit the schema, the question
    does not exist, or the URL or the API key is invalid.
    """
    from agentrt.cli.faults import RefusedError
    from agentrt.cli.human import read_choice

    path = f"questions/{quote(question, safe='')}"
    fields = ask_server(url, api_key, "GET", path)
    if fields["state"] != "open":
        raise RefusedError(f"question {question} is not open any more: {fields['state']}")
    reply = read_choice(_form(fields), typed(value))
    done = ask_server(url, api_key, "POST", path, json={"answer": reply})
    run = f": run {done['run']} continues" if "run" in done else ""
    asker = fields["run"] or f"thread {fields['thread']}"
    click.echo(f"answered the question of {asker}{run}", err=True)


def _listed(question: dict[str, Any]) -> str:
    """Return a question for people: its id, its run, its text, and the form of an answer."""
    from agentrt.cli.human import answer_hint

    run = question["run"] or f"{question['type']} (thread {question['thread']})"
    lines = f"{run} asks: {printable(question['question'])}\n{answer_hint(_form(question))}"
    return f"{question['id']}\n{textwrap.indent(lines, '  ')}"


def _form(question: dict[str, Any]) -> AnswerForm:
    from agentrt.interrupts.answers import AnswerForm, free_form

    schema = question["schema"]
    return AnswerForm() if schema is None else free_form(schema)


def ask_server(url: str, key: str | None, method: str, path: str, **request: Any) -> Any:
    """Send a request to the server and return the JSON of its answer.

    ``request`` are further arguments of httpx's ``request``. Raises `UsageError` for an invalid URL
    or API key, and for a request that the server rejects as invalid. Raises `RefusedError` if the
    server cannot be reached, or rejects the request for another reason.
    """
    import httpx

    from agentrt.cli.faults import RefusedError
    from agentrt.errors import UsageError, shown_url, url_fault
    from agentrt.proxies import client_options

    shown = shown_url(url)
    advice = "write an address such as http://127.0.0.1:8000"
    if (fault := url_fault(url)) is not None:
        raise UsageError(f"--url {shown!r} is not an address of a server ({fault}); {advice}")
    base = url.rstrip("/").removesuffix("/v1").removesuffix("/dashboard")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageError("--api-key: invalid API key; a key has only printable ASCII characters")
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        response = httpx.request(
            method,
            f"{base}/v1/{path}",
            headers=headers,
            **client_options(base),
            **{"timeout": _TIMEOUT_S, **request},
        )
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
        raise UsageError(
            f"--url {shown!r} is not an address of a server ({str(error).rstrip('.')}); {advice}"
        ) from error
    except httpx.HTTPError as error:
        raise RefusedError(
            f"no server answers at {shown}: {_cause(error)}; start 'agentrt serve' there, or set "
            "another address with --url or AGENTRT_URL"
        ) from error
    if response.is_success:
        return _json_of(response, shown)
    why = _why(response)
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise UsageError(f"{shown}: {why}; set the key with --api-key or AGENTRT_API_KEY")
    is_usage = response.status_code in (400, 403, 404, 413, 422)
    raise (UsageError if is_usage else RefusedError)(why)


def _cause(error: Exception) -> str:
    """Return the text of an error without the number that the operating system gives it."""
    return str(error).partition("] ")[2].lower() if str(error).startswith("[Errno") else str(error)


def _why(response: httpx.Response) -> str:
    """Return the error message in the server's answer, by default a message with its status."""
    from agentrt.errors import shown_url

    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return (
            f"{shown_url(str(response.url))} answers with status {response.status_code}, unlike an "
            "agentrt server; check the address and the port"
        )


def _json_of(response: httpx.Response, shown: str) -> Any:
    from agentrt.cli.faults import RefusedError

    try:
        return response.json()
    except ValueError as error:
        raise RefusedError(
            f"{shown} does not answer like an agentrt server; check the address and the port"
        ) from error
