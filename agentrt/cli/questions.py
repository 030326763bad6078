"""``agentrt questions``: list and answer what a server's programs ask humans."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click

from agentrt.cli.lazy import LazyGroup
from agentrt.cli.streams import printable, typed

if TYPE_CHECKING:
    import httpx

    from agentrt.interrupts.answers import AnswerForm

T = TypeVar("T", bound=Callable[..., Any])
_TIMEOUT_S = 30.0


def server_options(command: T) -> T:
    """Which server, and the key for it."""
    url = click.option(
        "--url",
        envvar="AGENTRT_URL",
        default="http://127.0.0.1:8000",
        metavar="URL",
        help="The server's address; also AGENTRT_URL.  [default: http://127.0.0.1:8000]",
    )
    key = click.option(
        "--api-key",
        envvar="AGENTRT_API_KEY",
        metavar="KEY",
        help="A key of the tenant's, if the server asks for one; also AGENTRT_API_KEY.",
    )
    return url(key(command))


class _Questions(LazyGroup):
    """Without a command it lists the questions, as before it had any."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["ls", *args]
        return super().parse_args(ctx, args)


@click.command(
    cls=_Questions,
    lazy={
        "ls": ("agentrt.cli.questions:ls", "List the open questions. The default."),
        "answer": ("agentrt.cli.questions:answer", "Answer a question."),
    },
)
def questions() -> None:
    """List and answer what programs on a server ask humans."""


@click.command()
@server_options
@click.option("--program", metavar="ID", help="Only those of this program.")
@click.option("--thread", metavar="ID", help="Only those of this thread of a graph.")
@click.option("--json", "as_json", is_flag=True, help="Print them as one JSON list.")
def ls(
    url: str, api_key: str | None, program: str | None, thread: str | None, as_json: bool
) -> None:
    """List the questions that programs and graphs on a server ask humans.

    'agentrt questions answer ID VALUE' answers one. A command that runs with --dashboard
    has its questions at the dashboard's address.
    """
    wanted = {"program": program, "thread": thread}
    params = {name: value for name, value in wanted.items() if value is not None}
    found = ask_server(url, api_key, "GET", "questions", params=params)["data"]
    if as_json:
        click.echo(json.dumps(found))
    elif not found:
        click.echo(f"no questions are open at {url}", err=True)
    else:
        click.echo("".join(map(_listed, found)), nl=False)


@click.command()
@click.argument("question", metavar="ID")
@click.argument("value", metavar="VALUE")
@server_options
def answer(question: str, value: str, url: str, api_key: str | None) -> None:
    """Answer the question ID on a server with VALUE; the first answer counts.

    VALUE is text or JSON, as the question's schema wants it: a choice by its
    name or number, yes or no, a number, or an object as '{"cups": 2}'.

    Exit codes: 0 the answer was taken; 1 it came too late, or no server
    answers; 2 it does not fit, or there is no such question.
    """
    from agentrt.cli.faults import RefusedError
    from agentrt.cli.human import read_choice

    path = f"questions/{quote(question, safe='')}"
    asked = ask_server(url, api_key, "GET", path)
    if asked["state"] != "open":
        raise RefusedError(f"question {question} was {asked['state']} already")
    given = read_choice(_form(asked), typed(value))
    done = ask_server(url, api_key, "POST", path, json={"answer": given})
    run = f": run {done['run']} goes on" if "run" in done else ""
    click.echo(f"answered {asked['program'] or 'thread ' + asked['thread']}{run}", err=True)


def _listed(question: dict[str, Any]) -> str:
    """One question for people: its id, who asks what, and what an answer must be."""
    from agentrt.cli.human import asked_for

    who = question["program"] or f"{question['type']} (thread {question['thread']})"
    lines = f"{who} asks: {printable(question['question'])}\n{asked_for(_form(question))}"
    return f"{question['id']}\n{textwrap.indent(lines, '  ')}"


def _form(question: dict[str, Any]) -> AnswerForm:
    from agentrt.interrupts.answers import AnswerForm, free_form

    schema = question["schema"]
    return AnswerForm() if schema is None else free_form(schema)


def ask_server(url: str, key: str | None, method: str, path: str, **more: Any) -> Any:
    """The JSON of the server's answer. Raises `UsageError` and `RefusedError`."""
    import httpx

    from agentrt.cli.faults import RefusedError
    from agentrt.errors import UsageError
    from agentrt.proxies import client_options

    base = url.rstrip("/").removesuffix("/v1").removesuffix("/dashboard")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageError("--api-key: that is no key: it has characters that no key has")
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        response = httpx.request(
            method,
            f"{base}/v1/{path}",
            headers=headers,
            timeout=_TIMEOUT_S,
            **client_options(base),
            **more,
        )
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
        raise UsageError(f"--url {url!r}: {error}; give one as http://127.0.0.1:8000") from error
    except httpx.HTTPError as error:
        raise RefusedError(
            f"no server answers at {url}: {error}; is 'agentrt serve' running there? --url or "
            "AGENTRT_URL names another"
        ) from error
    if response.is_success:
        return _json_of(response, url)
    why = _why(response)
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise UsageError(f"{url}: {why}; give it with --api-key or AGENTRT_API_KEY")
    is_usage = response.status_code in (400, 404, 413, 422)
    raise (UsageError if is_usage else RefusedError)(why)


def _why(response: httpx.Response) -> str:
    """The server's own words, or the status."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.url} answers {response.status_code}: is it a server of agentrt's?"


def _json_of(response: httpx.Response, url: str) -> Any:
    from agentrt.cli.faults import RefusedError

    try:
        return response.json()
    except ValueError as error:
        raise RefusedError(f"what answers at {url} is no server of agentrt's") from error
