"""SDKs and frameworks as their users write them: their results, and their programs' DAGs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import certifi
import pytest
import pytest_asyncio

from tests.clients.model import HELLO, PERSON, WEATHER
from tests.clients.processes import Scripts, environment
from tests.clients.server import CALL, PatientEngine, Shape, loop_of, watch
from tests.serving.local import MODEL, LocalServer

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

NAME = "get_weather"
ONE, LOOP = loop_of(NAME), loop_of(NAME, NAME)
TURNS: Shape = [("call", ()), ("call", (0,))]
END = "-----END CERTIFICATE-----\n"
PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
TEXTS = [[[NAME, PARIS], [NAME, ROME]], WEATHER]
"""Both tools' arguments as text, and the answer; and so with the arguments read."""
VALUES = [[[NAME, {"city": "Paris"}], [NAME, {"city": "Rome"}]], WEATHER]
CITIES = [["Paris", "Rome"], WEATHER]

CASES: list[tuple[str, str, Any, list[Shape]]] = [
    ("python/openai_sdk", "chat", HELLO, [CALL]),
    ("python/openai_sdk", "chat_stream", [HELLO, True], [CALL]),
    ("python/openai_sdk", "chat_choices", [HELLO] * 3, [CALL * 3]),
    ("python/openai_sdk", "chat_tools", TEXTS, [LOOP]),
    ("python/openai_sdk", "chat_tools_stream", [[NAME, PARIS]], [ONE[:2]]),
    ("python/openai_sdk", "chat_parse", PERSON, [CALL]),
    ("python/openai_sdk", "completion", HELLO, [CALL]),
    ("python/openai_sdk", "responses", [HELLO, HELLO], [TURNS]),
    ("python/openai_sdk", "responses_tools", TEXTS, [LOOP]),
    ("python/openai_sdk", "responses_tools_by_id", [1, WEATHER], [ONE]),
    (
        "python/openai_sdk",
        "responses_stream",
        ["response.created", "response.completed", HELLO],
        [CALL],
    ),
    (
        "python/openai_sdk",
        "responses_compact",
        ["response.compaction", ["compaction"], WEATHER],
        [[*TURNS, ("call", (1,))]],
    ),
    ("python/openai_sdk", "responses_socket", [HELLO, HELLO], [TURNS]),
    ("python/openai_sdk", "responses_parse", PERSON, [CALL]),
    ("python/anthropic_sdk", "messages", [HELLO], [CALL]),
    ("python/anthropic_sdk", "messages_stream", [HELLO, "end_turn"], [CALL]),
    ("python/anthropic_sdk", "tools", VALUES, [LOOP]),
    ("python/anthropic_sdk", "tools_stream", VALUES, [LOOP]),
    ("python/anthropic_sdk", "count_tokens", True, []),
    ("python/anthropic_sdk", "windows", [262144, 262144, 262144], []),
    ("python/anthropic_sdk", "server_tools", [HELLO], [CALL]),
    ("python/agents_sdk", "chat_tools", WEATHER, [LOOP]),
    ("python/agents_sdk", "responses_tools", WEATHER, [LOOP]),
    ("python/agents_sdk", "responses_tools_stream", [WEATHER, True], [LOOP]),
    ("python/agents_sdk", "output_type", PERSON, [CALL]),
    ("python/pydantic_ai_sdk", "chat_tools", WEATHER, [LOOP]),
    ("python/pydantic_ai_sdk", "chat_tools_stream", WEATHER, [LOOP]),
    ("python/pydantic_ai_sdk", "responses_tools", WEATHER, [LOOP]),
    ("python/pydantic_ai_sdk", "messages_tools", WEATHER, [LOOP]),
    ("python/pydantic_ai_sdk", "native_output", PERSON, [CALL]),
    ("litellm/litellm_sdk", "chat_tools", TEXTS, [LOOP]),
    ("litellm/litellm_sdk", "chat_tools_stream", TEXTS, [LOOP]),
    ("litellm/litellm_sdk", "messages_tools", TEXTS, [LOOP]),
    ("litellm/instructor_sdk", "by_tool", PERSON, [[("call", ()), ("Person", (0,))]]),
    ("litellm/instructor_sdk", "by_schema", PERSON, [CALL]),
    ("node/openai_sdk", "chat", HELLO, [CALL]),
    ("node/openai_sdk", "chat_stream", HELLO, [CALL]),
    ("node/openai_sdk", "chat_tools", CITIES, [LOOP]),
    ("node/openai_sdk", "responses", [HELLO, HELLO], [TURNS]),
    ("node/openai_sdk", "responses_tools_stream", CITIES, [LOOP]),
    ("node/anthropic_sdk", "messages", [HELLO, "end_turn"], [CALL]),
    ("node/anthropic_sdk", "tools", CITIES, [LOOP]),
    ("node/anthropic_sdk", "tools_stream", CITIES, [LOOP]),
    ("node/anthropic_sdk", "count_tokens", True, []),
]
"""A script and its scenario, what it gives, and the programs that it makes on the server."""


# Not one script by an indirect parameter: pytest closes it wherever another parameter changes, too.
@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def scripts(
    local: LocalServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scripts]:
    home: Path = tmp_path_factory.mktemp("home")
    one = home / "authority.pem"  # clients of httpx read all that there are again and again
    one.write_text(certifi.contents().partition(END)[0] + END, "utf-8")
    environ = environment(
        home,
        AGENTRT_URL=local.url,
        AGENTRT_MODEL=MODEL,
        SSL_CERT_FILE=str(one),
        LITELLM_LOCAL_MODEL_COST_MAP="True",  # it would ask another server for its list of prices
    )
    async with Scripts(environ) as scripts:
        yield scripts


@pytest.mark.parametrize(
    ("name", "scenario", "result", "programs"),
    CASES,
    ids=[f"{name}-{scenario}" for name, scenario, _, _ in CASES],
)
async def test_a_scenario_is_one_program(
    scripts: Scripts,
    local: LocalServer,
    name: str,
    scenario: str,
    result: Any,
    programs: list[Shape],
) -> None:
    played = await scripts.named(name)
    seen = watch(local)
    assert await played.play(scenario) == result
    assert await seen.shapes() == programs


@pytest.mark.parametrize("name", ["python/openai_sdk", "python/anthropic_sdk", "node/openai_sdk"])
async def test_a_client_that_leaves_has_its_call_cancelled(
    scripts: Scripts, local: LocalServer, name: str
) -> None:
    played = await scripts.named(name)
    engine: PatientEngine = local.engine
    seen, before = watch(local), len(engine.left)
    assert await played.play("leave") == "word"
    await local.until(lambda: len(engine.left) == before + 1)
    assert not engine.held
    assert await seen.shapes() == [CALL]
