"""``agentrt questions``: list and answer the questions that a server's programs ask humans."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click

from agentrt.cli.app import LazyGroup
from agentrt.cli.options import run_option
from agentrt.cli.streams import printable, say, show_json, typed

if TYPE_CHECKING:
    import httpx

    from agentrt.interrupts.answers import AnswerForm

T = TypeVar("T", bound=Callable[..., Any])
_TIMEOUT_S = 30.0
_MOST_LISTED = 1000
"""Maximum number of questions that a server lists. Without a limit, it lists 100."""
HOST_AND_PORT = re.compile(r"(localhost|[\w-]+(\.[\w-]+)*|\[[0-9a-fA-F:]+\]):\d{1,5}")
"""A server's address without a scheme, which then is http."""
_DASHED = re.compile(r"-[\d.\s]")
_FIELDS = ("id", "run", "type", "thread", "question", "schema", "state")
"""The fields of a server's question that the commands use."""


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

    The list has the newest 1,000 questions. Answer a question with 'agentrt questions
    answer ID VALUE'. For 'agentrt run --dashboard', use the dashboard's address as
    --url.
    """
    wanted = {"run": run, "thread": thread}
    params = {name: value for name, value in wanted.items() if value is not None}
    open_questions = list_at_server(
        url, api_key, "questions", _FIELDS, params={**params, "limit": _MOST_LISTED}
    )
    if len(open_questions) >= _MOST_LISTED:
        say(
            f"these are the newest {_MOST_LISTED} questions, and the server may have more; choose "
            "some of them with --run or --thread"
        )
    if as_json:
        show_json(open_questions)
    elif not open_questions:
        from agentrt.errors import shown_url

        click.echo(f"no questions are open at {shown_url(url)}", err=True)
    else:
        click.echo("".join(map(_listed, open_questions)), nl=False)


class _AnswerCommand(click.Command):
    """A command whose argument may begin with a dash, such as the number -5. Its options do not
    begin with a dash and a digit, a full stop or a blank.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(_DASHED.match(value) for value in args)
        return super().parse_args(ctx, args)


@click.command(cls=_AnswerCommand)
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
    fields = ask_server(url, api_key, "GET", path, _FIELDS)
    if fields["state"] != "open":
        raise RefusedError(f"question {question} is not open any more: {fields['state']}")
    reply = read_choice(_form(fields), typed(value))
    done = ask_server(url, api_key, "POST", path, ["state"], json={"answer": reply})
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


def ask_server(
    url: str, key: str | None, method: str, path: str, fields: Sequence[str], **request: Any
) -> dict[str, Any]:
    """Send a request to the server and return its answer, a JSON object with at least ``fields``.

    ``request`` are further arguments of httpx's ``request``. Raises `UsageError` for an invalid URL
    or API key, and for a request that the server rejects as invalid. Raises `RefusedError` if the
    server cannot be reached, rejects the request for another reason, or gives another answer.
    """
    import httpx

    from agentrt.cli.faults import RefusedError
    from agentrt.errors import UsageError, header_fault, shown_url, url_fault
    from agentrt.proxies import client_options

    if HOST_AND_PORT.fullmatch(url.partition("/")[0]):
        url = f"http://{url}"
    shown = shown_url(url)
    advice = "write an address such as http://127.0.0.1:8000"
    if (fault := url_fault(url)) is not None:
        raise UsageError(f"--url {shown!r} is not an address of a server ({fault}); {advice}")
    base = url.rstrip("/").removesuffix("/v1").removesuffix("/dashboard")
    if key is not None and (not key.isprintable() or header_fault("authorization", key)):
        raise UsageError(
            "--api-key: invalid API key; a key has only printable ASCII characters, and no blank "
            "at its beginning or end"
        )
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
        return _with_fields(_json_of(response), fields, url)
    why = _why(response)
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise UsageError(f"{shown}: {why}; set the key with --api-key or AGENTRT_API_KEY")
    is_usage = response.status_code in (400, 403, 404, 413, 422)
    raise (UsageError if is_usage else RefusedError)(why)


def list_at_server(
    url: str, key: str | None, path: str, fields: Sequence[str], **request: Any
) -> list[dict[str, Any]]:
    """Return the objects that the server lists at ``path``, each with at least ``fields``. The
    arguments and errors are those of `ask_server`.
    """
    listed = ask_server(url, key, "GET", path, ["data"], **request)["data"]
    values = listed if isinstance(listed, list) else [None]
    return [_with_fields(value, fields, url) for value in values]


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


def _json_of(response: httpx.Response) -> Any:
    """Return the JSON of the server's answer; None if the answer is not JSON."""
    try:
        return response.json()
    except ValueError:
        return None


def _with_fields(value: Any, fields: Sequence[str], url: str) -> dict[str, Any]:
    """Return a JSON object of the server's answer. Raises `RefusedError` for a value that is not an
    object with these fields, because another program may listen at the address.
    """
    from agentrt.cli.faults import RefusedError
    from agentrt.errors import shown_url

    if isinstance(value, dict) and value.keys() >= set(fields):
        return value
    raise RefusedError(
        f"{shown_url(url)} does not answer like an agentrt server; check the address and the port"
    )
