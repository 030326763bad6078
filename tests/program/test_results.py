"""Results of tools with parts other than text, for models with vision and for others."""

from __future__ import annotations

from typing import Any

import pytest

from agentrt import Context, Runtime, ToolCall, program, tool
from agentrt.program.results import Takes, ToolResult, messages_of
from agentrt.request import Call
from tests.doubles.choices import Output
from tests.doubles.scripted import ScriptedExecutor

TEXT = {"type": "text", "text": "a dot"}
DOT = {"type": "image_url", "image_url": {"url": "data:image/png;base64,ZG90"}}
LINK = {"type": "image_url", "image_url": {"url": "https://example.org/dot.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "YmVlcA==", "format": "wav"}}
FILE = {
    "type": "file",
    "file": {"filename": "dot.pdf", "file_data": "data:application/pdf;base64,cGRm"},
}


def shown(value: Any, takes: Takes) -> list[Any]:
    return [message["content"] for message in messages_of([result(value, takes)])]


def result(value: Any, takes: Takes) -> ToolResult:
    return ToolResult(ToolCall("draw", {}, "a"), value, takes=takes)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (DOT, "[image (image/png, 3 bytes), which this model cannot see]"),
        (LINK, "[image (https://example.org/dot.png), which this model cannot see]"),
        (SOUND, "[sound (audio/wav, 4 bytes), which this model cannot hear]"),
        (FILE, "[file (dot.pdf, application/pdf, 3 bytes), which this model cannot read]"),
    ],
)
def test_a_model_reads_which_parts_it_cannot_get(part: Any, says: str) -> None:
    assert shown([TEXT, part], {}) == [f"a dot\n{says}"]


def test_a_model_reads_values_that_are_not_json_as_python_writes_them() -> None:
    ring: list[Any] = ["tea"]
    ring.append(ring)
    assert shown(ring, {}) == ["['tea', [...]]"]
    assert shown({(1, 2): "pair"}, {}) == ["{(1, 2): 'pair'}"]


def test_a_vision_model_gets_images_in_tool_messages_or_user_messages() -> None:
    deaf = {"type": "text", "text": "[sound (audio/wav, 4 bytes), which this model cannot hear]"}
    assert shown([TEXT, DOT, SOUND], {"image_url": True}) == [[TEXT, DOT, deaf]]
    text, apart = shown([TEXT, DOT], {"image_url": False})
    assert text == "a dot\n[image (image/png, 3 bytes) in the next message]"
    assert apart == [{"type": "text", "text": "From the result of draw:"}, DOT]


def test_images_for_a_users_message_come_after_all_tools_messages() -> None:
    takes = {"image_url": False}
    given = [result([DOT], takes), result("two", takes), result([LINK], takes)]
    messages = messages_of(given)
    assert [message["role"] for message in messages] == ["tool", "tool", "tool", "user"]
    assert [part for part in messages[-1]["content"] if part["type"] != "text"] == [DOT, LINK]


@pytest.mark.parametrize(
    "value", [[], [1], [TEXT, 1], [{"type": "image_url"}], [{"type": "news", "news": {}}], DOT]
)
def test_other_values_are_json(value: Any) -> None:
    (content,) = shown(value, {"image_url": True})
    assert isinstance(content, str)
    assert content.startswith(("[", "{"))


@pytest.mark.parametrize("sees", [False, True])
async def test_a_step_asks_which_parts_its_model_supports(sees: bool) -> None:
    @tool
    def draw() -> list[Any]:
        return [TEXT, DOT]

    @program
    async def main(ctx: Context) -> Any:
        chat: list[Any] = [{"role": "user", "content": "Draw."}]
        step = await ctx.step(chat, tools=[draw])
        return str(await ctx.llm([*chat, *step.messages]))

    def say(call: Call) -> Output:
        last = call.spec.messages[-1]
        if last["role"] == "user" and last["content"] == "Draw.":
            return Output(tool_calls=(ToolCall("draw", {}, "a"),))
        return Output("I see" if DOT in list(last["content"]) else last["content"])

    async with Runtime(ScriptedExecutor(say, images=sees)) as runtime:
        said = await runtime.start(main).wait()
    assert said == (
        "I see" if sees else "a dot\n[image (image/png, 3 bytes), which this model cannot see]"
    )
