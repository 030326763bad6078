"""System and developer messages in the middle of a chat, by all three APIs: each prompt of a
session begins with the one before it, on a model whose template wants the system message first.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from agentrt.request import Call
from agentrt.serving.frontend.conversations import CHAT, MESSAGES, RESPONSES
from tests.serving.local import MODEL, LocalServer, open_server

pytestmark = pytest.mark.engine

STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}"
    "{{ p.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SAID = "Certainly."


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path = tmp_path_factory.mktemp("templates") / "strict.jinja"
    path.write_text(STRICT, encoding="utf-8")
    return ("--chat-template", str(path))


def body(path: str, chat: list[dict[str, Any]]) -> dict[str, Any]:
    if path == RESPONSES:
        return {"model": MODEL, "instructions": "You help.", "input": chat}
    if path == MESSAGES:
        return {"model": MODEL, "system": "You help.", "max_tokens": 64, "messages": chat}
    return {"model": MODEL, "messages": [{"role": "system", "content": "You help."}, *chat]}


def tokens(call: Call) -> list[int]:
    return list(call.spec.prompt_token_ids or ())


async def prompts(local: LocalServer, path: str, role: str | None) -> list[list[int]]:
    """The prompts of a session of ten turns, with a reminder every second turn."""
    chat: list[dict[str, Any]] = []
    for number in range(10):
        chat.append({"role": "user", "content": f"Question {number}, if I may?"})
        if number % 2 and role is not None:
            chat.append({"role": role, "content": f"The to-do list has changed {number} times."})
        await local.post(path, body(path, chat))
        chat.append({"role": "assistant", "content": SAID})
    return [tokens(call) for call in local.engine.calls[-10:]]


def shared(before: list[int], after: list[int]) -> int:
    """How many tokens two prompts have in common from the beginning."""
    pairs = zip(before, after, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))


@pytest.mark.parametrize(
    ("path", "role"),
    [
        *((path, "system") for path in (CHAT, MESSAGES, RESPONSES)),
        *((path, "developer") for path in (CHAT, RESPONSES)),  # Anthropic's API has no such role
    ],
)
async def test_a_session_with_reminders_keeps_its_prefix(
    path: str, role: str, flags: tuple[str, ...]
) -> None:
    async with open_server(lambda call: SAID, flags=flags) as local:
        plain = await prompts(local, path, None)
        reminded = await prompts(local, path, role)
        for number in range(9):
            without = shared(plain[number], plain[number + 1])
            assert without == len(plain[number])
            assert shared(reminded[number], reminded[number + 1]) == len(reminded[number])


async def test_all_apis_render_the_same_prompt(flags: tuple[str, ...]) -> None:
    async with open_server(lambda call: SAID, flags=flags) as local:
        chat = await prompts(local, CHAT, "system")
        assert chat == await prompts(local, MESSAGES, "system")
        assert chat == await prompts(local, RESPONSES, "system")
        assert chat == await prompts(local, RESPONSES, "developer")


async def test_counting_tokens_sees_the_same_prompt(flags: tuple[str, ...]) -> None:
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    async with open_server(lambda call: SAID, flags=flags) as local:
        await local.post(MESSAGES, body(MESSAGES, chat))
        [call] = local.engine.calls
        asked = {name: v for name, v in body(MESSAGES, chat).items() if name != "max_tokens"}
        counted = await local.post(f"{MESSAGES}/count_tokens", asked)
        assert counted["input_tokens"] == len(tokens(call))


async def test_a_response_that_goes_on_from_another_keeps_its_reminders(
    flags: tuple[str, ...],
) -> None:
    async with open_server(lambda call: SAID, flags=flags) as local:
        before = None
        for number in range(4):
            said = [
                {"role": "user", "content": f"Question {number}, if I may?"},
                {"role": "system", "content": f"The to-do list has changed {number} times."},
            ]
            asked = {**body(RESPONSES, said), "previous_response_id": before}
            before = (await local.post(RESPONSES, asked))["id"]
        calls = [tokens(call) for call in local.engine.calls]
        for earlier, later in itertools.pairwise(calls):
            assert shared(earlier, later) == len(earlier)


async def test_an_option_leaves_them_to_the_template(flags: tuple[str, ...]) -> None:
    """As in vLLM, two APIs refuse it, and the third moves it to the front."""
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": SAID},
        {"role": "system", "content": "c"},
    ]
    async with open_server(lambda call: SAID, flags=flags, reminders=False) as local:
        for path in (CHAT, RESPONSES):
            answer = await local.client.post(path, json=body(path, chat))
            assert answer.status_code == 400
        moved = await prompts(local, MESSAGES, "system")
        assert shared(moved[2], moved[3]) < len(moved[2])


def test_the_option_has_two_values(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from agentrt.cli.serve import serve

    result = CliRunner().invoke(serve, ["--reminders", "front"])
    assert result.exit_code == 2
    assert "in-place" in result.output
