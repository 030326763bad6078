"""Reminders in the middle of a chat stay where they are, whatever the model's chat template does.

Templates of each kind are rendered by vLLM's own renderer, as all APIs do. The chat of a session
is rendered after every turn: each prompt has to begin with the one before it, so that nothing that
was cached is computed again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from vllm.renderers import ChatParams

from agentrt.executors.vllm._compat.api_server import make_renderer
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.entrypoints.arranged import CLOSES, OPENS, arrange_chats
from agentrt.executors.vllm.entrypoints.tool_form import explain_tools
from tests.doubles.scripted_engine import ScriptedEngine

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

TURN = (
    "<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}</>"
)
LAST = "{% if add_generation_prompt %}<assistant>{% endif %}"
LOOP = "{% for m in messages %}" + TURN + "{% endfor %}" + LAST
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    + TURN
    + "{% endfor %}"
    + LAST
)
MOVES = (
    "<system>{% for m in messages if m.role == 'system' %}{{ m.content }} {% endfor %}</>"
    "{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}" + LAST
)
DROPS = (
    "{% for m in messages %}{% if loop.first or m.role in ['user', 'assistant', 'tool'] %}"
    + TURN
    + "{% endif %}{% endfor %}"
    + LAST
)
NAMES_DEVELOPER = LOOP + "{# 'developer' #}"
ALTERNATES = (
    "{% set chat = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}</>{% endif %}"
    "{% set turn = namespace(n=0) %}{% for m in chat %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (turn.n % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}{% set turn.n = turn.n + 1 %}"
    "{% elif m.role == 'system' %}{{ raise_exception('Only system first.') }}{% endif %}"
    + TURN
    + "{% endfor %}"
    + LAST
)
NO_SYSTEM = (
    "{% set turn = namespace(n=0) %}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported.') }}{% endif %}{% if m.role != 'tool' and "
    "not m.tool_calls and (m.role == 'user') != (turn.n % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}{% if m.role != 'tool' and "
    "not m.tool_calls %}{% set turn.n = turn.n + 1 %}{% endif %}" + TURN + "{% endfor %}" + LAST
)
# Reasoning is shown only after the last turn of the user, as Qwen3's template does.
THINKS = (
    "{% set last = namespace(at=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.at = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('first only') }}{% endif %}"
    "{% if m.reasoning_content and loop.index0 > last.at %}<think>{{ m.reasoning_content }}</>"
    "{% endif %}" + TURN + "{% endfor %}" + LAST
)
TEMPLATES = {
    "takes": LOOP,
    "refuses": REFUSES,
    "moves": MOVES,
    "drops": DROPS,
    "names developer": NAMES_DEVELOPER,
    "alternates": ALTERNATES,
    "no system": NO_SYSTEM,
    "thinks": THINKS,
}
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
MARKED = f"{OPENS}the list changed{CLOSES}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def renderer() -> AsyncIterator[Any]:
    engine = ScriptedEngine(lambda call: "", str(embedded_model(lambda message: None)))
    await engine.start(lambda message: None)
    [setup] = await engine.front_setups()
    made, _ = make_renderer(setup.vllm_config)
    yield arrange_chats(made)
    made.shutdown()


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


async def prompt(
    renderer: Any, template: str, chat: list[dict[str, Any]], tools: Any = None, **options: Any
) -> str:
    """Return the prompt of a chat, after checking that both ways to render it give the same."""
    kwargs = {"tokenize": False, "add_generation_prompt": True, "tools": tools, **options}
    params = ChatParams(chat_template=template, chat_template_kwargs=kwargs)
    before = [dict(message) for message in chat]
    _, awaited = await renderer.render_messages_async(chat, params)
    _, whole = renderer.render_messages(chat, params)
    assert awaited == whole
    assert chat == before, "the request's own messages were changed"
    return str(awaited["prompt"])


def begins(name: str) -> list[dict[str, Any]]:
    return [] if name == "no system" else [turn("system", "You help.")]


def session(begin: list[dict[str, Any]], role: str) -> list[list[dict[str, Any]]]:
    """Return the chats of ten turns, with a reminder in every second turn."""
    chat, chats = list(begin), []
    for number in range(10):
        chat.append(turn("user", f"question {number}"))
        if number % 2:
            reminder = turn(role, f"reminder {number}")
            chat.insert(len(chat) - (number % 4 == 1), reminder)  # before a question, or after it
        chats.append(list(chat))
        chat.append(turn("assistant", f"answer {number}"))
    return chats


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("name", TEMPLATES)
async def test_each_prompt_of_a_session_begins_with_the_one_before(
    renderer: Any, name: str, role: str
) -> None:
    before = ""
    for number, chat in enumerate(session(begins(name), role)):
        rendered = await prompt(renderer, TEMPLATES[name], chat)
        assert rendered.startswith(before.removesuffix("<assistant>"))
        words = [f"{word} {n}" for n in range(number) for word in ("question", "answer")]
        places = [rendered.index(word) for word in words]
        assert places == sorted(places)
        for turn_of in range(1, number + 1, 2):
            assert rendered.count(f"reminder {turn_of}") == 1
            place = rendered.index(f"reminder {turn_of}")
            assert rendered.index(f"answer {turn_of - 1}") < place
            assert place < rendered.find(f"answer {turn_of}") or turn_of == number
        before = rendered


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_reminder_beside_a_tools_result_keeps_the_prefix(
    renderer: Any, name: str, role: str
) -> None:
    """The reminder comes before or after the result, and the agent reasons on within its turn."""
    chat = [*begins(name), turn("user", "look twice")]
    before, template = "", TEMPLATES[name]
    for number in range(4):
        call = {"id": f"c{number}", "type": "function"} | {
            "function": {"name": "look", "arguments": "{}"}
        }
        chat.append(turn("assistant", None, reasoning=f"thought {number}", tool_calls=[call]))
        result = turn("tool", f"result {number}", tool_call_id=f"c{number}")
        reminder = turn(role, f"reminder {number}")
        chat += [result, reminder] if number % 2 else [reminder, result]
        rendered = await prompt(renderer, template, chat, [TOOL])
        assert rendered.startswith(before.removesuffix("<assistant>"))
        assert rendered.count(f"reminder {number}") == 1
        before = rendered
    if name == "thinks":
        assert all(f"thought {number}" in before for number in range(4))


async def test_a_template_that_takes_a_system_message_gets_it_as_it_is(renderer: Any) -> None:
    chat = [*begins(""), turn("user", "a"), turn("assistant", "b"), turn("system", "c")]
    rendered = await prompt(renderer, LOOP, [*chat, turn("user", "d")])
    assert rendered == (
        "<system>You help.</><user>a</><assistant>b</><system>c</><user>d</><assistant>"
    )
    developing = [*chat[:-1], turn("developer", "c"), turn("user", "d")]
    assert await prompt(renderer, LOOP, developing) == rendered
    named = await prompt(renderer, NAMES_DEVELOPER, developing)
    assert "<developer>c</>" in named


async def test_a_reminder_is_a_user_turn_with_marks_unless_it_has_them(renderer: Any) -> None:
    chat = [*begins(""), turn("user", "a"), turn("assistant", "b")]
    plain = await prompt(renderer, REFUSES, [*chat, turn("system", "c")])
    assert plain.endswith(f"<user>{OPENS}\nc\n{CLOSES}</><assistant>")
    own = await prompt(renderer, REFUSES, [*chat, turn("system", MARKED)])
    assert own.endswith(f"<user>{MARKED}</><assistant>")
    parts = [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]
    several = await prompt(renderer, REFUSES, [*chat, turn("developer", parts)])
    assert several.endswith(f"<user>{OPENS}\nc\nd\n{CLOSES}</><assistant>")
    contents: list[Any] = ["", [], None, " "]
    for nothing in contents:
        empty = await prompt(renderer, REFUSES, [*chat, turn("system", nothing), chat[1]])
        assert OPENS not in empty


@pytest.mark.parametrize("name", ["refuses", "moves", "alternates"])
async def test_instructions_before_the_first_turn_are_one_message(renderer: Any, name: str) -> None:
    chat = [turn("system", "one"), turn("developer", "two"), turn("user", "a")]
    rendered = await prompt(renderer, TEMPLATES[name], chat)
    assert rendered.count("<system>") == 1
    assert rendered.index("one") < rendered.index("two") < rendered.index("</>")
    assert OPENS not in rendered


async def test_a_leading_developer_message_does_not_move_reminders(renderer: Any) -> None:
    chat = [turn("developer", "D"), turn("user", "a"), turn("assistant", "b")]
    first = await prompt(renderer, LOOP, chat[:2])
    rendered = await prompt(renderer, LOOP, [*chat, turn("system", "c"), turn("user", "d")])
    assert rendered.startswith(first)
    assert rendered.index("<assistant>b") < rendered.index("<system>c")


async def test_the_form_of_tools_that_the_server_explains_keeps_reminders_too() -> None:
    engine = ScriptedEngine(lambda call: "", str(embedded_model(lambda message: None)))
    await engine.start(lambda message: None)
    [setup] = await engine.front_setups()
    made, _ = make_renderer(setup.vllm_config)
    held = arrange_chats(explain_tools(made))
    before = ""
    for chat in session([turn("system", "You help.")], "system"):
        rendered = await prompt(held, ALTERNATES, chat, [TOOL])
        assert rendered.startswith(before.removesuffix("<assistant>"))
        before = rendered
    assert "reminder 9" in before
    made.shutdown()
