"""``agentrt serve``: what it refuses, what it says, and how it stops."""

from __future__ import annotations

import gc
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from agentrt.cli.load import load_all
from agentrt.cli.serving import settle
from agentrt.errors import ProgramLoadError
from tests.cli.conftest import Invoke, Write
from tests.doubles.forked_python import forked_python

ROOT = Path(__file__).resolve().parents[2]
TWO = """
@program
async def one(ctx, text="one"):
    return (await ctx.llm(text)).text

@program(name="two")
async def other(ctx, text):
    return text
"""
WAIT_S = 60.0

pytestmark = pytest.mark.usefixtures("clean_imports")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("nothing.py",), "nothing.py: no such file"),
        (("--port", "70000"), "70000 is not in the range"),
        (("--park-after", "-1"), "-1.0 is not in the range"),
        (("--host", "nowhere.invalid"), "--host 'nowhere.invalid': unknown address"),
        (("--policy", "magic"), "magic"),
        (
            ("--database", "mysql://x"),
            "'mysql://x'; use sqlite:FILE or postgresql://USER@HOST/NAME",
        ),
        (("--database", "sqlite:none/a.db"), "folder 'none' does not exist"),
        (("--database", "sqlite:."), "sqlite:. is a folder"),
        (("--api-key-file", "no.json"), "make a key: agentrt keys new TENANT --file no.json"),
        (("--router", "agentix"), "--replicas N"),
        (("--cors-origin", "chat.example"), "--cors-origin 'chat.example': invalid origin"),
        (("--allowed-hosts", "http://a"), "--allowed-hosts 'http://a': invalid host name"),
        (("--webhook-host", "http://a"), "--webhook-host 'http://a': invalid host"),
        (("--ssl-keyfile", "key.pem"), "--ssl-certfile"),
        (("--ssl-certfile", "no.pem"), "--ssl-certfile no.pem: no such file"),
        (("--ssl-ca-certs", "ca.pem"), "--ssl-ca-certs has no effect without --ssl-cert-reqs"),
        (("--ssl-cert-reqs", "2"), "add --ssl-ca-certs FILE"),
        (("--ssl-cert-reqs", "1", "--ssl-ca-certs", "ca.pem"), "add --ssl-certfile FILE"),
        (("--uds", "none/a.sock"), "--uds none/a.sock: no such file or directory"),
        (("--uds", "."), "--uds"),
        (("--root-path", "models"), "--root-path 'models': invalid path; use a slash"),
        (("--root-path", "/a b"), "--root-path '/a b': invalid path"),
        (("--middleware", "Check"), "use the form MODULE.NAME"),
        (("--middleware", "no_such.Check"), "unknown module 'no_such'; install it"),
        (("--middleware", "json.Check"), "--middleware json.Check: json has no 'Check'"),
        (("--middleware", "json.dumps"), "--middleware json.dumps: dumps is of type function"),
        (
            ("--middleware", "asyncio.wait"),
            "--middleware asyncio.wait: wait has other parameters (too many positional arguments)",
        ),
        (
            ("--middleware", "starlette.middleware.authentication.AuthenticationMiddleware"),
            "(missing a required argument: 'backend'); name a subclass that sets",
        ),
        (("--speed", "5"), "options of vLLM go after --"),
        (("--", "--enable_log_requests"), "add --verbose before the --"),
        (("--model", "./none"), "no such folder"),
    ],
)
def test_bad_usage_is_one_line(
    invoke: Invoke, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], says: str
) -> None:
    port = () if "--port" in args else ("--port", "0")
    assert invoke("serve", *port, *args) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert says in lines[0]


def test_a_key_of_the_environment_without_characters_is_refused(
    invoke: Invoke, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", " \n")
    assert invoke("serve", "--port", "0") == 2
    assert capsys.readouterr().err.startswith("error: VLLM_API_KEY is blank")


def test_the_key_of_the_environment_is_needed(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-mine")
    with running(write(TWO)) as (_, url):
        assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200
        assert httpx.get(f"{url}/v1/programs", timeout=WAIT_S).status_code == 401
        key = {"authorization": "Bearer sk-mine"}
        answer = httpx.get(f"{url}/v1/programs", headers=key, timeout=WAIT_S)
        assert answer.status_code == 200


def test_each_request_is_a_line_of_a_verbose_server(write: Write) -> None:
    with running(write(TWO), "--verbose") as (one, url):
        assert httpx.get(f"{url}/v1/nothing?a=b", timeout=WAIT_S).status_code == 404
        one.until(r'127\.0\.0\.1:\d+ - "GET /v1/nothing\?a=b HTTP/1\.1" 404$')


def test_a_port_in_use_is_told_before_any_engine_starts(
    invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert invoke("serve", "--port", port) == 2
    error = capsys.readouterr().err
    assert error == (
        f"error: port {port} at 127.0.0.1: address already in use; choose another port with "
        "--port\n"
    )


def test_an_address_of_another_machine_is_told(
    invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("serve", "--host", "192.0.2.1", "--port", "0") == 2
    error = capsys.readouterr().err
    assert error.endswith("; choose an address of this machine with --host\n")


def test_a_database_in_use_is_told_before_any_engine_starts(
    invoke: Invoke, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The lock belongs to a process, so another process holds it here."""
    file = tmp_path / "a.db"
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, f"{file}.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert invoke("serve", "--port", "0", "--database", f"sqlite:{file}") == 2
        holder.communicate()
    [error] = capsys.readouterr().err.splitlines()
    assert "another server uses this database; stop that server" in error


def test_all_programs_of_a_file_are_served(write: Write) -> None:
    path = write(TWO)
    assert list(load_all(str(path))) == ["one", "two"]
    assert list(load_all(f"{path}:other")) == ["two"]


def test_two_programs_of_one_name_are_refused(write: Write) -> None:
    text = "\n".join(f"@program(name='a')\nasync def p{n}(ctx): pass" for n in range(2))
    with pytest.raises(ProgramLoadError, match="two programs have the name 'a'"):
        load_all(str(write(text)))


def test_keys_are_made_by_command(
    invoke: Invoke, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    assert invoke("keys", "new", "acme", "--file", path) == 0
    key = capsys.readouterr().out.strip()
    assert re.fullmatch(r"agentrt_[0-9a-f]{12}_[\w-]{43}", key)
    assert invoke("keys", "new", "two words", "--file", path) == 2
    assert "invalid tenant name" in capsys.readouterr().err


# -- as a process ----------------------------------------------------------------------------


class Running:
    """The command on an engine that echoes; ``lines`` are what it has said on stderr."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        assert process.stderr is not None
        self._stderr = process.stderr

    def until(self, pattern: str) -> re.Match[str]:
        """Read stderr until a line has this; it ends sooner or later."""
        for line in self._stderr:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it did not say {pattern!r}: {self.lines}")

    def end(self) -> tuple[int, str]:
        self.lines += self._stderr.readlines()
        return self.process.wait(WAIT_S), "".join(self.lines)


EXITS = """
import sys
from langgraph.graph import START, MessagesState, StateGraph

async def leave(*given):
    sys.exit(3)

@program
async def one(ctx, text):
    if text == "exit":
        async with asyncio.TaskGroup() as group:
            group.create_task(leave())
    return text

builder = StateGraph(MessagesState).add_node("leave", leave).add_edge(START, "leave")
graph = builder.compile(name="graph")
"""


@contextmanager
def running(
    path: Path, *options: str, engine: str = "echoing", python: str = "", address: str = ""
) -> Iterator[tuple[Running, str]]:
    """A server on a fork, or on this ``python``. If ``path`` is a folder, it serves no file."""
    files = () if path.is_dir() else (str(path),)
    serve = ("-m", f"tests.cli.{engine}", "serve", *files, "--port", "0")
    command = [python or forked_python(), *serve]
    if "--database" not in options:  # nor what an earlier server has left in a journal
        command += ["--database", f"sqlite:{path.parent / 'agentrt.db'}"]
    process = subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    one = Running(process)
    watchdog = threading.Timer(WAIT_S, process.kill)
    watchdog.start()
    try:
        address = re.escape(address) or r"http://127\.0\.0\.1:\d+[/a-z]*"
        yield one, one.until(rf" at ({address}) \(")[1]
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def ask(url: str, text: str, **options: bool) -> dict[str, object]:
    body = {"input": text, **options}
    answer = httpx.post(f"{url}/v1/programs/one/runs", json=body, timeout=WAIT_S)
    run: dict[str, object] = answer.json()
    return run


def test_it_serves_until_a_signal_ends_it(write: Write) -> None:
    with running(write(TWO), python=sys.executable) as (one, url):
        assert "ready: serving one, two at" in one.lines[-1]
        pages = [one.until(f"{page} in a browser: (.*)")[1] for page in ("chat", "dashboard")]
        assert pages == [f"{url}/", f"{url}/dashboard"]
        assert [httpx.get(page, timeout=WAIT_S).status_code for page in pages] == [200, 200]
        [kept] = [line for line in one.lines if "are stored in " in line]
        assert Path(kept.rpartition("are stored in ")[2].strip()).is_absolute()
        assert ask(url, "hello")["result"] == "hello"
        run = httpx.post(f"{url}/v1/programs/two/runs", json={"input": "x"}, timeout=WAIT_S).json()
        assert run["result"] == "x"
        one.process.send_signal(signal.SIGINT)
        code, said = one.end()
        assert code == 128 + signal.SIGINT
        assert said.splitlines()[-1] == "stopped: all running requests have ended"
        assert "Traceback" not in said


def test_a_program_that_exits_does_not_end_the_server(write: Write) -> None:
    """Wherever its code calls sys.exit: here in a task of a program, and in a node of a graph."""
    with running(write("import asyncio\n" + EXITS)) as (_, url):
        assert "the program raised SystemExit: 3" in str(ask(url, "exit")["error"])
        body = {"assistant_id": "graph", "input": {"messages": []}}
        answer = httpx.post(f"{url}/runs/wait", json=body, timeout=WAIT_S).json()
        assert answer["__error__"]["message"] == "the program raised SystemExit: 3"
        assert ask(url, "hello")["result"] == "hello"


def test_a_server_on_a_unix_socket(
    write: Write, tmp_path: Path, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agentrt.sock"
    with socket.socket(socket.AF_UNIX) as killed:  # as a server that was killed leaves it
        killed.bind(str(path))
    options = ("--uds", str(path), "--verbose")
    with running(write(TWO), *options, address=f"unix:{path}") as (one, _):
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://localhost") as client:
            body = {"input": "hello"}
            answer = client.post("/v1/programs/one/runs", json=body, timeout=WAIT_S)
            assert answer.json()["result"] == "hello"
        one.until('"POST /v1/programs/one/runs HTTP/1.1" 200')
        assert invoke("serve", "--uds", str(path)) == 2
        assert f"--uds {path}: address already in use" in capsys.readouterr().err
        one.process.send_signal(signal.SIGTERM)
        code, said = one.end()
        assert code == 128 + signal.SIGTERM
        assert "in a browser" not in said
        assert not path.exists()


def test_a_server_below_a_path(write: Write) -> None:
    with running(write(TWO), "--root-path", "/models/") as (one, url):
        assert url.endswith("/models")
        assert one.until("dashboard in a browser: (.*)")[1] == f"{url}/dashboard"
        for base in (url, url.removesuffix("/models")):  # as a proxy leaves the path, or removes it
            assert ask(base, "hello")["result"] == "hello"
            assert httpx.get(f"{base}/health", timeout=WAIT_S).json() == {"status": "ok"}
            about = httpx.get(f"{base}/a2a/one/.well-known/agent-card.json", timeout=WAIT_S)
            assert url in str(about.json())
            slash = httpx.get(f"{base}/health/?a=b", timeout=WAIT_S)
            assert (slash.status_code, slash.headers["location"]) == (307, f"{url}/health?a=b")
            slash = httpx.post(f"{base}/v1/programs/one/runs/", json={}, timeout=WAIT_S)
            assert slash.headers["location"] == f"{url}/v1/programs/one/runs"
        page = httpx.get(url, follow_redirects=True, timeout=WAIT_S)
        assert (page.status_code, str(page.url)) == (200, f"{url}/")
        assert httpx.get(f"{url}x/health", timeout=WAIT_S).status_code == 404


MIDDLEWARE = """
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse

class Named(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        response = await call_next(request)
        response.headers["x-named"] = request.headers.get("x-name", "none")
        return response

async def gate(request, call_next):
    if request.url.path == "/v1/closed":
        return JSONResponse({"closed": True}, 418)
    return await call_next(request)
"""


def test_each_request_passes_the_middleware(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one first, and all before the key is checked, as under 'vllm serve'."""
    (tmp_path / "of_the_user.py").write_text(MIDDLEWARE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("VLLM_API_KEY", "sk-mine")
    options = ("--middleware", "of_the_user.gate", "--middleware", "of_the_user.Named")
    with running(write(TWO), *options) as (_, url), httpx.Client(timeout=WAIT_S) as client:
        client.headers["x-name"] = "me"
        for path, status in (("closed", 418), ("programs", 401)):
            answer = client.get(f"{url}/v1/{path}")
            assert (answer.status_code, answer.headers["x-named"]) == (status, "me")
        client.headers["authorization"] = "Bearer sk-mine"
        body = {"input": "hello", "stream": True}
        with client.stream("POST", f"{url}/v1/programs/one/runs", json=body) as streamed:
            assert streamed.headers["x-named"] == "me"
            assert "hello" in streamed.read().decode()


def test_an_error_of_a_middleware_is_no_bug_of_the_server(
    invoke: Invoke,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "broken.py").write_text(
        "class Gate:\n    def __init__(self, app):\n        raise KeyError('SECRET')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = ("--engine", "simulated", "--port", "0", "--middleware", "broken.Gate")
    assert invoke("serve", *options) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "--middleware broken.Gate: KeyError: 'SECRET' (" in last
    assert "broken.py:3)" in last


def test_a_server_of_nothing_says_so(tmp_path: Path) -> None:
    with running(tmp_path, "--engine", "simulated") as (one, url):
        assert f"ready: serving no model, program or graph at {url} (" in one.lines[-1]
        one.process.send_signal(signal.SIGINT)
        assert one.end()[0] == 128 + signal.SIGINT


def test_a_stop_cuts_off_what_takes_too_long(write: Write) -> None:
    """An answer that has not begun says so; a stream just ends, and not as if it were whole."""
    with running(write(TWO), "--drain-timeout", "0") as (one, url), ThreadPoolExecutor() as others:
        at, hang = f"{url}/v1/programs/one/runs", {"input": "hang"}
        whole = others.submit(httpx.post, at, json=hang, timeout=WAIT_S)
        with httpx.stream("POST", at, json={**hang, "stream": True}, timeout=WAIT_S) as stream:
            while len(httpx.get(f"{url}/programs", timeout=WAIT_S).json()["programs"]) < 2:
                pass
            one.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                stream.read()
        refused = whole.result(WAIT_S)
        assert refused.status_code == 503
        assert (
            refused.json()["error"]["message"]
            == "the server is stopping: this request took too long"
        )
        code, said = one.end()
        cut_off = "requests that had not ended after 0 s (--drain-timeout) were cut off"
        assert said.splitlines()[-1] == f"stopped: {cut_off}"
        assert code == 128 + signal.SIGTERM
        assert "Traceback" not in said


def test_a_second_signal_stops_at_once(write: Write) -> None:
    with running(write(TWO)) as (one, url):
        assert ask(url, "hang", wait=False)["state"] == "running"
        one.process.send_signal(signal.SIGTERM)
        one.until("finishing running requests")
        one.process.send_signal(signal.SIGTERM)
        code, said = one.end()
        assert code == 128 + signal.SIGTERM
        assert "the programs and the engine were stopped" in said
        assert "Traceback" not in said


def test_an_engine_that_dies_is_replaced_and_given_up_at_last(write: Write) -> None:
    """1. It dies once: the call runs again, and the server says so. 2. It dies without end: the
    call fails, and the server ends with one line.
    """
    with running(write(TWO), engine="dying") as (one, url):
        assert ask(url, "die once")["result"] == "die once"
        assert httpx.get(f"{url}/health", timeout=WAIT_S).json() == {"status": "ok"}
        one.until("the engine died and is restarted: it was killed")
        one.until("the engine is back")
        assert ask(url, "die")["state"] == "failed"
        code, said = one.end()
        assert code == 1
        assert said.splitlines()[-1] == "error: all engines have died: the engine: it was killed"
        assert "Traceback" not in said


def test_a_thread_that_works_gives_way_to_the_event_loop() -> None:
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    try:
        settle()
        assert sys.getswitchinterval() == 0.0005
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


ENDED_PROGRAMS = """
from collections import deque
from agentrt.cli.serving import settle

class Run:
    alive = most = 0
    def __init__(self):
        self.parts, self.task = [[] for _ in range(60)], self
        Run.alive += 1
        Run.most = max(Run.most, Run.alive)
    def __del__(self):
        Run.alive -= 1

settle()
kept = deque(maxlen=1000)
for _ in range(40_000):
    kept.append(Run())
print(Run.most)
"""


def test_ended_programs_do_not_pile_up_in_memory() -> None:
    """A program and its task refer to each other, and both are old when the server forgets them."""
    done = subprocess.run(
        [sys.executable, "-c", ENDED_PROGRAMS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 10_000
